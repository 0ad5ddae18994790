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

from taurank._random import uniform
from taurank.data.log import Log

Ints = npt.NDArray[np.int32]
Starts = npt.NDArray[np.int64]

TP, TN, CP, CN = 0, 1, 2, 3
# ULBPR: with probability 1 − α a treated positive against the rest, with α {TP, CN} against {TN, CP}
_STRICT = ((TP, CN), (TP, TN), (TP, CP))
_LOOSE = ((TP, TN), (TP, CP), (CN, TN), (CN, CP))
_TRIES = 32
_STEPS = np.uint64(128)  # random numbers reserved for one sample


class Classes(NamedTuple):
    """The log's cells by slot (time · n_users + user).

    Class c of slot s is ``item[start[3s + c] : start[3s + c + 1]]``; ``sorted_item`` and ``sorted_class`` hold the
    same cells of a slot in the order of their items. Control negatives are all the items a slot does not list.
    """

    start: Starts
    item: Ints
    sorted_item: Ints
    sorted_class: npt.NDArray[np.int8]
    n_users: int
    n_items: int
    n_times: int


class Pairs(NamedTuple):
    """The kinds of pairs that can be drawn, and for each the slots that have both classes, by time."""

    chance: npt.NDArray[np.float64]  # running sum over the kinds
    better: Starts  # class of i
    worse: Starts  # class of j
    start: Starts  # kind × (time + 1), into slot
    slot: Starts
    busy: Starts  # kind × time: the times with any such slot come first
    n_busy: Starts


def classes_of(log: Log) -> Classes:
    """Sort the log's rows by slot and class, and by slot and item; explicit control negatives count as absent."""
    rows = np.flatnonzero((log.treated == 1) | (log.outcome == 1))
    item = log.item[rows]
    kind = np.where(log.treated[rows] == 1, np.where(log.outcome[rows] == 1, TP, TN), CP).astype(np.int8)
    slot = log.time[rows].astype(np.int64) * log.n_users + log.user[rows]
    by_item = np.lexsort((item, slot))
    item, kind, slot = item[by_item], kind[by_item], slot[by_item]
    key = 3 * slot + kind
    start = np.zeros(3 * log.n_users * log.n_times + 1, np.int64)
    np.cumsum(np.bincount(key, minlength=len(start) - 1), out=start[1:])
    return Classes(start, item[np.argsort(key, kind="stable")], item, kind, log.n_users, log.n_items, log.n_times)


def class_sizes(classes: Classes) -> Starts:
    """How many cells of each class a slot has: slots × (TP, TN, CP, CN)."""
    listed = np.diff(classes.start).reshape(-1, 3)
    return np.column_stack((listed, classes.n_items - listed.sum(axis=1)))


def pairs_of(classes: Classes, alpha: float) -> Pairs | None:
    """ULBPR's kinds of pairs and where they can be drawn; kinds that no slot can serve are left out."""
    has = class_sizes(classes) > 0
    found = []
    for share, kinds in ((1.0 - alpha, _STRICT), (alpha, _LOOSE)):
        slots = [(kind, np.flatnonzero(has[:, kind[0]] & has[:, kind[1]])) for kind in kinds]
        served = [(kind, slot) for kind, slot in slots if len(slot) and share > 0]
        found += [(share / len(served), *kind, slot) for kind, slot in served]
    if not found:
        return None
    chance = np.cumsum([share for share, _, _, _ in found])
    counts = np.array([np.bincount(slot // classes.n_users, minlength=classes.n_times) for *_, slot in found])
    first = np.cumsum(counts.sum(axis=1)) - counts.sum(axis=1)
    start = np.column_stack((first, first[:, None] + np.cumsum(counts, axis=1)))
    return Pairs(
        chance / chance[-1],
        np.array([better for _, better, _, _ in found]),
        np.array([worse for _, _, worse, _ in found]),
        start,
        np.concatenate([slot for *_, slot in found]),
        np.argsort(counts == 0, axis=1, kind="stable"),
        np.count_nonzero(counts, axis=1),
    )


def rows_by_class(classes: Classes) -> tuple[Starts, Starts, Starts, Starts]:
    """Positions in ``classes.item`` of all TP, TN and CP cells, and the slot of every position."""
    sizes = np.diff(classes.start)
    key = np.repeat(np.arange(len(sizes)), sizes)
    places = [np.flatnonzero(key % 3 == c) for c in (TP, TN, CP)]
    return places[0], places[1], places[2], key // 3


def slots_by_arm(classes: Classes) -> tuple[Starts, Starts]:
    """The slots with a treated item, and those with an untreated one."""
    sizes = class_sizes(classes)
    treated = sizes[:, TP] + sizes[:, TN]
    return np.flatnonzero(treated > 0), np.flatnonzero(treated < classes.n_items)


@numba.njit(nogil=True, cache=True, parallel=True)
def draw_pairs(classes: Any, pairs: Any, key: Any, user: Any, better: Any, worse: Any) -> None:
    """ULBPR's pairs: the kind first, then a uniform time and a uniform user with both classes, then i and j."""
    for n in numba.prange(len(user)):
        counter = np.uint64(n) * _STEPS
        kind = np.searchsorted(pairs.chance[:-1], uniform(key, counter), "right")
        time = pairs.busy[kind, _below(key, counter + np.uint64(1), pairs.n_busy[kind])]
        low, high = pairs.start[kind, time], pairs.start[kind, time + 1]
        slot = pairs.slot[low + _below(key, counter + np.uint64(2), high - low)]
        user[n] = slot % classes.n_users
        better[n] = _draw_item(classes, slot, pairs.better[kind], key, counter + np.uint64(8))
        worse[n] = _draw_item(classes, slot, pairs.worse[kind], key, counter + np.uint64(64))


@numba.njit(nogil=True, cache=True, parallel=True)
def draw_by_class(
    classes: Any, rows: Any, positives: Any, alpha: Any, key: Any, user: Any, item: Any, target: Any
) -> None:
    """ULRMF's cells: arm 50/50, positives with the given share in the arm, uniform among the class's cells.

    ``rows`` comes from ``rows_by_class``. Target 1 for TP, 0 for TN and CP; a control negative is 1 with
    probability α.
    """
    for n in numba.prange(len(user)):
        counter = np.uint64(n) * _STEPS
        treated = uniform(key, counter) < 0.5
        positive = uniform(key, counter + np.uint64(1)) < positives
        kind = (TP if positive else TN) if treated else (CP if positive else CN)
        if kind == CN:
            slot, found = _draw_control_negative(classes, key, counter + np.uint64(8))
            target[n] = uniform(key, counter + np.uint64(2)) < alpha
        else:
            place = rows[kind][_below(key, counter + np.uint64(3), len(rows[kind]))]
            slot, found = rows[3][place], np.int64(classes.item[place])
            target[n] = kind == TP
        user[n] = slot % classes.n_users
        item[n] = found


@numba.njit(nogil=True, cache=True, parallel=True)
def draw_by_arm(
    classes: Any, with_treated: Any, with_control: Any, key: Any, user: Any, item: Any, target: Any, treated: Any
) -> None:
    """CausE's cells: arm 50/50, a uniform user (and time) that has the arm, a uniform item of the arm."""
    for n in numba.prange(len(user)):
        counter = np.uint64(n) * _STEPS
        treated[n] = uniform(key, counter) < 0.5
        slots = with_treated if treated[n] else with_control
        slot = slots[_below(key, counter + np.uint64(1), len(slots))]
        if treated[n]:
            low, high = classes.start[3 * slot], classes.start[3 * slot + 2]
            place = low + _below(key, counter + np.uint64(2), high - low)
            found = np.int64(classes.item[place])
            target[n] = place < classes.start[3 * slot + 1]
        else:
            found = _draw_outside(classes, slot, TN, key, counter + np.uint64(8))
            target[n] = _class_of(classes, slot, found) == CP
        user[n] = slot % classes.n_users
        item[n] = found


@numba.njit(inline="always")
def _below(key: Any, counter: Any, n: Any) -> Any:
    return np.int64(uniform(key, counter) * n)


@numba.njit(nogil=True, cache=True)
def _class_of(classes: Any, slot: Any, item: Any) -> Any:
    """The class of a cell: a search among the slot's sorted items, which are never control negatives."""
    low, high = classes.start[3 * slot], classes.start[3 * slot + 3]
    while high - low > 1:
        middle = (low + high) // 2
        if classes.sorted_item[middle] <= item:
            low = middle
        else:
            high = middle
    if high > low and classes.sorted_item[low] == item:
        return np.int64(classes.sorted_class[low])
    return np.int64(CN)


@numba.njit(nogil=True, cache=True)
def _draw_outside(classes: Any, slot: Any, last: Any, key: Any, counter: Any) -> Any:
    """A uniform item of a slot outside the classes TP … last: by rejection, and by counting if that is slow."""
    for step in range(_TRIES):
        item = _below(key, counter + np.uint64(step), classes.n_items)
        if _class_of(classes, slot, item) > last:
            return item
    left = classes.n_items - (classes.start[3 * slot + last + 1] - classes.start[3 * slot])
    skip = _below(key, counter + np.uint64(_TRIES), left)
    for item in range(classes.n_items):
        if _class_of(classes, slot, item) > last:
            if skip == 0:
                return np.int64(item)
            skip -= 1
    return np.int64(-1)


@numba.njit(nogil=True, cache=True)
def _draw_item(classes: Any, slot: Any, kind: Any, key: Any, counter: Any) -> Any:
    """A uniform item of a class of a slot."""
    if kind == CN:
        return _draw_outside(classes, slot, CP, key, counter)
    low, high = classes.start[3 * slot + kind], classes.start[3 * slot + kind + 1]
    return np.int64(classes.item[low + _below(key, counter, high - low)])


@numba.njit(nogil=True, cache=True)
def _draw_control_negative(classes: Any, key: Any, counter: Any) -> Any:
    """A uniform control negative over all slots; where nearly all cells are listed, a listed one may slip in."""
    n_slots = (len(classes.start) - 1) // 3
    slot, item = np.int64(0), np.int64(0)
    for step in range(_TRIES):
        slot = _below(key, counter + np.uint64(2 * step), n_slots)
        item = _below(key, counter + np.uint64(2 * step + 1), classes.n_items)
        if _class_of(classes, slot, item) == CN:
            break
    return slot, item
