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
SEEN, CHANCE, HIDDEN, COUNTED = range(4)  # which moments of a side
BOUGHT, SOLD = range(2)  # which outcomes of a side: of the rows of CHANCE, of those of COUNTED
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


class EventSums(NamedTuple):
    """Sums over events; the first index of an array is the side of the limit, below and above the estimate.

    ``moments`` are Σ x², Σ x³ and Σ x⁴ of weights that were divided by ``size``, a power of 2: of what was seen, of
    the rows that count by their chance, of the control cells that treated rows stand for, and of the control rows
    that these replace.
    """

    size: float
    moments: Floats  # side × (SEEN, CHANCE, HIDDEN, COUNTED) × power
    weights: Floats  # side: Σ weight / size of the rows of CHANCE
    outcomes: Floats  # side × (BOUGHT, SOLD) × power: Σ outcome ** power
    counts: Floats  # side × (rows of CHANCE, cells of HIDDEN)
    largest: Floats  # outcome: of all rows, and of CHANCE on either side
    squares: float  # Σ value² / size²
    rows: int
    treated: bool  # any row
    positive: bool  # any weight

    @classmethod
    def of(cls, events: Events) -> EventSums:
        size = power_of_two(events.weight)
        scaled = events._replace(weight=events.weight / size, value=events.value / size)
        below, above = _Side.of(scaled, -1.0), _Side.of(scaled, 1.0)
        most = float(events.outcome.max(initial=0.0))
        return cls(
            size, np.stack([below.moments, above.moments]), np.array([below.weight, above.weight]),
            np.stack([below.outcomes, above.outcomes]), np.stack([below.counts, above.counts]),
            np.array([most, below.largest, above.largest]),
            float(np.sum(scaled.value**2)), len(events.row), bool(events.treated.any()),
            bool((events.weight > 0.0).any()),
        )  # fmt: skip

    @classmethod
    def added(cls, parts: Sequence[EventSums]) -> EventSums:
        """Those of all users from those of some, in this order."""
        size = max(part.size for part in parts)
        same = [part.at(size) for part in parts]
        return cls(
            size, np.sum([part.moments for part in same], axis=0), np.sum([part.weights for part in same], axis=0),
            np.sum([part.outcomes for part in same], axis=0), np.sum([part.counts for part in same], axis=0),
            np.max([part.largest for part in same], axis=0),
            float(np.sum([part.squares for part in same])), sum(part.rows for part in same),
            any(part.treated for part in same), any(part.positive for part in same),
        )  # fmt: skip

    def at(self, size: float) -> EventSums:
        """The same in units of ``size``, another power of 2."""
        ratio = self.size / size
        moments, squares = self.moments * ratio**_POWERS, self.squares * ratio**2
        return self._replace(size=size, moments=moments, weights=self.weights * ratio, squares=squares)

    def expected(self, side: float, unit: float) -> tuple[float, float, float, float]:
        """Second, third and fourth moment of the sum of events, and the covariance of the sum with the second.

        Rows whose outcome would move the estimate to this side count by their chance of one; rows that move it to
        the other side count by what was seen. ``unit`` is what one outcome counts at most without a propensity.
        """
        at = int(side > 0)
        moments = self.moments[at, SEEN].copy()
        if self.counts[at, 1] > 0:
            moments += self.moments[at, HIDDEN] * self._hidden_chances(at) - self.moments[at, COUNTED]
        if side < 0:  # half a purchase more in the control arm, which has no rows where nothing was bought
            moments += 0.5 * (-unit * max(1.0, self.largest[0])) ** _POWERS
        chances = self._chances(at)
        common = float(moments[1]) + self._common(at) * float(chances[1])
        moments += self.moments[at, CHANCE] * chances
        return float(moments[0]), float(moments[1]), float(moments[2]), common

    def _common(self, at: int) -> float:
        """Σw² · Σw/n: how the sum of the rows that count by their chance varies with their second moment.

        That is Σw² times a rate, and the sum varies with this rate by Σw/n only. For equal weights it is the third
        moment, as for any variance that was seen; for unequal ones it is less.
        """
        return float(self.moments[at, CHANCE, 0] * self.weights[at] / max(self.counts[at, 0], 1.0))

    def _chances(self, at: int) -> Floats:
        """Powers of the outcome to expect from one chance for all rows, half a purchase added (Jeffreys)."""
        largest = max(1.0, self.largest[1 + at])
        return np.asarray((self.outcomes[at, BOUGHT] + 0.5 * largest**_POWERS) / (self.counts[at, 0] + 1.0))

    def _hidden_chances(self, at: int) -> Floats:
        """The same for control purchases where P > ½."""
        largest = max(1.0, self.largest[0])
        mean = (self.outcomes[at, SOLD] + 0.5 * largest**_POWERS) / (self.counts[at, 1] + 1.0)
        return np.asarray(np.minimum(mean, largest**_POWERS))


class _Side(NamedTuple):
    moments: Floats
    weight: float
    outcomes: Floats
    counts: Floats
    largest: float

    @classmethod
    def of(cls, events: Events, side: float) -> _Side:
        """Rows whose outcome would move the estimate to this side count by their chance of one, others as seen."""
        weight, outcome = events.weight, events.outcome
        chance = events.treated & (weight * side > 0)
        hidden, cells, sold, counted = _rare_controls(events, side)
        seen = _moments(weight[~chance] * outcome[~chance])
        return cls(
            np.stack([seen, _moments(weight[chance]), hidden, counted]),
            float(np.sum(weight[chance])),
            np.stack([_powers(outcome[chance]), sold]),
            np.array([np.count_nonzero(chance), cells], np.float64),
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
