"""The k best items of every user: Numba only, arrays in, arrays out.

Equal scores rank in catalogue order. Items are scanned in stretches; a stretch in which nothing beats the
k-th best so far is passed over by one vectorized comparison.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from taurank._jit import compiled

_STRETCH = 64


class Top(NamedTuple):
    """Columns and scores of the best of each row, best first; row r has ``length[r]`` of them."""

    columns: npt.NDArray[np.int32]
    values: npt.NDArray[np.float32]
    length: npt.NDArray[np.int64]


def best(
    scores: npt.NDArray[np.float32],
    k: int,
    start: npt.NDArray[np.int64],
    excluded: npt.NDArray[np.int32],
) -> Top:
    """The ``k`` best of each row; a NaN or −∞ is never among them.

    ``excluded[start[r] : start[r + 1]]`` are columns that row r must not get; they are overwritten with −∞,
    so ``scores`` is modified in place.
    """
    rows = len(scores)
    columns = np.full((rows, k), -1, np.int32)
    values = np.full((rows, k), -np.inf, np.float32)
    count = np.zeros(rows, np.int64)
    _best(scores, start, excluded, columns, values, count)
    return Top(columns, values, count)


@compiled
def _best(scores: Any, start: Any, excluded: Any, columns: Any, values: Any, count: Any) -> None:
    for row in range(scores.shape[0]):
        for position in range(start[row], start[row + 1]):
            scores[row, excluded[position]] = -np.inf
        count[row] = _best_of_row(scores[row], columns[row], values[row])


@compiled
def _best_of_row(scores: Any, columns: Any, values: Any) -> Any:
    k, n, count = len(values), len(scores), 0
    threshold = np.float32(-np.inf)
    for first in range(0, n, _STRETCH):
        last = min(first + _STRETCH, n)
        beats = np.int32(0)
        for j in range(first, last):
            beats |= np.int32(scores[j] > threshold)
        if beats:
            for j in range(first, last):
                if scores[j] > threshold:
                    count = min(count + 1, k)
                    _insert(scores[j], j, columns, values, count)
                    threshold = values[k - 1]
    return count


@compiled
def _insert(score: Any, column: Any, columns: Any, values: Any, count: Any) -> None:
    """Put a score behind all that are at least as high."""
    slot = count - 1
    while slot > 0 and values[slot - 1] < score:
        values[slot], columns[slot] = values[slot - 1], columns[slot - 1]
        slot -= 1
    values[slot], columns[slot] = score, column
