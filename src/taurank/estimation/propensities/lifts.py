"""Lifts: how much likelier two classes meet in an exposure than by chance, counted outside a fold.

With the classes of items (a category, say) the lift of a user and a class says how much the user is shown of it;
with the classes of users the lift of an item says to whom it is shown; with both, which classes go together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Longs = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

PRIOR = 5.0  # pseudo-exposures that say: as often as by chance


@dataclass(frozen=True, eq=False)
class Lift:
    """Exposures by (left class, right class, fold), as sorted numbers, and the totals of either side."""

    n_right: int
    folds: int
    events: Longs
    left_total: Longs  # classes × folds
    right_total: Longs

    @classmethod
    def of(cls, left: Any, right: Any, fold: Any, sizes: tuple[int, int], folds: int) -> Lift:
        """From the classes and the fold of every exposure."""
        events = (np.asarray(left, np.int64) * sizes[1] + right) * folds + fold
        events.sort()
        totals = [
            np.bincount(np.asarray(side, np.int64) * folds + fold, minlength=n * folds).reshape(n, folds)
            for side, n in zip((left, right), sizes, strict=True)
        ]
        return cls(sizes[1], folds, events, *totals)

    def at(self, left: Any, right: Any, fold: Any) -> Floats:
        """log [(n_lr + α s_r) / (n_l + α) / s_r], counts outside the fold, s_r the share of the right class."""
        first = (np.asarray(left, np.int64) * self.n_right + right) * self.folds
        total, own = (self._between(first + low, first + high) for low, high in ((0, self.folds), (fold, fold + 1)))
        together = total - own
        left_count = self.left_total.sum(axis=1)[left] - self.left_total[left, fold]
        right_count = self.right_total.sum(axis=1)[right] - self.right_total[right, fold]
        everything = (len(self.events) - self.right_total.sum(axis=0))[fold]
        share = (right_count + 0.5) / (everything + 0.5 * self.n_right)
        return np.asarray(np.log((together + PRIOR * share) / (left_count + PRIOR) / share))

    def _between(self, low: Longs, high: Longs) -> Longs:
        return np.searchsorted(self.events, high) - np.searchsorted(self.events, low)
