"""Compiled sorts: positives by user, the positives of a user block by item block, drawn samples by unit."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from taurank._jit import compiled
from taurank._threads import run_interruptibly
from taurank._types import Codes, Floats32, Longs
from taurank.errors import InputError, plural
from taurank.sgd.intrinsics import prefetch
from taurank.sgd.samples import Positives, Samples
from taurank.sgd.strata import Cut, Schedule, Strata

AHEAD = 8  # prefetch distance, in users


def by_user(
    user: npt.NDArray[Any], item: npt.NDArray[Any], weight: npt.NDArray[Any],
    n_users: int, n_items: int, basket: npt.NDArray[Any] | None = None,
) -> Positives:  # fmt: skip
    """Check the positives once and sort them by user, preserving their order within a user."""
    user = _checked("user", user, n_users)
    item = _checked("item", item, n_items)
    weight = np.asarray(weight, dtype=np.float32)
    bad = np.flatnonzero(~np.isfinite(weight))
    if bad.size:
        raise InputError(
            f"column 'weight' has {plural(bad.size, 'value')} that are not finite in float32, "
            f"such as {weight[bad[0]]}; use finite weights."
        )
    lengths = {"user": len(user), "item": len(item), "weight": len(weight)}
    if basket is not None:
        lengths["basket"] = len(basket)
    if len(set(lengths.values())) > 1:
        raise InputError(f"the columns of the positives differ in length: {lengths}.")
    baskets = np.empty(0, np.int32) if basket is None else np.asarray(basket, np.int32)
    # a signal that arrives while Numba builds the named tuple would end the process: not on the main thread
    return run_interruptibly(lambda stop: _sort_by_user(user, item, weight, basket is not None, baskets, n_users))


def bucket_pairs(
    strata: Strata, cut: Cut, schedule: Schedule, drawn: Samples, dealt: Samples | None = None
) -> tuple[Samples, Longs]:
    """Sort drawn pairs by the unit that owns u, i and j: the pairs, and where each unit begins.

    Pairs of one unit keep their order. ``dealt`` is memory for them."""
    _check_drawn(drawn, user=strata.n_users, item=strata.n_items, other=strata.n_items)
    if _any_same(drawn):
        same = np.flatnonzero(drawn["item"] == drawn["other"])
        raise InputError(
            f"{plural(same.size, 'drawn pair')} compare an item with itself, such as item "
            f"{drawn['item'][same[0]]}; draw j != i."
        )
    unit = _units_of_pairs(cut.user_block, cut.item_block, schedule.width, strata.meetings(), drawn)
    return _bucket(unit, len(schedule.blocks), drawn, np.empty_like(drawn) if dealt is None else dealt)


def bucket_points(
    strata: Strata, cut: Cut, schedule: Schedule, drawn: Samples, dealt: Samples | None = None
) -> tuple[Samples, Longs]:
    """Sort drawn single items by the unit that owns user and item: the samples, and where each unit begins.

    Rows of the second item table belong to the block of their item. The rest is as in ``bucket_pairs``."""
    _check_drawn(drawn, user=strata.n_users, item=2 * strata.n_items, other=2 * strata.n_items)
    unit = _units_of_points(cut.user_block, cut.item_block, schedule.width, drawn)
    return _bucket(unit, len(schedule.blocks), drawn, np.empty_like(drawn) if dealt is None else dealt)


@compiled
def plan_users(
    cut: Cut, positives: Positives, block: int, offset: int, samples: Samples, begin: Longs, end: Longs
) -> None:
    """Sort the positives of one user block by item block, writing from ``offset`` on.

    A counting sort: users stay in the random order of the cut, so a unit is visited user by user."""
    blocks = len(cut.item_start) - 1
    position = np.zeros(blocks, np.int64)
    members = cut.user_order[cut.user_start[block] : cut.user_start[block + 1]]
    _count_items(members, positives.start, positives.item, cut.item_block, position)
    for b in range(blocks):
        unit = (b - block + blocks) % blocks * blocks + block
        begin[unit] = offset
        offset += position[b]
        end[unit] = offset
        position[b] = begin[unit]
    _write_samples(members, cut.item_block, position, positives, samples)


@compiled
def block_offsets(cut: Cut, start: Longs) -> Longs:
    """Where the positives of each user block begin in the planned order."""
    blocks = len(cut.user_start) - 1
    offsets = np.zeros(blocks + 1, np.int64)
    for block in range(blocks):
        total = 0
        for u in cut.user_order[cut.user_start[block] : cut.user_start[block + 1]]:
            total += start[u + 1] - start[u]
        offsets[block + 1] = offsets[block] + total
    return offsets


def _checked(name: str, values: npt.NDArray[Any], bound: int) -> Codes:
    values = np.asarray(values)
    if len(values) and not (values.min() >= 0 and values.max() < bound):
        bad = values[(values < 0) | (values >= bound)]
        raise InputError(
            f"column '{name}' has {plural(len(bad), 'row')} outside 0 … {bound - 1}, such as {bad[0]}; "
            "use the dense ids of the log's catalog."
        )
    return np.ascontiguousarray(values, dtype=np.int32)


def _check_drawn(drawn: Samples, **bounds: int) -> None:
    """One quick look at all samples; a slow one only to word the error."""
    columns: list[Any] = [drawn[name] for name in bounds]
    if not _within(drawn["value"], *columns, *bounds.values()):
        for name, bound in bounds.items():
            _checked(name, drawn[name], bound)
        raise InputError("column 'value' of the drawn samples has values that are not finite.")


@compiled
def _within(number: Floats32, first: Any, second: Any, third: Any, a: Any, b: Any, c: Any) -> bool:
    good = True
    for n in range(len(first)):
        good &= 0 <= first[n] < a and 0 <= second[n] < b and 0 <= third[n] < c and np.isfinite(number[n])
    return good


@compiled
def _any_same(drawn: Samples) -> bool:
    found = False
    for n in range(len(drawn)):
        found |= drawn[n].item == drawn[n].other
    return found


@compiled
def _count_items(members: Codes, start: Longs, item: Codes, block: Codes, count: Longs) -> None:
    for m in range(len(members)):
        u = np.uint64(members[m])
        if m + AHEAD < len(members):
            prefetch(item, np.uint64(start[np.uint64(members[m + AHEAD])]))
        for n in range(np.uint64(start[u]), np.uint64(start[u + np.uint64(1)])):
            count[np.uint64(block[np.uint64(item[n])])] += 1


@compiled
def _write_samples(members: Codes, block: Codes, position: Longs, positives: Positives, samples: Samples) -> None:
    # unsigned indices avoid Numba's wrap-around check: half of this loop's time
    start, item, weight, in_baskets, basket = positives
    for m in range(len(members)):
        u = np.uint64(members[m])
        if m + AHEAD < len(members):
            prefetch(weight, np.uint64(start[np.uint64(members[m + AHEAD])]))
        for n in range(np.uint64(start[u]), np.uint64(start[u + np.uint64(1)])):
            b = np.uint64(block[np.uint64(item[n])])
            sample = samples[np.uint64(position[b])]
            position[b] += 1
            sample.user = u
            sample.item = item[n]
            sample.value = weight[n]
            if in_baskets:
                sample.other = basket[n]


@compiled
def _sort_by_user(
    user: Codes, item: Codes, weight: Floats32, in_baskets: bool, basket: Codes, n_users: int
) -> Positives:
    start = np.zeros(n_users + 1, np.int64)
    for u in user:
        start[u + 1] += 1
    start = np.cumsum(start)
    position = start[:-1].copy()
    items, weights, baskets = np.empty_like(item), np.empty_like(weight), np.empty_like(basket)
    for n in range(len(user)):
        to = position[user[n]]
        position[user[n]] = to + 1
        items[to] = item[n]
        weights[to] = weight[n]
        if in_baskets:
            baskets[to] = basket[n]
    return Positives(start, items, weights, in_baskets, baskets)


@compiled
def _units_of_pairs(user_block: Codes, item_block: Codes, width: int, meetings: Codes, drawn: Samples) -> Codes:
    unit = np.empty(len(drawn), np.int32)
    rounds = len(meetings) - 1
    for n in range(len(drawn)):
        first, second = item_block[np.uint64(drawn[n].item)], item_block[np.uint64(drawn[n].other)]
        match = meetings[np.uint64(first), np.uint64(second)]
        shift = (user_block[np.uint64(drawn[n].user)] - match % width + width) % width
        unit[n] = shift * rounds * width + match
    return unit


@compiled
def _units_of_points(user_block: Codes, item_block: Codes, width: int, drawn: Samples) -> Codes:
    unit = np.empty(len(drawn), np.int32)
    n_items = len(item_block)
    for n in range(len(drawn)):
        item = drawn[n].item - (n_items if drawn[n].item >= n_items else 0)
        a, b = user_block[np.uint64(drawn[n].user)], item_block[np.uint64(item)]
        unit[n] = (b - a + width) % width * width + a
    return unit


@compiled
def _bucket(unit: Codes, units: int, drawn: Samples, dealt: Samples) -> tuple[Samples, Longs]:
    start = np.zeros(units + 1, np.int64)
    for n in range(len(unit)):
        start[unit[n] + 1] += 1
    start = np.cumsum(start)
    position = start[:-1].copy()
    for n in range(len(drawn)):
        to = np.uint64(unit[n])
        dealt[np.uint64(position[to])] = drawn[n]
        position[to] += 1
    return dealt, start
