"""A made-up shop: the tables a shop exports, and the truth that no shop has.

A user visits in some weeks. In each of them the user sees one slate of ten items, drawn by a softmax without
replacement over three categories of the user's own and the shop's bestsellers (again, on a second visit in the same
week). What users like they also buy without being shown it, and that is what the shop's scores reward; the effect of
showing an item is another property. Outside these categories and the bestsellers a user buys nothing, shown or not.
``Violations`` switches on what a real shop may do besides.

``Shop.draw(users, items, weeks, seed)`` makes one from a few numbers for each user and item; nothing has the size
users × items. ``taurank.worlds.shop_tables`` writes its tables.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from taurank._checks import check_integer, check_number
from taurank._types import Codes, Floats, Longs, Mask
from taurank.data.eligibility import Eligibility
from taurank.data.features import Features
from taurank.data.files import write_text
from taurank.data.ids import Catalog, Ids
from taurank.data.log import Log
from taurank.errors import InputError, first_line
from taurank.estimation.propensity.slates import slates_of
from taurank.worlds.shop_visits import (
    Parameters,
    Violations,
    best_scores,
    candidates,
    draw_weeks,
    rates_of_pairs,
    rows_of_candidates,
    visits,
)

NONE = Violations()
SEGMENTS = ("new", "regular", "loyal")
SHARES, VISIT_RATES, LIFTS = (0.4, 0.4, 0.2), (0.18, 0.32, 0.55), (0.4, 0.0, -0.5)
SLOTS, OWN, FACTORS, BESTSELLERS = 10, 3, 4, 20
MIN_ITEMS, MAX_USERS, MAX_ITEMS = 120, 10**7, 10**6
AGAIN = 0.3  # of the visitors come back in the same week
BOUGHT_ANYWAY, MEAN_EFFECT = 0.8, 0.04  # purchases of a week without a slate; mean effect of a candidate


@dataclass(frozen=True, eq=False)
class Shop:
    """The parameters of a made-up shop, and the truth of any user and item."""

    parameters: Parameters
    price: Floats
    weeks: int
    seed: int
    violations: Violations = NONE

    @classmethod
    def draw(
        cls, users: int = 2000, items: int = 300, weeks: int = 10, seed: int = 0, violations: Violations = NONE
    ) -> Shop:
        """A shop of this size; the same arguments make the same shop."""
        check_integer("users", users, 1, MAX_USERS)
        check_integer("items", items, MIN_ITEMS, MAX_ITEMS)
        check_integer("weeks", weeks, 1, 520)
        check_integer("seed", seed, 0, 2**63 - 1)
        for name, size in violations._asdict().items():
            check_number(name, float(size), 0, maximum=5.0 if name == "intent" else 1.0)
        random = np.random.default_rng(seed)
        of_items = _items(items, random)
        price: Floats = np.round(np.exp(random.normal(2.3, 0.7, items)), 2).astype(np.float64)
        of_users = _users(users, len(of_items["first_member"]) - 1, random)
        parameters = Parameters(
            **of_users, **of_items, lift=np.array(LIFTS), visit_rate=np.array(VISIT_RATES), slots=SLOTS
        )
        return cls(_calibrated(parameters, random), price, weeks, seed, violations)

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
        """The true effect τ = μ^T − μ^C of showing an item in a week with a visit, for pairs, without violations."""
        control, treated = rates_of_pairs(self.parameters, *self._codes(users, items))
        return np.asarray(treated - control)

    def value(self, lists: Any, k: int = SLOTS) -> float:
        """The extra purchases in a week with a visit if the first ``k`` items of each user's list are shown.

        ``lists`` is a frame ``user_id, item_id`` with ``rank`` or ``score``, as ``recommend`` returns. A user without
        a list counts as 0. It is the difference between all weeks with these lists and without any, so that it holds
        whatever is violated; what comes after the last week counts, what is sent back does not.
        """
        pairs, lists = first_of_each(lists, k), np.full((2, self.n_users, k), -1, np.int32)
        user, item = self._codes(pairs["user_id"].array, pairs["item_id"].array)
        lists[0, user, pairs.groupby("user_id", sort=False, observed=True).cumcount()] = item
        slates, p, v = self.slates_of_visits(self.visited, 0)[0], self.parameters, self.violations
        shown, nothing = (draw_weeks(p, v, self.seed, self.visited, slates, 0, one)[-1] for one in lists)
        return float((shown - nothing) / self.visited.sum())

    def log(self) -> Log:
        """The log of all weeks, without the detour through tables: its visits, and the chances that it records."""
        block = Block(self, 0, self.n_users, self.weeks)
        number = block.cell_visit * self.n_items + block.cell_item
        cells = np.sort(np.unique(number, return_index=True)[1])  # the first row of each
        at, item = block.cell_visit[cells], block.cell_item[cells]
        outcome = np.isin(number[cells], block.visit_of * self.n_items + block.bought)
        user = block.user[at].astype(np.int32)
        chance = 1.0 - (1.0 - self.inclusion(user, item)) ** block.n_slates[at]
        treated, catalog = (
            cells < block.slates.size,
            Catalog(self.users, self.items, Ids(np.arange(self.weeks), "time")),
        )
        return Log(
            catalog, user, item, block.week[at].astype(np.int32), treated.astype(np.int8), outcome.astype(np.int8),
            chance, eligibility=Eligibility.from_positions(catalog, (block.user, block.week)),
        )  # fmt: skip

    def features(self) -> Features:
        """The category of each item, and the categories of each user."""
        p = self.parameters
        users = names("c", np.repeat(np.arange(self.n_users), p.categories.shape[1]))
        return Features(
            items=pd.DataFrame({"item_id": self.items.values.to_pandas(), "category": p.category}),
            categories=pd.DataFrame({"user_id": users, "category": p.categories.ravel()}),
        )

    def slates_of_visits(self, visited: Mask, begin: int) -> tuple[Longs, Longs]:
        """How many slates each visit of a block of users has, and the visits that come back in the same week."""
        n = int(visited.sum())
        back = np.flatnonzero(np.random.default_rng([self.seed, begin, 2]).random(n) < AGAIN)
        slates = np.ones(n, np.int64)
        slates[back] += int(self.violations.every_visit)
        return slates, back

    def today(self, top: int = 2 * SLOTS, begin: int = 0, end: int | None = None) -> pd.DataFrame:
        """What the shop ranks first today: the items with the largest own scores, for some users."""
        end = self.n_users if end is None else end
        items, scores = best_scores(self.parameters, begin, end, top)
        users = names("c", np.repeat(np.arange(begin, end), top))
        return pd.DataFrame({"user_id": users, "item_id": names("p", items.ravel()), "score": scores.ravel()})

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the numbers that the shop is drawn from."""
        sizes = {"users": self.n_users, "items": self.n_items, "weeks": self.weeks, "seed": self.seed}
        write_text(path, json.dumps({**sizes, "violations": self.violations._asdict()}) + "\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Shop:
        """Draw a shop that ``save`` wrote again."""
        try:
            numbers = json.loads(Path(path).read_text(encoding="utf-8"))
            return cls.draw(**{**numbers, "violations": Violations(**numbers["violations"])})
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise InputError(f"'{os.fsdecode(path)}' is not a made-up shop: {first_line(error)}.") from error

    def inclusion(self, user: Codes, item: Codes, wanted: Any = -1, threads: int | None = None) -> Floats:
        """The chance that an item is in the slate of a visit, of positions; ``wanted`` is the category that the user
        is after (−1: none).
        """
        key = np.asarray(user, np.int64) << 32 | (np.asarray(wanted, np.int64) + 1)
        distinct, row = np.unique(key, return_inverse=True)
        slates = []
        for one in distinct:
            items, weights = rows_of_candidates(self.parameters, one >> 32)[:2]
            after = self.parameters.category[items] == (one & 0xFFFFFFFF) - 1
            slates.append((items, np.log(weights) + self.violations.intent * after))
        sizes = [len(own) for own, _ in slates]
        chance = slates_of(np.concatenate([own for _, own in slates]), np.cumsum([0, *sizes]), SLOTS, threads)
        cells = np.repeat(np.arange(len(distinct)) * self.n_items, sizes) + np.concatenate([own for own, _ in slates])
        found = pd.Series(chance, cells).reindex(row * self.n_items + item, fill_value=0.0)
        return np.asarray(found, np.float64)

    def _codes(self, users: Any, items: Any) -> tuple[Codes, Codes]:
        return self.users.encode_known(users), self.items.encode_known(items)


class Block:
    """The visits of a block of users, their slates, and what was bought in them.

    ``cell_visit`` and ``cell_item`` are the logged cells: slates in their order, then what was bought without them.
    """

    def __init__(self, shop: Shop, begin: int, end: int, weeks: int) -> None:
        p = shop.parameters
        visited = visits(p, shop.seed, weeks, begin, end)
        row, self.week = np.nonzero(visited)  # of each visit
        self.user = row + begin
        self.n_slates, self.back = shop.slates_of_visits(visited, begin)
        self.slates, self.visit_of, self.bought, self.shown, _ = draw_weeks(
            p, shop.violations, shop.seed, visited, self.n_slates, begin, None
        )
        of_slots = np.repeat(np.arange(len(row)), self.n_slates * SLOTS)
        self.cell_visit = np.r_[of_slots, self.visit_of[~self.shown]]
        self.cell_item = np.r_[self.slates.ravel(), self.bought[~self.shown]].astype(np.int32)


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
