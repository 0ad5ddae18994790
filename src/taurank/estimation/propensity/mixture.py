"""Which items users are shown, learned from exposures: a mixture of a few distributions over items.

The items shown to user u are taken as draws from Σ_k θ_uk φ_ki, where Σ_k θ_uk = 1 and Σ_i φ_ki = 1 (the aspect
model; as rates, a Poisson factorization). Component 0 is the popularity of the items, for everyone. Expectation
maximization visits every exposure once per sweep and never an absent cell: the sum of the rates over all cells is
known. A user's mixture is shrunk toward the average mixture by PRIOR pseudo-exposures, a component toward popularity
by SMOOTHING ones.

All sums are made in a fixed order, by blocks of users that do not depend on the number of threads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from taurank._jit import compiled, vectorized
from taurank._threads import map_blocks
from taurank._types import Bits, Codes, Floats, Floats32, Longs, Mask
from taurank.estimation.propensity.cells import ItemShares, inverse

PRIOR = 10.0
SMOOTHING = 50.0
SWEEPS = 25
USER_SWEEPS = 3  # of users alone, the components held fixed
BUYER_SWEEPS = 10
BLOCKS = 8
SEED_USERS = 30  # users whose exposures start a component
SEED_ITEMS = 10  # seed items to choose from
BLOCK = 1 << 15


@dataclass(frozen=True, eq=False)
class Exposures:
    """Who was shown what, grouped by user, with the fold of every exposure."""

    n_users: int
    n_items: int
    start: Longs  # of each user, n_users + 1
    item: Codes
    fold: Bits

    @classmethod
    def from_rows(cls, n_users: int, n_items: int, user: Codes, item: Codes, fold: Bits) -> Exposures:
        order = np.argsort(user, kind="stable")
        start = np.concatenate([[0], np.cumsum(np.bincount(user, minlength=n_users))])
        return cls(n_users, n_items, start, item[order], fold[order])


@dataclass(frozen=True, eq=False)
class Mixture(ItemShares):
    """θ (users × components), φ (items × components) and the popularity of the items, from all folds but one.

    ``buyer`` is the mixture of the items a user bought, of the same components.
    """

    user: Floats32
    buyer: Floats32
    item: Floats32
    popularity: Floats

    @property
    def size(self) -> str:
        return f"{self.user.shape[1]} components"

    def chance(self, user: Any, item: Any, bought: bool = False) -> Floats:
        theta, result = self.buyer if bought else self.user, np.empty(len(user))
        for start in range(0, len(result), BLOCK):
            rows = slice(start, start + BLOCK)
            result[rows] = np.einsum("nk,nk->n", theta[user[rows]], self.item[item[rows]])
        return result

    def draw(self, user: Longs, generator: np.random.Generator) -> Longs:
        """An item for each user: a component by the user's mixture, an item by the component."""
        mixture = np.cumsum(self.user[user], axis=1, dtype=np.float64)
        component = (mixture < (generator.random(len(user)) * mixture[:, -1])[:, None]).sum(axis=1)
        item, chance = np.empty(len(user), np.int64), generator.random(len(user))
        for k in range(self.item.shape[1]):
            rows = np.flatnonzero(component == k)
            item[rows] = inverse(np.cumsum(self.item[:, k], dtype=np.float64), chance[rows])
        return item


def fit_mixture(
    exposures: Exposures,
    purchases: Exposures,
    left_out: int,
    components: int,
    generator: np.random.Generator,
    threads: int | None = None,
) -> Mixture:
    """The mixture of all exposures and purchases outside the fold; exposures alone make the components."""
    seen = exposures.fold != left_out
    counts = np.bincount(exposures.item[seen], minlength=exposures.n_items)
    popularity = (counts + 0.5) / (counts + 0.5).sum()
    phi = _first_components(exposures, seen, popularity, components, generator)
    theta = np.full((exposures.n_users, components), 1.0 / components, np.float32)
    prior = np.full(components, 1.0 / components, np.float32)
    for _ in range(SWEEPS):
        found = _sweep(exposures, left_out, prior, theta, phi, threads)
        weight = found.sum(axis=0)
        prior = (weight / weight.sum()).astype(np.float32)
        shares = found + SMOOTHING * popularity[:, None]
        shares /= shares.sum(axis=0)
        shares[:, 0] = popularity
        phi = shares.astype(np.float32)
    for _ in range(USER_SWEEPS):
        _sweep(exposures, left_out, prior, theta, phi, threads)
    buyer = np.tile(prior, (exposures.n_users, 1))
    for _ in range(BUYER_SWEEPS):
        _sweep(purchases, left_out, prior, buyer, phi, threads)
    return Mixture(theta, buyer, phi, popularity)


def _first_components(
    exposures: Exposures,
    seen: Mask,
    popularity: Floats,
    components: int,
    generator: np.random.Generator,
) -> Floats32:
    """What else is shown to users who are shown a seed item; seeds that no component explains yet go first."""
    entries = np.flatnonzero(seen)
    user = np.repeat(np.arange(exposures.n_users), np.diff(exposures.start))[entries]
    by_item = np.argsort(exposures.item[entries], kind="stable")
    start = np.concatenate([[0], np.cumsum(np.bincount(exposures.item[entries], minlength=exposures.n_items))])
    phi = np.tile(popularity[:, None], components)
    for k in range(1, components):
        seeds = exposures.item[entries[generator.integers(0, len(entries), SEED_ITEMS)]]
        explained = (phi[seeds, :k] / popularity[seeds, None]).max(axis=1)
        seed = seeds[explained.argmin()]
        found = generator.permutation(user[by_item[start[seed] : start[seed + 1]]])[:SEED_USERS]
        shown = np.concatenate([np.arange(exposures.start[u], exposures.start[u + 1]) for u in found])
        counts = np.bincount(exposures.item[shown[seen[shown]]], minlength=exposures.n_items)
        phi[:, k] = counts + SMOOTHING * popularity
        phi[:, k] /= phi[:, k].sum()
    return phi.astype(np.float32)


def _sweep(
    exposures: Exposures, left_out: int, prior: Floats32, theta: Floats32, phi: Floats32, threads: int | None
) -> Floats:
    """One step of expectation maximization: θ is renewed in place, the expected counts of φ are returned."""
    edges = [exposures.n_users * block // BLOCKS for block in range(BLOCKS + 1)]
    counts = np.zeros((BLOCKS, *phi.shape), np.float32)

    def work(begin: int, end: int) -> None:
        for block in range(begin, end):
            users = (edges[block], edges[block + 1])
            _expect(
                exposures.start, exposures.item, exposures.fold, left_out, prior, np.float32(PRIOR), theta, phi,
                *users, counts[block],
            )  # fmt: skip

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
            scale = np.float32(1.0) / _dot(theta[user], phi[i])
            for k in range(components):
                share = theta[user, k] * phi[i, k] * scale
                own[k] += share
                counts[i, k] += share
            n += np.float32(1.0)
        for k in range(components):
            theta[user, k] = own[k] / n


@vectorized
def _dot(a: Any, b: Any) -> Any:
    total = np.float32(0.0)
    for k in range(len(a)):
        total += a[k] * b[k]
    return total
