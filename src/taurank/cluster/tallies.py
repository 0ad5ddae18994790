"""Estimates, intervals and verdicts on a cluster: workers tally the rows of their users, the driver adds them up.

Users are cut into groups by the size of the log alone, and groups are added up in their order, so that the numbers
never depend on who counted; they agree with those of one machine but for the rounding of sums.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Never, TypeVar

import numpy as np

from taurank._types import Codes, Floats, Longs
from taurank.cluster.groups import by_group
from taurank.cluster.rows import ClusterRows
from taurank.data.eligibility import Eligibility
from taurank.data.ids import Catalog
from taurank.data.log import Log
from taurank.errors import InputError
from taurank.estimation.estimators import Estimator, lacks_overlap
from taurank.evaluation.events import Events, EventSums, Side, WeightBins
from taurank.evaluation.evidence import IPS, Evidence, Figures, list_limits
from taurank.evaluation.intervals import Estimate, Visits
from taurank.evaluation.measurement import logged_cells
from taurank.evaluation.metrics import Metric
from taurank.evaluation.rankers import Ranker, ranking_of
from taurank.evaluation.weights import CellWeights

ROWS_PER_GROUP = 1 << 20
MIN_GROUPS = 8
T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class TalliedRows:
    """``WeighedRows`` of a ``ClusterLog``: one metric of one ranking, tallied by the workers."""

    log: ClusterRows
    ranker: Ranker
    metric: Metric
    tally: Tally

    @classmethod
    def of(cls, log: ClusterRows, ranker: Ranker, metrics: list[Metric], estimator: Estimator) -> list[TalliedRows]:
        groups = _groups(log)
        tallies = _each(log, groups, _tallies, (ranker,), metrics, estimator)
        return [
            cls(log, ranker, metric, added(list(zip(groups, parts, strict=True)), log.n_users))
            for metric, parts in zip(metrics, zip(*tallies, strict=True), strict=True)
        ]

    def evidence(self, own: Estimator) -> Evidence:
        return evidence_of(self.tally, self.metric, self.log.catalog, float(self.log.summary.positives))

    def minus(self, other: TalliedRows, estimator: Estimator, own: Estimate, others: Estimate) -> Estimate:
        """The paired difference, by another pass over both rankings."""
        rankers = (self.ranker, other.ranker)
        parts = _each(self.log, _groups(self.log), _difference, rankers, [self.metric], estimator)
        return own.minus(others, added_events(parts))

    def of_users(self, users: Any) -> Never:
        raise InputError("on a cluster an estimate is that of all users; split them on one machine (Log.read).")

    def by_caps(self, own: Estimator) -> Never:
        raise InputError("on a cluster estimators cannot be shown side by side; evaluate on one machine (Log.read).")


def _groups(log: ClusterRows) -> list[Codes]:
    count = min(max(MIN_GROUPS, -(-len(log) // ROWS_PER_GROUP)), max(1, log.n_users))
    return list(np.array_split(np.arange(log.n_users, dtype=np.int32), count))


def _each(
    log: ClusterRows, groups: list[Codes], function: Callable[..., T], rankers: tuple[Ranker, ...],
    metrics: list[Metric], estimator: Estimator,
) -> list[T]:  # fmt: skip
    task = (log.cluster.pool.put(rankers), metrics, estimator, max(log.n_users * log.n_times, 1))
    return by_group(log, groups, function, [task] * len(groups))


def _tallies(log: Log, rankers: tuple[Ranker], metrics: list[Metric], estimator: Estimator, n: int) -> list[Tally]:
    """A tally of each metric; ``n`` is the number of users and times of the whole log."""
    return [tally(log, *weighed, estimator, n) for weighed in _weighed(log, rankers[0], metrics)]


def _difference(
    log: Log, rankers: tuple[Ranker, Ranker], metrics: list[Metric], estimator: Estimator, n: int
) -> EventSums:
    """The sums over the events of the paired difference of two rankings, by the first metric."""
    first, second = (events_of(log, *_weighed(log, one, metrics)[0], estimator, n) for one in rankers)
    return EventSums.of(first.minus(second))


def _weighed(log: Log, ranker: Ranker, metrics: list[Metric]) -> list[tuple[Longs, Floats]]:
    """The rows that each metric weighs, and their weights."""
    rows, cells = logged_cells(log)
    weights, _ = CellWeights(log.eligibility, cells, metrics).weigh(ranking_of(ranker, log.users, log.items), 1)
    return [(rows[weight != 0], weight[weight != 0]) for weight in weights]


class Sums(NamedTuple):
    """Sums per user and per time, and over the events of an estimate."""

    per_user: Floats
    per_time: Floats
    events: EventSums


class Tally(NamedTuple):
    """What the rows of some users say about one metric of one ranking."""

    own: Sums  # by the estimator of the gains
    plain: Sums  # by IPS
    inside: Sums | None  # by IPS, of the rows with overlap; None if all have it
    shown: tuple[Floats, Floats]  # Σ w·Z/P per user and per time
    figures: Figures


def tally(log: Log, rows: Longs, weight: Floats, estimator: Estimator, n: int) -> Tally:
    """Count a group's rows that a metric weighs; ``n`` is the number of users and times of the whole log."""
    shown = np.where(log.treated[rows] == 1, weight * IPS.weights(log, rows), 0.0)
    extreme = lacks_overlap(log.recorded_propensity("the check of propensities")[rows])
    inside = _sums(log, rows[~extreme], weight[~extreme], IPS, n) if extreme.any() else None
    own, plain = (_sums(log, rows, weight, one, n) for one in (estimator, IPS))
    figures = Figures.of(log, rows, weight, shown)
    if not extreme.any():  # in this group
        pair = log.user[rows].astype(np.int64) * log.n_items + log.item[rows]
        figures = figures._replace(pairs=float(np.abs(weight[np.unique(pair, return_index=True)[1]]).sum()))
    return Tally(own, plain, inside, _by_user_and_time(log, rows, shown), figures)


def events_of(log: Log, rows: Longs, weight: Floats, estimator: Estimator, n: int) -> Events:
    """The events of an estimate without a control variate."""
    counts, outcome = weight * estimator.weights(log, rows), log.outcome[rows].astype(np.float64)
    propensity = log.recorded_propensity(estimator.name)[rows]
    return Events(rows, counts / n, outcome, log.treated[rows] == 1, propensity, counts * outcome / n)


def _sums(log: Log, rows: Longs, weight: Floats, estimator: Estimator, n: int) -> Sums:
    events = events_of(log, rows, weight, estimator, n)
    return Sums(*_by_user_and_time(log, rows, events.value * n), EventSums.of(events))


def _by_user_and_time(log: Log, rows: Longs, value: Floats) -> tuple[Floats, Floats]:
    per_user = np.bincount(log.user[rows], value, log.n_users).astype(np.float64)
    return per_user, np.bincount(log.time[rows], value, log.n_times).astype(np.float64)


def added(parts: Sequence[tuple[Codes, Tally]], n_users: int) -> Tally:
    """The tally of all users from those of groups, each with the positions of its users."""
    users, tallies = [codes for codes, _ in parts], [one for _, one in parts]
    inside = None
    if any(one.inside is not None for one in tallies):
        inside = _added(users, [one.inside or one.plain for one in tallies], n_users)
    shown = _spread(users, [one.shown[0] for one in tallies], n_users), _total([one.shown[1] for one in tallies])
    figures = Figures(*(float(np.sum(column)) for column in zip(*(one.figures for one in tallies), strict=True)))
    own, plain = (_added(users, [getattr(one, name) for one in tallies], n_users) for name in ("own", "plain"))
    return Tally(own, plain, inside, shown, figures)


def _added(users: list[Codes], parts: list[Sums], n_users: int) -> Sums:
    per_user = _spread(users, [one.per_user for one in parts], n_users)
    return Sums(per_user, _total([one.per_time for one in parts]), added_events([one.events for one in parts]))


def _spread(users: list[Codes], parts: list[Floats], n_users: int) -> Floats:
    whole = np.zeros(n_users)
    for codes, part in zip(users, parts, strict=True):
        whole[codes] = part
    return whole


def _total(parts: list[Floats]) -> Floats:
    return np.asarray(np.sum(parts, axis=0))


def added_events(parts: Sequence[EventSums]) -> EventSums:
    """The sums over the events of all users from those of some, in this order."""
    size = max(part.size for part in parts)
    same = [part.at(size) for part in parts]
    return EventSums(
        size, _added_sides([part.below for part in same]), _added_sides([part.above for part in same]),
        max(part.largest for part in same), float(np.sum([part.squares for part in same])),
        sum(part.rows for part in same), any(part.treated for part in same), any(part.positive for part in same),
    )  # fmt: skip


def _added_sides(parts: list[Side]) -> Side:
    totals = {
        name: np.sum([getattr(part, name) for part in parts], axis=0)
        for name in ("seen", "outcomes", "hidden", "cells", "counted", "sold")
    }
    return Side(
        **totals, chances=_added_bins([part.chances for part in parts]), largest=max(p.largest for p in parts)
    )


def _added_bins(parts: list[WeightBins]) -> WeightBins:
    bins, at = np.unique(np.concatenate([part.bin for part in parts]), return_inverse=True)
    columns = np.concatenate([np.vstack([*part[1:4], part.powers]) for part in parts], axis=1)
    sums = [np.bincount(at, column, minlength=len(bins)).astype(np.float64) for column in columns]
    return WeightBins(bins, sums[0], sums[1], sums[2], np.stack(sums[3:]))


def evidence_of(tally: Tally, metric: Metric, catalog: Catalog, bought: float) -> Evidence:
    """``bought`` are the purchases of the log; every user counts at every time."""
    visits, weights = Visits.of(Eligibility.everything(catalog)), metric.scaled(catalog.n_items)
    n, listed, figures = max(visits.total, 1), float(weights.sum()), tally.figures
    unit, limits = float(np.abs(weights).max()) / n, list_limits(metric, catalog.n_items, listed)

    def estimate(sums: Sums) -> Estimate:
        means = visits.per_user(sums.per_user), visits.per_time(sums.per_time)
        return Estimate(*means, sums.events, unit, limits, visits)

    # SNIPS: c is the weighted mean outcome of the treated rows, everywhere; see ``WeighedRows``
    plain, (by_user, by_time) = tally.plain, tally.shown
    mean = figures.shown_bought / figures.shown if figures.shown > 0 else 0.0
    size = n * plain.events.size
    squares = plain.events.squares + (mean**2 * figures.squared - 2.0 * mean * figures.squared_bought) / size**2
    snips = Sums(
        plain.per_user + mean * (listed * catalog.n_times - by_user),
        plain.per_time + mean * (listed * catalog.n_users - by_time),
        plain.events._replace(squares=max(squares, 0.0)),
    )
    lists = np.full(catalog.n_users, listed * catalog.n_times)
    ips = estimate(plain)
    inside = ips if tally.inside is None else estimate(tally.inside)
    return Evidence(
        estimate(tally.own), ips, estimate(snips), inside, figures, by_user, lists, visits.n_users, visits.total,
        bought,
    )  # fmt: skip
