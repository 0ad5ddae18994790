"""What rankers are measured by: gains and metrics, prepared once for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from taurank._checks import check_choice, check_instance
from taurank._threads import worker_count
from taurank._types import Codes, Floats, Longs, Mask
from taurank.data.ids import Ids
from taurank.data.log import Log
from taurank.data.remote import RemoteGains, RemoteLog
from taurank.errors import InputError, plural
from taurank.estimation.estimators import Estimator, almost_always, outcomes_of
from taurank.estimation.gains import Gains, recommended
from taurank.evaluation.evidence import Evidence, Lists, LogEvidence, per_visit
from taurank.evaluation.intervals import Estimate
from taurank.evaluation.metrics import DEFAULT, OUTCOME_DEFAULT, Metric, parse_all
from taurank.evaluation.rankers import Ranking, TableRanker
from taurank.evaluation.weights import Cells, CellWeights, Given, ListSums, assortments, list_weights, segmented

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

    @property
    def is_estimate(self) -> bool:
        """Whether the gains are those of an estimator with propensities, so that intervals know their log."""
        return self.gains.estimator is not None and self.gains.log is not None

    def ranking(self, ranker: Any) -> Ranking:
        """The ranker in the gains' catalog, checked to be as deep as the metrics look."""
        gains = self.gains
        ranking = Ranking(ranker, gains.users, gains.items)
        if ranking.is_policy:
            ranking.ranker.check_slots(self.metrics)
        elif isinstance(ranking.ranker, TableRanker) and self.unlisted is None:
            for part in assortments(gains.eligibility):
                whole = part.items is None
                items = gains.items if whole else Ids(gains.items.values.take(part.items), gains.items.column)
                ranking.ranker.check_depth(self.metrics, gains.users, items)
        return ranking

    def means(self, ranker: Any, threads: int | None = None) -> dict[str, float]:
        """The mean of each metric, without an interval; for ``users`` the mean of their means."""
        ranking, workers, estimator = self.ranking(ranker), worker_count(threads), self.gains.estimator
        if self.is_estimate and estimator is not None and estimator.is_dense:
            estimates = [evidence.own for evidence in self.evidence(ranking, workers)]
        else:
            estimates = self.measured(ranking, workers)
        means = [one.mean if self.users is None else float(np.nanmean(one.per_user[self.users])) for one in estimates]
        return dict(zip((metric.name for metric in self.metrics), means, strict=True))

    # gains as they are

    def measured(
        self, ranking: Ranking, workers: int, given: Given | None = None, rows: Floats | None = None
    ) -> list[Estimate]:
        """The mean of each metric by the gains as they are, or of each row's combination of ``given`` weights."""
        gains, (user_sums, time_sums) = self.gains, self.sums(ranking, workers, given)
        if rows is not None:
            user_sums, time_sums = rows @ user_sums, rows @ time_sums
        with np.errstate(over="ignore"):
            largest = float(np.max(np.abs(user_sums), initial=0.0)) ** 2 * gains.n_users
        if not np.isfinite(largest):  # their squares would overflow
            raise InputError(
                f"the gains '{gains.name}' are too large to add up (up to {np.abs(gains.value).max():.1e}); "
                "cap them, for example gains.capped_ips(log, cap=0.01)."
            )
        visits = gains.eligibility.visits(np.ones(gains.n_users, np.bool_))
        per_user, per_time = per_visit(user_sums, visits[0]), per_visit(time_sums, visits[1])
        return [Estimate(*means, visits) for means in zip(per_user, per_time, strict=True)]

    def sums(self, ranking: Ranking, workers: int, given: Given | None = None) -> GainSums:
        """Δ_u = Σ_i weight · gain_ui, Eq. (delta_u_tau) and by time; ``given`` weights replace the metrics'."""
        gains, (weighed, values), areas = self.gains, self.valued, [metric.area for metric in self.metrics]
        (user, _, time), (n_users, _, n_times) = weighed.cells, gains.eligibility.shape
        if given is not None or ranking.is_policy:
            given = given or self._slots
            weighed, areas = CellWeights(gains.eligibility, weighed.cells, [], given=given), [False] * given.n
        weights, _ = weighed.weigh(ranking, workers)
        per_user, per_time = np.empty((len(weights), n_users)), np.empty((len(weights), n_times))
        for m, area in enumerate(areas):
            owner: Any = user
            at: Any = time
            value: Any = weights[m] * values
            if area:  # AUC = [Σ (I − r) / n₊ − (n₊ − 1) / 2] / n₋ of each list; ½ without negatives
                lists, place = np.unique(user.astype(np.int64) * n_times + time, return_inverse=True)
                owner, at = np.divmod(lists, n_times)
                positives = np.bincount(place, values)
                sizes = gains.eligibility.candidates.by_time[at]
                if gains.eligibility.listed is not None:
                    visits = gains.eligibility.own_visits
                    visit = np.searchsorted(visits.time * n_users + visits.user, at * n_users + owner)
                    sizes = np.diff(visits.start)[visit]
                negatives = sizes - positives
                ordered = np.bincount(place, value) / positives - 0.5 * (positives - 1)
                value = np.where(negatives > 0, ordered / np.maximum(negatives, 1), 0.5)
            per_user[m] = np.bincount(owner, value, n_users)
            per_time[m] = np.bincount(at, value, n_times)
        return per_user, per_time

    @cached_property
    def valued(self) -> tuple[CellWeights, Floats]:
        """The cells that have a gain, and their gains."""
        gains = self.gains
        chosen = gains.value != 0
        if self.users is not None:
            chosen &= np.isin(gains.user, self.users)
        rows = slice(None) if chosen.all() else np.flatnonzero(chosen)
        cells = Cells(gains.user[rows], gains.item[rows], gains.time[rows])
        return CellWeights(gains.eligibility, cells, self.metrics), gains.value[rows]

    # estimates

    def evidence(self, ranking: Ranking, workers: int) -> Sequence[Evidence]:
        """By metric."""
        if ranking.is_policy:
            return self.by_item(ranking, workers, [np.ones(self.gains.n_items, np.bool_)])[0]
        weights, sums = self._weights.weigh(ranking, workers)
        listed, *limits = self._lists
        return self.evidence_of(weights, listed, next(iter(sums), None), limits)

    def by_item(self, ranking: Ranking, workers: int, segments: Sequence[Mask]) -> list[list[LogEvidence]]:
        """By segment of the items and metric: what the items of a segment add to the list, which is that of all."""
        weights, sums = self.given(ranking, workers, self._slots if ranking.is_policy else None, segments)
        item, c = self._logged_cells[1].item, sums[len(segments) :]
        return [
            self.evidence_of(weights, listed, own, self._lists[1:], segment[item])
            for segment, listed, own in zip(segments, sums, c, strict=False)
        ]

    def given(
        self, ranking: Ranking, workers: int, given: Given | None, segments: Sequence[Mask]
    ) -> tuple[Floats, list[ListSums]]:
        """Weights of the rows, and by segment of the items the sums over lists of the weights, then those of c."""
        (_, cells, chosen), (log, estimator) = self._logged_cells, self._log
        variate, parts = segmented(estimator.variate, segments, log.eligibility.shape)
        metrics = self.metrics if given is None else []
        return CellWeights(log.eligibility, cells, metrics, variate, chosen, parts, given).weigh(ranking, workers)

    @property
    def _slots(self) -> Given:
        """The chance of a cell to be shown in one of k slots, over k."""
        slots = np.array([metric.depth or 0 for metric in self.metrics])[:, None, None]
        return Given(lambda chance: np.maximum(chance, 0.0) / slots, len(slots))

    def evidence_of(
        self, weights: Floats, listed: ListSums, variate: ListSums | None, limits: Sequence[Floats],
        among: Mask | None = None,
    ) -> list[LogEvidence]:  # fmt: skip
        """From the weights of rows and sums over lists; ``among`` are the rows that count.

        ``limits`` are, by metric, the largest weight and the largest possible effect in a cell.
        """
        (rows, _, _), (log, estimator) = self._logged_cells, self._log
        names = tuple(log.users.name(int(user)) for user in np.flatnonzero(self._aside))
        evidence = []
        for m, weight in enumerate(weights):

            def lists_of(users: Mask | None, m: int = m) -> Lists:
                within = ~self._aside if users is None else users & ~self._aside
                c = (np.zeros(1), np.zeros(1)) if variate is None else variate.sums(m, within)
                visits = log.eligibility.visits(within)
                weight, (largest, effect) = listed.sums(m, within), limits
                return Lists(weight, c, float(largest[m]), float(effect[m]), visits, names)

            at = np.flatnonzero(weight if among is None else (weight != 0) & among)
            evidence.append(LogEvidence(log, rows[at], weight[at], estimator, lists_of))
        return evidence

    @property
    def _log(self) -> tuple[Log, Estimator]:
        assert self.gains.log is not None
        assert self.gains.estimator is not None
        return self.gains.log, self.gains.estimator

    @cached_property
    def _aside(self) -> Mask:
        """Users such as bots: cells with P almost 1 are half of a usual list, and far more than other users have.

        Whether such a cell has a row does not depend on chance, and a user is not compared with what else she
        happened to be shown: so nobody is selected by treatments or outcomes.
        """
        log, estimator = self._log
        if not estimator.overlap_only:
            return np.zeros(log.n_users, np.bool_)
        always = almost_always(log.recorded_propensity(estimator.name)) & (log.treated == 1)
        sure, visits = (
            np.bincount(log.user, always, log.n_users),
            log.eligibility.visits(np.ones(log.n_users, np.bool_))[0],
        )
        usual = max(0.5 * float(np.count_nonzero(log.treated)), 3.0 * float(sure.sum())) / max(int(visits.sum()), 1)
        return np.asarray(sure > usual * visits)

    @cached_property
    def _logged_cells(self) -> tuple[Longs, Cells, Mask]:
        """The rows of the log and their cells, of the users wanted unless others matter to them (SNIPS)."""
        log, estimator = self._log
        rows, cells = logged_cells(log)
        chosen = ~self._aside
        if self.users is not None and not estimator.normalized:
            chosen &= np.isin(np.arange(log.n_users), self.users)
        if not chosen.all():
            wanted = chosen[cells.user]
            rows, cells = rows[wanted], Cells(*(codes[wanted] for codes in cells))
        return rows, cells, chosen

    @cached_property
    def _weights(self) -> CellWeights:
        (_, cells, chosen), (log, estimator) = self._logged_cells, self._log
        return CellWeights(log.eligibility, cells, self.metrics, estimator.variate, chosen)

    @cached_property
    def _lists(self) -> tuple[ListSums, Floats, Floats]:
        """What lists weigh, each metric's largest weight, and the largest effect: inf if a weight is negative."""
        log, _ = self._log
        listed, largest = list_weights(log.eligibility, self.metrics)
        negative = [(metric.weights(log.n_items) < 0).any() for metric in self.metrics]
        return listed, largest, np.where(negative, np.inf, self.largest_effect)

    @cached_property
    def largest_effect(self) -> float:
        """In a cell, as far as the log can tell: 1, or the largest value of an outcome."""
        log, _ = self._log
        return 1.0 if log.value is None else float(np.abs(outcomes_of(log)).max(initial=0.0)) or np.inf


def logged_cells(log: Log) -> tuple[Longs, Cells]:
    """The rows that count, and their cells: one in which nothing was shown or happened is like an absent one."""
    rows = np.flatnonzero((log.treated == 1) | (log.outcome == 1))
    checked = Gains(log.catalog, log.user[rows], log.item[rows], log.time[rows], np.zeros(len(rows)))
    return rows, Cells(checked.user, checked.item, checked.time)  # safe to index with
