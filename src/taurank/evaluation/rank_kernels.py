"""What the ranks of chosen items are worth: a block of users in, sums out.

A metric is a table of weights by rank. An item with ``above`` items over it and ``tied`` at its score (itself
included) weighs the mean over the ranks above + 1 … above + tied, its expectation when ties are broken at
random. Only items with a gain, and logged ones where overlap is in question, get a place at all: for a few of
them all scores are compared with theirs; for more the scores are spread over bins and compared within a bin;
where bins are crowded the row is sorted. All three give the same counts.

The kernels stand in one file because Numba's cache of a kernel does not see changes in another file.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Starts = npt.NDArray[np.int64]

_CHUNK = 2048  # scores that stay in the first-level cache while all wanted items are compared with them
_BINS_PAY = 32  # binning a row costs about as much as comparing it with this many items (measured)
_SORT_PAYS = 40  # a step of a sort costs about as much as this many comparisons (measured)
_PER_BIN = 8
_MOST_BINS = 1 << 16  # 16 bits; few enough that truncation never passes the last bin, even in float32


class GainsByUser(NamedTuple):
    """Rows grouped by user: those of user u are ``start[u] : start[u + 1]``."""

    start: Starts
    item: npt.NDArray[np.int32]
    time: npt.NDArray[np.int32]
    value: Floats


class LoggedByUser(NamedTuple):
    """Logged pairs grouped by user, and whether their propensity was extreme."""

    start: Starts
    item: npt.NDArray[np.int32]
    extreme: npt.NDArray[np.bool_]


class RankWeights(NamedTuple):
    """Metrics as tables: row m of ``weight`` holds the weight of rank 1, 2, …; ``summed`` its running sums.

    ``true_auc`` marks the one metric that is not linear in the gains.
    """

    weight: Floats
    summed: Floats
    true_auc: npt.NDArray[np.bool_]


class Sums(NamedTuple):
    """What a block of users adds up to: metric × time, and metric × (logged, logged and extreme)."""

    per_time: Floats
    exposure: Floats


def measure(
    scores: npt.NDArray[Any], users: npt.NDArray[np.int32], column: npt.NDArray[np.int32],
    rows: GainsByUser, logged: LoggedByUser, tables: RankWeights, n_times: int, per_user: Floats,
) -> Sums:  # fmt: skip
    """Measure a block: ``scores[b]`` are the scores of user ``users[b]``, ``column[i]`` the column of item i.

    Items without a column (−1) stand below all others, tied. Sums over times are written to
    ``per_user[:, users]``, the rest is returned.
    """
    n_metrics = len(tables.weight)
    sums = Sums(np.zeros((n_metrics, n_times)), np.zeros((n_metrics, 2)))
    wanted = _row_counts(rows.start, users) + _row_counts(logged.start, users)
    most = min(int(wanted.max(initial=0)), len(column))
    _measure(scores, users, column, rows, logged, tables, most, per_user, sums)
    return sums


def _row_counts(start: Starts, users: npt.NDArray[np.int32]) -> Starts:
    return start[users + 1] - start[users]


@numba.njit(nogil=True, cache=True)
def _measure(
    scores: Any, users: Any, column: Any,
    rows: Any, logged: Any, tables: Any, most: Any, per_user: Any, sums: Any,
) -> None:  # fmt: skip
    n_known, n_items = scores.shape[1], len(column)
    bins = new_bins(scores)
    slot = np.full(n_items, -1, np.int32)
    wanted = np.empty(most, np.int32)
    shown = np.empty(most, np.int8)
    above, tied = np.empty(most, np.int64), np.empty(most, np.int64)
    auc_sum, auc_count = np.zeros(sums.per_time.shape[1]), np.zeros(sums.per_time.shape[1], np.int64)
    for b in range(len(users)):
        user = users[b]
        n = _collect(user, rows, logged, slot, wanted, shown)
        if n == 0:
            continue
        place(scores[b], column[wanted[:n]], n_items - n_known, above, tied, bins)
        _add_gains(user, rows, slot, above, tied, tables, per_user, sums.per_time)
        for m in range(len(tables.true_auc)):
            if tables.true_auc[m]:
                _add_auc(m, user, rows, slot, above, tied, n_items, auc_sum, auc_count,
                         per_user, sums.per_time)  # fmt: skip
        if len(logged.item):
            _add_exposure(shown[:n], above, tied, tables, sums.exposure)
        for a in range(n):
            slot[wanted[a]] = -1


@numba.njit(nogil=True, cache=True)
def _collect(user: Any, rows: Any, logged: Any, slot: Any, wanted: Any, shown: Any) -> Any:
    """The distinct items of a user's rows; ``shown`` is 1 where logged, 2 where logged and extreme."""
    n = 0
    for row in range(rows.start[user], rows.start[user + 1]):
        item = rows.item[row]
        if slot[item] < 0:
            slot[item], wanted[n], shown[n] = n, item, 0
            n += 1
    for row in range(logged.start[user], logged.start[user + 1]):
        item = logged.item[row]
        if slot[item] < 0:
            slot[item], wanted[n], shown[n] = n, item, 0
            n += 1
        shown[slot[item]] = max(shown[slot[item]], 2 if logged.extreme[row] else 1)
    return n


@numba.njit(nogil=True, cache=True)
def _weight(tables: Any, metric: Any, above: Any, tied: Any) -> Any:
    """The mean weight over the ranks above + 1 … above + tied."""
    if tied == 1:
        return tables.weight[metric, above]
    return (tables.summed[metric, above + tied] - tables.summed[metric, above]) / tied


@numba.njit(nogil=True, cache=True)
def _add_gains(
    user: Any, rows: Any, slot: Any, above: Any, tied: Any, tables: Any, per_user: Any, per_time: Any
) -> None:
    """Δ_u = Σ_i weight · gain, Eq. (delta_u_tau)."""
    for m in range(len(tables.true_auc)):
        if tables.true_auc[m]:
            continue
        total = 0.0
        for row in range(rows.start[user], rows.start[user + 1]):
            a = slot[rows.item[row]]
            part = _weight(tables, m, above[a], tied[a]) * rows.value[row]
            total += part
            per_time[m, rows.time[row]] += part
        per_user[m, user] = total


@numba.njit(nogil=True, cache=True)
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


@numba.njit(nogil=True, cache=True)
def _add_exposure(shown: Any, above: Any, tied: Any, tables: Any, exposure: Any) -> None:
    """Σ|λ| over the logged pairs, and over the extreme ones among them."""
    for m in range(len(tables.true_auc)):
        for a in range(len(shown)):
            if shown[a] > 0:
                weight = abs(_weight(tables, m, above[a], tied[a]))
                exposure[m, 0] += weight
                if shown[a] == 2:
                    exposure[m, 1] += weight


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
    return np.empty(n, np.uint16), begin, cursor, np.empty(n, scores.dtype)


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
def _use_bins(
    row: Any, at: Any, above: Any, tied: Any,
    bin_of: Any, begin: Any, cursor: Any, members: Any,
) -> Any:  # fmt: skip
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
    _gather(row, at, bin_of, begin, cursor, members)
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
def _gather(row: Any, at: Any, bin_of: Any, begin: Any, cursor: Any, members: Any) -> None:
    """Bring the scores of wanted bins together; ``cursor`` is −1 for the others, and for all afterwards."""
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
