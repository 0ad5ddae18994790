"""The interval of an estimate from a log, and that of any other mean over users.

An estimate is a sum of rare events with unequal weights: purchases, divided by propensities. Where an item was shown
with P = 0.005 a single purchase counts 200 times, and most logs have none. The variance of what *was* bought, which
a bootstrap resamples, is then far too small. But all recommendations are in the log, bought or not, so that the
variance to expect is known: the sum of the squared weights of the treated rows times their purchase rate. The upper
limit uses it for the treated arm, and the lower one for the control arm where P is near 1.

Limits are quantiles of a gamma distribution with the estimate's mean, variance and skewness, as Hall corrects for it:
with the third moment μ₃ and the covariance γ of the estimate with its variance, the center moves by γ / 2σ² and the
third moment is 3γ − μ₃. A variance that was seen has γ = μ₃, which is Jeffreys' interval for a single Poisson count.
An expected one follows the purchases of all rows, not the few heavy ones, and has less (docs/estimates.md).

Users are clusters, and so are times: what is common to all users at a time (a holiday, a sale) does not average out
over users. Where times vary more than single rows do, that variance is added, and because a few times say little
about it, the limits use Student's quantile with Satterthwaite's degrees of freedom.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from scipy.special import chdtri, gammaincinv, ndtr, ndtri, stdtrit

from taurank._jit import compiled
from taurank._random import uniform
from taurank._threads import map_blocks
from taurank._types import Floats, Longs, Mask
from taurank.data.eligibility import Eligibility
from taurank.errors import InputError, show
from taurank.evaluation.events import EventSums

_PRIOR = 10.0  # events' worth of trust in the expected variance, beside the one seen between users
# Times are clusters of their own where chance alone would make them differ as much in fewer logs than this share. At
# 0.4 a 95% interval covers 93 to 97% whatever a time has in common, from three times on (docs/estimates.md); at a
# usual level such as 0.05 it would cover as little as 85%.
TIMES_DIFFER = 0.4
RESAMPLES = 2000
_KEY = np.uint64(0x7A5BCA31)


@dataclass(frozen=True, eq=False)
class Visits:
    """The number of visits ``by_user`` and ``by_time``: how often a user could have been shown a list.

    Without eligibility every user counts at every time. With it a user counts at the times of a visit only, so the
    mean of a metric is Σ_u S_u / Σ_u V_u, S_u being the sum over a user's visits and V_u their number. Both are sums
    over users, which makes the mean a ratio; its spread is that of the ``contributions``.
    """

    by_user: Longs
    by_time: Longs

    @classmethod
    def of(cls, eligibility: Eligibility, users: Mask | None = None) -> Visits:
        """Those of all users, or of some: the others have none."""
        n_users, _, n_times = eligibility.shape
        everyone = np.ones(n_users, np.bool_) if users is None else users
        if eligibility.is_everything:
            return cls(np.where(everyone, n_times, 0), np.full(n_times, np.count_nonzero(everyone)))
        return cls(*eligibility.visits(everyone))


def per_visit(sums: Floats, counts: Longs) -> Floats:
    """Means over the visits of users or times, the last axis; nan without one."""
    means = np.full(sums.shape, np.nan)
    np.divide(sums, counts, out=means, where=np.broadcast_to(counts > 0, sums.shape))
    return means


def contributions(means: Floats, counts: Longs, mean: float) -> Floats:
    """Values with the mean Σ counts · means / Σ counts, and with the spread between clusters that it has.

    A ratio R = ΣS / ΣV of sums over n clusters varies as the mean of R + (S − R·V) · n / ΣV does, S = V · means.
    Clusters without a visit are left out.
    """
    seen = counts > 0
    if seen.all() and (counts == counts[:1]).all():
        return means
    share = counts[seen] * (np.count_nonzero(seen) / max(counts.sum(), 1))
    return np.asarray(mean + (means[seen] - mean) * share)


@dataclass(frozen=True, eq=False)
class Mean:
    """A mean over the visits of users, from their means ``per_user`` and those ``per_time``; nan without a visit."""

    per_user: Floats
    per_time: Floats
    visits: Visits

    @cached_property
    def mean(self) -> float:
        counts = self.visits.by_time
        seen = counts > 0
        if seen.all() and (counts == counts[:1]).all():
            return float(self.per_time.mean())
        return float(np.average(self.per_time[seen], weights=counts[seen])) if seen.any() else float("nan")

    @cached_property
    def contributions(self) -> Floats:
        """A value per user with the mean and the spread between users of ``mean``."""
        return contributions(self.per_user, self.visits.by_user, self.mean)


@dataclass(frozen=True, eq=False)
class Estimate(Mean):
    """An estimate from a log.

    ``unit`` is what one outcome counts at most without a propensity, per user and time, ``limits`` are what no
    effect can exceed.
    """

    events: EventSums
    unit: float
    limits: tuple[float, float] = (-np.inf, np.inf)

    def minus(self, other: Estimate, events: EventSums) -> Estimate:
        """The paired difference, whose events are known."""
        per_user, per_time = self.per_user - other.per_user, self.per_time - other.per_time
        same = not events.rows and not np.nan_to_num(per_user).any()  # the same lists
        width = 0.0 if same else 2.0 * max(self.limits[1], other.limits[1])
        return Estimate(per_user, per_time, self.visits, events, max(self.unit, other.unit), (-width, width))

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Lower and upper limit; the limits of what is possible where one arm was never seen or one user is alone."""
        check_fraction("level", level)
        if len(self.contributions) < 2:
            return self.limits
        size, (variance, freedom) = self.events.size, self.clustered()  # in units of size no power overflows
        low, high = (
            size
            * _limit(self.mean / size, self.events.expected(side, self.unit / size), variance, freedom, level, side)
            for side in (-1.0, 1.0)
        )
        if not self.events.treated:  # nothing on the list was ever shown
            low, high = -np.inf if self.events.positive else low, np.inf
        return max(low, self.limits[0]), min(high, self.limits[1])

    def clustered(self) -> tuple[float, float]:
        """The variance of the mean, users and times as clusters, in units of the events' size, and its freedom."""
        size, by_time = self.events.size, contributions(self.per_time, self.visits.by_time, self.mean)
        n, times, rows = len(self.contributions), len(by_time), float(self.events.squares[0])
        users = float((self.contributions / size).var(ddof=1)) / n
        if times < 2 or rows <= 0.0:
            return users, n - 1.0
        return clustered_variance(users, n, float((by_time / size).var(ddof=1)) / times, times, rows)


def clustered_variance(
    users: float, n_users: int, between: float, n_times: int, rows: float, level: float = TIMES_DIFFER
) -> tuple[float, float]:
    """The variance of a mean and its degrees of freedom, from the variances that users, times and rows give it.

    Users and times cross, and each row is in one of both, so the variance is users + times − rows (Cameron, Gelbach
    and Miller, 2011). If a time has nothing in common, (T−1)·between / rows is χ² with T−1 degrees of freedom, and
    times are left out if it is not significant at ``level``. Degrees of freedom are Satterthwaite's.
    """
    if between / rows * (n_times - 1) <= chdtri(n_times - 1, level):
        return users, n_users - 1.0
    variance = users + max(between - rows, 0.0)
    freedom = variance**2 / (users**2 / (n_users - 1.0) + between**2 / (n_times - 1.0))
    return variance, max(freedom, min(n_users, n_times) - 1.0)  # fewer where users vary less than rows


def _limit(
    mean: float, expected: tuple[float, float, float, float], seen: float, freedom: float, level: float, side: float
) -> float:
    """Below (side −1) or above (side 1) a mean with these expected moments, and the variance ``seen``.

    A quantile of the shifted gamma distribution with the moments of both, its spread widened as Student's is.
    """
    second, third, fourth, common = expected
    if second <= 0.0 and seen <= 0.0:
        return mean
    trust = second**2 / fourth if fourth > 0 else 0.0  # the effective number of events behind the variance
    variance = (trust * seen + _PRIOR * max(seen, second)) / (trust + _PRIOR)
    common = (trust * third + _PRIOR * common) / (trust + _PRIOR)  # that of the variance seen is the third moment
    scale = (variance / second) ** 1.5 if second > 0 else 0.0
    third, common = scale * third, scale * common
    center = mean + side * max(side * common / (2.0 * variance), 0.0)
    tail = 0.5 + level / 2.0
    spread = np.sqrt(variance) * stdtrit(freedom, tail) / ndtri(tail)
    skewness = (3.0 * common - third) / variance**1.5
    if abs(skewness) < 1e-4:
        return float(center + side * spread * ndtri(tail))
    shape = 4.0 / skewness**2
    quantile: Any = gammaincinv(shape, tail if side * skewness > 0 else 1.0 - tail)
    return float(center + spread * skewness / 2.0 * (quantile - shape))


class Resamples:
    """Means over users drawn with replacement, of several values of the same users, who are drawn once.

    They are drawn when a mean is first asked for. Every draw is a hash of its own number, so that the same values
    have the same means on any machine and with any number of threads.
    """

    def __init__(self, threads: int = 1) -> None:
        self.threads = threads
        self._values: list[Floats] = []
        self._means: list[Floats] = []

    def add(self, values: Floats) -> int:
        """The number of these values, to ask for their means by."""
        self._values.append(values)
        return len(self._values) - 1

    def means(self, number: int) -> Floats:
        if number >= len(self._means):
            new = np.stack(self._values[len(self._means) :], axis=1)
            self._means += [column.copy() for column in resampled_means(new, threads=self.threads).T]
        return self._means[number]


@dataclass(frozen=True, eq=False)
class Bootstrap(Mean):
    """A mean over users that is not an estimate from a log; its interval is that of resampled users."""

    resamples: Resamples
    number: int = field(init=False)  # of the contributions among the values of the resamples

    def __post_init__(self) -> None:
        object.__setattr__(self, "number", self.resamples.add(self.contributions))

    def minus(self, other: Bootstrap) -> Bootstrap:
        """The paired difference: both are resampled together."""
        means = self.per_user - other.per_user, self.per_time - other.per_time
        return Bootstrap(*means, self.visits, self.resamples)

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """BCa, widened as Student's interval is, which matters for few users."""
        check_fraction("level", level)
        n, tail = len(self.contributions), 0.5 + level / 2.0
        if n < 2:
            return float("nan"), float("nan")
        low, high = bca_interval(self.contributions, self.resamples.means(self.number), level)
        # Student's quantile over the normal one, and the variance over n − 1: resampled means vary too little
        widening = float(stdtrit(n - 1, tail) / ndtri(tail) * np.sqrt(n / (n - 1.0)))
        mean = float(self.contributions.mean())
        return mean - widening * (mean - low), mean + widening * (high - mean)


def resampled_means(values: Floats, resamples: int = RESAMPLES, threads: int = 1) -> Floats:
    """Means of each column of ``values`` over as many users as it has, drawn with replacement."""
    means, rows = np.empty((resamples, values.shape[1])), np.ascontiguousarray(values)
    map_blocks(lambda first, last: _resample(rows, first, means[first:last]), resamples, threads)
    return means


def bca_interval(values: Floats, means: Floats, level: float) -> tuple[float, float]:
    """The bias-corrected and accelerated (BCa) interval of Efron (1987) for the mean of ``values``.

    The acceleration of a mean is Σd³ / (6 (Σd²)^1.5), d the deviations from it: it moves the interval where
    a few users have large values, as inverse propensities do. (nan, nan) for a single user.
    """
    if len(values) < 2:
        return float("nan"), float("nan")
    mean = values.mean()
    deviation = values - mean
    deviation /= max(float(np.abs(deviation).max()), np.finfo(np.float64).tiny)  # the acceleration has no scale
    spread = float(np.sum(deviation**2))
    if spread == 0.0 or means.min() == means.max():
        return float(mean), float(mean)
    acceleration = float(np.sum(deviation**3)) / (6.0 * spread**1.5)
    tied = np.abs(means - mean) <= 1e-12 * np.abs(values).max()  # whatever the rounding of their sums
    below = (np.count_nonzero((means < mean) & ~tied) + 0.5 * np.count_nonzero(tied)) / len(means)
    edge = 0.5 / len(means)
    bias = ndtri(min(max(below, edge), 1.0 - edge))
    z = bias + ndtri(np.array([0.5 - level / 2.0, 0.5 + level / 2.0]))
    low, high = np.quantile(means, ndtr(bias + z / (1.0 - acceleration * z)))
    return float(low), float(high)


@compiled
def _resample(values: Any, first: Any, means: Any) -> None:
    n, width = values.shape
    for m in range(len(means)):
        total = np.zeros(width)
        for j in range(n):
            row = np.int64(uniform(_KEY, np.uint64((first + m) * n + j)) * n)
            for c in range(width):
                total[c] += values[row, c]
        for c in range(width):
            means[m, c] = total[c] / n


def check_fraction(name: str, value: Any) -> None:
    """Refuse anything but a number strictly between 0 and 1."""
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)) or not 0 < value < 1:
        raise InputError(f"{name} must be a number between 0 and 1, got {show(value)}.")
