"""An epoch of training: the units of a plan, run by any number of threads to the same bits.

Threads take tickets from a shared counter in the order of the schedule. A unit starts when its own blocks have
finished the round before; it does not wait for the whole round. No two units that run at once share a row, and each
unit has draws and an order of its own, so the factors do not depend on which thread runs a unit, or when.
Waiting is free of deadlocks because the awaited units have smaller tickets, so each is done or being run.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from taurank._jit import compiled
from taurank._random import Stream, stream, stream_key
from taurank._threads import Flag, run_interruptibly, run_together
from taurank._types import Codes, Floats32, Longs
from taurank.errors import InputError
from taurank.sgd.intrinsics import LINE, fetch_add, load_acquire, store_release
from taurank.sgd.kernels import UNIT_STATS, PairParams, PointParams, run_pairs, run_points
from taurank.sgd.losses import LOGISTIC, f32
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
            sizes = (schedule.width, schedule.blocks)
            job = PassJob(positives, cut, *sizes, offsets, samples, begin, end, key, baskets or NO_BASKETS)
            planned = np.repeat([0, 1], schedule.width)  # the round of the planning has user blocks only
            return _run(_work_on_pass, factors, job, pair_params(params), planned, threads, stop)

    return total(run_interruptibly(run))


def run_pairwise_samples(
    factors: Factors, drawn: Samples, strata: Strata, seed: int, epoch: int, params: Pairwise, threads: int = 1
) -> Stats:
    """Run drawn samples (PAIR), each in the unit that owns u, i and j."""
    _check(factors, strata, 1)

    def run(stop: Flag) -> UnitStats:
        cut, schedule = strata.cut_pairs(seed, epoch), strata.schedule_pairs()
        with strata.buffer(len(drawn), drawn.dtype) as dealt:
            job = DrawnJob(*bucket_pairs(strata, cut, schedule, drawn, dealt), schedule.width, schedule.blocks)
            ready = np.zeros(3 * schedule.width, np.int64)
            return _run(_work_on_pairs, factors, job, pair_params(params), ready, threads, stop)

    return total(run_interruptibly(run))


def run_pointwise_samples(
    factors: Factors, drawn: Samples, strata: Strata, seed: int, epoch: int, params: Pointwise, threads: int = 1
) -> Stats:
    """Run drawn samples (POINT), each in the unit that owns user and item."""
    rows = int(drawn["item"].max(initial=0)) + 1
    _check(factors, strata, 2 if params.tie or rows > strata.n_items else 1)

    def run(stop: Flag) -> UnitStats:
        cut, schedule = strata.cut(seed, epoch), strata.schedule()
        with strata.buffer(len(drawn), drawn.dtype) as dealt:
            job = DrawnJob(*bucket_points(strata, cut, schedule, drawn, dealt), schedule.width, schedule.blocks)
            ready = np.zeros(2 * schedule.width, np.int64)
            return _run(_work_on_points, factors, job, point_params(params), ready, threads, stop)

    return total(run_interruptibly(run))


class PassJob(NamedTuple):
    """A pass over positives. Its first round plans the user blocks, the others run the units."""

    positives: Positives
    cut: Cut
    width: int  # units per round
    blocks: Codes  # of every unit
    offsets: Longs  # where the samples of each user block begin
    samples: Samples
    begin: Longs  # of every unit's samples, written by the planning
    end: Longs
    key: np.uint64
    baskets: Baskets


class DrawnJob(NamedTuple):
    """Samples that were drawn and sorted by unit."""

    samples: Samples
    start: Longs  # units + 1
    width: int  # units per round
    blocks: Codes  # of every unit


class BlockProgress(NamedTuple):
    """What the threads share."""

    taken: Longs  # number of tickets
    reached: Longs  # rounds that each block has finished, user blocks first
    stop: Flag


def _run(
    work: Callable[..., int], factors: Factors, job: Any, params: Any, reached: Longs, threads: int, stop: Flag
) -> UnitStats:
    """Let the threads work until no ticket is left."""
    units = len(job.blocks)
    stats, progress = np.zeros(units, UNIT_STATS), BlockProgress(np.zeros(1, np.int64), reached, stop)

    def take_tickets() -> None:
        ticket = work(-1, factors, job, params, progress, stats)
        while ticket >= 0:
            time.sleep(PAUSE)
            ticket = work(ticket, factors, job, params, progress, stats)

    run_together(take_tickets, min(threads, job.width), stop)
    return stats


@compiled
def _work_on_pass(
    ticket: int, factors: Factors, job: PassJob, params: PairParams, progress: BlockProgress, stats: UnitStats
) -> int:
    """Plan and run units until none is left (return −1), or until a ticket waited long (return it, to resume)."""
    while True:
        ticket = take_ticket(ticket, job.width + len(stats), progress)
        unit = ticket - job.width
        if ticket < 0 or (unit >= 0 and not blocks_ready(job.blocks[unit], 1 + unit // job.width, progress)):
            return ticket
        if unit < 0:
            plan_users(job.cut, job.positives, ticket, job.offsets[ticket], job.samples, job.begin, job.end)
            store_release(progress.reached, ticket, 1)
        else:
            _run_planned(factors, job, params, unit, stats)
            finish_blocks(job.blocks[unit], 1 + unit // job.width, progress)
        ticket = -1


@compiled
def _work_on_pairs(
    ticket: int, factors: Factors, job: DrawnJob, params: PairParams, progress: BlockProgress, stats: UnitStats
) -> int:
    """Run units of drawn pairs; returns as ``_work_on_pass``."""
    while True:
        ticket = take_ticket(ticket, len(stats), progress)
        if ticket < 0 or not blocks_ready(job.blocks[ticket], ticket // job.width, progress):
            return ticket
        samples = job.samples[job.start[ticket] : job.start[ticket + 1]]
        if len(samples):
            stats[ticket].updates = len(samples)
            run_pairs(factors.users, factors.items, samples, params, stats[ticket])
        finish_blocks(job.blocks[ticket], ticket // job.width, progress)
        ticket = -1


@compiled
def _work_on_points(
    ticket: int, factors: Factors, job: DrawnJob, params: PointParams, progress: BlockProgress, stats: UnitStats
) -> int:
    """Run units of drawn single items; returns as ``_work_on_pass``."""
    while True:
        ticket = take_ticket(ticket, len(stats), progress)
        if ticket < 0 or not blocks_ready(job.blocks[ticket], ticket // job.width, progress):
            return ticket
        samples = job.samples[job.start[ticket] : job.start[ticket + 1]]
        if len(samples):
            stats[ticket].updates = len(samples)
            run_points(factors.users, factors.items, samples, params, stats[ticket])
        finish_blocks(job.blocks[ticket], ticket // job.width, progress)
        ticket = -1


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


@compiled
def _run_planned(factors: Factors, job: PassJob, params: PairParams, unit: int, stats: UnitStats) -> None:
    samples = job.samples[job.begin[unit] : job.end[unit]]
    if len(samples) == 0:
        return
    block = job.blocks[unit, 1] - job.width
    items = job.cut.item_order[job.cut.item_start[block] : job.cut.item_start[block + 1]]
    key = stream_key(job.key, unit, _UNIT)
    skipped = draw_negatives(samples, job.positives.in_baskets, job.baskets, items, key)
    stats[unit].skipped = skipped
    stats[unit].updates = len(samples) - skipped
    run_pairs(factors.users, factors.items, samples, params, stats[unit])


def total(stats: UnitStats) -> Stats:
    """Add up in the order of the units."""
    measured = max(int(stats["measured"].sum()), 1)
    loss, zero_loss = (float(stats[name].sum()) / measured for name in ("loss", "zero_loss"))
    updates, skipped = (int(stats[name].sum()) for name in ("updates", "skipped"))
    return Stats(loss, updates, skipped, not stats["overflows"].any(), zero_loss)


def pair_params(params: Pairwise) -> PairParams:
    """The hyper-parameters of a step as the kernels take them."""
    eta, gamma = params.learning_rate, params.regularization
    return PairParams(params.surrogate, f32(params.steepness), f32(eta), f32(1 - eta * gamma))


def point_params(params: Pointwise) -> PointParams:
    eta, gamma = params.learning_rate, params.regularization
    return PointParams(f32(eta), f32(1 - eta * gamma), f32(eta * params.tie))


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
