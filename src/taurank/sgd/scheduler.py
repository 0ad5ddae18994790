"""An epoch of training: the units of a plan, run by any number of threads to the same bits.

Threads take tickets from a shared counter in the order of the schedule. A unit starts when its own blocks have
finished the round before; it does not wait for the whole round. No two units that run at once share a row, and each
unit has draws and an order of its own, so the factors do not depend on which thread runs a unit, or when.
Waiting is free of deadlocks because the awaited units have smaller tickets, so each is done or being run.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from taurank._jit import compiled
from taurank._random import Stream, stream, stream_key
from taurank._threads import Flag, run_interruptibly, run_together
from taurank._types import Codes, Floats32, Longs
from taurank.errors import InputError
from taurank.sgd.intrinsics import LINE, fetch_add, load_acquire, store_release
from taurank.sgd.kernels import UNIT_STATS, StepParams, run_unit
from taurank.sgd.losses import LOGISTIC, POINTWISE, f32
from taurank.sgd.negatives import draw_negatives
from taurank.sgd.planning import block_offsets, bucket_pairs, bucket_points, plan_users
from taurank.sgd.samples import NO_BASKETS, Baskets, Positives, Samples
from taurank.sgd.strata import Cut, Strata

COLUMNS = 8  # the width of a factor table is a multiple of it, so that rows consist of whole vectors
GUARD = 64  # floats between two tables: rows closer than the longest vector loop might run other instructions
LOOKS = 1000  # at its blocks, some microseconds, before a waiting thread sleeps and others can use its core
PAUSE = 5e-5  # seconds
RISE = 10.0  # times the loss of a model whose scores are all 0: more means divergence; ordinary fits stay below 2

UnitStats = npt.NDArray[Any]  # of UNIT_STATS
_UNIT = int(Stream.UNIT)


class Factors(NamedTuple):
    """User and item factors, updated in place; make them with ``factor_table``."""

    users: Floats32
    items: Floats32


class Pairwise(NamedTuple):
    """Hyper-parameters of a pairwise epoch."""

    learning_rate: float
    regularization: float
    steepness: float = 1.0
    surrogate: int = LOGISTIC


class Pointwise(NamedTuple):
    """Hyper-parameters of a pointwise epoch; ``tie`` is λ_c."""

    learning_rate: float
    regularization: float
    tie: float = 0.0


class Stats(NamedTuple):
    """What an epoch did.

    ``loss`` is the mean, without regularization, over a sub-sample (about one update in 64), each before its step.
    ``zero_loss`` is the mean of the absolute loss of the same samples if all scores were 0, as they nearly are
    before training. ``skipped`` positives found no item outside their basket in their block.
    """

    loss: float
    updates: int
    skipped: int
    finite: bool
    zero_loss: float = np.inf

    @property
    def diverged(self) -> bool:
        """Scores overflow, or the loss is far above that of an untrained model."""
        return not (self.finite and np.isfinite(self.loss) and self.loss <= RISE * self.zero_loss)


NOTHING_DONE = Stats(0.0, 0, 0, True)


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
    factors: Factors, positives: Positives, strata: Strata, seed: int, epoch: int,
    params: Pairwise, threads: int = 1, baskets: Baskets | None = None,
) -> Stats:  # fmt: skip
    """One pass over the positives, each with a random j of its item block.

    j is uniform over the items other than i or, with ``baskets``, over those outside the basket.
    """
    _check(factors, strata, 1)
    if strata.n_items == 1:  # no j != i: there is nothing to rank
        return NOTHING_DONE

    def run(stop: Flag) -> UnitStats:
        cut, schedule = strata.cut(seed, epoch), strata.schedule()
        begin, end = np.zeros((2, len(schedule.blocks)), np.int64)
        key, offsets = stream(seed, epoch, Stream.NEGATIVES), block_offsets(cut, positives.start)
        with strata.buffer(len(positives.item)) as samples:
            job = Job(samples, begin, end, schedule.width, schedule.blocks)
            return _run(
                factors, job, Pass(positives, cut, offsets, key, baskets or NO_BASKETS), params, threads, stop
            )

    return total(run_interruptibly(run))


def run_samples(
    factors: Factors, drawn: Samples, strata: Strata, seed: int, epoch: int,
    params: Pairwise | Pointwise, threads: int = 1,
) -> Stats:  # fmt: skip
    """Run drawn samples, pairs or single items, each in the unit that owns its rows."""
    one_table = isinstance(params, Pairwise) or (not params.tie and drawn["item"].max(initial=0) < strata.n_items)
    _check(factors, strata, 1 if one_table else 2)

    def run(stop: Flag) -> UnitStats:
        with strata.buffer(len(drawn)) as dealt:
            if isinstance(params, Pairwise):
                cut, schedule = strata.cut_pairs(seed, epoch), strata.schedule_pairs()
                start = bucket_pairs(strata, cut, schedule, drawn, dealt)[1]
            else:
                cut, schedule = strata.cut(seed, epoch), strata.schedule()
                start = bucket_points(strata, cut, schedule, drawn, dealt)[1]
            job = Job(dealt, start[:-1], start[1:], schedule.width, schedule.blocks)
            return _run(factors, job, None, params, threads, stop)

    return total(run_interruptibly(run))


class Job(NamedTuple):
    """The samples of every unit, and what a unit needs to start."""

    samples: Samples
    begin: Longs  # of every unit's samples
    end: Longs
    width: int  # units per round
    blocks: Codes  # of every unit


class Pass(NamedTuple):
    """A pass over positives: a first round plans the user blocks, which writes the samples and where units begin."""

    positives: Positives
    cut: Cut
    offsets: Longs  # where the samples of each user block begin
    key: np.uint64
    baskets: Baskets


class BlockProgress(NamedTuple):
    """What the threads share."""

    taken: Longs  # number of tickets
    reached: Longs  # rounds that each block has finished, user blocks first
    stop: Flag


def _run(
    factors: Factors, job: Job, planning: Pass | None, params: Pairwise | Pointwise, threads: int, stop: Flag
) -> UnitStats:
    """Let the threads work until no ticket is left."""
    stats, reached = np.zeros(len(job.blocks), UNIT_STATS), np.zeros(job.blocks.max() + 1, np.int64)
    reached[job.width :] = planning is not None  # the round of the planning has user blocks only
    progress, steps = BlockProgress(np.zeros(1, np.int64), reached, stop), step_params(params)

    def take_tickets() -> None:
        ticket = _work(-1, factors, job, planning, steps, progress, stats)
        while ticket >= 0:
            time.sleep(PAUSE)
            ticket = _work(ticket, factors, job, planning, steps, progress, stats)

    run_together(take_tickets, min(threads, job.width), stop)
    return stats


@compiled
def _work(
    ticket: int, factors: Factors, job: Job, planning: Pass | None, params: StepParams,
    progress: BlockProgress, stats: UnitStats,
) -> int:  # fmt: skip
    """Plan and run units until none is left (return −1), or until a ticket waited long (return it, to resume)."""
    planned = 0 if planning is None else job.width
    while True:
        ticket = take_ticket(ticket, planned + len(stats), progress)
        unit, turn = ticket - planned, ticket // job.width
        if ticket < 0 or (unit >= 0 and not blocks_ready(job.blocks[unit], turn, progress)):
            return ticket
        if unit >= 0:
            _run_unit(factors, job, planning, params, unit, stats)
            finish_blocks(job.blocks[unit], turn, progress)
        elif planning is not None:
            positives, offset = planning.positives, planning.offsets[ticket]
            plan_users(planning.cut, positives, ticket, offset, job.samples, job.begin, job.end)
            store_release(progress.reached, ticket, 1)
        ticket = -1


@compiled
def _run_unit(
    factors: Factors, job: Job, planning: Pass | None, params: StepParams, unit: int, stats: UnitStats
) -> None:
    samples = job.samples[job.begin[unit] : job.end[unit]]
    if len(samples) == 0:
        return
    if planning is not None:
        cut, block = planning.cut, job.blocks[unit, 1] - job.width
        items = cut.item_order[cut.item_start[block] : cut.item_start[block + 1]]
        key = stream_key(planning.key, unit, _UNIT)
        stats[unit].skipped = draw_negatives(samples, planning.positives.in_baskets, planning.baskets, items, key)
    stats[unit].updates = len(samples) - stats[unit].skipped
    run_unit(factors.users, factors.items, samples, params, stats[unit])


@compiled
def take_ticket(ticket: int, tickets: int, progress: BlockProgress) -> int:
    """The given ticket or, if it is −1, the next one; −1 if none is left or all must stop."""
    if load_acquire(progress.stop, 0):
        return -1
    if ticket < 0:
        ticket = fetch_add(progress.taken)
    return ticket if ticket < tickets else -1


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
def finish_blocks(blocks: Codes, turn: int, progress: BlockProgress) -> None:
    for block in blocks:
        store_release(progress.reached, np.int64(block), turn + 1)


def total(stats: UnitStats) -> Stats:
    """Add up in the order of the units."""
    measured = max(int(stats["measured"].sum()), 1)
    loss, zero_loss = (float(stats[name].sum()) / measured for name in ("loss", "zero_loss"))
    updates, skipped = (int(stats[name].sum()) for name in ("updates", "skipped"))
    return Stats(loss, updates, skipped, not stats["overflows"].any(), zero_loss)


def step_params(params: Pairwise | Pointwise) -> StepParams:
    """The hyper-parameters of a step as the kernels take them."""
    eta, shrink = params.learning_rate, 1 - params.learning_rate * params.regularization
    if isinstance(params, Pairwise):
        return StepParams(params.surrogate, f32(params.steepness), f32(eta), f32(shrink), f32(0))
    return StepParams(POINTWISE, f32(1), f32(eta), f32(shrink), f32(eta * params.tie))


def _check(factors: Factors, strata: Strata, item_tables: int) -> None:
    for name, table, rows in (
        ("user", factors.users, strata.n_users),
        ("item", factors.items, strata.n_items * item_tables),
    ):
        fits = table.dtype == np.float32 and table.flags.c_contiguous and table.ndim == 2
        if not fits or table.shape[0] < rows or table.shape[1] % COLUMNS:
            raise InputError(
                f"the {name} factors are {table.dtype} of shape {table.shape}, not float32 with at least "
                f"{rows} rows and a multiple of {COLUMNS} columns; make them with factor_table."
            )
    if factors.users.shape[1] != factors.items.shape[1]:
        raise InputError("user and item factors differ in their number of columns.")
