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
BLOCK = 256  # users
TILE = 512  # items whose scores fit into the near caches, for 256 users
GROUPS = 64  # of a tile
FEW_ITEMS = 16  # of a stretch: looked at one by one
FEW_USERS = 32  # for so few, converting items for BLAS does not pay


def dot_products(users: Floats32, items: Floats32) -> Floats32:
    """Scores, users × items."""
    scores = np.empty((len(users), len(items)), np.float32)
    exact, slack = users.astype(np.float64), _order_slack(users, items)
    few = len(users) < FEW_USERS
    for first in range(0, len(items), max(1, len(items)) if few else TILE):
        tile = items if few else items[first : first + TILE]
        sums = _sums(exact, tile) if few else exact @ tile.T.astype(np.float64)
        _round_sums(sums, exact, tile, slack, scores[:, first : first + len(tile)])
    return scores


class ProductSearch:
    """The best of a list of items for blocks of users.

    Float32 products of a tile of items filter: an item survives if its product exceeds the k-th best product so far,
    less twice what float32 can round away: |fl(p·q) − p·q| ≤ d · 2⁻²⁴ · ‖p‖ · ‖q‖ in any order of summation (Higham
    2002, section 3.1). The few that survive all tiles are scored.
    """

    def __init__(self, items: Floats32, k: int) -> None:
        self.items, self.k, self.largest = items, k, float(_norms(items).max(initial=0))
        self._spare: list[Any] = []  # memory for blocks: new pages for each would cost as much as the search in them

    def best(self, users: Floats32, hide: Callable[[int, Floats32], None]) -> topk.Top:
        """The k best items of each user; ``hide(first, scores)`` puts what is left out at −∞, tile by tile."""
        bound = _norms(users) * self.largest
        if not bound.max(initial=0) < HUGE_32:
            scores = dot_products(users, self.items)
            hide(0, scores)
            return topk.best(scores, self.k)
        d = users.shape[1]
        margin = 2 * ((d + 9) * ROUNDING_32 * bound + d * TINY_32)  # + 9: limit and score are rounded too
        room = self._spare.pop() if self._spare else _room(max(len(users), BLOCK), 2 * TILE)
        room = room if len(room[0]) >= len(users) else _room(len(users), 2 * TILE)
        buffer, columns, products = room[0].ravel(), room[1][: len(users)], room[2][: len(users)]
        best, count = np.full((len(users), self.k), -np.inf, np.float32), np.zeros(len(users), np.int64)
        for first in range(0, len(self.items), TILE):
            tile = self.items[first : first + TILE]
            rough = buffer[: len(users) * len(tile)].reshape(len(users), len(tile))
            np.matmul(users, tile.T, out=rough)
            hide(first, rough)
            if count.max(initial=0) + TILE > columns.shape[1]:
                _drop_beaten(columns, products, count, best, margin)
            if count.max(initial=0) + TILE > columns.shape[1]:  # many are nearly equal
                columns = np.hstack((columns, np.empty_like(columns)))
                products = np.hstack((products, np.empty_like(products)))
            _add_survivors(rough, first, columns, products, count, best, margin)
        _drop_beaten(columns, products, count, best, margin)
        top = topk.empty(len(users), self.k)
        slack = _order_slack(users, self.items, self.largest)
        _score_survivors(columns, count, users.astype(np.float64), self.items, slack, top)
        self._spare.append(room)
        return top


def _room(users: int, survivors: int) -> tuple[Any, ...]:
    """For the products of a tile, and for the survivors of each user, in catalog order: columns and products."""
    shapes = ((users, TILE), np.float32), ((users, survivors), np.int32), ((users, survivors), np.float32)
    return tuple(np.empty(*each) for each in shapes)


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
def _sums(users: Any, items: Any) -> Any:
    """The products of every user and item, for a few users."""
    sums = np.empty((len(users), len(items)))
    whole = len(items) - len(items) % 4
    for row in range(len(users)):
        for i in range(0, whole, 4):
            sums[row, i : i + 4] = _four_sums(users[row], items[i], items[i + 1], items[i + 2], items[i + 3])
        for i in range(whole, len(items)):
            sums[row, i] = _sum_in_any_order(users[row], items[i])
    return sums


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
def _add_survivors(rough: Any, first: Any, columns: Any, products: Any, count: Any, best: Any, margin: Any) -> None:
    k = best.shape[1]
    for row in range(len(rough)):
        least = np.float32(best[row, -1] - margin[row])
        if first == 0 and k <= GROUPS // 4 and rough.shape[1] == TILE:
            least = np.float32(_least_of_groups(rough[row], k) - margin[row])
        for begin in range(0, rough.shape[1], topk.STRETCH):
            if not topk.any_above(rough[row, begin : begin + topk.STRETCH], least):
                continue
            for near in range(begin, min(begin + topk.STRETCH, rough.shape[1]), FEW_ITEMS):
                few = rough[row, near : near + FEW_ITEMS]
                if topk.any_above(few, least):
                    for j in range(len(few)):
                        if few[j] > least:
                            columns[row, count[row]], products[row, count[row]] = first + near + j, few[j]
                            count[row] += 1
                            if few[j] > best[row, -1]:
                                _insert(few[j], best[row])
                                least = max(least, np.float32(best[row, -1] - margin[row]))


@compiled
def _least_of_groups(products: Any, k: int) -> Any:
    """The k-th largest of the maxima of groups of items: as many products are as large, or larger."""
    maxima, largest = products[:GROUPS].copy(), np.full(k, -np.inf, np.float32)
    for begin in range(GROUPS, len(products), GROUPS):
        for n in range(GROUPS):
            maxima[n] = max(maxima[n], products[begin + n])
    for n in range(GROUPS):
        if maxima[n] > largest[-1]:
            _insert(maxima[n], largest)
    return largest[-1]


@inlined
def _insert(product: Any, best: Any) -> None:
    slot = len(best) - 1
    while slot > 0 and best[slot - 1] < product:
        best[slot] = best[slot - 1]
        slot -= 1
    best[slot] = product


@compiled
def _drop_beaten(columns: Any, products: Any, count: Any, best: Any, margin: Any) -> None:
    for row in range(len(columns)):
        kept, least = 0, np.float32(best[row, -1] - margin[row])
        for n in range(count[row]):
            if products[row, n] > least:
                columns[row, kept], products[row, kept] = columns[row, n], products[row, n]
                kept += 1
        count[row] = kept


@compiled
def _score_survivors(columns: Any, count: Any, users: Any, items: Any, slack: Any, top: Any) -> None:
    listed, values, length = top
    for row in range(len(users)):
        for n in range(count[row]):
            score = _score(users[row], items[columns[row, n]], slack[row])
            if score > values[row, -1]:
                length[row] = min(length[row] + 1, values.shape[1])
                topk.insert(score, columns[row, n], listed[row], values[row], length[row])


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


@vectorized
def _four_sums(user: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    """Sums in any order for four items at once: none waits for another."""
    first, second, third, fourth = 0.0, 0.0, 0.0, 0.0
    for j in range(len(user)):
        first += user[j] * np.float64(a[j])
        second += user[j] * np.float64(b[j])
        third += user[j] * np.float64(c[j])
        fourth += user[j] * np.float64(d[j])
    return first, second, third, fourth


@inlined
def _sum_in_order(user: Any, item: Any) -> Any:
    return np.cumsum(user * item)[-1]
