"""Which pairs of a log have overlap, and which do not: the pairs that an estimate is read off."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from taurank._arrays import group
from taurank._jit import compiled
from taurank.data.ids import Codes

Starts = npt.NDArray[np.int64]


class Pairs(NamedTuple):
    """Distinct pairs by user: the items of user u are ``item[start[u] : start[u + 1]]``."""

    start: Starts
    item: Codes


class LoggedPairs(NamedTuple):
    """The pairs of a log in two: those with overlap, and those with an extreme propensity at any time."""

    inside: Pairs
    extreme: Pairs

    @classmethod
    def of(cls, user: Codes, item: Codes, extreme: npt.NDArray[np.bool_], n_users: int, n_items: int) -> LoggedPairs:
        """From rows of a log and whether the propensity of each is extreme."""
        start, (items, flags) = group(user, n_users, item, extreme)
        starts, first, second = _split_pairs(start, items, flags, n_items)
        return cls(Pairs(starts[0], first), Pairs(starts[1], second))

    @classmethod
    def none(cls, n_users: int) -> LoggedPairs:
        nothing = Pairs(np.zeros(n_users + 1, np.int64), np.empty(0, np.int32))
        return cls(nothing, nothing)


@compiled
def _split_pairs(start: Any, item: Any, flag: Any, n_items: Any) -> Any:
    """The distinct pairs among rows grouped by user, in two: where no row has the flag, and where one has it.

    Returns ``starts`` (2 × users + 1) and two arrays of items.
    """
    starts, items = np.zeros((2, len(start)), np.int64), np.empty((2, len(item)), np.int32)
    slot, seen, flagged = np.full(n_items, -1, np.int32), np.empty(n_items, np.int32), np.empty(n_items, np.int8)
    for user in range(len(start) - 1):
        n = 0
        for row in range(start[user], start[user + 1]):
            i = item[row]
            if slot[i] < 0:
                slot[i], seen[n], flagged[n] = n, i, 0
                n += 1
            flagged[slot[i]] |= flag[row]
        starts[:, user + 1] = starts[:, user]
        for a in range(n):
            half = flagged[a]
            items[half, starts[half, user + 1]] = seen[a]
            starts[half, user + 1] += 1
            slot[seen[a]] = -1
    return starts, items[0, : starts[0, -1]].copy(), items[1, : starts[1, -1]].copy()
