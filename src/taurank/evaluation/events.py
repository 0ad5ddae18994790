"""The rows behind an estimate, and the sums over them that an interval is made of.

``Events`` are single rows, which a paired difference needs. ``EventSums`` are all that the limits of an interval need
of them; those of different users add up.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from taurank._types import Floats, Longs, Mask

_POWERS = np.array([2.0, 3.0, 4.0])
_TILT = 0.5  # how much log rates may change with log weights: the spread of the prior
_BINS = 16  # of weights, for a factor of e
_MANY = 0.5  # propensities above it: the control arm is the rare one


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
        weight, value = (_without_rounding(first[:, at], second[:, at]) for at in (0, 4))
        kept = (weight != 0) | (value != 0)
        events = Events(row, weight, same[:, 1], same[:, 2] == 1, same[:, 3], value)
        return Events(*(column[kept] for column in events))


def _without_rounding(first: Floats, second: Floats) -> Floats:
    """first − second, 0 where they differ by rounding alone: such a row would count as one of a tiny weight."""
    difference = first - second
    return np.where(np.abs(difference) > 1e-12 * np.maximum(np.abs(first), np.abs(second)), difference, 0.0)


class WeightBins(NamedTuple):
    """Rows that count by their chance of an outcome, in bins of like weights; those of different users add up."""

    bin: Longs  # ⌊16 · log |weight|⌋, ascending
    rows: Floats
    sold: Floats  # rows with an outcome
    log_weight: Floats  # Σ log |weight|
    powers: Floats  # Σ w, Σ w², Σ w³, Σ w⁴ of weights that were divided by a size, each by bin

    @classmethod
    def of(cls, weight: Floats, outcome: Floats, size: float = 1.0) -> WeightBins:
        """``weight`` was divided by ``size``, a power of 2."""
        log_weight = np.log(np.abs(weight)) + np.log(size)
        bins = np.floor(_BINS * log_weight).astype(np.int64)
        lowest = int(bins.min(initial=0))
        at = bins - lowest
        held = np.flatnonzero(np.bincount(at))

        def total(each: npt.ArrayLike | None) -> Floats:
            return np.bincount(at, each)[held].astype(np.float64)

        powers = np.stack([total(weight**j) for j in (1, 2, 3, 4)])
        return cls(held + lowest, total(None), total(outcome > 0), total(log_weight), powers)

    def at(self, ratio: float) -> WeightBins:
        return self._replace(powers=self.powers * ratio ** np.array([[1.0], [2.0], [3.0], [4.0]]))

    def expected(self) -> tuple[Floats, float]:
        """Σ w², Σ w³, Σ w⁴ times each row's rate over the common one, and the covariance of the sum with the first.

        The rate may rise or fall with the weight. S = Σw²·rate follows the fitted rates, so that its covariance with
        the sum is ∇S · I⁻¹ · Σw·rate·x, x being the terms of the fit and I its information. For equal weights this is
        the third moment, as for any variance that was seen; for unequal ones it is less.
        """
        if not len(self.bin):
            return np.zeros(3), 0.0
        mean = self.log_weight.sum() / self.rows.sum()
        x = np.stack([np.ones(len(self.bin)), self.log_weight / self.rows - mean])
        tilt, information = _tilt(self.rows, self.sold, x)
        by_bin = self.powers * tilt
        slope = np.linalg.solve(information, x @ by_bin[0])
        return by_bin[1:].sum(axis=1), float((x @ by_bin[1]) @ slope)


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


class Side(NamedTuple):
    """What decides the limit on one side of an estimate; moments are Σ x², Σ x³ and Σ x⁴ of scaled weights.

    Rows whose outcome would move the estimate to this side count by their chance of one, others by what was seen.
    """

    seen: Floats  # moments of weight · outcome of the rows that count as seen
    chances: WeightBins  # the rows that count by their chance
    outcomes: Floats  # Σ outcome², … of these
    largest: float  # outcome of these
    hidden: Floats  # moments of the control cells that treated rows stand for
    cells: float  # how many these are
    counted: Floats  # moments of the control rows that they replace
    sold: Floats  # Σ outcome², … of these

    @classmethod
    def of(cls, events: Events, size: float, side: float) -> Side:
        """``side`` is −1 below and 1 above the estimate; the weights were divided by ``size``.

        A control row without a purchase is not in the log, but where P > ½ the treated rows say where it would be:
        each stands for (1−P)/P control cells with a weight of 1/(1−P).
        """
        weight, outcome, treated, propensity = events.weight, events.outcome, events.treated, events.propensity
        toward = weight * side
        chance, rare = treated & (toward > 0), propensity > _MANY
        shown, sold = rare & treated & (toward < 0) & (propensity < 1.0), rare & ~treated & (toward > 0)
        p = propensity[shown]
        cells, control = (1.0 - p) / p, -weight[shown] * p / (1.0 - p)
        return cls(
            seen=_moments(weight[~chance] * outcome[~chance]),
            chances=WeightBins.of(weight[chance], outcome[chance], size),
            outcomes=_moments(outcome[chance]),
            largest=float(outcome[chance].max(initial=0.0)),
            hidden=np.array([np.sum(cells * control**j) for j in (2, 3, 4)]),
            cells=float(cells.sum()),
            counted=_moments(weight[sold] * outcome[sold]),
            sold=_moments(outcome[sold]),
        )

    def at(self, ratio: float) -> Side:
        power = ratio**_POWERS
        return self._replace(
            seen=self.seen * power, hidden=self.hidden * power, counted=self.counted * power,
            chances=self.chances.at(ratio),
        )  # fmt: skip

    def expected(self, control: Floats, largest: float) -> tuple[float, float, float, float]:
        """See ``EventSums.expected``; ``control`` are moments to add, ``largest`` is that outcome of all rows."""
        moments = self.seen + control
        if self.cells > 0:
            most = max(1.0, largest) ** _POWERS
            rate = (self.sold + 0.5 * most) / (self.cells + 1.0)
            moments += self.hidden * np.minimum(rate, most) - self.counted
        # powers of the outcome to expect from a row of the common rate, half a purchase added (Jeffreys)
        most = max(1.0, self.largest) ** _POWERS
        chances = (self.outcomes + 0.5 * most) / (self.chances.rows.sum() + 1.0)
        expected, common = self.chances.expected()
        common = float(moments[1]) + common * float(chances[1])
        moments += expected * chances
        return float(moments[0]), float(moments[1]), float(moments[2]), common


class EventSums(NamedTuple):
    """Sums over events, of weights that were divided by ``size``, a power of 2."""

    size: float
    below: Side
    above: Side
    largest: float  # outcome
    squares: float  # Σ value² / size²
    rows: int
    treated: bool  # any row
    positive: bool  # any weight

    @classmethod
    def of(cls, events: Events) -> EventSums:
        size = power_of_two(events.weight)
        scaled = events._replace(weight=events.weight / size, value=events.value / size)
        counts = (events.weight != 0) | (events.value != 0)
        return cls(
            size, Side.of(scaled, size, -1.0), Side.of(scaled, size, 1.0), float(events.outcome.max(initial=0.0)),
            float(np.sum(scaled.value**2)), int(np.count_nonzero(counts)), bool(events.treated[counts].any()),
            bool((events.weight > 0.0).any()),
        )  # fmt: skip

    def with_values(self, value: Floats) -> EventSums:
        """The same rows and weights, which add up to something else."""
        return self._replace(squares=float(np.sum((value / self.size) ** 2)))

    def at(self, size: float) -> EventSums:
        """The same in units of ``size``, another power of 2."""
        ratio = self.size / size
        below, above = self.below.at(ratio), self.above.at(ratio)
        return self._replace(size=size, below=below, above=above, squares=self.squares * ratio**2)

    def expected(self, side: float, unit: float) -> tuple[float, float, float, float]:
        """Second, third and fourth moment of the sum of events, and the covariance of the sum with the second.

        Rows whose outcome would move the estimate to this side count by their chance of one; rows that move it to
        the other side count by what was seen. ``unit`` is what one outcome counts at most without a propensity.
        """
        if side > 0:
            return self.above.expected(np.zeros(3), self.largest)
        # half a purchase more in the control arm, which has no rows where nothing was bought
        return self.below.expected(0.5 * (-unit * max(1.0, self.largest)) ** _POWERS, self.largest)


def power_of_two(*arrays: Floats) -> float:
    """A power of 2 no smaller than any value, so that dividing by it is exact."""
    largest = max(float(np.abs(array).max(initial=0.0)) for array in arrays)
    return float(2.0 ** np.frexp(largest)[1]) if largest > 0 else 1.0


def _moments(value: Floats) -> Floats:
    square = value**2
    return np.array([np.sum(square), np.sum(square * value), np.sum(square**2)])
