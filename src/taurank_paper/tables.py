"""The tables of the report, the paper's figures beside ours."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from taurank.report import page
from taurank.report.page import Cell
from taurank_paper.folder import printed
from taurank_paper.plan import ITEMS, LIMITS
from taurank_paper.scores import (
    METRICS,
    DatasetKey,
    Score,
    datasets_of,
    format_score,
    larger_is_better,
    lookup,
    method_name,
    methods_of,
    rows_of,
    where,
)

NOTHING = Cell("–", kind="quiet")
EXTRA = ("countingbayes",)  # not in the paper, set apart from its methods
FLAT = 0.01  # relative gain in the last quarter of the updates below which a curve has gone flat
_QUANTITIES = {  # and how they are written
    "users": ("users", ",.0f"),
    "items": ("items", ",.0f"),
    "treated_rate": ("mean μᵀ", ".4f"),
    "control_rate": ("mean μᶜ", ".4f"),
    "propensity": ("mean propensity", ".3g"),
    "prior_weight": ("prior weight used", ".3g"),
    "tuned_prior_weight": ("prior weight with the lowest Brier score", ".3g"),
}

Row = list[Cell]


def statistics(frame: pd.DataFrame) -> page.Block:
    """Table 2."""
    present = list(frame["items"].unique())
    kinds = [items for items in ITEMS if items in present] or present
    sources = ((frame, ""), (printed()["statistics"], "quiet"))

    def cell(source: pd.DataFrame, items: str, name: str, kind: str) -> Cell:
        values = where(source, items=items, quantity=name)["value"].dropna()
        return NOTHING if values.empty else Cell(format(float(values.iloc[0]), _QUANTITIES[name][1]), kind=kind)

    rows = [
        [Cell(label), *(cell(source, items, name, kind) for items in kinds for source, kind in sources)]
        for name, (label, _) in _QUANTITIES.items()
    ]
    groups = [("", 1), *((items, 2) for items in kinds)]
    return page.grid(["", *["here", "paper"] * len(kinds)], rows, "Statistics of the data (Table 2)", groups)


def main(frame: pd.DataFrame, metric: str) -> tuple[str, list[str], list[Row]]:
    """One metric on all datasets, the paper's figures in parentheses: caption, columns and rows of a front page."""

    def cell(method: str, dataset: DatasetKey) -> Cell:
        ours = _score(rows_of(frame, dataset), method, metric)
        theirs = lookup(rows_of(printed()["comparison"], dataset, metric), method)
        return Cell(ours.text, f"({format_score(metric, theirs.mean)})" if theirs else "", ours.kind)

    datasets = datasets_of(frame)
    rows = [[Cell(method_name(method)), *(cell(method, each) for each in datasets)] for method in methods_of(frame)]
    return f"{metric} here (in the paper)", ["", *map(", ".join, datasets)], rows


def markdown(caption: str, columns: Sequence[str], rows: Sequence[Row]) -> str:
    """A table as Markdown, the best in bold."""

    def cell(cell: Cell) -> str:
        text = f"**{_escaped(cell.text)}**" if cell.kind == "best" else _escaped(cell.text)
        return f"{text} {_escaped(cell.note)}".strip()

    body = [map(_escaped, columns), ["---", *["---:"] * (len(columns) - 1)], *(map(cell, row) for row in rows)]
    return "\n".join([f"**{_escaped(caption)}**", "", *(f"| {' | '.join(row)} |" for row in body), ""])


def _escaped(text: str) -> str:
    """Text that Markdown shows as it is, in one line."""
    for sign, safe in (("&", "&amp;"), ("<", "&lt;"), ("|", "\\|"), ("*", "\\*"), ("_", "\\_"), ("\n", " ")):
        text = text.replace(sign, safe)
    return text


def comparison(frame: pd.DataFrame) -> list[page.Block]:
    """Tables 3 and 4, one for each dataset, P@10 last; CountingBayes and the limits are set apart."""
    numbers = {"category": "Table 3", "product": "Table 4"}
    return [
        _scores(frame, printed()["comparison"], each, (*METRICS, "P@10"), numbers.get(each[0], ""))
        for each in datasets_of(frame)
    ]


def car(frame: pd.DataFrame) -> list[page.Block]:
    """Table 5."""
    return [_scores(frame, printed()["car"], each, ("CAR",), "Table 5") for each in datasets_of(frame)]


def _scores(
    frame: pd.DataFrame, in_paper: pd.DataFrame, dataset: DatasetKey, metrics: Sequence[str], number: str
) -> page.Block:
    ours, theirs = rows_of(frame, dataset), rows_of(in_paper, dataset)
    metrics = [metric for metric in metrics if metric in set(ours["metric"])]
    sources = [  # the columns
        (metric, rows, kind)
        for metric in metrics
        for rows, kind in ((ours, ""), (theirs, "quiet"))
        if metric in set(rows["metric"])
    ]
    methods = methods_of(ours)
    cells = [
        [Cell(method_name(method)), *(_score(rows, method, metric, kind) for metric, rows, kind in sources)]
        for method in methods
    ]
    groups = [("", 1)]
    for metric in metrics:
        better = "" if larger_is_better(metric) else " (smaller is better)"
        groups.append((metric + better, sum(each == metric for each, _, _ in sources)))
    caption = f"{', '.join(dataset)} ({number})" if number and not theirs.empty else ", ".join(dataset)
    apart = [methods.index(first) for first in (*EXTRA, *LIMITS[:1]) if first in methods]
    return page.grid(["", *("paper" if kind else "here" for _, _, kind in sources)], cells, caption, groups, apart)


def _score(rows: pd.DataFrame, method: str, metric: str, kind: str = "") -> Cell:
    score = lookup(rows, method, metric=metric)
    if score is None:
        return NOTHING
    best = "best" if score.mean == best_score(rows, method, metric) else ""
    return Cell(format_score(metric, score.mean), _spread(score, metric), f"{kind} {best}".strip())


def best_score(rows: pd.DataFrame, method: str, metric: str) -> float | None:
    """The best score among those a method competes with.

    The limits know the truth and do not compete. CountingBayes competes with all methods; the paper's and a
    researcher's own compete among themselves.
    """
    if method in LIMITS:
        return None
    excluded = LIMITS if method in EXTRA else (*LIMITS, *EXTRA)
    means = rows.loc[(rows["metric"] == metric) & ~rows["method"].isin(excluded), "mean"]
    return float(means.max() if larger_is_better(metric) else means.min())


def estimators(frame: pd.DataFrame) -> list[page.Block]:
    """Tables 6 and 7: the mean absolute error by cap, the paper's small behind ours; the lowest of a row is best."""
    return [_errors(frame, each) for each in datasets_of(frame)]


def _errors(frame: pd.DataFrame, dataset: DatasetKey) -> page.Block:
    caps = sorted(set(rows_of(frame, dataset)["cap"].dropna()))
    rows: list[Row] = []
    ruled: set[int] = set()
    for metric in (*METRICS, "CAR"):
        here, in_paper = (rows_of(each, dataset, metric) for each in (frame, printed()["estimators"]))
        ruled |= {len(rows)} if rows and len(here) else set()
        for method in methods_of(here):
            own, paper = (where(part, method=method).set_index("cap") for part in (here, in_paper))
            errors, notes = own["mae"].dropna(), paper["mae"].dropna()
            cells = []
            for cap in caps:
                note = f"({format_score(metric, notes[cap])})" if cap in notes.index else ""
                kind = "best" if errors.get(cap) == errors.min() else ""
                cells.append(Cell(format_score(metric, errors[cap]), note, kind) if cap in errors.index else NOTHING)
            truth = own["truth"].dropna()
            known = Cell(format_score(metric, float(truth.iloc[0])), kind="quiet") if len(truth) else NOTHING
            rows.append([Cell(f"{metric} {method_name(method)}"), known, *cells])
    columns = ["", "truth", *("no cap" if cap == 0 else f"χ = {cap:g}" for cap in caps)]
    caption = f"{', '.join(dataset)}: mean absolute error, the paper's in parentheses (Tables 6 and 7)"
    return page.grid(columns, rows, caption, (), ruled)


def by_value(frame: pd.DataFrame, across: str, caption: str) -> page.Block:
    """The figures of a chart as a table: a column for each value of what is varied, "none" last."""
    down = [name for name in ("items", "setting", "method", "loss", "propensity", "metric") if name in frame]
    order = frame[across].drop_duplicates().sort_values()
    values = ["none" if pd.isna(value) else f"{value:g}" for value in order]
    frame = frame.assign(**{across: frame[across].map(dict(zip(order, values, strict=True)))})
    rows = []
    for keys, own in frame.groupby(down, sort=False):
        metric = str(keys[-1])
        scores = [lookup(own, **{across: value}) for value in values]
        cells = [Cell(format_score(metric, s.mean), _spread(s, metric)) if s else NOTHING for s in scores]
        rows.append([Cell(" ".join(method_name(str(key)) for key in keys)), *cells])
    return page.grid(["", *values], rows, caption)


def targets(frame: pd.DataFrame, caption: str) -> page.Block:
    """Population targets: a row for each dataset and method."""
    metrics = [metric for metric in METRICS if metric in set(frame["metric"])]
    rows = [
        [Cell(f"{', '.join(dataset)}: {method_name(method)}"), *(_score(own, method, metric) for metric in metrics)]
        for dataset in datasets_of(frame)
        for own in [rows_of(frame, dataset)]
        for method in methods_of(own)
    ]
    return page.grid(["", *metrics], rows, caption)


def _spread(score: Score, metric: str) -> str:
    return f"±{format_score(metric, score.std)}"


def convergence(frame: pd.DataFrame) -> page.Block:
    """How much each method still gained in the last quarter of its updates: flat is below one percent."""
    rows = []
    for keys, curve in frame[frame["updates"] > 0].groupby(["items", "setting", "method", "metric"], sort=False):
        gain = last_gain(curve, str(keys[3]))
        rows.append((*keys, curve["updates"].max(), f"{gain:+.1%}", "flat" if gain < FLAT else "still rising"))
    columns = ["items", "setting", "method", "metric", "updates", "gain in the last quarter", "state"]
    return plain(pd.DataFrame(rows, columns=columns), "Convergence")


def last_gain(curve: pd.DataFrame, metric: str) -> float:
    """The best value so far at the end, relative to the best at three quarters of the updates."""
    values = curve.sort_values("updates")
    sign = 1.0 if larger_is_better(metric) else -1.0
    best = (sign * values["value"]).cummax()
    before = best[values["updates"] <= 0.75 * values["updates"].max()]
    if before.empty:
        return float("nan")
    return float((best.iloc[-1] - before.iloc[-1]) / max(abs(before.iloc[-1]), 1e-12))


def plain(frame: pd.DataFrame, caption: str = "") -> page.Block:
    """A table of a run as it is, with updates in millions and without the signs of JSON."""
    shown = frame.assign(updates=frame["updates"] / 1e6, method=frame["method"].map(method_name))
    if "settings" in frame:
        shown["settings"] = frame["settings"].str.replace(r'[{}"]', "", regex=True)
    return page.table(shown.rename(columns={"updates": "million updates"}), caption)
