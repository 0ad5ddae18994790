"""What the ranks of chosen items are worth: a block of users in, sums out.

A metric is a table of weights by rank. An item with ``above`` items ranked higher and ``tied`` at its score (itself
included) weighs the mean over the ranks above + 1 … above + tied, its expectation when ties are broken at
random. Only items with a gain get a rank at all: for a few of them, each is compared with all scores; for more,
the scores are sorted into bins and compared within a bin; where bins are crowded, the row is sorted. All three
return the same counts.

The kernels share one file because Numba's cache of a kernel does not see changes in another file.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from taurank._jit import compiled

Floats = npt.NDArray[np.float64]
Starts = npt.NDArray[np.int64]

_CHUNK = 2048  # scores that stay in the first-level cache while all wanted items are compared with them
_BINS_PAY = 32  # binning a row costs about as much as comparing it with this many items (measured)
_SORT_PAYS = 40  # a step of a sort costs about as much as this many comparisons (measured)
_PER_BIN = 8
_MAX_BINS = 1 << 16  # 16 bits; few enough that truncation never passes the last bin, even in float32


class GainsByUser(NamedTuple):
    """Gains grouped by user: the rows of user u are ``start[u] : start[u + 1]``."""

    start: Starts
    item: npt.NDArray[np.int32]
    time: npt.NDArray[np.int32]
    value: Floats


class RankWeights(NamedTuple):
    """Metrics as tables: row m of ``weight`` holds the weight of rank 1, 2, …; ``summed`` its running sums.

    ``area`` marks the one metric that is not linear in the gains, AUC.
    """

    weight: Floats
    summed: Floats
    area: npt.NDArray[np.bool_]


Parts = tuple[GainsByUser, ...]  # several gains of the same users, measured in one pass over the scores


def measure(
    scores: npt.NDArray[Any], users: npt.NDArray[np.int32], column: npt.NDArray[np.int32],
    parts: Parts, tables: RankWeights, n_times: int, per_user: Floats,
) -> Floats:  # fmt: skip
    """Measure a block: ``scores[b]`` are the scores of user ``users[b]``, ``column[i]`` the column of item i.

    Items without a column (−1) rank below all others, tied. Sums over times are written to
    ``per_user[part, metric, users]``, sums over the block's users are returned: part × metric × time. Metrics that
    are areas are measured for the first part only.
    """
    per_time = np.zeros((len(parts), len(tables.weight), n_times))
    wanted = np.zeros(len(users), np.int64)
    for part in parts:
        wanted += part.start[users + 1] - part.start[users]
    most = min(int(wanted.max(initial=0)), len(column))
    _measure(scores, users, column, parts, tables, most, per_user, per_time)
    return per_time


@compiled
def _measure(
    scores: Any, users: Any, column: Any, parts: Any, tables: Any, most: Any, per_user: Any, per_time: Any
) -> None:
    n_known, n_items = scores.shape[1], len(column)
    bins = new_bins(scores)
    slot = np.full(n_items, -1, np.int32)
    wanted = np.empty(most, np.int32)
    above, tied, weight = np.empty(most, np.int64), np.empty(most, np.int64), np.empty(most)
    auc_sum, auc_count = np.zeros(per_time.shape[2]), np.zeros(per_time.shape[2], np.int64)
    for b in range(len(users)):
        user = users[b]
        n = _collect(user, parts, slot, wanted)
        if n == 0:
            continue
        rank_items(scores[b], column[wanted[:n]], n_items - n_known, above, tied, bins)
        for m in range(len(tables.area)):
            if tables.area[m]:
                _add_auc(m, user, parts[0], slot, above, tied, n_items, auc_sum, auc_count,
                         per_user[0], per_time[0])  # fmt: skip
                continue
            for a in range(n):
                weight[a] = _weight(tables, m, above[a], tied[a])
            for p in range(len(parts)):
                if parts[p].start[user] < parts[p].start[user + 1]:
                    per_user[p, m, user] = _add_gains(user, parts[p], slot, weight, per_time[p, m])
        for a in range(n):
            slot[wanted[a]] = -1


@compiled
def _collect(user: Any, parts: Any, slot: Any, wanted: Any) -> Any:
    """The distinct items of a user's rows, and the slot of each."""
    n = 0
    for p in range(len(parts)):
        rows = parts[p]
        for row in range(rows.start[user], rows.start[user + 1]):
            item = rows.item[row]
            if slot[item] < 0:
                slot[item], wanted[n] = n, item
                n += 1
    return n


@compiled
def _weight(tables: Any, metric: Any, above: Any, tied: Any) -> Any:
    """The mean weight over the ranks above + 1 … above + tied."""
    if tied == 1:
        return tables.weight[metric, above]
    return (tables.summed[metric, above + tied] - tables.summed[metric, above]) / tied


@compiled
def _add_gains(user: Any, rows: Any, slot: Any, weight: Any, per_time: Any) -> Any:
    """Δ_u = Σ_i weight · gain, Eq. (delta_u_tau), summed over times; each time's part is added to ``per_time``."""
    total = 0.0
    first, last = np.uint64(rows.start[user]), np.uint64(rows.start[user + 1])  # no wrap-around of negative indices
    for row in range(first, last):
        part = weight[np.uint32(slot[np.uint32(rows.item[row])])] * rows.value[row]
        total += part
        per_time[np.uint32(rows.time[row])] += part
    return total


@compiled
def _add_auc(
    metric: Any, user: Any, rows: Any, slot: Any, above: Any, tied: Any, n_items: Any,
    total: Any, count: Any, per_user: Any, per_time: Any,
) -> None:  # fmt: skip
    """AUC = [Σ (I − r) / n₊ − (n₊ − 1) / 2] / n₋ for each time with positives; ½ without negatives."""
    summed = 0.0
    for row in range(rows.start[user], rows.start[user + 1]):
        a, time = slot[rows.item[row]], rows.time[row]
        total[time] += n_items - above[a] - 0.5 * (tied[a] + 1)
        count[time] += 1
    for row in range(rows.start[user], rows.start[user + 1]):
        time = rows.time[row]
        if count[time] > 0:
            positives, negatives = count[time], n_items - count[time]
            area = 0.5
            if negatives > 0:
                area = (total[time] / positives - 0.5 * (positives - 1)) / negatives
            summed += area
            per_time[metric, time] += area
            total[time], count[time] = 0.0, 0
    per_user[metric, user] = summed


@compiled
def rank_items(row: Any, at: Any, n_unknown: Any, above: Any, tied: Any, bins: Any) -> None:
    """Rank the items with the columns ``at``; those without one (−1) come below all others, tied."""
    if len(at) < _BINS_PAY or len(row) == 0:
        _count(row, at, above, tied)
    elif not _use_bins(row, at, above, tied, *bins):
        _sort(row, at, above, tied)
    for a in range(len(at)):
        if at[a] < 0:
            above[a], tied[a] = len(row), n_unknown


@compiled
def new_bins(scores: Any) -> Any:
    """Buffers for the bins of a row, allocated once per block; see ``_use_bins``."""
    n = scores.shape[1]
    n_bins = min(n // _PER_BIN + 2, _MAX_BINS)
    begin, cursor = np.empty(n_bins + 1, np.int32), np.full(n_bins, -1, np.int32)
    return np.empty(n, np.uint16), begin, cursor, np.empty(n, scores.dtype)


@compiled
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


@compiled
def _sort(row: Any, at: Any, above: Any, tied: Any) -> None:
    """Sort the row and search for the wanted scores."""
    ordered = np.sort(row)
    for a in range(len(at)):
        if at[a] >= 0:
            up_to = np.searchsorted(ordered, row[at[a]], "right")
            above[a] = len(row) - up_to
            tied[a] = up_to - np.searchsorted(ordered, row[at[a]])


@compiled
def _use_bins(
    row: Any, at: Any, above: Any, tied: Any,
    bin_of: Any, begin: Any, cursor: Any, members: Any,
) -> Any:  # fmt: skip
    """Sort the scores into bins of equal width, best first, and compare only within a wanted item's bin.

    Subtracting, scaling and truncating preserve the order of the scores, so an earlier bin holds higher scores
    only, and the ranks are exact. False if a few bins hold so much that a sort is cheaper, or if the width
    of the bins is not finite.
    """
    low, high = _extent(row)
    width = high - low
    scale = row.dtype.type((len(cursor) - 1) / width) if width > 0 else row.dtype.type(0)
    if not (np.isfinite(width) and np.isfinite(scale)):
        return False
    _fill_bins(row, high, scale, bin_of, begin)
    if _crowding(at, bin_of, begin) > _SORT_PAYS * len(row) * np.log2(len(row)):
        return False
    _gather(row, at, bin_of, begin, cursor, members)
    for a in range(len(at)):
        if at[a] >= 0:
            first, last = begin[bin_of[at[a]]], begin[bin_of[at[a]] + 1]
            higher, at_least = _compare(members[first:last], row[at[a]])
            above[a], tied[a] = first + higher, at_least - higher
    return True


@compiled
def _extent(row: Any) -> Any:
    low, high = row[0], row[0]
    for j in range(len(row)):
        low, high = min(low, row[j]), max(high, row[j])
    return low, high


@compiled
def _fill_bins(row: Any, high: Any, scale: Any, bin_of: Any, begin: Any) -> None:
    """Each score's bin; bin b holds the ranks from ``begin[b]`` up to ``begin[b + 1]``."""
    for j in range(len(row)):
        bin_of[j] = np.uint16((high - row[j]) * scale)
    begin[:] = 0
    for j in range(len(row)):
        begin[bin_of[j] + 1] += 1
    for b in range(len(begin) - 1):
        begin[b + 1] += begin[b]


@compiled
def _crowding(at: Any, bin_of: Any, begin: Any) -> Any:
    """The number of comparisons within bins."""
    total = 0
    for a in range(len(at)):
        if at[a] >= 0:
            total += begin[bin_of[at[a]] + 1] - begin[bin_of[at[a]]]
    return total


@compiled
def _gather(row: Any, at: Any, bin_of: Any, begin: Any, cursor: Any, members: Any) -> None:
    """Gather the scores of wanted bins; ``cursor`` is −1 for the others, and for all on return."""
    for a in range(len(at)):
        if at[a] >= 0:
            cursor[bin_of[at[a]]] = begin[bin_of[at[a]]]
    for j in range(len(row)):
        following = cursor[bin_of[j]]
        if following >= 0:
            members[following] = row[j]
            cursor[bin_of[j]] = following + 1
    for a in range(len(at)):
        if at[a] >= 0:
            cursor[bin_of[at[a]]] = -1


@compiled
def _compare(scores: Any, score: Any) -> Any:
    """The number of scores higher than ``score``, and at least as high."""
    return _count_narrow(scores, score) if scores.itemsize == 4 else _count_wide(scores, score)


@compiled
def _count_narrow(chunk: Any, score: Any) -> Any:
    """Counters as wide as the scores let the compiler compare many at once: 32 bits here."""
    higher, at_least = np.int32(0), np.int32(0)
    for j in range(len(chunk)):
        higher = np.int32(higher + (chunk[j] > score))
        at_least = np.int32(at_least + (chunk[j] >= score))
    return np.int64(higher), np.int64(at_least)


@compiled
def _count_wide(chunk: Any, score: Any) -> Any:
    """The same with 64 bits."""
    higher, at_least = np.int64(0), np.int64(0)
    for j in range(len(chunk)):
        higher += chunk[j] > score
        at_least += chunk[j] >= score
    return higher, at_least
