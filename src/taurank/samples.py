"""Samples for the methods that draw from all cells: pairs for ULBPR, single cells for ULRMF and CausE.

A cell (user, item, time) is one of four classes: treated or control × positive or negative (TP, TN, CP, CN).
Control negatives are mostly the cells that no log names, so they are drawn by rejection, never listed. Each
sample has random numbers of its own, so that drawing on several threads gives the same samples.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np
import numpy.typing as npt

from taurank.draws import uniform
from taurank.log import Log

Ints = npt.NDArray[np.int32]
Starts = npt.NDArray[np.int64]

TP, TN, CP, CN = 0, 1, 2, 3
# ULBPR: with probability 1 − α a treated positive against the rest, with α {TP, CN} against {TN, CP}
_STRICT = np.array([[TP, CN], [TP, TN], [TP, CP]])
_LOOSE = np.array([[TP, TN], [TP, CP], [CN, TN], [CN, CP]])
_TRIES = 32
_STEPS = np.uint64(64)  # random numbers reserved for one sample


class Classes(NamedTuple):
    """The log's cells by slot (time · n_users + user) and class; class c of slot s is
    ``item[start[3s + c] : start[3s + c + 1]]``, sorted; control negatives are all the other items."""

    start: Starts
    item: Ints
    n_users: int
    n_items: int
    n_times: int


class Eligible(NamedTuple):
    """For each kind of pair, the slots that have both classes, by time."""

    kinds: npt.NDArray[np.int64]  # kind × (class of i, class of j)
    start: npt.NDArray[np.int64]  # kind × (time + 1), into slot
    slot: npt.NDArray[np.int64]
    busy: npt.NDArray[np.int64]  # kind × time: the times with any such slot come first
    n_busy: npt.NDArray[np.int64]


def classes_of(log: Log) -> Classes:
    """Sort the log's rows by slot, class and item; explicit control negatives count as absent."""
    rows = np.flatnonzero((log.treated == 1) | (log.outcome == 1))
    kind = np.where(log.treated[rows] == 1, np.where(log.outcome[rows] == 1, TP, TN), CP)
    slot = log.time[rows].astype(np.int64) * log.n_users + log.user[rows]
    key = 3 * slot + kind
    order = np.lexsort((log.item[rows], key))
    start = np.zeros(3 * log.n_users * log.n_times + 1, np.int64)
    np.cumsum(np.bincount(key, minlength=len(start) - 1), out=start[1:])
    return Classes(start, log.item[rows][order], log.n_users, log.n_items, log.n_times)


def class_sizes(classes: Classes) -> npt.NDArray[np.int64]:
    """How many cells of each class a slot has: slots × (TP, TN, CP, CN)."""
    listed = np.diff(classes.start).reshape(-1, 3)
    return np.column_stack((listed, classes.n_items - listed.sum(axis=1)))


def eligible_pairs(classes: Classes, loose: bool) -> Eligible:
    """Where each kind of pair can be drawn; kinds that no slot can serve are left out."""
    sizes = class_sizes(classes) > 0
    kinds, starts, slots, busy, n_busy = [], [], [], [], []
    total = 0
    for kind in _LOOSE if loose else _STRICT:
        slot = np.flatnonzero(sizes[:, kind[0]] & sizes[:, kind[1]])
        if not len(slot):
            continue
        counts = np.bincount(slot // classes.n_users, minlength=classes.n_times)
        kinds.append(kind)
        starts.append(total + np.concatenate(([0], np.cumsum(counts))))
        slots.append(slot)
        busy.append(np.argsort(counts == 0, kind="stable"))
        n_busy.append(np.count_nonzero(counts))
        total += len(slot)
    if not kinds:
        empty = np.empty((0, 2), np.int64)
        return Eligible(empty, empty, np.empty(0, np.int64), empty, np.empty(0, np.int64))
    arrays = (np.array(kinds), np.array(starts), np.concatenate(slots), np.array(busy), np.array(n_busy))
    return Eligible(*(array.astype(np.int64) for array in arrays))


@numba.njit(inline="always")
def _below(key: Any, counter: Any, n: Any) -> Any:
    return np.int64(uniform(key, counter) * n)


@numba.njit(nogil=True, cache=True)
def _is_listed(classes: Any, slot: Any, first: Any, last: Any, item: Any) -> Any:
    """Whether an item stands in the classes first … last of a slot."""
    for c in range(first, last + 1):
        low, high = classes.start[3 * slot + c], classes.start[3 * slot + c + 1]
        while low < high:
            middle = (low + high) // 2
            if classes.item[middle] < item:
                low = middle + 1
            else:
                high = middle
        if low < classes.start[3 * slot + c + 1] and classes.item[low] == item:
            return True
    return False


@numba.njit(nogil=True, cache=True)
def _draw_unlisted(classes: Any, slot: Any, last: Any, key: Any, counter: Any) -> Any:
    """A uniform item outside the classes TP … last of a slot: by rejection, and by counting if that is slow."""
    for step in range(_TRIES):
        item = _below(key, counter + np.uint64(step), classes.n_items)
        if not _is_listed(classes, slot, 0, last, item):
            return item
    left = classes.n_items - (classes.start[3 * slot + last + 1] - classes.start[3 * slot])
    skip = _below(key, counter + np.uint64(_TRIES), left)
    for item in range(classes.n_items):
        if not _is_listed(classes, slot, 0, last, item):
            if skip == 0:
                return item
            skip -= 1
    return -1


@numba.njit(nogil=True, cache=True)
def _draw_item(classes: Any, slot: Any, kind: Any, key: Any, counter: Any) -> Any:
    """A uniform item of a class of a slot."""
    if kind == CN:
        return _draw_unlisted(classes, slot, CP, key, counter)
    low, high = classes.start[3 * slot + kind], classes.start[3 * slot + kind + 1]
    return np.int64(classes.item[low + _below(key, counter, high - low)])


@numba.njit(nogil=True, cache=True, parallel=True)
def draw_pairs(
    classes: Any, strict: Any, loose: Any, alpha: Any, key: Any, user: Any, better: Any, worse: Any
) -> None:
    """ULBPR's pairs: the kind first, then a uniform time and a uniform user with both classes, then i and j."""
    for n in numba.prange(len(user)):
        counter = np.uint64(n) * np.uint64(2) * _STEPS
        table = loose if uniform(key, counter) < alpha and len(loose.kinds) else strict
        kind = _below(key, counter + np.uint64(1), len(table.kinds))
        time = table.busy[kind, _below(key, counter + np.uint64(2), table.n_busy[kind])]
        low, high = table.start[kind, time], table.start[kind, time + 1]
        slot = table.slot[low + _below(key, counter + np.uint64(3), high - low)]
        user[n] = slot % classes.n_users
        better[n] = _draw_item(classes, slot, table.kinds[kind, 0], key, counter + np.uint64(8))
        worse[n] = _draw_item(classes, slot, table.kinds[kind, 1], key, counter + _STEPS)


@numba.njit(nogil=True, cache=True, parallel=True)
def draw_by_class(
    classes: Any, rows: Any, positives: Any, alpha: Any, key: Any, user: Any, item: Any, target: Any
) -> None:
    """ULRMF's cells: arm 50/50, positives with the given share in the arm, uniform among the class's cells.

    ``rows[c]`` lists the positions in ``classes.item`` of class c and ``rows[3]`` their slots. Target 1 for TP, 0
    for TN and CP; a control negative is 1 with probability α.
    """
    for n in numba.prange(len(user)):
        counter = np.uint64(n) * np.uint64(2) * _STEPS
        treated = uniform(key, counter) < 0.5
        positive = uniform(key, counter + np.uint64(1)) < positives
        kind = (TP if positive else TN) if treated else (CP if positive else CN)
        target[n] = 1.0 if kind == TP else 0.0
        if kind == CN:
            slot, found = _draw_cell(classes, CP, key, counter + np.uint64(8))
            target[n] = 1.0 if uniform(key, counter + np.uint64(2)) < alpha else 0.0
        else:
            place = rows[kind][_below(key, counter + np.uint64(3), len(rows[kind]))]
            slot, found = rows[3][place], np.int64(classes.item[place])
        user[n] = slot % classes.n_users
        item[n] = found


@numba.njit(nogil=True, cache=True)
def _draw_cell(classes: Any, last: Any, key: Any, counter: Any) -> Any:
    """A uniform cell outside the classes TP … last, over all slots."""
    n_slots = (len(classes.start) - 1) // 3
    slot, item = np.int64(0), np.int64(-1)
    for step in range(_TRIES):
        slot = _below(key, counter + np.uint64(2 * step), n_slots)
        item = _below(key, counter + np.uint64(2 * step + 1), classes.n_items)
        if not _is_listed(classes, slot, 0, last, item):
            break
    return slot, item


@numba.njit(nogil=True, cache=True, parallel=True)
def draw_by_arm(
    classes: Any,
    with_treated: Any,
    with_control: Any,
    key: Any,
    user: Any,
    item: Any,
    target: Any,
    treated: Any,
) -> None:
    """CausE's cells: arm 50/50, a uniform user (and time) that has the arm, a uniform item of the arm."""
    for n in numba.prange(len(user)):
        counter = np.uint64(n) * np.uint64(2) * _STEPS
        treated[n] = uniform(key, counter) < 0.5
        slots = with_treated if treated[n] else with_control
        slot = slots[_below(key, counter + np.uint64(1), len(slots))]
        if treated[n]:
            low, high = classes.start[3 * slot], classes.start[3 * slot + 2]
            place = low + _below(key, counter + np.uint64(2), high - low)
            found = np.int64(classes.item[place])
            target[n] = 1.0 if place < classes.start[3 * slot + 1] else 0.0
        else:
            found = _draw_unlisted(classes, slot, TN, key, counter + np.uint64(8))
            target[n] = 1.0 if _is_listed(classes, slot, CP, CP, found) else 0.0
        user[n] = slot % classes.n_users
        item[n] = found


def rows_by_class(classes: Classes) -> tuple[Starts, Starts, Starts, Starts]:
    """Positions of all TP, TN and CP cells, and the slot of every position."""
    sizes = np.diff(classes.start)
    key = np.repeat(np.arange(len(sizes)), sizes)
    kind = key % 3
    return *(np.flatnonzero(kind == c) for c in (TP, TN, CP)), key // 3  # type: ignore[return-value]


def slots_by_arm(classes: Classes) -> tuple[Starts, Starts]:
    """The slots with a treated item, and those with an untreated one."""
    sizes = class_sizes(classes)
    treated = sizes[:, TP] + sizes[:, TN]
    return np.flatnonzero(treated > 0), np.flatnonzero(treated < classes.n_items)
