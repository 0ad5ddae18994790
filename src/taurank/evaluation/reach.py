"""The reach of a metric: the logged rows that a ranking gives a weight, and its sums over whole lists.

``Measurement`` adds gains up as it goes. Here each row's weight is stored, because an interval needs its square and
cube, a paired interval the difference of two rankings in the same row, and a verdict what the rows are like. Lists
are summed for the cells without a row: how much weight there is, and how much of the control variate c.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from taurank.data.log import Log
from taurank.errors import InputError
from taurank.estimation.variate import Variate
from taurank.evaluation.list_weights import (
    Assortment,
    Cells,
    assortments,
    largest_weights,
    weigh,
    weigh_own,
    weigh_shared,
)
from taurank.evaluation.metrics import Metric
from taurank.evaluation.rankers import Ranking

Codes = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float64]
Longs = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Sums = tuple["ListSums", "ListSums | None"]  # of the weights, and of c


@dataclass(frozen=True, eq=False)
class ListSums:
    """A sum over each user's list at each time: ``by_group[user, group_of_time[time]]`` where the user visits."""

    by_group: Floats
    group_of_time: npt.NDArray[np.intp]
    visits: Mask | None = None  # users × times

    def sums(self, users: Mask | None = None) -> tuple[Floats, Floats]:
        """Per user, summed over times, and per time, summed over (some) users."""
        per_user = np.zeros(len(self.by_group))
        per_time = np.empty(len(self.group_of_time))
        for time, part in enumerate(self.group_of_time):
            here = self.by_group[:, part]
            here = here if self.visits is None else here * self.visits[:, time]
            here = here if users is None else here * users
            per_user += here
            per_time[time] = here.sum()
        return per_user, per_time


@dataclass(frozen=True, eq=False)
class Reach:
    """One metric of one ranking on a log: the rows within its reach with their weights, and its list sums.

    ``listed`` is the weight of a user's list (Σ of the weights of all eligible items), ``variate`` that sum weighted
    by c; None if it was not asked for. ``largest`` is the largest weight of any rank.
    """

    formula: Metric
    log: Log
    rows: Longs
    weight: Floats
    listed: ListSums
    variate: ListSums | None
    largest: float


def reaches(ranking: Ranking, log: Log, formulas: list[Metric], variate: Variate | None, workers: int) -> list[Reach]:
    """The reach of every metric; one pass over the scores for each set of candidates."""
    _refuse_areas(formulas)
    rows = _logged(log)
    if log.eligibility.listed is not None:
        weights, sums = _own(ranking, log, rows, formulas, variate, workers)
        sizes = np.diff(log.eligibility.own_visits.start)
    else:
        parts = assortments(log.eligibility, log.n_items, log.n_times)
        weights, sums = _shared(ranking, log, rows, parts, formulas, variate, workers)
        sizes = np.array([part.size for part in parts], np.int64)
    largest = largest_weights(formulas, sizes)
    return [
        Reach(formula, log, rows[inside], weights[m][inside], *sums[m], float(largest[m]))
        for m, formula in enumerate(formulas)
        for inside in [np.flatnonzero(weights[m])]
    ]


def rows_within(ranking: Ranking, log: Log, formulas: list[Metric], workers: int) -> list[tuple[Longs, Floats]]:
    """Of each metric the rows within its reach, and their weights; lists are not summed, which costs far less."""
    _refuse_areas(formulas)
    rows = _logged(log)
    cells = Cells(log.user[rows], log.item[rows], log.time[rows])
    if log.eligibility.is_everything:
        whole = Assortment(None, np.arange(log.n_times), log.n_items)
        nothing = np.empty((log.n_items, 0))
        weights, _ = weigh_shared(ranking, whole, log.n_users, cells.user, cells.item, formulas, nothing, workers)
    else:
        weights, _ = weigh(ranking, log.eligibility, cells, formulas, workers)
    inside = [np.flatnonzero(weight) for weight in weights]
    return [(rows[some], weight[some]) for some, weight in zip(inside, weights, strict=True)]


def _logged(log: Log) -> Longs:
    return np.flatnonzero((log.treated == 1) | (log.outcome == 1))


def _shared(
    ranking: Ranking, log: Log, rows: Longs, parts: list[Assortment], formulas: list[Metric],
    variate: Variate | None, workers: int,
) -> tuple[Floats, list[Sums]]:  # fmt: skip
    """Weights of the rows, and list sums by metric, where all users have the same candidates."""
    weights = np.zeros((len(formulas), len(rows)))
    listed, c = [np.zeros((len(formulas), log.n_users, 1))], [np.zeros((len(formulas), log.n_users, 1))]
    group_of_time, n_groups = np.zeros(log.n_times, np.intp), 1  # group 0: nothing could be shown
    for part in parts:
        here = np.flatnonzero(np.isin(log.time[rows], part.times))
        folds = _folds(part, variate)
        user, item = log.user[rows[here]], log.item[rows[here]]
        weights[:, here], sums = weigh_shared(
            ranking, part, log.n_users, user, item, formulas, _factors(part, variate, folds), workers
        )
        for times, of_list in _by_fold(part, variate, folds, sums):
            group_of_time[times] = n_groups
            n_groups += 1
            listed.append(sums[:, :, :1])
            c.append(of_list[:, :, None])
    whole = [np.concatenate(one, axis=2) for one in (listed, c)]
    visits = _visits(log)

    def of_metric(m: int) -> Sums:
        first, second = (ListSums(one[m], group_of_time, visits) for one in whole)
        return first, None if variate is None else second

    return weights, [of_metric(m) for m in range(len(formulas))]


def _folds(part: Assortment, variate: Variate | None) -> list[int]:
    """The folds of c at an assortment's times."""
    if variate is None:
        return []
    if variate.fold_of_user is not None:
        return list(range(variate.folds))
    return [int(fold) for fold in np.unique(variate.fold_of_time[part.times])]


def _factors(part: Assortment, variate: Variate | None, folds: list[int]) -> Floats:
    """What is summed over lists: 1, and the item's terms of c in each fold."""
    ones = np.ones((part.size, 1))
    if variate is None:
        return ones
    items = slice(None) if part.items is None else part.items
    return np.concatenate([ones, *(variate.item_factor[fold][items] for fold in folds)], axis=1)


def _by_fold(
    part: Assortment, variate: Variate | None, folds: list[int], sums: Floats
) -> Iterator[tuple[Longs, Floats]]:
    """Times with the same c, and its sum over each list, metric × user."""
    if variate is None:
        yield part.times, np.zeros(sums.shape[:2])
        return
    terms = sums[:, :, 1:].reshape(*sums.shape[:2], len(folds), -1)
    each = [np.einsum("mur,ur->mu", terms[:, :, j], variate.user_factor[fold]) for j, fold in enumerate(folds)]
    if variate.fold_of_user is None:
        for fold, c in zip(folds, each, strict=True):
            yield part.times[variate.fold_of_time[part.times] == fold], c
    else:
        yield part.times, np.take_along_axis(np.stack(each), variate.fold_of_user[None, None, :], axis=0)[0]


def _own(
    ranking: Ranking, log: Log, rows: Longs, formulas: list[Metric], variate: Variate | None, workers: int
) -> tuple[Floats, list[Sums]]:
    """The same where users have candidates of their own: every listed cell has a weight."""
    limits = log.eligibility
    assert limits is not None
    weights = weigh_own(ranking, limits, formulas, workers)
    user, item, time = (codes.astype(np.int32) for codes in limits.cell(np.arange(limits.cells)))
    c = None if variate is None else variate.at(user, item, time)
    each = np.arange(log.n_times)

    def of_metric(weight: Floats) -> Sums:
        listed = ListSums(_by_user_and_time(log, user, time, weight), each)
        return listed, None if c is None else ListSums(_by_user_and_time(log, user, time, weight * c), each)

    logged = limits.position(log.user[rows], log.item[rows], log.time[rows])
    return weights[:, logged], [of_metric(weight) for weight in weights]


def _visits(log: Log) -> Mask | None:
    if log.eligibility.visitors.codes is None:
        return None
    users = np.arange(log.n_users)
    visitors = log.eligibility.visitors
    return np.stack([visitors.contains(users, np.full(log.n_users, t)) for t in range(log.n_times)], axis=1)


def _by_user_and_time(log: Log, user: Codes, time: Codes, value: Floats) -> Floats:
    cell = user.astype(np.int64) * log.n_times + time
    flat = np.bincount(cell, value, minlength=log.n_users * log.n_times).astype(np.float64)
    return flat.reshape(log.n_users, log.n_times)


def _refuse_areas(formulas: list[Metric]) -> None:
    for formula in formulas:
        if formula.area:
            raise InputError(f"{formula.name} is not a weighted sum of effects; estimate C{formula.name}.")
