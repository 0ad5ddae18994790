"""Estimates, intervals and verdicts on a cluster: workers tally the rows of their users, the driver adds them up.

Users are cut into groups by the size of the log alone, and groups are added up in their order, so that the numbers
never depend on who counted; they agree with those of one machine but for the rounding of sums.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Never, TypeVar

import numpy as np

from taurank._types import Codes, Floats, Longs
from taurank.cluster.groups import by_group
from taurank.cluster.rows import ClusterRows
from taurank.data.eligibility import Eligibility
from taurank.data.log import Log
from taurank.errors import InputError
from taurank.estimation.estimators import Estimator
from taurank.evaluation.events import EventSums
from taurank.evaluation.evidence import Evidence, Lists, Tally, events_of
from taurank.evaluation.intervals import Estimate, Visits
from taurank.evaluation.measurement import logged_cells
from taurank.evaluation.metrics import Metric
from taurank.evaluation.rankers import Ranker, Ranking
from taurank.evaluation.weights import CellWeights, list_weights

ROWS_PER_GROUP = 1 << 20
MIN_GROUPS = 8
T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class TalliedValue:
    """``EstimatedValue`` of a ``ClusterLog``: one metric of one ranking, tallied by the workers."""

    log: ClusterRows
    ranker: Ranker
    metric: Metric
    estimator: Estimator
    evidence: Evidence

    @classmethod
    def of(cls, log: ClusterRows, ranker: Ranker, metrics: list[Metric], estimator: Estimator) -> list[TalliedValue]:
        tallies = _each(log, _tallies, (ranker,), metrics, estimator)
        everything = Eligibility.everything(log.catalog)
        (listed, largest), visits, values = list_weights(everything, metrics), Visits.of(everything), []
        for m, metric in enumerate(metrics):
            bounded = not (metric.unscaled(log.n_items) < 0).any()
            lists = Lists(
                listed.sums(m), (np.zeros(1), np.zeros(1)), float(largest[m]), bounded, visits,
                float(log.summary.positives),
            )  # fmt: skip
            evidence = Evidence(Tally.added([parts[m] for parts in tallies]), lists, estimator.normalized)
            values.append(cls(log, ranker, metric, estimator, evidence))
        return values

    @property
    def spread(self) -> Estimate:
        return self.evidence.own

    @property
    def overlap_share(self) -> float:
        return self.evidence.overlap_share

    def minus(self, other: TalliedValue) -> Estimate:
        """The paired difference, by another pass over both rankings."""
        rankers, constants = (self.ranker, other.ranker), (self.evidence.constant, other.evidence.constant)
        parts = _each(self.log, _difference, rankers, [self.metric], self.estimator, constants)
        return self.spread.minus(other.spread, EventSums.added(parts))

    def of_users(self, users: Any) -> Never:
        raise InputError("on a cluster an estimate is that of all users; split them on one machine (Log.read).")

    @property
    def smallest_propensity(self) -> Never:
        raise InputError("on a cluster estimators cannot be shown side by side; evaluate on one machine (Log.read).")


def _each(
    log: ClusterRows, function: Callable[..., T], rankers: tuple[Ranker, ...], metrics: list[Metric],
    estimator: Estimator, *more: Any,
) -> list[T]:  # fmt: skip
    """What a function returns for each group of users, which is cut by the size of the log alone."""
    count = min(max(MIN_GROUPS, -(-len(log) // ROWS_PER_GROUP)), max(1, log.n_users))
    groups: list[Codes] = list(np.array_split(np.arange(log.n_users, dtype=np.int32), count))
    task = (log.cluster.pool.put(rankers), metrics, estimator, max(log.n_users * log.n_times, 1), *more)
    return by_group(log, groups, function, [task] * len(groups))


def _tallies(log: Log, rankers: tuple[Ranker], metrics: list[Metric], estimator: Estimator, n: int) -> list[Tally]:
    """A tally of each metric; ``n`` is the number of users and times of the whole log."""
    return [Tally.of(log, *weighed, estimator, n, with_pairs=True) for weighed in _weighed(log, rankers[0], metrics)]


def _difference(
    log: Log, rankers: tuple[Ranker, Ranker], metrics: list[Metric], estimator: Estimator, n: int,
    constants: tuple[float, float],
) -> EventSums:  # fmt: skip
    """The sums over the events of the paired difference of two rankings, by the first metric."""
    first, second = (
        events_of(log, *_weighed(log, ranker, metrics)[0], estimator, n, constant)
        for ranker, constant in zip(rankers, constants, strict=True)
    )
    return EventSums.of(first.minus(second))


def _weighed(log: Log, ranker: Ranker, metrics: list[Metric]) -> list[tuple[Longs, Floats]]:
    """The rows that each metric weighs, and their weights."""
    rows, cells = logged_cells(log)
    weights, _ = CellWeights(log.eligibility, cells, metrics).weigh(Ranking(ranker, log.users, log.items), 1)
    return [(rows[weight != 0], weight[weight != 0]) for weight in weights]
