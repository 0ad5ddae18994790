"""The part of a fit that lives on one worker: its users' positives and factors, and the item blocks that pass.

A worker owns consecutive user blocks. An item block that comes to it visits all of them, from the last to the first,
and goes on to the worker below. The order of the units of every user block and of every item block is that of
``Strata.units``, so the bits are those of ``run_pairwise_epoch``.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from taurank._jit import compiled
from taurank._random import Stream, stream, stream_key
from taurank._types import Codes, Floats32, Longs
from taurank.data.storage import ShardedArray
from taurank.learners.factors import normal_rows
from taurank.learners.training import aligned
from taurank.sgd.kernels import UNIT_STATS, StepParams, run_unit
from taurank.sgd.negatives import draw_negatives
from taurank.sgd.scheduler import UnitStats, factor_table
from taurank.sgd.strata import SAMPLE, Baskets, Blocks, Cut, Samples, by_user, cut_items, plan_users, shuffle_blocks

_UNIT = int(Stream.UNIT)


class Job(NamedTuple):
    """One fit, as far as the workers need to know it."""

    seed: int
    n_users: int
    n_items: int
    blocks: int
    first: tuple[int, ...]  # user block of each worker; the last number is that of all blocks
    factors: int
    in_baskets: bool


class Place(NamedTuple):
    """The users of one worker: their codes in order, and the members of its blocks as positions among them."""

    codes: Codes
    members: Codes
    start: Longs


class Gained(NamedTuple):
    """Positives of a piece; users are positions in the catalog, once split up among those of a worker."""

    user: Codes
    item: Codes
    weight: Floats32
    time: Codes  # empty unless the method needs baskets


class WorkerFit:
    """Call ``add_piece`` for every piece, ``build`` and ``start``; then epochs: ``begin``, visits, ``end``."""

    def __init__(self, job: Job, number: int, place: Place) -> None:
        self.job, self.own = job, range(job.first[number], job.first[number + 1])
        codes, members, start = place
        self.place = Place(codes.copy(), members.copy(), start.copy())  # the originals are in shared memory
        self.pieces: list[list[Any]] = []
        self.items = cut_items(1, 1, 0, 0)  # of the last epoch
        self.start_items: Any = None  # before the first epoch
        self.blocks: dict[int, Floats32] = {}
        self.begins, self.ends = np.zeros((2, job.blocks**2), np.int64)
        self.samples: Samples = np.empty(0, SAMPLE)

    def add_piece(self, positives: Gained) -> None:
        self.pieces.append([np.array(column) for column in positives])

    def build(self) -> None:
        """Sort the positives by user; rows keep the order they have in the files."""
        user, item, weight, moment = (self._joined() for _ in Gained._fields)
        self.positives = by_user(user, item, weight, len(self.place.codes), moment if self.job.in_baskets else None)
        self.samples = np.empty(len(self.positives.item), SAMPLE)

    def _joined(self) -> Any:
        return np.concatenate([piece.pop(0) for piece in self.pieces])  # each column is released once it is copied

    def start(self, users: ShardedArray | None, items: Floats32 | None) -> None:
        """The factors before the first epoch; by default this worker's part of ``FactorLearner._initial``."""
        job, codes = self.job, self.place.codes
        if users is not None and items is not None:
            self.users, self.start_items = aligned(users[codes]), np.array(items[:, : job.factors])
            return
        rng = np.random.default_rng(np.random.SeedSequence(job.seed))
        self.users = factor_table(len(codes), job.factors)
        for first, rows in normal_rows(rng, job.n_users, job.factors):
            low, high = np.searchsorted(codes, (first, first + len(rows)))
            self.users[low:high, : job.factors] = rows[codes[low:high] - first]
        self.start_items = np.concatenate([rows for _, rows in normal_rows(rng, job.n_items, job.factors)])

    def begin(self, epoch: int, *blocks: Floats32) -> None:
        """Sort the positives by unit, and cut the items anew, from all blocks of the epoch before."""
        job, place, own, before = self.job, self.place, self.own, self.items
        self.items = items = cut_items(job.n_items, job.blocks, job.seed, epoch)
        self.key = stream(job.seed, epoch, Stream.NEGATIVES)
        order = shuffle_blocks(place.members, place.start, own.start, stream(job.seed, epoch, Stream.USER_BLOCKS))
        edges = np.zeros(job.blocks + 1, np.int64)  # blocks of other workers are empty here
        edges[own.start : own.stop + 1] = place.start
        edges[own.stop + 1 :] = place.start[-1]
        cut = Cut(Blocks(order, edges, np.empty(0, np.int32)), items)
        plan_users(cut, self.positives, own.start, own.stop, self.samples, self.begins, self.ends)
        if blocks:
            self.blocks = recut(before, items, own, list(blocks))
        else:
            self.blocks = {b: aligned(self.start_items[items.members(b)]) for b in own}
            self.start_items = None
        self.stats: UnitStats = np.zeros(job.blocks**2, UNIT_STATS)

    def visit(self, block: int, high: int, low: int, params: StepParams, rows: Floats32 | None) -> Floats32:
        """An item block meets the user blocks from ``high`` down to ``low``; its rows after that."""
        table = self.blocks.pop(block) if rows is None else aligned(rows)
        if self.job.n_items > 1:  # else there is nothing to rank
            ids = self.items.members(block)
            plan = VisitPlan(self.samples, self.begins, self.ends, self.job.blocks, self.key)
            run_visit(
                self.users, table, plan, ids, positions_in(ids, self.job.n_items), self.positives.baskets,
                block, high, low, params, self.stats,
            )  # fmt: skip
        return table

    def end(self) -> UnitStats:
        return self.stats

    def slices(self, edges: list[int]) -> list[tuple[Codes, Floats32]]:
        """Codes and factors of its users in each range of users."""
        codes, at = self.place.codes, np.searchsorted(self.place.codes, edges)
        return [(codes[low:high], self.users[low:high, : self.job.factors]) for low, high in pairwise(at)]


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


@compiled
def positions_in(ids: Codes, n_items: int) -> Codes:
    """The position of every item among ``ids``; undefined for the others."""
    at = np.empty(n_items, np.int32)
    for n in range(len(ids)):
        at[ids[n]] = n
    return at


class VisitPlan(NamedTuple):
    samples: Samples
    begin: Longs
    end: Longs
    blocks: int
    key: np.uint64


@compiled
def run_visit(
    users: Floats32, items: Floats32, plan: VisitPlan, ids: Codes, at: Codes, baskets: Baskets | None,
    block: int, high: int, low: int, params: StepParams, stats: UnitStats,
) -> None:  # fmt: skip
    """``items`` are the rows of the block, in the order of ``ids``; ``at`` are the positions of items among these."""
    for user_block in range(high, low - 1, -1):
        unit = (block - user_block + plan.blocks) % plan.blocks * plan.blocks + user_block
        samples = plan.samples[plan.begin[unit] : plan.end[unit]]
        if len(samples):
            skipped = draw_negatives(samples, baskets, ids, stream_key(plan.key, unit, _UNIT))
            stats[unit].skipped = skipped
            stats[unit].updates = len(samples) - skipped
            for n in range(len(samples)):
                samples[n].item = at[np.uint64(samples[n].item)]
                samples[n].other = at[np.uint64(samples[n].other)]
            run_unit(users, items, samples, params, stats[unit])
