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
from taurank.data.ids import Catalog


@dataclass(frozen=True, eq=False)
class Folds:
    """The fold of every cell: the classes of users, items and times, 0 … ``count`` − 1."""

    count: int
    user: Bits
    item: Bits
    time: Bits

    @classmethod
    def from_times(cls, catalog: Catalog, count: int, generator: np.random.Generator) -> Folds:
        """Blocks of times; a log with a single time has random folds."""
        if catalog.n_times == 1:
            return cls.from_random(catalog, count, generator)
        count = min(count, catalog.n_times)
        blocks = np.arange(catalog.n_times) * count // catalog.n_times
        return cls(count, np.zeros(catalog.n_users, np.int8), np.zeros(catalog.n_items, np.int8), _short(blocks))

    @classmethod
    def from_users(cls, catalog: Catalog, count: int) -> Folds:
        """Every ``count``-th user, with all items and times."""
        count = min(count, max(catalog.n_users, 2))
        classes = _short(np.arange(catalog.n_users) % count)
        return cls(count, classes, np.zeros(catalog.n_items, np.int8), np.zeros(catalog.n_times, np.int8))

    @classmethod
    def from_random(cls, catalog: Catalog, count: int, generator: np.random.Generator) -> Folds:
        """Random classes of users, items and times, which differ in size by one at most."""
        sizes = (catalog.n_users, catalog.n_items, catalog.n_times)
        user, item, time = (_short(generator.permutation(n) % count) for n in sizes)
        return cls(count, user, item, time)

    def at(self, user: Any, item: Any, time: Any) -> Bits:
        """The fold of cells."""
        total = self.user[user].astype(np.int64) + self.item[item] + self.time[time]
        return np.asarray(total % self.count, np.int8)

    def times(self, fold: int) -> Longs:
        """The times at which cells of the fold lie."""
        return np.flatnonzero(self.time == fold) if self._are_times else np.arange(len(self.time))

    def cells_outside(self, eligibility: Eligibility, fold: int) -> tuple[Floats, Floats]:
        """Eligible cells outside the fold, by user and by item; on average, where folds are random."""
        if not self._are_times:
            share = 1.0 - 1.0 / self.count
            by_user, by_item = eligibility.cells_by_user, eligibility.cells_by_item
            return np.asarray(by_user * share, np.float64), np.asarray(by_item * share, np.float64)
        outside = self.time != fold
        if eligibility.listed is None:
            users = eligibility.visitors.sums(eligibility.candidates.by_time * outside)
            items = eligibility.candidates.sums(eligibility.visitors.by_time * outside)
        else:
            user, item, time = eligibility.cell(np.arange(eligibility.cells))
            n_users, n_items, _ = eligibility.shape
            users = np.bincount(user[outside[time]], minlength=n_users)
            items = np.bincount(item[outside[time]], minlength=n_items)
        return users.astype(np.float64), items.astype(np.float64)

    @property
    def _are_times(self) -> bool:
        return bool(self.time.any()) and not self.user.any() and not self.item.any()


def _short(values: Any) -> Bits:
    return np.asarray(values, np.int8)
