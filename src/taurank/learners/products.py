"""Scores as products of factors, user · item, to bits that do not depend on what is computed together.

BLAS rounds differently in its kernels for vectors, for small matrices and for odd rows at the end. So users come in
whole tiles, filled up with zeros, and items are cut where whole tiles end; a product is large enough not to be a
small matrix, or stands alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import numpy.typing as npt

Float32s = npt.NDArray[np.float32]

_TILES = (16, 32, 64, 128, 256)  # users
_SMALL = 1 << 21  # multiplications: OpenBLAS has special kernels up to a million
_TILE_ITEMS = 1024  # with 256 users, their scores fit into the second-level cache until the best are picked


def products(users: Float32s, items: Float32s) -> Float32s:
    """users · itemsᵀ."""
    tile = next((size for size in _TILES if size * items.size > _SMALL), _TILES[-1])
    right = items.T if len(items) > 1 else np.repeat(items, 2, axis=0).T  # one column would be a vector
    filled = _filled(users, -(-len(users) // tile) * tile)
    if tile * items.size > _SMALL or len(filled) <= tile:
        scores = filled @ right
    else:
        scores = np.concatenate([part @ right for part in filled.reshape(-1, tile, users.shape[1])])
    return np.ascontiguousarray(scores[: len(users), : len(items)])


def product_tiles(users: Float32s, items: Float32s) -> Iterator[tuple[int, Float32s]]:
    """``products``, bit for bit, some items at a time: the first item, and scores that the next tile overwrites."""
    size = tile_items(items.shape[1])
    if len(items) < 2 * size:
        yield 0, products(users, items)
        return
    fewest = _SMALL // (size * items.shape[1]) + 1
    filled = _filled(users, -(-max(len(users), fewest) // _TILES[0]) * _TILES[0])
    buffer = np.empty(len(filled) * (size + len(items) % size), np.float32)
    edges = [*range(0, len(items) - size + 1, size), len(items)]  # the last tile is longer, never small
    for first, last in pairwise(edges):
        scores = buffer[: len(filled) * (last - first)].reshape(len(filled), last - first)
        np.matmul(filled, items[first:last].T, out=scores)
        yield first, scores[: len(users)]


def tile_items(factors: int) -> int:
    """Items per tile: with few factors more, so that 256 users make no small matrix."""
    size = _TILE_ITEMS
    while _TILES[-1] * size * factors <= _SMALL:
        size *= 2
    return size


def _filled(users: Float32s, count: int) -> Float32s:
    """The rows of the users, and zeros up to ``count`` rows."""
    if count == len(users):
        return users
    return np.concatenate((users, np.zeros((count - len(users), users.shape[1]), np.float32)))
