"""The tables of the report, the paper's figures beside ours."""

from __future__ import annotations

import itertools
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
EXTRA = ("countingbayes", "empiricalbayes")  # not in the paper, set apart from its methods
FLAT = 0.01  # relative gain in the last quarter of the updates below which a curve has gone flat
_QUANTITIES = {  # and how they are written
    "users": ("users", ",.0f"), "items": ("items", ",.0f"), "treated_rate": ("mean μᵀ", ".4f"),
    "control_rate": ("mean μᶜ", ".4f"), "propensity": ("mean propensity", ".3g"),
    "prior_weight": ("prior weight used", ".3g"),
    "tuned_prior_weight": ("prior weight with the lowest Brier score", ".3g"),
}  # fmt: skip

Row = list[Cell]


def statistics(frame: pd.DataFrame) -> page.Block:
    """Table 2."""
    kinds = [items for items in ITEMS if items in set(frame["items"])]
    rows: list[Row] = []
    for name, (label, form) in _QUANTITIES.items():
        rows.append([Cell(label)])
        for items, kind in itertools.product(kinds, ("", "quiet")):
            source = printed()["statistics"] if kind else frame
            values = where(source, items=items, quantity=name)["value"].dropna()
            rows[-1].append(Cell(format(float(values.iloc[0]), form), kind=kind) if len(values) else NOTHING)
    groups = [("", 1), *((items, 2) for items in kinds)]
    return page.grid(["", *["here", "paper"] * len(kinds)], rows, "Statistics of the data (Table 2)", groups)


def main(frame: pd.DataFrame, metric: str) -> tuple[str, list[str], list[Row]]:
    """One metric on all datasets, the paper's figures in parentheses: caption, columns and rows of a front page."""

    def cell(method: str, dataset: DatasetKey) -> Cell:
        ours = _score(rows_of(frame, dataset), method, metric)
        theirs = lookup(rows_of(printed()["comparison"], dataset, metric), method)
        return ours._replace(note=f"({format_score(metric, theirs.mean)})" if theirs else "")

    datasets = datasets_of(frame)
    rows = [[Cell(method_name(method)), *(cell(method, each) for each in datasets)] for method in methods_of(frame)]
    return f"{metric} here (in the paper)", ["", *map(", ".join, datasets)], rows


def markdown(caption: str, columns: Sequence[str], rows: Sequence[Row]) -> str:
    """A table as Markdown, the best in bold; any text is shown as it is, in one line."""
    signs = str.maketrans({"&": "&amp;", "<": "&lt;", "|": "\\|", "*": "\\*", "_": "\\_", "\n": " "})

    def safe(text: str) -> str:
        return text.translate(signs)

    def cell(cell: Cell) -> str:
        text = f"**{safe(cell.text)}**" if cell.kind == "best" else safe(cell.text)
        return f"{text} {safe(cell.note)}".strip()

    body = [map(safe, columns), ["---", *["---:"] * (len(columns) - 1)], *(map(cell, row) for row in rows)]
    return "\n".join([f"**{safe(caption)}**", "", *(f"| {' | '.join(row)} |" for row in body), ""])


def compared(frame: pd.DataFrame, name: str, metrics: Sequence[str], numbers: Sequence[str]) -> list[page.Block]:
    """Tables 3 to 5, one for each dataset, by the paper's number for its items; those it has not are set apart."""
    blocks = []
    for dataset in datasets_of(frame):
        ours, theirs = rows_of(frame, dataset), rows_of(printed()[name], dataset)
        columns = [  # a metric here, and the paper's
            (metric, rows, kind)
            for metric, (rows, kind) in itertools.product(metrics, ((ours, ""), (theirs, "quiet")))
            if metric in set(rows["metric"]) and metric in set(ours["metric"])
        ]
        methods = methods_of(ours)
        rows = [
            [Cell(method_name(method)), *(_score(rows, method, metric, kind) for metric, rows, kind in columns)]
            for method in methods
        ]
        groups = [("", 1)]
        for metric, own in itertools.groupby(columns, key=lambda column: column[0]):
            better = "" if larger_is_better(metric) else " (smaller is better)"
            groups.append((metric + better, len(list(own))))
        number = f" ({numbers[ITEMS.index(dataset[0])]})" if len(theirs) else ""
        extra = [methods.index(one) for one in EXTRA if one in methods][:1]
        apart = [*extra, *(methods.index(first) for first in LIMITS[:1] if first in methods)]
        heads = ["", *("paper" if kind else "here" for _, _, kind in columns)]
        blocks.append(page.grid(heads, rows, ", ".join(dataset) + number, groups, apart))
    return blocks


def _score(rows: pd.DataFrame, method: str, metric: str, kind: str = "") -> Cell:
    score = lookup(rows, method, metric=metric)
    if score is None:
        return NOTHING
    best = "best" if score.mean == best_score(rows, method, metric) else ""
    return _cell(score, metric, f"{kind} {best}".strip())


def _cell(score: Score | None, metric: str, kind: str = "") -> Cell:
    if score is None:
        return NOTHING
    return Cell(format_score(metric, score.mean), f"±{format_score(metric, score.std)}", kind)


def best_score(rows: pd.DataFrame, method: str, metric: str) -> float | None:
    """The best score among those a method competes with.

    The limits know the truth and do not compete. The two that are set apart compete with all methods; the
    paper's and a researcher's own compete among themselves.
    """
    if method in LIMITS:
        return None
    excluded = LIMITS if method in EXTRA else (*LIMITS, *EXTRA)
    means = rows.loc[(rows["metric"] == metric) & ~rows["method"].isin(excluded), "mean"]
    return float(means.max() if larger_is_better(metric) else means.min())


def estimators(frame: pd.DataFrame) -> list[page.Block]:
    """Tables 6 and 7: the mean absolute error by cap, the paper's small behind ours; the lowest of a row is best."""
    blocks = []
    for dataset in datasets_of(frame):
        caps = sorted(set(rows_of(frame, dataset)["cap"].dropna()))
        rows: list[Row] = []
        for metric in (*METRICS, "CAR"):
            here, in_paper = (rows_of(each, dataset, metric) for each in (frame, printed()["estimators"]))
            for method in methods_of(here):
                own, paper = (where(part, method=method).set_index("cap") for part in (here, in_paper))
                errors, notes = own["mae"].dropna(), paper["mae"].dropna()
                rows.append([Cell(f"{metric} {method_name(method)}")])
                truths = [format_score(metric, truth) for truth in own["truth"].dropna()]
                rows[-1].append(Cell(truths[0], kind="quiet") if truths else NOTHING)
                for cap in caps:
                    note = f"({format_score(metric, notes[cap])})" if cap in notes.index else ""
                    kind = "best" if errors.get(cap) == errors.min() else ""
                    has = cap in errors.index
                    rows[-1].append(Cell(format_score(metric, errors[cap]), note, kind) if has else NOTHING)
        columns = ["", "truth", *("no cap" if cap == 0 else f"χ = {cap:g}" for cap in caps)]
        caption = f"{', '.join(dataset)}: mean absolute error, the paper's in parentheses (Tables 6 and 7)"
        blocks.append(page.grid(columns, rows, caption))
    return blocks


def by_value(frame: pd.DataFrame, across: str, caption: str) -> page.Block:
    """The figures of a chart as a table: a column for each value of what is varied, "none" last."""
    down = [name for name in ("items", "setting", "method", "loss", "propensity", "metric") if name in frame]
    order = frame[across].drop_duplicates().sort_values()
    values = {value: "none" if pd.isna(value) else f"{value:g}" for value in order}
    frame = frame.assign(**{across: frame[across].map(values)})
    rows = []
    for keys, own in frame.groupby(down, sort=False):
        scores = [_cell(lookup(own, **{across: value}), str(keys[-1])) for value in values.values()]
        rows.append([Cell(" ".join(method_name(str(key)) for key in keys)), *scores])
    return page.grid(["", *values.values()], rows, caption)


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


def convergence(frame: pd.DataFrame) -> page.Block:
    """How much each method still gained in the last quarter of its updates: flat is below one percent."""
    rows = []
    for keys, curve in frame[frame["updates"] > 0].groupby(["items", "setting", "method", "metric"], sort=False):
        values = curve.sort_values("updates")
        best = (values["value"] if larger_is_better(str(keys[3])) else -values["value"]).cummax()
        before = best[values["updates"] <= 0.75 * values["updates"].max()].iloc[-1:]
        gain = float(((best.iloc[-1] - before) / before.abs().clip(lower=1e-12)).sum(min_count=1))
        rows.append((*keys, curve["updates"].max(), f"{gain:+.1%}", "flat" if gain < FLAT else "still rising"))
    columns = ["items", "setting", "method", "metric", "updates", "gain in the last quarter", "state"]
    return plain(pd.DataFrame(rows, columns=columns), "Convergence")


def plain(frame: pd.DataFrame, caption: str = "") -> page.Block:
    """A table of a run as it is, with updates in millions and without the signs of JSON."""
    shown = frame.assign(updates=frame["updates"] / 1e6, method=frame["method"].map(method_name))
    if "settings" in frame:
        shown["settings"] = frame["settings"].str.replace(r'[{}"]', "", regex=True)
    return page.table(shown.rename(columns={"updates": "million updates"}), caption)
