"""A made-up shop: the tables a shop exports, and the truth that no shop has.

A user visits in some weeks. In each of them the user sees one slate of ten items, drawn by a softmax without
replacement over three categories of the user's own and the shop's bestsellers (again, on a second visit in the same
week). What users like they also buy without being shown it, and that is what the shop's scores reward; the effect of
showing an item is another property. Outside these categories and the bestsellers a user buys nothing, shown or not.

``Shop.draw(users, items, weeks, seed)`` makes one from a few numbers for each user and item; nothing has the size
users × items. ``taurank.worlds.shop_tables`` writes its tables.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from taurank._checks import check_integer
from taurank._jit import compiled, inlined
from taurank._random import stream_key, uniform
from taurank._types import Codes, Floats, Longs, Mask
from taurank.data.files import atomic_path
from taurank.data.ids import Ids
from taurank.errors import InputError, first_line
from taurank.estimation.propensity.slates import slates_of

SEGMENTS = ("new", "regular", "loyal")
SHARES, VISIT_RATES, LIFTS = (0.4, 0.4, 0.2), (0.18, 0.32, 0.55), (0.4, 0.0, -0.5)
SLOTS, OWN, FACTORS, BESTSELLERS = 10, 3, 4, 20
MIN_ITEMS, MAX_USERS, MAX_ITEMS = 120, 10**7, 10**6
VISIT, RACE, OUTCOME = range(3)  # what a week's random numbers are for
OUTSIDE = -1.5  # how much a bestseller of a foreign category is liked
HIGHEST = 0.9  # no purchase rate is above it
BOUGHT_ANYWAY, MEAN_EFFECT = 0.8, 0.04  # purchases of a week without a slate; mean effect of a candidate


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


@dataclass(frozen=True, eq=False)
class Shop:
    """The parameters of a made-up shop, and the truth of any user and item."""

    parameters: Parameters
    price: Floats
    weeks: int
    seed: int

    @classmethod
    def draw(cls, users: int = 2000, items: int = 300, weeks: int = 10, seed: int = 0) -> Shop:
        """A shop of this size; the same arguments make the same shop."""
        check_integer("users", users, 1, MAX_USERS)
        check_integer("items", items, MIN_ITEMS, MAX_ITEMS)
        check_integer("weeks", weeks, 1, 520)
        check_integer("seed", seed, 0, 2**63 - 1)
        random = np.random.default_rng(seed)
        of_items = _items(items, random)
        price: Floats = np.round(np.exp(random.normal(2.3, 0.7, items)), 2).astype(np.float64)
        of_users = _users(users, len(of_items["first_member"]) - 1, random)
        parameters = Parameters(
            **of_users, **of_items, lift=np.array(LIFTS), visit_rate=np.array(VISIT_RATES), slots=SLOTS
        )
        return cls(_calibrated(parameters, random), price, weeks, seed)

    @property
    def n_users(self) -> int:
        return len(self.parameters.segment)

    @property
    def n_items(self) -> int:
        return len(self.parameters.category)

    @cached_property
    def users(self) -> Ids:
        return Ids(names("c", np.arange(self.n_users)), "user_id")

    @cached_property
    def items(self) -> Ids:
        return Ids(names("p", np.arange(self.n_items)), "item_id")

    @cached_property
    def visited(self) -> Mask:
        """In which week each user visits: users × weeks."""
        return np.asarray(visits(self.parameters, self.seed, self.weeks, 0, self.n_users))

    def __repr__(self) -> str:
        return f"Shop({self.n_users:,} users, {self.n_items:,} items, {self.weeks} weeks, seed {self.seed})"

    def effect(self, users: Any, items: Any) -> Floats:
        """The true effect τ = μ^T − μ^C of showing an item in a week with a visit, for pairs of ids."""
        control, treated = rates_of_pairs(self.parameters, *self._codes(users, items))
        return np.asarray(treated - control)

    def propensity(self, users: Any, items: Any, threads: int | None = None) -> Floats:
        """The chance that an item is in the slate of a week with a visit, for pairs of ids; 0 if it cannot be."""
        return self.inclusion(*self._codes(users, items), threads)

    def value(self, lists: pd.DataFrame, k: int = SLOTS) -> float:
        """The extra purchases in a week with a visit if the first ``k`` items of each user's list are shown.

        ``lists`` is a frame ``user_id, item_id`` with ``rank`` or ``score``, as ``recommend`` returns. A user without
        a list counts as 0.
        """
        pairs = first_of_each(lists, k)
        user = self.users.encode_known(pairs["user_id"].array)
        per_user = np.bincount(user, self.effect(pairs["user_id"].array, pairs["item_id"].array), self.n_users)
        visits = self.visited.sum(1)
        return float(per_user @ visits / visits.sum())

    def today(self, top: int = 2 * SLOTS, begin: int = 0, end: int | None = None) -> pd.DataFrame:
        """What the shop ranks first today: the items with the largest own scores, for some users."""
        end = self.n_users if end is None else end
        items, scores = best_scores(self.parameters, begin, end, top)
        users = names("c", np.repeat(np.arange(begin, end), top))
        return pd.DataFrame({"user_id": users, "item_id": names("p", items.ravel()), "score": scores.ravel()})

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the four numbers that the shop is drawn from."""
        numbers = {"users": self.n_users, "items": self.n_items, "weeks": self.weeks, "seed": self.seed}
        with atomic_path(path) as temporary:
            temporary.write_text(json.dumps(numbers) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Shop:
        """Draw a shop that ``save`` wrote again."""
        try:
            numbers = json.loads(Path(path).read_text(encoding="utf-8"))
            return cls.draw(**{name: numbers[name] for name in ("users", "items", "weeks", "seed")})
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise InputError(f"'{os.fsdecode(path)}' is not a made-up shop: {first_line(error)}.") from error

    def inclusion(self, user: Codes, item: Codes, threads: int | None = None) -> Floats:
        """``propensity`` of positions; each user's slate is looked at once."""
        users, row = np.unique(user, return_inverse=True)
        slates = [rows_of_candidates(self.parameters, one)[:2] for one in users]
        items, weights = (np.concatenate(parts) for parts in zip(*slates, strict=True))
        sizes = [len(own) for own, _ in slates]
        chance = slates_of(np.log(weights), np.cumsum([0, *sizes]), SLOTS, threads)
        cells = np.repeat(np.arange(len(users)) * self.n_items, sizes) + items
        found = pd.Series(chance, cells).reindex(row * self.n_items + item, fill_value=0.0)
        return np.asarray(found, np.float64)

    def _codes(self, users: Any, items: Any) -> tuple[Codes, Codes]:
        user, item = self.users.encode_known(users), self.items.encode(items)
        if len(user) != len(item):
            raise InputError(f"users and items must be pairs, got {len(user):,} users and {len(item):,} items.")
        if (item < 0).any():
            raise InputError(f"{np.count_nonzero(item < 0):,} items are not in the shop's catalog.")
        return user, item


def first_of_each(lists: pd.DataFrame, k: int) -> pd.DataFrame:
    """The first ``k`` rows of each user of a frame with ``user_id, item_id`` and ``rank`` or ``score``."""
    if {"user_id", "item_id"} - set(lists) or not {"rank", "score"} & set(lists):
        raise InputError("lists need the columns user_id, item_id and rank or score.")
    by_rank = "rank" in lists
    ordered = lists.sort_values("rank" if by_rank else "score", ascending=by_rank, kind="stable")
    return ordered.groupby("user_id", sort=False, observed=True).head(k)


def names(letter: str, codes: npt.NDArray[Any]) -> npt.NDArray[np.object_]:
    """Ids as a shop has them: c0000017, p0000003."""
    distinct, back = np.unique(codes, return_inverse=True)
    return np.array([f"{letter}{code:07d}" for code in distinct], object)[back]


def _items(n: int, random: np.random.Generator) -> dict[str, Any]:
    """Categories, tastes, and two opposed properties: staples are bought anyway, impulse items because shown."""
    n_categories = int(np.clip(n // 150, 8, 150))
    category = random.permutation(np.arange(n) % n_categories).astype(np.int32)
    of_category = random.normal(0.0, [[0.3], [0.5]], (2, n_categories))
    staple = of_category[0, category] + random.normal(0.0, 0.9, n)
    impulse = of_category[1, category] - 0.3 * staple + random.normal(0.0, 0.6, n)
    score = 0.5 * staple + random.normal(0.0, 0.4, n)
    return {
        "item_taste": random.normal(0.0, 1.0, (n, FACTORS)), "category": category, "score": score, "staple": staple,
        "impulse": impulse, "members": np.argsort(category, kind="stable").astype(np.int32),
        "first_member": np.r_[0, np.cumsum(np.bincount(category, minlength=n_categories))],
        "bestsellers": np.argsort(-staple, kind="stable")[:BESTSELLERS].astype(np.int32),
    }  # fmt: skip


def _users(n: int, n_categories: int, random: np.random.Generator) -> dict[str, Any]:
    step = random.integers(1, n_categories // OWN, (n, OWN))  # three steps never go around: no category twice
    categories = (random.integers(n_categories, size=(n, 1)) + np.cumsum(step, 1)) % n_categories
    return {
        "segment": random.choice(len(SEGMENTS), n, p=SHARES), "categories": categories.astype(np.int32),
        "affinity": random.normal(0.0, 0.5, (n, OWN)), "user_taste": random.normal(0.0, 0.2, (n, FACTORS)),
    }  # fmt: skip


def _calibrated(p: Parameters, random: np.random.Generator) -> Parameters:
    """Shift both kinds of rates, so that purchases and effects have the same size in every shop."""
    p = p._replace(staple=p.staple - 9.0, impulse=p.impulse - 9.0)  # off the limit
    bought, effects = [], []
    for user in random.integers(len(p.segment), size=200):
        own = candidates(p, user)
        control, treated = rates_of_pairs(p, np.full(len(own), user), own)
        bought.append(control.sum())
        effects.append((treated - control).mean())
    return p._replace(
        staple=p.staple + np.log(BOUGHT_ANYWAY / np.mean(bought)),
        impulse=p.impulse + np.log(MEAN_EFFECT / np.mean(effects)),
    )


# Every number that is drawn is a hash of the seed, the user, the week and the item, so any block of users, on any
# thread, gives the same result. Work and memory of a user are proportional to the items of the user's categories.


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
