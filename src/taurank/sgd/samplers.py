"""Samples for the methods that draw from all cells: pairs for ULBPR, single cells for ULRMF and CausE.

A cell (user, item, time) is of one of four classes: treated or control × positive or negative (TP, TN, CP, CN).
A *slot* is a user at a time. Only slots with a row are stored, and of their cells only those that are *listed*:
control negatives are all the others, and the n-th of them is found by a search in the sorted list of the slot. So
memory grows with the rows.

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
import numpy.typing as npt

from taurank._jit import compiled, inlined
from taurank._random import below, uniform
from taurank._threads import Flag, run_interruptibly, share_blocks
from taurank._types import Codes, Floats, Longs
from taurank.sgd.strata import SAMPLE, TRIES, Samples, shuffle

TP, TN, CP, CN = 0, 1, 2, 3
CLASS_NAMES = ("treated positive", "treated negative", "control positive", "control negative")
# ULBPR: with probability 1 − α a treated positive against the rest, with α {TP, CN} against {TN, CP}
_STRICT = ((TP, CN), (TP, TN), (TP, CP))
_LOOSE = ((TP, TN), (TP, CP), (CN, TN), (CN, CP))
NOT_STORED: Any = np.int64(-1)  # as the number of a slot: it has no row
_STEPS = np.uint64(128)  # random numbers reserved for one sample
_LARGEST = 2**32 - 1  # bound of ``below``


class Slots(NamedTuple):
    """The listed cells (all but the control negatives) by slot; slots are sorted by user and time.

    Class c of slot s is ``item[start[3s + c] : start[3s + c + 1]]``, in order; all listed items of the slot, in
    order, are ``sorted_item[start[3s] : start[3s + 3]]``.
    """

    user: Codes  # of every slot
    time: Codes
    user_start: Longs  # where the slots of each user begin; users + 1
    start: Longs
    item: Codes
    sorted_item: Codes
    n_items: int
    n_times: int


class PairKinds(NamedTuple):
    """The kinds of pairs that can be drawn, and for each the slots that have both classes, by time."""

    chance: Floats  # running sum over the kinds
    better: Longs  # class of i
    worse: Longs  # class of j
    start: Longs  # kind × (times + 1), into slot
    slot: Codes
    busy: Longs  # kind × times: the times with any such slot come first
    n_busy: Longs


class Controls(NamedTuple):
    """The slots to draw a control cell from, in proportion to a weight of each."""

    before: Longs  # the weight of all slots before; slots + 1
    idle: Longs  # how many slots without any row the users before have; users + 1
    most: int  # the weight of a slot without any row, the largest there is
    steps: int  # random numbers of one try
    weight: int  # of all slots


class CellsByClass(NamedTuple):
    """User and item of the listed cells; class c has the rows start[c] … start[c + 1] − 1."""

    user: Codes
    item: Codes
    start: Longs


class Sampler(NamedTuple):
    """How a method draws. Both passes take (key, samples, begin, end) and write the samples begin … end − 1."""

    choose: Callable[[np.uint64, Samples, int, int], None]  # the user; what it leaves in the rest is for ``fill``
    fill: Callable[[np.uint64, Samples, int, int], None]


def draw(
    sampler: Sampler, n: int, n_users: int, key: np.uint64, threads: int, memory: Samples | None = None
) -> Samples:
    """n samples, in a random order of users. ``memory``, 2 × n samples, is overwritten, and holds the result."""
    samples, spare = np.empty((2, n), SAMPLE) if memory is None else memory

    def run(stop: Flag) -> None:
        share_blocks(lambda begin, end: sampler.choose(key, spare, begin, end), n, threads, stop)
        if not stop[0]:
            _sort_by_user(spare, n_users, key, samples)
            share_blocks(lambda begin, end: sampler.fill(key, samples, begin, end), n, threads, stop)

    run_interruptibly(run)
    return samples


# what is drawn from


def slots_of(log: Any) -> Slots:
    """Sort the listed cells of a log (or of anything with its columns) by slot and class, and by slot and item."""
    rows, kind = _listed(log)
    item = log.item[rows]
    slot_id = log.user[rows].astype(np.int64) * log.n_times + log.time[rows]
    order = np.lexsort((item, slot_id))
    item, kind, slot_id = item[order], kind[order], slot_id[order]
    first = np.flatnonzero(np.diff(slot_id, prepend=-1))
    slot = np.repeat(np.arange(len(first)), np.diff(first, append=len(slot_id)))
    user, time = np.divmod(slot_id[first], log.n_times)
    key = 3 * slot + kind
    return Slots(
        user.astype(np.int32), time.astype(np.int32), _starts(user, log.n_users), _starts(key, 3 * len(first)),
        item[np.argsort(key, kind="stable")], item, log.n_items, log.n_times,
    )  # fmt: skip


def pair_kinds(slots: Slots, alpha: float, absent: Longs | None = None) -> PairKinds | None:
    """ULBPR's kinds of pairs and where they can be drawn; kinds that no slot can serve are left out.

    ``absent`` is how many control negatives each slot has (None: all items that are not listed).
    """
    absent = absent_items(slots) if absent is None else absent
    has = np.column_stack((np.diff(slots.start).reshape(-1, 3), absent)) > 0
    kinds = []
    for share, classes in ((1.0 - alpha, _STRICT), (alpha, _LOOSE)):
        able = [(pair, np.flatnonzero(has[:, pair[0]] & has[:, pair[1]])) for pair in classes]
        served = [(pair, slot) for pair, slot in able if len(slot) and share > 0]
        kinds += [
            (share / len(served), *pair, slot[np.argsort(slots.time[slot], kind="stable")]) for pair, slot in served
        ]
    if not kinds:
        return None
    shares, better, worse, slot = zip(*kinds, strict=True)
    chance = np.cumsum(shares)
    counts = np.array([np.bincount(slots.time[each], minlength=slots.n_times) for each in slot])
    first = np.cumsum(counts.sum(axis=1)) - counts.sum(axis=1)
    return PairKinds(
        chance / chance[-1], np.array(better), np.array(worse),
        np.column_stack((first, first[:, None] + np.cumsum(counts, axis=1))), np.concatenate(slot).astype(np.int32),
        np.argsort(counts == 0, axis=1, kind="stable"), np.count_nonzero(counts, axis=1),
    )  # fmt: skip


def cells_by_class(log: Any) -> CellsByClass:
    """The listed cells of a log by class."""
    rows, kind = _listed(log)
    rows = rows[np.argsort(kind, kind="stable")]
    return CellsByClass(log.user[rows], log.item[rows], _starts(kind, 3))


def absent_items(slots: Slots) -> Longs:
    """How many control negatives each slot has."""
    return slots.n_items - np.diff(slots.start[::3])


def untreated_items(slots: Slots) -> Longs:
    """How many untreated items each slot has."""
    return slots.n_items - (slots.start[2::3] - slots.start[:-1:3])


def controls(slots: Slots, weight: Longs, most: int, steps: int) -> Controls:
    """Slots in proportion to their weight; those without any row have the weight ``most``."""
    before = np.concatenate(([0], np.cumsum(weight)))
    idle = np.arange(len(slots.user_start)) * np.int64(slots.n_times) - slots.user_start
    return Controls(before, idle, most, steps, int(before[-1]) + most * int(idle[-1]))


def _listed(log: Any) -> tuple[Longs, Longs]:
    """The rows that are not control negatives, and their classes."""
    rows = np.flatnonzero((log.treated == 1) | (log.outcome == 1))
    treated, positive = log.treated[rows] == 1, log.outcome[rows] == 1
    return rows, np.where(treated, np.where(positive, TP, TN), CP)


def _starts(key: npt.NDArray[Any], size: int) -> Longs:
    return np.concatenate(([0], np.cumsum(np.bincount(key, minlength=size)))).astype(np.int64)


# the draws of each method


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
        slot, pair = np.int64(samples[n].item), samples[n].other
        rank = _below(key, counter, 3, _class_size(start, n_items, slot, better[pair]))
        samples[n].item = _nth_item(start, item, listed, slot, better[pair], rank)
        rank = _below(key, counter, 4, _class_size(start, n_items, slot, worse[pair]))
        samples[n].other = _nth_item(start, item, listed, slot, worse[pair], rank)


@compiled
def choose_by_class(
    slots: Slots, absent: Controls, cells: CellsByClass, positives: float, alpha: float,
    key: Any, samples: Samples, begin: int, end: int,
) -> None:  # fmt: skip
    """ULRMF: arm 50/50, positives with the given share in the arm, uniform among the cells of the class.

    Target 1 for TP, 0 for TN and CP; a control negative is 1 with probability α. Of a control negative the slot
    is left in ``other`` and its rank among those of the slot in ``item``; otherwise ``other`` is −1.
    """
    users, items, first = cells.user, cells.item, cells.start
    user_of, times, user_start, n_times = slots.user, slots.time, slots.user_start, slots.n_times
    before, idle, most, steps, weight = absent
    for n in range(begin, end):
        counter = np.uint64(n) * _STEPS
        treated = uniform(key, counter) < 0.5
        positive = uniform(key, counter + np.uint64(1)) < positives
        kind = (TP if positive else TN) if treated else (CP if positive else CN)
        if kind == CN:
            user, slot, item = _choose_slot(
                user_of, times, user_start, n_times, before, idle, most, steps, weight, key, counter
            )
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
    start, item, listed = slots.start, slots.item, slots.sorted_item
    for n in range(begin, end):
        slot = np.int64(samples[n].other)
        if slot >= 0:
            samples[n].item = _nth_item(start, item, listed, slot, CN, np.int64(samples[n].item))
        samples[n].other = samples[n].item


@compiled
def choose_by_arm(
    slots: Slots, untreated: Controls, treated: Codes, key: Any, samples: Samples, begin: int, end: int
) -> None:
    """CausE: arm 50/50, left in ``item``; a uniform user and time that has the arm, its slot left in ``other``.

    ``treated`` are the slots with a treated item."""
    user_of, times, user_start, n_times = slots.user, slots.time, slots.user_start, slots.n_times
    before, idle, most, steps, weight = untreated
    for n in range(begin, end):
        counter = np.uint64(n) * _STEPS
        if uniform(key, counter) < 0.5:
            slot: Any = np.int64(treated[_below(key, counter, 1, len(treated))])
            samples[n].user = user_of[slot]
            samples[n].item = 1
        else:
            user, slot, _ = _choose_slot(
                user_of, times, user_start, n_times, before, idle, most, steps, weight, key, counter
            )
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
            if slot < 0:
                item, target = _below(key, counter, 4, n_items), False
            else:
                rank = _below(key, counter, 4, n_items - (start[3 * slot + 2] - start[3 * slot]))
                item, target = (
                    _nth_item(start, items, listed, slot, CP, rank),
                    rank < _class_size(start, n_items, slot, CP),
                )
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
def _class_size(start: Longs, n_items: int, slot: Any, kind: Any) -> Any:
    """How many cells of a class a slot has."""
    if kind == CN:
        return n_items - (start[3 * slot + 3] - start[3 * slot])
    return start[3 * slot + kind + 1] - start[3 * slot + kind]


@inlined
def _nth_item(start: Longs, item: Codes, listed: Codes, slot: Any, kind: Any, rank: Any) -> Any:
    """The item with this rank, from 0, among those of a slot from class ``kind`` on."""
    low, high = start[3 * slot + kind], start[3 * slot + 3]
    if rank < high - low:
        return np.int64(item[low + rank])
    return absent_item(listed, start[3 * slot], high, rank - (high - low))


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


@inlined
def _choose_slot(
    user_of: Codes, times: Codes, user_start: Longs, n_times: int,
    before: Longs, idle: Longs, most: int, steps: int, weight: int, key: Any, counter: Any,
) -> Any:  # fmt: skip
    """User, slot (−1 if it is not stored) and rank: uniform among the ranks below the weights of all slots.

    A uniform slot and a uniform rank, until the slot's weight is larger; after too many tries one is counted out."""
    for step in range(8, 8 + steps * TRIES, steps):
        user: Any = _below(key, counter, step, len(user_start) - 1)
        slot: Any = _find_slot(user_start, times, n_times, user, _below(key, counter, step + 1, n_times))
        rank: Any = _below(key, counter, step + 2, most)
        if slot < 0 or rank < before[slot + 1] - before[slot]:
            return user, slot, rank
    rank = _below(key, counter, 8 + steps * TRIES, min(weight, _LARGEST))
    if rank >= before[-1]:
        rank -= before[-1]
        return np.int64(np.searchsorted(idle, rank // most, "right") - 1), NOT_STORED, rank % most
    slot = np.int64(np.searchsorted(before, rank, "right") - 1)
    return np.int64(user_of[slot]), slot, rank - before[slot]


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
