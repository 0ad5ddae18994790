"""Intervals and verdicts on a cluster: workers tally the rows of their users, the driver adds the tallies up.

Users are cut into groups by the size of the log alone, so that the numbers do not depend on the number of workers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Never

import numpy as np

from taurank._types import Codes, Floats, Longs
from taurank.cluster.evaluating import Rows, group_log
from taurank.cluster.grouping import send_rows
from taurank.cluster.tallies import Tally, added, added_events, events_of, evidence_of, tally
from taurank.data.ids import Catalog
from taurank.data.log import Log
from taurank.errors import InputError
from taurank.estimation.estimators import Estimator
from taurank.evaluation.events import EventSums
from taurank.evaluation.evidence import Evidence
from taurank.evaluation.intervals import Estimate
from taurank.evaluation.measurement import logged_cells
from taurank.evaluation.metrics import Metric
from taurank.evaluation.rankers import ranking_of
from taurank.evaluation.weights import CellWeights

ROWS_PER_GROUP = 1 << 20
MIN_GROUPS = 8


class AssessTask(NamedTuple):
    """A group of users whose rows to tally."""

    users: Codes  # positions in the catalog, in order
    timed: bool
    share: float
    metrics: list[Metric]
    estimator: Estimator
    n: int  # users × times of the whole log


def tally_group(task: AssessTask, catalog: Catalog, rankers: tuple[Any], *rows: Rows) -> list[Tally]:
    """A tally of each metric."""
    log = group_log(task.users, catalog, task.timed, task.share, rows)
    return [tally(log, *weighed, task.estimator, task.n) for weighed in _weighed(log, rankers[0], task.metrics)]


def pair_sums(task: AssessTask, catalog: Catalog, rankers: tuple[Any, Any], *rows: Rows) -> EventSums:
    """The sums over the events of the paired difference of two rankings, by the first metric."""
    log = group_log(task.users, catalog, task.timed, task.share, rows)
    first, second = (events_of(log, *_weighed(log, one, task.metrics)[0], task.estimator, task.n) for one in rankers)
    return EventSums.of(first.minus(second))


def _weighed(log: Log, ranker: Any, metrics: list[Metric]) -> list[tuple[Longs, Floats]]:
    """The rows that each metric weighs, and their weights."""
    rows, cells = logged_cells(log)
    weights, _ = CellWeights(log.eligibility, cells, metrics).weigh(ranking_of(ranker, log.users, log.items), 1)
    return [(rows[weight != 0], weight[weight != 0]) for weight in weights]


@dataclass(frozen=True, eq=False)
class Assessment:
    """``WeighedRows`` of a ``ClusterLog``: one metric of one ranking, tallied by the workers."""

    log: Any
    ranker: Any
    metric: Metric
    tally: Tally

    @classmethod
    def of(cls, log: Any, ranker: Any, metrics: list[Metric], estimator: Estimator) -> list[Assessment]:
        groups = _groups(log)
        by_group = _each(log, tally_group, groups, (ranker,), metrics, estimator)
        return [
            cls(log, ranker, metric, added(list(zip(groups, tallies, strict=True)), log.n_users))
            for metric, tallies in zip(metrics, zip(*by_group, strict=True), strict=True)
        ]

    def evidence(self, own: Estimator) -> Evidence:
        return evidence_of(self.tally, self.metric, self.log.catalog, float(self.log.summary.positives))

    def minus(self, other: Assessment, estimator: Estimator, own: Estimate, others: Estimate) -> Estimate:
        """The paired difference, by another pass over both rankings."""
        rankers, groups = (self.ranker, other.ranker), _groups(self.log)
        parts = _each(self.log, pair_sums, groups, rankers, [self.metric], estimator)
        return own.minus(others, added_events(parts))

    def of_users(self, users: Any) -> Never:
        raise InputError("on a cluster an estimate is that of all users; split them on one machine (Log.read).")

    def by_caps(self, own: Estimator) -> Never:
        raise InputError("on a cluster estimators cannot be shown side by side; evaluate on one machine (Log.read).")


def _groups(log: Any) -> list[Codes]:
    users = np.arange(log.n_users, dtype=np.int32)
    count = min(max(MIN_GROUPS, -(-len(log) // ROWS_PER_GROUP)), max(1, log.n_users))
    return list(np.array_split(users, count))


def _each(
    log: Any, function: Callable[..., Any], groups: list[Codes], rankers: tuple[Any, ...], metrics: list[Metric],
    estimator: Estimator,
) -> list[Any]:  # fmt: skip
    facts = (log.summary.timed, log.treated_share, metrics, estimator, max(log.n_users * log.n_times, 1))
    shared = log.cluster.pool.put(rankers)
    return send_rows(log, groups, function, [(AssessTask(users, *facts), log.shared, shared) for users in groups])
