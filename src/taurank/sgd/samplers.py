"""Samples for the methods that draw from all cells: pairs for ULBPR, single cells for ULRMF and CausE.

Control negatives, the items that a slot does not list, are not stored: the n-th of them is found by a search in the
sorted list of the slot (see ``slots``).

Samples are drawn in two passes. The first one chooses user and slot; then the samples are sorted by user, so that the
second one, which draws the items, reads the lists of a user while they are in the cache. Each sample has its own
random numbers in each pass, so that any cut of the draws into blocks draws the same samples.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from taurank._jit import compiled, inlined
from taurank._random import below, uniform
from taurank._threads import Flag, run_interruptibly, share_blocks
from taurank.sgd.samples import Ints, Longs, Samples
from taurank.sgd.slots import CN, CP, TN, TP, Arms, CellsByClass, PairKinds, Slots
from taurank.sgd.strata import shuffle

NOT_STORED: Any = np.int64(-1)  # as the number of a slot: it has no row
_TRIES = 32  # of a rejection sampler, before it counts instead
_STEPS = np.uint64(128)  # random numbers reserved for one sample
_LARGEST = 2**32 - 1  # bound of ``below``


class Sampler(NamedTuple):
    """How a method draws. Both passes take (key, samples, begin, end) and write the samples begin … end − 1."""

    record: np.dtype[Any]  # PAIR or POINT
    choose: Callable[[np.uint64, Samples, int, int], None]  # the user; what it leaves in the rest is for ``fill``
    fill: Callable[[np.uint64, Samples, int, int], None]


def draw(sampler: Sampler, n: int, n_users: int, key: np.uint64, threads: int) -> Samples:
    """n samples, in a random order of users."""

    def run(stop: Flag) -> Samples:
        chosen = np.empty(n, sampler.record)
        share_blocks(lambda begin, end: sampler.choose(key, chosen, begin, end), n, threads, stop)
        if stop[0]:
            return chosen
        samples = _sort_by_user(chosen, n_users, key)
        share_blocks(lambda begin, end: sampler.fill(key, samples, begin, end), n, threads, stop)
        return samples

    return run_interruptibly(run)


@compiled
def choose_pairs(slots: Slots, kinds: PairKinds, key: Any, samples: Samples, begin: int, end: int) -> None:
    """ULBPR: the kind of pair first, then a uniform time and a uniform user with both classes."""
    for n in range(begin, end):
        counter = np.uint64(n) * _STEPS
        kind = np.searchsorted(kinds.chance[:-1], uniform(key, counter), "right")
        time = kinds.busy[kind, _below(key, counter, 1, kinds.n_busy[kind])]
        low, high = kinds.start[kind, time], kinds.start[kind, time + 1]
        slot = kinds.slot[low + _below(key, counter, 2, high - low)]
        samples[n].user = slots.user[slot]
        samples[n].item = slot
        samples[n].other = kind
        samples[n].weight = 1


@compiled
def fill_pairs(slots: Slots, kinds: PairKinds, key: Any, samples: Samples, begin: int, end: int) -> None:
    """ULBPR: uniform items i and j of the two classes of the chosen slot."""
    for n in range(begin, end):
        counter = np.uint64(n) * _STEPS
        slot, kind = np.int64(samples[n].item), samples[n].other
        samples[n].item = _draw_item(slots, slot, kinds.better[kind], key, counter, 3)
        samples[n].other = _draw_item(slots, slot, kinds.worse[kind], key, counter, 4)


@compiled
def choose_by_class(
    slots: Slots, cells: CellsByClass, positives: float, alpha: float,
    key: Any, samples: Samples, begin: int, end: int,
) -> None:  # fmt: skip
    """ULRMF: arm 50/50, positives with the given share in the arm, uniform among the cells of the class.

    Target 1 for TP, 0 for TN and CP; a control negative is 1 with probability α. Of a control negative the slot
    is left in ``tied`` and its rank among those of the slot in ``item``; otherwise ``tied`` is −1.
    """
    for n in range(begin, end):
        counter = np.uint64(n) * _STEPS
        treated = uniform(key, counter) < 0.5
        positive = uniform(key, counter + np.uint64(1)) < positives
        kind = (TP if positive else TN) if treated else (CP if positive else CN)
        if kind == CN:
            user, slot, item = _choose_control_negative(slots, cells, key, counter)
            target = uniform(key, counter + np.uint64(2)) < alpha
        else:
            low, high = cells.start[kind], cells.start[kind + 1]
            row = low + _below(key, counter, 3, high - low)
            user, slot, item = np.int64(cells.user[row]), NOT_STORED, np.int64(cells.item[row])
            target = kind == TP
        samples[n].user = user
        samples[n].item = item
        samples[n].tied = slot
        samples[n].target = target


@compiled
def fill_by_class(slots: Slots, key: Any, samples: Samples, begin: int, end: int) -> None:
    """ULRMF: find the control negatives by their rank."""
    for n in range(begin, end):
        slot = np.int64(samples[n].tied)
        if slot >= 0:
            low, high = slots.start[3 * slot], slots.start[3 * slot + 3]
            samples[n].item = absent_item(slots.sorted_item, low, high, np.int64(samples[n].item))
        samples[n].tied = samples[n].item


@compiled
def choose_by_arm(slots: Slots, arms: Arms, key: Any, samples: Samples, begin: int, end: int) -> None:
    """CausE: arm 50/50, left in ``item``; a uniform user and time that has the arm, its slot left in ``tied``."""
    for n in range(begin, end):
        counter = np.uint64(n) * _STEPS
        if uniform(key, counter) < 0.5:
            slot: Any = np.int64(arms.treated[_below(key, counter, 1, len(arms.treated))])
            samples[n].user = slots.user[slot]
            samples[n].item = 1
        else:
            user, slot = _choose_control_slot(slots, arms, key, counter)
            samples[n].user = user
            samples[n].item = 0
        samples[n].tied = slot


@compiled
def fill_by_arm(slots: Slots, key: Any, samples: Samples, begin: int, end: int) -> None:
    """CausE: a uniform item of the arm. The control arm has the rows of the second item table."""
    for n in range(begin, end):
        counter = np.uint64(n) * _STEPS
        slot = np.int64(samples[n].tied)
        if samples[n].item == 1:
            low, high = slots.start[3 * slot], slots.start[3 * slot + 2]
            row = low + _below(key, counter, 4, high - low)
            item: Any = np.int64(slots.item[row])
            target = row < slots.start[3 * slot + 1]
            samples[n].item = item
            samples[n].tied = item + slots.n_items
        else:
            item, target = _draw_untreated(slots, slot, key, counter)
            samples[n].item = item + slots.n_items
            samples[n].tied = item
        samples[n].target = target


@compiled
def _sort_by_user(samples: Samples, n_users: int, key: Any) -> Samples:
    """A counting sort, in a random order of users: training must not always visit the same ones last."""
    order = shuffle(n_users, ~key)
    position = np.zeros(n_users, np.int64)
    for n in range(len(samples)):
        position[np.uint64(samples[n].user)] += 1
    total = 0
    for u in order:
        position[u], total = total, total + position[u]
    output = np.empty_like(samples)
    for n in range(len(samples)):
        u = np.uint64(samples[n].user)
        output[np.uint64(position[u])] = samples[n]
        position[u] += 1
    return output


@inlined
def _below(key: Any, counter: Any, step: int, bound: Any) -> Any:
    return np.int64(below(key, counter + np.uint64(step), bound))


@compiled
def _draw_item(slots: Slots, slot: Any, kind: Any, key: Any, counter: Any, step: int) -> Any:
    """A uniform item of a class of a slot."""
    if kind == CN:
        low, high = slots.start[3 * slot], slots.start[3 * slot + 3]
        rank = _below(key, counter, step, slots.n_items - (high - low))
        return absent_item(slots.sorted_item, low, high, rank)
    low, high = slots.start[3 * slot + kind], slots.start[3 * slot + kind + 1]
    return np.int64(slots.item[low + _below(key, counter, step, high - low)])


@compiled
def absent_item(listed: Ints, low: Any, high: Any, rank: Any) -> Any:
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
    n_users = len(slots.user_start) - 1
    for step in range(8, 8 + 3 * _TRIES, 3):
        user = _below(key, counter, step, n_users)
        slot = _find_slot(slots, user, _below(key, counter, step + 1, slots.n_times))
        rank = _below(key, counter, step + 2, slots.n_items)
        if slot < 0 or rank < slots.n_items - (slots.start[3 * slot + 3] - slots.start[3 * slot]):
            return user, slot, rank
    rank = _below(key, counter, 8 + 3 * _TRIES, min(cells.n_absent, _LARGEST))
    if rank >= cells.absent[-1]:
        rank -= cells.absent[-1]
        return _idle_user(cells.idle, rank // slots.n_items), NOT_STORED, rank % slots.n_items
    slot = np.int64(np.searchsorted(cells.absent, rank, "right") - 1)
    return np.int64(slots.user[slot]), slot, rank - cells.absent[slot]


@compiled
def _choose_control_slot(slots: Slots, arms: Arms, key: Any, counter: Any) -> Any:
    """User and slot (−1 if it is not stored) of a uniform slot with an untreated item."""
    n_users = len(slots.user_start) - 1
    for step in range(8, 8 + 2 * _TRIES, 2):
        user = _below(key, counter, step, n_users)
        slot = _find_slot(slots, user, _below(key, counter, step + 1, slots.n_times))
        if slot < 0 or slots.start[3 * slot + 2] - slots.start[3 * slot] < slots.n_items:
            return user, slot
    rank = _below(key, counter, 8 + 2 * _TRIES, min(arms.n_control, _LARGEST))
    if rank >= len(arms.control):
        return _idle_user(arms.idle, rank - len(arms.control)), NOT_STORED
    slot = np.int64(arms.control[rank])
    return np.int64(slots.user[slot]), slot


@compiled
def _draw_untreated(slots: Slots, slot: Any, key: Any, counter: Any) -> Any:
    """A uniform untreated item of a slot, and whether it was positive."""
    if slot < 0:
        return _below(key, counter, 4, slots.n_items), False
    low, control, high = slots.start[3 * slot], slots.start[3 * slot + 2], slots.start[3 * slot + 3]
    rank = _below(key, counter, 4, slots.n_items - (control - low))
    if rank < high - control:
        return np.int64(slots.item[control + rank]), True
    return absent_item(slots.sorted_item, low, high, rank - (high - control)), False


@compiled
def _find_slot(slots: Slots, user: int, time: int) -> Any:
    """The slot of a user at a time, or −1 if it has no row."""
    low, high = slots.user_start[user], slots.user_start[user + 1]
    end = high
    while low < high:
        middle = (low + high) >> 1
        if slots.time[middle] < time:
            low = middle + 1
        else:
            high = middle
    return low if low < end and slots.time[low] == time else NOT_STORED


@compiled
def _idle_user(idle: Longs, rank: int) -> Any:
    return np.int64(np.searchsorted(idle, rank, "right") - 1)
