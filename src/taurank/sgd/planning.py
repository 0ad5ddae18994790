"""Compiled sorts: positives by user, the positives of a user block by item block, drawn samples by unit."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from taurank._jit import compiled
from taurank.errors import InputError
from taurank.sgd.intrinsics import prefetch
from taurank.sgd.samples import Floats, Ints, Longs, Positives, Samples
from taurank.sgd.strata import Cut, Schedule, Strata

AHEAD = 8  # users whose positives are fetched before they are planned


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


def bucket_by_unit(strata: Strata, cut: Cut, schedule: Schedule, drawn: Samples) -> tuple[Samples, Longs]:
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
    return _bucket_by_unit(cut, schedule.width, units, schedule.slots, strata.n_items, drawn)


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


def _checked(name: str, values: NDArray[Any], bound: int) -> Ints:
    values = np.asarray(values)
    if len(values) and not (values.min() >= 0 and values.max() < bound):
        bad = values[(values < 0) | (values >= bound)]
        raise InputError(
            f"Column '{name}' has {len(bad)} rows outside 0 .. {bound - 1}, such as {bad[0]}; "
            "use the dense ids of the log's catalogue."
        )
    return np.ascontiguousarray(values, dtype=np.int32)


@compiled
def _count_items(members: Ints, start: Longs, item: Ints, block: Ints, count: Longs) -> None:
    for m in range(len(members)):
        u = np.uint64(members[m])
        if m + AHEAD < len(members):
            prefetch(item, np.uint64(start[np.uint64(members[m + AHEAD])]))
        for n in range(np.uint64(start[u]), np.uint64(start[u + np.uint64(1)])):
            count[np.uint64(block[np.uint64(item[n])])] += 1


@compiled
def _place(members: Ints, block: Ints, place: Longs, positives: Positives, samples: Samples) -> None:
    # Unsigned indices spare Numba's look for negative ones: half of this loop's time.
    start, item, weight, basket = positives
    for m in range(len(members)):
        u = np.uint64(members[m])
        if m + AHEAD < len(members):
            prefetch(weight, np.uint64(start[np.uint64(members[m + AHEAD])]))
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
def _bucket_by_unit(
    cut: Cut, width: int, units: int, slots: Ints, n_items: int, drawn: Samples
) -> tuple[Samples, Longs]:
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
