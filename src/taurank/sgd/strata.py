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

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from taurank._jit import compiled
from taurank._random import Stream, below, stream, stream_key
from taurank._types import Codes, Longs
from taurank.errors import InputError
from taurank.sgd.samples import SAMPLE, Samples

POSITIVES_PER_UNIT = 1024  # minimum work of a unit, outweighs the cost of starting it
PAIRS_PER_UNIT = 256
ITEMS_PER_BLOCK = 16  # enough for varied negatives within one epoch
WORKERS = 16  # units per round, and so the largest useful number of threads, if the dataset is large enough
MAX_BLOCKS = 64
_BLOCK = int(Stream.UNIT)
POSITIVES_PER_VISIT = 4  # positives of a user in a unit, on average: they share one load of the user's row


class Cut(NamedTuple):
    """The random blocks of one epoch: ``order`` lists ids block by block, ``start`` says where each block begins."""

    user_order: Codes
    user_start: Longs
    item_order: Codes
    item_start: Longs
    user_block: Codes
    item_block: Codes


class UserGroups(NamedTuple):
    """The user blocks of a whole fit: their members, where each block begins, and the block of every user."""

    members: Codes
    start: Longs
    block: Codes


class Schedule(NamedTuple):
    """The units in their order: round r holds the units r · width … (r + 1) · width − 1.

    A unit owns one user block and one item block, or two of them for drawn pairs. Blocks are numbered from 0, user
    blocks first; no two units of a round have a block in common, and every block takes part once per round.
    """

    width: int
    blocks: Codes  # units × 2 or units × 3


class Strata:
    """The number of blocks for a dataset, and the schedules that follow from it.

    ``blocks`` (B) is for passes over positives and for single items, ``pair_blocks`` (G) for drawn pairs.
    """

    def __init__(self, n_users: int, n_items: int, n_positives: int) -> None:
        if min(n_users, n_items) < 1:
            raise InputError(f"training needs at least one user and one item, got {n_users} and {n_items}.")
        self.n_users, self.n_items, self.n_positives = n_users, n_items, n_positives
        most = max(WORKERS, min(MAX_BLOCKS, n_positives // (POSITIVES_PER_VISIT * n_users)))
        roof = min(n_users, most, max(1, n_items // ITEMS_PER_BLOCK))
        self.blocks = _fit(roof, n_positives / POSITIVES_PER_UNIT, 2)
        pair_roof = min(roof, max(1, n_items // (2 * ITEMS_PER_BLOCK)))
        self.pair_blocks = _fit(pair_roof, n_positives / (2 * PAIRS_PER_UNIT), 3)
        self._spare: list[Samples] = []
        self._groups: dict[tuple[int, int], UserGroups] = {}

    @contextmanager
    def buffer(self, count: int) -> Iterator[Samples]:
        """Memory for the samples of an epoch, reused by the next one: new pages cost a third of a plan."""
        buffer = self._spare.pop() if self._spare else np.empty(0, SAMPLE)
        if len(buffer) != count:
            buffer = np.empty(count, SAMPLE)
        yield buffer
        self._spare.append(buffer)

    def cut(self, seed: int, epoch: int) -> Cut:
        """The random blocks of an epoch: B of users, B of items."""
        return self._cut(seed, epoch, self.blocks, self.blocks)

    def cut_pairs(self, seed: int, epoch: int) -> Cut:
        """The random blocks of an epoch of drawn pairs: G of users, 2G of items."""
        return self._cut(seed, epoch, self.pair_blocks, self._teams())

    def schedule(self) -> Schedule:
        """Unit s · B + a: user block a meets item block (a + s) mod B."""
        shift, user = np.divmod(np.arange(self.blocks**2), self.blocks)
        item = (user + shift) % self.blocks
        return Schedule(self.blocks, np.column_stack((user, self.blocks + item)).astype(np.int32))

    def schedule_pairs(self) -> Schedule:
        """Unit (s · rounds + r) · G + m: user block (m + s) mod G meets match m of round r."""
        matches = _tournament(self._teams())
        rounds, width = matches.shape[:2]
        shift, _, match = np.indices((width, rounds, width)).reshape(3, -1)
        teams = np.tile(matches.reshape(-1, 2), (width, 1))
        return Schedule(width, np.column_stack(((match + shift) % width, width + teams)).astype(np.int32))

    def meetings(self) -> Codes:
        """[b, c]: the number of the match, counted over the rounds, in which the item blocks b and c meet.

        For b = c it is the first match of the block.
        """
        matches = _tournament(self._teams())
        meetings = np.zeros((self._teams(), self._teams()), np.int32)
        for number, (x, y) in reversed(list(enumerate(matches.reshape(-1, 2)))):
            meetings[x, y] = meetings[y, x] = meetings[x, x] = meetings[y, y] = number
        return meetings

    def _teams(self) -> int:
        return 2 * self.pair_blocks

    def _cut(self, seed: int, epoch: int, user_blocks: int, item_blocks: int) -> Cut:
        groups = self._user_groups(seed, user_blocks)
        user_order = shuffle_blocks(groups.members, groups.start, 0, stream(seed, epoch, Stream.USER_BLOCKS))
        items = cut_items(self.n_items, item_blocks, seed, epoch)
        return Cut(user_order, groups.start, items.order, items.start, groups.block, items.block)

    def user_groups(self, seed: int) -> UserGroups:
        """The B user blocks of a fit with this seed."""
        return self._user_groups(seed, self.blocks)

    def _user_groups(self, seed: int, blocks: int) -> UserGroups:
        if (seed, blocks) not in self._groups:
            key = stream(seed, 0, Stream.USER_GROUPS)
            self._groups = {(seed, blocks): UserGroups(*_cut(self.n_users, blocks, key))}
        return self._groups[seed, blocks]


class ItemBlocks(NamedTuple):
    """The item blocks of one epoch: ids block by block, where each block begins, and the block of every item."""

    order: Codes
    start: Longs
    block: Codes


def cut_items(n_items: int, blocks: int, seed: int, epoch: int) -> ItemBlocks:
    """The random item blocks of an epoch."""
    return ItemBlocks(*_cut(n_items, blocks, stream(seed, epoch, Stream.ITEM_BLOCKS)))


def _fit(roof: int, work: float, power: int) -> int:
    """The largest number of blocks with blocks ** power <= work, between one and ``roof``."""
    return max(size for size in range(1, roof + 1) if size == 1 or size**power <= work)


def _tournament(teams: int) -> Longs:
    """Circle method: rounds × matches × 2, so that any two teams meet in exactly one round."""
    circle = teams - 1
    matches = np.empty((circle, teams // 2, 2), np.int64)
    for turn in range(circle):
        home = next(x for x in range(circle) if 2 * x % circle == turn)
        matches[turn, 0] = home, circle
        for m in range(1, teams // 2):
            matches[turn, m] = (home + m) % circle, (home - m) % circle
    return matches


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


@compiled
def _cut(size: int, blocks: int, key: Any) -> tuple[Codes, Longs, Codes]:
    """A random order, where each block of it begins (their sizes are nearly equal), and the block of every id."""
    order = shuffle(size, key)
    start = np.arange(blocks + 1) * size // blocks
    block = np.empty(size, np.int32)
    for b in range(blocks):
        for n in range(start[b], start[b + 1]):
            block[order[n]] = b
    return order, start, block
