"""What a kernel visits, sorted: positives by user, those of a user block by item block, drawn samples by unit."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from taurank._arrays import group
from taurank._jit import compiled
from taurank._types import Codes, Floats32, Longs
from taurank.errors import InputError, plural
from taurank.sgd.intrinsics import prefetch
from taurank.sgd.strata import Cut

SAMPLE = np.dtype([("user", "i4"), ("item", "i4"), ("other", "i4"), ("value", "f4")])
"""A pair or a single item.

A pair compares item i with ``other``, j; ``value`` is its weight, whose sign says which of the two should rank
higher. Between the planning of a pass and the draw of its negatives, ``other`` holds the number of the basket.

A single item moves σ(p_u · q_item) toward its target, ``value``. ``item`` and ``other`` are rows of the item factors:
with two item tables, row i + n_items is item i in the second one. ``other`` is read only where rows are tied."""

Samples = npt.NDArray[Any]  # of SAMPLE
TRIES = 32  # of a rejection sampler, before it enumerates what is left (or, for new users, skips the sample)
AHEAD = 8  # prefetch distance, in users


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
        if m + AHEAD < len(members):
            prefetch(item, np.uint64(start[np.uint64(members[m + AHEAD])]))
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
        if m + AHEAD < len(members):
            prefetch(weight, np.uint64(start[np.uint64(members[m + AHEAD])]))
        for n in range(np.uint64(start[u]), np.uint64(start[u + np.uint64(1)])):
            b = np.uint64(block_of[np.uint64(item[n])])
            sample = samples[np.uint64(position[b])]
            position[b] += 1
            sample.user = u
            sample.item = item[n]
            sample.value = weight[n]
            if baskets is not None:
                sample.other = basket[n]
