"""The interval of an estimate from a log: clusters, and the few heavy purchases that decide.

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

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import chdtri, gammaincinv, ndtri, stdtrit

from taurank.errors import InputError
from taurank.evaluation.bootstrap import check_fraction
from taurank.evaluation.events import Events, EventSums, power_of_two
from taurank.evaluation.visits import Visits, contributions, mean_of

Floats = npt.NDArray[np.float64]

_PRIOR = 10.0  # events' worth of trust in the expected variance, beside the one seen between users
# Times are clusters of their own where chance alone would make them differ as much in fewer logs than this share. At
# 0.4 a 95 % interval covers 93 to 97 % whatever a time has in common, from three times on (docs/estimates.md); at a
# usual level such as 0.05 it would cover as little as 85 %.
TIMES_DIFFER = 0.4


@dataclass(frozen=True, eq=False)
class Uncertainty:
    """Of the mean of ``per_user`` over ``visits`` (None: each user counts alike): ``interval(level)``.

    ``per_time`` are the means at each time, ``unit`` is what one outcome counts at most without a propensity, per
    user and time, ``limits`` are what no effect can exceed.
    """

    per_user: Floats
    per_time: Floats
    events: Events | EventSums
    unit: float
    limits: tuple[float, float] = (-np.inf, np.inf)
    visits: Visits | None = None

    @property
    def estimate(self) -> float:
        return mean_of(self.per_time, None if self.visits is None else self.visits.by_time)

    @cached_property
    def sums(self) -> EventSums:
        return EventSums.of(self.events) if isinstance(self.events, Events) else self.events

    @cached_property
    def _user_parts(self) -> Floats:
        return contributions(self.per_user, None if self.visits is None else self.visits.by_user, self.estimate)

    @cached_property
    def _time_parts(self) -> Floats:
        return contributions(self.per_time, None if self.visits is None else self.visits.by_time, self.estimate)

    def minus(self, other: Uncertainty) -> Uncertainty:
        """Of the paired difference."""
        if not isinstance(self.events, Events) or not isinstance(other.events, Events):
            raise InputError("a paired difference needs the rows of both estimates, and their sums alone are known.")
        return self.difference(other, self.events.minus(other.events))

    def difference(self, other: Uncertainty, events: Events | EventSums) -> Uncertainty:
        """Of the paired difference, whose events are known."""
        per_user = self.per_user - other.per_user
        n_rows = len(events.row) if isinstance(events, Events) else events.rows
        same = not n_rows and not np.nan_to_num(per_user).any()  # the same lists
        width = 0.0 if same else 2.0 * max(self.limits[1], other.limits[1])
        unit = max(self.unit, other.unit)
        per_time = self.per_time - other.per_time
        return Uncertainty(per_user, per_time, events, unit, (-width, width), self.visits)

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Lower and upper limit; the limits of what is possible where one arm was never seen or one user is alone."""
        check_fraction("level", level)
        if len(self._user_parts) < 2:
            return self.limits
        size = max(self.sums.size, power_of_two(self._user_parts))
        scaled = self._divided(size)  # so that no power overflows
        low, high = (size * scaled._limit(level, side) for side in (-1.0, 1.0))
        if not self.sums.treated:  # nothing on the list was ever shown
            low, high = -np.inf if self.sums.positive else low, np.inf
        return max(low, self.limits[0]), min(high, self.limits[1])

    def _divided(self, size: float) -> Uncertainty:
        means = self.per_user / size, self.per_time / size
        return Uncertainty(*means, self.sums.at(size), self.unit / size, visits=self.visits)

    def _limit(self, level: float, side: float) -> float:
        """Below (side −1) or above (side 1) the estimate."""
        second, third, fourth, common = self.sums.expected(side, self.unit)
        seen, freedom = self._clustered
        if second <= 0.0 and seen <= 0.0:
            return self.estimate
        trust = second**2 / fourth if fourth > 0 else 0.0  # the effective number of events behind the variance
        variance = (trust * seen + _PRIOR * max(seen, second)) / (trust + _PRIOR)
        common = (trust * third + _PRIOR * common) / (trust + _PRIOR)  # that of the variance seen is the third moment
        scale = (variance / second) ** 1.5 if second > 0 else 0.0
        third, common = scale * third, scale * common
        center = self.estimate + side * max(side * common / (2.0 * variance), 0.0)
        return _quantile(center, variance, 3.0 * common - third, level, side, freedom)

    @cached_property
    def _clustered(self) -> tuple[float, float]:
        """The variance of the mean with users and times as clusters, and its degrees of freedom."""
        n, times = len(self._user_parts), len(self._time_parts)
        users = float(self._user_parts.var(ddof=1)) / n
        rows = self.sums.squares
        if times < 2 or rows <= 0.0:
            return users, n - 1.0
        return clustered_variance(users, n, float(self._time_parts.var(ddof=1)) / times, times, rows)


def clustered_variance(
    users: float, n_users: int, between: float, n_times: int, rows: float, level: float = TIMES_DIFFER
) -> tuple[float, float]:
    """The variance of a mean and its degrees of freedom, from the variances that users, times and rows give it.

    Users and times cross, and each row is in one of both, so the variance is users + times − rows (Cameron, Gelbach
    and Miller, 2011). If a time has nothing in common, (T−1)·between / rows is χ² with T−1 degrees of freedom, and
    times are left out unless it is larger than chance alone makes it in a share of ``level`` of all logs. Degrees of
    freedom are Satterthwaite's.
    """
    if between / rows * (n_times - 1) <= chdtri(n_times - 1, level):
        return users, n_users - 1.0
    variance = users + max(between - rows, 0.0)
    freedom = variance**2 / (users**2 / (n_users - 1.0) + between**2 / (n_times - 1.0))
    return variance, max(freedom, min(n_users, n_times) - 1.0)  # fewer where users vary less than rows


def _quantile(center: float, variance: float, third: float, level: float, side: float, freedom: float) -> float:
    """A quantile of the shifted gamma distribution with these moments, its spread widened as Student's is."""
    tail = 0.5 + level / 2.0
    spread = np.sqrt(variance) * stdtrit(freedom, tail) / ndtri(tail)
    skewness = third / variance**1.5
    if abs(skewness) < 1e-4:
        return float(center + side * spread * ndtri(tail))
    shape = 4.0 / skewness**2
    outward = side * skewness > 0
    quantile: Any = gammaincinv(shape, tail if outward else 1.0 - tail)
    return float(center + spread * skewness / 2.0 * (quantile - shape))
