"""The plan of an epoch: which users meet which items, so that no two workers share a row.

Users and items are cut into B random blocks each, anew every epoch. In round s the user block a
meets the item block (a + s) mod B: the B *units* of a round touch different users and different
items, so they may run at once, in any order, on any number of threads or machines, and give the
same bits. After B rounds every user block has met every item block: each positive has had its turn.

A negative item j comes from the block of i. Blocks are random and, up to one item, of equal size,
so over the epochs j is uniform over all items but i, and a block never holds fewer than two items.

Methods that draw whole pairs (u, i, j) need i and j in one unit. For them the items are cut into
2G blocks that meet two by two, like the teams of a tournament, while G user blocks pass by.
The numbers of blocks depend on the data alone, never on the number of threads.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from taurank.errors import InputError
from taurank.llvm import compiled, fetch, inlined

Ints = NDArray[np.int32]
Longs = NDArray[np.int64]
Floats = NDArray[np.float32]
Samples = NDArray[Any]  # of SAMPLE

SAMPLE = np.dtype([("user", "i4"), ("item", "i4"), ("other", "i4"), ("weight", "f4")])
"""A row for a kernel. Pairwise: (u, i, j, signed weight); while planned, `other` is the basket.
Pointwise: (u, i, the row tied to i, target). One record, so that sorting moves it in one piece."""

POSITIVES_PER_UNIT = 1024  # so much work outweighs the cost of starting a unit
PAIRS_PER_UNIT = 256
ITEMS_PER_BLOCK = 16  # enough for varied negatives within one epoch
WORKERS = 16  # so many may always work at once, if the data are large enough
MOST_BLOCKS = 64
POSITIVES_PER_VISIT = 4  # a user's row, once in the cache, should serve so many
AHEAD = 8  # users whose positives are fetched before they are planned

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_HALF = np.uint64(32)


class Positives(NamedTuple):
    """What a pass visits, user by user: user u owns the entries start[u] .. start[u + 1]."""

    start: Longs  # users + 1
    item: Ints
    weight: Floats
    basket: Ints  # which basket the entry lies in, or empty if negatives may be anything


class Baskets(NamedTuple):
    """Sorted items per basket (what one user bought at one time): negatives to avoid."""

    start: Longs  # baskets + 1
    item: Ints


class Cut(NamedTuple):
    """One epoch's random blocks: order lists ids block by block, start says where they begin."""

    user_order: Ints
    user_start: Longs
    item_order: Ints
    item_start: Longs
    user_block: Ints
    item_block: Ints


class Schedule(NamedTuple):
    """The units in their order: round r holds the units r * width .. (r + 1) * width.

    A unit owns one user block and one or two item blocks; every block works once a round."""

    width: int
    user: Ints
    first: Ints
    second: Ints
    slots: Ints  # which match of which round joins two item blocks; empty for single items


class Strata:
    """How many blocks the data are cut into, and the schedules that follow from it.

    `blocks` (B) serves passes over positives and single items, `pair_blocks` (G) drawn pairs."""

    def __init__(self, n_users: int, n_items: int, n_positives: int) -> None:
        if min(n_users, n_items) < 1:
            raise InputError(f"Nothing to plan: {n_users} users and {n_items} items; at least one of each.")
        self.n_users, self.n_items, self.n_positives = n_users, n_items, n_positives
        most = max(WORKERS, min(MOST_BLOCKS, n_positives // (POSITIVES_PER_VISIT * n_users)))
        roof = min(n_users, most, max(1, n_items // ITEMS_PER_BLOCK))
        self.blocks = _fit(roof, n_positives / POSITIVES_PER_UNIT, 2)
        pair_roof = min(roof, max(1, n_items // (2 * ITEMS_PER_BLOCK)))
        self.pair_blocks = _fit(pair_roof, n_positives / (2 * PAIRS_PER_UNIT), 3)
        self._spare: list[Samples] = []

    @contextmanager
    def room(self, count: int) -> Iterator[Samples]:
        """Memory for the samples of an epoch, kept for the next: new pages cost a third of a plan."""
        room = self._spare.pop() if self._spare else np.empty(0, SAMPLE)
        if len(room) != count:
            room = np.empty(count, SAMPLE)
        yield room
        self._spare[:] = [room]

    def cut(self, seed: int, epoch: int) -> Cut:
        """The random blocks of an epoch: B of users, B of items."""
        return self._cut(seed, epoch, self.blocks, self.blocks)

    def cut_pairs(self, seed: int, epoch: int) -> Cut:
        """The random blocks of an epoch of drawn pairs: G of users, 2G of items."""
        return self._cut(seed, epoch, self.pair_blocks, self._teams())

    def schedule(self) -> Schedule:
        """Unit s * B + a: user block a meets item block (a + s) mod B."""
        shift, user = np.divmod(np.arange(self.blocks**2, dtype=np.int32), self.blocks)
        item = ((user + shift) % self.blocks).astype(np.int32)
        return Schedule(self.blocks, user.astype(np.int32), item, item, np.zeros((0, 0), np.int32))

    def schedule_pairs(self) -> Schedule:
        """Unit (s * rounds + r) * G + m: user block (m + s) mod G meets match m of round r."""
        matches = _tournament(self._teams())
        rounds, width = matches.shape[:2]
        shift, _, match = np.indices((width, rounds, width), dtype=np.int32).reshape(3, -1)
        teams = np.tile(matches.reshape(-1, 2), (width, 1)).astype(np.int32)
        user = ((match + shift) % width).astype(np.int32)
        first, second = (np.ascontiguousarray(column) for column in teams.T)
        return Schedule(width, user, first, second, _slots(matches))

    def _teams(self) -> int:
        return 2 * self.pair_blocks

    def _cut(self, seed: int, epoch: int, user_blocks: int, item_blocks: int) -> Cut:
        users, items = (stream(seed, epoch, purpose) for purpose in (1, 2))
        user_order, user_start, user_block = _shuffle(self.n_users, user_blocks, users)
        item_order, item_start, item_block = _shuffle(self.n_items, item_blocks, items)
        return Cut(user_order, user_start, item_order, item_start, user_block, item_block)


def by_user(
    user: NDArray[Any], item: NDArray[Any], weight: NDArray[Any],
    n_users: int, n_items: int, basket: NDArray[Any] | None = None,
) -> Positives:  # fmt: skip
    """Check the positives once and sort them by user, keeping their order within a user."""
    user = _checked("user", user, n_users)
    item = _checked("item", item, n_items)
    weight = np.asarray(weight, dtype=np.float32)
    bad = np.flatnonzero(~np.isfinite(weight))
    if bad.size:
        raise InputError(
            f"Column 'weight' has {bad.size} values that are not finite in float32, "
            f"such as {weight[bad[0]]}; use finite weights."
        )
    lengths = {"user": len(user), "item": len(item), "weight": len(weight)}
    if basket is not None:
        lengths["basket"] = len(basket)
    if len(set(lengths.values())) > 1:
        raise InputError(f"Columns of one table differ in length: {lengths}.")
    baskets = np.empty(0, np.int32) if basket is None else np.asarray(basket, np.int32)
    return _sort_by_user(user, item, weight, baskets, n_users)


def deal(strata: Strata, cut: Cut, schedule: Schedule, drawn: Samples) -> tuple[Samples, Longs]:
    """Sort drawn samples by the unit that holds them: the samples, and where each unit begins.

    Samples of one unit keep their order. Pointwise rows beyond the item count belong to the item
    they are tied to, so a second item table lies behind the first one."""
    _checked("user", drawn["user"], strata.n_users)
    _checked("item", drawn["item"], 2 * strata.n_items)
    _checked("other", drawn["other"], 2 * strata.n_items)
    if not np.isfinite(drawn["weight"]).all():
        raise InputError("Column 'weight' of the drawn samples has values that are not finite.")
    if len(schedule.slots) and (drawn["item"] == drawn["other"]).any():
        twins = np.flatnonzero(drawn["item"] == drawn["other"])
        raise InputError(
            f"{len(twins)} drawn pairs compare an item with itself, such as item "
            f"{drawn['item'][twins[0]]}; draw j != i."
        )
    units = len(schedule.user)
    return _deal(cut, schedule.width, units, schedule.slots, strata.n_items, drawn)


@inlined
def scramble(word: Any) -> Any:
    """SplitMix64's finaliser: an even hash of 64 bits, so counters become random numbers."""
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return word ^ (word >> np.uint64(31))


@inlined
def below(key: Any, counter: Any, bound: Any) -> Any:
    """Random number `counter` of stream `key`, in 0 .. bound - 1 by multiply and shift."""
    word = scramble(key + (np.uint64(counter) + np.uint64(1)) * _GOLDEN)
    return ((word >> _HALF) * np.uint64(bound)) >> _HALF


def stream(seed: int, epoch: int, purpose: int) -> np.uint64:
    """The key of an independent stream of random numbers."""
    return np.uint64(key_of(np.uint64(seed), np.uint64(epoch), np.uint64(purpose)))


@compiled
def key_of(seed: Any, epoch: Any, purpose: Any) -> Any:
    """`stream` for use inside kernels."""
    key = scramble(np.uint64(seed) + _GOLDEN)
    key = scramble(key ^ np.uint64(epoch) * _GOLDEN)
    return scramble(key + np.uint64(purpose) * _GOLDEN)


@compiled
def plan_users(
    cut: Cut, positives: Positives, block: int, offset: int, samples: Samples,
    begin: Longs, end: Longs,
) -> None:  # fmt: skip
    """Sort the positives of one user block by item block, writing from `offset` on.

    A counting sort: users stay in the cut's random order, so a unit is visited user by user."""
    blocks = len(cut.item_start) - 1
    place = np.zeros(blocks, np.int64)
    members = cut.user_order[cut.user_start[block] : cut.user_start[block + 1]]
    _count_items(members, positives.start, positives.item, cut.item_block, place)
    for b in range(blocks):
        unit = (b - block + blocks) % blocks * blocks + block
        begin[unit] = offset
        offset += place[b]
        end[unit] = offset
        place[b] = begin[unit]
    _place(members, cut.item_block, place, positives, samples)


@compiled
def block_offsets(cut: Cut, start: Longs) -> Longs:
    """Where each user block's positives begin in the planned order."""
    blocks = len(cut.user_start) - 1
    offsets = np.zeros(blocks + 1, np.int64)
    for block in range(blocks):
        total = 0
        for u in cut.user_order[cut.user_start[block] : cut.user_start[block + 1]]:
            total += start[u + 1] - start[u]
        offsets[block + 1] = offsets[block] + total
    return offsets


def _fit(roof: int, work: float, power: int) -> int:
    """The most blocks with blocks ** power <= work, at least one and at most `roof`."""
    return max(size for size in range(1, roof + 1) if size == 1 or size**power <= work)


def _checked(name: str, values: NDArray[Any], bound: int) -> Ints:
    values = np.asarray(values)
    if len(values) and not (values.min() >= 0 and values.max() < bound):
        bad = values[(values < 0) | (values >= bound)]
        raise InputError(
            f"Column '{name}' has {len(bad)} rows outside 0 .. {bound - 1}, such as {bad[0]}; "
            "use the dense ids of the log's catalogue."
        )
    return np.ascontiguousarray(values, dtype=np.int32)


def _tournament(teams: int) -> Longs:
    """Circle method: rounds x matches x 2, so that any two teams meet in exactly one round."""
    circle = teams - 1
    matches = np.empty((circle, teams // 2, 2), np.int64)
    for turn in range(circle):
        home = next(x for x in range(circle) if 2 * x % circle == turn)
        matches[turn, 0] = home, circle
        for m in range(1, teams // 2):
            matches[turn, m] = (home + m) % circle, (home - m) % circle
    return matches


def _slots(matches: Longs) -> Ints:
    """slots[x, y] = round * matches + match in which teams x and y meet.

    A team that needs no partner (x = y) goes with the first match it plays."""
    teams = len(matches) + 1
    slots = np.zeros((teams, teams), np.int32)
    for number, (x, y) in reversed(list(enumerate(matches.reshape(-1, 2)))):
        slots[x, y] = slots[y, x] = slots[x, x] = slots[y, y] = number
    return slots


@compiled
def _shuffle(size: int, blocks: int, key: Any) -> tuple[Ints, Longs, Ints]:
    """A random order of 0 .. size - 1 (Fisher-Yates), cut into blocks of nearly equal size."""
    order = np.arange(size).astype(np.int32)
    for n in range(size - 1, 0, -1):
        m = below(key, n, n + 1)
        order[n], order[m] = order[m], order[n]
    start = np.arange(blocks + 1) * size // blocks
    block = np.empty(size, np.int32)
    for b in range(blocks):
        for n in range(start[b], start[b + 1]):
            block[order[n]] = b
    return order, start, block


@compiled
def _count_items(members: Ints, start: Longs, item: Ints, block: Ints, count: Longs) -> None:
    for m in range(len(members)):
        u = np.uint64(members[m])
        if m + AHEAD < len(members):
            fetch(item, np.uint64(start[np.uint64(members[m + AHEAD])]))
        for n in range(np.uint64(start[u]), np.uint64(start[u + np.uint64(1)])):
            count[np.uint64(block[np.uint64(item[n])])] += 1


@compiled
def _place(members: Ints, block: Ints, place: Longs, positives: Positives, samples: Samples) -> None:
    # Unsigned indices spare Numba's look for negative ones: half of this loop's time.
    start, item, weight, basket = positives
    for m in range(len(members)):
        u = np.uint64(members[m])
        if m + AHEAD < len(members):
            fetch(weight, np.uint64(start[np.uint64(members[m + AHEAD])]))
        for n in range(np.uint64(start[u]), np.uint64(start[u + np.uint64(1)])):
            b = np.uint64(block[np.uint64(item[n])])
            sample = samples[np.uint64(place[b])]
            place[b] += 1
            sample.user = u
            sample.item = item[n]
            sample.weight = weight[n]
            if len(basket):
                sample.other = basket[n]


@compiled
def _sort_by_user(user: Ints, item: Ints, weight: Floats, basket: Ints, n_users: int) -> Positives:
    start = np.zeros(n_users + 1, np.int64)
    for u in user:
        start[u + 1] += 1
    start = np.cumsum(start)
    place = start[:-1].copy()
    items, weights, baskets = np.empty_like(item), np.empty_like(weight), np.empty_like(basket)
    for n in range(len(user)):
        to = place[user[n]]
        place[user[n]] = to + 1
        items[to] = item[n]
        weights[to] = weight[n]
        if len(basket):
            baskets[to] = basket[n]
    return Positives(start, items, weights, baskets)


@compiled
def _deal(cut: Cut, width: int, units: int, slots: Ints, n_items: int, drawn: Samples) -> tuple[Samples, Longs]:
    unit, start = _units(cut.user_block, cut.item_block, width, units, slots, n_items, drawn)
    dealt = np.empty_like(drawn)
    place = start[:-1].copy()
    for n in range(len(drawn)):
        to = np.uint64(unit[n])
        dealt[np.uint64(place[to])] = drawn[n]
        place[to] += 1
    return dealt, start


@compiled
def _units(
    user_block: Ints, item_block: Ints, width: int, units: int, slots: Ints, n_items: int,
    drawn: Samples,
) -> tuple[Ints, Longs]:  # fmt: skip
    """The unit of each sample, and where each unit begins."""
    unit = np.empty(len(drawn), np.int32)
    start = np.zeros(units + 1, np.int64)
    for n in range(len(drawn)):
        a, b = user_block[drawn[n].user], item_block[drawn[n].item % n_items]
        if len(slots):
            slot = slots[b, item_block[drawn[n].other % n_items]]
            shift = (a - slot % width + width) % width
            unit[n] = shift * (len(slots) - 1) * width + slot
        else:
            unit[n] = (b - a + width) % width * width + a
        start[unit[n] + 1] += 1
    return unit, np.cumsum(start)
