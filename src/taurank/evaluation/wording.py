"""Evaluation results as text: the shop's words, warnings, and tables no wider than a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from taurank.errors import plural
from taurank.estimation.gains import Gains
from taurank.evaluation.metrics import Metric

if TYPE_CHECKING:
    from taurank.evaluation.results import Comparison, Difference, MetricResult, Result

COLUMNS = 80
OVERLAP_LIMIT = 0.05  # warn above this share
_SHORTEST_NAME = 8  # what is left of a long name where the figures are wide


@dataclass(frozen=True)
class Wording:
    """What a unit of gain is called: "extra purchases per user and week"."""

    extra: bool = True  # gains are effects: *extra* purchases
    per: str = "per user"

    @classmethod
    def of(cls, formula: Metric, gains: Gains, unit: str) -> Wording:
        """By the declared kind of the gains; where none is declared, by the spelling of the metric."""
        extra = gains.kind == "effect" or (gains.kind is None and formula.name.startswith("C"))
        visiting = gains.eligibility.has_visits
        user = "per visiting user" if visiting else "per user"
        return cls(extra, f"{user} and {unit}" if gains.timed else user)

    def sentence(self, formula: Metric, value: float) -> str:
        """ "top 10: 1.03 extra purchases per user and week"; "" for a metric that has no such reading."""
        purchases = ("extra purchases " if self.extra else "purchases ") + self.per
        if formula.form == "P@k" and formula.depth is not None:
            return f"top {formula.depth}: {number(value * formula.depth)} {purchases}"
        if formula.form == "DCG":
            return f"whole list, discounted by position: {number(value)} {purchases}"
        return "" if formula.larger_is_better else "smaller is better"


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


def number(value: float) -> str:
    """Three significant digits."""
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e9 else f"{value:.3g}"


def span(interval: tuple[float, float]) -> str:
    return f"{number(interval[0])} to {number(interval[1])}"


def wrapped(sentences: Iterable[str]) -> list[str]:
    """Each sentence that is not empty on lines of its own, none wider than a terminal of 80 columns."""
    return [textwrap.fill(sentence, COLUMNS, break_long_words=False) for sentence in sentences if sentence]


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of text as lines with aligned columns; the first row is the head."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    cells = [[text.ljust(width) for text, width in zip(row, widths, strict=True)] for row in rows]
    return ["  ".join(row).rstrip() for row in cells]


def result_text(result: Result) -> str:
    """The verdict, a table of the metrics, and what is to be known about them."""
    several = len(result.times) > 1
    level = f"{result.level:.0%} interval"
    rows = [["metric", "mean", *(["± over times"] if several else []), level]]
    for metric in result.values():
        spread = [number(metric.std)] if several else []
        rows.append([metric.name, number(metric.mean), *spread, span((metric.low, metric.high))])
    remarks = [f"{metric.name}: {metric.sentence()}" for metric in result.values() if metric.sentence()]
    if result.unknown_users:
        remarks.append(f"{plural(result.unknown_users, 'user')} unknown to the ranker: all items tied")
    if result.unknown_items:
        remarks.append(f"{plural(result.unknown_items, 'item')} unknown to the ranker: ranked last, tied")
    remarks += [overlap_sentence([result]), training_sentence([""]) if result.trained_here else ""]
    lead = wrapped([result.verdict_sentence()])
    return "\n".join([*lead, *aligned(rows), *wrapped(remarks), *_details(result), *_segments(result)])


def comparison_text(table: Comparison) -> str:
    """The verdict on the choice, one block for each metric, and what is to be known about the rankers."""
    head = f"measured by {table.gains_name}; diff.: minus {table.baseline}, paired by user"
    first, *_ = table.values()
    blocks = ["\n".join(_block(table, metric)) for metric in first]
    remarks = []
    for name, result in table.items():
        counts = plural(result.unknown_users, "user"), plural(result.unknown_items, "item")
        if result.unknown_users or result.unknown_items:
            remarks.append(f"{name}: {' and '.join(counts)} unknown to the ranker")
    trained = [name for name, result in table.items() if result.trained_here]
    remarks += [overlap_sentence(table.values()), training_sentence(trained) if trained else ""]
    lead = [] if table.verdict is None else [str(table.verdict), *table.cautions, *table.refusals]
    details = [line for name, result in table.items() for line in _details(result, f"{name}, ")]
    parts = [*wrapped(lead), "", *wrapped([head]), "", "\n\n".join(blocks), "", *wrapped(remarks), *details]
    return "\n".join([*parts, *_segments(table)]).strip()


def _block(table: Comparison, metric: str) -> list[str]:
    """One metric of all rankers."""
    smaller, level = table[table.baseline][metric].smaller_is_better, f"{table.level:.0%} interval"
    rows = [["mean", level, "diff.", level, ""]]
    for name, result in table.items():
        one, pair = result[metric], table.differences.get((name, metric))
        mark = "! " if one.verdict is not None and not one.verdict.believe else ""
        cells = [mark + number(one.mean), span((one.low, one.high))]
        if pair is not None:
            word = {"first": "better", "second": "worse", None: ""}[pair.winner]
            cells += [number(pair.difference), span((pair.low, pair.high)), word]
        rows.append([*cells, "", "", ""][:5])
    figures = aligned(rows)
    width = max(_SHORTEST_NAME, COLUMNS - 2 - max(map(len, figures)))
    names = ["ranker", *(name if len(name) <= width else name[: width - 1] + "…" for name in table)]
    title = metric + (" (smaller is better)" if smaller else "")
    return [title, *aligned([[name, line] for name, line in zip(names, figures, strict=True)])]


def _details(result: Result, name: str = "") -> Iterator[str]:
    """Every estimator side by side."""
    for metric in result.values():
        if metric.estimators:
            rows = [["estimator", "estimate", f"{result.level:.0%} interval"]]
            for one in metric.estimators:
                value = "" if one.estimate != one.estimate else number(one.estimate)
                rows.append([one.name, value, span((one.low, one.high))])
            yield "\n".join(["", f"{name}{metric.name} by every estimator", *aligned(rows)])


def _segments(result: Result | Comparison) -> Iterator[str]:
    for label, part in result.segments.items():
        yield f"\nsegment {label}\n{part}"


def difference_text(pair: Difference) -> str:
    answer = f"the {pair.winner} ranker is better" if pair.winner else "no clear difference"
    first, second = pair.first, pair.second
    sentence = first.wording.sentence(first.metric, pair.difference)
    if sentence and not first.smaller_is_better:
        sentence = f"difference, {sentence}"
    head = (
        f"{first.name}: {number(first.mean)} against {number(second.mean)}, a difference of "
        f"{number(pair.difference)} ({first.level:.0%} interval {span((pair.low, pair.high))}): {answer}"
    )
    lead = "" if pair.verdict is None else str(pair.verdict)
    return "\n".join(wrapped([lead, head, sentence, *pair.warnings]))


def metric_text(metric: MetricResult) -> str:
    sentence = f"; {metric.sentence()}" if metric.sentence() else ""
    interval = span((metric.low, metric.high))
    return f"{metric.name} {number(metric.mean)} ({metric.level:.0%} interval {interval}){sentence}"
