"""Gains of a cluster's log: an estimator that runs where the rows are, and ``evaluate`` by it.

Users are measured in the blocks of ``taurank.evaluate``, each on one worker, and the sums of the blocks are added in
their order: the numbers do not depend on how many workers there are.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from taurank._types import Codes, Floats, Mask
from taurank.cluster.groups import by_group
from taurank.cluster.pieces import Piece, read_part
from taurank.cluster.rows import ClusterRows
from taurank.cluster.tallies import TalliedRows
from taurank.data.ids import Catalog
from taurank.data.log import Log
from taurank.data.remote import RemoteGains
from taurank.errors import InputError
from taurank.estimation import gains as estimators
from taurank.estimation.gains import Gains
from taurank.evaluation.measurement import Measured, Measurement
from taurank.evaluation.metrics import Metric
from taurank.evaluation.rankers import Block, LearnerRanking, Ranker, ranking_of
from taurank.evaluation.weights import BlockSums
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

    def measurement(self, metrics: Any, unlisted: Any) -> ClusterMeasurement:
        whole = Measurement.prepare(self.empty, metrics, unlisted=unlisted)
        return ClusterMeasurement(whole.gains, whole.metrics, whole.unlisted, self.chosen, source=self)


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


@dataclass(frozen=True, eq=False)
class ClusterMeasurement(Measurement):
    """``Measurement`` for gains that are elsewhere; its own ``gains`` have the catalog and no rows."""

    source: ClusterGains = None  # type: ignore[assignment]  # a field behind others with defaults

    def means(self, ranker: Any, threads: int | None = None) -> dict[str, float]:
        per_user, per_time, _ = self._measured(*self._learner(ranker), self.source.users_with(rows=False))
        return {m.name: self._mean(*means) for m, *means in zip(self.metrics, per_user, per_time, strict=True)}

    def measure(self, ranker: Any, workers: int) -> Measured:
        log, (ready, ranking) = self.source.log, self._learner(ranker)
        unknown, trained = (ranking.unknown_users, ranking.unknown_items), self.is_trained_here(ready)
        if self.gains.estimator is not None:
            return Measured(*unknown, trained, TalliedRows.of(log, ready, self.metrics, self.gains.estimator))
        needed = self.source.users_with(rows=log.summary.lacks_overlap and self.gains.kind != "outcome")
        per_user, per_time, overlap = self._measured(ready, ranking, needed)
        return Measured(*unknown, trained, (), per_user, per_time, overlap)

    def _learner(self, ranker: Any) -> tuple[Ranker, LearnerRanking]:
        ready, ranking = self._ranking(ranker)
        if not isinstance(ranking, LearnerRanking):
            raise InputError(
                "an array of scores is measured on one machine; on a cluster, evaluate a model or a table."
            )
        return ready, ranking

    def _measured(
        self, ranker: Ranker, ranking: LearnerRanking, needed: Mask
    ) -> tuple[Floats, Floats, list[float | None]]:
        log = self.source.log
        if self.users is not None:
            needed = np.zeros(log.n_users, np.bool_)
            needed[self.users] = True
        groups, shared = self._groups(ranking, needed), log.cluster.pool.put(ranker)
        task = (shared, self.source.estimate, log.summary.lacks_overlap, self.metrics, self.unlisted)
        results = by_group(log, groups, _sums, [task] * len(groups))
        sums = np.zeros((len(results[0][0]) if results else 1, len(self.metrics), log.n_users))
        for users, (own, _) in zip(groups, results, strict=True):
            sums[:, :, users] = own
        return self.summarize(sums, [block for _, blocks in results for block in blocks])

    def _groups(self, ranking: LearnerRanking, needed: Mask) -> list[Codes]:
        """Groups of whole blocks; users that the ranker knows and those that it does not are apart."""
        blocks = list(ranking.blocks(needed))
        most = -(-len(blocks) // (GROUPS_PER_WORKER * self.source.log.cluster.workers)) or 1
        groups: list[list[Block]] = []
        for block in blocks:
            known = bool(block.at_ranker[0] >= 0)
            if not groups or len(groups[-1]) == most or bool(groups[-1][-1].at_ranker[0] >= 0) != known:
                groups.append([])
            groups[-1].append(block)
        return [np.concatenate([block.users for block in group]) for group in groups]


def _sums(
    log: Log, ranker: Ranker, estimate: Estimate, lacks_overlap: bool, metrics: list[Metric], unlisted: str | None
) -> BlockSums:
    """The sums of every user of a group, and those over time of each of its blocks."""
    gains = estimate.of(log)
    measurement = Measurement.prepare(gains, metrics, unlisted=unlisted)
    measurement = replace(measurement, with_pairs=lacks_overlap)  # decided for the whole log, not for this group
    return measurement.sums(ranking_of(ranker, gains.users, gains.items), 1)
