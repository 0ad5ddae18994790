"""Where chosen items stand in a row of scores: exact counts, by the cheapest of three ways.

A place is two counts: ``above``, the scores that are higher, and ``tied``, those that are equal, itself
included. For a few items all scores are compared with theirs; for more the scores are spread over bins and
compared within a bin; where bins are crowded the row is sorted. All three give the same counts.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

_CHUNK = 2048  # scores that stay in the first-level cache while all wanted items are compared with them
_BINS_PAY = 32  # binning a row costs about as much as comparing it with this many items (measured)
_SORT_PAYS = 40  # a step of a sort costs about as much as this many comparisons (measured)
_PER_BIN = 8
_MOST_BINS = 1 << 16  # 16 bits; few enough that truncation never passes the last bin, even in float32


@numba.njit(nogil=True, cache=True)
def place(row: Any, at: Any, n_unknown: Any, above: Any, tied: Any, bins: Any) -> None:
    """Place the items with the columns ``at``; those without one (−1) stand below all others, tied."""
    if len(at) < _BINS_PAY or len(row) == 0:
        _count(row, at, above, tied)
    elif not _use_bins(row, at, above, tied, *bins):
        _sort(row, at, above, tied)
    for a in range(len(at)):
        if at[a] < 0:
            above[a], tied[a] = len(row), n_unknown


@numba.njit(nogil=True, cache=True)
def new_bins(scores: Any) -> Any:
    """Room for the bins of a row, so that it is not asked for again and again; see ``_use_bins``."""
    n = scores.shape[1]
    n_bins = min(n // _PER_BIN + 2, _MOST_BINS)
    begin, cursor = np.empty(n_bins + 1, np.int32), np.full(n_bins, -1, np.int32)
    return np.empty(n, np.uint16), begin, cursor, np.empty(n + 1, np.int32), np.empty(n, scores.dtype)


@numba.njit(nogil=True, cache=True, fastmath={"reassoc"})
def first_bad(scores: Any) -> Any:
    """Row and column of the first NaN or infinite score, or (−1, −1)."""
    for row in range(scores.shape[0]):
        one = scores[row]
        total = one.dtype.type(0)
        for j in range(len(one)):  # 0 times a score is 0 unless it is NaN or infinite
            total += one[j] * one.dtype.type(0)
        if total != 0:
            for j in range(len(one)):
                if not np.isfinite(one[j]):
                    return row, j
    return -1, -1


@numba.njit(nogil=True, cache=True)
def _count(row: Any, at: Any, above: Any, tied: Any) -> None:
    """Compare every wanted score with all scores."""
    above[: len(at)] = 0
    tied[: len(at)] = 0
    for first in range(0, len(row), _CHUNK):
        chunk = row[first : first + _CHUNK]
        for a in range(len(at)):
            if at[a] >= 0:
                higher, at_least = _compare(chunk, row[at[a]])
                above[a] += higher
                tied[a] += at_least - higher


@numba.njit(nogil=True, cache=True)
def _sort(row: Any, at: Any, above: Any, tied: Any) -> None:
    """Sort the row and look the wanted scores up."""
    ordered = np.sort(row)
    for a in range(len(at)):
        if at[a] >= 0:
            up_to = np.searchsorted(ordered, row[at[a]], "right")
            above[a] = len(row) - up_to
            tied[a] = up_to - np.searchsorted(ordered, row[at[a]])


@numba.njit(nogil=True, cache=True)
def _use_bins(row: Any, at: Any, above: Any, tied: Any, bin_of: Any, begin: Any, cursor: Any, members: Any) -> Any:
    """Spread the scores over bins of equal width, best first, and compare only within a wanted item's bin.

    Subtracting, scaling and truncating keep the order of the scores, so an earlier bin holds higher scores
    only, and the places are exact. False if a few bins hold so much that a sort is cheaper, or if the width
    of the bins is no finite number.
    """
    low, high = _extent(row)
    width = high - low
    scale = row.dtype.type((len(cursor) - 1) / width) if width > 0 else row.dtype.type(0)
    if not (np.isfinite(width) and np.isfinite(scale)):
        return False
    _fill_bins(row, high, scale, bin_of, begin)
    if _crowding(at, bin_of, begin) > _SORT_PAYS * len(row) * np.log2(len(row)):
        return False
    _gather(row, at, bin_of, begin, cursor, chosen, members)
    for a in range(len(at)):
        if at[a] >= 0:
            first, last = begin[bin_of[at[a]]], begin[bin_of[at[a]] + 1]
            higher, at_least = _compare(members[first:last], row[at[a]])
            above[a], tied[a] = first + higher, at_least - higher
    return True


@numba.njit(nogil=True, cache=True)
def _extent(row: Any) -> Any:
    low, high = row[0], row[0]
    for j in range(len(row)):
        low, high = min(low, row[j]), max(high, row[j])
    return low, high


@numba.njit(nogil=True, cache=True)
def _fill_bins(row: Any, high: Any, scale: Any, bin_of: Any, begin: Any) -> None:
    """Each score's bin; bin b takes the places ``begin[b] : begin[b + 1]``."""
    for j in range(len(row)):
        bin_of[j] = np.uint16((high - row[j]) * scale)
    begin[:] = 0
    for j in range(len(row)):
        begin[bin_of[j] + 1] += 1
    for b in range(len(begin) - 1):
        begin[b + 1] += begin[b]


@numba.njit(nogil=True, cache=True)
def _crowding(at: Any, bin_of: Any, begin: Any) -> Any:
    """How many comparisons the bins leave."""
    total = 0
    for a in range(len(at)):
        if at[a] >= 0:
            total += begin[bin_of[at[a]] + 1] - begin[bin_of[at[a]]]
    return total


@numba.njit(nogil=True, cache=True)
def _gather(row: Any, at: Any, bin_of: Any, begin: Any, cursor: Any, chosen: Any, members: Any) -> None:
    """Bring the scores of wanted bins together; ``cursor`` is −1 for the others, and for all afterwards."""
    for a in range(len(at)):
        if at[a] >= 0:
            cursor[bin_of[at[a]]] = begin[bin_of[at[a]]]
    n = 0
    for j in range(len(row)):  # without a branch, which would be guessed wrong too often
        chosen[n] = j
        n += cursor[bin_of[j]] >= 0
    for j in chosen[:n]:
        members[cursor[bin_of[j]]] = row[j]
        cursor[bin_of[j]] += 1
    for a in range(len(at)):
        if at[a] >= 0:
            cursor[bin_of[at[a]]] = -1


@numba.njit(nogil=True, cache=True)
def _compare(scores: Any, score: Any) -> Any:
    """How many are higher than ``score``, and how many at least as high."""
    return _count_narrow(scores, score) if scores.itemsize == 4 else _count_wide(scores, score)


@numba.njit(nogil=True, cache=True)
def _count_narrow(chunk: Any, score: Any) -> Any:
    """Counters as wide as the scores let the compiler compare many at once: 32 bits here."""
    higher, at_least = np.int32(0), np.int32(0)
    for j in range(len(chunk)):
        higher = np.int32(higher + (chunk[j] > score))
        at_least = np.int32(at_least + (chunk[j] >= score))
    return np.int64(higher), np.int64(at_least)


@numba.njit(nogil=True, cache=True)
def _count_wide(chunk: Any, score: Any) -> Any:
    """The same with 64 bits."""
    higher, at_least = np.int64(0), np.int64(0)
    for j in range(len(chunk)):
        higher += chunk[j] > score
        at_least += chunk[j] >= score
    return higher, at_least
