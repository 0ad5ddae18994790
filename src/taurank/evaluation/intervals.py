"""The interval of a mean over users: of an estimate from a log, or of effects that are known.

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

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from scipy.special import chdtri, gammaincinv, ndtri, stdtrit

from taurank._types import Floats, Longs, Mask
from taurank.errors import InputError, show

_PRIOR = 10.0  # events' worth of trust in the expected variance, beside the one seen between users
# Times are clusters of their own where chance alone would make them differ as much in fewer logs than this share. At
# 0.4 a 95% interval covers 93 to 97% whatever a time has in common, from three times on (docs/estimates.md); at a
# usual level such as 0.05 it would cover as little as 85%.
TIMES_DIFFER = 0.4
_POWERS = np.array([2.0, 3.0, 4.0])
_TILT = 0.5  # how much log rates may change with log weights: the spread of the prior
_BINS = 16  # of weights, for a factor of e
_MANY = 0.5  # propensities above it: the control arm is the rare one


@dataclass(frozen=True, eq=False)
class Estimate:
    """A mean over visits, from the means ``per_user`` and ``per_time`` over those of each; nan without a visit.

    Without eligibility every user counts at every time, with it at the times of a visit only: the mean is
    Σ_u S_u / Σ_u V_u, S_u being the sum over a user's visits and V_u their number. ``visits`` counts them by user and
    by time. An estimate from a log has the ``moments`` of the rows behind it; ``unit`` is what one outcome counts at
    most without a propensity, per user and time, and ``limits`` are what no effect can exceed.
    """

    per_user: Floats
    per_time: Floats
    visits: tuple[Longs, Longs]
    moments: Moments | None = None
    unit: float = 0.0
    limits: tuple[float, float] = (-np.inf, np.inf)

    @cached_property
    def mean(self) -> float:
        seen = self.visits[1] > 0
        return float(np.average(self.per_time[seen], weights=self.visits[1][seen])) if seen.any() else float("nan")

    @cached_property
    def contributions(self) -> Floats:
        """A value per user with the mean and the spread between users of ``mean``."""
        return contributions(self.per_user, self.visits[0], self.mean)

    def minus(self, other: Estimate, moments: Moments | None = None) -> Estimate:
        """The paired difference; ``moments`` are those of the differences of rows."""
        per_user, per_time = self.per_user - other.per_user, self.per_time - other.per_time
        apart = np.nanmax(np.abs(per_user), initial=0.0) > 1e-12 * np.nanmax(np.abs(self.per_user), initial=0.0)
        same = moments is not None and not moments.rows and not apart  # the same lists
        most = 0.0 if same else 2.0 * max(self.limits[1], other.limits[1])
        return Estimate(per_user, per_time, self.visits, moments, max(self.unit, other.unit), (-most, most))

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Lower and upper limit; those of what is possible where one arm was never seen or one user is alone.

        It contains the estimate even where that is more than what is possible.
        """
        check_fraction("level", level)
        n, moments, (least, most) = len(self.contributions), self.moments, self.limits
        if n < 2:
            return (float("nan"), float("nan")) if moments is None else self.limits
        if moments is None:
            deviation = self.contributions - self.contributions.mean()
            seen = float(np.sum(deviation**2)) / (n * (n - 1.0))
            third = float(np.mean(deviation**3)) / n**2
            known = seen, third, third, n - 1.0, level
            return _limit(self.mean, *known, -1.0), _limit(self.mean, *known, 1.0)
        seen, freedom = self.clustered()
        low, high = (
            _limit(self.mean, *_mixed(seen, *moments.expected(side, self.unit)), freedom, level, side)
            for side in (-1.0, 1.0)
        )
        if not moments.treated:  # nothing on the list was ever shown
            low, high = least if moments.positive else low, most
        return min(max(low, least), self.mean), max(min(high, most), self.mean)

    def clustered(self) -> tuple[float, float]:
        """The variance of the mean, users and times as clusters, and its degrees of freedom."""
        assert self.moments is not None
        by_time = contributions(self.per_time, self.visits[1], self.mean)
        n, times, rows = len(self.contributions), len(by_time), float(self.moments.squares[0])
        users = float(self.contributions.var(ddof=1)) / n
        if times < 2 or rows <= 0.0:
            return users, n - 1.0
        return clustered_variance(users, n, float(by_time.var(ddof=1)) / times, times, rows)


def contributions(means: Floats, counts: Longs, mean: float) -> Floats:
    """Values with the mean Σ counts · means / Σ counts, and with the spread between clusters that it has.

    A ratio R = ΣS / ΣV of sums over n clusters varies as the mean of R + (S − R·V) · n / ΣV does, S = V · means.
    Clusters without a visit are left out.
    """
    seen = counts > 0
    share = counts[seen] * (np.count_nonzero(seen) / max(counts.sum(), 1))
    return np.asarray(mean + (means[seen] - mean) * share)


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


def _mixed(seen: float, second: float, third: float, fourth: float, common: float) -> tuple[float, float, float]:
    """Variance, third moment and covariance from the variance ``seen`` and the expected moments.

    The variance is a mean of both, by the effective number of events behind the expected one.
    """
    trust = second**2 / fourth if fourth > 0 else 0.0
    variance = (trust * seen + _PRIOR * max(seen, second)) / (trust + _PRIOR)
    common = (trust * third + _PRIOR * common) / (trust + _PRIOR)  # that of the variance seen is the third moment
    scale = (variance / second) ** 1.5 if second > 0 else 0.0
    return variance, scale * third, scale * common


def _limit(
    mean: float, variance: float, third: float, common: float, freedom: float, level: float, side: float
) -> float:
    """Below (side −1) or above (side 1) a mean: a quantile of a shifted gamma distribution.

    It has the moments of the mean, its spread widened as Student's is.
    """
    if variance <= 0.0:
        return mean
    center = mean + side * max(side * common / (2.0 * variance), 0.0)
    tail = 0.5 + level / 2.0
    spread = np.sqrt(variance) * stdtrit(freedom, tail) / ndtri(tail)
    skewness = (3.0 * common - third) / variance**1.5
    if abs(skewness) < 1e-4:
        return float(center + side * spread * ndtri(tail))
    shape = 4.0 / skewness**2
    quantile: Any = gammaincinv(shape, tail if side * skewness > 0 else 1.0 - tail)
    return float(center + spread * skewness / 2.0 * (quantile - shape))


class Events(NamedTuple):
    """The rows behind an estimate: what an outcome would count in them, and what there was.

    ``weight`` is the metric's weight over the denominator, per user and time, positive for treated rows and negative
    for control rows if the metric's weight is positive. Rows are those of the log, in order.
    """

    row: Longs
    weight: Floats
    outcome: Floats
    treated: Mask
    propensity: Floats
    value: Floats  # what the row adds to the estimate, control variate included

    def minus(self, other: Events) -> Events:
        """The events of a difference: the same rows, weights subtracted."""
        row = np.union1d(self.row, other.row)
        columns = [np.zeros((len(row), 5)) for _ in range(2)]
        for events, column in zip((self, other), columns, strict=True):
            column[np.searchsorted(row, events.row)] = np.stack([*events[1:]], axis=1)
        first, second = columns
        same = np.where(np.isin(row, self.row)[:, None], first, second)
        # rows that differ by rounding alone would count as rows of a tiny weight
        equal = np.abs(first - second) <= 1e-12 * np.maximum(np.abs(first), np.abs(second))
        weight, value = np.where(equal, 0.0, first - second)[:, [0, 4]].T
        at = (weight != 0) | (value != 0)
        return Events(row[at], weight[at], same[at, 1], same[at, 2] == 1, same[at, 3], value[at])


class Moments(NamedTuple):
    """Sums over events that the limits of an interval need; those of different users add up."""

    squares: Floats  # Σ value²; Σ weight² and Σ weight² · outcome of treated rows
    sides: tuple[Side, Side]  # below and above the estimate
    largest: float  # outcome
    rows: int
    treated: bool  # any row
    positive: bool  # any weight

    @classmethod
    def of(cls, events: Events) -> Moments:
        _, weight, outcome, treated, _, value = events
        counts, squared = (weight != 0) | (value != 0), weight[treated] ** 2
        squares = np.array([np.sum(value**2), squared.sum(), np.sum(squared * outcome[treated])])
        return cls(
            squares, (Side.of(events, -1.0), Side.of(events, 1.0)), float(outcome.max(initial=0.0)),
            int(np.count_nonzero(counts)), bool(treated[counts].any()), bool((weight > 0.0).any()),
        )  # fmt: skip

    @classmethod
    def added(cls, parts: Sequence[Moments]) -> Moments:
        """The sums over the events of all users from those of some, in this order."""
        squares, sides, largest, rows, treated, positive = zip(*parts, strict=True)
        below, above = (Side.added(side) for side in zip(*sides, strict=True))
        return cls(np.sum(squares, axis=0), (below, above), max(largest), sum(rows), any(treated), any(positive))

    def expected(self, side: float, unit: float) -> tuple[float, float, float, float]:
        """Second, third and fourth moment of the sum of events, and the covariance of the sum with the second.

        Rows whose outcome would move the estimate to this side count by their chance of one; rows that move it to
        the other side count by what was seen. ``unit`` is what one outcome counts at most without a propensity.
        """
        if side > 0:
            return self.sides[1].expected(np.zeros(3), self.largest)
        # half a purchase more in the control arm, which has no rows where nothing was bought
        return self.sides[0].expected(0.5 * (-unit * max(1.0, self.largest)) ** _POWERS, self.largest)


class Side(NamedTuple):
    """What decides the limit on one side of an estimate; moments are Σ x², Σ x³ and Σ x⁴.

    Rows whose outcome would move the estimate to this side count by their chance of one, others by what was seen. A
    control row without a purchase is not in the log, but where P > ½ the treated rows say where it would be: each
    stands for (1−P)/P hidden control cells with a weight of 1/(1−P), which replace the control rows counted.
    """

    moments: Floats  # of weight · outcome: rows that count as seen; hidden cells; counted control rows
    outcomes: Floats  # moments of the outcome of: rows that count by their chance; counted control rows
    cells: float  # how many hidden cells there are
    largest: float  # outcome of the rows that count by their chance
    bin: Longs  # ⌊16 · log |weight|⌋ of these, ascending
    bins: Floats  # by bin: rows, rows with an outcome, Σ log |weight|, Σ w, Σ w², Σ w³, Σ w⁴

    @classmethod
    def of(cls, events: Events, side: float) -> Side:
        """``side`` is −1 below and 1 above the estimate."""
        _, weight, outcome, treated, propensity, _ = events
        toward = weight * side
        chance, rare = treated & (toward > 0), propensity > _MANY
        shown, sold = rare & treated & (toward < 0) & (propensity < 1.0), rare & ~treated & (toward > 0)
        p = propensity[shown]
        cells, control = (1.0 - p) / p, -weight[shown] * p / (1.0 - p)
        hidden = np.array([np.sum(cells * control**j) for j in (2, 3, 4)])
        seen, own, bought = weight * outcome, weight[chance], outcome[chance]
        log_weight = np.log(np.abs(own))
        bins = np.floor(_BINS * log_weight).astype(np.int64)
        lowest = int(bins.min(initial=0))
        held = np.flatnonzero(np.bincount(bins - lowest))
        columns = [np.ones(len(own)), bought > 0, log_weight, *(own**j for j in (1, 2, 3, 4))]
        return cls(
            np.stack([_moments(seen[~chance]), hidden, _moments(seen[sold])]),
            np.stack([_moments(bought), _moments(outcome[sold])]), float(cells.sum()), float(bought.max(initial=0.0)),
            held + lowest, np.stack([np.bincount(bins - lowest, column)[held] for column in columns]),
        )  # fmt: skip

    @classmethod
    def added(cls, parts: Sequence[Side]) -> Side:
        moments, outcomes, cells, largest, bin, bins = zip(*parts, strict=True)
        every, at = np.unique(np.concatenate(bin), return_inverse=True)
        columns = [np.bincount(at, column, len(every)) for column in np.concatenate(bins, axis=1)]
        return cls(
            np.sum(moments, axis=0), np.sum(outcomes, axis=0), sum(cells), max(largest), every, np.stack(columns)
        )

    def expected(self, control: Floats, largest: float) -> tuple[float, float, float, float]:
        """See ``Moments.expected``; ``control`` are moments to add, ``largest`` is that outcome of all rows.

        Rows that count by their chance have Σ w², Σ w³, Σ w⁴ times each row's rate over the common one. The rate may
        rise or fall with the weight. S = Σw²·rate follows the fitted rates, so that its covariance with the sum is
        ∇S · I⁻¹ · Σw·rate·x, x being the terms of the fit and I its information. For equal weights this is the third
        moment, as for any variance that was seen; for unequal ones it is less.
        """
        seen, hidden, counted = self.moments
        moments = seen + control
        if self.cells > 0:
            most = max(1.0, largest) ** _POWERS
            moments += hidden * np.minimum((self.outcomes[1] + 0.5 * most) / (self.cells + 1.0), most) - counted
        common = float(moments[1])
        if len(self.bin):
            rows, sold, log_weight, *powers = self.bins
            x = np.stack([np.ones(len(rows)), log_weight / rows - log_weight.sum() / rows.sum()])
            tilt, information = _tilt(rows, sold, x)
            by_bin = np.stack(powers) * tilt
            slope = np.linalg.solve(information, x @ by_bin[0])
            # powers of the outcome to expect from a row of the common rate, half a purchase added (Jeffreys)
            chances = (self.outcomes[0] + 0.5 * max(1.0, self.largest) ** _POWERS) / (rows.sum() + 1.0)
            moments += by_bin[1:].sum(axis=1) * chances
            common += float((x @ by_bin[1]) @ slope) * float(chances[1])
        return float(moments[0]), float(moments[1]), float(moments[2]), common


def _tilt(rows: Floats, sold: Floats, x: Floats) -> tuple[Floats, Floats]:
    """How the rate of each bin compares with the common one, ∝ exp(b·x₁) with the mean 1, and the fit's information.

    b is the mode of a Poisson model with the prior N(0, _TILT²), by Newton's method.
    """
    total, b = float(sold.sum()), 0.0
    for _ in range(20):
        share = _shares(rows, b * x[1])
        center = float(share @ x[1])
        spread = total * (float(share @ x[1] ** 2) - center**2)
        step = (float(sold @ x[1]) - total * center - b / _TILT**2) / (spread + 1.0 / _TILT**2)
        b += float(np.clip(step, -1.0, 1.0))
        if abs(step) < 1e-9:
            break
    tilt = _shares(rows, b * x[1]) * rows.sum() / rows
    information = (x * (rows * tilt)) @ x.T
    information[1, 1] += rows.sum() / (total + 0.5) / _TILT**2
    return tilt, information


def _shares(rows: Floats, exponent: Floats) -> Floats:
    """rows · e^exponent, adding up to 1, without overflow."""
    share = rows * np.exp(exponent - exponent.max())
    return np.asarray(share / share.sum())


def _moments(value: Floats) -> Floats:
    square = value**2
    return np.array([np.sum(square), np.sum(square * value), np.sum(square**2)])


def check_fraction(name: str, value: Any) -> None:
    """Refuse anything but a number strictly between 0 and 1."""
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)) or not 0 < value < 1:
        raise InputError(f"{name} must be a number between 0 and 1, got {show(value)}.")
