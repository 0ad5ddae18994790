"""An epoch on several machines: users stay, item blocks travel.

A worker owns consecutive user blocks. An item block that comes to it visits all of them, from the last to the
first, and goes on to the worker below; a *visit* is what happens between its arrival and its departure. The order of
the units of every user block and of every item block is that of ``Strata.schedule``, so the bits are those of
``run_pairwise_epoch``. A worker works on the blocks it starts with while those of its neighbor arrive.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from taurank._jit import compiled
from taurank._random import Stream, stream, stream_key
from taurank._types import Codes, Floats32, Longs
from taurank.sgd.kernels import UNIT_STATS, StepParams, run_unit
from taurank.sgd.negatives import draw_negatives
from taurank.sgd.planning import SAMPLE, Baskets, Positives, Samples, block_offsets, plan_users
from taurank.sgd.scheduler import Stats, UnitStats, factor_table, total
from taurank.sgd.strata import Blocks, Cut, cut_items, shuffle_blocks

_UNIT = int(Stream.UNIT)


class Visit(NamedTuple):
    """An item block at a worker: it meets the user blocks from ``high`` down to ``low``.

    ``starts`` says that the worker has the block already: it is the first visit of the epoch."""

    worker: int
    block: int
    high: int
    low: int
    starts: bool


def first_blocks(blocks: int, workers: int) -> list[int]:
    """Where the user blocks of each worker begin; the last number is that of all blocks."""
    return [blocks * worker // workers for worker in range(workers + 1)]


def visits(blocks: int, workers: int) -> list[Visit]:
    """All visits of an epoch, in an order in which each follows those it needs."""
    first = first_blocks(blocks, workers)
    order = []
    for turn in range(2 * blocks):
        for worker in reversed(range(workers)):
            high, low = min(first[worker + 1] - 1, turn), max(first[worker], turn - blocks + 1)
            if high >= low:
                order.append(Visit(worker, turn % blocks, high, low, turn < first[worker + 1]))
    return order


class Residents:
    """The users of one worker: their positives, and where their units are in the plan of an epoch.

    ``members`` are the worker's users block by block, as positions in its own tables; ``start`` says where each of
    its blocks begins, the first of which has the number ``first``. Items keep their numbers of the catalog.
    """

    def __init__(
        self, positives: Positives, members: Codes, start: Longs, first: int, blocks: int, n_items: int
    ) -> None:
        self.positives, self.members, self.start = positives, members, start
        self.first, self.blocks, self.n_items = first, blocks, n_items
        self.samples: Samples = np.empty(0, SAMPLE)
        self.begin, self.end = np.zeros((2, blocks**2), np.int64)
        self.items = Blocks(np.empty(0, np.int32), np.zeros(1, np.int64), np.empty(0, np.int32))
        self.key = np.uint64(0)

    @property
    def own(self) -> range:
        """The user blocks of this worker."""
        return range(self.first, self.first + len(self.start) - 1)

    def plan(self, seed: int, epoch: int) -> None:
        """Sort the positives by unit."""
        self.items = cut_items(self.n_items, self.blocks, seed, epoch)
        self.key = stream(seed, epoch, Stream.NEGATIVES)
        order = shuffle_blocks(self.members, self.start, self.first, stream(seed, epoch, Stream.USER_BLOCKS))
        edges = np.zeros(self.blocks + 1, np.int64)  # blocks of other workers are empty here
        edges[self.first : self.own.stop + 1] = self.start
        edges[self.own.stop + 1 :] = self.start[-1]
        cut = Cut(Blocks(order, edges, np.empty(0, np.int32)), self.items)
        if len(self.samples) != len(self.positives.item):
            self.samples = np.empty(len(self.positives.item), SAMPLE)
        offsets = block_offsets(cut, self.positives.start)
        plan_users(cut, self.positives, self.first, self.own.stop, offsets, self.samples, self.begin, self.end)

    def new_stats(self) -> UnitStats:
        return np.zeros(self.blocks**2, UNIT_STATS)

    def visit(
        self, users: Floats32, items: Floats32, block: int, high: int, low: int, params: StepParams, stats: UnitStats
    ) -> None:
        """Run the units of one visit; ``items`` are the rows of the item block, in its order."""
        plan = VisitPlan(self.samples, self.begin, self.end, self.blocks, self.key)
        ids = self.block_items(block)
        run_visit(
            users, items, plan, ids, positions_in(ids, self.n_items), self.positives.baskets,
            block, high, low, params, stats,
        )  # fmt: skip

    def block_items(self, block: int) -> Codes:
        """The items of a block, in its order."""
        return self.items.members(block)


class VisitPlan(NamedTuple):
    samples: Samples
    begin: Longs
    end: Longs
    blocks: int
    key: np.uint64


def recut(old: Blocks, new: Blocks, wanted: range, rows: list[Floats32]) -> dict[int, Floats32]:
    """Blocks of a new epoch from all blocks of the one before."""
    tables = {b: factor_table(int(new.start[b + 1] - new.start[b]), rows[0].shape[1]) for b in wanted}
    at = positions_in(new.order, len(new.order))
    for b, table in enumerate(rows):
        ids = old.members(b)
        home = new.of[ids]
        for target in wanted:
            moved = np.flatnonzero(home == target)
            tables[target][at[ids[moved]] - new.start[target]] = table[moved]
    return tables


def total_of(stats: list[UnitStats]) -> Stats:
    """The statistics of an epoch from those of its workers, each of which ran units of its own."""
    whole = np.zeros_like(stats[0])
    for part in stats:
        for name in part.dtype.names or ():
            whole[name] += part[name]  # every unit is zero at all workers but one
    return total(whole)


@compiled
def positions_in(ids: Codes, n_items: int) -> Codes:
    """The position of every item among ``ids``; undefined for the others."""
    at = np.empty(n_items, np.int32)
    for n in range(len(ids)):
        at[ids[n]] = n
    return at


@compiled
def run_visit(
    users: Floats32, items: Floats32, plan: VisitPlan, ids: Codes, at: Codes, baskets: Baskets | None,
    block: int, high: int, low: int, params: StepParams, stats: UnitStats,
) -> None:  # fmt: skip
    for user_block in range(high, low - 1, -1):
        unit = (block - user_block + plan.blocks) % plan.blocks * plan.blocks + user_block
        samples = plan.samples[plan.begin[unit] : plan.end[unit]]
        if len(samples):
            skipped = draw_negatives(samples, baskets, ids, stream_key(plan.key, unit, _UNIT))
            stats[unit].skipped = skipped
            stats[unit].updates = len(samples) - skipped
            _to_positions(samples, at)
            run_unit(users, items, samples, params, stats[unit])


@compiled
def _to_positions(samples: Samples, at: Codes) -> None:
    for n in range(len(samples)):
        samples[n].item = at[np.uint64(samples[n].item)]
        samples[n].other = at[np.uint64(samples[n].other)]
