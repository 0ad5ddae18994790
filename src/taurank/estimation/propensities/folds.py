"""Folds of cells: blocks of times, so that what is learned for a time comes from other times.

A log with a single time has no other times; there a cell's fold is (class of its user + class of its item) modulo
the number of folds, with random classes of equal size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from taurank.data.log import Log

Longs = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Shorts = npt.NDArray[np.int8]


@dataclass(frozen=True, eq=False)
class Folds:
    """The fold of every cell."""

    count: int
    user: Shorts  # classes; zero where times decide
    item: Shorts
    time: Shorts

    @classmethod
    def of(cls, log: Log, folds: int, generator: np.random.Generator) -> Folds:
        if log.n_times > 1:
            count = min(folds, log.n_times)
            blocks = (np.arange(log.n_times) * count // log.n_times).astype(np.int8)
            return cls(count, np.zeros(log.n_users, np.int8), np.zeros(log.n_items, np.int8), blocks)
        user, item = ((generator.permutation(n) % folds).astype(np.int8) for n in (log.n_users, log.n_items))
        return cls(folds, user, item, np.zeros(1, np.int8))

    def at(self, user: Any, item: Any, time: Any) -> Shorts:
        """The fold of cells."""
        total = self.user[user].astype(np.int64) + self.item[item] + self.time[time]
        return np.asarray(total % self.count, np.int8)

    @property
    def by_time(self) -> bool:
        return len(self.time) > 1

    def times(self, fold: int) -> Longs:
        """The times at which cells of the fold lie."""
        return np.flatnonzero(self.time == fold) if self.by_time else np.zeros(1, np.int64)

    def cells_outside(self, log: Log, fold: int) -> tuple[Floats, Floats]:
        """How many eligible cells outside the fold each user and each item has."""
        kept = (self.time != fold) if self.by_time else np.full(1, 1.0 - 1.0 / self.count)
        eligible = log.eligibility
        if eligible.is_everything:
            return (
                np.full(log.n_users, log.n_items * kept.sum()),
                np.full(log.n_items, log.n_users * kept.sum()),
            )
        if eligible.listed is not None:
            user, item, time = eligible.cell(np.arange(eligible.cells))
            weight = kept[time].astype(np.float64)
            counts = [np.bincount(code, weight, n) for code, n in ((user, log.n_users), (item, log.n_items))]
            return counts[0].astype(np.float64), counts[1].astype(np.float64)
        if not self.by_time:
            return eligible.cells_by_user * kept[0], eligible.cells_by_item * kept[0]
        users = eligible.visitors.sums(eligible.candidates.by_time * kept)
        items = eligible.candidates.sums(eligible.visitors.by_time * kept)
        return users.astype(np.float64), items.astype(np.float64)
