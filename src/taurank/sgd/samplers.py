"""Samples for the methods that draw from all cells: pairs for ULBPR, single cells for ULRMF and CausE.

Control negatives, the items that a slot does not list, are not stored: the n-th of them is found by a search in the
sorted list of the slot (see ``slots``).

Samples are drawn in two passes. The first one chooses user and slot; then the samples are sorted by user, so that the
second one, which draws the items, reads the lists of a user while they are in the cache. Each sample has its own
random numbers in each pass, so that any cut of the draws into blocks draws the same samples.

The loops take the arrays out of their named tuples once: inside a loop Numba would count references, atomically, at
every use, which costs more than the draw itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from taurank._jit import compiled, inlined
from taurank._random import below, uniform
from taurank._threads import Flag, run_interruptibly, share_blocks
from taurank._types import Codes, Longs
from taurank.sgd.samples import SAMPLE, TRIES, Samples
from taurank.sgd.slots import CN, CP, TN, TP, Arms, CellsByClass, PairKinds, Slots
from taurank.sgd.strata import shuffle

NOT_STORED: Any = np.int64(-1)  # as the number of a slot: it has no row
_STEPS = np.uint64(128)  # random numbers reserved for one sample
_LARGEST = 2**32 - 1  # bound of ``below``


class Sampler(NamedTuple):
    """How a method draws. Both passes take (key, samples, begin, end) and write the samples begin … end − 1."""

    choose: Callable[[np.uint64, Samples, int, int], None]  # the user; what it leaves in the rest is for ``fill``
    fill: Callable[[np.uint64, Samples, int, int], None]


def draw(sampler: Sampler, n: int, n_users: int, key: np.uint64, threads: int) -> Samples:
    """n samples, in a random order of users."""
    samples: Samples = np.empty(n, SAMPLE)
    spare: Samples = np.empty(n, SAMPLE)
    draw_into(samples, spare, sampler, n_users, key, threads)
    return samples


def draw_into(samples: Samples, spare: Samples, sampler: Sampler, n_users: int, key: np.uint64, threads: int) -> None:
    """``draw`` into given memory; ``spare`` is as large, and overwritten."""
    n = len(samples)

    def run(stop: Flag) -> None:
        share_blocks(lambda begin, end: sampler.choose(key, spare, begin, end), n, threads, stop)
        if not stop[0]:
            _sort_by_user(spare, n_users, key, samples)
            share_blocks(lambda begin, end: sampler.fill(key, samples, begin, end), n, threads, stop)

    run_interruptibly(run)


@compiled
def choose_pairs(slots: Slots, kinds: PairKinds, key: Any, samples: Samples, begin: int, end: int) -> None:
    """ULBPR: the kind of pair first, then a uniform time and a uniform user with both classes."""
    chance, busy, n_busy, start, able = kinds.chance[:-1], kinds.busy, kinds.n_busy, kinds.start, kinds.slot
    user = slots.user
    for n in range(begin, end):
        counter = np.uint64(n) * _STEPS
        kind = np.searchsorted(chance, uniform(key, counter), "right")
        time = busy[kind, _below(key, counter, 1, n_busy[kind])]
        low, high = start[kind, time], start[kind, time + 1]
        slot = able[low + _below(key, counter, 2, high - low)]
        samples[n].user = user[slot]
        samples[n].item = slot
        samples[n].other = kind
        samples[n].value = 1


@compiled
def fill_pairs(slots: Slots, kinds: PairKinds, key: Any, samples: Samples, begin: int, end: int) -> None:
    """ULBPR: uniform items i and j of the two classes of the chosen slot."""
    start, item, listed, n_items = slots.start, slots.item, slots.sorted_item, slots.n_items
    better, worse = kinds.better, kinds.worse
    for n in range(begin, end):
        counter = np.uint64(n) * _STEPS
        slot, kind = np.int64(samples[n].item), samples[n].other
        samples[n].item = _draw_item(start, item, listed, n_items, slot, better[kind], key, counter, 3)
        samples[n].other = _draw_item(start, item, listed, n_items, slot, worse[kind], key, counter, 4)


@compiled
def choose_by_class(
    slots: Slots, cells: CellsByClass, positives: float, alpha: float,
    key: Any, samples: Samples, begin: int, end: int,
) -> None:  # fmt: skip
    """ULRMF: arm 50/50, positives with the given share in the arm, uniform among the cells of the class.

    Target 1 for TP, 0 for TN and CP; a control negative is 1 with probability α. Of a control negative the slot
    is left in ``other`` and its rank among those of the slot in ``item``; otherwise ``other`` is −1.
    """
    users, items, first = cells.user, cells.item, cells.start
    start, times, user_start = slots.start, slots.time, slots.user_start
    n_items, n_times, n_users = slots.n_items, slots.n_times, len(slots.user_start) - 1
    for n in range(begin, end):
        counter = np.uint64(n) * _STEPS
        treated = uniform(key, counter) < 0.5
        positive = uniform(key, counter + np.uint64(1)) < positives
        kind = (TP if positive else TN) if treated else (CP if positive else CN)
        if kind == CN:
            user = _below(key, counter, 8, n_users)
            slot = _find_slot(user_start, times, n_times, user, _below(key, counter, 9, n_times))
            item = _below(key, counter, 10, n_items)
            if slot >= 0 and item >= n_items - (start[3 * slot + 3] - start[3 * slot]):
                user, slot, item = _choose_control_negative(slots, cells, key, counter)
            target = uniform(key, counter + np.uint64(2)) < alpha
        else:
            row = first[kind] + _below(key, counter, 3, first[kind + 1] - first[kind])
            user, slot, item = np.int64(users[row]), NOT_STORED, np.int64(items[row])
            target = kind == TP
        samples[n].user = user
        samples[n].item = item
        samples[n].other = slot
        samples[n].value = target


@compiled
def fill_by_class(slots: Slots, key: Any, samples: Samples, begin: int, end: int) -> None:
    """ULRMF: find the control negatives by their rank."""
    start, listed = slots.start, slots.sorted_item
    for n in range(begin, end):
        slot = np.int64(samples[n].other)
        if slot >= 0:
            low, high = start[3 * slot], start[3 * slot + 3]
            samples[n].item = absent_item(listed, low, high, np.int64(samples[n].item))
        samples[n].other = samples[n].item


@compiled
def choose_by_arm(slots: Slots, arms: Arms, key: Any, samples: Samples, begin: int, end: int) -> None:
    """CausE: arm 50/50, left in ``item``; a uniform user and time that has the arm, its slot left in ``other``."""
    start, user_of, times, user_start, n_items = slots.start, slots.user, slots.time, slots.user_start, slots.n_items
    treated, n_times, n_users = arms.treated, slots.n_times, len(slots.user_start) - 1
    for n in range(begin, end):
        counter = np.uint64(n) * _STEPS
        if uniform(key, counter) < 0.5:
            slot: Any = np.int64(treated[_below(key, counter, 1, len(treated))])
            samples[n].user = user_of[slot]
            samples[n].item = 1
        else:
            user: Any = _below(key, counter, 8, n_users)
            slot = _find_slot(user_start, times, n_times, user, _below(key, counter, 9, n_times))
            if slot >= 0 and start[3 * slot + 2] - start[3 * slot] >= n_items:
                user, slot = _choose_control_slot(slots, arms, key, counter)
            samples[n].user = user
            samples[n].item = 0
        samples[n].other = slot


@compiled
def fill_by_arm(slots: Slots, key: Any, samples: Samples, begin: int, end: int) -> None:
    """CausE: a uniform item of the arm. The control arm has the rows of the second item table."""
    start, items, listed, n_items = slots.start, slots.item, slots.sorted_item, slots.n_items
    for n in range(begin, end):
        counter = np.uint64(n) * _STEPS
        slot = np.int64(samples[n].other)
        if samples[n].item == 1:
            low, high = start[3 * slot], start[3 * slot + 2]
            row = low + _below(key, counter, 4, high - low)
            item: Any = np.int64(items[row])
            target = row < start[3 * slot + 1]
            samples[n].item = item
            samples[n].other = item + n_items
        else:
            item, target = _draw_untreated(start, items, listed, n_items, slot, key, counter)
            samples[n].item = item + n_items
            samples[n].other = item
        samples[n].value = target


@compiled
def _sort_by_user(samples: Samples, n_users: int, key: Any, output: Samples) -> None:
    """A counting sort, in a random order of users: training must not always visit the same ones last."""
    order = shuffle(n_users, ~key)
    position = np.zeros(n_users, np.int64)
    for n in range(len(samples)):
        position[np.uint64(samples[n].user)] += 1
    total = 0
    for u in order:
        position[u], total = total, total + position[u]
    for n in range(len(samples)):
        u = np.uint64(samples[n].user)
        output[np.uint64(position[u])] = samples[n]
        position[u] += 1


@inlined
def _below(key: Any, counter: Any, step: int, bound: Any) -> Any:
    return np.int64(below(key, counter + np.uint64(step), bound))


@inlined
def _draw_item(
    start: Longs, item: Codes, listed: Codes, n_items: int, slot: Any, kind: Any, key: Any, counter: Any, step: int
) -> Any:
    """A uniform item of a class of a slot."""
    if kind == CN:
        low, high = start[3 * slot], start[3 * slot + 3]
        rank = _below(key, counter, step, n_items - (high - low))
        return absent_item(listed, low, high, rank)
    low, high = start[3 * slot + kind], start[3 * slot + kind + 1]
    return np.int64(item[low + _below(key, counter, step, high - low)])


@inlined
def absent_item(listed: Codes, low: Any, high: Any, rank: Any) -> Any:
    """The item, counted from 0 by rank, that is not among the sorted items listed[low : high].

    Of the items before it, as many are listed as there are n with listed[low + n] − n <= rank."""
    start, size = np.uint64(low), np.uint64(high - low)
    limit = rank - np.int64(low)  # listed[m] − (m − low) <= rank
    position, one = start, np.uint64(1)
    while size > np.uint64(0):
        half = (size + one) >> one
        probe = position + half - one
        position += half * np.uint64(np.int64(listed[probe]) - np.int64(probe) <= limit)  # without a branch
        size -= half
    return rank + np.int64(position - start)


@compiled
def _choose_control_negative(slots: Slots, cells: CellsByClass, key: Any, counter: Any) -> Any:
    """User, slot (−1 if it is not stored) and rank of a uniform control negative.

    A uniform slot and a uniform rank, until the slot has as many; after too many tries one is counted out."""
    n_users, n_times = len(slots.user_start) - 1, slots.n_times
    for step in range(8, 8 + 3 * TRIES, 3):
        user = _below(key, counter, step, n_users)
        slot = _find_slot(slots.user_start, slots.time, n_times, user, _below(key, counter, step + 1, n_times))
        rank = _below(key, counter, step + 2, slots.n_items)
        if slot < 0 or rank < slots.n_items - (slots.start[3 * slot + 3] - slots.start[3 * slot]):
            return user, slot, rank
    rank = _below(key, counter, 8 + 3 * TRIES, min(cells.n_absent, _LARGEST))
    if rank >= cells.absent[-1]:
        rank -= cells.absent[-1]
        return _idle_user(cells.idle, rank // slots.n_items), NOT_STORED, rank % slots.n_items
    slot = np.int64(np.searchsorted(cells.absent, rank, "right") - 1)
    return np.int64(slots.user[slot]), slot, rank - cells.absent[slot]


@compiled
def _choose_control_slot(slots: Slots, arms: Arms, key: Any, counter: Any) -> Any:
    """User and slot (−1 if it is not stored) of a uniform slot with an untreated item."""
    n_users, n_times = len(slots.user_start) - 1, slots.n_times
    for step in range(8, 8 + 2 * TRIES, 2):
        user = _below(key, counter, step, n_users)
        slot = _find_slot(slots.user_start, slots.time, n_times, user, _below(key, counter, step + 1, n_times))
        if slot < 0 or slots.start[3 * slot + 2] - slots.start[3 * slot] < slots.n_items:
            return user, slot
    rank = _below(key, counter, 8 + 2 * TRIES, min(arms.n_control, _LARGEST))
    if rank >= len(arms.control):
        return _idle_user(arms.idle, rank - len(arms.control)), NOT_STORED
    slot = np.int64(arms.control[rank])
    return np.int64(slots.user[slot]), slot


@inlined
def _draw_untreated(
    start: Longs, items: Codes, listed: Codes, n_items: int, slot: Any, key: Any, counter: Any
) -> Any:
    """A uniform untreated item of a slot, and whether it was positive."""
    if slot < 0:
        return _below(key, counter, 4, n_items), False
    low, control, high = start[3 * slot], start[3 * slot + 2], start[3 * slot + 3]
    rank = _below(key, counter, 4, n_items - (control - low))
    if rank < high - control:
        return np.int64(items[control + rank]), True
    return absent_item(listed, low, high, rank - (high - control)), False


@inlined
def _find_slot(user_start: Longs, times: Codes, n_times: int, user: Any, time: Any) -> Any:
    """The slot of a user at a time, or −1 if it has no row."""
    low, high = user_start[user], user_start[user + 1]
    if high - low == n_times:
        return low + time
    end = high
    while low < high:
        middle = (low + high) >> 1
        if times[middle] < time:
            low = middle + 1
        else:
            high = middle
    return low if low < end and times[low] == time else NOT_STORED


@compiled
def _idle_user(idle: Longs, rank: int) -> Any:
    return np.int64(np.searchsorted(idle, rank, "right") - 1)
