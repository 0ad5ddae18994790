"""The text of evaluation results, none wider than a terminal of 80 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from taurank.errors import plural

if TYPE_CHECKING:
    from taurank.evaluation.results import Comparison, Difference, MetricResult, Result

COLUMNS = 80
OVERLAP_LIMIT = 0.05  # warn above this share of a metric's weight on pairs without overlap
_SHORTEST_NAME = 8  # what is left of a long name where the figures are wide


def number(value: float) -> str:
    """Three significant digits."""
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e9 else f"{value:.3g}"


def span(low: float, high: float) -> str:
    return f"{number(low)} to {number(high)}"


def of(result: Any) -> list[str]:
    """The lines of one ranker's metrics or of a comparison, and those of each segment behind them."""
    several = hasattr(result, "baseline")
    lines = _comparison(result) if several else _metrics(result)
    for label, part in result.segments.items():
        lines += ["", f"segment {label}", *of(part)]
    return lines


def _metrics(result: Result) -> list[str]:
    several, level = len(result.times) > 1, f"{result.level:.0%} interval"
    rows, remarks = [["metric", "mean", *(["± over times"] if several else []), level]], []
    for metric in result.values():
        spread = [number(metric.std)] if several else []
        rows.append([metric.name, number(metric.mean), *spread, span(metric.low, metric.high)])
        words = in_words(metric)
        remarks += [f"{metric.name}: {words}"] if words else []
    if result.unknown_users:
        remarks.append(f"{plural(result.unknown_users, 'user')} unknown to the ranker: all items tied")
    if result.unknown_items:
        remarks.append(f"{plural(result.unknown_items, 'item')} unknown to the ranker: ranked last, tied")
    remarks += [overlap_sentence([result]), training_sentence([""]) if result.trained_here else ""]
    return [*wrapped([verdict_sentence(result)]), *_aligned(rows), *wrapped(remarks), *_details(result)]


def verdict_sentence(result: Result) -> str:
    """The sentence in front of the numbers; "" if they are not an estimate from a log."""
    if result.verdict is None:
        return ""
    name = next(name for name, one in result.items() if one.verdict is result.verdict)
    return f"{name}: {result.verdict}" if len(result) > 1 and not result.verdict.believe else str(result.verdict)


def in_words(metric: MetricResult, difference: float | None = None) -> str:
    """The mean, or a difference, in the shop's words: "top 10: 1.03 extra purchases per user and week"."""
    value, form, depth = metric.mean if difference is None else difference, metric.metric.form, metric.metric.depth
    prefix = "" if difference is None else "difference, "
    if form == "P@k" and depth is not None:
        return f"{prefix}top {depth}: {number(value * depth)} {metric.unit}"
    if form == "DCG":
        return f"{prefix}whole list, discounted by position: {number(value)} {metric.unit}"
    return "" if metric.metric.larger_is_better else "smaller is better"


def of_metric(metric: MetricResult) -> str:
    words = in_words(metric)
    figures = f"{metric.name} {number(metric.mean)} ({metric.level:.0%} interval {span(metric.low, metric.high)})"
    return f"{figures}; {words}" if words else figures


def _details(result: Result, name: str = "") -> list[str]:
    """Every estimator side by side."""
    lines = []
    for metric in result.values():
        rows = [["estimator", "estimate", f"{metric.level:.0%} interval"]]
        for one in metric.estimators:
            value = "" if np.isnan(one.estimate) else number(one.estimate)
            rows.append([one.estimator, value, span(one.low, one.high)])
        if metric.estimators:
            lines += ["", f"{name}{metric.name} by every estimator", *_aligned(rows)]
    return lines


def of_difference(pair: Difference) -> str:
    first, second, winner = pair.first, pair.second, pair.winner
    answer = f"the {winner} ranker is better" if winner else "no clear difference"
    head = (
        f"{first.name}: {number(first.mean)} against {number(second.mean)}, a difference of "
        f"{number(pair.difference)} ({pair.level:.0%} interval {span(pair.low, pair.high)}): {answer}"
    )
    overlap = overlap_sentence([{one.name: one} for one in (first, second)])
    training = training_sentence(pair.trained_here) if pair.trained_here else ""
    return "\n".join(wrapped([str(pair.verdict or ""), head, in_words(first, pair.difference), overlap, training]))


def _comparison(table: Comparison) -> list[str]:
    """The verdict on the choice, one block for each metric, and what is to be known about the rankers."""
    refused = [f"{who}, {metric}: {one}" for (who, metric), one in table.verdicts.items() if not one.believe]
    lead = [] if table.verdict is None else [str(table.verdict), *table.cautions, *refused]
    head = f"measured by {table.gains_name}; diff.: minus {table.baseline}, paired by user"
    lines = [*wrapped(lead), *([""] if lead else []), *wrapped([head]), ""]
    for metric in table[table.baseline]:
        lines += [*_block(table, metric), ""]
    remarks = []
    for name, result in table.items():
        if result.unknown_users or result.unknown_items:
            counts = plural(result.unknown_users, "user"), plural(result.unknown_items, "item")
            remarks.append(f"{name}: {' and '.join(counts)} unknown to the ranker")
    trained = [name for name, result in table.items() if result.trained_here]
    remarks += [overlap_sentence(table.values()), training_sentence(trained) if trained else ""]
    lines += wrapped(remarks)
    for name, result in table.items():
        lines += _details(result, f"{name}, ")
    return lines if lines[-1] else lines[:-1]


def _block(table: Comparison, metric: str) -> list[str]:
    """One metric of all rankers."""
    level = f"{table.level:.0%} interval"
    rows = [["mean", level, "diff.", level, ""]]
    for name, result in table.items():
        one, pair = result[metric], table.differences.get((name, metric))
        mark = "! " if one.verdict is not None and not one.verdict.believe else ""
        cells = [mark + number(one.mean), span(one.low, one.high)]
        if pair is not None:
            word = {"first": "better", "second": "worse", None: ""}[pair.winner]
            cells += [number(pair.difference), span(pair.low, pair.high), word]
        rows.append([*cells, "", "", ""][:5])
    figures = _aligned(rows)
    width = max(_SHORTEST_NAME, COLUMNS - 2 - max(map(len, figures)))
    names = ["ranker", *(name if len(name) <= width else name[: width - 1] + "…" for name in table)]
    smaller = not table[table.baseline][metric].metric.larger_is_better
    title = metric + (" (smaller is better)" if smaller else "")
    return [title, *_aligned([[name, line] for name, line in zip(names, figures, strict=True)])]


def overlap_sentence(results: Iterable[Mapping[str, MetricResult]]) -> str:
    """The warning for metrics with too much of their weight on pairs without overlap; "" if there are none.

    Of several rankers the largest share of each metric.
    """
    shares: dict[str, float] = {}
    for result in results:
        for name, metric in result.items():
            shares[name] = max(shares.get(name, 0.0), metric.overlap_share or 0.0)
    bad = [f"{name} {share:.0%}" for name, share in shares.items() if share > OVERLAP_LIMIT]
    if not bad:
        return ""
    return (
        "bad overlap: this share of the weight on logged pairs falls on pairs with a propensity within 0.001 of 0 or "
        f"1, where one arm is hardly observed: {', '.join(bad)}; these estimates can be far off, whatever the cap."
    )


def training_sentence(names: Sequence[str]) -> str:
    """The warning for models that are measured on the log they were trained on."""
    which = f"{', '.join(names)}: measured" if any(names) else "measured"
    return f"{which} on the log the model was trained on, which is too optimistic; measure on another log."


def wrapped(sentences: Iterable[str]) -> list[str]:
    """Each sentence that is not empty on lines of its own."""
    return [
        line for sentence in sentences if sentence
        for line in textwrap.wrap(sentence, COLUMNS, break_long_words=False)
    ]  # fmt: skip


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of text as lines with aligned columns; the first row is the head."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    cells = [[text.ljust(width) for text, width in zip(row, widths, strict=True)] for row in rows]
    return ["  ".join(row).rstrip() for row in cells]
