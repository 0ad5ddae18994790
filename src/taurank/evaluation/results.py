"""What a ranker is worth: means, spreads and intervals, as numbers, as a frame and in the shop's words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from taurank.data.ids import Ids
from taurank.errors import InputError, plural
from taurank.evaluation.assessment import Assessment
from taurank.evaluation.bootstrap import Bootstrap
from taurank.evaluation.metrics import Metric
from taurank.evaluation.uncertainty import Uncertainty
from taurank.evaluation.verdicts import Verdict
from taurank.evaluation.visits import Visits, contributions, mean_of
from taurank.evaluation.wording import PLAIN, Wording, aligned, number, overlap_sentence, span, wrapped

if TYPE_CHECKING:
    import pandas as pd

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False, repr=False)
class MetricResult:
    """One metric of one ranker.

    ``per_user`` is each user's mean over the times, in catalog order; ``per_time`` is the mean over all
    users at each time. Where the gains have visits both are over visits, nan without one, and ``visits`` counts
    them. ``overlap_share`` is the share of the weights on logged pairs that falls on pairs with a
    propensity within 1e-3 of 0 or 1 (None if the gains are not an estimate from a log). ``assessment`` has the log
    an estimate was made from (None for the truth and for gains of one's own).
    """

    formula: Metric
    per_user: Floats
    per_time: Floats
    wording: Wording = PLAIN
    overlap_share: float | None = None
    assessment: Assessment | None = None
    visits: Visits | None = None

    @property
    def name(self) -> str:
        return self.formula.name

    @property
    def smaller_is_better(self) -> bool:
        return not self.formula.larger_is_better

    @property
    def mean(self) -> float:
        """The mean over times of the mean over users, or over all visits."""
        return mean_of(self.per_time, None if self.visits is None else self.visits.by_time)

    @property
    def std(self) -> float:
        """The standard deviation over times (divided by their number; 0 for one time): the paper's ±."""
        seen = self.per_time[~np.isnan(self.per_time)]
        _, exponent = np.frexp(np.abs(seen).max(initial=0.0))  # scaled by a power of 2, so that no square overflows
        return float(np.ldexp(np.ldexp(seen, -exponent).std(), exponent)) if len(seen) else float("nan")

    def interval(self, level: float = 0.95, *, threads: int | None = None) -> tuple[float, float]:
        """The interval of the mean with users as clusters.

        For an estimate from a log it takes the few heavy purchases into account that decide (docs/estimates.md);
        otherwise it is a bootstrap over users (BCa, 2,000 resamples, its own fixed seed).
        """
        uncertainty = self.uncertainty
        return self._bootstrap.interval(level, threads) if uncertainty is None else uncertainty.interval(level)

    @property
    def uncertainty(self) -> Uncertainty | None:
        """What the interval of an estimate is made of; None if the gains are not an estimate from a log."""
        if self.assessment is None:
            return None
        answer = self.assessment.answer(self.name)
        if not np.isclose(answer.estimate, self.mean, rtol=1e-6, atol=1e-9):
            raise InputError("the ranker has changed since it was evaluated; evaluate it again.")
        return answer

    @property
    def verdict(self) -> Verdict | None:
        """Whether to believe the estimate; None if the gains are not an estimate from a log."""
        return None if self.assessment is None else self.assessment.verdict(self.name)

    @cached_property
    def _bootstrap(self) -> Bootstrap:
        return Bootstrap(self.contributions)

    @property
    def contributions(self) -> Floats:
        """A value per user with the mean and the spread between users of ``mean``: ``per_user`` without visits."""
        return contributions(self.per_user, None if self.visits is None else self.visits.by_user, self.mean)

    def sentence(self) -> str:
        return self.wording.sentence(self.formula, self.mean)

    def __repr__(self) -> str:
        return f"MetricResult({self.name} {number(self.mean)})"

    def __str__(self) -> str:
        low_high = span(self.interval())
        sentence = self.sentence()
        return f"{self.name} {number(self.mean)} (95 % interval {low_high})" + (f"; {sentence}" if sentence else "")


@dataclass(frozen=True, eq=False, repr=False)
class Result(Mapping[str, MetricResult]):
    """Metrics of one ranker by name; ``print`` shows them with their intervals.

    ``unknown_users`` and ``unknown_items`` count the users and items of the gains that the ranker does not know.
    ``training_log`` is a warning if the gains come from the log the model was trained on, else "".
    """

    metrics: Mapping[str, MetricResult]
    users: Ids
    times: Ids
    gains_name: str
    unknown_users: int = 0
    unknown_items: int = 0
    training_log: str = ""

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
        return self._verdict[1]

    @cached_property
    def _verdict(self) -> tuple[str, Verdict | None]:
        judged = [(metric.name, metric.verdict) for metric in self.values() if metric.assessment is not None]
        refused = [one for one in judged if one[1] is not None and not one[1].believe]
        return next(iter([*refused, *judged]), ("", None))

    def verdict_sentence(self) -> str:
        """The sentence in front of the numbers; "" if they are not an estimate from a log."""
        name, verdict = self._verdict
        if verdict is None:
            return ""
        return f"{name}: {verdict}" if len(self) > 1 and not verdict.believe else str(verdict)

    def to_frame(self, level: float = 0.95, *, threads: int | None = None) -> pd.DataFrame:
        """One row per metric: ``metric, mean, std, low, high, smaller_is_better, overlap_share``.

        Estimates from a log have ``believe`` and ``reason`` as well.
        """
        import pandas as pd

        return pd.DataFrame([metric_row(metric, level, threads) for metric in self.values()])

    def per_user_frame(self) -> pd.DataFrame:
        """``user_id`` and a column per metric."""
        return self._frame(self.users, {m.name: m.per_user for m in self.values()})

    def per_time_frame(self) -> pd.DataFrame:
        """``time`` and a column per metric."""
        return self._frame(self.times, {m.name: m.per_time for m in self.values()})

    def _frame(self, ids: Ids, columns: dict[str, Floats]) -> pd.DataFrame:
        import pandas as pd

        return pd.DataFrame({ids.column: ids.values.to_pandas(), **columns})

    def overlap_sentence(self) -> str:
        """The warning about metrics with too much weight on pairs without overlap; "" if there are none."""
        return overlap_sentence({metric.name: metric.overlap_share for metric in self.values()})

    def __repr__(self) -> str:
        means = ", ".join(f"{metric.name} {number(metric.mean)}" for metric in self.values())
        return f"Result({means}; measured by {self.gains_name})"

    def __str__(self) -> str:
        return "\n".join([*wrapped(filter(None, [self.verdict_sentence()])), *self._table(), *self._remarks()])

    def _table(self) -> list[str]:
        several = len(self.times) > 1
        rows = [["metric", "mean", *(["± over times"] if several else []), "95 % interval"]]
        for metric in self.values():
            spread = [number(metric.std)] if several else []
            rows.append([metric.name, number(metric.mean), *spread, span(metric.interval())])
        return aligned(rows)

    def _remarks(self) -> list[str]:
        sentences = [(metric.name, metric.sentence()) for metric in self.values()]
        remarks = [f"{name}: {sentence}" for name, sentence in sentences if sentence]
        if self.unknown_users:
            remarks.append(f"{plural(self.unknown_users, 'user')} unknown to the ranker: all items tied")
        if self.unknown_items:
            remarks.append(f"{plural(self.unknown_items, 'item')} unknown to the ranker: ranked last, tied")
        return wrapped([*remarks, *filter(None, (self.overlap_sentence(), self.training_log))])


def metric_row(metric: MetricResult, level: float, threads: int | None) -> dict[str, Any]:
    """A metric as a row of a frame."""
    low, high = metric.interval(level, threads=threads)
    verdict = metric.verdict
    judged = {} if verdict is None else {"believe": verdict.believe, "reason": verdict.reason}
    return {
        "metric": metric.name,
        "mean": metric.mean,
        "std": metric.std,
        "low": low,
        "high": high,
        "smaller_is_better": metric.smaller_is_better,
        "overlap_share": np.nan if metric.overlap_share is None else metric.overlap_share,
        **judged,
    }
