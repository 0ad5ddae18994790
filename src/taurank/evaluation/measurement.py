"""What rankers are measured by: gains and metrics, prepared once for all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from taurank._checks import check_choice, check_instance
from taurank._threads import worker_count
from taurank._types import Codes, Floats, Longs, Mask
from taurank.data.ids import Ids
from taurank.data.log import Log
from taurank.data.remote import RemoteGains, RemoteLog
from taurank.errors import InputError, plural
from taurank.estimation.estimators import Caps, Estimator, outcomes_of
from taurank.estimation.gains import Gains, recommended
from taurank.evaluation.events import EventSums
from taurank.evaluation.evidence import Evidence, Lists, Sums, Tally, events_of
from taurank.evaluation.intervals import Bootstrap, Estimate, Mean, Resamples, Visits, per_visit
from taurank.evaluation.metrics import DEFAULT, OUTCOME_DEFAULT, Metric, parse_all
from taurank.evaluation.rankers import Ranking, TableRanker
from taurank.evaluation.weights import Cells, CellWeights, ListSums, assortments, list_weights


class Measured(NamedTuple):
    """One ranker, measured: of each metric the evidence of a log, or a ``Bootstrap`` if the gains are no estimate."""

    values: Sequence[Any]
    unknown_users: int
    unknown_items: int
    trained_here: bool


GainSums = tuple[Floats, Floats]  # gains times weights, metric × user and metric × time


@dataclass(frozen=True, eq=False)
class Measurement:
    """Gains and metrics that rankers are measured by, prepared once for all of them."""

    gains: Gains
    metrics: list[Metric]
    unlisted: str | None = None
    users: Codes | None = None  # whose means are wanted; None: all

    @classmethod
    def prepare(
        cls,
        gains: Gains | Log | RemoteGains,
        metrics: Any = None,
        *,
        unlisted: Any = None,
        users: Codes | None = None,
    ) -> Measurement:
        """A log stands for its recommended estimate; see ``evaluate``."""
        if isinstance(gains, RemoteLog):
            raise InputError("on a cluster, name the estimator: taurank.gains.capped_ips(log, cap), or another one.")
        if isinstance(gains, RemoteGains):  # measured where they are
            remote: Measurement = gains.measurement(metrics, unlisted, users)
            return remote
        made = recommended(gains) if isinstance(gains, Log) else gains
        check_instance("gains", made, Gains, "taurank.gains, such as gains.ips(log), or take a sample's truth")
        if unlisted is not None:
            check_choice("unlisted", unlisted, ("last",))
        parsed = parse_all(metrics, OUTCOME_DEFAULT if made.kind == "outcome" else DEFAULT)
        areas = [metric.name for metric in parsed if metric.area]
        wrong = made.value[(made.value != 0.0) & (made.value != 1.0)]
        if areas and len(wrong):
            raise InputError(
                f"{areas[0]} needs gains of 0 or 1; '{made.name}' has another value in {plural(len(wrong), 'cell')}, "
                f"for example {wrong[0]:g}. C{areas[0]} takes any gains."
            )
        if areas and made.estimator is not None:
            raise InputError(f"{areas[0]} is not a weighted sum of effects; estimate C{areas[0]}.")
        return cls(made, parsed, unlisted, users)

    def means(self, ranker: Any, threads: int | None = None) -> dict[str, float]:
        """The mean of each metric, without an interval; for ``users`` the mean of their means."""
        workers, ranking = worker_count(threads), self._ranking(ranker)
        estimator = self.gains.estimator
        spreads: Sequence[Mean]
        if self.is_estimate and estimator is not None and estimator.is_dense:
            spreads = [evidence.own for evidence in self.evidence(ranking, workers)]
        else:
            spreads = self._spreads(self.sums(ranking, workers))
        means = [one.mean if self.users is None else float(np.nanmean(one.per_user[self.users])) for one in spreads]
        return dict(zip((metric.name for metric in self.metrics), means, strict=True))

    def measure(self, ranker: Any, workers: int, resamples: Resamples) -> Measured:
        """All that a result is made of."""
        ranking = self._ranking(ranker)
        values: Sequence[Any]
        if self.is_estimate:
            values = self.evidence(ranking, workers)
        else:
            spreads = self._spreads(self.sums(ranking, workers))
            values = [Bootstrap(one.per_user, one.per_time, one.visits, resamples) for one in spreads]
        trained = getattr(ranking.ranker, "log_fingerprint_", None)
        is_trained_here = trained is not None and trained == self.gains.log_fingerprint
        return Measured(values, ranking.unknown_users, ranking.unknown_items, is_trained_here)

    @property
    def is_estimate(self) -> bool:
        """Whether the gains are those of an estimator with propensities, so that intervals know their log."""
        return self.gains.estimator is not None and self.gains.log is not None

    def _ranking(self, ranker: Any) -> Ranking:
        gains = self.gains
        ranking = Ranking(ranker, gains.users, gains.items)
        if isinstance(ranking.ranker, TableRanker) and self.unlisted is None:
            for part in assortments(gains.eligibility):
                whole = part.items is None
                items = gains.items if whole else Ids(gains.items.values.take(part.items), gains.items.column)
                ranking.ranker.check_depth(self.metrics, gains.users, items)
        return ranking

    # gains as they are

    def sums(self, ranking: Ranking, workers: int) -> GainSums:
        """Δ_u = Σ_i weight · gain, Eq. (delta_u_tau), and the same by time."""
        gains, (cells, values) = self.gains, self._gain_cells
        weights, _ = cells.weigh(ranking, workers)
        user, time = cells.cells.user, cells.cells.time
        per_user = np.empty((len(weights), gains.n_users))
        per_time = np.empty((len(weights), gains.n_times))
        for m, metric in enumerate(self.metrics):
            parts: tuple[Any, Any, Floats] = (user, time, weights[m] * values)
            owner, at, value = self._areas(parts[2], values, user, time) if metric.area else parts
            per_user[m] = np.bincount(owner, value, gains.n_users)
            per_time[m] = np.bincount(at, value, gains.n_times)
        return per_user, per_time

    def _areas(self, below: Floats, positive: Floats, user: Codes, time: Codes) -> tuple[Longs, Longs, Floats]:
        """AUC = [Σ (I − r) / n₊ − (n₊ − 1) / 2] / n₋ of each list with positives; ½ without negatives."""
        eligibility, n_times = self.gains.eligibility, self.gains.n_times
        lists, at = np.unique(user.astype(np.int64) * n_times + time, return_inverse=True)
        owner, when = np.divmod(lists, n_times)
        sizes = eligibility.candidates.by_time[when]
        if eligibility.listed is not None:
            visits = eligibility.own_visits
            visit = np.searchsorted(visits.time * self.gains.n_users + visits.user, when * self.gains.n_users + owner)
            sizes = np.diff(visits.start)[visit]
        positives = np.bincount(at, positive)
        negatives = sizes - positives
        area = np.bincount(at, below) / positives - 0.5 * (positives - 1)
        return owner, when, np.where(negatives > 0, area / np.maximum(negatives, 1), 0.5)

    @cached_property
    def _gain_cells(self) -> tuple[CellWeights, Floats]:
        gains = self.gains
        chosen = gains.value != 0
        if self.users is not None:
            chosen &= np.isin(gains.user, self.users)
        rows = slice(None) if chosen.all() else np.flatnonzero(chosen)
        cells = Cells(gains.user[rows], gains.item[rows], gains.time[rows])
        return CellWeights(gains.eligibility, cells, self.metrics), gains.value[rows]

    def _spreads(self, sums: GainSums) -> list[Mean]:
        gains, (user_sums, time_sums) = self.gains, sums
        with np.errstate(over="ignore"):
            largest = float(np.max(np.abs(user_sums), initial=0.0)) * gains.n_users
        if not np.isfinite(largest):  # means of resampled users would overflow
            raise InputError(
                f"the gains '{gains.name}' are too large to add up (up to {np.abs(gains.value).max():.1e}); "
                "cap them, for example gains.capped_ips(log, cap=0.01)."
            )
        visits = Visits.of(gains.eligibility)
        per_user, per_time = per_visit(user_sums, visits.by_user), per_visit(time_sums, visits.by_time)
        return [Mean(*means, visits) for means in zip(per_user, per_time, strict=True)]

    # estimates

    def evidence(self, ranking: Ranking, workers: int) -> Sequence[Evidence]:
        """By metric."""
        rows, cells, listed, largest = self._logged_cells
        log, estimator = self.gains.log, self.gains.estimator
        assert log is not None
        assert estimator is not None
        weights, variate = cells.weigh(ranking, workers)

        def of_metric(m: int, metric: Metric) -> LogEvidence:
            bounded = log.value is None and not (metric.weights(log.n_items) < 0).any()

            def lists_of(users: Mask | None) -> Lists:
                outcome = outcomes_of(log, slice(None) if users is None else users[log.user])
                sums = (np.zeros(1), np.zeros(1)) if variate is None else variate.sums(m, users)
                visits = Visits.of(log.eligibility, users)
                return Lists(
                    listed.sums(m, users), sums, float(largest[m]), bounded, visits, float(outcome.sum()), users
                )

            at = np.flatnonzero(weights[m])
            return LogEvidence(log, rows[at], weights[m][at], estimator, lists_of)

        return [of_metric(m, metric) for m, metric in enumerate(self.metrics)]

    @cached_property
    def _logged_cells(self) -> tuple[Longs, CellWeights, ListSums, Floats]:
        """The rows of the log and their cells, of the users wanted unless others matter to them (SNIPS)."""
        log, estimator, chosen = self.gains.log, self.gains.estimator, None
        assert log is not None
        assert estimator is not None
        rows, cells = logged_cells(log)
        if self.users is not None and not estimator.normalized:
            chosen = np.zeros(log.n_users, np.bool_)
            chosen[self.users] = True
            wanted = chosen[cells.user]
            rows, cells = rows[wanted], Cells(*(codes[wanted] for codes in cells))
        weights = CellWeights(log.eligibility, cells, self.metrics, estimator.variate, chosen)
        return rows, weights, *list_weights(log.eligibility, self.metrics)


class LogEvidence(Evidence):
    """Evidence from the rows of a log that a metric weighs; ``lists_of`` are the lists of some users or of all."""

    def __init__(
        self, log: Log, rows: Longs, weight: Floats, estimator: Estimator, lists_of: Callable[[Mask | None], Lists],
        users: Mask | None = None,
    ) -> None:  # fmt: skip
        lists = lists_of(users)
        super().__init__(Tally.of(log, rows, weight, estimator, lists.n), lists, estimator)
        self.log, self.rows, self.weight, self.lists_of = log, rows, weight, lists_of

    def of_users(self, users: Mask) -> LogEvidence:
        here = users[self.log.user[self.rows]]
        return LogEvidence(self.log, self.rows[here], self.weight[here], self.estimator, self.lists_of, users)

    def capped(self, caps: Sequence[float]) -> dict[float, Estimate]:
        """The estimate with each of these caps, on both arms, that changes any row."""
        propensity = self.log.recorded_propensity("estimate")[self.rows]
        smallest, n = float(np.minimum(propensity, 1.0 - propensity).min(initial=1.0)), self.lists.n
        estimates = {}
        for cap in caps:
            if cap > smallest:
                estimator = replace(self.estimator, caps=Caps(cap, cap), normalized=False)
                sums = Sums.of(self.log, events_of(self.log, self.rows, self.weight, estimator, n), n)
                estimates[cap] = self.lists.estimate(sums, self.lists.variate)
        return estimates

    def minus(self, other: LogEvidence) -> Estimate:
        """The paired difference."""
        first, second = (
            events_of(one.log, one.rows, one.weight, one.estimator, one.lists.n, one.constant)
            for one in (self, other)
        )
        return self.own.minus(other.own, EventSums.of(first.minus(second)))


def logged_cells(log: Log) -> tuple[Longs, Cells]:
    """The rows that count, and their cells: one in which nothing was shown or happened is like an absent one."""
    rows = np.flatnonzero((log.treated == 1) | (log.outcome == 1))
    checked = Gains(log.catalog, log.user[rows], log.item[rows], log.time[rows], np.zeros(len(rows)))
    return rows, Cells(checked.user, checked.item, checked.time)  # safe to index with
