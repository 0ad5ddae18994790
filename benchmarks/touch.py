"""The bare cost of memory: read and write the three rows of every sample, and nothing else.

The samples are those of an epoch of training, planned and drawn beforehand, and the units run in the same order
on as many threads under the same rules. What training costs beyond it is arithmetic, planning and drawing.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from taurank._jit import compiled
from taurank._random import Stream, stream, stream_key
from taurank._threads import run_together
from taurank._types import Codes, Floats32, Longs
from taurank.estimation.gains import Gains
from taurank.sgd.negatives import draw_negatives
from taurank.sgd.scheduler import BlockProgress, Factors, blocks_ready, finish_blocks, take_ticket
from taurank.sgd.strata import SAMPLE, Cut, Samples, Strata, by_user, plan_users


class Touch:
    """Epochs that only touch the rows."""

    def __init__(self, cells: Gains, factors: Factors, threads: int) -> None:
        self.factors, self.threads = factors, threads
        self.strata = Strata(cells.n_users, cells.n_items, len(cells))
        self.positives = by_user(cells.user, cells.item, cells.value, cells.n_users)
        self.samples = np.empty(len(cells), SAMPLE)

    def seconds(self, epoch: int, times: int) -> float:
        """Seconds of a pass over the rows of one planned epoch, the mean of several."""
        cut = self.strata.cut(0, epoch)
        begin, end = np.zeros((2, len(self.strata.units)), np.int64)
        plan_users(cut, self.positives, 0, self.strata.width, self.samples, begin, end)
        _draw(cut, self.strata.units, self.strata.width, self.samples, begin, end, stream(0, epoch, Stream.NEGATIVES))
        began = time.perf_counter()
        for _ in range(times):
            self._pass(begin, end)
        return (time.perf_counter() - began) / times

    def _pass(self, begin: Longs, end: Longs) -> None:
        stop, taken, reached = (np.zeros(size, np.int64) for size in (1, 1, 2 * self.strata.width))
        progress, plan = BlockProgress(taken, reached, stop), (self.strata.units, self.strata.width)

        def work() -> None:
            unit = -1
            while (unit := _touch_units(unit, *self.factors, *plan, self.samples, begin, end, progress)) >= 0:
                time.sleep(0)

        run_together(work, self.threads, stop)


@compiled
def _draw(cut: Cut, units: Codes, width: int, samples: Samples, begin: Longs, end: Longs, key: Any) -> None:
    for unit in range(len(begin)):
        b = units[unit, 1] - width
        items = cut.items.order[cut.items.start[b] : cut.items.start[b + 1]]
        draw_negatives(samples[begin[unit] : end[unit]], None, items, stream_key(key, unit, 0))


@compiled
def _touch_units(
    unit: int, users: Floats32, items: Floats32, units: Codes, width: int, samples: Samples, begin: Longs, end: Longs,
    progress: BlockProgress,
) -> int:  # fmt: skip
    """Run units in the order of the schedule, each when its blocks are free; as in training."""
    while True:
        unit = take_ticket(unit, len(begin), progress)
        if unit < 0 or not blocks_ready(units[unit], unit // width, progress):
            return unit
        _touch(users, items, samples[begin[unit] : end[unit]])
        finish_blocks(units[unit], progress)
        unit = -1


@compiled
def _touch(users: Floats32, items: Floats32, samples: Samples) -> None:
    little = np.float32(1e-9)
    for n in range(len(samples)):
        u, i, j = np.uint64(samples[n].user), np.uint64(samples[n].item), np.uint64(samples[n].other)
        for column in range(users.shape[1]):
            users[u, column] += little
            items[i, column] += little
            items[j, column] += little
