"""Evaluation results: numbers of one ranker or several, for all users and for segments of them, and frames of them.

Everything is computed when a result is made; it holds no ranker and no log.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from taurank._types import Floats
from taurank.data.ids import Ids
from taurank.evaluation import wording
from taurank.evaluation.intervals import Bootstrap, Estimate
from taurank.evaluation.metrics import Metric
from taurank.evaluation.verdicts import Verdict
from taurank.evaluation.wording import Wording, number, overlap_sentence, training_sentence

if TYPE_CHECKING:
    import pandas as pd

Row = dict[str, Any]


class OtherEstimate(NamedTuple):
    """The same metric by another estimator; ``estimate`` is nan where only an interval is certain."""

    name: str
    estimate: float
    low: float
    high: float


@dataclass(frozen=True, eq=False, repr=False)
class MetricResult:
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
    mean: float
    low: float
    high: float
    level: float
    per_user: Floats
    per_time: Floats
    spread: Estimate | Bootstrap  # what intervals are computed from
    wording: Wording
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
    def std(self) -> float:
        """The standard deviation over times (divided by their number; 0 for one time): the paper's ±."""
        seen = self.per_time[~np.isnan(self.per_time)]
        _, exponent = np.frexp(np.abs(seen).max(initial=0.0))  # scaled by a power of 2, so that no square overflows
        return float(np.ldexp(np.ldexp(seen, -exponent).std(), exponent)) if len(seen) else float("nan")

    def interval(self, level: float | None = None) -> tuple[float, float]:
        """The interval of the mean, at ``level`` or another one.

        For an estimate from a log it takes the few heavy purchases into account that decide (docs/estimates.md);
        otherwise it is a bootstrap over users (BCa, 2,000 resamples, its own fixed seed).
        """
        return (self.low, self.high) if level is None else self.spread.interval(level)

    @property
    def contributions(self) -> Floats:
        """A value per user with the mean and the spread between users of ``mean``: ``per_user`` without visits."""
        return self.spread.contributions

    def sentence(self) -> str:
        """The mean in the shop's words."""
        return self.wording.sentence(self.metric, self.mean)

    def __repr__(self) -> str:
        return f"MetricResult({self.name} {number(self.mean)})"

    def __str__(self) -> str:
        return wording.metric_text(self)

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


@dataclass(frozen=True, eq=False, repr=False)
class Result(Mapping[str, MetricResult]):
    """Metrics of one ranker by name; ``print`` shows them with their intervals.

    ``unknown_users`` and ``unknown_items`` count the users and items of the gains that the ranker does not know,
    ``trained_here`` says whether it was trained on the log that the gains come from. ``segments`` are the results of
    the users with each label.
    """

    metrics: Mapping[str, MetricResult]
    users: Ids
    times: Ids
    gains_name: str
    level: float = 0.95
    unknown_users: int = 0
    unknown_items: int = 0
    trained_here: bool = False
    segments: Mapping[str, Result] = field(default_factory=dict)

    def __getitem__(self, name: str) -> MetricResult:
        if name in self.metrics or not isinstance(name, str):
            return self.metrics[name]
        return self.metrics[name.upper()]

    def __iter__(self) -> Iterator[str]:
        return iter(self.metrics)

    def __len__(self) -> int:
        return len(self.metrics)

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

    def to_frame(self) -> pd.DataFrame:
        """One row per metric: ``metric, mean, std, low, high, smaller_is_better, overlap_share``.

        Estimates from a log have ``believe``, ``reason``, ``effective_purchases`` and ``exposure`` as well, segments
        a column ``segment`` ("all" for all users).
        """
        return _frame(self, lambda one: [metric.row() for metric in one.values()])

    def estimators(self) -> pd.DataFrame:
        """One row per metric and estimator, if all were asked for: ``metric, estimator, estimate, low, high``."""
        return _frame(self, lambda one: one.estimator_rows())

    def estimator_rows(self) -> list[Row]:
        rows = []
        for metric in self.values():
            for one in metric.estimators:
                ends = {"estimate": one.estimate, "low": one.low, "high": one.high}
                rows.append({"metric": metric.name, "estimator": one.name, **ends})
        return rows

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
        return wording.result_text(self)


@dataclass(frozen=True, eq=False, repr=False)
class Difference:
    """Two rankers on the same gains: the paired difference ``first − second`` of one metric and its interval.

    The same users, and for estimates the same rows of the log.
    """

    first: MetricResult
    second: MetricResult
    low: float
    high: float
    spread: Estimate | Bootstrap
    trained_here: tuple[str, ...] = ()  # which of both were trained on the log

    @property
    def difference(self) -> float:
        return self.first.mean - self.second.mean

    @property
    def per_user(self) -> Floats:
        return self.first.per_user - self.second.per_user

    def interval(self, level: float | None = None) -> tuple[float, float]:
        return (self.low, self.high) if level is None else self.spread.interval(level)

    @property
    def winner(self) -> str | None:
        """ "first" or "second" if the interval excludes 0, else None."""
        if not (self.low > 0 or self.high < 0):
            return None
        return "first" if (self.low > 0) == self.first.metric.larger_is_better else "second"

    @property
    def verdict(self) -> Verdict | None:
        """The verdict on the first ranker's estimate, or on the second's if that one alone is refused."""
        verdicts = [one for one in (self.first.verdict, self.second.verdict) if one is not None]
        return next((one for one in verdicts if not one.believe), next(iter(verdicts), None))

    @property
    def warnings(self) -> list[str]:
        overlap = overlap_sentence([{one.name: one} for one in (self.first, self.second)])
        return [overlap, training_sentence(self.trained_here) if self.trained_here else ""]

    def row(self) -> Row:
        better = {"first": "yes", "second": "no", None: "unclear"}[self.winner]
        ends = {"difference_low": self.low, "difference_high": self.high}
        return {"difference": self.difference, **ends, "better": better}

    def __repr__(self) -> str:
        return f"Difference({self.first.name} {number(self.first.mean)} against {number(self.second.mean)})"

    def __str__(self) -> str:
        return wording.difference_text(self)


@dataclass(frozen=True, eq=False, repr=False)
class Comparison(Mapping[str, Result]):
    """Results of several rankers by name, with paired differences from one of them, the ``baseline``.

    ``differences`` has one for each other ranker and metric. For estimates, ``choice`` is the ranker that is best by
    the first metric, None if the log cannot tell, and ``verdict`` says why.
    """

    results: Mapping[str, Result]
    baseline: str
    differences: Mapping[tuple[str, str], Difference]
    choice: str | None
    verdict: Verdict | None
    segments: Mapping[str, Comparison] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Result:
        return self.results[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.results)

    def __len__(self) -> int:
        return len(self.results)

    @property
    def level(self) -> float:
        return self[self.baseline].level

    @property
    def gains_name(self) -> str:
        return self[self.baseline].gains_name

    @property
    def verdicts(self) -> dict[tuple[str, str], Verdict]:
        """Those of each ranker and metric."""
        return {
            (name, metric): one.verdict
            for name, result in self.items()
            for metric, one in result.items()
            if one.verdict is not None
        }

    @property
    def refusals(self) -> list[str]:
        return [f"{who}, {metric}: {one}" for (who, metric), one in self.verdicts.items() if not one.believe]

    @property
    def cautions(self) -> list[str]:
        """What is to be known before the numbers of believed estimates, each caution once."""
        about: dict[str, list[str]] = {}
        for (who, metric), one in self.verdicts.items():
            if one.caution:
                about.setdefault(one.caution, []).append(f"{who}, {metric}")
        everyone = len(self.verdicts)
        return [
            f"Caution: {caution}." if len(whom) == everyone else f"Caution: {'; '.join(whom)}: {caution}."
            for caution, whom in about.items()
        ]

    def to_frame(self) -> pd.DataFrame:
        """One row per ranker and metric: the columns of ``Result.to_frame`` and the difference from the baseline.

        ``difference, difference_low, difference_high`` are those of the ranker minus the baseline (0 in its own
        rows), ``better`` says "yes", "no" or, if the interval includes 0, "unclear" ("" in the baseline's rows).
        """
        return _frame(self, lambda one: one.rows())

    def rows(self) -> list[Row]:
        itself = {"difference": 0.0, "difference_low": 0.0, "difference_high": 0.0, "better": ""}
        rows = []
        for name, result in self.items():
            for metric in result.values():
                pair = self.differences.get((name, metric.name))
                rows.append({"ranker": name, **metric.row(), **(itself if pair is None else pair.row())})
        return rows

    def estimators(self) -> pd.DataFrame:
        """One row per ranker, metric and estimator, if all estimators were asked for."""

        def rows(table: Comparison) -> list[Row]:
            return [{"ranker": name, **row} for name, result in table.items() for row in result.estimator_rows()]

        return _frame(self, rows)

    def __repr__(self) -> str:
        return f"Comparison({', '.join(self)}; baseline {self.baseline})"

    def __str__(self) -> str:
        return wording.comparison_text(self)


def _frame(whole: Any, rows: Any) -> pd.DataFrame:
    """The rows of all users, and those of each segment."""
    import pandas as pd

    if not whole.segments:
        return pd.DataFrame(rows(whole))
    parts = {"all": whole, **whole.segments}
    return pd.DataFrame([{"segment": label, **row} for label, part in parts.items() for row in rows(part)])
