"""Folds of cells, for cross-fitting: what is learned for a cell comes from cells of other folds.

Users, items and times have classes, and the fold of a cell is the sum of its three classes modulo the number of
folds. Where only one of the three has classes other than 0, folds are blocks of times or of users; with random
classes of all three, each fold is a random share of the cells, treated or not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from taurank._types import Bits, Floats, Longs
from taurank.data.eligibility import Eligibility

MAX_FOLDS = 20


@dataclass(frozen=True, eq=False)
class Folds:
    """The fold of every cell: the classes of users, items and times, 0 … ``count`` − 1."""

    count: int
    user: Bits
    item: Bits
    time: Bits

    @classmethod
    def from_times(cls, shape: tuple[int, int, int], count: int) -> Folds:
        """Blocks of times; ``shape`` is that of a log's eligibility."""
        count, (n_users, n_items, n_times) = min(count, shape[2]), shape
        times = (np.arange(n_times) * count // n_times).astype(np.int8)
        return cls(count, np.zeros(n_users, np.int8), np.zeros(n_items, np.int8), times)

    @classmethod
    def from_users(cls, shape: tuple[int, int, int], count: int) -> Folds:
        """Every ``count``-th user, with all items and times."""
        count = min(count, max(shape[0], 2))
        users = (np.arange(shape[0]) % count).astype(np.int8)
        return cls(count, users, np.zeros(shape[1], np.int8), np.zeros(shape[2], np.int8))

    @classmethod
    def from_random(cls, shape: tuple[int, int, int], count: int, generator: np.random.Generator) -> Folds:
        """Random classes of users, items and times, which differ in size by one at most."""
        return cls(count, *((generator.permutation(n) % count).astype(np.int8) for n in shape))

    def at(self, user: Any, item: Any, time: Any) -> Bits:
        """The fold of cells."""
        total = self.user[user].astype(np.int64) + self.item[item] + self.time[time]
        return np.asarray(total % self.count, np.int8)

    def times(self, fold: int) -> Longs:
        """The times at which cells of the fold lie."""
        own = np.flatnonzero(self.time == fold)
        return np.arange(len(self.time)) if self.user.any() or len(self.time) == 1 else own

    def cells_outside(self, eligibility: Eligibility, fold: int) -> tuple[Floats, Floats]:
        """Eligible cells outside the fold, by user and by item; on average, where folds are random."""
        n_users, n_items, n_times = eligibility.shape
        if n_times == 1:
            share = 1.0 - 1.0 / self.count
            return np.multiply(eligibility.cells_by_user, share), np.multiply(eligibility.cells_by_item, share)
        outside = self.time != fold
        if eligibility.listed is None:
            users = eligibility.visitors.sums(eligibility.candidates.by_time * outside)
            items = eligibility.candidates.sums(eligibility.visitors.by_time * outside)
        else:
            user, item, time = eligibility.cell(np.arange(eligibility.cells))
            users = np.bincount(user[outside[time]], minlength=n_users)
            items = np.bincount(item[outside[time]], minlength=n_items)
        return users.astype(np.float64), items.astype(np.float64)
