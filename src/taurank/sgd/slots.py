"""The cells of a log as the samplers need them: by slot, by class, by arm. Memory grows with the rows.

A cell (user, item, time) is of one of four classes: treated or control × positive or negative (TP, TN, CP, CN).
A *slot* is a user at a time. Only slots with a row are stored, and of their cells only those that are *listed*:
control negatives are all the others.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from taurank._types import Codes, Longs

TP, TN, CP, CN = 0, 1, 2, 3
CLASS_NAMES = ("treated positive", "treated negative", "control positive", "control negative")
# ULBPR: with probability 1 − α a treated positive against the rest, with α {TP, CN} against {TN, CP}
_STRICT = ((TP, CN), (TP, TN), (TP, CP))
_LOOSE = ((TP, TN), (TP, CP), (CN, TN), (CN, CP))


class Cells(NamedTuple):
    """The columns of a log: one row per cell with a recommendation or an outcome."""

    user: Codes
    item: Codes
    time: Codes
    treated: npt.NDArray[Any]
    outcome: npt.NDArray[Any]
    n_users: int
    n_items: int
    n_times: int


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

    chance: npt.NDArray[np.float64]  # running sum over the kinds
    better: Longs  # class of i
    worse: Longs  # class of j
    start: Longs  # kind × (times + 1), into slot
    slot: Codes
    busy: Longs  # kind × times: the times with any such slot come first
    n_busy: Longs


class CellsByClass(NamedTuple):
    """User and item of the listed cells; class c has the rows start[c] … start[c + 1] − 1."""

    user: Codes
    item: Codes
    start: Longs
    n_absent: int  # control negatives
    absent: Longs  # how many of them are in the slots before; slots + 1
    idle: Longs  # how many slots without any row the users before have; users + 1


class Arms(NamedTuple):
    """The slots with a treated item, and the stored slots with an untreated one."""

    treated: Codes
    control: Codes
    n_control: int  # with the slots that are not stored
    idle: Longs  # as in CellsByClass


def slots_of(cells: Cells) -> Slots:
    """Sort the listed cells by slot and class, and by slot and item."""
    rows, kind = _listed(cells)
    item = cells.item[rows]
    slot_id = cells.user[rows].astype(np.int64) * cells.n_times + cells.time[rows]
    order = np.lexsort((item, slot_id))
    item, kind, slot_id = item[order], kind[order], slot_id[order]
    first = np.flatnonzero(np.diff(slot_id, prepend=-1))
    slot = np.repeat(np.arange(len(first)), np.diff(first, append=len(slot_id)))
    user, time = np.divmod(slot_id[first], cells.n_times)
    key = 3 * slot + kind
    return Slots(
        user.astype(np.int32), time.astype(np.int32), _starts(user, cells.n_users), _starts(key, 3 * len(first)),
        item[np.argsort(key, kind="stable")], item, cells.n_items, cells.n_times,
    )  # fmt: skip


def pair_kinds(slots: Slots, alpha: float, absent: Longs | None = None) -> PairKinds | None:
    """ULBPR's kinds of pairs and where they can be drawn; kinds that no slot can serve are left out.

    ``absent`` is how many control negatives each slot has (None: all items that are not listed).
    """
    has = _class_sizes(slots) > 0
    if absent is not None:
        has[:, CN] = absent > 0
    kinds = []
    for share, classes in ((1.0 - alpha, _STRICT), (alpha, _LOOSE)):
        able = [(pair, np.flatnonzero(has[:, pair[0]] & has[:, pair[1]])) for pair in classes]
        served = [(pair, slot) for pair, slot in able if len(slot) and share > 0]
        kinds += [(share / len(served), *pair, _by_time(slots, slot)) for pair, slot in served]
    if not kinds:
        return None
    chance = np.cumsum([share for share, *_ in kinds])
    counts = np.array([np.bincount(slots.time[slot], minlength=slots.n_times) for *_, slot in kinds])
    first = np.cumsum(counts.sum(axis=1)) - counts.sum(axis=1)
    return PairKinds(
        chance / chance[-1],
        np.array([better for _, better, _, _ in kinds]),
        np.array([worse for _, _, worse, _ in kinds]),
        np.column_stack((first, first[:, None] + np.cumsum(counts, axis=1))),
        np.concatenate([slot for *_, slot in kinds]),
        np.argsort(counts == 0, axis=1, kind="stable"),
        np.count_nonzero(counts, axis=1),
    )


def cells_by_class(cells: Cells, slots: Slots) -> CellsByClass:
    """The listed cells by class, and where the control negatives are."""
    rows, kind = _listed(cells)
    rows = rows[np.argsort(kind, kind="stable")]
    absent = slots.n_items - np.diff(slots.start[::3])
    n_absent = cells.n_users * cells.n_times * cells.n_items - len(rows)
    running = np.concatenate(([0], np.cumsum(absent)))
    return CellsByClass(cells.user[rows], cells.item[rows], _starts(kind, 3), n_absent, running, _idle(slots))


def arms_of(slots: Slots) -> Arms:
    """Where CausE finds its two arms."""
    sizes = _class_sizes(slots)
    treated = sizes[:, TP] + sizes[:, TN]
    control, idle = np.flatnonzero(treated < slots.n_items), _idle(slots)
    return Arms(_ints(np.flatnonzero(treated)), _ints(control), len(control) + int(idle[-1]), idle)


def _listed(cells: Cells) -> tuple[Longs, npt.NDArray[np.int64]]:
    """The rows that are not control negatives, and their classes."""
    rows = np.flatnonzero((cells.treated == 1) | (cells.outcome == 1))
    treated, positive = cells.treated[rows] == 1, cells.outcome[rows] == 1
    return rows, np.where(treated, np.where(positive, TP, TN), CP)


def _starts(key: npt.NDArray[Any], size: int) -> Longs:
    return np.concatenate(([0], np.cumsum(np.bincount(key, minlength=size)))).astype(np.int64)


def _class_sizes(slots: Slots) -> Longs:
    """How many cells of each class a slot has: slots × (TP, TN, CP, CN)."""
    listed = np.diff(slots.start).reshape(-1, 3)
    return np.column_stack((listed, slots.n_items - listed.sum(axis=1)))


def _by_time(slots: Slots, slot: Longs) -> Codes:
    return _ints(slot[np.argsort(slots.time[slot], kind="stable")])


def _idle(slots: Slots) -> Longs:
    return np.arange(len(slots.user_start)) * np.int64(slots.n_times) - slots.user_start


def _ints(values: Longs) -> Codes:
    return values.astype(np.int32)
