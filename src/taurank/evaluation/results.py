"""Evaluation results: one ranker or several, all users and segments of them, as numbers, frames and text.

Results hold neither rankers nor logs. What they say about users and times is computed when it is asked for, once.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from taurank._types import Floats
from taurank.data.ids import Ids
from taurank.errors import plural
from taurank.evaluation.evidence import OVERLAP_LIMIT, Verdict, number, span
from taurank.evaluation.intervals import Bootstrap, Estimate
from taurank.evaluation.metrics import Metric

if TYPE_CHECKING:
    import pandas as pd

Row = dict[str, Any]
Part = TypeVar("Part")
COLUMNS = 80
_SHORTEST_NAME = 8  # what is left of a long name where the figures are wide


class OtherEstimate(NamedTuple):
    """The same metric by another estimator; ``estimate`` is nan where only an interval is certain."""

    estimator: str
    estimate: float
    low: float
    high: float


@dataclass(frozen=True, eq=False, repr=False)
class _Measured:
    """A mean over users and its interval at ``level``, computed when it is first asked for."""

    spread: Estimate | Bootstrap
    level: float

    @property
    def mean(self) -> float:
        return self.spread.mean

    @property
    def per_user(self) -> Floats:
        return self.spread.per_user

    @property
    def low(self) -> float:
        return self._ends[0]

    @property
    def high(self) -> float:
        return self._ends[1]

    @cached_property
    def _ends(self) -> tuple[float, float]:
        return self.spread.interval(self.level)

    def interval(self, level: float | None = None) -> tuple[float, float]:
        """The interval of the mean, at ``level`` or another one.

        For an estimate from a log it takes the few heavy purchases into account that decide (docs/estimates.md);
        otherwise it is a bootstrap over users (BCa, 2,000 resamples, its own fixed seed).
        """
        return self._ends if level is None else self.spread.interval(level)


@dataclass(frozen=True, eq=False, repr=False)
class MetricResult(_Measured):
    """One metric of one ranker.

    ``mean`` is the mean over times of the mean over users, or over all visits, ``low`` and ``high`` its interval with
    users as clusters at ``level``. ``per_user`` is each user's mean over the times, in catalog order; ``per_time`` is
    the mean over all users at each time; where the gains have visits both are over visits, nan without one.
    ``overlap_share`` is the share of the weight on logged pairs that falls on pairs with a propensity within 1e-3 of
    0 or 1 (None if the gains are not an estimate from a log). An estimate has a ``verdict``, an effective number of
    ``purchases`` behind it and its ``exposure`` (how often the list was shown, over what the propensities say), and,
    if it was asked for, the other ``estimators``.
    """

    metric: Metric
    unit: str  # "extra purchases per user and week"
    overlap_share: float | None = None
    verdict: Verdict | None = None
    purchases: float = np.nan
    exposure: float = np.nan
    estimators: tuple[OtherEstimate, ...] = ()

    @property
    def name(self) -> str:
        return self.metric.name

    @property
    def smaller_is_better(self) -> bool:
        return not self.metric.larger_is_better

    @property
    def per_time(self) -> Floats:
        return self.spread.per_time

    @property
    def std(self) -> float:
        """The standard deviation over times (divided by their number; 0 for one time): the paper's ±."""
        seen = self.per_time[~np.isnan(self.per_time)]
        _, exponent = np.frexp(np.abs(seen).max(initial=0.0))  # scaled by a power of 2, so that no square overflows
        return float(np.ldexp(np.ldexp(seen, -exponent).std(), exponent)) if len(seen) else float("nan")

    def sentence(self, difference: float | None = None) -> str:
        """The mean, or a difference, in the shop's words: "top 10: 1.03 extra purchases per user and week"."""
        value, form = self.mean if difference is None else difference, self.metric.form
        prefix = "" if difference is None else "difference, "
        if form == "P@k" and self.metric.depth is not None:
            return f"{prefix}top {self.metric.depth}: {number(value * self.metric.depth)} {self.unit}"
        if form == "DCG":
            return f"{prefix}whole list, discounted by position: {number(value)} {self.unit}"
        return "smaller is better" if self.smaller_is_better else ""

    def row(self) -> Row:
        """As a row of a frame."""
        row = {
            "metric": self.name, "mean": self.mean, "std": self.std, "low": self.low, "high": self.high,
            "smaller_is_better": self.smaller_is_better,
            "overlap_share": np.nan if self.overlap_share is None else self.overlap_share,
        }  # fmt: skip
        if self.verdict is not None:
            row |= {"believe": self.verdict.believe, "reason": self.verdict.reason}
            row |= {"effective_purchases": self.purchases, "exposure": self.exposure}
        return row

    def __repr__(self) -> str:
        return f"MetricResult({self.name} {number(self.mean)})"

    def __str__(self) -> str:
        sentence = f"; {self.sentence()}" if self.sentence() else ""
        return f"{self.name} {number(self.mean)} ({self.level:.0%} interval {span(self._ends)}){sentence}"


class _Table(Mapping[str, Part]):
    """Parts by name, and the same of each segment of the users."""

    parts: Mapping[str, Part]
    segments: Mapping[str, Any]

    def __getitem__(self, name: str) -> Part:
        return self.parts[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.parts)

    def __len__(self) -> int:
        return len(self.parts)

    def to_frame(self) -> pd.DataFrame:
        """One row per metric: ``metric, mean, std, low, high, smaller_is_better, overlap_share``.

        Estimates from a log have ``believe``, ``reason``, ``effective_purchases`` and ``exposure`` as well, segments
        a column ``segment`` ("all" for all users). Several rankers have a column ``ranker`` and the difference from
        the baseline, ``difference, difference_low, difference_high`` (0 in its own rows), of which ``better`` says
        "yes", "no" or, if the interval includes 0, "unclear" ("" in the baseline's rows).
        """
        return self._frame(detail=False)

    def estimators(self) -> pd.DataFrame:
        """One row per metric and estimator, if all were asked for: ``metric, estimator, estimate, low, high``."""
        return self._frame(detail=True)

    def _frame(self, detail: bool) -> pd.DataFrame:
        import pandas as pd

        if not self.segments:
            return pd.DataFrame(self._rows(detail))
        parts = {"all": self, **self.segments}
        return pd.DataFrame([{"segment": label, **row} for label, one in parts.items() for row in one._rows(detail)])

    def _rows(self, detail: bool) -> list[Row]:
        raise NotImplementedError


@dataclass(frozen=True, eq=False, repr=False)
class Result(_Table[MetricResult]):
    """Metrics of one ranker by name; ``print`` shows them with their intervals.

    ``unknown_users`` and ``unknown_items`` count the users and items of the gains that the ranker does not know,
    ``trained_here`` says whether it was trained on the log that the gains come from. ``segments`` are the results of
    the users with each label.
    """

    parts: Mapping[str, MetricResult]
    users: Ids
    times: Ids
    gains_name: str
    level: float = 0.95
    unknown_users: int = 0
    unknown_items: int = 0
    trained_here: bool = False
    segments: Mapping[str, Result] = field(default_factory=dict)

    def __getitem__(self, name: str) -> MetricResult:
        return self.parts[name if name in self.parts or not isinstance(name, str) else name.upper()]

    @property
    def verdict(self) -> Verdict | None:
        """The verdict on the first metric that is refused, else on the first one; None if not estimated."""
        refused = (one.verdict for one in self.values() if one.verdict is not None and not one.verdict.believe)
        return next(refused, next(iter(self.values())).verdict)

    def verdict_sentence(self) -> str:
        """The sentence in front of the numbers; "" if they are not an estimate from a log."""
        verdict = self.verdict
        if verdict is None:
            return ""
        name = next(name for name, one in self.items() if one.verdict is verdict)
        return f"{name}: {verdict}" if len(self) > 1 and not verdict.believe else str(verdict)

    def _rows(self, detail: bool) -> list[Row]:
        if not detail:
            return [metric.row() for metric in self.values()]
        return [{"metric": metric.name, **one._asdict()} for metric in self.values() for one in metric.estimators]

    def per_user_frame(self) -> pd.DataFrame:
        """``user_id`` and a column per metric."""
        import pandas as pd

        return pd.DataFrame({"user_id": self.users.values.to_pandas(), **{m.name: m.per_user for m in self.values()}})

    def per_time_frame(self) -> pd.DataFrame:
        """``time`` and a column per metric."""
        import pandas as pd

        return pd.DataFrame({"time": self.times.values.to_pandas(), **{m.name: m.per_time for m in self.values()}})

    def __repr__(self) -> str:
        means = ", ".join(f"{metric.name} {number(metric.mean)}" for metric in self.values())
        return f"Result({means}; measured by {self.gains_name})"

    def __str__(self) -> str:
        several, level = len(self.times) > 1, f"{self.level:.0%} interval"
        rows, remarks = [["metric", "mean", *(["± over times"] if several else []), level]], []
        for metric in self.values():
            spread = [number(metric.std)] if several else []
            rows.append([metric.name, number(metric.mean), *spread, span(metric.interval())])
            sentence = metric.sentence()
            remarks += [f"{metric.name}: {sentence}"] if sentence else []
        if self.unknown_users:
            remarks.append(f"{plural(self.unknown_users, 'user')} unknown to the ranker: all items tied")
        if self.unknown_items:
            remarks.append(f"{plural(self.unknown_items, 'item')} unknown to the ranker: ranked last, tied")
        remarks += [overlap_sentence([self]), training_sentence([""]) if self.trained_here else ""]
        lead = wrapped([self.verdict_sentence()])
        return "\n".join([*lead, *aligned(rows), *wrapped(remarks), *self._details(), *_segments(self)])

    def _details(self, name: str = "") -> list[str]:
        """Every estimator side by side."""
        texts = []
        for metric in self.values():
            rows = [["estimator", "estimate", f"{self.level:.0%} interval"]]
            for one in metric.estimators:
                value = "" if np.isnan(one.estimate) else number(one.estimate)
                rows.append([one.estimator, value, span((one.low, one.high))])
            if metric.estimators:
                texts.append("\n".join(["", f"{name}{metric.name} by every estimator", *aligned(rows)]))
        return texts


@dataclass(frozen=True, eq=False, repr=False)
class Difference(_Measured):
    """Two rankers on the same gains: the paired difference ``first − second`` of one metric and its interval.

    The same users, and for estimates the same rows of the log.
    """

    first: MetricResult
    second: MetricResult
    trained_here: tuple[str, ...] = ()  # which of both were trained on the log

    @property
    def difference(self) -> float:
        return self.mean

    @property
    def winner(self) -> str | None:
        """ "first" or "second" if the interval excludes 0, else None."""
        low, high = self._ends
        if not (low > 0 or high < 0):
            return None
        return "first" if (low > 0) == self.first.metric.larger_is_better else "second"

    @property
    def verdict(self) -> Verdict | None:
        """The verdict on the first ranker's estimate, or on the second's if that one alone is refused."""
        verdicts = [one for one in (self.first.verdict, self.second.verdict) if one is not None]
        return next((one for one in verdicts if not one.believe), next(iter(verdicts), None))

    def __repr__(self) -> str:
        return f"Difference({self.first.name} {number(self.first.mean)} against {number(self.second.mean)})"

    def __str__(self) -> str:
        first, second = self.first, self.second
        answer = f"the {self.winner} ranker is better" if self.winner else "no clear difference"
        head = (
            f"{first.name}: {number(first.mean)} against {number(second.mean)}, a difference of "
            f"{number(self.difference)} ({first.level:.0%} interval {span(self._ends)}): {answer}"
        )
        overlap = overlap_sentence([{one.name: one} for one in (first, second)])
        training = training_sentence(self.trained_here) if self.trained_here else ""
        return "\n".join(wrapped([str(self.verdict or ""), head, first.sentence(self.difference), overlap, training]))


@dataclass(frozen=True, eq=False, repr=False)
class Comparison(_Table[Result]):
    """Results of several rankers by name, with paired differences from one of them, the ``baseline``.

    ``differences`` has one for each other ranker and metric. For estimates, ``choice`` is the ranker that is best by
    the first metric, None if the log cannot tell, and ``verdict`` says why.
    """

    parts: Mapping[str, Result]
    baseline: str
    differences: Mapping[tuple[str, str], Difference]
    choice: str | None = None
    verdict: Verdict | None = None
    segments: Mapping[str, Comparison] = field(default_factory=dict)

    @property
    def level(self) -> float:
        return self[self.baseline].level

    @property
    def gains_name(self) -> str:
        return self[self.baseline].gains_name

    @property
    def verdicts(self) -> dict[tuple[str, str], Verdict]:
        """Those of each ranker and metric."""
        metrics = {(name, metric): one for name, result in self.items() for metric, one in result.items()}
        return {key: one.verdict for key, one in metrics.items() if one.verdict is not None}

    @property
    def cautions(self) -> list[str]:
        """What is to be known before the numbers of believed estimates, each caution once."""
        verdicts, about = self.verdicts, dict[str, list[str]]()
        for (who, metric), one in verdicts.items():
            if one.caution:
                about.setdefault(one.caution, []).append(f"{who}, {metric}")
        return [
            f"Caution: {caution}." if len(whom) == len(verdicts) else f"Caution: {'; '.join(whom)}: {caution}."
            for caution, whom in about.items()
        ]

    def _rows(self, detail: bool) -> list[Row]:
        rows = [{"ranker": name, **row} for name, result in self.items() for row in result._rows(detail)]
        for row in rows if not detail else []:
            pair = self.differences.get((row["ranker"], row["metric"]))
            difference, (low, high) = (0.0, (0.0, 0.0)) if pair is None else (pair.difference, pair.interval())
            better = "" if pair is None else {"first": "yes", "second": "no", None: "unclear"}[pair.winner]
            row |= {"difference": difference, "difference_low": low, "difference_high": high, "better": better}
        return rows

    def __repr__(self) -> str:
        return f"Comparison({', '.join(self)}; baseline {self.baseline})"

    def __str__(self) -> str:
        """The verdict on the choice, one block for each metric, and what is to be known about the rankers."""
        head = f"measured by {self.gains_name}; diff.: minus {self.baseline}, paired by user"
        blocks = ["\n".join(self._block(metric)) for metric in self[self.baseline]]
        remarks = []
        for name, result in self.items():
            if result.unknown_users or result.unknown_items:
                counts = plural(result.unknown_users, "user"), plural(result.unknown_items, "item")
                remarks.append(f"{name}: {' and '.join(counts)} unknown to the ranker")
        trained = [name for name, result in self.items() if result.trained_here]
        remarks += [overlap_sentence(self.values()), training_sentence(trained) if trained else ""]
        refused = [f"{who}, {metric}: {one}" for (who, metric), one in self.verdicts.items() if not one.believe]
        lead = [] if self.verdict is None else [str(self.verdict), *self.cautions, *refused]
        details = [text for name, result in self.items() for text in result._details(f"{name}, ")]
        parts = [*wrapped(lead), "", *wrapped([head]), "", "\n\n".join(blocks), "", *wrapped(remarks), *details]
        return "\n".join([*parts, *_segments(self)]).strip()

    def _block(self, metric: str) -> list[str]:
        """One metric of all rankers."""
        level = f"{self.level:.0%} interval"
        rows = [["mean", level, "diff.", level, ""]]
        for name, result in self.items():
            one, pair = result[metric], self.differences.get((name, metric))
            mark = "! " if one.verdict is not None and not one.verdict.believe else ""
            cells = [mark + number(one.mean), span(one.interval())]
            if pair is not None:
                word = {"first": "better", "second": "worse", None: ""}[pair.winner]
                cells += [number(pair.difference), span(pair.interval()), word]
            rows.append([*cells, "", "", ""][:5])
        figures = aligned(rows)
        width = max(_SHORTEST_NAME, COLUMNS - 2 - max(map(len, figures)))
        names = ["ranker", *(name if len(name) <= width else name[: width - 1] + "…" for name in self)]
        title = metric + (" (smaller is better)" if self[self.baseline][metric].smaller_is_better else "")
        return [title, *aligned([[name, line] for name, line in zip(names, figures, strict=True)])]


def _segments(whole: Result | Comparison) -> list[str]:
    return [f"\nsegment {label}\n{one}" for label, one in whole.segments.items()]


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
    """Each sentence that is not empty on lines of its own, none wider than a terminal of 80 columns."""
    return [textwrap.fill(sentence, COLUMNS, break_long_words=False) for sentence in sentences if sentence]


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of text as lines with aligned columns; the first row is the head."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    cells = [[text.ljust(width) for text, width in zip(row, widths, strict=True)] for row in rows]
    return ["  ".join(row).rstrip() for row in cells]
