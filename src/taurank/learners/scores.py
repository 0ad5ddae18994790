"""Scores that are products of factors, and the best of them.

The score of a user and an item is the float64 dot product of their rows, summed in column order and rounded to
float32. It depends on nothing but the two rows: not on BLAS, threads, the kind of CPU, or what is scored together.

Summing in order is slow, so sums in any other order come first, with a bound on what the order can change. If both
ends of the bound round to the same float32, that is the score; else the sum is made in order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from taurank._jit import compiled, inlined, vectorized
from taurank._types import Floats, Floats32
from taurank.evaluation import topk

ROUNDING_32 = 6e-8  # a little more than 2⁻²⁴: covers the terms of second order for up to 65,536 columns
ROUNDING_64 = 1.2e-16  # a little more than 2⁻⁵³
TINY_32 = 1.2e-38  # a float32 product that underflows loses at most this
HUGE_32 = 1e37  # products of longer rows may overflow in float32
TILE = 512  # items whose scores fit into the near caches, for 256 users
SOME_ITEMS = 1000  # to see how fast their principal directions decay
SURVIVOR = 6.0  # cost of scoring a pair, in products of a pair
WORTHWHILE = 0.8  # of the cost without a rotation
FEW_USERS = 32  # for so few, converting items for BLAS does not pay


def dot_products(users: Floats32, items: Floats32) -> Floats32:
    """Scores, users × items."""
    scores = np.empty((len(users), len(items)), np.float32)
    exact, slack = users.astype(np.float64), _order_slack(users, items)
    if len(users) < FEW_USERS:
        _score_rows(exact, items, slack, scores)
        return scores
    for first in range(0, len(items), TILE):
        tile = items[first : first + TILE]
        sums = exact @ tile.T.astype(np.float64)
        _round_sums(sums, exact, tile, slack, scores[:, first : first + TILE])
    return scores


class ProductSearch:
    """The best of a list of items for blocks of users.

    Float32 products of a tile of items filter: an item is scored only if its product exceeds the score of the k-th
    best so far, less what float32 can round away: |fl(p·q) − p·q| ≤ d · 2⁻²⁴ · ‖p‖ · ‖q‖ in any order of summation
    (Higham 2002, section 3.1).

    With a ``sample`` of the users to come, the search may rotate the factors to the principal directions of the items
    and multiply the first h alone: p·q ≤ p_h·q_h + ‖p_rest‖ · ‖q_rest‖, where ‖·_rest‖ is one more column.
    """

    def __init__(self, items: Floats32, k: int, sample: Floats32 | None = None) -> None:
        self.items, self.k, self.largest = items, k, float(_norms(items).max(initial=0))
        self.rough, self.directions = items, None if sample is None else _directions(items, k, sample)
        if self.directions is not None:
            self.rough = _rotated(items, self.directions)

    def best(self, users: Floats32, hide: Callable[[int, Floats32], None]) -> topk.Top:
        """The k best items of each user; ``hide(first, scores)`` puts what is left out at −∞, tile by tile."""
        bound = _norms(users) * self.largest
        if not bound.max(initial=0) < HUGE_32:
            scores = dot_products(users, self.items)
            hide(0, scores)
            return topk.best(scores, self.k)
        running, exact = topk.RunningTop(len(users), self.k), users.astype(np.float64)
        rough_users = users if self.directions is None else _rotated(users, self.directions)
        d = rough_users.shape[1]
        rough_slack = (
            d + 9
        ) * ROUNDING_32 * bound + d * TINY_32  # + 9: both factors, score and limit are rounded too
        slack = _order_slack(users, self.items, self.largest)
        buffer = np.empty(len(users) * TILE, np.float32)
        for first in range(0, len(self.items), TILE):
            tile = self.items[first : first + TILE]
            rough = buffer[: len(users) * len(tile)].reshape(len(users), len(tile))
            np.matmul(rough_users, self.rough[first : first + TILE].T, out=rough)
            hide(first, rough)
            _add_scores(rough, rough_slack, first, exact, tile, slack, running.top())
        return running.top()


def _directions(items: Floats32, k: int, sample: Floats32) -> Floats | None:
    """The principal directions of the items, d × h, with the h that costs least; None if all d columns do.

    The cost is counted on some items: h + 1 products of a pair, and more for those whose bound exceeds the k-th best.
    """
    d = items.shape[1]
    some = items[:: max(1, len(items) // SOME_ITEMS)]
    if d < 2 or len(some) < k or not _norms(sample).max(initial=0) * _norms(items).max(initial=0) < HUGE_32:
        return None
    _, directions = np.linalg.eigh(some.T.astype(np.float64) @ some)
    directions = directions[:, ::-1]
    least = np.partition(sample @ items.T, len(items) - k, axis=1)[:, [len(items) - k]]
    costs = {h: (h + 1) / d for h in (d // 8, d // 4, d // 2, 5 * d // 8) if h}
    for h in costs:
        bounds = _rotated(sample, directions[:, :h]) @ _rotated(some, directions[:, :h]).T
        costs[h] += SURVIVOR * float(np.mean(bounds > least))
    best = min(costs, key=lambda h: costs[h], default=d)
    return directions[:, :best] if costs and costs[best] < WORTHWHILE else None


def _rotated(rows: Floats32, directions: Floats) -> Floats32:
    """Coordinates along the directions, and the norm of the rest."""
    exact = rows.astype(np.float64)
    along = exact @ directions
    squares = np.einsum("ij,ij->i", exact, exact)
    rest = np.maximum(squares - np.einsum("ij,ij->i", along, along), 0) + 1e-12 * squares  # what cancels
    return np.column_stack((along, np.sqrt(rest))).astype(np.float32)


def _norms(rows: Floats32) -> Floats:
    squares = np.empty(len(rows))
    _add_squares(rows, squares)
    norms: Floats = np.sqrt(squares)
    return norms


def _order_slack(users: Floats32, items: Floats32, largest: float | None = None) -> Floats:
    """How far two sums of the same products in float64 can be apart, for each user."""
    largest = float(_norms(items).max(initial=0)) if largest is None else largest
    slack: Floats = 2 * (users.shape[1] + 2) * ROUNDING_64 * largest * _norms(users)
    return slack


@compiled
def _add_squares(rows: Any, squares: Any) -> None:
    for row in range(len(rows)):
        squares[row] = _sum_in_any_order(rows[row], rows[row])


@compiled
def _score_rows(users: Any, items: Any, slack: Any, scores: Any) -> None:
    for i in range(len(items)):
        for row in range(len(users)):
            scores[row, i] = _score(users[row], items[i], slack[row])


@compiled
def _round_sums(sums: Any, users: Any, items: Any, slack: Any, scores: Any) -> None:
    for row in range(len(users)):
        unclear = np.int32(0)  # as wide as a score: the compiler compares many at once
        for i in range(len(items)):
            low, high = np.float32(sums[row, i] - slack[row]), np.float32(sums[row, i] + slack[row])
            scores[row, i] = low + np.float32(0)  # never −0
            unclear = np.int32(unclear | np.int32(low != high))
        if unclear:
            for i in range(len(items)):
                scores[row, i] = _rounded(sums[row, i], slack[row], users[row], items[i])


@compiled
def _add_scores(rough: Any, rough_slack: Any, first: Any, users: Any, items: Any, slack: Any, best: Any) -> None:
    """Insert the scores that may be among the best so far."""
    columns, values, count = best
    k = values.shape[1]
    for row in range(len(users)):
        least = np.float32(values[row, k - 1] - rough_slack[row])
        for begin in range(0, len(items), topk.STRETCH):
            stretch = rough[row, begin : begin + topk.STRETCH]
            if topk.any_above(stretch, least):
                for j in range(len(stretch)):
                    if stretch[j] > least:
                        score = _score(users[row], items[begin + j], slack[row])
                        if score > values[row, k - 1]:
                            count[row] = min(count[row] + 1, k)
                            topk.insert(score, first + begin + j, columns[row], values[row], count[row])
                            least = np.float32(values[row, k - 1] - rough_slack[row])


@inlined
def _score(user: Any, item: Any, slack: Any) -> Any:
    return _rounded(_sum_in_any_order(user, item), slack, user, item)


@inlined
def _rounded(near: Any, slack: Any, user: Any, item: Any) -> Any:
    """The score, from a sum that is within ``slack`` of the sum in order."""
    low, high = np.float32(near - slack), np.float32(near + slack)
    if low != high:
        low = np.float32(_sum_in_order(user, item))
    return low + np.float32(0)  # never −0


@vectorized
def _sum_in_any_order(user: Any, item: Any) -> Any:
    total = 0.0
    for j in range(len(user)):
        total += user[j] * np.float64(item[j])
    return total


@inlined
def _sum_in_order(user: Any, item: Any) -> Any:
    total = 0.0
    for j in range(len(user)):
        total += user[j] * np.float64(item[j])
    return total
