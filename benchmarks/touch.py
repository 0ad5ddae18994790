"""The bare cost of memory: read and write the three rows of every sample, and nothing else.

The samples are those of an epoch of training, planned and drawn beforehand, and the units run in the same order
on as many threads under the same rules. What training costs beyond it is arithmetic, planning and drawing.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np

from taurank._jit import compiled
from taurank._random import Stream, stream, stream_key
from taurank.estimation.gains import Gains
from taurank.sgd.intrinsics import fetch_add, load_acquire, store_release
from taurank.sgd.kernels import draw_others
from taurank.sgd.planning import block_offsets, by_user, plan_users
from taurank.sgd.samples import SAMPLE, Floats, Longs, Samples
from taurank.sgd.scheduler import Factors
from taurank.sgd.strata import Cut, Schedule, Strata


class Touch:
    """Epochs that only touch the rows."""

    def __init__(self, cells: Gains, tables: Factors, threads: int) -> None:
        self.tables, self.threads = tables, threads
        self.strata = Strata(cells.n_users, cells.n_items, len(cells))
        self.positives = by_user(cells.user, cells.item, cells.value, cells.n_users, cells.n_items)
        self.samples = np.empty(len(cells), SAMPLE)

    def seconds(self, epoch: int, times: int) -> float:
        """Seconds of a pass over the rows of one planned epoch, the mean of several."""
        cut, schedule = self.strata.cut(0, epoch), self.strata.schedule()
        begin, end = np.zeros((2, len(schedule.user)), np.int64)
        offsets = block_offsets(cut, self.positives.start)
        for block in range(self.strata.blocks):
            plan_users(cut, self.positives, block, offsets[block], self.samples, begin, end)
        _draw(cut, schedule, self.samples, begin, end, stream(0, epoch, Stream.NEGATIVES))
        began = time.perf_counter()
        for _ in range(times):
            self._pass(schedule, begin, end)
        return (time.perf_counter() - began) / times

    def _pass(self, schedule: Schedule, begin: Longs, end: Longs) -> None:
        board = [np.zeros(size, np.int64) for size in (1, self.strata.blocks, self.strata.blocks)]
        work = (*self.tables, schedule, self.samples, begin, end, *board)
        helpers = [threading.Thread(target=_work, args=work) for _ in range(self.threads - 1)]
        for helper in helpers:
            helper.start()
        _work(*work)
        for helper in helpers:
            helper.join()


def _work(*work: Any) -> None:
    unit = -1
    while (unit := _take_units(unit, *work)) >= 0:
        time.sleep(0)


@compiled
def _draw(cut: Cut, schedule: Schedule, samples: Samples, begin: Longs, end: Longs, key: Any) -> None:
    for unit in range(len(begin)):
        b = schedule.first[unit]
        items = cut.item_order[cut.item_start[b] : cut.item_start[b + 1]]
        draw_others(samples[begin[unit] : end[unit]], items, stream_key(key, unit, 0))


@compiled
def _take_units(
    unit: int, users: Floats, items: Floats, schedule: Schedule, samples: Samples, begin: Longs, end: Longs,
    ticket: Longs, user_board: Longs, item_board: Longs,
) -> int:  # fmt: skip
    """Run units in the schedule's order, each when its blocks are free; as in training."""
    while True:
        if unit < 0:
            unit = fetch_add(ticket)
        if unit >= len(begin):
            return -1
        a, b, turn, patience = schedule.user[unit], schedule.first[unit], unit // schedule.width, 1000
        while min(load_acquire(user_board, a), load_acquire(item_board, b)) < turn:
            patience -= 1
            if patience == 0:
                return unit
        _touch(users, items, samples[begin[unit] : end[unit]])
        store_release(user_board, a, turn + 1)
        store_release(item_board, b, turn + 1)
        unit = -1


@compiled
def _touch(users: Floats, items: Floats, samples: Samples) -> None:
    little = np.float32(1e-9)
    for n in range(len(samples)):
        u, i, j = np.uint64(samples[n].user), np.uint64(samples[n].item), np.uint64(samples[n].other)
        for column in range(users.shape[1]):
            users[u, column] += little
            items[i, column] += little
            items[j, column] += little
