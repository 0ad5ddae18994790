"""The k best items of every user: arrays in, arrays out.

Equal scores rank in catalog order. Items are scanned in stretches; a stretch in which nothing beats the
k-th best so far is passed over by one vectorized comparison. ``best`` cuts ties at the k-th score, as a list must;
``best_first`` includes them all, as the expectation of a metric needs.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from taurank._jit import compiled
from taurank.evaluation.rank_kernels import descending

STRETCH = 128
_SORT_PAYS = 256  # deeper lists than this: insertions cost more than sorting the row


class Top(NamedTuple):
    """Columns and scores of the best of each row, best first; row r has ``length[r]`` of them."""

    columns: npt.NDArray[np.int32]
    values: npt.NDArray[Any]  # of the type of the scores
    length: npt.NDArray[np.int64]


class Listing(NamedTuple):
    """Columns of each row, best first; row r has ``length[r]`` of them."""

    columns: npt.NDArray[np.int32]
    length: npt.NDArray[np.int64]


def empty(rows: int, k: int, dtype: npt.DTypeLike = np.float32) -> Top:
    """Lists of ``k`` that have nothing yet."""
    return Top(np.full((rows, k), -1, np.int32), np.full((rows, k), -np.inf, dtype), np.zeros(rows, np.int64))


def best(scores: npt.NDArray[Any], k: int) -> Top:
    """The ``k`` best of each row; a NaN or −∞ is never among them."""
    top = empty(len(scores), k, scores.dtype)
    _best(scores, *top)
    return top


def best_first(scores: npt.NDArray[Any], depth: int) -> Listing:
    """All columns by descending score, or at least those that share the first ``depth`` ranks, ties included."""
    rows, n = scores.shape
    if depth > min(_SORT_PAYS, n - 1):
        return Listing(descending(scores), np.full(rows, n, np.int64))
    top = best(scores, depth)
    last = top.values[:, -1:]
    length = np.count_nonzero(top.values > last, axis=1) + np.count_nonzero(scores == last, axis=1)
    columns = np.full((rows, int(length.max(initial=0))), -1, np.int32)
    _fill(scores, top.columns, top.values, length, columns)
    return Listing(columns, length)


@compiled
def _best(scores: Any, columns: Any, values: Any, count: Any) -> None:
    k = columns.shape[1]
    for row in range(scores.shape[0]):
        for first in range(0, scores.shape[1], STRETCH):
            stretch = scores[row, first : first + STRETCH]
            if any_above(stretch, values[row, k - 1]):
                for j in range(len(stretch)):
                    if stretch[j] > values[row, k - 1]:
                        count[row] = min(count[row] + 1, k)
                        insert(stretch[j], first + j, columns[row], values[row], count[row])


@compiled
def any_above(stretch: Any, threshold: Any) -> Any:
    """A flag as wide as most scores lets the compiler compare many at once; uncast, it would have 64 bits."""
    above = np.int32(0)
    for j in range(len(stretch)):
        above = np.int32(above | np.int32(stretch[j] > threshold))
    return above != 0


@compiled
def insert(score: Any, column: Any, columns: Any, values: Any, count: Any) -> None:
    """Put a score behind all that are at least as high."""
    slot = count - 1
    while slot > 0 and values[slot - 1] < score:
        values[slot], columns[slot] = values[slot - 1], columns[slot - 1]
        slot -= 1
    values[slot], columns[slot] = score, column


@compiled
def _fill(scores: Any, best_columns: Any, values: Any, length: Any, columns: Any) -> None:
    """The columns above the last score as they are listed, then all that tie with it, in catalog order."""
    for row in range(scores.shape[0]):
        if length[row] <= values.shape[1]:  # no tie was cut
            columns[row, : length[row]] = best_columns[row, : length[row]]
            continue
        last = values[row, -1]
        count = np.count_nonzero(values[row] > last)
        columns[row, :count] = best_columns[row, :count]
        for j in range(scores.shape[1]):
            if scores[row, j] == last:
                columns[row, count] = j
                count += 1
