"""The rows behind an estimate, and the sums over them that an interval is made of.

``Events`` are single rows, which a paired difference needs. ``EventSums`` are all that the limits of an interval need
of them; those of different users add up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from taurank._types import Floats, Longs, Mask

_POWERS = np.array([2.0, 3.0, 4.0])
_BIN_POWERS = np.array([0.0, 0.0, 0.0, 1.0, 2.0, 3.0, 4.0])[:, None]  # of the weight, in the rows of Side.bins
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

    def at(self, rows: Mask | Longs) -> Events:
        columns: list[Any] = list(self)
        return Events(*(column[rows] for column in columns))

    def minus(self, other: Events) -> Events:
        """The events of a difference: the same rows, weights subtracted."""
        row = np.union1d(self.row, other.row)
        columns = [np.zeros((len(row), 5)) for _ in range(2)]
        for events, column in zip((self, other), columns, strict=True):
            column[np.searchsorted(row, events.row)] = np.stack([*events[1:]], axis=1)
        first, second = columns
        same = np.where(np.isin(row, self.row)[:, None], first, second)
        weight, value = (_without_rounding(first[:, at], second[:, at]) for at in (0, 4))
        return Events(row, weight, same[:, 1], same[:, 2] == 1, same[:, 3], value).at((weight != 0) | (value != 0))


def _without_rounding(first: Floats, second: Floats) -> Floats:
    """first − second, 0 where they differ by rounding alone: such a row would count as one of a tiny weight."""
    difference = first - second
    return np.where(np.abs(difference) > 1e-12 * np.maximum(np.abs(first), np.abs(second)), difference, 0.0)


class Side(NamedTuple):
    """What decides the limit on one side of an estimate; moments are Σ x², Σ x³ and Σ x⁴.

    Rows whose outcome would move the estimate to this side count by their chance of one, others by what was seen. A
    control row without a purchase is not in the log, but where P > ½ the treated rows say where it would be: each
    stands for (1−P)/P hidden control cells with a weight of 1/(1−P), which replace the control rows counted.
    """

    moments: Floats  # of weight · outcome over size: rows that count as seen; hidden cells; counted control rows
    outcomes: Floats  # moments of the outcome of: rows that count by their chance; counted control rows
    cells: float  # how many hidden cells there are
    largest: float  # outcome of the rows that count by their chance
    bin: Longs  # ⌊16 · log |weight|⌋ of these, ascending
    bins: Floats  # by bin: rows, rows with an outcome, Σ log |weight|; Σ w, …, Σ w⁴ over size

    @classmethod
    def of(cls, events: Events, size: float, side: float) -> Side:
        """``side`` is −1 below and 1 above the estimate."""
        weight, outcome, treated, propensity = events.weight / size, *events[2:5]
        toward = weight * side
        chance, rare = treated & (toward > 0), propensity > _MANY
        shown, sold = rare & treated & (toward < 0) & (propensity < 1.0), rare & ~treated & (toward > 0)
        p = propensity[shown]
        cells, control = (1.0 - p) / p, -weight[shown] * p / (1.0 - p)
        hidden = np.array([np.sum(cells * control**j) for j in (2, 3, 4)])
        seen = weight * outcome
        log_weight = np.log(np.abs(weight[chance])) + np.log(size)
        bins = np.floor(_BINS * log_weight).astype(np.int64)
        lowest = int(bins.min(initial=0))
        held = np.flatnonzero(np.bincount(bins - lowest))
        bought = outcome[chance]
        columns = [np.ones(len(bins)), bought > 0, log_weight, *(weight[chance] ** j for j in (1, 2, 3, 4))]
        return cls(
            np.stack([_moments(seen[~chance]), hidden, _moments(seen[sold])]),
            np.stack([_moments(bought), _moments(outcome[sold])]), float(cells.sum()), float(bought.max(initial=0.0)),
            held + lowest, np.stack([np.bincount(bins - lowest, column)[held] for column in columns]),
        )  # fmt: skip

    def at(self, ratio: float) -> Side:
        """The same with weights multiplied by ``ratio``."""
        return self._replace(moments=self.moments * ratio**_POWERS, bins=self.bins * ratio**_BIN_POWERS)

    def expected(self, control: Floats, largest: float) -> tuple[float, float, float, float]:
        """See ``EventSums.expected``; ``control`` are moments to add, ``largest`` is that outcome of all rows.

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


class EventSums(NamedTuple):
    """Sums over events, of weights that were divided by ``size``, a power of 2."""

    size: float
    below: Side
    above: Side
    largest: float  # outcome
    squares: Floats  # Σ value²; Σ weight² and Σ weight² · outcome of treated rows; all over size²
    rows: int
    treated: bool  # any row
    positive: bool  # any weight

    @classmethod
    def of(cls, events: Events) -> EventSums:
        size = power_of_two(events.weight)
        counts, treated = (events.weight != 0) | (events.value != 0), events.treated
        squared = (events.weight[treated] / size) ** 2
        squares = np.sum((events.value / size) ** 2), squared.sum(), np.sum(squared * events.outcome[treated])
        return cls(
            size, Side.of(events, size, -1.0), Side.of(events, size, 1.0), float(events.outcome.max(initial=0.0)),
            np.array(squares), int(np.count_nonzero(counts)), bool(treated[counts].any()),
            bool((events.weight > 0.0).any()),
        )  # fmt: skip

    @classmethod
    def added(cls, parts: Sequence[EventSums]) -> EventSums:
        """The sums over the events of all users from those of some, in this order."""
        size = max(part.size for part in parts)
        same = [part.at(size) for part in parts]

        def side(sides: list[Side]) -> Side:
            bins, at = np.unique(np.concatenate([one.bin for one in sides]), return_inverse=True)
            columns = np.concatenate([one.bins for one in sides], axis=1)
            return Side(
                np.sum([one.moments for one in sides], axis=0), np.sum([one.outcomes for one in sides], axis=0),
                sum(one.cells for one in sides), max(one.largest for one in sides),
                bins, np.stack([np.bincount(at, column, len(bins)) for column in columns]),
            )  # fmt: skip

        return cls(
            size, side([part.below for part in same]), side([part.above for part in same]),
            max(part.largest for part in same), np.sum([part.squares for part in same], axis=0),
            sum(part.rows for part in same), any(part.treated for part in same), any(part.positive for part in same),
        )  # fmt: skip

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


def power_of_two(*arrays: Floats) -> float:
    """A power of 2 no smaller than any value, so that dividing by it is exact."""
    largest = max(float(np.abs(array).max(initial=0.0)) for array in arrays)
    return float(2.0 ** np.frexp(largest)[1]) if largest > 0 else 1.0


def _moments(value: Floats) -> Floats:
    square = value**2
    return np.array([np.sum(square), np.sum(square * value), np.sum(square**2)])
