"""The tables of the report, the paper's figures beside ours."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from taurank.report import page
from taurank.report.page import Cell
from taurank_paper import printed
from taurank_paper.comparison import (
    DatasetKey,
    Score,
    datasets_of,
    format_score,
    larger_is_better,
    lookup,
    method_name,
    methods_of,
    rows_of,
)
from taurank_paper.plan import ITEMS, LIMITS

NOTHING = Cell("–", kind="quiet")
EXTRA = ("countingbayes",)  # not in the paper, set apart from its methods
FLAT = 0.01  # relative gain in the last quarter of the updates below which a curve has gone flat
_QUANTITIES = {
    "users": "users",
    "items": "items",
    "treated_rate": "mean μᵀ",
    "control_rate": "mean μᶜ",
    "propensity": "mean propensity",
    "prior_weight": "prior weight used",
    "tuned_prior_weight": "prior weight with the lowest Brier score",
}
_FORMATS = {"users": ",.0f", "items": ",.0f", "treated_rate": ".4f", "control_rate": ".4f"}

Row = list[Cell]


def statistics(frame: pd.DataFrame) -> page.Block:
    """Table 2."""
    present = list(frame["items"].unique())
    kinds = [items for items in ITEMS if items in present] or present
    sources = ((frame, ""), (printed.statistics(), "quiet"))

    def cell(source: pd.DataFrame, items: str, name: str, kind: str) -> Cell:
        values = source.loc[(source["items"] == items) & (source["quantity"] == name), "value"].dropna()
        return NOTHING if values.empty else Cell(format(float(values.iloc[0]), _FORMATS.get(name, ".3g")), kind=kind)

    rows = [
        [Cell(label), *(cell(source, items, name, kind) for items in kinds for source, kind in sources)]
        for name, label in _QUANTITIES.items()
    ]
    groups = [("", 1), *((items, 2) for items in kinds)]
    return page.grid(["", *["here", "paper"] * len(kinds)], rows, "Statistics of the data (Table 2)", groups)


def main(frame: pd.DataFrame, metric: str) -> tuple[str, list[str], list[Row]]:
    """One metric on all datasets, the paper's figures in parentheses: caption, columns and rows of a front page."""
    datasets, in_paper = datasets_of(frame), printed.comparison()

    def cell(method: str, dataset: DatasetKey) -> Cell:
        ours = _score(rows_of(frame, dataset), method, metric)
        theirs = lookup(rows_of(in_paper, dataset), method, metric=metric)
        return Cell(ours.text, f"({format_score(metric, theirs.mean)})" if theirs else "", ours.kind)

    rows = [[Cell(method_name(method)), *(cell(method, each) for each in datasets)] for method in methods_of(frame)]
    return f"{metric} here (in the paper)", ["", *(", ".join(each) for each in datasets)], rows


def markdown(caption: str, columns: Sequence[str], rows: Sequence[Row]) -> str:
    """A table as Markdown, the best in bold."""

    def cell(cell: Cell) -> str:
        text = f"**{_escaped(cell.text)}**" if cell.kind == "best" else _escaped(cell.text)
        return f"{text} {_escaped(cell.note)}".strip()

    body = [
        list(map(_escaped, columns)),
        ["---", *["---:"] * (len(columns) - 1)],
        *(list(map(cell, row)) for row in rows),
    ]
    return "\n".join([f"**{_escaped(caption)}**", "", *(f"| {' | '.join(row)} |" for row in body), ""])


def _escaped(text: str) -> str:
    """Text that Markdown shows as it is, in one line."""
    for sign, safe in (("&", "&amp;"), ("<", "&lt;"), ("|", "\\|"), ("*", "\\*"), ("_", "\\_"), ("\n", " ")):
        text = text.replace(sign, safe)
    return text


def comparison(frame: pd.DataFrame) -> list[page.Block]:
    """Tables 3 and 4, one for each dataset, P@10 last; CountingBayes and the limits are set apart."""
    numbers = {"category": "Table 3", "product": "Table 4"}
    metrics = (*printed.METRICS, "P@10")
    return [
        _scores(frame, printed.comparison(), each, metrics, numbers.get(each[0], "")) for each in datasets_of(frame)
    ]


def car(frame: pd.DataFrame) -> list[page.Block]:
    """Table 5."""
    return [_scores(frame, printed.car(), each, ("CAR",), "Table 5") for each in datasets_of(frame)]


def _scores(
    frame: pd.DataFrame, in_paper: pd.DataFrame, dataset: DatasetKey, metrics: Sequence[str], number: str
) -> page.Block:
    ours, theirs = rows_of(frame, dataset), rows_of(in_paper, dataset)
    sources = {
        metric: [(ours, ""), (theirs, "quiet")][: 2 if metric in set(theirs["metric"]) else 1]
        for metric in metrics
        if metric in set(ours["metric"])
    }
    methods = methods_of(ours)
    rows = [
        [
            Cell(method_name(method)),
            *(_score(rows, method, metric, kind) for metric, pairs in sources.items() for rows, kind in pairs),
        ]
        for method in methods
    ]
    columns = ["", *(column for pairs in sources.values() for column in ("here", "paper")[: len(pairs)])]
    better = {metric: "" if larger_is_better(metric) else " (smaller is better)" for metric in sources}
    groups = [("", 1), *((metric + better[metric], len(pairs)) for metric, pairs in sources.items())]
    caption = f"{', '.join(dataset)} ({number})" if number and not theirs.empty else ", ".join(dataset)
    apart = [methods.index(first) for first in (*EXTRA, *LIMITS[:1]) if first in methods]
    return page.grid(columns, rows, caption, groups, apart)


def _score(rows: pd.DataFrame, method: str, metric: str, kind: str = "") -> Cell:
    score = lookup(rows, method, metric=metric)
    if score is None:
        return NOTHING
    kinds = [kind, "best"] if score.mean == best_score(rows, method, metric) else [kind]
    return Cell(format_score(metric, score.mean), _spread(score, metric), " ".join(filter(None, kinds)))


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
    in_paper = printed.estimators()
    return [_errors(rows_of(frame, each), rows_of(in_paper, each), each) for each in datasets_of(frame)]


def _errors(ours: pd.DataFrame, theirs: pd.DataFrame, dataset: DatasetKey) -> page.Block:
    caps = sorted(set(ours["cap"].dropna()))
    rows: list[Row] = []
    ruled: set[int] = set()
    for metric in (*printed.METRICS, "CAR"):
        here, in_paper = (part[part["metric"] == metric] for part in (ours, theirs))
        if len(rows) and len(here):
            ruled.add(len(rows))
        for method in methods_of(here):
            own, paper = (part[part["method"] == method].set_index("cap") for part in (here, in_paper))
            errors, notes = own["mae"].dropna(), paper["mae"].dropna()
            truth = own["truth"].dropna()
            cells = [
                Cell(
                    format_score(metric, errors[cap]),
                    f"({format_score(metric, notes[cap])})" if cap in notes.index else "",
                    "best" if errors[cap] == errors.min() else "",
                ) if cap in errors.index else NOTHING
                for cap in caps
            ]  # fmt: skip
            known = Cell(format_score(metric, float(truth.iloc[0])), kind="quiet") if len(truth) else NOTHING
            rows.append([Cell(f"{metric} {method_name(method)}"), known, *cells])
    columns = ["", "truth", *("no cap" if cap == 0 else f"χ = {cap:g}" for cap in caps)]
    caption = f"{', '.join(dataset)}: mean absolute error, the paper's in parentheses (Tables 6 and 7)"
    return page.grid(columns, rows, caption, (), ruled)


def by_value(frame: pd.DataFrame, down: Sequence[str], across: str, caption: str) -> page.Block:
    """The figures of a chart as a table: ``down`` names the rows and ends with the metric, ``across`` the columns."""
    values = [f"{value:g}" for value in sorted(set(frame[across].dropna()))]
    frame = frame.assign(**{across: frame[across].map(lambda value: "none" if pd.isna(value) else f"{value:g}")})
    values += ["none"] if "none" in set(frame[across]) else []
    rows = []
    for keys, own in frame.groupby(list(down), sort=False):
        scores = [lookup(own, **{across: value}) for value in values]
        metric = str(keys[-1])
        cells = [Cell(format_score(metric, s.mean), _spread(s, metric)) if s else NOTHING for s in scores]
        rows.append([Cell(" ".join(method_name(str(key)) for key in keys)), *cells])
    return page.grid(["", *values], rows, caption)


def targets(frame: pd.DataFrame, caption: str) -> page.Block:
    """Population targets: a row for each dataset and method."""
    metrics = [metric for metric in printed.METRICS if metric in set(frame["metric"])]
    rows = [
        [Cell(f"{', '.join(dataset)}: {method_name(method)}"), *(_score(own, method, metric) for metric in metrics)]
        for dataset in datasets_of(frame)
        for own in [rows_of(frame, dataset)]
        for method in methods_of(own)
    ]
    return page.grid(["", *metrics], rows, caption)


def _spread(score: Score, metric: str) -> str:
    return f"±{format_score(metric, score.std)}"


# ---- plain tables --------------------------------------------------------------------------------


def convergence(frame: pd.DataFrame) -> page.Block:
    """How much each method still gained in the last quarter of its updates: flat is below one percent."""
    rows, trained = [], frame[frame["updates"] > 0]
    for keys, curve in trained.groupby(["items", "setting", "method", "metric"], sort=False):
        items, setting, method, metric = map(str, keys)
        gain, updates = last_gain(curve, metric), curve["updates"].max()
        state = "flat" if gain < FLAT else "still rising"
        rows.append(
            (f"{items}, {setting}: {method_name(method)}, {metric}", _millions(updates), f"{gain:+.1%}", state)
        )
    columns = ["", "updates", "gain in the last quarter", "state"]
    return page.table(pd.DataFrame(rows, columns=columns), "Convergence", columns[1:])


def last_gain(curve: pd.DataFrame, metric: str) -> float:
    """The best value so far at the end, relative to the best at three quarters of the updates."""
    values = curve.sort_values("updates")
    sign = 1.0 if larger_is_better(metric) else -1.0
    best = (sign * values["value"]).cummax()
    before = best[values["updates"] <= 0.75 * values["updates"].max()]
    if before.empty:
        return float("nan")
    return float((best.iloc[-1] - before.iloc[-1]) / max(abs(before.iloc[-1]), 1e-12))


def search(frame: pd.DataFrame) -> page.Block:
    """Each search: its trials, what they cost, and the best hyper-parameters; the last row is the total."""
    rows = [
        (
            f"{row['items']}, {row['setting']}: {method_name(row['method'])}, {row['objective']}",
            _parameters(row["settings"]),
            "–" if pd.isna(row["validation"]) else format_score(row["objective"], row["validation"]),
            f"{row['trials']:.0f}, {row['pruned']:.0f} pruned",
            f"{row['minutes']:.1f} min",
        )
        for row in frame.to_dict("records")
    ]
    trials, pruned, minutes = (frame[column].sum() for column in ("trials", "pruned", "minutes"))
    rows.append(("all", "", "", f"{trials:.0f}, {pruned:.0f} pruned", f"{minutes:.0f} min"))
    columns = ["", "best hyper-parameters", "on the validation week", "trials", "time"]
    size = _millions(frame["updates"].max())
    caption = f"Hyper-parameter search, trials of at most {size} updates"
    return page.table(pd.DataFrame(rows, columns=columns), caption, columns[1:])


def fits(frame: pd.DataFrame) -> page.Block:
    """The hyper-parameters of each method, its updates and its time."""
    rows = [
        (
            f"{row['items']}, {row['setting']}: {method_name(row['method'])}, {row['metric']}",
            _parameters(row["settings"]), _millions(row["updates"]), f"{row['seconds']:,.0f} s",
        )
        for row in frame[~frame["method"].isin(LIMITS) & frame["metric"].isin(printed.METRICS)].to_dict("records")
    ]  # fmt: skip
    columns = ["", "values", "updates", "time"]
    return page.table(pd.DataFrame(rows, columns=columns), "Hyper-parameters", columns[1:])


def record(entries: Mapping[str, Any]) -> page.Block:
    """What is known about the run, nested entries in one list."""
    return page.table(pd.DataFrame(_flat(entries), columns=["", "value"]), "This run")


def _flat(entries: Mapping[str, Any], before: str = "") -> list[tuple[str, str]]:
    rows = []
    for key, value in entries.items():
        label = f"{before} {key}".strip().replace("_", " ")
        if isinstance(value, Mapping):
            rows += _flat(value, label)
        elif value is not None:
            rows.append((label, f"{value:,.1f}" if isinstance(value, float) else str(value)))
    return rows


def _parameters(text: str) -> str:
    return ", ".join(f"{key} {value}" for key, value in (json.loads(text) or {}).items())


def _millions(updates: float) -> str:
    return f"{updates / 1e6:,.0f} M"
