"""What cells weigh: the weight of each item's rank on the list that a user would get at a time.

A list has the candidates of its time only. An item that cannot be recommended has no rank, and the items behind it
move up. Candidates that all users share make an assortment, a narrower catalog, for each set of times with the same
items. Candidates of a user's own make a list for each visit, which is ranked by itself.

Scores exist for one block of users at a time, and lists are written out only as deep as a metric looks. The doubly
robust estimate also sums its control variate c over whole lists.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from taurank._arrays import group
from taurank._threads import Flag, one_blas_thread, run_interruptibly
from taurank._types import Codes, Floats, Longs, Mask
from taurank.data.eligibility import Eligibility
from taurank.estimation.estimators import Variate
from taurank.evaluation.metrics import Metric
from taurank.evaluation.rank_kernels import (
    RankWeights,
    weigh_by_counting,
    weigh_in_order,
    weigh_own_lists,
)
from taurank.evaluation.rankers import Block, Ranking, Scores
from taurank.evaluation.topk import best_first

_SORT_PAYS = 100  # sorting a row costs about as much as comparing it with this many items (measured)
_DENSE = 1 << 20  # weights of whole lists that exist at once


class Cells(NamedTuple):
    """Positions of cells in a catalog."""

    user: Codes
    item: Codes
    time: Codes


@dataclass(frozen=True, eq=False)
class ListSums:
    """A sum over each user's list at each time: ``by_group[m, user, group_of_time[time]]`` where the user visits."""

    by_group: Floats
    group_of_time: Longs
    visits: Mask | None = None  # users × times; None: all

    def sums(self, m: int, users: Mask | None = None) -> tuple[Floats, Floats]:
        """Those of metric m per user, summed over times, and per time, summed over (some) users."""
        by_group = self.by_group[m] if users is None else self.by_group[m] * users[:, None]
        per_user, per_time = np.zeros(len(by_group)), np.empty(len(self.group_of_time))
        for time, part in enumerate(self.group_of_time):
            here = by_group[:, part] if self.visits is None else by_group[:, part] * self.visits[:, time]
            per_user += here
            per_time[time] = here.sum()
        return per_user, per_time


class Given(NamedTuple):
    """Weights by score instead of by rank: of each score (user × item) under ``n`` metrics (metric × user × item)."""

    weigh: Callable[[Scores], Floats]
    n: int


class Assortment(NamedTuple):
    """The items that are candidates at some times, for every user; None stands for the whole catalog."""

    items: Longs | None
    times: Longs
    size: int


def assortments(eligibility: Eligibility) -> list[Assortment]:
    """Those of a log, each time in one of them; times without any candidate are in none."""
    _, n_items, n_times = eligibility.shape
    candidates = eligibility.candidates
    if candidates.codes is None:
        return [Assortment(None, np.arange(n_times), n_items)]
    times_of: dict[bytes, list[int]] = {}
    for time in np.flatnonzero(candidates.by_time):
        items = candidates.nth(np.arange(candidates.by_time[time]), np.full(candidates.by_time[time], time))
        times_of.setdefault(items.tobytes(), []).append(int(time))
    pairs = [(np.frombuffer(items, np.int64), np.array(times)) for items, times in times_of.items()]
    return [Assortment(items, times, len(items)) for items, times in pairs]


class _Part(NamedTuple):
    """The cells at an assortment's times, grouped by user, and the factors of c that are summed over its lists."""

    items: Longs | None
    start: Longs  # of each user's rows
    item: Codes  # positions within the assortment
    number: Longs  # of each row among all cells
    tables: RankWeights
    factors: Floats  # item × terms, those of all folds at these times
    users: Floats  # user × fold × terms
    groups: slice  # of the times, one for each fold


class CellWeights:
    """Cells to weigh under some metrics, prepared once for all rankings; ``users`` limits the sums over lists.

    The terms of the variate are those of ``parts`` variates, one behind the other, which are summed each by itself.
    With ``given`` cells weigh what it returns for their scores, metric × user × item, whatever other scores are.
    """

    def __init__(
        self, eligibility: Eligibility, cells: Cells, metrics: Sequence[Metric], variate: Variate | None = None,
        users: Mask | None = None, parts: int = 1, given: Given | None = None,
    ) -> None:  # fmt: skip
        self.eligibility, self.cells, self.metrics, self.variate = eligibility, cells, metrics, variate
        self.users = np.ones(eligibility.shape[0], np.bool_) if users is None else users
        self.parts, self.given, self.n = parts, given, len(metrics) if given is None else given.n

    def weigh(self, ranking: Ranking, workers: int) -> tuple[Floats, list[ListSums]]:
        """Weights, metric × cell, and the sums over lists of each part of the variate."""
        if self.eligibility.listed is not None:
            return self._weigh_own_lists(ranking, workers)
        weights, (parts, group_of_time) = np.zeros((self.n, len(self.cells.user))), self._parts
        sums = np.zeros((self.n, len(self.users), int(group_of_time.max(initial=0)) + 1, self.parts))
        for part in parts:

            def weigh_block(block: Block, part: _Part = part) -> None:
                scores = ranking.scores(block)
                scores = scores if part.items is None else np.take(scores, part.items, axis=1)
                row, at = _rows_of(block.users, part.start)
                if self.given is None and self.variate is None and len(at) <= _SORT_PAYS * len(scores):
                    counted, start = np.zeros((self.n, len(at))), np.searchsorted(row, np.arange(len(scores) + 1))
                    weigh_by_counting(scores, start, part.item[at], part.tables, counted)
                    weights[:, part.number[at]] = counted
                    return
                if self.given is None:
                    order, length = best_first(scores, int(part.tables.depth.max()))
                step = max(1, _DENSE // (self.n * scores.shape[1]))
                buffer = np.empty((self.n, min(step, len(scores)), scores.shape[1]))
                for first in range(0, len(scores), step):
                    here = slice(first, first + step)
                    some, users = scores[here], block.users[here]
                    dense = buffer[:, : len(some)]
                    if self.given is None:
                        weigh_in_order(some, order[here], length[here], part.tables, dense)
                    else:
                        dense = self.given.weigh(some)
                    row, at = _rows_of(users, part.start)
                    weights[:, part.number[at]] = dense[:, row, part.item[at]]
                    if self.variate is not None:
                        c = part.users[users] * (dense @ part.factors).reshape(self.n, *part.users[users].shape)
                        if self.variate.fold_of_user is not None:
                            c = c[:, np.arange(len(users)), self.variate.fold_of_user[users], None]
                        sums[:, users, part.groups] = c.reshape(*c.shape[:3], self.parts, -1).sum(axis=4)

            needed = np.diff(part.start) > 0 if self.variate is None else self.users
            _each_block(ranking, needed, workers, weigh_block)
        if self.variate is None:
            return weights, []
        visits = _visits(self.eligibility)
        return weights, [ListSums(sums[..., p], group_of_time, visits) for p in range(self.parts)]

    @cached_property
    def _parts(self) -> tuple[list[_Part], Longs]:
        """And the group of each time in sums over lists: that of its assortment and fold."""
        n_users, user, item = self.eligibility.shape[0], self.cells.user, self.cells.item
        variate, parts, group_of_time = self.variate, [], np.zeros(self.eligibility.shape[2], np.int64)
        for own in assortments(self.eligibility):
            number = (
                np.arange(len(user)) if own.items is None else np.flatnonzero(np.isin(self.cells.time, own.times))
            )
            place = item if own.items is None else np.searchsorted(own.items, item[number]).astype(np.int32)
            start, (place, number) = group(user[number], n_users, place, number)
            factors, of_users, first = (
                np.zeros((own.size, 0)),
                np.zeros((n_users, 1, 0)),
                int(group_of_time.max()) + 1,
            )
            if variate is not None:
                items = slice(None) if own.items is None else own.items
                folds, at = np.arange(variate.folds), np.zeros(len(own.times), int)
                if variate.fold_of_user is None:
                    folds, at = np.unique(variate.fold_of_time[own.times], return_inverse=True)
                factors = np.concatenate([variate.item_factor[fold][items] for fold in folds], axis=1)
                of_users = np.moveaxis(variate.user_factor[folds], 0, 1)
                group_of_time[own.times] = first + at
            groups = slice(first, int(group_of_time.max()) + 1)
            tables = rank_weights(self.metrics, [own.size])
            parts.append(_Part(own.items, start, place, number, tables, factors, of_users, groups))
        return parts, group_of_time

    def _weigh_own_lists(self, ranking: Ranking, workers: int) -> tuple[Floats, list[ListSums]]:
        """Each visit has a list of its own, whose cells are all weighed."""
        visits, (n_users, _, n_times) = self.eligibility.own_visits, self.eligibility.shape
        start, (visit,) = group(visits.user.astype(np.int32), n_users, np.arange(len(visits.user)))
        sizes, table = np.unique(np.diff(visits.start), return_inverse=True)
        tables = rank_weights(self.metrics, sizes.tolist())
        user, item, time = self.eligibility.cell(np.arange(self.eligibility.cells))
        weights = np.zeros((self.n, len(item)))

        def weigh_block(block: Block) -> None:
            scores, (row, at) = ranking.scores(block), _rows_of(block.users, start)
            own = visit[at]
            if self.given is None:
                weigh_own_lists(scores, row, own, visits.start, item.astype(np.int32), table, tables, weights)
                return
            for r, v in zip(row, own, strict=True):
                cells = slice(visits.start[v], visits.start[v + 1])
                weights[:, cells] = self.given.weigh(scores[r : r + 1, item[cells]])[:, 0]

        _each_block(ranking, np.diff(start) > 0, workers, weigh_block)
        sums, variate = list[ListSums](), self.variate
        if variate is not None:
            fold = variate.fold_of_time[time] if variate.fold_of_user is None else variate.fold_of_user[user]
            c = variate.user_factor[fold, user] * variate.item_factor[fold, item]
            for own in c.reshape(len(user), self.parts, -1).sum(axis=2).T:
                by_cell = [np.bincount(user * n_times + time, one * own, n_users * n_times) for one in weights]
                shaped = np.array(by_cell, np.float64).reshape(self.n, n_users, n_times)
                sums.append(ListSums(shaped, np.arange(n_times)))
        return weights[:, self.eligibility.position(*self.cells)], sums


def segmented(variate: Variate | None, segments: Sequence[Mask], shape: tuple[int, int, int]) -> tuple[Variate, int]:
    """A variate of several parts: for each segment of the items 1 in it and 0 elsewhere, then c in the same way."""
    n_users, n_items, n_times = shape
    if variate is None:
        variate = Variate(np.ones((1, n_users, 1)), np.zeros((1, n_items, 1)), np.zeros(n_times, np.int64))
    ones, flags = np.ones_like(variate.user_factor), np.zeros_like(variate.item_factor)
    flags[:, :, 0] = 1.0
    users, items = [ones] * len(segments), [flags * segment[:, None] for segment in segments]
    users += [variate.user_factor] * len(segments)
    items += [variate.item_factor * segment[:, None] for segment in segments]
    whole = replace(variate, user_factor=np.concatenate(users, axis=2), item_factor=np.concatenate(items, axis=2))
    return whole, len(items)


def list_weights(eligibility: Eligibility, metrics: list[Metric]) -> tuple[ListSums, Floats]:
    """The weight of each list, Σ of the weights of its ranks whatever the ranking is, and each metric's largest."""
    n_users, _, n_times = eligibility.shape
    if eligibility.listed is not None:
        visits = eligibility.own_visits
        sizes, at = np.unique(np.diff(visits.start), return_inverse=True)
    else:
        parts = assortments(eligibility)
        sizes, at = np.unique([part.size for part in parts], return_inverse=True)
    weights = [[metric.weights(size) for size in sizes.tolist()] for metric in metrics]
    totals = np.array([[0.0, *(weight.sum() for weight in each)] for each in weights])
    largest = np.array([max((np.abs(weight).max() for weight in each), default=0.0) for each in weights])
    if eligibility.listed is not None:
        by_time = np.zeros((len(metrics), n_users, n_times))
        by_time[:, visits.user, visits.time] = totals[:, at + 1]
        return ListSums(by_time, np.arange(n_times)), largest
    group_of_time = np.zeros(n_times, int)
    for part, size in zip(parts, at, strict=True):
        group_of_time[part.times] = size + 1
    by_group = np.broadcast_to(totals[:, None], (len(metrics), n_users, totals.shape[1]))
    return ListSums(by_group, group_of_time, _visits(eligibility)), largest


def _rows_of(users: Codes, start: Longs) -> tuple[Longs, Longs]:
    """Which of some users each row belongs to, and its place among rows grouped by user."""
    begin, counts = start[users], start[users + 1] - start[users]
    row = np.repeat(np.arange(len(users)), counts)
    return row, np.repeat(begin - np.cumsum(counts) + counts, counts) + np.arange(len(row))


def _visits(eligibility: Eligibility) -> Mask | None:
    """Users × times; None if everybody visits always."""
    visitors, (n_users, _, n_times) = eligibility.visitors, eligibility.shape
    return None if visitors.codes is None else visitors.contains(*np.indices((n_users, n_times)))


def rank_weights(metrics: Sequence[Metric], sizes: list[int]) -> RankWeights:
    """Tables for lists of each size, one behind the other; altogether no longer than the lists."""
    start = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    weight = np.zeros((len(metrics), int(start[-1])))
    summed = np.zeros((len(metrics), int(start[-1]) + len(sizes)))
    depth = np.zeros(len(metrics), np.int64)
    for t, (first, size) in enumerate(zip(start.tolist(), sizes, strict=False)):
        for m, metric in enumerate(metrics):
            weight[m, first : first + size] = metric.weights(size)
            depth[m] = max(depth[m], size if metric.depth is None else min(metric.depth, size))
        np.cumsum(weight[:, first : first + size], axis=1, out=summed[:, first + t + 1 : first + t + 1 + size])
    return RankWeights(start, weight, summed, depth)


def _each_block(ranking: Ranking, needed: Mask, workers: int, work: Callable[[Block], None]) -> None:
    """Blocks have a fixed shape and one BLAS thread: the same bits for any number of ``workers``."""

    def run_all(stop: Flag) -> None:
        with one_blas_thread(), ThreadPoolExecutor(workers) as pool:
            try:
                for _ in pool.map(work, ranking.blocks(needed)):
                    if stop[0]:
                        break
            finally:
                pool.shutdown(cancel_futures=True)

    run_interruptibly(run_all)
