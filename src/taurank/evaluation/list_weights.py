"""The weights of cells: what the rank of an item is worth on the list that a user would get at a time.

A list has the candidates of its time only. An item that cannot be recommended has no rank, and the items behind it
move up. Candidates that all users share make an assortment, a narrower catalog, for each set of times with the same
items. Candidates of a user's own make a list for each visit, which is ranked by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from taurank._arrays import group
from taurank._threads import Flag, one_blas_thread, run_interruptibly
from taurank.data.eligibility import Eligibility
from taurank.evaluation.metrics import Metric
from taurank.evaluation.rank_kernels import RankWeights
from taurank.evaluation.rankers import Block, Ranking, Scores
from taurank.evaluation.reach_kernels import ListTables, OwnLists, list_sums, own_weights, row_weights
from taurank.evaluation.topk import best_first

Codes = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float64]
Longs = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


class Cells(NamedTuple):
    """Positions of cells in a catalog."""

    user: Codes
    item: Codes
    time: Codes


@dataclass(frozen=True, eq=False)
class Assortment:
    """The items that are candidates at some times, for every user; None stands for the whole catalog."""

    items: Longs | None
    times: Longs
    size: int

    def narrowed(self, ranking: Ranking) -> Ranking:
        return ranking if self.items is None else NarrowedRanking(ranking, self.items)

    def local(self, item: Codes) -> Codes:
        """Positions within the assortment; all items are in it."""
        return item if self.items is None else np.searchsorted(self.items, item).astype(np.int32)


def has_candidates(eligibility: Eligibility) -> bool:
    """Whether lists are narrower than the catalog."""
    return eligibility.listed is not None or eligibility.candidates.codes is not None


def assortments(eligibility: Eligibility, n_items: int, n_times: int) -> list[Assortment]:
    """Those of a log, each time in one of them; times without any candidate are in none."""
    if eligibility.candidates.codes is None:
        return [Assortment(None, np.arange(n_times), n_items)]
    candidates, count = eligibility.candidates, eligibility.candidates.by_time
    by_items: dict[bytes, list[int]] = {}
    for time in np.flatnonzero(count):
        items = candidates.nth(np.arange(count[time]), np.full(count[time], time))
        by_items.setdefault(items.tobytes(), []).append(int(time))
    pairs = [(np.frombuffer(items, np.int64), np.array(times)) for items, times in by_items.items()]
    return [Assortment(items, times, len(items)) for items, times in pairs]


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


def weigh_shared(
    ranking: Ranking, assortment: Assortment, n_users: int, user: Codes, item: Codes, formulas: list[Metric],
    factors: Floats, workers: int,
) -> tuple[Floats, Floats]:  # fmt: skip
    """Weights of cells at an assortment's times (metric × cell), and sums over lists (metric × user × column).

    A sum is Σ_i weight(rank of i) · ``factors[i, column]``, i counting the assortment's items. Without columns no
    list is sorted, and users without cells are not scored.
    """
    tables = rank_weights(formulas, assortment.size)
    start, (items, number) = group(user, n_users, assortment.local(item), np.arange(len(user)))
    weights, sums = np.zeros((len(formulas), len(user))), np.zeros((len(formulas), n_users, factors.shape[1]))
    depth = _depth(formulas, assortment.size)
    narrowed = assortment.narrowed(ranking)

    def weigh_cells(block: Block) -> None:
        scores = narrowed.scores(block)
        least = np.full(len(scores), -np.inf, scores.dtype)
        row_weights(scores, least, block.users, block.column, start, items, tables, weights)

    def weigh_lists(block: Block) -> None:
        scores = narrowed.scores(block)
        order, length, least = best_first(scores, depth)
        row_weights(scores, least, block.users, block.column, start, items, tables, weights)
        known = block.column >= 0
        item_of = np.flatnonzero(known)[np.argsort(block.column[known])]
        unknown, n_unknown = factors[~known].sum(axis=0), int(np.count_nonzero(~known))
        list_sums(scores, order, length, block.users, item_of, factors, unknown, n_unknown, tables, sums)

    if factors.shape[1]:
        _run_blocks(narrowed, np.ones(n_users, np.bool_), workers, weigh_lists)
    else:
        _run_blocks(narrowed, np.diff(start) > 0, workers, weigh_cells)
    scale = _scale(formulas, assortment.size)
    in_order = np.empty_like(weights)
    in_order[:, number] = weights
    return in_order * scale[:, None], sums * scale[:, None, None]


def weigh_own(ranking: Ranking, eligibility: Eligibility, formulas: list[Metric], workers: int) -> Floats:
    """Weights of all listed cells, metric × cell: each visit has a list of its own."""
    visits = eligibility.own_visits
    n_users = eligibility.shape[0]
    start, (visit,) = group(visits.user.astype(np.int32), n_users, np.arange(len(visits.user)))
    sizes, table = np.unique(np.diff(visits.start), return_inverse=True)
    item = eligibility.cell(np.arange(eligibility.cells))[1].astype(np.int32)
    lists = OwnLists(start, visit, visits.start, item, table)
    tables = _own_tables(formulas, sizes)
    weights = np.zeros((len(formulas), len(item)))

    def run(block: Block) -> None:
        own_weights(ranking.scores(block), block.users, block.column, lists, tables, weights)

    _run_blocks(ranking, np.diff(start) > 0, workers, run)
    return weights


def weigh(
    ranking: Ranking, eligibility: Eligibility, cells: Cells, formulas: list[Metric], workers: int
) -> tuple[Floats, Longs]:
    """Weights of eligible cells, metric × cell, and how long the list of each is."""
    if eligibility.listed is not None:
        position = eligibility.position(*cells)
        size = np.diff(eligibility.own_visits.start)
        visit = np.searchsorted(eligibility.own_visits.start, position, side="right") - 1
        return weigh_own(ranking, eligibility, formulas, workers)[:, position], size[visit]
    n_users, n_items, n_times = eligibility.shape
    weights, size = np.zeros((len(formulas), len(cells.user))), np.zeros(len(cells.user), np.int64)
    for part in assortments(eligibility, n_items, n_times):
        here = np.flatnonzero(np.isin(cells.time, part.times))
        nothing = np.empty((part.size, 0))
        weights[:, here], _ = weigh_shared(
            ranking, part, n_users, cells.user[here], cells.item[here], formulas, nothing, workers
        )
        size[here] = part.size
    return weights, size


def rank_weights(formulas: list[Metric], n_items: int) -> RankWeights:
    """The metrics as tables, before ``scale``."""
    weight = np.stack([formula.unscaled(n_items) for formula in formulas])
    return RankWeights(weight, _running(weight), np.array([formula.area for formula in formulas]))


def largest_weights(formulas: list[Metric], sizes: npt.ArrayLike) -> Floats:
    """The largest weight of any rank, by metric, on lists of these sizes."""
    each = [
        np.abs([f.unscaled(size) for f in formulas]).max(axis=1, initial=0.0) * np.abs(_scale(formulas, size))
        for size in np.unique(np.asarray(sizes)).tolist()
    ]
    return np.max(each, axis=0, initial=0.0) if each else np.zeros(len(formulas))


def _own_tables(formulas: list[Metric], sizes: Longs) -> ListTables:
    """Tables for lists of each size, one behind the other; altogether no longer than the lists."""
    start = np.concatenate([[0], np.cumsum(sizes)])
    parts = [rank_weights(formulas, size).weight * _scale(formulas, size)[:, None] for size in sizes.tolist()]
    nothing = np.empty((len(formulas), 0))
    return ListTables(
        start, np.concatenate([nothing, *parts], axis=1), np.concatenate([nothing, *map(_running, parts)], axis=1)
    )


def _running(weight: Floats) -> Floats:
    summed = np.zeros((len(weight), weight.shape[1] + 1))
    np.cumsum(weight, axis=1, out=summed[:, 1:])
    return summed


def _scale(formulas: list[Metric], size: int) -> Floats:
    return np.array([1.0 if formula.area else formula.factor(size) for formula in formulas])


def _depth(formulas: list[Metric], n_items: int) -> int:
    return min(max(n_items if formula.depth is None else formula.depth for formula in formulas), n_items)


def _run_blocks(ranking: Ranking, needed: Mask, workers: int, run: Callable[[Block], None]) -> None:
    """Blocks have a fixed shape and one BLAS thread, and write their own users: the same bits for any ``workers``."""

    def run_all(stop: Flag) -> None:
        with one_blas_thread(), ThreadPoolExecutor(workers) as pool:
            try:
                for _ in pool.map(run, ranking.blocks(needed)):
                    if stop[0]:
                        break
            finally:
                pool.shutdown(cancel_futures=True)

    run_interruptibly(run_all)
