"""Which prior of counts, and how much weight for it beside taste: what best predicts the held-out last time.

Priors are fitted to all times but the last. Those of counts are compared by the likelihood of the last time's cells,
absent ones included. Their effects τ_k (k: counts, taste) are then weighted by the regression of what happened,

    y = a_0 + Σ_k a_k μ̂^C_k + z (b + Σ_k w_k τ̂_k) + error,

with the inverse variance of y as its weight and a pull to equal weights. Taste that predicts clearly worse is left
out. A treated cell beside an untreated one that the priors take for alike tells how large effects are, so the weights
w also calibrate the scores: they shrink those that promise too much. Neither truth nor inverse propensities are used.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import numpy as np

from taurank._arrays import row_order
from taurank._types import Bits, Codes, Floats, Mask
from taurank.data.log import Log
from taurank.learners.empirical_bayes.counted import EDGES, SHAPES, CountPrior, Groups, Shapes, item_rates
from taurank.learners.empirical_bayes.latent import NOTHING_KNOWN, Covariates
from taurank.learners.pairs import Pairs, count

PRIORS = (*EDGES, "taste")
STRENGTHS = (3.0, 300.0)  # of the pull toward the cluster, in pairs
PULL_LEVELS, PULL_EFFECTS = 1.0, 100.0  # toward equal weights
CELLS = 4_000_000  # that are scored: those of every n-th user
USERS_AT_ONCE = 256
TINY = 1e-12  # a likelihood that is zero to rounding
LEAST_VARIANCE = 0.002


class Prior(Protocol):
    def moments(self, users: Codes) -> Floats:
        """E[μ^T], E[μ^C] and E[(μ^T − μ^C)²] of all items of these users: 3 × users × items."""


@dataclass(frozen=True)
class Setting:
    """The name of a prior, and the strength of one of counts, in pairs."""

    prior: str
    strength: float


def fit_counts(
    setting: Setting, pairs: Pairs, covariates: Covariates, threads: int | None = 1, shapes: Shapes = SHAPES
) -> CountPrior:
    """A prior of these counts, from which the posterior of every pair follows."""
    groups, item_rate = Groups.of(pairs, setting.prior), item_rates(pairs, covariates.items)
    return CountPrior.fit(pairs, groups, item_rate, setting.strength, threads, shapes)


def choose(
    held_out: HeldOut, priors: Sequence[str], strength: float | None, covariates: Covariates, threads: int | None = 1
) -> tuple[dict[Setting, float], CountPrior]:
    """The log-likelihood of the held-out cells under every setting that was tried, and the prior of the best.

    Groups are compared at their usual strength, then the best of them is tried at others.
    """
    # one clustering is enough; a fine one, because items whose cluster fits them badly rely on their own
    # pairs, and the choice would overrate these
    usual = (Setting(prior, strength or STRENGTHS[1]) for prior in priors)
    fitted = {each: fit_counts(each, held_out.pairs, covariates, threads, SHAPES[-1:]) for each in usual}
    scores = {setting: log_likelihood(prior, held_out) for setting, prior in fitted.items()}
    first = max(scores, key=scores.__getitem__)
    for other in () if strength else (replace(first, strength=each) for each in STRENGTHS):
        if other != first:
            fitted[other] = replace(fitted[first], strength=other.strength)
            scores[other] = log_likelihood(fitted[other], held_out)
    return scores, fitted[max(scores, key=scores.__getitem__)]


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


def stacking_weights(priors: Sequence[Prior], held_out: HeldOut) -> list[float]:
    """The weights of the effects by these priors."""
    equal = np.full(len(priors), 1.0 / len(priors))
    pull = np.array([PULL_LEVELS] * (1 + len(priors)) + [10 * PULL_EFFECTS] + [PULL_EFFECTS] * len(priors))
    matrix, right = np.diag(pull), pull * np.array([0.0, *equal, 0.0, *equal])
    for block in held_out.blocks():
        z, y = block.treated[block.eligible], block.positive[block.eligible]
        rates = np.stack([prior.moments(block.users)[:2, block.eligible] for prior in priors])
        mean = np.where(z == 1, rates[:, 0], rates[:, 1]).mean(0)
        design = np.stack((np.ones(len(z)), *rates[:, 1], z, *(z * (rates[:, 0] - rates[:, 1]))))
        weighted = design / np.maximum(mean * (1.0 - mean), LEAST_VARIANCE)
        matrix, right = matrix + weighted @ design.T, right + weighted @ y
    return [float(weight) for weight in np.maximum(np.linalg.solve(matrix, right)[-len(priors) :], 0.0)]
