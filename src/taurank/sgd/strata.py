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
import numpy.typing as npt

from taurank._arrays import group
from taurank._jit import compiled
from taurank._random import Stream, below, stream, stream_key
from taurank._types import Codes, Floats32, Longs
from taurank.errors import InputError, plural
from taurank.sgd.intrinsics import prefetch

POSITIVES_PER_UNIT = 1024  # minimum work of a unit, outweighs the cost of starting it
PAIRS_PER_UNIT = 256
ITEMS_PER_BLOCK = 16  # enough for varied negatives within one epoch
WORKERS = 16  # units per round, and so the largest useful number of threads, if the dataset is large enough
MAX_BLOCKS = 64
POSITIVES_PER_VISIT = 4  # positives of a user in a unit, on average: they share one load of the user's row
_BLOCK = int(Stream.UNIT)

SAMPLE = np.dtype([("user", "i4"), ("item", "i4"), ("other", "i4"), ("value", "f4")])
"""A pair or a single item.

A pair compares item i with ``other``, j; ``value`` is its weight, whose sign says which of the two should rank
higher. Between the planning of a pass and the draw of its negatives, ``other`` holds the number of the basket.

A single item moves σ(p_u · q_item) toward its target, ``value``. ``item`` and ``other`` are rows of the item factors:
with two item tables, row i + n_items is item i in the second one. ``other`` is read only where rows are tied."""

Samples = npt.NDArray[Any]  # of SAMPLE
TRIES = 32  # of a rejection sampler, before it enumerates what is left (or, for new users, skips the sample)
USERS_AHEAD = 8  # prefetch distance, in users


class Baskets(NamedTuple):
    """What one user bought at one time: negatives to avoid."""

    of: Codes  # the basket of every positive
    start: Longs  # baskets + 1
    item: Codes  # sorted in every basket


class Positives(NamedTuple):
    """What a pass visits, user by user: user u owns the entries start[u] … start[u + 1] − 1."""

    start: Longs  # users + 1
    item: Codes
    weight: Floats32
    baskets: Baskets | None = None


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


def by_user(
    user: npt.NDArray[Any], item: npt.NDArray[Any], weight: npt.NDArray[Any], n_users: int,
    time: npt.NDArray[Any] | None = None,
) -> Positives:  # fmt: skip
    """Sort the positives by user, preserving their order within a user; with ``time``, negatives avoid baskets."""
    user, item = np.asarray(user, np.int32), np.asarray(item, np.int32)
    with np.errstate(over="ignore"):
        weight = np.asarray(weight, np.float32)
    bad = np.flatnonzero(~np.isfinite(weight))
    if bad.size:
        raise InputError(
            f"column 'weight' has {plural(bad.size, 'value')} that are not finite in float32, "
            f"such as {weight[bad[0]]}; use finite weights."
        )
    if time is None:
        start, (item, weight) = group(user, n_users, item, weight)
        return Positives(start, item, weight)
    slot = time.astype(np.int64) * n_users + user
    order = np.lexsort((item, slot))
    _, basket, sizes = np.unique(slot, return_inverse=True, return_counts=True)
    bought = Baskets(basket.astype(np.int32), np.concatenate(([0], np.cumsum(sizes))), item[order])
    start, (item, weight, basket) = group(user, n_users, item, weight, bought.of)
    return Positives(start, item, weight, bought._replace(of=basket.astype(np.int32)))


@compiled
def plan_users(
    cut: Cut, positives: Positives, first: int, last: int, samples: Samples, begin: Longs, end: Longs
) -> None:
    """Sort the positives of the user blocks first … last − 1 by item block; user blocks follow each other.

    A counting sort: users stay in the random order of the cut, so a unit is visited user by user."""
    blocks, start, following = len(cut.items.start) - 1, positives.start, 0
    for u in cut.users.order[: cut.users.start[first]]:
        following += start[u + 1] - start[u]
    for block in range(first, last):
        position = np.zeros(blocks, np.int64)
        members = cut.users.order[cut.users.start[block] : cut.users.start[block + 1]]
        _count_items(members, start, positives.item, cut.items.of, position)
        for b in range(blocks):
            unit = (b - block + blocks) % blocks * blocks + block
            begin[unit] = following
            following += position[b]
            end[unit] = following
            position[b] = begin[unit]
        _write_samples(members, cut.items.of, position, positives, positives.baskets, samples)


@compiled
def deal(drawn: Samples, dealt: Samples, cut: Cut, owners: Codes, units: int) -> Longs:
    """Sort drawn samples into ``dealt`` by the unit that owns their rows; where each of the units begins.

    Samples of one unit keep their order. Rows of a second item table belong to the block of their item.
    """
    user_block, item_block = cut.users.of, cut.items.of
    n_items, unit, start = len(item_block), np.empty(len(drawn), np.int32), np.zeros(units + 1, np.int64)
    for n in range(len(drawn)):
        i, j = drawn[n].item, drawn[n].other
        first = item_block[np.uint64(i - n_items if i >= n_items else i)]
        second = item_block[np.uint64(j - n_items if j >= n_items else j)]
        unit[n] = owners[np.uint64(user_block[np.uint64(drawn[n].user)]), np.uint64(first), np.uint64(second)]
        start[unit[n] + 1] += 1
    start = np.cumsum(start)
    position = start[:-1].copy()
    for n in range(len(drawn)):
        to = np.uint64(unit[n])
        dealt[np.uint64(position[to])] = drawn[n]
        position[to] += 1
    return start


@compiled
def _count_items(members: Codes, start: Longs, item: Codes, block_of: Codes, count: Longs) -> None:
    # unsigned indices avoid Numba's wrap-around check: half of this loop's time
    for m in range(len(members)):
        u = np.uint64(members[m])
        if m + USERS_AHEAD < len(members):
            prefetch(item, np.uint64(start[np.uint64(members[m + USERS_AHEAD])]))
        for n in range(np.uint64(start[u]), np.uint64(start[u + np.uint64(1)])):
            count[np.uint64(block_of[np.uint64(item[n])])] += 1


@compiled
def _write_samples(
    members: Codes, block_of: Codes, position: Longs, positives: Positives, baskets: Baskets | None, samples: Samples
) -> None:
    start, item, weight = positives.start, positives.item, positives.weight
    if baskets is not None:
        basket = baskets.of
    for m in range(len(members)):
        u = np.uint64(members[m])
        if m + USERS_AHEAD < len(members):
            prefetch(weight, np.uint64(start[np.uint64(members[m + USERS_AHEAD])]))
        for n in range(np.uint64(start[u]), np.uint64(start[u + np.uint64(1)])):
            b = np.uint64(block_of[np.uint64(item[n])])
            sample = samples[np.uint64(position[b])]
            position[b] += 1
            sample.user = u
            sample.item = item[n]
            sample.value = weight[n]
            if baskets is not None:
                sample.other = basket[n]
