"""Gains of a cluster's log: an estimator that runs where the rows are, and ``evaluate`` by it.

Users are measured in the blocks of ``taurank.evaluate``, each on one worker, and the sums of the blocks are added in
their order: the numbers are the same, bit for bit.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from taurank.cluster.assessing import ClusterAssessment
from taurank.cluster.evaluating import Estimate, MeasureTask, measure_group, needed_users
from taurank.cluster.grouping import send_rows
from taurank.data.ids import Codes
from taurank.data.log import Log
from taurank.data.remote import RemoteGains
from taurank.errors import InputError
from taurank.estimation.gains import Gains
from taurank.evaluation.measurement import Measurement
from taurank.evaluation.rankers import LearnerRanking, ranker_of
from taurank.evaluation.ranking_tables import TableRanker
from taurank.evaluation.results import Result
from taurank.learners.options import choose_users

GROUPS_PER_WORKER = 4


class ClusterGains(RemoteGains):
    """What an estimator makes of a ``ClusterLog``, computed when it is measured by."""

    def __init__(self, log: Any, estimator: str, options: Mapping[str, Any]) -> None:
        self.log, self.estimate = log, Estimate(estimator, dict(options))
        self.chosen: Codes | None = None  # users to measure; None: all
        self.log_fingerprint = log.fingerprint
        self.empty = _empty(log, self.estimate)  # also refuses wrong options, and a log without propensities
        self.name, self.kind = self.empty.name, self.empty.kind
        self.users, self.items, self.times = log.users, log.items, log.times

    def __repr__(self) -> str:
        return f"ClusterGains({self.name} of {self.log!r})"

    @property
    def fingerprint(self) -> str:
        text = f"{self.log.fingerprint} {self.estimate.name} {sorted(self.estimate.options.items())}"
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def some_users(self, count: int, seed: int) -> ClusterGains:
        """Gains of ``count`` random users of those that have any."""
        users = np.flatnonzero(self.users_with(rows=False))
        if len(users) <= count:
            return self
        sample = copy.copy(self)
        sample.chosen = choose_users(users.astype(np.int32), count, seed)
        return sample

    def users_with(self, rows: bool) -> npt.NDArray[np.bool_]:
        """Which users have gains, or any row."""
        log, has = self.log, np.zeros(self.log.n_users, np.bool_)
        tasks = [(piece, log.shared, log.treated_share, self.estimate, rows) for piece in log.pieces]
        for users in log.cluster.pool.map(needed_users, tasks):
            has[users] = True
        return has

    def measurement(self, metrics: Any, unlisted: Any, unit: Any, threads: int | None) -> ClusterMeasurement:
        return ClusterMeasurement(self, metrics, Measurement.of(self.empty, metrics, unlisted, unit, threads))


class ClusterMeasurement:
    """``Measurement`` for gains that are elsewhere."""

    def __init__(self, gains: ClusterGains, metrics: Any, whole: Measurement) -> None:
        self.gains, self.metrics, self.whole = gains, metrics, whole
        self.formulas = whole.formulas

    def first_metric(self) -> ClusterMeasurement:
        first = replace(self.whole, formulas=self.whole.formulas[:1])
        return ClusterMeasurement(self.gains, first.formulas, first)

    def result(self, ranker: Any) -> Result:
        ready = ranker_of(ranker)
        if not hasattr(ready, "score_block"):
            raise InputError(
                "an array of scores is measured on one machine; on a cluster, evaluate a model or a table."
            )
        if isinstance(ready, TableRanker) and self.whole.unlisted is None:
            ready.check_depth(self.formulas, self.gains.users, self.gains.items)
        ranking = LearnerRanking(ready, self.gains.users, self.gains.items)
        groups = self._groups(ranking)
        per_user, per_time = self.whole.no_sums()
        for users, (sums, blocks) in zip(groups, self._measured(ready, groups), strict=True):
            per_user[:, :, users] = sums
            for block in blocks:
                per_time += block
        unknown = (ranking.unknown_users, ranking.unknown_items)
        return self.whole.summarize(ready, unknown, (per_user, per_time), self._assessment(ready))

    def _assessment(self, ranker: Any) -> ClusterAssessment | None:
        """As on one machine: None if the gains are not an estimate, or if a metric is not a weighted sum."""
        estimator = self.gains.empty.estimator
        if estimator is None or self.gains.chosen is not None or any(formula.area for formula in self.formulas):
            return None
        return ClusterAssessment.of(self.gains.log, ranker, self.formulas, estimator, self.whole.trained_here(ranker))

    def _groups(self, ranking: LearnerRanking) -> list[Codes]:
        """Groups of whole blocks; users that the ranker knows and those that it does not are apart."""
        log = self.gains.log
        blocks = list(ranking.blocks(self._needed()))
        most = -(-len(blocks) // (GROUPS_PER_WORKER * log.cluster.workers)) or 1
        groups: list[list[Any]] = []
        for block in blocks:
            known = bool(block.at_ranker[0] >= 0)
            if not groups or len(groups[-1]) == most or bool(groups[-1][-1].at_ranker[0] >= 0) != known:
                groups.append([])
            groups[-1].append(block)
        return [np.concatenate([block.users for block in group]) for group in groups]

    def _needed(self) -> Any:
        if self.gains.chosen is None:
            return self.gains.users_with(rows=self.gains.log.summary.lacks_overlap and self.gains.kind != "outcome")
        needed = np.zeros(self.gains.log.n_users, np.bool_)
        needed[self.gains.chosen] = True
        return needed

    def _measured(self, ranker: Any, groups: list[Codes]) -> list[Any]:
        log, pool = self.gains.log, self.gains.log.cluster.pool
        shared = pool.put(ranker)
        metrics = list(self.formulas)

        def task(users: Codes) -> MeasureTask:
            facts = (log.summary.timed, log.treated_share, self.gains.estimate, log.summary.lacks_overlap)
            return MeasureTask(users, *facts, metrics, self.whole.unlisted)

        return send_rows(log, groups, measure_group, [(task(users), log.shared, shared) for users in groups])


def _empty(log: Any, estimate: Estimate) -> Gains:
    """The gains of a log without rows, but with this catalog."""
    nothing = np.empty(0, np.int32)
    propensity = np.empty(0) if log.summary.has_propensity else None
    rows = Log(log.catalog, nothing, nothing, nothing, np.empty(0, np.int8), np.empty(0, np.int8), propensity)
    gains = estimate.of(replace(rows, timed=log.summary.timed))
    gains.__dict__["log_fingerprint"] = log.fingerprint
    return gains
