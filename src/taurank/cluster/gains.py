"""Gains of a cluster's log: an estimator that runs where the rows are, and ``evaluate`` by it.

Users are cut into groups by the size of the log alone, and what workers add up for each group is added up in their
order: the numbers never depend on who counted, and agree with those of one machine but for the rounding of sums.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Never, TypeVar

import numpy as np

from taurank._types import Codes, Floats, Longs
from taurank.cluster.pieces import ClusterRows, Piece, Whole, read_part
from taurank.data.eligibility import Eligibility
from taurank.data.log import Log
from taurank.data.remote import RemoteGains
from taurank.errors import InputError
from taurank.estimation import gains as estimators
from taurank.estimation.estimators import Estimator
from taurank.estimation.gains import Gains
from taurank.evaluation.evidence import Evidence, Lists, Tally, events_of
from taurank.evaluation.intervals import Estimate, Moments
from taurank.evaluation.measurement import GainSums, Measurement, logged_cells
from taurank.evaluation.metrics import Metric
from taurank.evaluation.rankers import Ranker, Ranking
from taurank.evaluation.weights import CellWeights, Given, list_weights

ROWS_PER_GROUP = 1 << 20
MIN_GROUPS = 8
T = TypeVar("T")
How = tuple[str, Mapping[str, Any]]  # a function of ``taurank.gains`` and its options


class ClusterGains(RemoteGains):
    """What an estimator makes of a cluster's log, computed when it is measured by."""

    def __init__(self, log: ClusterRows, estimator: str, options: Mapping[str, Any]) -> None:
        self.log, self.how = log, (estimator, dict(options))
        nothing, bits = np.empty(0, np.int32), np.empty(0, np.int8)
        propensity = np.empty(0) if log.summary.has_propensity else None
        rows = Log(log.catalog, nothing, nothing, nothing, bits, bits, propensity, timed=log.summary.timed)
        self.empty = _gains(rows, self.how)  # also refuses wrong options, and a log without propensities
        self.empty.__dict__["log_fingerprint"] = self.log_fingerprint = log.fingerprint  # cached there
        self.name, self.kind = self.empty.name, self.empty.kind
        text = f"{log.fingerprint} {estimator} {sorted(options.items())}"
        self.fingerprint = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def __repr__(self) -> str:
        return f"ClusterGains({self.name} of {self.log!r})"

    @cached_property
    def user(self) -> Codes:
        return np.unique(np.concatenate(self.log.each_piece(_users_with_gains, self.how)))

    def measurement(self, metrics: Any, unlisted: Any, users: Codes | None) -> ClusterMeasurement:
        whole = Measurement.prepare(self.empty, metrics, unlisted=unlisted)
        return ClusterMeasurement(whole.gains, whole.metrics, whole.unlisted, users, source=self)


def _gains(log: Log, how: How) -> Gains:
    name, options = how
    gains: Gains = getattr(estimators, name)(log, **options)
    return gains


def _users_with_gains(piece: Piece, whole: Whole, how: How) -> Codes:
    return np.unique(_gains(read_part(piece, whole), how).user)


@dataclass(frozen=True, eq=False)
class ClusterMeasurement(Measurement):
    """``Measurement`` for gains that are elsewhere; its own ``gains`` have the catalog and no rows."""

    source: ClusterGains = None  # type: ignore[assignment]  # a field behind others with defaults

    def sums(self, ranking: Ranking, workers: int, given: Given | None = None) -> GainSums:
        if given is not None:
            self.given()
        log, ranker = self.source.log, _remote(ranking)
        groups = _groups(log, self.source.user if self.users is None else np.sort(self.users))
        results = log.each_group(groups, _sums, log.pool.put(ranker), self.source.how, self.metrics, self.unlisted)
        per_user = np.zeros((len(self.metrics), log.n_users))
        per_time = np.zeros((len(self.metrics), log.n_times))
        for users, (by_user, by_time) in zip(groups, results, strict=True):
            per_user[:, users] = by_user
            per_time += by_time
        return per_user, per_time

    def evidence(self, ranking: Ranking, workers: int) -> Sequence[Evidence]:
        assert self.gains.estimator is not None
        return ClusterEvidence.of(self.source.log, _remote(ranking), self.metrics, self.gains.estimator)

    def by_item(self, *arguments: Any) -> Never:
        raise InputError("on a cluster an estimate is that of all items; split them on one machine (Log.read).")

    def given(self, *arguments: Any) -> Never:
        raise InputError("curves by share are estimated on one machine (Log.read); on a cluster, take a curve by k.")


def _groups(log: ClusterRows, users: Codes) -> list[Codes]:
    """Consecutive users, as many groups as the size of the log says."""
    count = min(max(MIN_GROUPS, -(-len(log) // ROWS_PER_GROUP)), len(users))
    return list(np.array_split(users, count)) if count else []


def _remote(ranking: Ranking) -> Ranker:
    if ranking.is_policy:
        raise InputError("a policy is measured on one machine; on a cluster, evaluate a model or a ranking.")
    if ranking.is_array:
        raise InputError("an array of scores is measured on one machine; on a cluster, evaluate a model or a table.")
    ranker: Ranker = ranking.ranker
    return ranker


def _sums(log: Log, ranker: Ranker, how: How, metrics: list[Metric], unlisted: str | None) -> GainSums:
    gains = _gains(log, how)
    measurement = Measurement.prepare(gains, metrics, unlisted=unlisted)
    return measurement.sums(Ranking(ranker, gains.users, gains.items), 1)


class ClusterEvidence(Evidence):
    """Evidence of a ``ClusterLog``: one metric of one ranking, tallied by the workers."""

    def __init__(self, log: ClusterRows, ranker: Ranker, metric: Metric, *known: Any) -> None:
        super().__init__(*known)
        self.log, self.ranker, self.metric = log, ranker, metric

    @classmethod
    def of(
        cls, log: ClusterRows, ranker: Ranker, metrics: list[Metric], estimator: Estimator
    ) -> list[ClusterEvidence]:
        tallies = _each(log, _tallies, (ranker,), metrics, estimator)
        everything = Eligibility.everything(log.catalog)
        (listed, largest), evidence = list_weights(everything, metrics), []
        visits = everything.visits(np.ones(log.n_users, np.bool_))
        for m, metric in enumerate(metrics):
            bound = np.inf if (metric.weights(log.n_items) < 0).any() else 1.0
            lists = Lists(listed.sums(m), (np.zeros(1), np.zeros(1)), float(largest[m]), bound, visits)
            tally = Tally.added([parts[m] for parts in tallies])
            evidence.append(cls(log, ranker, metric, tally, lists, estimator))
        return evidence

    def minus(self, other: ClusterEvidence) -> Estimate:
        """The paired difference, by another pass over both rankings."""
        parts = _each(self.log, _difference, (self.ranker, other.ranker), [self.metric], self.estimator)
        return self.own.minus(other.own, Moments.added(parts))

    def of_users(self, users: Any) -> Never:
        raise InputError("on a cluster an estimate is that of all users; split them on one machine (Log.read).")

    def capped(self, caps: Any) -> Never:
        raise InputError("on a cluster estimators cannot be shown side by side; evaluate on one machine (Log.read).")


def _each(log: ClusterRows, function: Callable[..., T], rankers: tuple[Ranker, ...], *arguments: Any) -> list[T]:
    """What a function returns for each group of users."""
    groups = _groups(log, np.arange(log.n_users, dtype=np.int32))
    return log.each_group(groups, function, log.pool.put(rankers), *arguments, max(log.n_users * log.n_times, 1))


def _tallies(log: Log, rankers: tuple[Ranker], metrics: list[Metric], estimator: Estimator, n: int) -> list[Tally]:
    """A tally of each metric; ``n`` is the number of users and times of the whole log."""
    return [Tally.of(log, *weighed, estimator, n) for weighed in _weighed(log, rankers[0], metrics)]


def _difference(
    log: Log, rankers: tuple[Ranker, Ranker], metrics: list[Metric], estimator: Estimator, n: int
) -> Moments:
    """The sums over the events of the paired difference of two rankings, by the first metric."""
    first, second = (events_of(log, *_weighed(log, one, metrics)[0], estimator, n) for one in rankers)
    return Moments.of(first.minus(second))


def _weighed(log: Log, ranker: Ranker, metrics: list[Metric]) -> list[tuple[Longs, Floats]]:
    """The rows that each metric weighs, and their weights."""
    rows, cells = logged_cells(log)
    weights, _ = CellWeights(log.eligibility, cells, metrics).weigh(Ranking(ranker, log.users, log.items), 1)
    return [(rows[weight != 0], weight[weight != 0]) for weight in weights]
