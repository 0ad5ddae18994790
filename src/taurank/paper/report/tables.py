"""The tables of the report, the paper's figures beside ours: built once, shown as HTML and as Markdown."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from taurank.html import page
from taurank.html.page import Cell
from taurank.paper.verdicts import paper_tables
from taurank.paper.verdicts.claims import Verdict
from taurank.paper.verdicts.comparison import LIMITS, SMALLER_IS_BETTER, Figure, lookup, methods_of, name, say

HERE, PAPER = "here", "paper"
EXTRA = ("countingbayes",)  # not in the paper, set apart from its methods
OUTCOME = "P@10"
_QUANTITIES = {
    "users": "users",
    "items": "items",
    "treated_rate": "mean μᵀ",
    "control_rate": "mean μᶜ",
    "propensity": "mean propensity",
    "prior_weight": "prior weight used",
    "tuned_prior_weight": "prior weight of the Brier search",
}


@dataclass(frozen=True)
class Table:
    """A table before it is HTML or Markdown."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    groups: Sequence[tuple[str, int]] = ()
    apart: frozenset[int] = field(default_factory=frozenset)

    def html(self) -> page.Block:
        return page.grid(self.columns, self.rows, self.caption, self.groups, self.apart)

    def markdown(self) -> str:
        names = [*_spread(self.groups)] or [""] * len(self.columns)
        head = [f"{group} {column}".strip() for group, column in zip(names, self.columns, strict=True)]
        align = ["---"] + ["---:"] * (len(head) - 1)
        rows = [head, align, *([_marked(cell) for cell in row] for row in self.rows)]
        return "\n".join([f"**{_plain(self.caption)}**", "", *(f"| {' | '.join(row)} |" for row in rows)])


def statistics(frame: pd.DataFrame) -> list[Table]:
    """Table 2."""
    printed = paper_tables.statistics()
    kinds = [items for items in paper_tables.ITEMS if items in set(frame["items"])] or list(frame["items"].unique())
    rows = [
        [Cell(words), *(cell for items in kinds for cell in _quantity(frame, printed, items, quantity))]
        for quantity, words in _QUANTITIES.items()
    ]
    columns = ["", *[HERE, PAPER] * len(kinds)]
    groups = [("", 1), *((items, 2) for items in kinds)]
    return [Table("Statistics of the data (Table 2)", columns, rows, groups)]


def _quantity(frame: pd.DataFrame, printed: pd.DataFrame, items: str, quantity: str) -> tuple[Cell, Cell]:
    return _amount(frame, items, quantity, ""), _amount(printed, items, quantity, "quiet")


def _amount(frame: pd.DataFrame, items: str, quantity: str, kind: str) -> Cell:
    found = frame.loc[(frame["items"] == items) & (frame["quantity"] == quantity), "value"].dropna()
    if found.empty:
        return Cell("–", kind="quiet")
    value = float(found.iloc[0])
    whole = quantity in ("users", "items")
    return Cell(
        f"{value:,.0f}" if whole else f"{value:.4f}" if quantity.endswith("rate") else f"{value:.3g}", kind=kind
    )


def comparison(frame: pd.DataFrame) -> list[Table]:
    """Tables 3 and 4, one for each setting, P@10 behind; CountingBayes and the limits stand apart."""
    return [
        _scores(frame, paper_tables.comparison(), items, setting, (*paper_tables.METRICS, OUTCOME), _number(items))
        for items, setting in places(frame)
    ]


def short(frame: pd.DataFrame, metric: str) -> Table:
    """One metric in all settings, the paper's figures in brackets: what fits on a front page."""
    where = places(frame)
    methods, printed = methods_of(frame), paper_tables.comparison()

    def cell(method: str, items: str, setting: str) -> Cell:
        rows, theirs = (part[(part["items"] == items) & (part["setting"] == setting)] for part in (frame, printed))
        found = lookup(theirs, method=method, metric=metric)
        here = _figure(rows, method, metric, "")
        return Cell(here.words, f"({say(metric, found.mean)})" if found else "", here.kind)

    body = [[Cell(name(method)), *(cell(method, *place) for place in where)] for method in methods]
    return Table(f"{metric} here (in the paper)", ["", *(", ".join(place) for place in where)], body)


def targets(frame: pd.DataFrame, caption: str) -> Table:
    """What methods aim at: a line for each setting and method."""
    metrics = [metric for metric in paper_tables.METRICS if metric in set(frame["metric"])]
    body: list[list[Cell]] = []
    for items, setting in places(frame):
        rows = frame[(frame["items"] == items) & (frame["setting"] == setting)]
        body += [
            [Cell(f"{items}, {setting}: {name(key)}"), *(_figure(rows, key, metric, "") for metric in metrics)]
            for key in methods_of(rows)
        ]
    return Table(caption, ["", *metrics], body)


def car(frame: pd.DataFrame) -> list[Table]:
    """Table 5."""
    return [
        _scores(frame, paper_tables.car(), items, setting, ("CAR",), "Table 5") for items, setting in places(frame)
    ]


def _number(items: str) -> str:
    return {"category": "Table 3", "product": "Table 4"}.get(items, "")


def _scores(frame: pd.DataFrame, printed: pd.DataFrame, items: str, setting: str, metrics: Sequence[str],
            number: str) -> Table:  # fmt: skip
    rows, theirs = (part[(part["items"] == items) & (part["setting"] == setting)] for part in (frame, printed))
    shown = [metric for metric in metrics if metric in set(rows["metric"])]
    methods = methods_of(rows)
    kept = {metric: _has(theirs, metric) for metric in shown}
    body = [
        [Cell(name(key)), *(cell for metric in shown for cell in _score(rows, theirs, key, metric, kept[metric]))]
        for key in methods
    ]
    columns = ["", *(column for metric in shown for column in ([HERE, PAPER] if kept[metric] else [HERE]))]
    groups = [("", 1), *((_arrow(metric), 1 + kept[metric]) for metric in shown)]
    lines = {methods.index(first) for first in (*EXTRA, *LIMITS[:1]) if first in methods}
    caption = f"{items}, {setting}" + (f" ({number})" if number and any(kept.values()) else "")
    return Table(caption, columns, body, groups, frozenset(lines))


def _has(printed: pd.DataFrame, metric: str) -> bool:
    return bool((printed["metric"] == metric).any())


def _arrow(metric: str) -> str:
    return f"{metric} (smaller is better)" if metric in SMALLER_IS_BETTER else metric


def _score(rows: pd.DataFrame, printed: pd.DataFrame, method: str, metric: str, beside: bool) -> list[Cell]:
    pairs = [(rows, ""), (printed, "quiet")] if beside else [(rows, "")]
    return [_figure(part, method, metric, kind) for part, kind in pairs]


def _figure(rows: pd.DataFrame, method: str, metric: str, kind: str) -> Cell:
    found = lookup(rows, method=method, metric=metric)
    if found is None:
        return Cell("–", kind="quiet")
    top = found.mean == _top(rows, method, metric)
    return Cell(say(metric, found.mean), _spread_note(found, metric), " ".join(filter(None, [kind, "best" * top])))


def _top(rows: pd.DataFrame, method: str, metric: str) -> float | None:
    """The best figure of a column among those a method competes with.

    The limits know the truth and do not compete; what is not the paper's competes with all, the paper's methods
    and a researcher's own among themselves.
    """
    if method in LIMITS:
        return None
    out = LIMITS if method in EXTRA else (*LIMITS, *EXTRA)
    means = rows.loc[(rows["metric"] == metric) & ~rows["method"].isin(out), "mean"]
    return float(means.min() if metric in SMALLER_IS_BETTER else means.max())


def _spread_note(figure: Figure, metric: str) -> str:
    return f"±{say(metric, figure.std)}"


def estimators(frame: pd.DataFrame) -> list[Table]:
    """Tables 6 and 7: the mean absolute error by cap, the paper's small behind ours; the lowest of a row is best."""
    printed = paper_tables.estimators()
    return [_errors(frame, printed, items, setting) for items, setting in places(frame)]


def _errors(frame: pd.DataFrame, printed: pd.DataFrame, items: str, setting: str) -> Table:
    rows, theirs = (part[(part["items"] == items) & (part["setting"] == setting)] for part in (frame, printed))
    caps = sorted(set(rows["cap"].dropna()))
    metrics = [metric for metric in (*paper_tables.METRICS, "CAR") if metric in set(rows["metric"])]
    body: list[list[Cell]] = []
    lines: set[int] = set()
    for metric in metrics:
        lines.add(len(body))
        ours = rows[rows["metric"] == metric]
        for method in methods_of(ours):
            beside = theirs[(theirs["metric"] == metric) & (theirs["method"] == method)]
            body.append(_error_row(ours[ours["method"] == method], beside, caps, metric, method))
    columns = ["", "truth", *("no cap" if cap == 0 else f"χ = {cap:g}" for cap in caps)]
    caption = f"{items}, {setting}: mean absolute error, the paper's in brackets (Tables 6 and 7)"
    return Table(caption, columns, body, (), frozenset(lines - {0}))


def _error_row(
    rows: pd.DataFrame, printed: pd.DataFrame, caps: Sequence[float], metric: str, method: str
) -> list[Cell]:
    truth = rows["truth"].dropna()
    cells = [
        Cell(f"{metric} {name(method)}"),
        Cell(say(metric, float(truth.iloc[0])) if len(truth) else "–", "", "quiet"),
    ]
    lowest = rows["mae"].min()
    for cap in caps:
        ours, theirs = (part.loc[part["cap"] == cap, "mae"].dropna() for part in (rows, printed))
        note = f"({say(metric, float(theirs.iloc[0]))})" if len(theirs) else ""
        words = say(metric, float(ours.iloc[0])) if len(ours) else "–"
        cells.append(Cell(words, note, "best" if len(ours) and ours.iloc[0] == lowest else ""))
    return cells


def plain_means(frame: pd.DataFrame, down: Sequence[str], across: str, caption: str) -> Table:
    """The figures of a chart as a table: ``down`` names the rows, ``across`` the columns."""
    heads = sorted(set(frame[across].dropna()))
    body = [
        [Cell(" ".join(_word(key) for key in keys)), *(_mean_at(rows, across, head, str(keys[-1])) for head in heads)]
        for keys, rows in frame.groupby(list(down), sort=False)
    ]
    return Table(caption, ["", *(f"{head:g}" for head in heads)], body)


def _word(key: object) -> str:
    return name(str(key))


def _mean_at(rows: pd.DataFrame, across: str, head: float, metric: str) -> Cell:
    found = rows.loc[rows[across] == head]
    return Cell("–", kind="quiet") if found.empty else _mean(found, metric)


def _mean(rows: pd.DataFrame, metric: str) -> Cell:
    figure = Figure(float(rows["mean"].iloc[0]), float(rows["std"].fillna(0).iloc[0]))
    return Cell(say(metric, figure.mean), _spread_note(figure, metric))


def misspecification(frame: pd.DataFrame) -> list[Table]:
    """By ξ for methods that see propensities; one figure for those that see none, or estimated ones."""
    down = ["items", "setting", "method", "metric"]
    seen, level = frame[frame["xi"].notna()], frame[frame["xi"].isna()]
    tables = [plain_means(seen, down, "xi", "By misspecification ξ")] if len(seen) else []
    rows = [
        [Cell(f"{items} {setting} {name(str(method))} {metric}"), Cell(str(kind)), _mean(own, str(metric))]
        for (items, setting, method, kind, metric), own in level.groupby(
            [*down[:3], "propensity", "metric"], sort=False
        )
    ]
    return [*tables, Table("Without misspecification", ["", "propensity", HERE], rows)] if rows else tables


def verdict_lines(found: Sequence[Verdict]) -> str:
    """All claims in short, as a Markdown list; what opens on demand on the page is left out."""
    parts = []
    for one in found:
        parts.append(
            f"- **{one.verdict}**: {_plain(one.claim)} (section {one.where}; the paper's figures: {one.paper})"
        )
        shown = [line for line in one.figures.splitlines() if not line.startswith(" ")]
        said = [*shown, one.remark, one.explanation and f"Why: {one.explanation}"]
        parts += [f"  - {_plain(line)}" for line in said if line]
    return "\n".join(parts)


def run(facts: Mapping[str, Any]) -> Table:
    """What is known about the run, nested facts spelled out."""
    return Table("This run", ["", "value"], [[Cell(key), Cell(value)] for key, value in _flat(facts)])


def _flat(facts: Mapping[str, Any], before: str = "") -> list[tuple[str, str]]:
    rows = []
    for key, value in facts.items():
        words = f"{before} {key}".strip().replace("_", " ")
        if isinstance(value, Mapping):
            rows += _flat(value, words)
        elif value is not None:
            rows.append((words, f"{value:,.1f}" if isinstance(value, float) else str(value)))
    return rows


def search(frame: pd.DataFrame) -> Table:
    """Each search: its trials, what they cost, and the settings of the best; the last line is the whole."""
    rows = [_searched(row) for row in frame.to_dict("records")]
    trials, cut, minutes = (frame[column].sum() for column in ("trials", "cut", "core_minutes"))
    rows.append([Cell("all"), Cell(""), Cell(""), Cell(f"{trials:.0f}, {cut:.0f} cut"), Cell(f"{minutes:.0f} min")])
    size = f"{frame['updates'].max() / 1e6:.0f} M updates"
    columns = ["", "best settings", "on the validation week", "trials", "time on one core"]
    return Table(f"The search for hyper-parameters, trials of at most {size}", columns, rows)


def _searched(row: Mapping[Any, Any]) -> list[Cell]:
    found = "–" if pd.isna(row["validation"]) else say(row["objective"], row["validation"])
    return [
        Cell(f"{row['items']}, {row['setting']}: {name(row['method'])}, {row['objective']}"),
        Cell(_parameters(row["settings"])),
        Cell(found),
        Cell(f"{row['trials']:.0f}, {row['cut']:.0f} cut"),
        Cell(f"{row['core_minutes']:.1f} min"),
    ]


def settings(frame: pd.DataFrame) -> list[Table]:
    """Which hyper-parameters each method used, how long it trained and with how many updates."""
    if "settings" not in frame:
        return []
    rows = frame[
        frame["settings"].notna() & ~frame["method"].isin(LIMITS) & frame["metric"].isin(paper_tables.METRICS)
    ]
    body = [
        [
            Cell(f"{row.items_}, {row.setting}: {name(str(row.method))}, {row.metric}"),
            Cell(_parameters(row.settings)),
            Cell(_count(getattr(row, "updates", None), 1e6, " M")),
            Cell(_count(getattr(row, "seconds", None), 1, " s")),
        ]
        for row in rows.rename(columns={"items": "items_"}).itertuples(index=False)
    ]
    return [Table("Hyper-parameters", ["", "settings", "updates", "time"], body)] if body else []


def _parameters(text: object) -> str:
    try:
        found = json.loads(str(text))
    except ValueError:
        return str(text)
    return ", ".join(f"{key} {value}" for key, value in found.items()) if isinstance(found, dict) else str(text)


def _count(value: object, unit: float, name_: str) -> str:
    number = pd.to_numeric(str(value), errors="coerce")
    return "–" if pd.isna(number) else f"{number / unit:,.0f}{name_}"


def places(frame: pd.DataFrame) -> list[tuple[str, str]]:
    """The settings of a frame: the paper's in its order, then any other."""
    found = list(dict.fromkeys(zip(frame["items"], frame["setting"], strict=True)))
    order = [(items, setting) for items in paper_tables.ITEMS for setting in paper_tables.SETTINGS]
    return [place for place in order if place in found] + [place for place in found if place not in order]


def _spread(groups: Iterable[tuple[str, int]]) -> Iterable[str]:
    return (words for words, width in groups for _ in range(width))


def _marked(cell: Cell) -> str:
    words = f"**{_plain(cell.words)}**" if "best" in cell.kind.split() else _plain(cell.words)
    return f"{words} {_plain(cell.note)}".strip()


def _plain(words: str) -> str:
    """Text that a Markdown table takes as it is."""
    safe = (
        words.replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|").replace("*", "\\*").replace("_", "\\_")
    )
    return safe.replace("\n", " ")
