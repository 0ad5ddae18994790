"""The part of a fit that lives on one worker: its users' positives and factors, and the item blocks that pass."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from taurank._types import Codes, Floats32, Longs
from taurank.cluster.visits import Residents, recut
from taurank.data.shards import Shard, ShardedArray, read_folder, write_shard
from taurank.learners.factors import normal_rows
from taurank.sgd.kernels import pair_params
from taurank.sgd.planning import by_user
from taurank.sgd.scheduler import UnitStats, factor_table
from taurank.sgd.strata import cut_items

SNAPSHOT = "factors"


@dataclass(frozen=True)
class Job:
    """One fit, as far as the workers need to know it."""

    seed: int
    workers: int
    n_users: int
    n_items: int
    n_positives: int
    blocks: int
    factors: int
    first: tuple[int, ...]  # user blocks of each worker
    regularization: float
    steepness: float
    surrogate: int
    in_baskets: bool


class Place(NamedTuple):
    """The users of one worker: their codes in order, and the members of its blocks as positions among them."""

    codes: Codes
    members: Codes
    start: Longs


class Positives(NamedTuple):
    """Positives of a piece; users are positions in the catalog, once ``split`` among those of a worker."""

    user: Codes
    item: Codes
    weight: Floats32
    time: Codes  # empty unless the method needs baskets


class EpochReport(NamedTuple):
    """What a worker did in an epoch."""

    stats: UnitStats
    received: int  # bytes of item blocks
    busy: float  # seconds in the kernels
    planning: float  # seconds, sorting the positives by unit
    waiting: float  # seconds between the calls, for blocks and for the driver


class WorkerFit:
    """Call ``add_piece`` for every piece, then ``build``; ``start`` or ``restore``; then epochs."""

    def __init__(self, job: Job, number: int, place: Place) -> None:
        release_memory()
        self.job, self.number = job, number
        self.codes, self._members, self._start = place.codes.copy(), place.members.copy(), place.start.copy()
        self._pieces: dict[int, list[Any]] = {}
        self.users = factor_table(0, job.factors)
        self.items = cut_items(1, 1, 0, 0)
        self.blocks: dict[int, Floats32] = {}
        self._source: Any = None  # a generator or a snapshot: items of the next epoch, unless of the one before
        self.received, self.busy, self.planning, self.waiting, self.left = 0, 0.0, 0.0, 0.0, 0.0

    # loading

    def add_piece(self, number: int, positives: Positives) -> None:
        """Store the positives of one piece."""
        self._pieces[number] = [np.array(column) for column in positives]  # a copy: the original is in shared memory

    def build(self) -> int:
        """Sort the positives by user; rows keep the order they have in the files."""
        pieces = [self._pieces[number] for number in sorted(self._pieces)]
        self._pieces = {}
        user, item, weight, moment = (_joined(pieces, column) for column in range(4))
        positives = by_user(user, item, weight, len(self.codes), moment if self.job.in_baskets else None)
        del user, item, weight, moment
        first = self.job.first[self.number]
        self.residents = Residents(positives, self._members, self._start, first, self.job.blocks, self.job.n_items)
        release_memory()
        return len(positives.item)

    def start(self) -> None:
        """The factors before the first epoch: these users' part of the stream of ``FactorLearner._initial``."""
        rng = np.random.default_rng(np.random.SeedSequence(self.job.seed))
        self.users = factor_table(len(self.codes), self.job.factors)
        for first, rows in normal_rows(rng, self.job.n_users, self.job.factors):
            low, high = np.searchsorted(self.codes, (first, first + len(rows)))
            self.users[low:high, : self.job.factors] = rows[self.codes[low:high] - first]
        self._source = rng

    def restore(self, folder: Path) -> None:
        """The factors of a snapshot."""
        arrays = read_snapshot(folder)
        self.users = factor_table(len(self.codes), self.job.factors)
        self.users[:, : self.job.factors] = arrays["user_factors"][self.codes]
        self._source = arrays["item_factors"]

    # an epoch

    def plan(self, epoch: int) -> None:
        began = time.perf_counter()
        self.previous = self.items
        self.residents.plan(self.job.seed, epoch)
        self.items = self.residents.items
        self.stats = self.residents.new_stats()
        self.left = time.perf_counter()
        self.received, self.busy, self.planning, self.waiting = 0, 0.0, self.left - began, 0.0

    def begin(self, *blocks: Floats32) -> None:
        """The item blocks that this worker starts with: from all blocks of the epoch before, or from the start."""
        own = self.residents.own
        if blocks:
            self.blocks = recut(self.previous, self.items, own, list(blocks))
            self.received += sum(block.nbytes for block in blocks)
            return
        at = np.empty(self.job.n_items, np.int32)
        at[self.items.order] = np.arange(self.job.n_items, dtype=np.int32)
        sizes = np.diff(self.items.start)
        self.blocks = {b: factor_table(int(sizes[b]), self.job.factors) for b in own}
        for first, rows in self._start_items():
            home = self.items.of[first : first + len(rows)]
            for b in own:
                here = np.flatnonzero(home == b)
                self.blocks[b][at[first + here] - self.items.start[b], : self.job.factors] = rows[here]
        self._source = None

    def _start_items(self) -> Iterator[tuple[int, Floats32]]:
        if isinstance(self._source, np.random.Generator):
            yield from normal_rows(self._source, self.job.n_items, self.job.factors)
            return
        start = 0
        for part in self._source.parts:
            yield start, part
            start += len(part)

    def visit(self, block: int, high: int, low: int, rate: float, rows: Floats32 | None) -> Floats32:
        """One item block meets some of the user blocks; its rows after that."""
        self.waiting += time.perf_counter() - self.left
        if rows is None:
            table = self.blocks.pop(block)
        else:
            table = factor_table(*rows.shape)
            table[:] = rows
            self.received += table.nbytes
        began = time.perf_counter()
        if self.job.n_items > 1:  # else there is nothing to rank
            params = pair_params(rate, self.job.regularization, self.job.steepness, self.job.surrogate)
            self.residents.visit(self.users, table, block, high, low, params, self.stats)
        self.left = time.perf_counter()
        self.busy += self.left - began
        return table

    def end(self) -> EpochReport:
        return EpochReport(self.stats, self.received, self.busy, self.planning, self.waiting)

    # snapshots

    @property
    def item_range(self) -> tuple[int, int]:
        n, workers = self.job.n_items, self.job.workers
        return n * self.number // workers, n * (self.number + 1) // workers

    def _range_of(self, blocks: tuple[Floats32, ...]) -> Floats32:
        """The rows of this worker's range of items, in catalog order."""
        low, high = self.item_range
        table = factor_table(high - low, self.job.factors)
        if not blocks:  # restored, and no epoch was left to run
            table[:, : self.job.factors] = self._source[np.arange(low, high)]
        for b, rows in enumerate(blocks):
            ids = self.residents.block_items(b)
            here = np.flatnonzero((ids >= low) & (ids < high))
            table[ids[here] - low] = rows[here]
        return table

    def slices(self, edges: list[int]) -> list[tuple[Codes, Floats32]]:
        """Codes and factors of its users in each range of users."""
        at = np.searchsorted(self.codes, edges)
        return [(self.codes[low:high], self.users[low:high, : self.job.factors]) for low, high in pairwise(at)]

    def write_items(self, folder: Path, *blocks: Floats32) -> Shard:
        return write_shard(folder, "item_factors", self.number, self._range_of(blocks)[:, : self.job.factors])


def release_memory() -> None:
    """Give back to the system what reading and sorting no longer need; the allocators would keep it."""
    pa.default_memory_pool().release_unused()
    with suppress(OSError, AttributeError):  # glibc alone has it
        ctypes.CDLL(None).malloc_trim(0)


def read_snapshot(folder: Path) -> dict[str, ShardedArray]:
    """The arrays of a snapshot, memory-mapped."""
    return read_folder(folder, SNAPSHOT, check=False)[1]


def _joined(pieces: list[list[Any]], column: int) -> Any:
    parts = [piece[column] for piece in pieces]
    for piece in pieces:
        piece[column] = None  # each column is released as soon as it is copied
    return np.concatenate(parts)
