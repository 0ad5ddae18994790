"""The visits of the made-up shop: who comes, what each slate has, what is bought.

Every number that is drawn is a hash of the seed, the user, the week and the item, so any block of users, on any
thread, gives the same result. Work and memory of a user are proportional to the items of the user's categories.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from taurank._jit import compiled, inlined
from taurank._random import stream_key, uniform
from taurank._types import Codes, Floats, Longs

VISIT, RACE, OUTCOME, INTENT, SECOND_RACE = range(5)  # what a week's random numbers are for
OUTSIDE = -1.5  # how much a bestseller of a foreign category is liked
HIGHEST = 0.9  # no purchase rate is above it
INTENDED = 0.3  # of the visits have an intent


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


class Violations(NamedTuple):
    """What an estimate of one week's effect does not expect; 0 is off. ``docs/violations.md`` has their sizes."""

    delay: float = 0.0  # share of an effect that comes at the next visit
    saturation: float = 0.0  # share of an effect that each earlier week with a showing takes away
    replacement: float = 0.0  # share of the caused purchases that replace a later one of the category
    every_visit: bool = False  # a second visit in a week has a slate of its own, with an effect of its own
    intent: float = 0.0  # in some weeks one category is shown and bought e^intent times as much; chances ignore it
    position: float = 0.0  # share of the effect that each further slot takes away
    returns: float = 0.0  # share of the purchases of shown items that are sent back


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
    arrival = np.empty(len(items))
    for n in range(len(items)):
        arrival[n] = -np.log1p(-uniform(key, items[n])) / weights[n]
    slate[:] = np.argsort(arrival)[: len(slate)]


@compiled
def best_scores(p: Any, begin: Any, end: Any, top: Any) -> Any:
    """The shop's own ranking: the candidates of each user with the largest weights, and these as logarithms."""
    items, scores = np.empty((end - begin, top), np.int32), np.empty((end - begin, top))
    for row in range(end - begin):
        own, weights, _, _ = rows_of_candidates(p, begin + row)
        position = np.argsort(-np.log(weights), kind="mergesort")[:top]
        items[row], scores[row] = own[position], np.log(weights[position])
    return items, scores


@compiled
def weight_and_rates(p: Any, user: Any, item: Any) -> Any:
    """The item's weight in the slate's draw, its purchase rate if not shown, and what showing adds to it."""
    like = _affinity(p, user, item)
    weight = np.exp(p.score[item] + like)
    for factor in range(p.user_taste.shape[1]):
        like += p.user_taste[user, factor] * p.item_taste[item, factor]
    control = min(np.exp(p.staple[item] + 0.7 * like), HIGHEST)
    return weight, control, np.exp(p.impulse[item] + 0.3 * like + p.lift[p.segment[user]])


@compiled
def rows_of_candidates(p: Any, user: Any) -> Any:
    """The candidates of a user, their weights, their purchase rates if not shown, and what showing adds."""
    items = candidates(p, user)
    numbers = np.empty((3, len(items)))
    for n, item in enumerate(items):
        numbers[0, n], numbers[1, n], numbers[2, n] = weight_and_rates(p, user, item)
    return items, numbers[0], numbers[1], numbers[2]


@compiled
def rates_of_pairs(p: Any, user: Any, item: Any) -> Any:
    """The purchase rates if not shown and if shown; 0 for items that are neither in a category nor bestsellers."""
    rates = np.zeros((2, len(user)))
    for row in range(len(user)):
        if _affinity(p, user[row], item[row]) != OUTSIDE or (p.bestsellers == item[row]).any():
            _, control, effect = weight_and_rates(p, user[row], item[row])
            rates[0, row], rates[1, row] = control, min(control + effect, HIGHEST)
    return rates[0], rates[1]


@compiled
def intended(p: Any, v: Any, seed: Any, user: Any, week: Any) -> Any:
    """The category that the user is after in this week; −1 for none."""
    key = week_key(seed, user, week, INTENT)
    if v.intent == 0.0 or uniform(key, 0) >= INTENDED:
        return np.int32(-1)
    return p.categories[user, int(uniform(key, 1) * p.categories.shape[1])]


@compiled
def draw_weeks(p: Any, v: Any, seed: Any, visited: Any, slates_of_visit: Any, first_user: Any, lists: Any) -> Any:
    """The slates of all visits, the purchases, and how many were expected, net of what is sent back.

    A purchase is the number of its visit, the item, and whether the item was shown. What is expected includes what
    comes after the last week. ``lists`` are shown instead of drawn slates, unless None: a row of items for each user,
    where −1 leaves a slot empty.
    """
    slates = np.empty((slates_of_visit.sum(), p.slots), np.int32)
    visit_of, bought, was_shown = [np.int64(0)], [np.int32(0)], [False]
    slate, visit, drawn, expected = np.empty(p.slots, np.int64), 0, 0, 0.0
    for row in range(len(visited)):
        if not visited[row].any():
            continue
        user = first_user + row
        items, weights, control, effect = rows_of_candidates(p, user)
        category, earlier, pending = p.category[items], np.zeros(len(items)), np.zeros(len(items))
        owed, total = np.zeros((2, len(p.first_member)))  # purchases of each category to replace, and in a week
        for n in range(len(items)):
            total[category[n]] += control[n]
        for week in np.flatnonzero(visited[row]):
            lift = np.where(category == intended(p, v, seed, user, week), np.exp(v.intent), 1.0)
            strength = np.zeros(len(items))
            for number in range(slates_of_visit[visit]):
                if lists is None:
                    key = week_key(seed, user, week, SECOND_RACE if number else RACE)
                    draw_slate(key, items, weights * lift, slate)
                    slates[drawn] = items[slate]
                    for slot in range(p.slots):
                        strength[slate[slot]] += (1.0 - v.position) ** slot
                else:
                    for slot, item in enumerate(lists[row]):
                        strength[items == item] += (1.0 - v.position) ** slot
                drawn += 1
            key, now = week_key(seed, user, week, OUTCOME), effect * strength * (1.0 - v.saturation) ** earlier
            left = 1.0 - np.minimum(owed / np.maximum(total, 1e-300), 1.0)
            owed = np.maximum(owed - total, 0.0)
            rate = np.minimum(control * lift * left[category] + pending + now * (1.0 - v.delay), HIGHEST)
            pending = now * v.delay
            for n in range(len(items)):
                owed[category[n]] += v.replacement * now[n]
                expected += rate[n] * (1.0 - v.returns * (strength[n] > 0.0))
                if uniform(key, items[n]) < rate[n]:
                    visit_of.append(np.int64(visit))
                    bought.append(items[n])
                    was_shown.append(strength[n] > 0.0)
            earlier += strength > 0.0
            visit += 1
        expected += pending.sum() - owed.sum()
    return slates, np.array(visit_of)[1:], np.array(bought)[1:], np.array(was_shown)[1:], expected
