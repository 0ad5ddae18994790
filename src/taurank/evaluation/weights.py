"""What cells weigh: the weight of each item's rank on the list that a user would get at a time.

A list has the candidates of its time only. An item that cannot be recommended has no rank, and the items behind it
move up. Candidates that all users share make an assortment, a narrower catalog, for each set of times with the same
items. Candidates of a user's own make a list for each visit, which is ranked by itself.

Scores exist for one block of users at a time, and ranks are computed only where a cell needs one. The doubly robust
estimate also sums its control variate c over whole lists, for which all items are ranked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import numpy as np

from taurank._arrays import group
from taurank._threads import Flag, one_blas_thread, run_interruptibly
from taurank._types import Codes, Floats, Longs, Mask
from taurank.data.eligibility import Eligibility
from taurank.estimation.estimators import Variate
from taurank.evaluation.metrics import Metric
from taurank.evaluation.rank_kernels import (
    CellRows,
    OwnLists,
    RankWeights,
    add_areas,
    add_gains,
    list_sums,
    own_weights,
    row_weights,
)
from taurank.evaluation.rankers import Block, Ranking, Scores
from taurank.evaluation.topk import best_first

T = TypeVar("T")
_BlockCells = tuple[Codes, CellRows, Codes, Floats]  # users of a block, all rows, their times and gains
BlockSums = tuple[Floats, list[Floats]]  # part × metric × user, and metric × time of each block


class Cells(NamedTuple):
    """Positions of cells in a catalog."""

    user: Codes
    item: Codes
    time: Codes


@dataclass(frozen=True, eq=False)
class ListSums:
    """A sum over each user's list at each time: ``by_group[user, group_of_time[time]]`` where the user visits."""

    by_group: Floats
    group_of_time: Longs
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


class CellWeights:
    """Cells to weigh under some metrics, prepared once for all rankings.

    ``weigh`` returns the weight of each cell; ``sums`` adds gains up without storing weights. ``users`` limits the
    sums over lists.
    """

    def __init__(
        self, eligibility: Eligibility, cells: Cells, metrics: list[Metric], variate: Variate | None = None,
        users: Mask | None = None,
    ) -> None:  # fmt: skip
        self.eligibility, self.cells, self.metrics, self.variate = eligibility, cells, metrics, variate
        self.users = np.ones(eligibility.shape[0], np.bool_) if users is None else users

    @cached_property
    def is_own(self) -> bool:
        """Whether users have candidates of their own."""
        return self.eligibility.listed is not None

    @cached_property
    def parts(self) -> list[_Part]:
        n_users = self.eligibility.shape[0]
        return [
            _Part.of(one, n_users, self.cells, self.metrics, self.variate) for one in assortments(self.eligibility)
        ]

    def weigh(self, ranking: Ranking, workers: int) -> tuple[Floats, list[ListSums]]:
        """Weights, metric × cell, and of each metric the sum of c over lists (no sums without a variate)."""
        if self.is_own:
            weights = self._own_weights(ranking, workers)
            return weights[:, self.eligibility.position(*self.cells)], self._own_sums(weights)
        weights, n_users = np.zeros((len(self.metrics), len(self.cells.user))), self.eligibility.shape[0]
        columns, group_of_time = [np.zeros((len(self.metrics), n_users, 1))], np.zeros(self.eligibility.shape[2], int)
        for part in self.parts:
            sums = part.new_sums(n_users)

            def weigh_block(block: Block, part: _Part = part, sums: Floats = sums) -> None:
                # the cells of a user lie together, those of a block of users not always
                rows = part.rows_of(block.users)
                weights[:, part.number[rows]] = part.weigh_block(ranking, block, sums)

            needed = part.needed if self.variate is None else self.users
            _each_block(part.narrowed(ranking), needed, workers, weigh_block)
            for times, c in part.list_sums(sums):
                group_of_time[times] = len(columns)
                columns.append(c[:, :, None])
        if self.variate is None:
            return weights, []
        by_group, visits = np.concatenate(columns, axis=2), visit_table(self.eligibility)
        return weights, [ListSums(one, group_of_time, visits) for one in by_group]

    def sums(self, ranking: Ranking, values: Floats, workers: int) -> BlockSums:
        """Σ weight · gain by user, for the gains in each row of ``values``, and those of the first row by time."""
        n_users, _, n_times = self.eligibility.shape
        per_user = np.zeros((len(values), len(self.metrics), n_users))
        if self.is_own:
            weights = self._own_weights(ranking, workers)[:, self.eligibility.position(*self.cells)]
            start, (number,) = group(self.cells.user, n_users, np.arange(len(self.cells.user)))
            sizes = np.diff(self.eligibility.own_visits.start)[self._own_visit()]
            rows, users = CellRows(start, self.cells.item[number]), np.arange(n_users, dtype=np.int32)
            cells = (users, rows, self.cells.time[number], values[:, number])
            return per_user, [self._add(cells, start[:-1], weights[:, number], sizes[number], n_times, per_user)]
        blocks: list[Floats] = []
        for part in self.parts:
            time, value = self.cells.time[part.number], values[:, part.number]

            def add_block(block: Block, part: _Part = part, time: Codes = time, value: Floats = value) -> Floats:
                weights, offset = part.weigh_block(ranking, block, None), part.offset(block.users)
                cells = (block.users, part.rows, time, value)
                return self._add(cells, offset, weights, part.size, n_times, per_user)

            blocks += _each_block(part.narrowed(ranking), part.needed, workers, add_block)
        return per_user, blocks

    def _add(
        self, cells: _BlockCells, offset: Longs, weights: Floats, sizes: Any, n_times: int, per_user: Floats
    ) -> Floats:
        per_time, areas = np.zeros((len(self.metrics), n_times)), np.array([metric.area for metric in self.metrics])
        add_gains(*cells, offset, weights, areas, per_user, per_time)
        for m in np.flatnonzero(areas):
            sizes = np.broadcast_to(sizes, weights.shape[1:])
            add_areas(*cells, offset, weights[m], sizes, per_user[0, m], per_time[m])
        return per_time

    def _own_visit(self) -> Longs:
        position = self.eligibility.position(*self.cells)
        return np.searchsorted(self.eligibility.own_visits.start, position, side="right") - 1

    def _own_weights(self, ranking: Ranking, workers: int) -> Floats:
        """Weights of all listed cells, metric × cell: each visit has a list of its own."""
        visits, n_users = self.eligibility.own_visits, self.eligibility.shape[0]
        start, (visit,) = group(visits.user.astype(np.int32), n_users, np.arange(len(visits.user)))
        sizes, table = np.unique(np.diff(visits.start), return_inverse=True)
        item = self.eligibility.cell(np.arange(self.eligibility.cells))[1].astype(np.int32)
        lists = OwnLists(start, visit, visits.start, item, table)
        tables = rank_weights(self.metrics, sizes.tolist())
        weights = np.zeros((len(self.metrics), len(item)))

        def run(block: Block) -> None:
            own_weights(ranking.scores(block), block.users, block.column, lists, tables, weights)

        _each_block(ranking, np.diff(start) > 0, workers, run)
        return weights

    def _own_sums(self, weights: Floats) -> list[ListSums]:
        if self.variate is None:
            return []
        n_users, _, n_times = self.eligibility.shape
        user, item, time = (codes.astype(np.int32) for codes in self.eligibility.cell(np.arange(weights.shape[1])))
        cell, c = user.astype(np.int64) * n_times + time, self.variate.at(user, item, time)

        def of_metric(weight: Floats) -> ListSums:
            flat = np.bincount(cell, weight * c, minlength=n_users * n_times).astype(np.float64)
            return ListSums(flat.reshape(n_users, n_times), np.arange(n_times))

        return [of_metric(weight) for weight in weights]


@dataclass(frozen=True, eq=False)
class Assortment:
    """The items that are candidates at some times, for every user; None stands for the whole catalog."""

    items: Longs | None
    times: Longs
    size: int


def assortments(eligibility: Eligibility) -> list[Assortment]:
    """Those of a log, each time in one of them; times without any candidate are in none."""
    _, n_items, n_times = eligibility.shape
    if eligibility.candidates.codes is None:
        return [Assortment(None, np.arange(n_times), n_items)]
    candidates, count = eligibility.candidates, eligibility.candidates.by_time
    by_items: dict[bytes, list[int]] = {}
    for time in np.flatnonzero(count):
        items = candidates.nth(np.arange(count[time]), np.full(count[time], time))
        by_items.setdefault(items.tobytes(), []).append(int(time))
    pairs = [(np.frombuffer(items, np.int64), np.array(times)) for items, times in by_items.items()]
    return [Assortment(items, times, len(items)) for items, times in pairs]


@dataclass(frozen=True, eq=False)
class _Part:
    """The cells at an assortment's times, grouped by user, and what is summed over its lists."""

    assortment: Assortment
    rows: CellRows  # positions of items within the assortment
    number: Longs  # of each row among all cells
    tables: RankWeights
    variate: Variate | None

    @classmethod
    def of(cls, own: Assortment, n_users: int, cells: Cells, metrics: list[Metric], variate: Variate | None) -> _Part:
        user, item, number = cells.user, cells.item, np.arange(len(cells.user))
        if own.items is not None:
            number = np.flatnonzero(np.isin(cells.time, own.times))
            user, item = user[number], np.searchsorted(own.items, item[number]).astype(np.int32)
        start, (item, number) = group(user, n_users, item, number)
        return cls(own, CellRows(start, item), number, rank_weights(metrics, [own.size]), variate)

    @property
    def size(self) -> int:
        return self.assortment.size

    @cached_property
    def needed(self) -> Mask:
        return np.diff(self.rows.start) > 0

    @cached_property
    def factors(self) -> Floats:
        """c's terms of the assortment's items, (fold, term) × item."""
        assert self.variate is not None
        items = slice(None) if self.assortment.items is None else self.assortment.items
        return np.concatenate([self.variate.item_factor[fold][items].T for fold in self._folds])

    @cached_property
    def _folds(self) -> list[int]:
        """The folds of c at the assortment's times."""
        assert self.variate is not None
        if self.variate.fold_of_user is not None:
            return list(range(self.variate.folds))
        return [int(fold) for fold in np.unique(self.variate.fold_of_time[self.assortment.times])]

    @cached_property
    def _begin(self) -> Longs:
        """The first column of the factors that a user's lists are summed with: all folds, or the user's own."""
        assert self.variate is not None
        folds, terms = self.variate.fold_of_user, self.variate.item_factor.shape[2]
        n_users = self.variate.user_factor.shape[1]
        return np.zeros(n_users, np.int64) if folds is None else np.asarray(folds * terms, dtype=np.int64)

    def new_sums(self, n_users: int) -> Floats:
        if self.variate is None:
            return np.empty((len(self.tables.depth), n_users, 0))
        folds = len(self._folds) if self.variate.fold_of_user is None else 1
        return np.zeros((len(self.tables.depth), n_users, folds * self.variate.item_factor.shape[2]))

    def narrowed(self, ranking: Ranking) -> Ranking:
        return ranking if self.assortment.items is None else NarrowedRanking(ranking, self.assortment.items)

    def offset(self, users: Codes) -> Longs:
        """Where the cells of each user begin, those of a block one behind the other."""
        counts = self.rows.start[users + 1] - self.rows.start[users]
        return np.asarray(np.cumsum(counts) - counts)

    def rows_of(self, users: Codes) -> Longs:
        """The rows of a block in order."""
        counts = self.rows.start[users + 1] - self.rows.start[users]
        return np.repeat(self.rows.start[users] - self.offset(users), counts) + np.arange(counts.sum())

    def weigh_block(self, ranking: Ranking, block: Block, sums: Floats | None) -> Floats:
        """The weights of the block's cells, metric × cell; sums over its lists are added to ``sums``."""
        scores, offset = self.narrowed(ranking).scores(block), self.offset(block.users)
        counts = self.rows.start[block.users + 1] - self.rows.start[block.users]
        weights = np.zeros((len(self.tables.depth), int(counts.sum())))
        least = np.full(len(scores), -np.inf, scores.dtype)
        if sums is not None and self.variate is not None:
            depth = int(self.tables.depth.max(initial=0))
            order, length, least = best_first(scores, depth)
            known = block.column >= 0
            item_of = np.flatnonzero(known)[np.argsort(block.column[known])]
            unknown, n_unknown = self.factors[:, ~known].sum(axis=1), int(np.count_nonzero(~known))
            list_sums(
                scores, order, length, block.users, item_of, self.factors, self._begin, unknown, n_unknown,
                self.tables, sums,
            )  # fmt: skip
        row_weights(scores, least, block.users, block.column, self.rows, offset, self.tables, weights)
        return weights

    def list_sums(self, sums: Floats) -> Iterator[tuple[Longs, Floats]]:
        """Times with the same c, and its sum over each list, metric × user."""
        times, variate = self.assortment.times, self.variate
        if variate is None:
            return
        if variate.fold_of_user is not None:
            own = variate.user_factor[variate.fold_of_user, np.arange(sums.shape[1])]
            yield times, np.einsum("mur,ur->mu", sums, own)
            return
        terms = sums.reshape(*sums.shape[:2], len(self._folds), -1)
        for j, fold in enumerate(self._folds):
            c = np.einsum("mur,ur->mu", terms[:, :, j], variate.user_factor[fold])
            yield times[variate.fold_of_time[times] == fold], c


@dataclass(frozen=True)
class _NarrowedBlock(Block):
    whole: Block
    columns: Codes  # of the whole block's scores


class NarrowedRanking:
    """A ranking of some items, as if the catalog had no others."""

    def __init__(self, whole: Ranking, items: Longs) -> None:
        self.whole, self.items = whole, items
        self.unknown_users, self.unknown_items = whole.unknown_users, whole.unknown_items

    def blocks(self, needed: Mask) -> Iterator[Block]:
        for block in self.whole.blocks(needed):
            column = block.column[self.items]
            known = column >= 0
            narrow = np.where(known, np.cumsum(known) - 1, -1).astype(np.int32)
            yield _NarrowedBlock(block.users, block.at_ranker, narrow, block, column[known])

    def scores(self, block: Block) -> Scores:
        assert isinstance(block, _NarrowedBlock)
        return np.take(self.whole.scores(block.whole), block.columns, axis=1)


def list_weights(eligibility: Eligibility, metrics: list[Metric]) -> list[ListSums]:
    """The weight of each list, Σ of the weights of its ranks, whatever the ranking is; by metric."""
    n_users, _, n_times = eligibility.shape
    if eligibility.listed is not None:
        visits = eligibility.own_visits
        sizes, at = np.unique(np.diff(visits.start), return_inverse=True)
        total = np.stack([[m.scaled(size).sum() for size in sizes.tolist()] for m in metrics])
        by_group = np.zeros((len(metrics), n_users, n_times))
        by_group[:, visits.user, visits.time] = total[:, at]
        return [ListSums(one, np.arange(n_times)) for one in by_group]
    group_of_time, totals, visits_at = np.zeros(n_times, int), [np.zeros(len(metrics))], visit_table(eligibility)
    for part in assortments(eligibility):
        group_of_time[part.times] = len(totals)
        totals.append(np.array([m.scaled(part.size).sum() for m in metrics]))
    return [
        ListSums(np.broadcast_to(one, (n_users, len(totals))), group_of_time, visits_at)
        for one in np.stack(totals, 1)
    ]


def largest_weights(eligibility: Eligibility, metrics: list[Metric]) -> list[float]:
    """The largest weight of any rank on any list, by metric."""
    if eligibility.listed is not None:
        sizes = np.unique(np.diff(eligibility.own_visits.start)).tolist()
    else:
        sizes = sorted({part.size for part in assortments(eligibility)})
    return [max((float(np.abs(m.scaled(size)).max(initial=0.0)) for size in sizes), default=0.0) for m in metrics]


def visit_table(eligibility: Eligibility) -> Mask | None:
    """Users × times; None if everybody visits always."""
    visitors, (n_users, _, n_times) = eligibility.visitors, eligibility.shape
    if visitors.codes is None:
        return None
    users = np.arange(n_users)
    return np.stack([visitors.contains(users, np.full(n_users, t)) for t in range(n_times)], axis=1)


def rank_weights(metrics: list[Metric], sizes: list[int]) -> RankWeights:
    """Tables for lists of each size, one behind the other; altogether no longer than the lists."""
    start = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    weight = np.zeros((len(metrics), int(start[-1])))
    summed = np.zeros((len(metrics), int(start[-1]) + len(sizes)))
    depth = np.zeros(len(metrics), np.int64)
    for t, (first, size) in enumerate(zip(start.tolist(), sizes, strict=False)):
        for m, metric in enumerate(metrics):
            weight[m, first : first + size] = metric.scaled(size)
            depth[m] = max(depth[m], size if metric.depth is None else min(metric.depth, size))
        np.cumsum(weight[:, first : first + size], axis=1, out=summed[:, first + t + 1 : first + t + 1 + size])
    return RankWeights(start, weight, summed, depth)


def _each_block(ranking: Ranking, needed: Mask, workers: int, work: Callable[[Block], T]) -> list[T]:
    """Blocks have a fixed shape, one BLAS thread and an order: the same bits for any number of ``workers``."""

    def run_all(stop: Flag) -> list[T]:
        results = []
        with one_blas_thread(), ThreadPoolExecutor(workers) as pool:
            try:
                for result in pool.map(work, ranking.blocks(needed)):
                    results.append(result)
                    if stop[0]:
                        break
            finally:
                pool.shutdown(cancel_futures=True)
        return results

    return run_interruptibly(run_all)
