"""Exposure tastes where it is known which classes of items a user can be shown: the user's shelves.

What is shown to user u comes from a class c of her shelves, by her share s_uc of it, and from items of the class
by φ_i, which is the same for all her fellow users; a few items (bestsellers, say) are shown outside the shelves as
well. A share is the posterior mean of a multinomial one: a Dirichlet prior of A pseudo-exposures around the share
that the weights of her classes imply. Weights, φ and A are estimated from the exposures outside a fold; A from how
much the shares of users differ. A user who was never shown anything has the share of the prior. Where the shop has a
score of each of a user's shelves, a class weighs w_c·exp(β·score) for her, β estimated with the weights.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from taurank.estimation.propensities.tastes import Exposures, inverse

Longs = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

ROUNDS = 20  # of the weights
INSIDE, OUTSIDE = 0.5, 0.05  # pseudo-exposures of an item on a shelf, and outside
LEAST, MOST = 1.0, 1000.0  # of A


@dataclass(frozen=True, eq=False)
class OwnShelves:
    """The classes of each user, as sorted numbers user · classes + class, and the class of each item."""

    n_users: int
    n_classes: int
    own: Longs
    item: Longs
    score: Floats  # of each slot; 0 without one

    @classmethod
    def of(cls, n_users: int, user: Any, shelf: Any, item: Any, score: Any = None) -> OwnShelves:
        """From pairs of a user and a class, with a score or without, and the class of each item."""
        n_classes = int(max(np.max(shelf, initial=0), np.max(item, initial=0))) + 1
        own, first = np.unique(np.asarray(user, np.int64) * n_classes + shelf, return_index=True)
        scores = np.zeros(len(own)) if score is None else np.asarray(score, np.float64)[first]
        return cls(n_users, n_classes, own, np.asarray(item, np.int64), scores)

    @property
    def user(self) -> Longs:
        return self.own // self.n_classes

    @property
    def shelf(self) -> Longs:
        return self.own % self.n_classes

    def slot(self, user: Any, item: Any) -> Longs:
        """Which of the shelves the item is on for this user; −1 for none."""
        number = np.asarray(user, np.int64) * self.n_classes + self.item[item]
        at = np.minimum(np.searchsorted(self.own, number), max(len(self.own) - 1, 0))
        return np.where(self.own[at] == number, at, -1) if len(self.own) else np.full(len(number), -1)


@dataclass(frozen=True, eq=False)
class ShelfTastes:
    """Shares of users and items from all folds but one; like ``Tastes``, with shelves instead of components."""

    shelves: OwnShelves
    shares: Shares
    bought_shares: Shares
    inside: Floats  # φ: of its class, for each item
    outside: Floats  # of what is shown outside the shelves, for each item
    outside_of_class: Floats  # the same, of the classes
    popularity: Floats

    def chance(self, user: Any, item: Any) -> Floats:
        """P(this item | something is shown to this user)."""
        return self._chance(self.shares, user, item)

    def lift(self, user: Any, item: Any) -> Floats:
        """log of how much likelier the item is for this user than for an average one."""
        return np.asarray(np.log(self.chance(user, item)) - np.log(self.popularity[item]))

    def bought_lift(self, user: Any, item: Any) -> Floats:
        """The same, with the shares of what the user bought."""
        return np.asarray(np.log(self._chance(self.bought_shares, user, item)) - np.log(self.popularity[item]))

    def _chance(self, shares: Shares, user: Any, item: Any) -> Floats:
        slot = self.shelves.slot(user, item)
        other = shares.other[user] * self.outside[item] / self._outside_of_user[user]
        return np.asarray(np.where(slot >= 0, shares.slot[slot] * self.inside[item], other))

    @property
    def _outside_of_user(self) -> Floats:
        """How much of what is shown outside shelves is outside a user's own."""
        own = np.bincount(self.shelves.user, self.outside_of_class[self.shelves.shelf], self.shelves.n_users)
        return np.asarray(np.maximum(1.0 - own, 1e-9))

    def draw(self, user: Longs, generator: np.random.Generator) -> Longs:
        """An item for each user, by ``chance``."""
        shelves = self.shelves
        starts = np.searchsorted(shelves.user, np.arange(shelves.n_users + 1))
        total = np.concatenate([[0.0], np.cumsum(self.shares.slot)])
        point = total[starts[user]] + generator.random(len(user))
        slot = np.searchsorted(total, point, side="right") - 1
        on_shelf = (slot < starts[user + 1]) & (slot >= starts[user])
        item = np.empty(len(user), np.int64)
        item[on_shelf] = self._of_class(shelves.shelf[slot[on_shelf]], generator)
        rest = np.flatnonzero(~on_shelf)
        while len(rest):  # those of the user's own shelves are drawn again
            item[rest] = inverse(np.cumsum(self.outside), generator.random(len(rest)))
            rest = rest[shelves.slot(user[rest], item[rest]) >= 0]
        return item

    def _of_class(self, wanted: Longs, generator: np.random.Generator) -> Longs:
        order = np.argsort(self.shelves.item, kind="stable")
        total = np.cumsum(self.inside[order])
        sizes = np.bincount(self.shelves.item, self.inside, self.shelves.n_classes)
        first = np.concatenate([[0.0], np.cumsum(sizes)])[wanted]
        at = np.searchsorted(total, first + generator.random(len(wanted)) * sizes[wanted], side="right")
        return np.asarray(order[np.minimum(at, len(order) - 1)])


@dataclass(frozen=True, eq=False)
class Shares:
    """The share of each slot (a user's shelf) and of everything else, which add up to 1 for each user."""

    slot: Floats
    other: Floats


def fit_shelf_tastes(
    shelves: OwnShelves, exposures: Exposures, purchases: Exposures, left_out: int, popularity: Floats
) -> ShelfTastes:
    """The tastes of all exposures and purchases outside the fold."""
    shown = _Counts.of(shelves, exposures, left_out)
    weights = _weights(shelves, shown)
    inside, outside = shown.item + INSIDE, weights.other / weights.other.sum()
    inside = inside / np.bincount(shelves.item, inside, shelves.n_classes)[shelves.item]
    expected = weights.shares(shelves)
    of_class = np.asarray(np.bincount(shelves.item, outside, shelves.n_classes), np.float64)
    shares = _shares(shelves, shown, expected)
    bought = _shares(shelves, _Counts.of(shelves, purchases, left_out), expected)
    return ShelfTastes(shelves, shares, bought, inside, outside, of_class, popularity)


@dataclass(frozen=True, eq=False)
class _Counts:
    """Exposures by user, by slot, and by item: on a shelf and outside."""

    user: Floats
    slot: Floats
    item: Floats
    outside: Floats

    @classmethod
    def of(cls, shelves: OwnShelves, exposures: Exposures, left_out: int) -> _Counts:
        seen = exposures.fold != left_out
        user = np.repeat(np.arange(exposures.n_users), np.diff(exposures.start))[seen]
        item = exposures.item[seen]
        slot = shelves.slot(user, item)
        on_shelf = slot >= 0
        counts = (
            np.bincount(user, minlength=exposures.n_users),
            np.bincount(slot[on_shelf], minlength=len(shelves.own)),
            np.bincount(item[on_shelf], minlength=exposures.n_items),
            np.bincount(item[~on_shelf], minlength=exposures.n_items),
        )
        return cls(*(count.astype(np.float64) for count in counts))


@dataclass(frozen=True, eq=False)
class _Weights:
    """Of each class, of each item outside the shelves, and the slope of the shop's scores."""

    of_class: Floats
    other: Floats
    slope: float

    def slot(self, shelves: OwnShelves) -> Floats:
        return np.asarray(self.of_class[shelves.shelf] * np.exp(self.slope * shelves.score))

    def norm(self, shelves: OwnShelves) -> Floats:
        """The weight of all that can be shown to each user."""
        outside = np.bincount(shelves.item, self.other, shelves.n_classes)
        own = np.bincount(shelves.user, self.slot(shelves) - outside[shelves.shelf], shelves.n_users)
        return np.asarray(np.maximum(own + self.other.sum(), 1e-9))

    def shares(self, shelves: OwnShelves) -> Floats:
        """The share of each slot that the weights imply."""
        return np.asarray(self.slot(shelves) / self.norm(shelves)[shelves.user])


def _weights(shelves: OwnShelves, shown: _Counts) -> _Weights:
    """Those with which the expected exposures of all classes and items agree with the seen ones."""
    of_class = np.bincount(shelves.item, shown.item, shelves.n_classes) + INSIDE
    total = of_class.sum()
    weights = _Weights(of_class / total, (shown.outside + OUTSIDE) / total, 0.0)
    for _ in range(ROUNDS):
        rate = shown.user / weights.norm(shelves)
        lift = np.exp(weights.slope * shelves.score)
        there = np.bincount(shelves.shelf, rate[shelves.user] * lift, shelves.n_classes)
        own = np.bincount(shelves.shelf, rate[shelves.user], shelves.n_classes)
        classes = of_class / (there + INSIDE)
        other = (shown.outside + OUTSIDE) / np.maximum(rate.sum() - own[shelves.item], INSIDE)
        size = classes.sum()
        weights = _Weights(classes / size, other / size, weights.slope)
        weights = replace(weights, slope=weights.slope + _step(shelves, shown, weights))
    return weights


def _step(shelves: OwnShelves, shown: _Counts, weights: _Weights) -> float:
    """Newton's, for the slope of the scores in the multinomial likelihood of the slots."""
    share, total = weights.shares(shelves), shown.user
    mean = np.bincount(shelves.user, share * shelves.score, shelves.n_users)
    square = np.bincount(shelves.user, share * shelves.score**2, shelves.n_users)
    gradient = float((shown.slot - total[shelves.user] * share) @ shelves.score)
    curvature = float(total @ (square - mean**2))
    return float(np.clip(gradient / curvature, -1.0, 1.0)) if curvature > 1e-9 else 0.0


def _shares(shelves: OwnShelves, shown: _Counts, expected: Floats) -> Shares:
    total = shown.user[shelves.user]
    strength = _strength(shown.slot, total, expected)
    slot = (shown.slot + strength * expected) / (total + strength)
    own = np.bincount(shelves.user, slot, shelves.n_users)
    return Shares(slot, np.maximum(1.0 - own, 1e-9))


def _strength(count: Floats, total: Floats, expected: Floats) -> float:
    """A, by moments: the variance of a count is n q (1−q) (n + A) / (1 + A)."""
    spread = expected * (1.0 - expected)
    extra = float(((count - total * expected) ** 2 - total * spread).sum())
    most = float((total * (total - 1.0) * spread).sum())
    return float(np.clip(most / extra - 1.0, LEAST, MOST)) if extra > 0 else MOST
