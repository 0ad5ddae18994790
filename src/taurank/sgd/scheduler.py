"""An epoch of training: the units of a plan, run by any number of threads to the same bits.

Threads take tickets from a shared counter: first to plan the user blocks, then to run the units in
the schedule's order. A unit starts as soon as its blocks have finished the round before; nobody
waits for a whole round to end. No two units that run at once share a row, and each one's draws
and order are its own: which thread runs it, and when, leaves no trace in the factors.
"""

from __future__ import annotations

import threading
import time
from typing import Any, NamedTuple

import numpy as np

from taurank._jit import compiled
from taurank._random import Stream, stream, stream_key
from taurank.errors import InputError
from taurank.sgd.intrinsics import WIDTH, fetch_add, load_acquire, store_release
from taurank.sgd.kernels import (
    Statistics,
    StepParams,
    draw_others,
    draw_outside,
    run_pairs,
    run_points,
)
from taurank.sgd.losses import LOGISTIC, f32
from taurank.sgd.planning import block_offsets, bucket_by_unit, plan_users
from taurank.sgd.samples import Baskets, Floats, Longs, Positives, Samples
from taurank.sgd.strata import Cut, Schedule, Strata

PATIENCE = 1000  # looks at the board before a waiting thread gives way


class Factors(NamedTuple):
    """User and item factors, updated in place; make them with `factor_table`."""

    users: Floats
    items: Floats


class Pairwise(NamedTuple):
    """Hyper-parameters of a pairwise epoch."""

    learning_rate: float
    regularization: float
    steepness: float = 1.0
    surrogate: int = LOGISTIC


class Pointwise(NamedTuple):
    """Hyper-parameters of a pointwise epoch; `tie` is lambda_c."""

    learning_rate: float
    regularization: float
    tie: float = 0.0


class Stats(NamedTuple):
    """What an epoch did. `skipped` positives found no item outside their basket in their block."""

    loss: float  # mean over the measured updates, without the regularisation
    updates: int
    skipped: int
    finite: bool


def factor_table(rows: int, factors: int) -> Floats:
    """Zeros, rows x (factors rounded up to whole vectors), on a cache line's edge.

    Columns beyond `factors` stay zero under every update, so `table[:, :factors]` is the model."""
    columns = -(-factors // WIDTH) * WIDTH
    line = 16
    memory = np.zeros(rows * columns + line, np.float32)
    skip = -(memory.ctypes.data // memory.itemsize) % line
    return memory[skip : skip + rows * columns].reshape(rows, columns)


def run_pairwise_epoch(
    tables: Factors, positives: Positives, strata: Strata, seed: int, epoch: int,
    rule: Pairwise, threads: int = 1, baskets: Baskets | None = None,
) -> Stats:  # fmt: skip
    """One pass over the positives, each with a random j of its item block.

    j is uniform over the items other than i or, with `baskets`, over those outside the basket."""
    _check(tables, strata, 1)
    if strata.n_items == 1:  # no j != i: there is nothing to rank
        return Stats(0.0, 0, 0, True)
    cut, schedule = strata.cut(seed, epoch), strata.schedule()
    begin = np.zeros((2, len(schedule.user)), np.int64)
    job = _Job(
        block_offsets(cut, positives.start), begin[0], begin[1], stream(seed, epoch, Stream.NEGATIVES),
        baskets or Baskets(np.zeros(1, np.int64), np.zeros(0, np.int32)),
    )  # fmt: skip
    with strata.room(len(positives.item)) as samples:
        return _run(tables, positives, cut, schedule, samples, job, _pair_rule(rule), threads)


def run_pairwise_samples(
    tables: Factors, drawn: Samples, strata: Strata, seed: int, epoch: int,
    rule: Pairwise, threads: int = 1,
) -> Stats:  # fmt: skip
    """Run drawn samples (u, i, j, signed weight), each in the unit that holds u, i and j."""
    _check(tables, strata, 1)
    cut, schedule = strata.cut_pairs(seed, epoch), strata.schedule_pairs()
    return _run_drawn(tables, drawn, strata, cut, schedule, _pair_rule(rule), threads)


def run_pointwise_samples(
    tables: Factors, drawn: Samples, strata: Strata, seed: int, epoch: int,
    rule: Pointwise, threads: int = 1,
) -> Stats:  # fmt: skip
    """Run drawn samples (u, row, tied row, target), each in the unit that holds u and its item.

    With two item tables, stacked, row i + n_items is item i in the second one; `other` is the
    row that `tie` draws the sample's row to, and is not looked at where tie = 0."""
    _check(tables, strata, 2 if rule.tie else 1)
    cut, schedule = strata.cut(seed, epoch), strata.schedule()
    return _run_drawn(tables, drawn, strata, cut, schedule, _point_rule(rule), threads)


class _Job(NamedTuple):
    """What a worker needs besides the samples: where units lie and which draws are theirs."""

    offsets: Longs  # per user block, for planning; empty if the samples are dealt already
    begin: Longs
    end: Longs
    key: Any
    baskets: Baskets


class _Board(NamedTuple):
    """Shared by the workers: the next ticket, and the round that each block has reached."""

    ticket: Longs
    users: Longs
    items: Longs


def _pair_rule(rule: Pairwise) -> StepParams:
    rate, omega = rule.learning_rate, rule.steepness
    return StepParams(False, rule.surrogate, f32(omega), f32(rate), f32(1 - rate * rule.regularization), f32(0))


def _point_rule(rule: Pointwise) -> StepParams:
    rate = rule.learning_rate
    keep, tie = f32(1 - rate * rule.regularization), f32(rate * rule.tie)
    return StepParams(True, LOGISTIC, f32(1), f32(rate), keep, tie)


def _check(tables: Factors, strata: Strata, item_tables: int) -> None:
    for name, table, rows in (
        ("user", tables.users, strata.n_users),
        ("item", tables.items, strata.n_items * item_tables),
    ):
        fits = table.dtype == np.float32 and table.flags.c_contiguous and table.ndim == 2
        if not fits or table.shape[0] < rows or table.shape[1] % WIDTH:
            raise InputError(
                f"The {name} factors are {table.dtype} of shape {table.shape}, not float32 with "
                f"{rows} rows and columns in multiples of {WIDTH}; make them with factor_table."
            )
    if tables.users.shape[1] != tables.items.shape[1]:
        raise InputError("User and item factors differ in their number of columns.")


def _run_drawn(
    tables: Factors, drawn: Samples, strata: Strata, cut: Cut, schedule: Schedule,
    rule: StepParams, threads: int,
) -> Stats:  # fmt: skip
    if len(drawn) and int(drawn["item"].max()) >= len(tables.items):
        raise InputError(f"Drawn samples reach item row {drawn['item'].max()} of {len(tables.items)} rows.")
    samples, start = bucket_by_unit(strata, cut, schedule, drawn)
    nothing = np.zeros(0, np.int64)
    none = np.zeros(0, np.int32)
    positives = Positives(nothing, none, np.zeros(0, np.float32), none)
    begin, end = start[:-1].copy(), start[1:].copy()
    job = _Job(nothing, begin, end, np.uint64(0), Baskets(nothing, none))
    return _run(tables, positives, cut, schedule, samples, job, rule, threads)


def _run(
    tables: Factors, positives: Positives, cut: Cut, schedule: Schedule, samples: Samples,
    job: _Job, rule: StepParams, threads: int,
) -> Stats:  # fmt: skip
    """Let `threads` workers take tickets until none is left; add up in the units' order."""
    statistics = np.zeros((len(schedule.user), 5))
    unplanned = -1 if len(job.offsets) else 0
    board = _Board(
        np.zeros(1, np.int64),
        np.full(len(cut.user_start) - 1, unplanned, np.int64),
        np.zeros(len(cut.item_start) - 1, np.int64),
    )
    work = (tables, positives, cut, schedule, samples, job, rule, board, statistics)
    helpers = [threading.Thread(target=_work, args=work) for _ in range(threads - 1)]
    for helper in helpers:
        helper.start()
    _work(*work)
    for helper in helpers:
        helper.join()
    loss, measured, updates, skipped, diverged = (statistics[:, n].sum() for n in range(5))
    return Stats(float(loss / max(measured, 1)), int(updates), int(skipped), not diverged)


def _work(*work: Any) -> None:
    """One thread's part of an epoch; where it must wait for long, others may have the processor."""
    ticket = _take_tickets(-1, *work)
    while ticket >= 0:
        time.sleep(0)
        ticket = _take_tickets(ticket, *work)


@compiled
def _take_tickets(
    ticket: int, tables: Factors, positives: Positives, cut: Cut, schedule: Schedule,
    samples: Samples, job: _Job, rule: StepParams, board: _Board, statistics: Statistics,
) -> int:  # fmt: skip
    """Take tickets: first plan the user blocks, then run the units in the schedule's order.

    A unit waits until its blocks have finished the round before. Whoever it waits for holds an
    earlier ticket and is at work, so nobody waits for ever. Returns a ticket that waited too
    long, to be brought back, or -1 when all is done."""
    planning = max(len(job.offsets) - 1, 0)
    while True:
        if ticket < 0:
            ticket = fetch_add(board.ticket)
        unit = ticket - planning
        if unit >= len(schedule.user):
            return -1
        if unit < 0:
            block = unit + planning
            plan_users(cut, positives, block, job.offsets[block], samples, job.begin, job.end)
            store_release(board.users, block, 0)
            ticket = -1
            continue
        a, b, c = schedule.user[unit], schedule.first[unit], schedule.second[unit]
        turn = unit // schedule.width
        patience = PATIENCE
        while min(load_acquire(board.users, a), load_acquire(board.items, b), load_acquire(board.items, c)) < turn:
            patience -= 1
            if patience == 0:
                return ticket
        _run_unit(tables, cut, b, unit, samples, job, rule, statistics[unit])
        _tell(board, a, b, c, turn + 1)
        ticket = -1


@compiled
def _tell(board: _Board, a: int, b: int, c: int, turn: int) -> None:
    """Free a unit's blocks for the next round, each once.

    As soon as a block is free another thread may take it further: a second post of this round
    would set it back, and all would wait for ever."""
    store_release(board.users, a, turn)
    store_release(board.items, b, turn)
    if c != b:
        store_release(board.items, c, turn)


@compiled
def _run_unit(
    tables: Factors, cut: Cut, item_block: int, unit: int, samples: Samples,
    job: _Job, rule: StepParams, statistics: Statistics,
) -> None:  # fmt: skip
    """Hand the unit's own slices to its kernel: it sees nothing else."""
    part = samples[job.begin[unit] : job.end[unit]]
    if len(part) == 0:
        return
    if len(job.offsets):
        items = cut.item_order[cut.item_start[item_block] : cut.item_start[item_block + 1]]
        key = stream_key(job.key, unit, 0)
        if len(job.baskets.item):
            statistics[3] = draw_outside(part, job.baskets, items, key)
        else:
            draw_others(part, items, key)
    statistics[2] = len(part) - statistics[3]
    if rule.pointwise:
        run_points(tables.users, tables.items, part, rule, statistics)
    else:
        run_pairs(tables.users, tables.items, part, rule, statistics)
