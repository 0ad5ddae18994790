"""The rows behind an estimate, and the sums over them that an interval is made of.

``Events`` are single rows, which a paired difference needs. ``EventSums`` are all that the limits of an interval need
of them; those of different users add up, so that no process has to hold the rows of all users.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Longs = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_POWERS = np.array([2.0, 3.0, 4.0])
SEEN, HIDDEN, COUNTED = range(3)  # which moments of a side
BOUGHT, SOLD = range(2)  # which outcomes of a side: of the rows that count by their chance, of those of COUNTED
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
        weight, value = first[:, 0] - second[:, 0], first[:, 4] - second[:, 4]
        kept = (weight != 0) | (value != 0)
        events = Events(row, weight, same[:, 1], same[:, 2] == 1, same[:, 3], value)
        return Events(*(column[kept] for column in events))


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
        bins, at = np.unique(np.floor(_BINS * log_weight).astype(np.int64), return_inverse=True)

        def total(each: npt.ArrayLike | None) -> Floats:
            return np.bincount(at, each, minlength=len(bins)).astype(np.float64)

        powers = np.stack([total(weight**j) for j in (1, 2, 3, 4)])
        return cls(bins, total(None), total(outcome > 0), total(log_weight), powers)

    @classmethod
    def added(cls, parts: Sequence[WeightBins]) -> WeightBins:
        bins, at = np.unique(np.concatenate([part.bin for part in parts]), return_inverse=True)
        columns = np.concatenate([np.vstack([*part[1:4], part.powers]) for part in parts], axis=1)
        sums = [np.bincount(at, column, minlength=len(bins)).astype(np.float64) for column in columns]
        return cls(bins, sums[0], sums[1], sums[2], np.stack(sums[3:]))

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


class EventSums(NamedTuple):
    """Sums over events; the first index of an array is the side of the limit, below and above the estimate.

    ``moments`` are Σ x², Σ x³ and Σ x⁴ of weights that were divided by ``size``, a power of 2: of what was seen, of
    the control cells that treated rows stand for, and of the control rows that these replace.
    """

    size: float
    moments: Floats  # side × (SEEN, HIDDEN, COUNTED) × power
    chances: tuple[WeightBins, WeightBins]  # the rows that count by their chance, by side
    outcomes: Floats  # side × (BOUGHT, SOLD) × power: Σ outcome ** power
    cells: Floats  # of HIDDEN, by side
    largest: Floats  # outcome: of all rows, and of those that count by their chance on either side
    squares: float  # Σ value² / size²
    rows: int
    treated: bool  # any row
    positive: bool  # any weight

    @classmethod
    def of(cls, events: Events) -> EventSums:
        size = power_of_two(events.weight)
        scaled = events._replace(weight=events.weight / size, value=events.value / size)
        below, above = _Side.of(scaled, size, -1.0), _Side.of(scaled, size, 1.0)
        most = float(events.outcome.max(initial=0.0))
        return cls(
            size, np.stack([below.moments, above.moments]), (below.chances, above.chances),
            np.stack([below.outcomes, above.outcomes]), np.array([below.cells, above.cells]),
            np.array([most, below.largest, above.largest]), float(np.sum(scaled.value**2)), len(events.row),
            bool(events.treated.any()), bool((events.weight > 0.0).any()),
        )  # fmt: skip

    @classmethod
    def added(cls, parts: Sequence[EventSums]) -> EventSums:
        """Those of all users from those of some, in this order."""
        size = max(part.size for part in parts)
        same = [part.at(size) for part in parts]
        below, above = (WeightBins.added([part.chances[at] for part in same]) for at in (0, 1))
        return cls(
            size, np.sum([part.moments for part in same], axis=0), (below, above),
            np.sum([part.outcomes for part in same], axis=0), np.sum([part.cells for part in same], axis=0),
            np.max([part.largest for part in same], axis=0), float(np.sum([part.squares for part in same])),
            sum(part.rows for part in same), any(part.treated for part in same), any(part.positive for part in same),
        )  # fmt: skip

    def at(self, size: float) -> EventSums:
        """The same in units of ``size``, another power of 2."""
        ratio = self.size / size
        moments, squares = self.moments * ratio**_POWERS, self.squares * ratio**2
        below, above = (chances.at(ratio) for chances in self.chances)
        return self._replace(size=size, moments=moments, chances=(below, above), squares=squares)

    def expected(self, side: float, unit: float) -> tuple[float, float, float, float]:
        """Second, third and fourth moment of the sum of events, and the covariance of the sum with the second.

        Rows whose outcome would move the estimate to this side count by their chance of one; rows that move it to
        the other side count by what was seen. ``unit`` is what one outcome counts at most without a propensity.
        """
        at = int(side > 0)
        moments = self.moments[at, SEEN].copy()
        if self.cells[at] > 0:
            moments += self.moments[at, HIDDEN] * self._hidden_chances(at) - self.moments[at, COUNTED]
        if side < 0:  # half a purchase more in the control arm, which has no rows where nothing was bought
            moments += 0.5 * (-unit * max(1.0, self.largest[0])) ** _POWERS
        chances, (expected, common) = self._chances(at), self.chances[at].expected()
        common = float(moments[1]) + common * float(chances[1])
        moments += expected * chances
        return float(moments[0]), float(moments[1]), float(moments[2]), common

    def _chances(self, at: int) -> Floats:
        """Powers of the outcome to expect from a row of the common rate, half a purchase added (Jeffreys)."""
        largest = max(1.0, self.largest[1 + at])
        return np.asarray((self.outcomes[at, BOUGHT] + 0.5 * largest**_POWERS) / (self.chances[at].rows.sum() + 1.0))

    def _hidden_chances(self, at: int) -> Floats:
        """The same for control purchases where P > ½."""
        largest = max(1.0, self.largest[0])
        mean = (self.outcomes[at, SOLD] + 0.5 * largest**_POWERS) / (self.cells[at] + 1.0)
        return np.asarray(np.minimum(mean, largest**_POWERS))


class _Side(NamedTuple):
    moments: Floats
    chances: WeightBins
    outcomes: Floats
    cells: float
    largest: float

    @classmethod
    def of(cls, events: Events, size: float, side: float) -> _Side:
        """Rows whose outcome would move the estimate to this side count by their chance of one, others as seen."""
        weight, outcome = events.weight, events.outcome
        chance = events.treated & (weight * side > 0)
        hidden, cells, sold, counted = _rare_controls(events, side)
        return cls(
            np.stack([_moments(weight[~chance] * outcome[~chance]), hidden, counted]),
            WeightBins.of(weight[chance], outcome[chance], size),
            np.stack([_powers(outcome[chance]), sold]),
            cells,
            float(outcome[chance].max(initial=0.0)),
        )


def _rare_controls(events: Events, side: float) -> tuple[Floats, float, Floats, Floats]:
    """Control cells where P > ½ that the treated rows stand for, and the control purchases seen there.

    A control row without a purchase is not in the log, but the treated rows say where it would be: each stands for
    (1−P)/P control cells with a weight of 1/(1−P).
    """
    rare = events.propensity > _MANY
    shown = rare & events.treated & (events.weight * side < 0) & (events.propensity < 1.0)
    sold = rare & ~events.treated & (events.weight * side > 0)
    p = events.propensity[shown]
    cells, weight = (1.0 - p) / p, -events.weight[shown] * p / (1.0 - p)
    hidden = np.array([np.sum(cells * weight**j) for j in (2, 3, 4)])
    outcome = events.outcome[sold]
    return hidden, float(cells.sum()), _powers(outcome), _moments(events.weight[sold] * outcome)


def power_of_two(*arrays: Floats) -> float:
    """A power of 2 no smaller than any value, so that dividing by it is exact."""
    largest = max(float(np.abs(array).max(initial=0.0)) for array in arrays)
    return float(2.0 ** np.frexp(largest)[1]) if largest > 0 else 1.0


def _moments(value: Floats) -> Floats:
    return np.array([np.sum(value**2), np.sum(value**3), np.sum(value**4)])


def _powers(outcome: Floats) -> Floats:
    return np.array([np.sum(outcome**j) for j in (2, 3, 4)])
