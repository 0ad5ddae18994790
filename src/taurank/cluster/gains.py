"""Gains of a cluster's log: an estimator that runs where the rows are, and ``evaluate`` by it.

Users are measured in the blocks of ``taurank.evaluate``, each on one worker, and the sums of the blocks are added in
their order: the numbers do not depend on how many workers there are.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from taurank._types import Codes, Mask
from taurank.cluster.groups import by_group
from taurank.cluster.pieces import Piece, read_part
from taurank.cluster.rows import ClusterRows
from taurank.cluster.tallies import TalliedValue
from taurank.data.ids import Catalog
from taurank.data.log import Log
from taurank.data.remote import RemoteGains
from taurank.errors import InputError
from taurank.estimation import gains as estimators
from taurank.estimation.gains import Gains
from taurank.evaluation.measurement import GainSums, Measurement
from taurank.evaluation.metrics import Metric
from taurank.evaluation.rankers import Block, Ranker, Ranking
from taurank.learners.options import choose_users

MAX_GROUPS = 64  # whatever the number of workers, so that sums by time do not depend on it


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
        users = np.flatnonzero(self.users_with_gains())
        if len(users) <= count:
            return self
        sample = copy.copy(self)
        sample.chosen = choose_users(users.astype(np.int32), count, seed)
        return sample

    def users_with_gains(self) -> Mask:
        log, has = self.log, np.zeros(self.log.n_users, np.bool_)
        tasks = [(piece, log.shared, log.treated_share, self.estimate) for piece in log.pieces]
        for users in log.cluster.pool.map(_users_with_gains, tasks):
            has[users] = True
        return has

    def measurement(self, metrics: Any, unlisted: Any) -> ClusterMeasurement:
        whole = Measurement.prepare(self.empty, metrics, unlisted=unlisted)
        return ClusterMeasurement(whole.gains, whole.metrics, whole.unlisted, self.chosen, source=self)


def _users_with_gains(piece: Piece, catalog: Catalog, share: float, estimate: Estimate) -> Codes:
    gains = estimate.of(read_part(piece, catalog, share))
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

    def sums(self, ranking: Ranking, workers: int) -> GainSums:
        log, ranker = self.source.log, _remote(ranking)
        needed = self.source.users_with_gains()
        if self.users is not None:
            needed = np.zeros(log.n_users, np.bool_)
            needed[self.users] = True
        groups = self._groups(ranking, needed)
        task = (log.cluster.pool.put(ranker), self.source.estimate, self.metrics, self.unlisted)
        results = by_group(log, groups, _sums, [task] * len(groups))
        per_user = np.zeros((len(self.metrics), log.n_users))
        per_time = np.zeros((len(self.metrics), log.n_times))
        for users, (by_user, by_time) in zip(groups, results, strict=True):
            per_user[:, users] = by_user
            per_time += by_time
        return per_user, per_time

    def estimated(self, ranking: Ranking, workers: int) -> Sequence[Any]:
        assert self.gains.estimator is not None
        return TalliedValue.of(self.source.log, _remote(ranking), self.metrics, self.gains.estimator)

    def _groups(self, ranking: Ranking, needed: Mask) -> list[Codes]:
        """Groups of whole blocks; users that the ranker knows and those that it does not are apart."""
        blocks = list(ranking.blocks(needed))
        most = -(-len(blocks) // MAX_GROUPS) or 1
        groups: list[list[Block]] = []
        for block in blocks:
            known = bool(block.at_ranker[0] >= 0)
            if not groups or len(groups[-1]) == most or bool(groups[-1][-1].at_ranker[0] >= 0) != known:
                groups.append([])
            groups[-1].append(block)
        return [np.concatenate([block.users for block in group]) for group in groups]


def _remote(ranking: Ranking) -> Ranker:
    if ranking.is_array:
        raise InputError("an array of scores is measured on one machine; on a cluster, evaluate a model or a table.")
    ranker: Ranker = ranking.ranker
    return ranker


def _sums(log: Log, ranker: Ranker, estimate: Estimate, metrics: list[Metric], unlisted: str | None) -> GainSums:
    gains = estimate.of(log)
    measurement = Measurement.prepare(gains, metrics, unlisted=unlisted)
    return measurement.sums(Ranking(ranker, gains.users, gains.items), 1)
