"""What the ranks of single cells are worth, and sums over whole lists: a block of users in, arrays out."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from taurank._jit import compiled
from taurank.evaluation.rank_kernels import new_bins, rank_items

Longs = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class OwnLists(NamedTuple):
    """Lists of users' own: the visits of user u are ``visit[start[u] : start[u + 1]]``.

    Visit v has the items ``item[first[v] : first[v + 1]]``, and table ``table[v]`` holds the weights of its ranks.
    """

    start: Longs
    visit: npt.NDArray[Any]
    first: Longs
    item: npt.NDArray[np.int32]
    table: npt.NDArray[Any]


class ListTables(NamedTuple):
    """Weights by rank for lists of several sizes, table t from column ``start[t]``; ``summed`` from start[t] + t."""

    start: Longs
    weight: Floats
    summed: Floats


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
    begin, n = tables.start[table], len(score)
    above = 0
    while above < n:
        end = above
        while end < n and score[order[end]] == score[order[above]]:
            end += 1
        for m in range(len(out)):
            weight = tables.weight[m, begin + above]
            if end - above > 1:
                summed = begin + table
                weight = (tables.summed[m, summed + end] - tables.summed[m, summed + above]) / (end - above)
            for j in range(above, end):
                out[m, order[j]] = weight
        above = end


@compiled
def row_weights(
    scores: Any, least: Any, users: Any, column: Any, start: Any, item: Any, tables: Any, out: Any
) -> None:
    """``out[m, row]``: the weight of metric m at the item of each row; user u has ``start[u] : start[u + 1]``.

    Items that score below ``least`` are too far down to have one; theirs stays 0.
    """
    n_known, n_items = scores.shape[1], len(column)
    bins = new_bins(scores)
    slot = np.full(n_items, -1, np.int32)
    wanted = np.empty(n_items, np.int32)
    above, tied = np.empty(n_items, np.int64), np.empty(n_items, np.int64)
    for b in range(len(users)):
        n = 0
        for row in range(start[users[b]], start[users[b] + 1]):
            i = item[row]
            if slot[i] < 0 and (column[i] < 0 or scores[b, column[i]] >= least[b]):
                slot[i], wanted[n] = n, i
                n += 1
        if n == 0:
            continue
        rank_items(scores[b], column[wanted[:n]], n_items - n_known, above, tied, bins)
        for row in range(start[users[b]], start[users[b] + 1]):
            a = slot[item[row]]
            if a >= 0:
                for m in range(len(out)):
                    out[m, row] = _mean_weight(tables, m, above[a], tied[a])
        for a in range(n):
            slot[wanted[a]] = -1


@compiled
def list_sums(
    scores: Any, order: Any, length: Any, users: Any, item_of: Any, factors: Any, unknown: Any, n_unknown: Any,
    tables: Any, out: Any,
) -> None:  # fmt: skip
    """``out[m, user, c]`` = Σ_i weight_m(rank of i) · factors[i, c], over the first ``length`` columns in ``order``.

    The columns are ordered best first. ``item_of`` is the item of each column of the scores, ``unknown`` the sum of
    the factors of the items without a column, which come last, tied.
    """
    total = np.empty(factors.shape[1])
    n_known = scores.shape[1]
    for b in range(len(users)):
        first, n_listed = 0, length[b]
        while first < n_listed:
            last = first
            score = scores[b, order[b, first]]
            total[:] = 0.0
            while last < n_listed and scores[b, order[b, last]] == score:
                for c in range(len(total)):
                    total[c] += factors[item_of[order[b, last]], c]
                last += 1
            _add(tables, first, last - first, total, out, users[b])
            first = last
        if n_unknown > 0 and n_listed == n_known:
            _add(tables, n_known, n_unknown, unknown, out, users[b])


@compiled
def _add(tables: Any, above: Any, tied: Any, total: Any, out: Any, user: Any) -> None:
    for m in range(len(out)):
        weight = _mean_weight(tables, m, above, tied)
        if weight != 0.0:
            for c in range(len(total)):
                out[m, user, c] += weight * total[c]


@compiled
def _mean_weight(tables: Any, metric: Any, above: Any, tied: Any) -> Any:
    """The mean weight over the ranks above + 1 … above + tied."""
    if tied == 1:
        return tables.weight[metric, above]
    return (tables.summed[metric, above + tied] - tables.summed[metric, above]) / tied
