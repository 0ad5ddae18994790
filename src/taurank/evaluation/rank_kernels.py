"""What the ranks of items are worth: a block of users in, weights and sums out.

A metric is a table of weights by rank. An item with ``above`` items ranked higher and ``tied`` at its score (itself
included) weighs the mean over the ranks above + 1 … above + tied, its expectation when ties are broken at
random. Where only some items need a rank, each is compared with all scores if they are few; for more, the scores are
sorted into bins and compared within a bin; where bins are crowded, the row is sorted. All three return the same
counts. A sum over whole lists needs all ranks, so that rows are sorted by radix.

The kernels share one file because Numba's cache of a kernel does not see changes in another file.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from taurank._jit import compiled, vectorized
from taurank._types import Codes, Floats, Longs

_CHUNK = 2048  # scores that stay in the first-level cache while all wanted items are compared with them
_BINS_PAY = 32  # binning a row costs about as much as comparing it with this many items (measured)
_SORT_PAYS = 40  # a step of a sort costs about as much as this many comparisons (measured)
_PER_BIN = 8
_MAX_BINS = 1 << 16  # 16 bits; few enough that truncation never passes the last bin, even in float32
_DIGITS = 1 << 11  # of a radix sort: 32 bits in three passes, whose counters stay in the first-level cache
_FEW = 32  # scores of one key that are sorted by insertion


class RankWeights(NamedTuple):
    """Metrics as tables for lists of one or several sizes.

    Row m of ``weight`` holds the weight of rank 1, 2, … from column ``start[t]`` on for table t; row m of ``summed``
    its running sums, from column start[t] + t on. Ranks from ``depth[m]`` on weigh nothing.
    """

    start: Longs
    weight: Floats
    summed: Floats
    depth: Longs


class CellRows(NamedTuple):
    """Cells grouped by user: the items of user u are ``item[start[u] : start[u + 1]]``."""

    start: Longs
    item: Codes


class OwnLists(NamedTuple):
    """Lists of users' own: the visits of user u are ``visit[start[u] : start[u + 1]]``.

    Visit v has the items ``item[first[v] : first[v + 1]]``, and table ``table[v]`` holds the weights of its ranks.
    """

    start: Longs
    visit: npt.NDArray[Any]
    first: Longs
    item: Codes
    table: npt.NDArray[Any]


@compiled
def row_weights(
    scores: Any, least: Any, users: Any, column: Any, rows: Any, offset: Any, tables: Any, out: Any
) -> None:
    """``out[m, offset[b] + n]``: the weight of metric m at the n-th cell of user ``users[b]``.

    ``scores[b]`` are the scores of that user and ``column[i]`` is the column of item i; items without one (−1) rank
    below all others, tied. Items that score below ``least[b]`` are too far down to have a weight; theirs stays 0.
    """
    n_known, n_items = scores.shape[1], len(column)
    bins = new_bins(scores)
    slot = np.full(n_items, -1, np.int32)
    wanted = np.empty(n_items, np.int32)
    above, tied = np.empty(n_items, np.int64), np.empty(n_items, np.int64)
    for b in range(len(users)):
        n, first, last = 0, rows.start[users[b]], rows.start[users[b] + 1]
        for row in range(first, last):
            i = rows.item[row]
            if slot[i] < 0 and (column[i] < 0 or scores[b, column[i]] >= least[b]):
                slot[i], wanted[n] = n, i
                n += 1
        if n == 0:
            continue
        rank_items(scores[b], column[wanted[:n]], n_items - n_known, above, tied, bins)
        for row in range(first, last):
            a = slot[rows.item[row]]
            if a >= 0:
                for m in range(len(out)):
                    out[m, offset[b] + row - first] = _mean_weight(tables, 0, m, above[a], tied[a])
        for a in range(n):
            slot[wanted[a]] = -1


@compiled
def add_gains(
    users: Any, rows: Any, time: Any, value: Any, offset: Any, weights: Any, areas: Any, per_user: Any, per_time: Any
) -> None:
    """Δ_u = Σ_i weight · gain, Eq. (delta_u_tau), summed over times, and over the users of a block.

    ``value[p]`` are gains of the cells; ``per_user[p, m]`` is written, to ``per_time[m]`` those of ``value[0]`` are
    added. Metrics that are ``areas`` are left out.
    """
    for b in range(len(users)):
        user, first = users[b], rows.start[users[b]]
        n = rows.start[user + 1] - first
        for m in range(len(weights)):
            for p in range(0 if areas[m] else len(value)):
                total = 0.0
                for a in range(n):
                    part = weights[m, offset[b] + a] * value[p, first + a]
                    total += part
                    if p == 0:
                        per_time[m, time[first + a]] += part
                per_user[p, m, user] += total


@compiled
def add_areas(
    users: Any, rows: Any, time: Any, value: Any, offset: Any, below: Any, sizes: Any, per_user: Any, per_time: Any
) -> None:
    """AUC = [Σ (I − r) / n₊ − (n₊ − 1) / 2] / n₋ of each list with positives, ``value[0]`` = 1; ½ without negatives.

    ``below`` is I − r of each cell and ``sizes`` the length I of its list. Added up as in ``add_gains``.
    """
    total, positives = np.zeros(len(per_time)), np.zeros(len(per_time))
    for b in range(len(users)):
        first = rows.start[users[b]]
        n = rows.start[users[b] + 1] - first
        for a in range(n):
            total[time[first + a]] += below[offset[b] + a] * value[0, first + a]
            positives[time[first + a]] += value[0, first + a]
        for a in range(n):
            t = time[first + a]
            if positives[t] > 0:
                negatives, area = sizes[offset[b] + a] - positives[t], 0.5
                if negatives > 0:
                    area = (total[t] / positives[t] - 0.5 * (positives[t] - 1)) / negatives
                per_user[users[b]] += area
                per_time[t] += area
                total[t], positives[t] = 0.0, 0.0


@compiled
def list_sums(
    scores: Any, order: Any, length: Any, users: Any, item_of: Any, factors: Any, begin: Any, unknown: Any,
    n_unknown: Any, tables: Any, out: Any,
) -> None:  # fmt: skip
    """``out[m, user, c]`` = Σ_i weight_m(rank of i) · factors[begin[user] + c, i], over the columns in ``order``.

    The first ``length`` columns are ordered best first. ``item_of`` is the item of each column of the scores,
    ``unknown`` the sum of the factors of the items without a column, which come last, tied.
    """
    n_known = scores.shape[1]
    items, ordered, shared = np.empty(n_known, np.uint32), np.empty(n_known), np.empty((len(out), n_known))
    for b in range(len(users)):
        user, n_listed = users[b], length[b]
        weight, listed = tables.weight, order[b, :n_listed]
        is_tied = _take_items(scores[b], listed, item_of, items)
        if is_tied:
            _share_weights(scores[b], listed, tables, shared)
            weight = shared
        for c in range(out.shape[2]):
            _gather(factors[begin[user] + c], items[:n_listed], ordered)
            for m in range(len(out)):
                depth = n_listed if is_tied else min(tables.depth[m], n_listed)
                out[m, user, c] += _dot(weight[m, :depth], ordered[:depth])
            if n_unknown > 0 and n_listed == n_known:
                for m in range(len(out)):
                    out[m, user, c] += _mean_weight(tables, 0, m, n_known, n_unknown) * unknown[begin[user] + c]


@compiled
def _take_items(row: Any, order: Any, item_of: Any, items: Any) -> Any:
    """The items of a list in order. Returns whether any scores are tied."""
    n_tied = 0
    for place in range(len(order)):
        column = order[place]
        items[place] = item_of[column]
        n_tied += row[column] == row[order[max(place - 1, 0)]]
    return n_tied > 1  # the first score equals itself


@compiled
def _gather(factor: Any, items: Any, out: Any) -> None:
    for place in range(len(items)):
        out[place] = factor[items[place]]


@compiled
def _share_weights(row: Any, order: Any, tables: Any, out: Any) -> None:
    """``out[m, place]``: the weights of a list in which some scores are tied."""
    first = 0
    while first < len(order):
        last = first + 1
        while last < len(order) and row[order[last]] == row[order[first]]:
            last += 1
        for m in range(len(out)):
            out[m, first:last] = _mean_weight(tables, 0, m, first, last - first)
        first = last


@vectorized
def _dot(first: Any, second: Any) -> Any:
    total = 0.0
    for j in range(len(first)):
        total += first[j] * second[j]
    return total


@compiled
def own_weights(scores: Any, users: Any, column: Any, lists: Any, tables: Any, out: Any) -> None:
    """``out[m, cell]``: the weight of metric m at each cell of users' own lists; unknown items come last, tied."""
    for b in range(len(users)):
        for number in range(lists.start[users[b]], lists.start[users[b] + 1]):
            visit = lists.visit[number]
            first, last = lists.first[visit], lists.first[visit + 1]
            score = np.full(last - first, -np.inf)
            for j in range(last - first):
                at = column[lists.item[first + j]]
                if at >= 0:
                    score[j] = scores[b, at]
            _add_own(score, np.argsort(-score), lists.table[visit], tables, out[:, first:last])


@compiled
def _add_own(score: Any, order: Any, table: Any, tables: Any, out: Any) -> None:
    n, above = len(score), 0
    while above < n:
        end = above
        while end < n and score[order[end]] == score[order[above]]:
            end += 1
        for m in range(len(out)):
            weight = _mean_weight(tables, table, m, above, end - above)
            for j in range(above, end):
                out[m, order[j]] = weight
        above = end


@compiled
def _mean_weight(tables: Any, table: Any, metric: Any, above: Any, tied: Any) -> Any:
    """The mean weight over the ranks above + 1 … above + tied."""
    begin = tables.start[table]
    if tied == 1:
        return tables.weight[metric, begin + above]
    begin += table
    return (tables.summed[metric, begin + above + tied] - tables.summed[metric, begin + above]) / tied


@compiled
def descending(scores: Any) -> Any:
    """The columns of each row by descending score, equal scores in catalog order; no score is NaN.

    A radix sort by the scores in float32, whose rounding preserves the order; what it made equal is sorted after.
    """
    n = scores.shape[1]
    order = np.empty(scores.shape, np.int32)
    first, second = np.empty(n, np.uint64), np.empty(n, np.uint64)
    single = np.empty(n, np.float32)
    bits = single.view(np.uint32)
    count = np.empty((3, _DIGITS), np.int32)
    for b in range(len(scores)):
        for j in range(n):
            single[j] = scores[b, j] + np.float32(0)  # −0 is 0
        _sort_keys(bits, first, second, count)
        for j in range(n):
            order[b, j] = np.int32(second[j] & np.uint64(0xFFFFFFFF))
        if scores.itemsize > 4:
            _sort_within_keys(scores[b], second, order[b])
    return order


@compiled
def _sort_keys(bits: Any, first: Any, second: Any, count: Any) -> None:
    """``second``: the keys in the upper half, their numbers in the lower one, sorted; ``bits`` are of floats."""
    low = np.uint32(_DIGITS - 1)
    count[:] = 0
    for j in range(len(bits)):
        key = bits[j]
        if not key & np.uint32(0x80000000):  # the larger a positive number, the smaller its key
            key = np.uint32(~key & np.uint32(0x7FFFFFFF))
        first[j] = (np.uint64(key) << np.uint64(32)) | np.uint64(j)
        count[0, key & low] += 1
        count[1, (key >> np.uint32(11)) & low] += 1
        count[2, key >> np.uint32(22)] += 1
    for digit in range(3):
        before = 0
        for d in range(_DIGITS):
            here = count[digit, d]
            count[digit, d] = before
            before += here
    _pass(first, second, count[0], np.uint64(32))
    _pass(second, first, count[1], np.uint64(43))
    _pass(first, second, count[2], np.uint64(54))


@compiled
def _pass(source: Any, target: Any, following: Any, shift: Any) -> None:
    for j in range(len(source)):
        word = source[j]
        digit = (word >> shift) & np.uint64(_DIGITS - 1)
        at = following[digit]
        following[digit] = at + 1
        target[at] = word


@compiled
def _sort_within_keys(row: Any, words: Any, order: Any) -> None:
    first, n = 0, len(row)
    while first < n:
        last = first + 1
        while last < n and (words[last] >> np.uint64(32)) == (words[first] >> np.uint64(32)):
            last += 1
        if last - first > _FEW:
            part = order[first:last].copy()
            order[first:last] = part[np.argsort(-row[part], kind="mergesort")]
        elif last - first > 1:
            for place in range(first + 1, last):
                column = order[place]
                while place > first and row[order[place - 1]] < row[column]:
                    order[place] = order[place - 1]
                    place -= 1
                order[place] = column
        first = last


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
    _gather_bins(row, at, bin_of, begin, cursor, members)
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
def _gather_bins(row: Any, at: Any, bin_of: Any, begin: Any, cursor: Any, members: Any) -> None:
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
