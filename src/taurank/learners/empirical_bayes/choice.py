"""Which prior of counts, and how much weight for it beside taste: what best predicts the held-out last time.

Priors are fitted to all times but the last. Those of counts are compared by the likelihood of the last time's cells,
absent ones included. Their effects τ_k (k: counts, taste) are then weighted by the regression of what happened,

    y = a_0 + Σ_k a_k μ̂^C_k + z (b + Σ_k w_k τ̂_k) + error,

with the inverse variance of y as its weight and a pull to equal weights. Taste that predicts clearly worse is left
out. The highest of many scores promise too much, so a second regression, of the best items of each user alone, says
by which slope their shares are multiplied. Neither truth nor inverse propensities are used.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from taurank._arrays import row_order
from taurank._types import Bits, Codes, Floats, Mask
from taurank.data.log import Log
from taurank.learners.empirical_bayes.latent import NOTHING_KNOWN, Covariates
from taurank.learners.pairs import Pairs, count

PULL_LEVELS, PULL_EFFECTS = 1.0, 100.0  # toward equal weights, and toward a slope of 1
LEAST_SHARE = 0.2  # of the largest weight: what has less is left out
TOP = 20  # items of a user whose scores are to come true
CELLS = 4_000_000  # that are scored: those of every n-th user
USERS_AT_ONCE = 256
TINY = 1e-12  # a likelihood that is zero to rounding
LEAST_VARIANCE = 0.002


class Prior(Protocol):
    def moments(self, users: Codes) -> Floats:
        """E[μ^T], E[μ^C] and E[(μ^T − μ^C)²] of all items of these users: 3 × users × items."""


class Block(NamedTuple):
    """The held-out cells of some users, users × items each; those that are not eligible do not count."""

    users: Codes
    treated: Bits
    positive: Bits
    eligible: Mask


@dataclass(frozen=True)
class HeldOut:
    """The counts without the last time, and its rows."""

    pairs: Pairs
    log: Log

    @classmethod
    def of(cls, log: Log, covariates: Covariates = NOTHING_KNOWN) -> HeldOut:
        last = log.n_times - 1
        return cls(covariates.warm(count(log, last, log.time < last, propensity=True)), log)

    def blocks(self) -> Iterator[Block]:
        """The cells of every n-th user."""
        pairs, log, last = self.pairs, self.log, self.log.n_times - 1
        rows = np.flatnonzero(log.time == last)
        start, order = row_order(log.user[rows], log.n_users)
        sample = np.arange(0, log.n_users, max(1, log.n_users * log.n_items // CELLS)).astype(np.int32)
        for begin in range(0, len(sample), USERS_AT_ONCE):
            users = sample[begin : begin + USERS_AT_ONCE]
            treated, positive = np.zeros((2, len(users), log.n_items), np.int8)
            for at, user in enumerate(users):
                own = rows[order[start[user] : start[user + 1]]]
                treated[at, log.item[own]], positive[at, log.item[own]] = log.treated[own], log.outcome[own]
            if log.eligibility.is_everything:
                eligible = np.outer(pairs.user_cells[users] > 0, pairs.item_cells > 0)
            else:
                eligible = log.eligibility.contains(users[:, None], np.arange(log.n_items), last)
            yield Block(users, treated, positive, eligible)


def log_likelihood(prior: Prior, held_out: HeldOut) -> float:
    """The mean log-likelihood of the held-out cells of all users, or of a sample of them."""
    total, cells = 0.0, 0
    for block in held_out.blocks():
        treated, control, _ = prior.moments(block.users)
        rate = np.where(block.treated == 1, treated, control)
        likelihood = np.where(block.positive == 1, rate, 1.0 - rate)[block.eligible]
        total += float(np.log(np.maximum(likelihood, TINY)).sum())
        cells += likelihood.size
    return total / max(1, cells)


def weights_of_effects(priors: Sequence[Prior], held_out: HeldOut) -> list[float]:
    """The weights of the effects by these priors: their shares by the regression, times the slope at the top."""
    n = len(priors)
    equal = np.full(n, 1.0 / n)
    pull = np.array([PULL_LEVELS] * (1 + n) + [10 * PULL_EFFECTS] + [PULL_EFFECTS] * n)
    shares, total = equal, 1.0
    if n > 1:
        weights = np.maximum(_regress(priors, held_out, pull, np.array([0.0, *equal, 0.0, *equal])), 0.0)
        weights[weights < LEAST_SHARE * weights.max()] = 0.0
        if total := float(weights.sum()):
            shares = weights / total
    pull = np.array([PULL_LEVELS, PULL_LEVELS, PULL_EFFECTS])
    (slope,) = _regress(priors, held_out, pull, np.array([0.0, 1.0, total]), shares)
    return [float(max(slope, 0.0) * share) for share in shares]


def _regress(
    priors: Sequence[Prior], held_out: HeldOut, pull: Floats, toward: Floats, shares: Floats | None = None
) -> Floats:
    """The coefficients of effects; with ``shares`` that of their mean, from the ``TOP`` best items of each user."""
    matrix, right = np.diag(pull), pull * toward
    for block in held_out.blocks():
        rates, cells = np.stack([prior.moments(block.users)[:2] for prior in priors]), block.eligible
        if shares is not None:
            rates = np.tensordot(shares, rates, 1)[None]
            effect = np.where(cells, rates[0, 0] - rates[0, 1], -np.inf)
            cells = cells & (effect >= np.sort(effect, axis=1)[:, -TOP:][:, :1])
        z, y, rates = block.treated[cells], block.positive[cells], rates[:, :, cells]
        mean = np.where(z == 1, rates[:, 0], rates[:, 1]).mean(0)
        effects = z * (rates[:, 0] - rates[:, 1])
        design = np.stack((np.ones(len(z)), *rates[:, 1], *([z] if shares is None else []), *effects))
        weighted = design / np.maximum(mean * (1.0 - mean), LEAST_VARIANCE)
        matrix, right = matrix + weighted @ design.T, right + weighted @ y
    return np.asarray(np.linalg.solve(matrix, right)[-len(rates) :])
