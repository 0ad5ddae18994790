"""Intervals and verdicts on a cluster: workers tally the rows of their users, the driver adds the tallies up.

As on one machine this happens when an interval or a verdict is first asked for, in a pass over log and scores.
Users are cut into groups by the size of the log alone, so that the numbers do not depend on the number of workers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np

from taurank.cluster.evaluating import Rows, group_log
from taurank.cluster.grouping import send_rows
from taurank.data.ids import Catalog, Codes
from taurank.errors import InputError
from taurank.estimation.estimators import Estimator
from taurank.evaluation.assessment import Assessment
from taurank.evaluation.events import EventSums
from taurank.evaluation.metrics import Metric
from taurank.evaluation.rankers import ranking_of
from taurank.evaluation.reach import rows_within
from taurank.evaluation.tallies import IPS, SNIPS, TalliedEvidence, Tally, added, events_of, tally
from taurank.evaluation.uncertainty import Uncertainty
from taurank.evaluation.verdicts import Case

ROWS_PER_GROUP = 1 << 20
MIN_GROUPS = 8


class AssessTask(NamedTuple):
    """A group of users whose rows to tally."""

    users: Codes  # positions in the catalog, in order
    timed: bool
    share: float
    formulas: list[Metric]
    estimator: Estimator
    n: int  # users × times of the whole log


def tally_group(task: AssessTask, catalog: Catalog, rankers: tuple[Any], *rows: Rows) -> list[Tally]:
    """A tally of each metric."""
    log = group_log(task.users, catalog, task.timed, task.share, rows)
    within = rows_within(ranking_of(rankers[0], log.users, log.items), log, task.formulas, 1)
    return [tally(log, *reach, task.estimator, task.n) for reach in within]


def pair_sums(task: AssessTask, catalog: Catalog, rankers: tuple[Any, Any], *rows: Rows) -> EventSums:
    """The sums over the events of the paired difference of two rankings, by the first metric."""
    log = group_log(task.users, catalog, task.timed, task.share, rows)
    first, second = (
        events_of(log, *rows_within(ranking_of(one, log.users, log.items), log, task.formulas, 1)[0],
                  task.estimator, task.n)
        for one in rankers
    )  # fmt: skip
    return EventSums.of(first.minus(second))


@dataclass(frozen=True, eq=False)
class ClusterAssessment(Assessment):
    """``Assessment`` by gains of a ``ClusterLog``, which ``log`` is; ``ranking`` is the ranker."""

    @classmethod
    def of(cls, log: Any, ranker: Any, formulas: list[Metric], estimator: Estimator, trained: bool) -> Self:
        return cls(ranker, log, formulas, estimator, trained)

    @cached_property
    def evidence(self) -> dict[str, TalliedEvidence]:
        log: Any = self.log
        groups = self._groups()
        by_group = self._each(tally_group, groups, (self.ranking,), self.formulas)
        by_metric = zip(self.formulas, zip(*by_group, strict=True), strict=True)
        return {
            formula.name: TalliedEvidence(
                added(list(zip(groups, tallies, strict=True)), log.catalog), formula, log.catalog,
                float(log.summary.positives),
            )
            for formula, tallies in by_metric
        }  # fmt: skip

    def answer(self, metric: str, estimator: Estimator | None = None, users: Any = None) -> Uncertainty:
        if users is not None:
            raise InputError("on a cluster an estimate is that of all users; split them on one machine (Log.read).")
        key = (metric, (estimator or self.estimator).name)
        if key not in self._answers:
            one = self.evidence[metric].answer(estimator)
            parts = (one.per_user, one.per_time, one.events, one.unit, one.limits, one.visits)
            self._answers[key] = _Paired(*parts, self, metric)
        return self._answers[key]

    def _case(self, metric: str, level: float, users: Any) -> Case:
        others = [(one.name, self.answer(metric, one)) for one in (SNIPS, IPS) if one.name != self.estimator.name]
        return Case(self.answer(metric), others, self.evidence[metric], level, self.trained_here)

    def difference_sums(self, other: Assessment, metric: str) -> EventSums:
        """Of the paired difference of two rankings."""
        formulas = [formula for formula in self.formulas if formula.name == metric]
        return EventSums.added(self._each(pair_sums, self._groups(), (self.ranking, other.ranking), formulas))

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "log": None}

    def _groups(self) -> list[Codes]:
        log: Any = self.log
        if log is None or not log.cluster.open:
            raise InputError(
                "the connection this log was read with is closed; ask for intervals and verdicts inside "
                "`with connect(…)`."
            )
        users = np.arange(log.n_users, dtype=np.int32)
        count = min(max(MIN_GROUPS, -(-len(log) // ROWS_PER_GROUP)), max(1, log.n_users))
        return list(np.array_split(users, count))

    def _each(
        self, function: Callable[..., Any], groups: list[Codes], rankers: tuple[Any, ...], formulas: list[Metric]
    ) -> list[Any]:
        log: Any = self.log
        n = max(log.n_users * log.n_times, 1)
        facts = (log.summary.timed, log.treated_share, formulas, self.estimator, n)
        shared = log.cluster.pool.put(rankers)
        return send_rows(log, groups, function, [(AssessTask(users, *facts), log.shared, shared) for users in groups])


@dataclass(frozen=True, eq=False)
class _Paired(Uncertainty):
    """Sums alone cannot be subtracted: a difference is tallied by another pass over both rankings."""

    assessment: Any = None
    metric: str = ""

    def minus(self, other: Uncertainty) -> Uncertainty:
        assert isinstance(other, _Paired)
        return self.difference(other, self.assessment.difference_sums(other.assessment, self.metric))
