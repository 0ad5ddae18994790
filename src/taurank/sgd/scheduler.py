"""An epoch of training: the units of a plan, run by any number of threads to the same bits.

Threads take tickets from a shared counter in the order of the plan. A unit starts when its own blocks have
finished the round before; it does not wait for the whole round. No two units that run at once share a row, and each
unit has draws and an order of its own, so the factors do not depend on which thread runs a unit, or when.
Waiting is free of deadlocks because the awaited units have smaller tickets, so each is done or being run.
"""

from __future__ import annotations

import time
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from taurank._jit import compiled
from taurank._random import Stream, stream, stream_key
from taurank._threads import Flag, map_blocks, run_interruptibly, run_together, share_blocks
from taurank._types import Codes, Floats32, Longs
from taurank.sgd.intrinsics import LINE, fetch_add, load_acquire
from taurank.sgd.kernels import UNIT_STATS, StepParams, fold_users, run_unit
from taurank.sgd.negatives import draw_negatives
from taurank.sgd.strata import SAMPLE, Baskets, Positives, Samples, Strata, deal, plan_users

COLUMNS = 8  # the width of a factor table is a multiple of it, so that rows consist of whole vectors
GUARD = 64  # floats between two tables: rows closer than the longest vector loop might run other instructions
LOOKS = 1000  # at its blocks, some microseconds, before a waiting thread sleeps and others can use its core
PAUSE = 5e-5  # seconds
RISE = 10.0  # times the loss of a model whose scores are all 0: more means divergence; ordinary fits stay below 2

UnitStats = npt.NDArray[np.void]  # of UNIT_STATS
_UNIT = int(Stream.UNIT)


class Factors(NamedTuple):
    """User and item factors, updated in place; make them with ``factor_table``."""

    users: Floats32
    items: Floats32


class Stats(NamedTuple):
    """What an epoch did.

    ``loss`` is the mean, without regularization, over a sub-sample (about one update in 64), each before its step.
    ``zero_loss`` is the mean of the absolute loss of the same samples if all scores were 0, as they nearly are
    before training. ``skipped`` positives found no item outside their basket in their block.
    """

    loss: float = 0.0
    updates: int = 0
    skipped: int = 0
    finite: bool = True
    zero_loss: float = np.inf

    @property
    def diverged(self) -> bool:
        """Scores overflow, or the loss is far above that of an untrained model."""
        return not (self.finite and np.isfinite(self.loss) and self.loss <= RISE * self.zero_loss)


def factor_table(rows: int, factors: int) -> Floats32:
    """Zeros, rows × (factors rounded up to whole vectors), aligned to a cache line.

    Columns beyond ``factors`` stay zero under every update, so ``table[:, :factors]`` is the model.
    """
    columns = -(-factors // COLUMNS) * COLUMNS
    memory = np.zeros(rows * columns + 2 * GUARD, np.float32)
    per_line = LINE // memory.itemsize
    skip = GUARD - per_line + -(memory.ctypes.data // memory.itemsize) % per_line
    return memory[skip : skip + rows * columns].reshape(rows, columns)


def run_pairwise_epoch(
    factors: Factors, positives: Positives, strata: Strata, seed: int, epoch: int, params: StepParams,
    threads: int = 1, memory: Samples | None = None,
) -> Stats:  # fmt: skip
    """One pass over the positives, each with a random j of its item block.

    j is uniform over the items other than i or, with baskets, over those outside the basket. ``memory`` is room for
    as many samples as there are positives: new pages for every epoch would cost a third of a plan.
    """
    if strata.n_items == 1:  # no j != i: there is nothing to rank
        return Stats()

    samples = np.empty(len(positives.item), SAMPLE) if memory is None else memory
    begin, end = np.zeros((2, len(strata.units)), np.int64)

    def run(stop: Flag) -> UnitStats:
        cut = strata.cut(seed, epoch)

        def plan(first: int, last: int) -> None:
            plan_users(cut, positives, first, last, samples, begin, end)

        share_blocks(plan, strata.width, threads, stop)
        draws = Draws(cut.items.order, cut.items.start, positives.baskets, stream(seed, epoch, Stream.NEGATIVES))
        return _run(factors, Job(samples, begin, end, strata.width, strata.units), draws, params, threads, stop)

    return total(run_interruptibly(run))


def run_samples(
    factors: Factors, drawn: Samples, strata: Strata, seed: int, epoch: int, params: StepParams,
    threads: int = 1, memory: Samples | None = None,
) -> Stats:  # fmt: skip
    """Run drawn samples, pairs or single items, each in the unit that owns its rows; ``memory`` has room for them."""

    def run(stop: Flag) -> UnitStats:
        dealt = np.empty_like(drawn) if memory is None else memory
        start = deal(drawn, dealt, strata.cut(seed, epoch), strata.owners, len(strata.units))
        job = Job(dealt, start[:-1], start[1:], strata.width, strata.units)
        return _run(factors, job, None, params, threads, stop)

    return total(run_interruptibly(run))


def fold_samples(factors: Factors, samples: Samples, params: StepParams, threads: int = 1) -> None:
    """Steps along samples, user by user; only user rows move.

    Each user is trained alone, so neither the other users nor the number of threads change a bit."""
    n_users = len(factors.users)
    samples = samples[np.argsort(samples["user"], kind="stable")]
    start = np.searchsorted(samples["user"], np.arange(n_users + 1)).astype(np.int64)
    map_blocks(lambda begin, end: fold_users(*factors, samples, start, params, begin, end), n_users, threads)


class Job(NamedTuple):
    """The samples of every unit, and what a unit needs to start."""

    samples: Samples
    begin: Longs  # of every unit's samples
    end: Longs
    width: int  # units per round
    units: Codes  # the blocks of every unit


class Draws(NamedTuple):
    """Where the negatives of a unit come from: the items of its block, outside the baskets if there are any."""

    order: Codes
    start: Longs
    baskets: Baskets | None
    key: np.uint64


class BlockProgress(NamedTuple):
    """What the threads share."""

    taken: Longs  # units
    reached: Longs  # rounds that each block has finished, user blocks first
    stop: Flag


def _run(factors: Factors, job: Job, draws: Draws | None, params: StepParams, threads: int, stop: Flag) -> UnitStats:
    """Let the threads work until no ticket is left."""
    stats, reached = np.zeros(len(job.units), UNIT_STATS), np.zeros(job.units.max() + 1, np.int64)
    progress = BlockProgress(np.zeros(1, np.int64), reached, stop)

    def take_tickets() -> None:
        unit = _work(-1, factors, job, draws, params, progress, stats)
        while unit >= 0:
            time.sleep(PAUSE)
            unit = _work(unit, factors, job, draws, params, progress, stats)

    run_together(take_tickets, min(threads, job.width), stop)
    return stats


@compiled
def _work(
    unit: int, factors: Factors, job: Job, draws: Draws | None, params: StepParams,
    progress: BlockProgress, stats: UnitStats,
) -> int:  # fmt: skip
    """Run units until none is left (return −1), or until one waited long (return it, to resume)."""
    while True:
        unit = take_ticket(unit, len(stats), progress)
        if unit < 0 or not blocks_ready(job.units[unit], unit // job.width, progress):
            return unit
        samples = job.samples[job.begin[unit] : job.end[unit]]
        if len(samples):
            if draws is not None:
                block = job.units[unit, 1] - job.width
                items = draws.order[draws.start[block] : draws.start[block + 1]]
                key = stream_key(draws.key, unit, _UNIT)
                stats[unit].skipped = draw_negatives(samples, draws.baskets, items, key)
            stats[unit].updates = len(samples) - stats[unit].skipped
            run_unit(factors.users, factors.items, samples, params, stats[unit])
        finish_blocks(job.units[unit], progress)
        unit = -1


@compiled
def take_ticket(unit: int, units: int, progress: BlockProgress) -> int:
    """The given unit or, if it is −1, the next one; −1 if none is left or all must stop."""
    if load_acquire(progress.stop, 0):
        return -1
    if unit < 0:
        unit = fetch_add(progress.taken, 0)
    return unit if unit < units else -1


@compiled
def blocks_ready(blocks: Codes, turn: int, progress: BlockProgress) -> bool:
    """Whether the blocks of a unit have finished all rounds before; looks for a while."""
    for _ in range(LOOKS):
        waiting = False
        for block in blocks:
            waiting |= load_acquire(progress.reached, np.int64(block)) < turn
        if not waiting:
            return True
    return False


@compiled
def finish_blocks(blocks: Codes, progress: BlockProgress) -> None:
    """The blocks of a unit have finished a round."""
    for block in blocks:
        fetch_add(progress.reached, np.int64(block))


def total(stats: UnitStats) -> Stats:
    """Add up in the order of the units."""
    sums = {name: stats[name].sum() for name in UNIT_STATS.names or ()}
    measured = max(int(sums["measured"]), 1)
    loss, zero_loss = float(sums["loss"]) / measured, float(sums["zero_loss"]) / measured
    return Stats(loss, int(sums["updates"]), int(sums["skipped"]), not sums["overflows"], zero_loss)
