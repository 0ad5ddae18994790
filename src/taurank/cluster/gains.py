"""Gains of a cluster's log: an estimator that runs where the rows are, and ``evaluate`` by it.

Users are measured in the blocks of ``taurank.evaluate``, each on one worker, and the sums of the blocks are added in
their order: the numbers are the same, bit for bit.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from taurank._types import Codes, Floats, Mask
from taurank.cluster.assessment import ClusterAssessment
from taurank.cluster.groups import by_group
from taurank.cluster.pieces import Piece, read_part
from taurank.cluster.rows import ClusterRows
from taurank.data.ids import Catalog
from taurank.data.log import Log
from taurank.data.remote import RemoteGains
from taurank.errors import InputError
from taurank.estimation import gains as estimators
from taurank.estimation.estimators import LoggedPairs
from taurank.estimation.gains import Gains
from taurank.evaluation.measurement import Measurement, Unlisted
from taurank.evaluation.metrics import Metric
from taurank.evaluation.rankers import LearnerRanking, Ranker, ranker_of, ranking_of
from taurank.evaluation.ranking_tables import TableRanker
from taurank.evaluation.results import Result
from taurank.learners.options import choose_users

GROUPS_PER_WORKER = 4


class Estimate(NamedTuple):
    """A function of ``taurank.gains`` and its options."""

    name: str
    options: Mapping[str, Any]

    def of(self, log: Log) -> Gains:
        gains: Gains = getattr(estimators, self.name)(log, **self.options)
        return gains


class ClusterGains(RemoteGains):
    """What an estimator makes of a cluster's log, computed when it is measured by."""

    def __init__(self, log: ClusterRows, estimate: Estimate) -> None:
        self.log, self.estimate = log, estimate
        self.log_fingerprint = log.fingerprint
        self.empty = _empty(log, self.estimate)  # also refuses wrong options, and a log without propensities
        self.name, self.kind = self.empty.name, self.empty.kind

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

    def users_with(self, rows: bool) -> Mask:
        """Which users have gains, or any row."""
        log, has = self.log, np.zeros(self.log.n_users, np.bool_)
        tasks = [(piece, log.shared, log.treated_share, self.estimate, rows) for piece in log.pieces]
        for users in log.cluster.pool.map(_users_with, tasks):
            has[users] = True
        return has

    def measurement(self, metrics: Any, unlisted: Any, unit: Any, threads: int | None) -> ClusterMeasurement:
        return ClusterMeasurement(self, Measurement.of(self.empty, metrics, unlisted, unit, threads))


def _users_with(piece: Piece, catalog: Catalog, share: float, estimate: Estimate, rows: bool) -> Codes:
    part = read_part(piece, catalog, share)
    if rows:
        return np.unique(part.user)
    gains = estimate.of(part)
    return np.unique(gains.user[gains.value != 0])


def _empty(log: ClusterRows, estimate: Estimate) -> Gains:
    """The gains of a log without rows, but with this catalog."""
    nothing = np.empty(0, np.int32)
    propensity = np.empty(0) if log.summary.has_propensity else None
    rows = Log(log.catalog, nothing, nothing, nothing, np.empty(0, np.int8), np.empty(0, np.int8), propensity)
    gains = estimate.of(replace(rows, timed=log.summary.timed))
    gains.__dict__["log_fingerprint"] = log.fingerprint
    return gains


class ClusterMeasurement:
    """``Measurement`` for gains that are elsewhere."""

    def __init__(self, gains: ClusterGains, whole: Measurement) -> None:
        self.gains, self.log, self.whole, self.formulas = gains, gains.log, whole, whole.formulas

    def first_metric(self) -> ClusterMeasurement:
        return ClusterMeasurement(self.gains, self.whole.first_metric())

    def result(self, ranker: Any) -> Result:
        ready = ranker_of(ranker)
        if not hasattr(ready, "score_block"):
            raise InputError(
                "an array of scores is measured on one machine; on a cluster, evaluate a model or a table."
            )
        if isinstance(ready, TableRanker) and self.whole.unlisted is None:
            ready.check_depth(self.formulas, self.log.users, self.log.items)
        ranking = LearnerRanking(ready, self.log.users, self.log.items)
        groups = self._groups(ranking)
        facts = (self.log.cluster.pool.put(ready), self.gains.estimate, self.log.summary.lacks_overlap,
                 self.formulas, self.whole.unlisted)  # fmt: skip
        per_user, per_time = self.whole.no_sums()
        for users, (sums, blocks) in zip(
            groups, by_group(self.log, groups, _measure, [facts] * len(groups)), strict=True
        ):
            per_user[:, :, users] = sums
            for block in blocks:
                per_time += block
        unknown = (ranking.unknown_users, ranking.unknown_items)
        return self.whole.summarize(ready, unknown, (per_user, per_time), self._assessment(ready))

    def _assessment(self, ranker: Ranker) -> ClusterAssessment | None:
        """As on one machine: None if the gains are not an estimate, or if a metric is not a weighted sum."""
        estimator = self.gains.empty.estimator
        if estimator is None or self.gains.chosen is not None or any(formula.area for formula in self.formulas):
            return None
        return ClusterAssessment.of(self.log, ranker, self.formulas, estimator, self.whole.trained_here(ranker))

    def _groups(self, ranking: LearnerRanking) -> list[Codes]:
        """Groups of whole blocks; users that the ranker knows and those that it does not are apart."""
        blocks = list(ranking.blocks(self._needed()))
        most = -(-len(blocks) // (GROUPS_PER_WORKER * self.log.cluster.workers)) or 1
        groups: list[list[Any]] = []
        for block in blocks:
            known = bool(block.at_ranker[0] >= 0)
            if not groups or len(groups[-1]) == most or bool(groups[-1][-1].at_ranker[0] >= 0) != known:
                groups.append([])
            groups[-1].append(block)
        return [np.concatenate([block.users for block in group]) for group in groups]

    def _needed(self) -> Mask:
        if self.gains.chosen is None:
            return self.gains.users_with(rows=self.log.summary.lacks_overlap and self.gains.kind != "outcome")
        needed = np.zeros(self.log.n_users, np.bool_)
        needed[self.gains.chosen] = True
        return needed


def _measure(
    log: Log, ranker: Ranker, estimate: Estimate, lacks_overlap: bool, formulas: list[Metric], unlisted: Unlisted | None
) -> tuple[Floats, list[Floats]]:
    """The sums of every user of a group, and those over time of each of its blocks."""
    gains = estimate.of(log)
    extreme = gains.extreme
    if lacks_overlap and extreme is not None:  # decided for the whole log, not for this group
        pairs = LoggedPairs.of(log.user, log.item, extreme, log.n_users, log.n_items)
        gains.__dict__["overlap"] = pairs
    measurement = Measurement.of(gains, formulas, unlisted, "time", 1)
    per_user, _ = measurement.no_sums()
    ranking = ranking_of(ranker, gains.users, gains.items)
    return per_user, list(measurement.block_sums(ranking, per_user))
