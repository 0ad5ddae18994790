"""The tables of the report, the paper's figures beside ours: built once, shown as HTML and as Markdown."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from taurank.report.page import Cell
from taurank_paper.plan.names import ITEMS, LIMITS
from taurank_paper.report.table import NOTHING, Table
from taurank_paper.verdicts import paper_tables
from taurank_paper.verdicts.comparison import (
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

HERE, PAPER = "here", "paper"
EXTRA = ("countingbayes",)  # not in the paper, set apart from its methods
OUTCOME = "P@10"
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


def statistics(frame: pd.DataFrame) -> list[Table]:
    """Table 2."""
    present = list(frame["items"].unique())
    kinds = [items for items in ITEMS if items in present] or present
    sources = ((frame, ""), (paper_tables.statistics(), "quiet"))
    rows = [
        [Cell(label), *(_quantity(source, items, name, kind) for items in kinds for source, kind in sources)]
        for name, label in _QUANTITIES.items()
    ]
    columns = ["", *[HERE, PAPER] * len(kinds)]
    return [Table("Statistics of the data (Table 2)", columns, rows, [("", 1), *((items, 2) for items in kinds)])]


def _quantity(frame: pd.DataFrame, items: str, name: str, kind: str) -> Cell:
    values = frame.loc[(frame["items"] == items) & (frame["quantity"] == name), "value"].dropna()
    return NOTHING if values.empty else Cell(format(float(values.iloc[0]), _FORMATS.get(name, ".3g")), kind=kind)


def main(frame: pd.DataFrame, metric: str) -> Table:
    """One metric on all datasets, the paper's figures in parentheses: what fits on a front page."""
    datasets, printed = datasets_of(frame), paper_tables.comparison()

    def cell(method: str, dataset: DatasetKey) -> Cell:
        ours = _score(rows_of(frame, dataset), method, metric)
        theirs = lookup(rows_of(printed, dataset), method, metric=metric)
        return Cell(ours.text, f"({format_score(metric, theirs.mean)})" if theirs else "", ours.kind)

    rows = [[Cell(method_name(method)), *(cell(method, each) for each in datasets)] for method in methods_of(frame)]
    return Table(f"{metric} here (in the paper)", ["", *(", ".join(each) for each in datasets)], rows)


def comparison(frame: pd.DataFrame) -> list[Table]:
    """Tables 3 and 4, one for each dataset, P@10 last; CountingBayes and the limits are set apart."""
    numbers = {"category": "Table 3", "product": "Table 4"}
    metrics = (*paper_tables.METRICS, OUTCOME)
    printed = paper_tables.comparison()
    return [_scores(frame, printed, each, metrics, numbers.get(each[0], "")) for each in datasets_of(frame)]


def car(frame: pd.DataFrame) -> list[Table]:
    """Table 5."""
    return [_scores(frame, paper_tables.car(), each, ("CAR",), "Table 5") for each in datasets_of(frame)]


def targets(frame: pd.DataFrame, caption: str) -> Table:
    """Population targets: a row for each dataset and method."""
    metrics = [metric for metric in paper_tables.METRICS if metric in set(frame["metric"])]
    rows = [
        [Cell(f"{', '.join(dataset)}: {method_name(method)}"), *(_score(own, method, metric) for metric in metrics)]
        for dataset in datasets_of(frame)
        for own in [rows_of(frame, dataset)]
        for method in methods_of(own)
    ]
    return Table(caption, ["", *metrics], rows)


def convergence(frame: pd.DataFrame) -> Table:
    """How much each method still gained in the last quarter of its updates: flat is below one percent."""
    rows, trained = [], frame[frame["updates"] > 0]
    for (items, setting, method, metric), curve in trained.groupby(
        ["items", "setting", "method", "metric"], sort=False
    ):
        gain, updates = last_gain(curve, str(metric)), curve["updates"].max()
        state = "flat" if gain < FLAT else "still rising"
        cells = (Cell(f"{updates / 1e6:,.0f} M"), Cell(f"{gain:+.1%}"), Cell(state))
        rows.append([Cell(f"{items}, {setting}: {method_name(str(method))}, {metric}"), *cells])
    return Table("Convergence", ["", "updates", "gain in the last quarter", ""], rows)


def last_gain(curve: pd.DataFrame, metric: str) -> float:
    """The best value so far at the end, relative to the best at three quarters of the updates."""
    values = curve.sort_values("updates")
    sign = 1.0 if larger_is_better(metric) else -1.0
    best = (sign * values["value"]).cummax()
    before = best[values["updates"] <= 0.75 * values["updates"].max()]
    if before.empty:
        return float("nan")
    return float((best.iloc[-1] - before.iloc[-1]) / max(abs(before.iloc[-1]), 1e-12))


def _scores(
    frame: pd.DataFrame, printed: pd.DataFrame, dataset: DatasetKey, metrics: Sequence[str], number: str
) -> Table:
    ours, theirs = rows_of(frame, dataset), rows_of(printed, dataset)
    both, alone = [(ours, ""), (theirs, "quiet")], [(ours, "")]
    in_paper = set(theirs["metric"])
    present = [metric for metric in metrics if metric in set(ours["metric"])]
    sources = {metric: both if metric in in_paper else alone for metric in present}
    methods = methods_of(ours)
    rows = [
        [
            Cell(method_name(method)),
            *(_score(rows, method, metric, kind) for metric, pairs in sources.items() for rows, kind in pairs),
        ]
        for method in methods
    ]
    columns = ["", *(column for pairs in sources.values() for column in (HERE, PAPER)[: len(pairs)])]
    groups = [("", 1), *((_with_direction(metric), len(pairs)) for metric, pairs in sources.items())]
    caption = f"{', '.join(dataset)} ({number})" if number and not theirs.empty else ", ".join(dataset)
    apart = {methods.index(first) for first in (*EXTRA, *LIMITS[:1]) if first in methods}
    return Table(caption, columns, rows, groups, frozenset(apart))


def _with_direction(metric: str) -> str:
    return metric if larger_is_better(metric) else f"{metric} (smaller is better)"


def _score(rows: pd.DataFrame, method: str, metric: str, kind: str = "") -> Cell:
    score = lookup(rows, method, metric=metric)
    if score is None:
        return NOTHING
    kinds = [kind, "best"] if score.mean == _best(rows, method, metric) else [kind]
    return _mean(score, metric, " ".join(filter(None, kinds)))


def _best(rows: pd.DataFrame, method: str, metric: str) -> float | None:
    """The best score among those a method competes with.

    The limits know the truth and do not compete. CountingBayes competes with all methods; the paper's and a
    researcher's own compete among themselves.
    """
    if method in LIMITS:
        return None
    excluded = LIMITS if method in EXTRA else (*LIMITS, *EXTRA)
    means = rows.loc[(rows["metric"] == metric) & ~rows["method"].isin(excluded), "mean"]
    return float(means.max() if larger_is_better(metric) else means.min())


def _mean(score: Score, metric: str, kind: str = "") -> Cell:
    return Cell(format_score(metric, score.mean), f"±{format_score(metric, score.std)}", kind)


def estimators(frame: pd.DataFrame) -> list[Table]:
    """Tables 6 and 7: the mean absolute error by cap, the paper's small behind ours; the lowest of a row is best."""
    printed = paper_tables.estimators()
    return [_errors(rows_of(frame, each), rows_of(printed, each), each) for each in datasets_of(frame)]


def _errors(ours: pd.DataFrame, theirs: pd.DataFrame, dataset: DatasetKey) -> Table:
    caps = sorted(set(ours["cap"].dropna()))
    rows: list[list[Cell]] = []
    ruled: set[int] = set()
    for metric in (*paper_tables.METRICS, "CAR"):
        here, printed = (part[part["metric"] == metric] for part in (ours, theirs))
        if len(rows) and len(here):
            ruled.add(len(rows))
        for method in methods_of(here):
            errors = [part[part["method"] == method].set_index("cap") for part in (here, printed)]
            label = Cell(f"{metric} {method_name(method)}")
            rows.append([label, _truth(errors[0], metric), *_error_cells(errors[0], errors[1], caps, metric)])
    columns = ["", "truth", *("no cap" if cap == 0 else f"χ = {cap:g}" for cap in caps)]
    caption = f"{', '.join(dataset)}: mean absolute error, the paper's in parentheses (Tables 6 and 7)"
    return Table(caption, columns, rows, (), frozenset(ruled))


def _truth(rows: pd.DataFrame, metric: str) -> Cell:
    truth = rows["truth"].dropna()
    return Cell(format_score(metric, float(truth.iloc[0])), kind="quiet") if len(truth) else NOTHING


def _error_cells(ours: pd.DataFrame, theirs: pd.DataFrame, caps: Sequence[float], metric: str) -> list[Cell]:
    here, printed = ours["mae"].dropna(), theirs["mae"].dropna()
    notes = {cap: f"({format_score(metric, error)})" for cap, error in printed.items()}
    return [
        Cell(format_score(metric, here[cap]), notes.get(cap, ""), "best" if here[cap] == here.min() else "")
        if cap in here.index else NOTHING
        for cap in caps
    ]  # fmt: skip


def by_value(frame: pd.DataFrame, down: Sequence[str], across: str, caption: str) -> Table:
    """The figures of a chart as a table: ``down`` names the rows and ends with the metric, ``across`` the columns."""
    values = sorted(set(frame[across].dropna()))
    rows = []
    for keys, own in frame.groupby(list(down), sort=False):
        scores = [lookup(own, **{across: value}) for value in values]
        cells = [NOTHING if score is None else _mean(score, str(keys[-1])) for score in scores]
        rows.append([Cell(" ".join(method_name(str(key)) for key in keys)), *cells])
    return Table(caption, ["", *(f"{value:g}" for value in values)], rows)


def misspecification(frame: pd.DataFrame) -> list[Table]:
    """By ξ for misspecified propensities; one column for methods that use none, or estimated ones."""
    down = ["items", "setting", "method", "metric"]
    varied, constant = frame[frame["xi"].notna()], frame[frame["xi"].isna()]
    tables = [by_value(varied, down, "xi", "By misspecification ξ")] if len(varied) else []
    rows = []
    for (items, setting, method, kind, metric), own in constant.groupby(
        [*down[:3], "propensity", "metric"], sort=False
    ):
        score = lookup(own)
        label = Cell(f"{items} {setting} {method_name(str(method))} {metric}")
        rows.append([label, Cell(str(kind)), NOTHING if score is None else _mean(score, str(metric))])
    return [*tables, Table("Without misspecification", ["", "propensity", HERE], rows)] if rows else tables


def record(entries: Mapping[str, Any]) -> Table:
    """What is known about the run, nested entries in one list."""
    return Table("This run", ["", "value"], [[Cell(key), Cell(value)] for key, value in _flat(entries)])


def _flat(entries: Mapping[str, Any], before: str = "") -> list[tuple[str, str]]:
    rows = []
    for key, value in entries.items():
        label = f"{before} {key}".strip().replace("_", " ")
        if isinstance(value, Mapping):
            rows += _flat(value, label)
        elif value is not None:
            rows.append((label, f"{value:,.1f}" if isinstance(value, float) else str(value)))
    return rows


def search(frame: pd.DataFrame) -> Table:
    """Each search: its trials, what they cost, and the best hyperparameters; the last row is the total."""
    rows = [_search_row(row) for row in frame.to_dict("records")]
    trials, pruned, minutes = (frame[column].sum() for column in ("trials", "pruned", "core_minutes"))
    rows.append([Cell("all"), Cell(""), Cell(""), Cell(_trials(trials, pruned)), Cell(f"{minutes:.0f} min")])
    columns = ["", "best hyperparameters", "on the validation week", "trials", "time on one core"]
    size = f"{frame['updates'].max() / 1e6:.0f} M updates"
    return Table(f"Hyperparameter search, trials of at most {size}", columns, rows)


def _search_row(row: Mapping[Any, Any]) -> list[Cell]:
    value = "–" if pd.isna(row["validation"]) else format_score(row["objective"], row["validation"])
    return [
        Cell(f"{row['items']}, {row['setting']}: {method_name(row['method'])}, {row['objective']}"),
        Cell(_parameters(row["settings"])),
        Cell(value),
        Cell(_trials(row["trials"], row["pruned"])),
        Cell(f"{row['core_minutes']:.1f} min"),
    ]


def _trials(trials: float, pruned: float) -> str:
    return f"{trials:.0f}, {pruned:.0f} pruned"


def hyperparameters(frame: pd.DataFrame) -> list[Table]:
    """The hyperparameters of each method, its updates and its time."""
    if "settings" not in frame:
        return []
    tuned = frame["settings"].notna() & ~frame["method"].isin(LIMITS) & frame["metric"].isin(paper_tables.METRICS)
    rows = [
        [
            Cell(f"{row['items']}, {row['setting']}: {method_name(row['method'])}, {row['metric']}"),
            Cell(_parameters(row["settings"])),
            Cell(_in_units(row.get("updates"), 1e6, "M")),
            Cell(_in_units(row.get("seconds"), 1, "s")),
        ]
        for row in frame[tuned].to_dict("records")
    ]
    return [Table("Hyperparameters", ["", "values", "updates", "time"], rows)] if rows else []


def _parameters(text: object) -> str:
    try:
        values = json.loads(str(text))
    except ValueError:
        return str(text)
    return ", ".join(f"{key} {value}" for key, value in values.items()) if isinstance(values, dict) else str(text)


def _in_units(value: object, unit: float, name: str) -> str:
    number = pd.to_numeric(str(value), errors="coerce")
    return "–" if pd.isna(number) else f"{number / unit:,.0f} {name}"
