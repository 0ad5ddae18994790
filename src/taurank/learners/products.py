"""Scores as products of factors, user · item, to bits that do not depend on what is computed together.

BLAS rounds differently in its kernels for vectors, for small matrices and for odd rows at the end; some kernels even
round neighboring columns differently. So users come sixteen at a time, filled up with zeros, as the rows of a kernel:
all sixteen are rounded alike, and every product with the same items has the same shape. Items are cut only where
whole groups of columns end.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import numpy.typing as npt

Float32s = npt.NDArray[np.float32]

_TILE = 16  # users
_SMALL = 1 << 20  # multiplications: OpenBLAS has special kernels for matrices of up to a million
_TILE_ITEMS = 960  # a multiple of the columns that any kernel of OpenBLAS takes together


def products(users: Float32s, items: Float32s) -> Float32s:
    """users · itemsᵀ."""
    scores = np.empty((len(users), len(items)), np.float32)
    _fill(users, items if len(items) > 1 else np.repeat(items, 2, axis=0), scores)  # one item would be a vector
    return scores


def product_tiles(users: Float32s, items: Float32s) -> Iterator[tuple[int, Float32s]]:
    """``products``, bit for bit, some items at a time: the first item, and scores that the next tile overwrites."""
    size = tile_items(items.shape[1])
    if len(items) < 2 * size:
        yield 0, products(users, items)
        return
    buffer = np.empty(len(users) * (size + len(items) % size), np.float32)
    edges = [*range(0, len(items) - size + 1, size), len(items)]  # the last tile is longer, never small
    for first, last in pairwise(edges):
        scores = buffer[: len(users) * (last - first)].reshape(len(users), last - first)
        _fill(users, items[first:last], scores)
        yield first, scores


def tile_items(factors: int) -> int:
    """Items per tile: with few factors more, so that sixteen users make no small matrix."""
    size = _TILE_ITEMS
    while _TILE * size * factors <= _SMALL:
        size *= 2
    return size


def _fill(users: Float32s, items: Float32s, scores: Float32s) -> None:
    """Sixteen users at a time; ``scores`` may have fewer columns than there are items."""
    for first in range(0, len(users), _TILE):
        tile = users[first : first + _TILE]
        if len(tile) < _TILE:
            tile = np.concatenate((tile, np.zeros((_TILE - len(tile), users.shape[1]), np.float32)))
        part = scores[first : first + _TILE]
        part[:] = (items @ tile.T).T[: len(part), : part.shape[1]]
