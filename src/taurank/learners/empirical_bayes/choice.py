"""Which prior, and how strong: the one that best predicts what was held out.

Every candidate is fitted to all times but the last, and scored by the likelihood of the last time's cells, absent
ones included: log μ̂^a of a cell that was positive in arm a, log(1 − μ̂^a) of one that was not. No truth and no inverse
propensities are involved.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from taurank._types import Bits, Longs, Mask
from taurank.data.eligibility import Eligibility
from taurank.data.log import Log
from taurank.learners.empirical_bayes.counted import EDGES, SHAPES, CountPrior, Groups, Shapes, blocks, item_rates
from taurank.learners.empirical_bayes.taste import NOTHING_KNOWN, Covariates, TastePrior, fit_taste
from taurank.learners.pairs import Pairs, count

PRIORS = (*EDGES, "taste")
RANK = 16
STRENGTHS = (3.0, 300.0, 30_000.0)  # of the pull toward the cluster, in pairs
TASTE_STRENGTHS = (1.0, 3.0, 10.0)  # shapes of the Gamma prior
SAMPLED_USERS = 4096  # whose cells are scored: enough to choose by, also where users × items are too many to visit
TINY = 1e-300  # a likelihood that is zero to rounding

# what happened in a held-out cell; the cells of absent rows are untreated and negative
NOTHING, TREATED_NEGATIVE, TREATED_POSITIVE, CONTROL_POSITIVE, NOT_HELD_OUT = range(5)

Prior = CountPrior | TastePrior


@dataclass(frozen=True)
class Setting:
    """The name of a prior, its strength (in pairs, or in purchases for taste), and the rank of taste."""

    prior: str
    strength: float
    rank: int = 0


def usual(prior: str, strength: float | None, rank: int | None) -> Setting:
    """The setting of a prior where nothing tells how strong it should be."""
    if prior == "taste":
        return Setting(prior, strength or TASTE_STRENGTHS[0], rank or RANK)
    return Setting(prior, strength or STRENGTHS[1])


def fit_prior(
    setting: Setting, pairs: Pairs, covariates: Covariates, threads: int | None = 1, shapes: Shapes = SHAPES
) -> Prior:
    """A prior of these counts, from which the posterior of every pair follows."""
    if setting.prior == "taste":
        return fit_taste(pairs, setting.rank, setting.strength, threads, covariates)
    groups, item_rate = Groups.of(pairs, setting.prior), item_rates(pairs, covariates.items)
    return CountPrior.fit(pairs, groups, item_rate, setting.strength, threads, shapes)


def choose(
    held_out: HeldOut, priors: Sequence[str], strength: float | None, rank: int | None, covariates: Covariates,
    threads: int | None = 1,
) -> dict[Setting, float]:  # fmt: skip
    """The log-likelihood of the held-out cells under every setting that was tried.

    Groups are compared at their usual strength, then the best of them is tried at others; taste alike.
    """
    scores: dict[Setting, float] = {}
    for names, strengths in ((EDGES, STRENGTHS), (("taste",), TASTE_STRENGTHS)):
        best: tuple[Setting, Prior] | None = None
        for name in (each for each in names if each in priors):
            # one clustering is enough; a fine one, because items whose cluster fits them badly rely on their own
            # pairs, and the choice would overrate these
            setting = usual(name, strength, rank)
            prior = fit_prior(setting, held_out.pairs, covariates, threads, SHAPES[-1:])
            scores[setting] = log_likelihood(prior, held_out)
            if best is None or scores[setting] > scores[best[0]]:
                best = setting, prior
        if best is not None and strength is None:
            others = (replace(best[0], strength=each) for each in strengths if each != best[0].strength)
            scores |= {each: log_likelihood(replace(best[1], strength=each.strength), held_out) for each in others}
    return scores


@dataclass(frozen=True)
class HeldOut:
    """The counts without the last time, and what happened to each pair there."""

    pairs: Pairs
    held: Bits
    eligibility: Eligibility

    @classmethod
    def of(cls, log: Log, covariates: Covariates = NOTHING_KNOWN) -> HeldOut:
        last = log.n_times - 1
        rows = np.flatnonzero(log.time == last)
        pairs = count(log, last, log.time < last, propensity=True)
        code, n_items = pairs.user * np.int64(pairs.n_items) + pairs.item, np.int64(pairs.n_items)
        treated, positive = log.treated[rows], log.outcome[rows]
        held = np.zeros(len(code), np.int8)
        at = np.searchsorted(code, log.user[rows] * n_items + log.item[rows])
        held[at] = np.where(treated == 1, TREATED_NEGATIVE + positive, CONTROL_POSITIVE * positive)
        if not log.eligibility.is_everything:
            held[~log.eligibility.contains(pairs.user, pairs.item, last)] = NOT_HELD_OUT
        return cls(covariates.warm(pairs), held, log.eligibility)

    def absent_blocks(self, users: Longs) -> Iterator[tuple[Longs, Mask]]:
        """Blocks of users, and which of their cells at the held-out time are eligible and of pairs without rows."""
        pairs, items, last = self.pairs, np.arange(self.pairs.n_items), self.pairs.times
        for first in range(0, len(users), 256):
            block = users[first : first + 256]
            if self.eligibility.is_everything:
                mask = np.outer(pairs.user_cells[block] > 0, pairs.item_cells > 0)
            else:
                mask = self.eligibility.contains(block[:, None], items, last)
            for at, user in enumerate(block):
                mask[at, pairs.item[pairs.start[user] : pairs.start[user + 1]]] = False
            yield block, mask


def log_likelihood(prior: Prior, held_out: HeldOut) -> float:
    """The mean log-likelihood of the held-out cells of all users, or of a sample of them."""
    pairs, held = held_out.pairs, held_out.held
    step = max(1, pairs.n_users // SAMPLED_USERS)
    used = (pairs.user % step == 0) & (held != NOT_HELD_OUT)
    total, cells = 0.0, int(np.count_nonzero(used))
    for part in blocks(len(used)):
        treated, control = prior.pair_rates(part)[used[part]].T
        likelihood = np.choose(held[part][used[part]], (1.0 - control, 1.0 - treated, treated, control))
        total += float(np.log(np.maximum(likelihood, TINY)).sum())
    for users, mask in held_out.absent_blocks(np.arange(0, pairs.n_users, step)):
        total += float((mask * np.log1p(-prior.absent_control(users))).sum())
        cells += int(np.count_nonzero(mask))
    return total / max(1, cells)
