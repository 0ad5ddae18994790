"""What the ranks of items are worth: rows of scores in, weights and sums out.

A metric is a table of weights by rank. An item with ``above`` items ranked higher and ``tied`` at its score (itself
included) weighs the mean over the ranks above + 1 … above + tied, its expectation when ties are broken at
random. Where only a few items need a rank, each is compared with all scores; for more, and for sums over whole lists,
rows are sorted by radix.

The kernels share one file because Numba's cache of a kernel does not see changes in another file.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from taurank._jit import compiled
from taurank._types import Floats, Longs

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


@compiled
def weigh_by_counting(scores: Any, start: Any, item: Any, tables: Any, out: Any) -> None:
    """``out[m, n]``: the weight of metric m at the n-th cell; those of row b are ``item[start[b] : start[b + 1]]``.

    Scores are compared in float32, whose rounding preserves the order, and again as they are where it made ties.
    """
    n_items = scores.shape[1]
    above, tied, single = np.empty(n_items, np.int64), np.zeros(n_items, np.int64), np.empty(n_items, np.float32)
    for b in range(len(scores)):
        cells = item[start[b] : start[b + 1]]
        for j in range(n_items if len(cells) > 0 else 0):
            single[j] = scores[b, j]
        for n in range(len(cells)):
            i = cells[n]
            if tied[i] == 0:  # not counted at another time
                above[i], tied[i] = _compare(single, single[i])
                if scores.itemsize > 4 and tied[i] > 1:
                    above[i], tied[i] = _compare(scores[b], scores[b, i])
            for m in range(len(out)):
                out[m, start[b] + n] = _mean_weight(tables, 0, m, above[i], tied[i])
        for n in range(len(cells)):
            tied[cells[n]] = 0


@compiled
def _compare(scores: Any, score: Any) -> Any:
    """How many scores are higher than ``score``, and how many the same.

    Counters as wide as most scores let the compiler compare many at once.
    """
    higher, same = np.int32(0), np.int32(0)
    for j in range(len(scores)):
        higher = np.int32(higher + (scores[j] > score))
        same = np.int32(same + (scores[j] == score))
    return np.int64(higher), np.int64(same)


@compiled
def weigh_in_order(scores: Any, order: Any, length: Any, tables: Any, out: Any) -> None:
    """``out[m, b, i]``: the weight of metric m at item i of row b, from lists in order.

    The items ``order[b, :length[b]]`` are those that may have a weight, best first.
    """
    n_items = scores.shape[1]
    above, tied = np.empty(n_items, np.int32), np.empty(n_items, np.int32)
    for b in range(len(scores)):
        n_listed, place = length[b], 0
        while place < n_listed:
            end, score = place + 1, scores[b, order[b, place]]
            while end < n_listed and scores[b, order[b, end]] == score:
                end += 1
            for j in range(place, end):
                above[order[b, j]], tied[order[b, j]] = place, end - place
            place = end
        for m in range(len(out)):
            if tables.depth[m] == n_items:
                for i in range(n_items):
                    out[m, b, i] = _mean_weight(tables, 0, m, above[i], tied[i])
                continue
            out[m, b] = 0.0
            for j in range(n_listed):
                i = order[b, j]
                if above[i] >= tables.depth[m]:
                    break
                out[m, b, i] = _mean_weight(tables, 0, m, above[i], tied[i])


@compiled
def weigh_own_lists(
    scores: Any, row: Any, visits: Any, start: Any, item: Any, table: Any, tables: Any, out: Any
) -> None:
    """``out[m, cell]``: the weight of metric m at each cell of some visits, whose lists are of different items.

    Visit v has the items ``item[start[v] : start[v + 1]]`` and the weights of ``table[v]``; ``row`` are its scores.
    """
    for n in range(len(visits)):
        visit, place = visits[n], 0
        first, size = start[visit], start[visit + 1] - start[visit]
        score = scores[row[n]][item[first : first + size]]
        order = np.argsort(-score)
        while place < size:
            end = place
            while end < size and score[order[end]] == score[order[place]]:
                end += 1
            for m in range(len(out)):
                weight = _mean_weight(tables, table[visit], m, place, end - place)
                for j in range(place, end):
                    out[m, first + order[j]] = weight
            place = end


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
