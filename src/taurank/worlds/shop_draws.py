"""The draws of the made-up shop: slates, purchases, and the exact probability of being in a slate.

Every number is a hash of the seed, the user, the week and the item, so any block of users, on any thread, gives the
same result. Work and memory of a user are proportional to the items of the user's categories, never to the catalog.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from taurank._jit import compiled, inlined
from taurank._random import stream_key, uniform
from taurank._types import Codes, Floats, Longs

VISIT, RACE, OUTCOME = range(3)  # what a week's random numbers are for
OUTSIDE = -1.5  # how much a bestseller of a foreign category is liked
HIGHEST = 0.9  # no purchase rate is above it


class Parameters(NamedTuple):
    """Everything that determines the shop, besides its seed: one row for each user or item."""

    segment: Longs  # (users,)
    categories: Codes  # (users, 3): each user's own
    affinity: Floats  # (users, 3): how much they are liked
    user_taste: Floats  # (users, factors)
    item_taste: Floats  # (items, factors)
    category: Codes  # (items,)
    score: Floats  # (items,): the shop's own
    staple: Floats  # (items,): log of the rate at which it is bought without being shown
    impulse: Floats  # (items,): log of the effect of showing it
    lift: Floats  # (segments,): log of how much a segment's effects differ
    visit_rate: Floats  # (segments,)
    members: Codes  # items in the order of their categories
    first_member: Longs  # (categories + 1,)
    bestsellers: Codes  # shown to everybody
    slots: int


@inlined
def week_key(seed: Any, user: Any, week: Any, purpose: Any) -> Any:
    return stream_key(np.uint64(seed), np.uint64(user), np.uint64(week) * np.uint64(8) + np.uint64(purpose))


@inlined
def _affinity(p: Any, user: Any, item: Any) -> Any:
    for number in range(p.categories.shape[1]):
        if p.categories[user, number] == p.category[item]:
            return p.affinity[user, number]
    return OUTSIDE


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
    for category in p.categories[user]:
        size += p.first_member[category + 1] - p.first_member[category]
    items = np.empty(size, np.int32)
    n = 0
    for category in p.categories[user]:
        for item in p.members[p.first_member[category] : p.first_member[category + 1]]:
            items[n] = item
            n += 1
    for item in p.bestsellers:
        if _affinity(p, user, item) == OUTSIDE:
            items[n] = item
            n += 1
    return items[:n]


@compiled
def rows_of_candidates(p: Any, user: Any) -> Any:
    """The candidates of a user, their weights, and their purchase rates if not shown and if shown."""
    items = candidates(p, user)
    numbers = np.empty((3, len(items)))
    for n, item in enumerate(items):
        numbers[0, n], numbers[1, n], numbers[2, n] = weight_and_rates(p, user, item)
    return items, numbers[0], numbers[1], numbers[2]


@compiled
def visits(p: Any, seed: Any, weeks: Any, begin: Any, end: Any) -> Any:
    """Which weeks users ``begin`` … ``end`` − 1 visit the shop in: users × weeks."""
    visited = np.empty((end - begin, weeks), np.bool_)
    for user in range(begin, end):
        for week in range(weeks):
            chance = p.visit_rate[p.segment[user]]
            visited[user - begin, week] = uniform(week_key(seed, user, week, VISIT), 0) < chance
    return visited


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
def draw_weeks(p: Any, seed: Any, visited: Any, first_user: Any) -> Any:
    """The slates of all visits, and the purchases.

    A purchase is the number of its visit, the item, and whether the item was in the slate.
    """
    slates = np.empty((visited.sum(), p.slots), np.int32)
    visit_of, bought, in_slate = [np.int64(0)], [np.int32(0)], [False]
    slate, visit = np.empty(p.slots, np.int64), 0
    for row in range(len(visited)):
        if not visited[row].any():
            continue
        user = first_user + row
        items, weights, control, treated = rows_of_candidates(p, user)
        for week in np.flatnonzero(visited[row]):
            draw_slate(week_key(seed, user, week, RACE), items, weights, slate)
            shown = np.zeros(len(items), np.bool_)
            slates[visit], shown[slate] = items[slate], True
            key = week_key(seed, user, week, OUTCOME)
            for n in range(len(items)):
                if uniform(key, items[n]) < (treated[n] if shown[n] else control[n]):
                    visit_of.append(np.int64(visit))
                    bought.append(items[n])
                    in_slate.append(shown[n])
            visit += 1
    return slates, np.array(visit_of)[1:], np.array(bought)[1:], np.array(in_slate)[1:]


@compiled
def rates_of_pairs(p: Any, user: Any, item: Any) -> Any:
    """The purchase rates if not shown and if shown; 0 for items that are neither in a category nor bestsellers."""
    rates = np.zeros((2, len(user)))
    for row in range(len(user)):
        if _affinity(p, user[row], item[row]) != OUTSIDE or (p.bestsellers == item[row]).any():
            _, rates[0, row], rates[1, row] = weight_and_rates(p, user[row], item[row])
    return rates[0], rates[1]


@compiled
def best_scores(p: Any, begin: Any, end: Any, top: Any) -> Any:
    """The shop's own ranking: the candidates of each user with the largest weights, and these as logarithms."""
    items, scores = np.empty((end - begin, top), np.int32), np.empty((end - begin, top))
    position = np.empty(top, np.int64)
    for row in range(end - begin):
        own, weights, _, _ = rows_of_candidates(p, begin + row)
        scores[row] = np.inf
        for n in range(len(own)):
            _keep_smallest(scores[row], position, -np.log(weights[n]), n)
        items[row] = own[position]
    return items, -scores
