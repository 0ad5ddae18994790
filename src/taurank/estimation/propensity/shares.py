"""Which items users are shown: shares learned from exposures, or those of the categories that a user can be shown.

**Learned.** The items shown to user u are taken as draws from Σ_k θ_uk φ_ki, where Σ_k θ_uk = 1 and Σ_i φ_ki = 1 (the
aspect model). Component 0 is the popularity of the items, for everyone. Expectation maximization visits every
exposure once per sweep and never an absent cell. A user's mixture is shrunk toward the average mixture, a component
toward popularity. Sums are made in a fixed order, by blocks of users that do not depend on the number of threads.

**Categories.** What is shown to user u comes from a category c of the user's own, by the share s_uc of it, and from
items of the category by φ_i, shared by all users; a few items (bestsellers, say) are shown outside these categories
as well. A share is the posterior mean of a multinomial one: a Dirichlet prior of A pseudo-exposures, estimated from
how much users differ, around the share that the weights of the user's categories imply. Where the shop has a score
for each of a user's categories, a category weighs w_c·exp(β·score), β estimated with the weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from taurank._jit import compiled, dot32
from taurank._threads import map_blocks
from taurank._types import Bits, Codes, Floats, Floats32, Longs, Mask
from taurank.data.features import UserCategories

PRIOR = 10.0  # pseudo-exposures that shrink a user's mixture
SMOOTHING = 50.0  # and a component
SWEEPS = 25
USER_SWEEPS = 3  # of users alone, the components held fixed
BUYER_SWEEPS = 10
BLOCKS = 8
SEED_USERS = 30  # users whose exposures start a component
SEED_ITEMS = 10  # seed items to choose from
BLOCK = 1 << 15
ROUNDS = 20  # of the weights of categories
INSIDE, OUTSIDE = 0.5, 0.05  # pseudo-exposures of an item inside a user's categories, and outside
MIN_STRENGTH, MAX_STRENGTH = 1.0, 1000.0  # of A


class Exposures(NamedTuple):
    """Who was shown what, grouped by user, with the fold of every exposure."""

    start: Longs  # of each user, users + 1
    item: Codes
    fold: Bits
    n_items: int

    @classmethod
    def from_rows(cls, n_users: int, n_items: int, user: Codes, item: Codes, fold: Bits) -> Exposures:
        order = np.argsort(user, kind="stable")
        start = np.concatenate([[0], np.cumsum(np.bincount(user, minlength=n_users))])
        return cls(start, item[order], fold[order], n_items)


@dataclass(frozen=True, eq=False)
class Mixture:
    """θ (users × components), φ (items × components) and the popularity of the items, which adds up to 1.

    ``buyer`` is the mixture of the items a user bought, of the same components.
    """

    user: Any
    buyer: Any
    item: Any
    popularity: Floats

    @classmethod
    def from_popularity(cls, n_users: int, popularity: Floats) -> Mixture:
        """The same shares of items for all users."""
        return cls(np.ones((n_users, 1)), np.ones((n_users, 1)), popularity[:, None], popularity)

    def chance(self, user: Any, item: Any, bought: bool = False) -> Floats:
        """P(this item | something is shown to this user), or with ``bought`` that of what the user bought."""
        theta, result = self.buyer if bought else self.user, np.empty(len(user))
        for start in range(0, len(result), BLOCK):
            rows = slice(start, start + BLOCK)
            result[rows] = np.einsum("nk,nk->n", theta[user[rows]], self.item[item[rows]])
        return result

    def draw(self, user: Longs, generator: np.random.Generator) -> Longs:
        """An item for each user, by ``chance``: a component by the user's mixture, an item by the component."""
        component = np.zeros(len(user), np.int64)
        if self.item.shape[1] > 1:
            mixture = np.cumsum(self.user[user], axis=1, dtype=np.float64)
            component = (mixture < (generator.random(len(user)) * mixture[:, -1])[:, None]).sum(axis=1)
        item, chance = np.empty(len(user), np.int64), generator.random(len(user))
        for k in range(self.item.shape[1]):
            rows = np.flatnonzero(component == k)
            item[rows] = inverse(np.cumsum(self.item[:, k], dtype=np.float64), chance[rows])
        return item


def inverse(cumulated: Floats, chance: Floats) -> Longs:
    """Positions with probabilities proportional to the steps of ``cumulated``."""
    position = np.searchsorted(cumulated, chance * cumulated[-1], side="right")
    return np.asarray(np.minimum(position, len(cumulated) - 1))


def fit_mixture(
    exposures: Exposures,
    purchases: Exposures,
    left_out: int,
    components: int,
    generator: np.random.Generator,
    threads: int | None = None,
) -> Mixture:
    """The mixture of all exposures and purchases outside the fold; exposures alone make the components."""
    n_users, seen = len(exposures.start) - 1, exposures.fold != left_out
    counts = np.bincount(exposures.item[seen], minlength=exposures.n_items) + 0.5
    popularity = counts / counts.sum()
    phi = _first_components(exposures, seen, popularity, components, generator)
    theta = np.full((n_users, components), 1.0 / components, np.float32)
    prior = np.full(components, 1.0 / components, np.float32)
    for _ in range(SWEEPS):
        expected = _sweep(exposures, left_out, prior, theta, phi, threads)
        weight = expected.sum(axis=0)
        prior = (weight / weight.sum()).astype(np.float32)
        shares = expected + SMOOTHING * popularity[:, None]
        shares /= shares.sum(axis=0)
        shares[:, 0] = popularity
        phi = shares.astype(np.float32)
    for _ in range(USER_SWEEPS):
        _sweep(exposures, left_out, prior, theta, phi, threads)
    buyer = np.tile(prior, (n_users, 1))
    for _ in range(BUYER_SWEEPS):
        _sweep(purchases, left_out, prior, buyer, phi, threads)
    return Mixture(theta, buyer, phi, popularity)


def _first_components(
    exposures: Exposures, seen: Mask, popularity: Floats, components: int, generator: np.random.Generator
) -> Floats32:
    """What else is shown to users who are shown a seed item; seeds that no component explains yet come first."""
    entries, start = np.flatnonzero(seen), exposures.start
    item, user = exposures.item[entries], np.repeat(np.arange(len(start) - 1), np.diff(start))[entries]
    by_item = np.argsort(item, kind="stable")
    first = np.concatenate([[0], np.cumsum(np.bincount(item, minlength=exposures.n_items))])
    phi = np.tile(popularity[:, None], components)
    for k in range(1, components):
        seeds = item[generator.integers(0, len(entries), SEED_ITEMS)]
        explained = (phi[seeds, :k] / popularity[seeds, None]).max(axis=1)
        seed = seeds[explained.argmin()]
        users = generator.permutation(user[by_item[first[seed] : first[seed + 1]]])[:SEED_USERS]
        rows = np.concatenate([np.arange(start[u], start[u + 1]) for u in users])
        counts = np.bincount(exposures.item[rows[seen[rows]]], minlength=exposures.n_items)
        phi[:, k] = counts + SMOOTHING * popularity
        phi[:, k] /= phi[:, k].sum()
    return phi.astype(np.float32)


def _sweep(
    exposures: Exposures, left_out: int, prior: Floats32, theta: Floats32, phi: Floats32, threads: int | None
) -> Floats:
    """One step of expectation maximization: θ is renewed in place, the expected counts of φ are returned."""
    edges = [len(theta) * block // BLOCKS for block in range(BLOCKS + 1)]
    counts = np.zeros((BLOCKS, *phi.shape), np.float32)

    def work(begin: int, end: int) -> None:
        for block in range(begin, end):
            users = (edges[block], edges[block + 1])
            _expect(*exposures[:3], left_out, prior, np.float32(PRIOR), theta, phi, *users, counts[block])

    map_blocks(work, BLOCKS, threads)
    return np.asarray(counts.sum(axis=0, dtype=np.float64))


@compiled
def _expect(
    start: Any, item: Any, fold: Any, left_out: int, prior: Any, strength: Any, theta: Any, phi: Any, begin: int,
    end: int, counts: Any,
) -> None:  # fmt: skip
    components = theta.shape[1]
    own = np.empty(components, np.float32)
    for user in range(begin, end):
        own[:] = strength * prior
        n = strength
        for entry in range(start[user], start[user + 1]):
            if fold[entry] == left_out:
                continue
            i = item[entry]
            scale = np.float32(1.0) / dot32(theta[user], phi[i])
            for k in range(components):
                share = theta[user, k] * phi[i, k] * scale
                own[k] += share
                counts[i, k] += share
            n += np.float32(1.0)
        for k in range(components):
            theta[user, k] = own[k] / n


class Categories:
    """The categories of each user and of each item. An entry is a pair of a user and one of the user's categories."""

    def __init__(self, n_users: int, given: UserCategories) -> None:
        self.n_users, self.item = n_users, given.item
        self.count = int(max(np.max(given.category, initial=0), np.max(given.item, initial=0))) + 1
        self.number, first = np.unique(given.user * self.count + given.category, return_index=True)
        self.user, self.category = np.divmod(self.number, self.count)
        self.score = given.score[first]  # of each entry; 0 without one

    def entry(self, user: Any, item: Any) -> Longs:
        """The entry of the user and the item's category; −1 for none."""
        number = np.asarray(user, np.int64) * self.count + self.item[item]
        if not len(self.number):
            return np.full(len(number), -1)
        at = np.minimum(np.searchsorted(self.number, number), len(self.number) - 1)
        return np.where(self.number[at] == number, at, -1)

    def by_user(self, values: Floats) -> Floats:
        """Sums of entries."""
        return np.asarray(np.bincount(self.user, values, self.n_users))

    def of_items(self, values: Floats) -> Floats:
        """Sums of items by category."""
        return np.asarray(np.bincount(self.item, values, self.count))


@dataclass(frozen=True, eq=False)
class CategoryShares:
    """Shares of users and items from all folds but one; like ``Mixture``, with categories instead of components."""

    categories: Categories
    entry: tuple[Floats, Floats]  # share of each entry, of what is shown and of what is bought
    other: tuple[Floats, Floats]  # of each user: of everything else, over its own part of ``outside``
    inside: Floats  # φ: of its category, for each item
    outside: Floats  # of what is shown outside the categories, for each item
    popularity: Floats

    def chance(self, user: Any, item: Any, bought: bool = False) -> Floats:
        """As for ``Mixture``."""
        at = self.categories.entry(user, item)
        inside = self.entry[bought][at] * self.inside[item] if len(self.entry[bought]) else 0.0
        return np.asarray(np.where(at >= 0, inside, self.other[bought][user] * self.outside[item]))

    def draw(self, user: Longs, generator: np.random.Generator) -> Longs:
        """An item for each user, by ``chance``."""
        own = self.categories
        starts = np.searchsorted(own.user, np.arange(own.n_users + 1))
        total = np.concatenate([[0.0], np.cumsum(self.entry[0])])
        entry = np.searchsorted(total, total[starts[user]] + generator.random(len(user)), side="right") - 1
        inside = (entry < starts[user + 1]) & (entry >= starts[user])
        item, rest = np.empty(len(user), np.int64), np.flatnonzero(~inside)
        category, order = own.category[entry[inside]], np.argsort(own.item, kind="stable")
        sizes, total = own.of_items(self.inside), np.cumsum(self.inside[order])
        first = np.concatenate([[0.0], np.cumsum(sizes)])[category]
        at = np.searchsorted(total, first + generator.random(len(category)) * sizes[category], side="right")
        item[inside] = order[np.minimum(at, len(order) - 1)]
        while len(rest):  # those of the user's own categories are drawn again
            item[rest] = inverse(np.cumsum(self.outside), generator.random(len(rest)))
            rest = rest[own.entry(user[rest], item[rest]) >= 0]
        return item


def fit_category_shares(
    own: Categories, exposures: Exposures, purchases: Exposures, left_out: int, popularity: Floats
) -> CategoryShares:
    """The shares of all exposures and purchases outside the fold."""
    shown, bought = (_Counts.of(own, events, left_out) for events in (exposures, purchases))
    expected, outside = _implied_shares(own, shown)
    inside = shown.inside + INSIDE
    outside = outside / outside.sum()
    rest = np.maximum(1.0 - own.by_user(own.of_items(outside)[own.category]), 1e-9)
    shares = []
    for counts in (shown, bought):
        total = counts.user[own.user]
        strength = _strength(counts.entry, total, expected)
        shares.append((counts.entry + strength * expected) / (total + strength))
    other = [np.maximum(1.0 - own.by_user(share), 1e-9) / rest for share in shares]
    inside = inside / own.of_items(inside)[own.item]
    return CategoryShares(own, (shares[0], shares[1]), (other[0], other[1]), inside, outside, popularity)


class _Counts(NamedTuple):
    """Exposures by user, by entry, and by item: inside the user's categories and outside."""

    user: Floats
    entry: Floats
    inside: Floats
    outside: Floats

    @classmethod
    def of(cls, own: Categories, exposures: Exposures, left_out: int) -> _Counts:
        seen = exposures.fold != left_out
        user, item = np.repeat(np.arange(own.n_users), np.diff(exposures.start))[seen], exposures.item[seen]
        entry = own.entry(user, item)
        inside, n_items = entry >= 0, exposures.n_items
        codes = (
            (user, own.n_users),
            (entry[inside], len(own.number)),
            (item[inside], n_items),
            (item[~inside], n_items),
        )
        return cls(*(np.bincount(code, minlength=n).astype(np.float64) for code, n in codes))


def _implied_shares(own: Categories, shown: _Counts) -> tuple[Floats, Floats]:
    """The share of each entry by the weights of categories, and the weight of each item outside them.

    Weights are those with which the expected exposures of all categories and items agree with the seen ones; the
    slope β of the scores maximizes the multinomial likelihood of the entries.
    """
    of_category, outside, slope = own.of_items(shown.inside) + INSIDE, shown.outside + OUTSIDE, 0.0
    weight, other = of_category / of_category.sum(), outside / of_category.sum()

    def norm_and_shares() -> tuple[Floats, Floats]:
        """The weight of all that can be shown to each user, and the share of each entry in it."""
        entry = weight[own.category] * np.exp(slope * own.score)
        norm = np.maximum(own.by_user(entry - own.of_items(other)[own.category]) + other.sum(), 1e-9)
        return norm, entry / norm[own.user]

    for _ in range(ROUNDS):
        rate = shown.user / norm_and_shares()[0]
        there, plain = (
            np.bincount(own.category, rate[own.user] * lift, own.count)
            for lift in (np.exp(slope * own.score), np.ones_like(own.score))
        )
        weight = of_category / (there + INSIDE)
        other = outside / np.maximum(rate.sum() - plain[own.item], INSIDE)
        weight, other = weight / weight.sum(), other / weight.sum()
        share = norm_and_shares()[1]
        mean, square = (own.by_user(share * own.score**power) for power in (1, 2))
        curvature = float(shown.user @ (square - mean**2))
        if curvature > 1e-9:
            gradient = float((shown.entry - shown.user[own.user] * share) @ own.score)
            slope += float(np.clip(gradient / curvature, -1.0, 1.0))
    return norm_and_shares()[1], other


def _strength(count: Floats, total: Floats, expected: Floats) -> float:
    """A, by moments: the variance of a count is n q (1−q) (n + A) / (1 + A)."""
    spread = expected * (1.0 - expected)
    extra = float(((count - total * expected) ** 2 - total * spread).sum())
    most = float((total * (total - 1.0) * spread).sum())
    return float(np.clip(most / extra - 1.0, MIN_STRENGTH, MAX_STRENGTH)) if extra > 0 else MAX_STRENGTH
