"""The draws of the made-up shop: slates, purchases, and the exact probability of being in a slate.

Every number is a hash of the seed, the user, the week and the item, so any block of users, on any thread, gives the
same result. Work and memory of a user are proportional to the items of her own shelves, never to the catalog.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from taurank._jit import compiled, inlined
from taurank._random import stream_key, uniform
from taurank.estimation.propensities.slates import NODES, WEIGHTS, inclusion

Array = npt.NDArray[Any]

VISIT, RACE, OUTCOME, CLOCK, FLAW = range(5)  # what a week's random numbers are for
OUTSIDE = -1.5  # how much a bestseller of a foreign category is liked
HIGHEST = 0.9  # no purchase rate is above it


class Parameters(NamedTuple):
    """Everything that determines the shop, besides its seed: one row for each user or item."""

    segment: Array  # (users,)
    shelves: Array  # (users, 3): each user's own categories
    affinity: Array  # (users, 3)
    user_taste: Array  # (users, factors)
    item_taste: Array  # (items, factors)
    category: Array  # (items,)
    score: Array  # (items,): the shop's own
    staple: Array  # (items,): log of the rate at which it is bought without being shown
    impulse: Array  # (items,): log of the effect of showing it
    lift: Array  # (segments,): log of how much a segment's effects differ
    visit_rate: Array  # (segments,)
    members: Array  # items in the order of their categories
    first_member: Array  # (categories + 1,)
    bestsellers: Array  # shown to everybody
    slots: int


@inlined
def week_key(seed: Any, user: Any, week: Any, purpose: Any) -> Any:
    return stream_key(np.uint64(seed), np.uint64(user), np.uint64(week) * np.uint64(8) + np.uint64(purpose))


@inlined
def _affinity(p: Any, user: Any, item: Any) -> Any:
    for number in range(p.shelves.shape[1]):
        if p.shelves[user, number] == p.category[item]:
            return p.affinity[user, number]
    return OUTSIDE


@compiled
def is_candidate(p: Any, user: Any, item: Any) -> Any:
    """Is the item on one of the user's shelves, or a bestseller?"""
    return _affinity(p, user, item) != OUTSIDE or (p.bestsellers == item).any()


@compiled
def weight_and_rates(p: Any, user: Any, item: Any) -> Any:
    """The item's weight in the slate's draw, its purchase rate if not shown, and if shown."""
    like = _affinity(p, user, item)
    weight = np.exp(p.score[item] + like)
    for factor in range(p.user_taste.shape[1]):
        like += p.user_taste[user, factor] * p.item_taste[item, factor]
    control = min(np.exp(p.staple[item] + 0.7 * like), HIGHEST)
    effect = np.exp(p.impulse[item] + 0.3 * like + p.lift[p.segment[user]])
    return weight, control, min(control + effect, HIGHEST)


@compiled
def candidates(p: Any, user: Any) -> Any:
    """The items that a user's slate is drawn from: three categories, then the bestsellers of all others."""
    size = len(p.bestsellers)
    for category in p.shelves[user]:
        size += p.first_member[category + 1] - p.first_member[category]
    items = np.empty(size, np.int32)
    n = 0
    for category in p.shelves[user]:
        for item in p.members[p.first_member[category] : p.first_member[category + 1]]:
            items[n] = item
            n += 1
    for item in p.bestsellers:
        if _affinity(p, user, item) == OUTSIDE:
            items[n] = item
            n += 1
    return items[:n]


@compiled
def _rows_of_candidates(p: Any, user: Any) -> Any:
    items = candidates(p, user)
    numbers = np.empty((3, len(items)))
    for n, item in enumerate(items):
        numbers[0, n], numbers[1, n], numbers[2, n] = weight_and_rates(p, user, item)
    return items, numbers[0], numbers[1], numbers[2]


@compiled
def visits(p: Any, seed: Any, weeks: Any, visited: Any, begin: Any, end: Any) -> None:
    """Which weeks users ``begin`` … ``end`` − 1 visit the shop in."""
    for user in range(begin, end):
        for week in range(weeks):
            drawn = uniform(week_key(seed, user, week, VISIT), 0)
            visited[user - begin, week] = drawn < p.visit_rate[p.segment[user]]


@compiled
def draw_slate(key: Any, items: Any, weights: Any, slate: Any) -> None:
    """Softmax without replacement as a race: item i arrives at Exp(1) / w_i, the first arrivals win, in order."""
    arrival = np.full(len(slate), np.inf)
    for n in range(len(items)):
        _keep_smallest(arrival, slate, -np.log1p(-uniform(key, items[n])) / weights[n], n)


@compiled
def _keep_smallest(values: Any, positions: Any, value: Any, position: Any) -> None:
    """Insert a value into the sorted smallest ones, unless it is larger than all of them."""
    slot = len(values)
    while slot > 0 and value < values[slot - 1]:
        slot -= 1
    if slot < len(values):
        for later in range(len(values) - 1, slot, -1):
            values[later], positions[later] = values[later - 1], positions[later - 1]
        values[slot], positions[slot] = value, position


@compiled
def draw_weeks(
    p: Any, seed: Any, visited: Any, first_user: Any, start: Any, slates: Any, chances: Any,
    bought_start: Any, bought: Any, shown: Any, begin: Any, end: Any,
) -> None:  # fmt: skip
    """Slates and purchases of the visits of some users.

    ``start`` and ``bought_start`` number the visits and the purchases. Without ``bought`` the purchases are only
    counted, into ``bought_start``; ``chances`` is the probability of each slot's draw, given the slots before it.
    """
    slate = np.empty(p.slots, np.int64)
    for row in range(begin, end):
        user = first_user + row
        if not visited[row].any():
            continue
        items, weights, control, treated = _rows_of_candidates(p, user)
        rate = np.empty(len(items))
        visit = start[row]
        for week in range(visited.shape[1]):
            if not visited[row, week]:
                continue
            draw_slate(week_key(seed, user, week, RACE), items, weights, slate)
            rate[:] = control
            left = weights.sum()
            for slot, n in enumerate(slate):
                slates[visit, slot], chances[visit, slot] = items[n], weights[n] / left
                left -= weights[n]
                rate[n] = treated[n]
            _buy(week_key(seed, user, week, OUTCOME), items, rate, slate, visit, bought_start, bought, shown)
            visit += 1


@compiled
def _buy(key: Any, items: Any, rate: Any, slate: Any, visit: Any, bought_start: Any, bought: Any, shown: Any) -> None:
    counting = len(bought) == 0
    at = 0 if counting else bought_start[visit]
    for n in range(len(items)):
        if uniform(key, items[n]) < rate[n]:
            if not counting:
                bought[at] = items[n]
                for other in slate:
                    shown[at] = shown[at] or other == n
            at += 1
    if counting:
        bought_start[visit] = at


@compiled
def inclusion_of_pairs(p: Any, user: Any, item: Any, result: Any, begin: Any, end: Any) -> None:
    """The chance of being in a week's slate, for pairs sorted by user; 0 for items that are not candidates."""
    row = begin
    while row < end:
        last = row
        while last < end and user[last] == user[row]:
            last += 1
        items, weights, _, _ = _rows_of_candidates(p, user[row])
        at = np.empty(last - row, np.int64)
        known = 0
        for n in range(row, last):
            result[n] = 0.0
            for position in range(len(items)):
                if items[position] == item[n]:
                    at[known] = position
                    result[n] = known + 1.0
                    known += 1
        chance = np.empty(known)
        if known > 0:
            inclusion(np.log(weights), at[:known], p.slots, chance, NODES, WEIGHTS)
        for n in range(row, last):
            if result[n] > 0.0:
                result[n] = chance[int(result[n]) - 1]
        row = last


@compiled
def rates_of_pairs(p: Any, user: Any, item: Any, control: Any, treated: Any, begin: Any, end: Any) -> None:
    for row in range(begin, end):
        control[row] = treated[row] = 0.0
        if is_candidate(p, user[row], item[row]):
            _, control[row], treated[row] = weight_and_rates(p, user[row], item[row])


@compiled
def best_scores(p: Any, first_user: Any, items: Any, scores: Any, begin: Any, end: Any) -> None:
    """The shop's own ranking: the candidates of each user with the largest weights."""
    position = np.empty(items.shape[1], np.int64)
    for row in range(begin, end):
        own, weights, _, _ = _rows_of_candidates(p, first_user + row)
        scores[row] = np.inf
        for n in range(len(own)):
            _keep_smallest(scores[row], position, -np.log(weights[n]), n)
        for rank in range(len(position)):
            items[row, rank], scores[row, rank] = own[position[rank]], -scores[row, rank]
