"""Intervals that are valid at any time one looks, and a sample-ratio test of the same kind.

A fixed-time interval is wrong for somebody who looks every day and stops when it pleases. Here the interval is

    m_t ± √((I + λ) · log((I + λ) / (λ α²))) / I,    I = 1 / Var(m_t),

Robbins' normal mixture in information time. The errors of means over growing data have independent increments
in I, also if the same users come back in every period (their variance is then clustered by user), so the errors
behave like a Brownian motion W(I)/I, and |W(v)| stays below √((v + λ) log((v + λ)/(λ α²))) at all v with
probability at least 1 − α. The statement is asymptotic: it needs enough users at the first look.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import gammaln

from taurank._types import Floats, Longs, Mask

ALPHA = 0.05
# λ in units of the first look's information: tightest at about thirty times that, and wide at the first looks,
# where the normal approximation of skewed outcomes is at its worst; chosen with the two numbers below by simulation
MIXTURE = 4.0
MIN_USERS = 100  # per arm, at the first look
MIN_ACTIVE = 30  # of them with an outcome that is not 0
MIN_VALUED = 100  # the same for values, whose tails are longer; by simulation with log-normal ones up to σ = 2


@dataclass(frozen=True)
class Means:
    """Means per visit up to the end of each period, with variances clustered by user."""

    mean: Floats
    variance: Floats
    users: Longs
    active: Longs  # users with any outcome so far

    @property
    def enough(self) -> Mask:
        return np.asarray((self.users >= MIN_USERS) & (self.active >= MIN_ACTIVE) & (self.variance > 0))


@dataclass(frozen=True)
class ConfidenceSequence:
    """One interval per period; infinite bounds before the first look."""

    estimate: Floats
    low: Floats
    high: Floats

    @property
    def last(self) -> tuple[float, float, float]:
        """Estimate, low and high at the end of the last period."""
        if not len(self.estimate):
            return math.nan, -math.inf, math.inf
        return float(self.estimate[-1]), float(self.low[-1]), float(self.high[-1])


def running_means(user: Longs, period: Longs, value: Floats, n_periods: int) -> Means:
    """Σ value / visits up to each period 0 … n_periods − 1, for rows with codes of users and periods.

    The variance of the ratio is Σ_u (S_u − m·n_u)² / N² · G/(G − 1), with user u's sum S_u and visits n_u.
    """
    n_users = int(user.max(initial=-1)) + 1
    total, visits, any_outcome = np.zeros(n_users), np.zeros(n_users), np.zeros(n_users, np.bool_)
    order = np.argsort(period, kind="stable")
    edges = np.searchsorted(period[order], np.arange(n_periods + 1))
    mean, variance = np.full(n_periods, math.nan), np.full(n_periods, math.inf)
    users, active = np.zeros(n_periods, np.int64), np.zeros(n_periods, np.int64)
    for number in range(n_periods):
        rows = order[edges[number] : edges[number + 1]]
        np.add.at(total, user[rows], value[rows])
        np.add.at(visits, user[rows], 1.0)
        any_outcome[user[rows][value[rows] != 0]] = True
        users[number], active[number] = np.count_nonzero(visits), np.count_nonzero(any_outcome)
        if users[number] >= 2:
            n, clusters = visits.sum(), int(users[number])
            mean[number] = total.sum() / n
            spread = ((total - mean[number] * visits) ** 2).sum()
            variance[number] = spread / n**2 * clusters / (clusters - 1)
    return Means(mean, variance, users, active)


def one_arm(means: Means, alpha: float = ALPHA) -> ConfidenceSequence:
    """The confidence sequence of one mean."""
    return from_variance(means.mean, means.variance, means.enough, alpha)


def difference(first: Means, second: Means, alpha: float = ALPHA, min_active: int = MIN_ACTIVE) -> ConfidenceSequence:
    """The confidence sequence of first − second; the two have no user in common."""
    variance = first.variance + second.variance
    enough = first.enough & second.enough & (np.minimum(first.active, second.active) >= min_active)
    return from_variance(first.mean - second.mean, variance, enough, alpha)


def from_variance(estimate: Floats, variance: Floats, enough: Mask, alpha: float = ALPHA) -> ConfidenceSequence:
    """The confidence sequence of estimates with these variances; it starts at the first ``enough``."""
    looks = np.flatnonzero(enough)
    width = np.full(len(estimate), np.inf)
    if len(looks):
        later = np.arange(looks[0], len(estimate))
        later = later[(variance[later] > 0) & np.isfinite(variance[later])]
        information, mixture = 1.0 / variance[later], MIXTURE / variance[looks[0]]
        both = information + mixture
        width[later] = np.sqrt(both * np.log(both / (mixture * alpha**2))) / information
    return ConfidenceSequence(estimate, estimate - width, estimate + width)


def ratio_evidence(counts: npt.ArrayLike, shares: npt.ArrayLike) -> float:
    """log of the evidence that counts do not follow the planned shares; alarm above log(1/α), at any time.

    The ratio of the Dirichlet-multinomial likelihood (prior mean: the shares) to the planned multinomial one
    is a martingale with mean 1 if the shares are right, so it exceeds 1/α with probability at most α, ever.
    """
    n, p = np.asarray(counts, dtype=np.float64), np.asarray(shares, dtype=np.float64)
    prior = p * 100.0
    mixed = gammaln(prior.sum()) - gammaln((prior + n).sum()) + (gammaln(prior + n) - gammaln(prior)).sum()
    return float(mixed - (n * np.log(p)).sum())
