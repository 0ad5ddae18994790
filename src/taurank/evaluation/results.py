"""Evaluation results: one ranker or several, all users and segments of them, as numbers and frames.

Results hold neither rankers nor logs; ``evaluation/text.py`` prints them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from taurank._types import Floats
from taurank.data.ids import Ids
from taurank.evaluation import text
from taurank.evaluation.evidence import Verdict
from taurank.evaluation.intervals import Estimate
from taurank.evaluation.metrics import Metric

if TYPE_CHECKING:
    import pandas as pd

Row = dict[str, Any]


class OtherEstimate(NamedTuple):
    """The same metric by another estimator; ``estimate`` is nan where only an interval is certain."""

    estimator: str
    estimate: float
    low: float
    high: float


@dataclass(frozen=True, eq=False, repr=False)
class _Measured:
    """An estimate whose interval at ``level``, and at any other, is computed on first use from what it stores."""

    estimate: Estimate
    level: float

    @property
    def per_user(self) -> Floats:
        return self.estimate.per_user

    @cached_property
    def _limits(self) -> tuple[float, float]:
        return self.estimate.interval(self.level)

    @property
    def low(self) -> float:
        return self._limits[0]

    @property
    def high(self) -> float:
        return self._limits[1]

    def interval(self, level: float | None = None) -> tuple[float, float]:
        """The interval at the level of the result or another one (docs/estimates.md)."""
        return self._limits if level is None else self.estimate.interval(level)


@dataclass(frozen=True, eq=False, repr=False)
class MetricResult(_Measured):
    """One metric of one ranker.

    ``mean`` is the mean over times of the mean over users, or over all visits, ``low`` and ``high`` its interval with
    users as clusters at ``level``. ``per_user`` is each user's mean over the times, in catalog order; ``per_time`` is
    the mean over all users at each time; where the gains have visits both are over visits, nan without one. ``std``
    is the standard deviation over times (divided by their number; 0 for one time): the paper's ±.
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
    def mean(self) -> float:
        return self.estimate.mean

    @property
    def per_time(self) -> Floats:
        return self.estimate.per_time

    @property
    def std(self) -> float:
        seen = self.per_time[~np.isnan(self.per_time)]
        return float(seen.std()) if len(seen) else np.nan

    def row(self) -> Row:
        """As a row of a frame."""
        row = {
            "metric": self.name, "mean": self.mean, "std": self.std, "low": self.low, "high": self.high,
            "smaller_is_better": not self.metric.larger_is_better,
            "overlap_share": np.nan if self.overlap_share is None else self.overlap_share,
        }  # fmt: skip
        if self.verdict is not None:
            row |= {"believe": self.verdict.believe, "reason": self.verdict.reason}
            row |= {"effective_purchases": self.purchases, "exposure": self.exposure}
        return row

    def __repr__(self) -> str:
        return f"MetricResult({self.name} {text.number(self.mean)})"

    def __str__(self) -> str:
        return text.of_metric(self)


@dataclass(frozen=True, eq=False, repr=False)
class Difference(_Measured):
    """Two rankers on the same gains: the paired difference ``first − second`` of one metric and its interval.

    The same users, and for estimates the same rows of the log. ``winner`` is "first" or "second" if the interval
    excludes 0, else None. ``trained_here`` are those that were trained on the log.
    """

    first: MetricResult
    second: MetricResult
    trained_here: tuple[str, ...] = ()

    @property
    def difference(self) -> float:
        return self.estimate.mean

    @property
    def winner(self) -> str | None:
        return self.winner_at()

    def winner_at(self, level: float | None = None) -> str | None:
        """Which of both is better if the interval at this level excludes 0."""
        low, high = self.interval(level)
        if not (low > 0 or high < 0):
            return None
        return "first" if (low > 0) == self.first.metric.larger_is_better else "second"

    @property
    def verdict(self) -> Verdict | None:
        """The verdict on the first ranker's estimate, or on the second's if that one alone is refused."""
        verdicts = [one for one in (self.first.verdict, self.second.verdict) if one is not None]
        return next((one for one in verdicts if not one.believe), next(iter(verdicts), None))

    def __repr__(self) -> str:
        return f"Difference({self.first.name} {text.number(self.first.mean)} against {text.number(self.second.mean)})"

    def __str__(self) -> str:
        return text.of_difference(self)


class _Frames:
    """What a result has as a frame, all users first and then each segment of them."""

    segments: Mapping[str, Any]

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

    def plot(self, metric: str | None = None) -> Any:
        """Means and intervals as an Altair chart, of several rankers by one metric; needs the extra "report"."""
        return import_module("taurank.report.charts").estimates_chart(self, metric)

    def _frame(self, detail: bool) -> pd.DataFrame:
        import pandas as pd

        if not self.segments:
            return pd.DataFrame(self._rows(detail))
        parts = {"all": self, **self.segments}
        return pd.DataFrame([{"segment": label, **row} for label, one in parts.items() for row in one._rows(detail)])

    def _rows(self, detail: bool) -> list[Row]:
        raise NotImplementedError

    def __str__(self) -> str:
        return "\n".join(text.of(self))


class Result(_Frames, dict[str, MetricResult]):
    """Metrics of one ranker by name; ``print`` shows them with their intervals.

    ``unknown_users`` and ``unknown_items`` count the users and items of the gains that the ranker does not know,
    ``trained_here`` says whether it was trained on the log that the gains come from. ``segments`` are the results of
    the users with each label. ``verdict`` is that on the first metric that is refused, else on the first one; None
    if the gains are not an estimate from a log.
    """

    def __init__(
        self, metrics: Mapping[str, MetricResult], users: Ids, times: Ids, gains_name: str, unknown_users: int = 0,
        unknown_items: int = 0, trained_here: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(metrics)
        self.users, self.times, self.gains_name, self.trained_here = users, times, gains_name, trained_here
        self.unknown_users, self.unknown_items = unknown_users, unknown_items
        self.segments: Mapping[str, Result] = {}
        verdicts = [one.verdict for one in self.values()]
        self.level = next(iter(self.values())).level
        self.verdict = next((one for one in verdicts if one is not None and not one.believe), verdicts[0])

    def __missing__(self, name: str) -> MetricResult:
        if isinstance(name, str) and name.upper() in self:
            return self[name.upper()]
        raise KeyError(name)

    def _rows(self, detail: bool) -> list[Row]:
        if not detail:
            return [metric.row() for metric in self.values()]
        return [{"metric": metric.name, **one._asdict()} for metric in self.values() for one in metric.estimators]

    def per_user_frame(self) -> pd.DataFrame:
        """``user_id`` and a column per metric."""
        import pandas as pd

        return pd.DataFrame({"user_id": self.users.values.to_pandas(), **{m.name: m.per_user for m in self.values()}})

    def __repr__(self) -> str:
        means = ", ".join(f"{metric.name} {text.number(metric.mean)}" for metric in self.values())
        return f"Result({means}; measured by {self.gains_name})"


class Comparison(_Frames, dict[str, Result]):
    """Results of several rankers by name, with paired differences from one of them, the ``baseline``.

    ``differences`` has one for each other ranker and metric. For estimates, ``choice`` is the ranker that is best by
    the first metric, None if the log cannot tell, and ``verdict`` says why.
    """

    def __init__(
        self, results: Mapping[str, Result], baseline: str, differences: Mapping[tuple[str, str], Difference]
    ) -> None:
        super().__init__(results)
        self.baseline, self.differences = baseline, differences
        self.level, self.gains_name = self[baseline].level, self[baseline].gains_name
        self.choice: str | None = None
        self.verdict: Verdict | None = None
        self.segments: Mapping[str, Comparison] = {}

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
            difference, low, high = (0.0,) * 3 if pair is None else (pair.difference, pair.low, pair.high)
            better = "" if pair is None else {"first": "yes", "second": "no", None: "unclear"}[pair.winner]
            row |= {"difference": difference, "difference_low": low, "difference_high": high, "better": better}
        return rows

    def __repr__(self) -> str:
        return f"Comparison({', '.join(self)}; baseline {self.baseline})"
