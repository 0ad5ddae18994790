"""The plan of an epoch: which users meet which items, so that no two threads share a row.

Users and items are each cut into B random blocks. The members of a user block are drawn once for a fit, and their
order every epoch; item blocks are drawn every epoch. So users can stay on one machine for a whole fit, while item
blocks travel. In round s the user block a meets the item block (a + s) mod B. The B *units* of a round have no users
and no items in common, so they can run at the same time, in any order, on any number of threads or machines, with
the same bits. After B rounds every user block has met every item block, so every positive has been visited.

A negative item j comes from the block of i. Blocks are random and, up to one item, of equal size, so over the epochs
j is uniform over all items but i, and a block never holds fewer than two items.

Methods that draw whole pairs (u, i, j) need i and j in one unit. For them the items are cut into 2G blocks that meet
two by two, like the teams of a tournament, while G user blocks rotate. The numbers of blocks depend on the data,
never on the number of threads.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from taurank._jit import compiled
from taurank._random import Stream, below, stream, stream_key
from taurank._types import Codes, Longs
from taurank.errors import InputError

POSITIVES_PER_UNIT = 1024  # minimum work of a unit, outweighs the cost of starting it
PAIRS_PER_UNIT = 256
ITEMS_PER_BLOCK = 16  # enough for varied negatives within one epoch
WORKERS = 16  # units per round, and so the largest useful number of threads, if the dataset is large enough
MAX_BLOCKS = 64
POSITIVES_PER_VISIT = 4  # positives of a user in a unit, on average: they share one load of the user's row
_BLOCK = int(Stream.UNIT)


class Blocks(NamedTuple):
    """Random blocks of nearly equal size: ids block by block, where each block begins, the block of every id."""

    order: Codes
    start: Longs
    of: Codes

    def members(self, block: int) -> Codes:
        """The ids of a block, in its order."""
        return self.order[self.start[block] : self.start[block + 1]]


class Cut(NamedTuple):
    """The random blocks of one epoch."""

    users: Blocks
    items: Blocks


class Strata:
    """The numbers of blocks for a dataset, and the units that follow from them.

    ``pairs`` says that whole pairs are drawn: 2G item blocks, not B. ``width`` is the number of user blocks, and so
    of the units of a round.
    """

    def __init__(self, n_users: int, n_items: int, n_positives: int, pairs: bool = False) -> None:
        if min(n_users, n_items) < 1:
            raise InputError(f"training needs at least one user and one item, got {n_users} and {n_items}.")
        self.n_users, self.n_items, self.pairs = n_users, n_items, pairs
        most = max(WORKERS, min(MAX_BLOCKS, n_positives // (POSITIVES_PER_VISIT * n_users)))
        most = min(n_users, most, max(1, n_items // (ITEMS_PER_BLOCK * (2 if pairs else 1))))
        if pairs:
            self.width = _most_blocks(most, n_positives / (2 * PAIRS_PER_UNIT), 3)
        else:
            self.width = _most_blocks(most, n_positives / POSITIVES_PER_UNIT, 2)
        self.item_blocks = 2 * self.width if pairs else self.width

    def cut(self, seed: int, epoch: int) -> Cut:
        """The random blocks of an epoch."""
        users = self.user_groups(seed)
        order = shuffle_blocks(users.order, users.start, 0, stream(seed, epoch, Stream.USER_BLOCKS))
        return Cut(users._replace(order=order), cut_items(self.n_items, self.item_blocks, seed, epoch))

    def user_groups(self, seed: int) -> Blocks:
        """The user blocks of a fit with this seed."""
        return _random_blocks(self.n_users, self.width, stream(seed, 0, Stream.USER_GROUPS))

    @cached_property
    def units(self) -> Codes:
        """The blocks of every unit; round r holds the units r · width … (r + 1) · width − 1.

        A unit owns one user block and one item block, or two of them for drawn pairs. Item blocks are numbered
        after the user blocks; no two units of a round have a block in common, and every block takes part once.
        """
        width = self.width
        if not self.pairs:
            shift, user = np.divmod(np.arange(width**2), width)
            return np.column_stack((user, width + (user + shift) % width)).astype(np.int32)
        matches = _tournament(2 * width)
        shift, turn, match = np.indices((width, *matches.shape[:2])).reshape(3, -1)
        return np.column_stack(((match + shift) % width, width + matches[turn, match])).astype(np.int32)

    @cached_property
    def owners(self) -> Codes:
        """[user block, block of i, block of j]: the unit that owns them; where i and j share a block, the first."""
        units, number = self.units, np.arange(len(self.units), dtype=np.int32)
        user, first, second = units[:, 0], units[:, 1] - self.width, units[:, -1] - self.width
        owners = np.empty((self.width, self.item_blocks, self.item_blocks), np.int32)
        match = number % (len(units) // self.width)
        late_first = np.argsort(-np.tile(match, 2), kind="stable")  # of several units the last one assigned stays
        own = np.concatenate((first, second))[late_first]
        owners[np.tile(user, 2)[late_first], own, own] = np.tile(number, 2)[late_first]
        owners[user, first, second] = owners[user, second, first] = number
        return owners


def cut_items(n_items: int, blocks: int, seed: int, epoch: int) -> Blocks:
    """The random item blocks of an epoch."""
    return _random_blocks(n_items, blocks, stream(seed, epoch, Stream.ITEM_BLOCKS))


def _random_blocks(size: int, blocks: int, key: np.uint64) -> Blocks:
    order, start, of = shuffle(size, key), np.arange(blocks + 1) * size // blocks, np.empty(size, np.int32)
    of[order] = np.repeat(np.arange(blocks, dtype=np.int32), np.diff(start))
    return Blocks(order, start, of)


def _most_blocks(most: int, work: float, power: int) -> int:
    """The largest number of blocks with blocks ** power <= work, between one and ``most``."""
    return max(size for size in range(1, most + 1) if size == 1 or size**power <= work)


def _tournament(teams: int) -> Longs:
    """Circle method: rounds × matches × 2, so that any two teams meet in exactly one round."""
    circle, match = teams - 1, np.arange(teams // 2)
    home = np.arange(circle)[:, None] * (teams // 2)  # 2 · home = round, modulo the circle
    away = (home - match) % circle
    away[:, 0] = circle
    return np.stack(((home + match) % circle, away), axis=-1)


@compiled
def shuffle(size: int, key: Any) -> Codes:
    """A random order of 0 … size − 1 (Fisher-Yates)."""
    order = np.arange(size).astype(np.int32)
    for n in range(size - 1, 0, -1):
        m = below(key, n, n + 1)
        order[n], order[m] = order[m], order[n]
    return order


@compiled
def shuffle_blocks(members: Codes, start: Longs, first: int, key: Any) -> Codes:
    """The members of consecutive blocks, each block in a random order; ``first`` is the number of the first one."""
    order = np.empty_like(members)
    for b in range(len(start) - 1):
        low, size = start[b], start[b + 1] - start[b]
        positions = shuffle(size, stream_key(key, first + b, _BLOCK))
        for n in range(size):
            order[low + n] = members[low + positions[n]]
    return order
