"""What cells weigh: the weight of each item's rank on the list that a user would get at a time.

A list has the candidates of its time only. An item that cannot be recommended has no rank, and the items behind it
move up. Candidates that all users share make an assortment, a narrower catalog, for each set of times with the same
items. Candidates of a user's own make a list for each visit, which is ranked by itself.

Scores exist for one block of users at a time, and ranks are computed only where a cell needs one. The doubly robust
estimate also sums its control variate c over whole lists, for which all items are ranked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from taurank._arrays import group
from taurank._threads import Flag, one_blas_thread, run_interruptibly
from taurank._types import Codes, Floats, Longs, Mask
from taurank.data.eligibility import Eligibility
from taurank.estimation.estimators import Variate
from taurank.evaluation.metrics import Metric
from taurank.evaluation.rank_kernels import (
    CellRows,
    RankWeights,
    weigh_by_counting,
    weigh_in_order,
    weigh_own_lists,
)
from taurank.evaluation.rankers import Block, Ranking, Scores
from taurank.evaluation.topk import best_first

_GIVEN = 1 << 22  # weights that are given at once
_SORT_PAYS = 100  # sorting a row costs about as much as comparing it with this many items (measured)


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

    assortment: Assortment
    rows: CellRows  # positions of items within the assortment
    number: Longs  # of each row among all cells
    tables: RankWeights
    factors: Floats  # terms × item, those of all folds at these times
    begin: Longs  # the first of each user's terms
    folds: list[tuple[Longs, Floats]]  # times of a fold, and its users × terms


class CellWeights:
    """Cells to weigh under some metrics, prepared once for all rankings; ``users`` limits the sums over lists.

    The terms of the variate are those of ``parts`` variates, one behind the other, which are summed each by itself.
    """

    def __init__(
        self, eligibility: Eligibility, cells: Cells, metrics: list[Metric], variate: Variate | None = None,
        users: Mask | None = None, parts: int = 1,
    ) -> None:  # fmt: skip
        self.eligibility, self.cells, self.metrics, self.variate = eligibility, cells, metrics, variate
        self.users = np.ones(eligibility.shape[0], np.bool_) if users is None else users
        self.parts = parts

    def weigh(self, ranking: Ranking, workers: int) -> tuple[Floats, list[ListSums]]:
        """Weights, metric × cell, and the sums over lists of each part of the variate."""
        if self.eligibility.listed is not None:
            return self._weigh_own_lists(ranking, workers)
        n_users, _, n_times = self.eligibility.shape
        weights = np.zeros((len(self.metrics), len(self.cells.user)))
        columns, group_of_time = [np.zeros((self.parts, len(self.metrics), n_users))], np.zeros(n_times, int)
        for part in self._parts:
            terms = part.folds[0][1].shape[1] * len(part.folds) if part.folds else 0
            sums = np.zeros((len(self.metrics), n_users, terms))

            def weigh_block(block: Block, part: _Part = part, sums: Floats = sums) -> None:
                scores, items = ranking.scores(block), part.assortment.items
                scores = scores if items is None else np.take(scores, items, axis=1)
                begin = part.rows.start[block.users]
                counts = part.rows.start[block.users + 1] - begin
                offset, n = np.cumsum(counts) - counts, int(counts.sum())
                block_weights = np.zeros((len(self.metrics), n))
                if sums.shape[2] or n > _SORT_PAYS * len(scores):
                    order, length, _ = best_first(scores, int(part.tables.depth.max()))
                    weigh_in_order(
                        scores, order, length, block.users, part.rows, offset, part.tables, part.factors, part.begin,
                        block_weights, sums,
                    )  # fmt: skip
                else:
                    weigh_by_counting(scores, block.users, part.rows, offset, part.tables, block_weights)
                # the cells of a user lie together, those of a block of users not always
                weights[:, part.number[np.repeat(begin - offset, counts) + np.arange(n)]] = block_weights

            _each_block(ranking, self.users if terms else np.diff(part.rows.start) > 0, workers, weigh_block)
            own_terms = np.split(sums, max(len(part.folds), 1), axis=2)
            for (times, factor), own in zip(part.folds, own_terms, strict=False):
                group_of_time[times] = len(columns)
                products = (own * factor).reshape(len(own), n_users, self.parts, -1)
                columns.append(np.moveaxis(products.sum(axis=3), 2, 0))
        if self.variate is None:
            return weights, []
        visits = _visits(self.eligibility)
        return weights, [ListSums(part, group_of_time, visits) for part in np.stack(columns, axis=3)]

    @cached_property
    def _parts(self) -> list[_Part]:
        n_users, user, item = self.eligibility.shape[0], self.cells.user, self.cells.item
        parts = []
        for own in assortments(self.eligibility):
            number = (
                np.arange(len(user)) if own.items is None else np.flatnonzero(np.isin(self.cells.time, own.times))
            )
            place = item if own.items is None else np.searchsorted(own.items, item[number]).astype(np.int32)
            start, (place, number) = group(user[number], n_users, place, number)
            terms = np.zeros((0, own.size)), np.zeros(n_users, np.int64), list[tuple[Longs, Floats]]()
            if self.variate is not None:
                terms = _terms(self.variate, own)
            tables = rank_weights(self.metrics, [own.size])
            parts.append(_Part(own, CellRows(start, place), number, tables, *terms))
        return parts

    def _weigh_own_lists(self, ranking: Ranking, workers: int) -> tuple[Floats, list[ListSums]]:
        """Each visit has a list of its own, whose cells are all weighed."""
        visits, n_users = self.eligibility.own_visits, self.eligibility.shape[0]
        start, (visit,) = group(visits.user.astype(np.int32), n_users, np.arange(len(visits.user)))
        sizes, table = np.unique(np.diff(visits.start), return_inverse=True)
        tables = rank_weights(self.metrics, sizes.tolist())
        item = self.eligibility.cell(np.arange(self.eligibility.cells))[1].astype(np.int32)
        weights = np.zeros((len(self.metrics), len(item)))

        def weigh_block(block: Block) -> None:
            scores, counts = ranking.scores(block), start[block.users + 1] - start[block.users]
            row = np.repeat(np.arange(len(scores)), counts)
            own = visit[np.repeat(start[block.users] - np.cumsum(counts) + counts, counts) + np.arange(len(row))]
            weigh_own_lists(scores, row, own, visits.start, item, table, tables, weights)

        _each_block(ranking, np.diff(start) > 0, workers, weigh_block)
        wanted = weights[:, self.eligibility.position(*self.cells)]
        return wanted, list_sums(self.eligibility, weights, self.variate, self.parts)


def list_sums(eligibility: Eligibility, weights: Floats, variate: Variate | None, parts: int) -> list[ListSums]:
    """Sums over lists of a user's own from the weights of all listed cells, metric × cell."""
    if variate is None:
        return []
    (n_users, _, n_times), (user, item, time) = eligibility.shape, eligibility.cell(np.arange(eligibility.cells))
    fold = variate.fold_of_time[time] if variate.fold_of_user is None else variate.fold_of_user[user]
    c = (variate.user_factor[fold, user] * variate.item_factor[fold, item]).reshape(len(user), parts, -1).sum(axis=2)
    cell = user * n_times + time
    sums = [np.stack([np.bincount(cell, weight * own, n_users * n_times) for weight in weights]) for own in c.T]
    shape = len(weights), n_users, n_times
    return [ListSums(np.asarray(part, np.float64).reshape(shape), np.arange(n_times)) for part in sums]


def segmented(variate: Variate | None, segments: Sequence[Mask], shape: tuple[int, int, int]) -> tuple[Variate, int]:
    """A variate of several parts: for each segment of the items 1 in it and 0 elsewhere, then c in the same way."""
    n_users, n_items, n_times = shape
    if variate is None:
        variate = Variate(np.zeros((1, n_users, 0)), np.zeros((1, n_items, 0)), np.zeros(n_times, np.int64))
    folds, _, terms = variate.user_factor.shape
    ones = np.zeros((folds, n_users, max(terms, 1)))
    ones[:, :, 0] = 1.0
    if not segments:
        return variate, 0
    users = [ones] * len(segments) + [variate.user_factor] * (len(segments) if terms else 0)
    flags = [np.where(segment[:, None], 1.0, 0.0) * (np.arange(max(terms, 1)) == 0) for segment in segments]
    items = [np.broadcast_to(flag, (folds, *flag.shape)) for flag in flags]
    items += [variate.item_factor * segment[:, None] for segment in segments] if terms else []
    whole = replace(variate, user_factor=np.concatenate(users, axis=2), item_factor=np.concatenate(items, axis=2))
    return whole, len(items)


class GivenWeights:
    """Cells that weigh what their score says, whatever other scores are: ``weigh_scores`` of a block of users.

    It returns weights, metric × user × item, which count where a cell is eligible.
    """

    def __init__(
        self, eligibility: Eligibility, cells: Cells, weigh_scores: Callable[[Block, Scores], Floats], metrics: int,
        variate: Variate | None = None, parts: int = 1, users: Mask | None = None,
    ) -> None:  # fmt: skip
        self.eligibility, self.cells, self.weigh_scores, self.metrics = eligibility, cells, weigh_scores, metrics
        self.users, self.parts = np.ones(eligibility.shape[0], np.bool_) if users is None else users, parts
        self.variate = segmented(None, [], eligibility.shape)[0] if variate is None else variate

    def weigh(self, ranking: Ranking, workers: int) -> tuple[Floats, list[ListSums]]:
        """Weights, metric × cell, and the sums over lists of each part of the variate."""
        (n_users, _, n_times), own_lists = self.eligibility.shape, self.eligibility.listed is not None
        listed = self.eligibility.cell(np.arange(self.eligibility.cells)) if own_lists else self.cells
        start, (item, number) = group(listed[0].astype(np.int32), n_users, listed[1], np.arange(len(listed[0])))
        weights = np.zeros((self.metrics, len(listed[0])))
        groups, group_of_time = list[tuple[Any, int]](), np.zeros(n_times, np.int64)
        for part in assortments(self.eligibility) if not own_lists else ():
            folds = self.variate.fold_of_time[part.times]
            for fold in np.unique(folds) if self.variate.fold_of_user is None else (-1,):
                groups.append((slice(None) if part.items is None else part.items, int(fold)))
                times = part.times if fold < 0 else part.times[folds == fold]
                group_of_time[times] = len(groups)
        sums = np.zeros((self.parts, self.metrics, n_users, len(groups) + 1))

        def weigh_block(whole: Block) -> None:
            scores, step = ranking.scores(whole), max(1, _GIVEN // (self.metrics * len(ranking.items)))
            for first in range(0, len(scores), step):
                block = Block(*(codes[first : first + step] for codes in whole))
                weigh_part(block, self.weigh_scores(block, scores[first : first + step]))

        def weigh_part(block: Block, given: Floats) -> None:
            counts = np.diff(start)[block.users]
            row = np.repeat(np.arange(len(block.users)), counts)
            at = np.repeat(start[block.users] - np.cumsum(counts) + counts, counts) + np.arange(len(row))
            weights[:, number[at]] = given[:, row, item[at]]
            for g, (items, fold) in enumerate(groups, 1):
                for f in range(self.variate.folds) if fold < 0 else (fold,):
                    here: Any = slice(None)
                    if fold < 0 and self.variate.fold_of_user is not None:
                        here = np.flatnonzero(self.variate.fold_of_user[block.users] == f)
                    users, factor = block.users[here], self.variate.user_factor[f]
                    products = given[:, here][:, :, items] @ self.variate.item_factor[f][items] * factor[users]
                    parts = products.reshape(self.metrics, len(users), self.parts, -1).sum(axis=3)
                    sums[:, :, users, g] = np.moveaxis(parts, 2, 0)

        _each_block(ranking, self.users, workers, weigh_block)
        if own_lists:
            wanted = weights[:, self.eligibility.position(*self.cells)]
            return wanted, list_sums(self.eligibility, weights, self.variate, self.parts)
        visits = _visits(self.eligibility)
        return weights, [ListSums(part, group_of_time, visits) for part in sums]


def _terms(variate: Variate, own: Assortment) -> tuple[Floats, Longs, list[tuple[Longs, Floats]]]:
    """Factors of c as ``_Part`` has them: a user's lists need the folds of their times, or the user's own alone."""
    times, n_users = own.times, variate.user_factor.shape[1]
    folds, begin = np.arange(variate.folds), np.zeros(n_users, np.int64)
    if variate.fold_of_user is None:
        folds = np.unique(variate.fold_of_time[times])
        users = [(times[variate.fold_of_time[times] == fold], variate.user_factor[fold]) for fold in folds]
    else:
        begin += variate.fold_of_user * variate.item_factor.shape[2]
        users = [(times, variate.user_factor[variate.fold_of_user, np.arange(n_users)])]
    items = slice(None) if own.items is None else own.items
    factors = np.concatenate([variate.item_factor[fold][items].T for fold in folds])
    return np.ascontiguousarray(factors), begin, users


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


def _visits(eligibility: Eligibility) -> Mask | None:
    """Users × times; None if everybody visits always."""
    visitors, (n_users, _, n_times) = eligibility.visitors, eligibility.shape
    return None if visitors.codes is None else visitors.contains(*np.indices((n_users, n_times)))


def rank_weights(metrics: list[Metric], sizes: list[int]) -> RankWeights:
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
