"""Which items users are shown, where it is known which categories of items each user can be shown.

What is shown to user u comes from a category c of the user's own, by the share s_uc of it, and from items of the
category by φ_i, shared by all users; a few items (bestsellers, say) are shown outside these categories as well. A
share is the posterior mean of a multinomial one: a Dirichlet prior of A pseudo-exposures around the share that the
weights of the user's categories imply. Weights, φ and A are estimated from the exposures outside a fold; A from how
much the shares of users differ. A user who was never shown anything has the share of the prior. Where the shop has a
score for each of a user's categories, a category weighs w_c·exp(β·score) for that user, β estimated with the weights.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from taurank._types import Floats, Longs
from taurank.data.features import UserCategories
from taurank.estimation.propensity.cells import ItemShares, inverse
from taurank.estimation.propensity.mixture import Exposures

ROUNDS = 20  # of the weights
INSIDE, OUTSIDE = 0.5, 0.05  # pseudo-exposures of an item inside a user's categories, and outside
MIN_STRENGTH, MAX_STRENGTH = 1.0, 1000.0  # of A


@dataclass(frozen=True, eq=False)
class Categories:
    """The categories of each user, as sorted numbers user · categories + category, and the category of
    each item. An entry is one of these pairs of a user and a category.
    """

    n_users: int
    n_categories: int
    own: Longs
    item: Longs
    score: Floats  # of each entry; 0 without one

    @classmethod
    def from_features(cls, n_users: int, given: UserCategories) -> Categories:
        """From pairs of a user and a category, with a score or without, and the category of each item."""
        n_categories = int(max(np.max(given.category, initial=0), np.max(given.item, initial=0))) + 1
        own, first = np.unique(given.user * n_categories + given.category, return_index=True)
        return cls(n_users, n_categories, own, given.item, given.score[first])

    @property
    def user(self) -> Longs:
        return self.own // self.n_categories

    @property
    def category(self) -> Longs:
        return self.own % self.n_categories

    def entry(self, user: Any, item: Any) -> Longs:
        """The entry of the user and the item's category; −1 for none."""
        number = np.asarray(user, np.int64) * self.n_categories + self.item[item]
        at = np.minimum(np.searchsorted(self.own, number), max(len(self.own) - 1, 0))
        return np.where(self.own[at] == number, at, -1) if len(self.own) else np.full(len(number), -1)


@dataclass(frozen=True, eq=False)
class CategoryShares(ItemShares):
    """Shares of users and items from all folds but one; like ``Mixture``, with categories instead of components."""

    categories: Categories
    shares: Shares
    bought_shares: Shares
    inside: Floats  # φ: of its category, for each item
    outside: Floats  # of what is shown outside the categories, for each item
    outside_of_category: Floats  # the same, of the categories
    popularity: Floats

    @property
    def size(self) -> str:
        return f"{self.categories.n_categories} categories"

    def chance(self, user: Any, item: Any, bought: bool = False) -> Floats:
        shares, entry = self.bought_shares if bought else self.shares, self.categories.entry(user, item)
        other = shares.other[user] * self.outside[item] / self._outside_of_user[user]
        return np.asarray(np.where(entry >= 0, shares.entry[entry] * self.inside[item], other))

    @property
    def _outside_of_user(self) -> Floats:
        """How much of what is shown outside categories is outside the user's own."""
        one = self.categories
        own = np.bincount(one.user, self.outside_of_category[one.category], one.n_users)
        return np.asarray(np.maximum(1.0 - own, 1e-9))

    def draw(self, user: Longs, generator: np.random.Generator) -> Longs:
        categories = self.categories
        starts = np.searchsorted(categories.user, np.arange(categories.n_users + 1))
        total = np.concatenate([[0.0], np.cumsum(self.shares.entry)])
        point = total[starts[user]] + generator.random(len(user))
        entry = np.searchsorted(total, point, side="right") - 1
        inside = (entry < starts[user + 1]) & (entry >= starts[user])
        item = np.empty(len(user), np.int64)
        item[inside] = self._of_category(categories.category[entry[inside]], generator)
        rest = np.flatnonzero(~inside)
        while len(rest):  # those of the user's own categories are drawn again
            item[rest] = inverse(np.cumsum(self.outside), generator.random(len(rest)))
            rest = rest[categories.entry(user[rest], item[rest]) >= 0]
        return item

    def _of_category(self, wanted: Longs, generator: np.random.Generator) -> Longs:
        order = np.argsort(self.categories.item, kind="stable")
        total = np.cumsum(self.inside[order])
        sizes = np.bincount(self.categories.item, self.inside, self.categories.n_categories)
        first = np.concatenate([[0.0], np.cumsum(sizes)])[wanted]
        at = np.searchsorted(total, first + generator.random(len(wanted)) * sizes[wanted], side="right")
        return np.asarray(order[np.minimum(at, len(order) - 1)])


@dataclass(frozen=True, eq=False)
class Shares:
    """The share of each entry and of everything else, which add up to 1 for each user."""

    entry: Floats
    other: Floats


def fit_category_shares(
    categories: Categories, exposures: Exposures, purchases: Exposures, left_out: int, popularity: Floats
) -> CategoryShares:
    """The shares of all exposures and purchases outside the fold."""
    shown = _Counts.of(categories, exposures, left_out)
    weights = _weights(categories, shown)
    inside, outside = shown.item + INSIDE, weights.other / weights.other.sum()
    inside = inside / np.bincount(categories.item, inside, categories.n_categories)[categories.item]
    expected = weights.shares(categories)
    of_category = np.asarray(np.bincount(categories.item, outside, categories.n_categories), np.float64)
    shares = _shares(categories, shown, expected)
    bought = _shares(categories, _Counts.of(categories, purchases, left_out), expected)
    return CategoryShares(categories, shares, bought, inside, outside, of_category, popularity)


@dataclass(frozen=True, eq=False)
class _Counts:
    """Exposures by user, by entry, and by item: inside the user's categories and outside."""

    user: Floats
    entry: Floats
    item: Floats
    outside: Floats

    @classmethod
    def of(cls, categories: Categories, exposures: Exposures, left_out: int) -> _Counts:
        seen = exposures.fold != left_out
        user = np.repeat(np.arange(exposures.n_users), np.diff(exposures.start))[seen]
        item = exposures.item[seen]
        entry = categories.entry(user, item)
        inside = entry >= 0
        counts = (
            np.bincount(user, minlength=exposures.n_users),
            np.bincount(entry[inside], minlength=len(categories.own)),
            np.bincount(item[inside], minlength=exposures.n_items),
            np.bincount(item[~inside], minlength=exposures.n_items),
        )
        return cls(*(count.astype(np.float64) for count in counts))


@dataclass(frozen=True, eq=False)
class _Weights:
    """Of each category, of each item outside the categories, and the slope of the shop's scores."""

    of_category: Floats
    other: Floats
    slope: float

    def entry(self, categories: Categories) -> Floats:
        return np.asarray(self.of_category[categories.category] * np.exp(self.slope * categories.score))

    def norm(self, categories: Categories) -> Floats:
        """The weight of all that can be shown to each user."""
        outside = np.bincount(categories.item, self.other, categories.n_categories)
        own = np.bincount(categories.user, self.entry(categories) - outside[categories.category], categories.n_users)
        return np.asarray(np.maximum(own + self.other.sum(), 1e-9))

    def shares(self, categories: Categories) -> Floats:
        """The share of each entry that the weights imply."""
        return np.asarray(self.entry(categories) / self.norm(categories)[categories.user])


def _weights(categories: Categories, shown: _Counts) -> _Weights:
    """Those with which the expected exposures of all categories and items agree with the seen ones."""
    of_category = np.bincount(categories.item, shown.item, categories.n_categories) + INSIDE
    total = of_category.sum()
    weights = _Weights(of_category / total, (shown.outside + OUTSIDE) / total, 0.0)
    for _ in range(ROUNDS):
        rate = shown.user / weights.norm(categories)
        lift = np.exp(weights.slope * categories.score)
        there = np.bincount(categories.category, rate[categories.user] * lift, categories.n_categories)
        own = np.bincount(categories.category, rate[categories.user], categories.n_categories)
        weight = of_category / (there + INSIDE)
        other = (shown.outside + OUTSIDE) / np.maximum(rate.sum() - own[categories.item], INSIDE)
        size = weight.sum()
        weights = _Weights(weight / size, other / size, weights.slope)
        weights = replace(weights, slope=weights.slope + _step(categories, shown, weights))
    return weights


def _step(categories: Categories, shown: _Counts, weights: _Weights) -> float:
    """Newton's, for the slope of the scores in the multinomial likelihood of the entries."""
    share, total = weights.shares(categories), shown.user
    mean = np.bincount(categories.user, share * categories.score, categories.n_users)
    square = np.bincount(categories.user, share * categories.score**2, categories.n_users)
    gradient = float((shown.entry - total[categories.user] * share) @ categories.score)
    curvature = float(total @ (square - mean**2))
    return float(np.clip(gradient / curvature, -1.0, 1.0)) if curvature > 1e-9 else 0.0


def _shares(categories: Categories, shown: _Counts, expected: Floats) -> Shares:
    total = shown.user[categories.user]
    strength = _strength(shown.entry, total, expected)
    entry = (shown.entry + strength * expected) / (total + strength)
    own = np.bincount(categories.user, entry, categories.n_users)
    return Shares(entry, np.maximum(1.0 - own, 1e-9))


def _strength(count: Floats, total: Floats, expected: Floats) -> float:
    """A, by moments: the variance of a count is n q (1−q) (n + A) / (1 + A)."""
    spread = expected * (1.0 - expected)
    extra = float(((count - total * expected) ** 2 - total * spread).sum())
    most = float((total * (total - 1.0) * spread).sum())
    return float(np.clip(most / extra - 1.0, MIN_STRENGTH, MAX_STRENGTH)) if extra > 0 else MAX_STRENGTH
