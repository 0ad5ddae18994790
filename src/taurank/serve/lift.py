"""What lists have caused so far: running sums per arm, and intervals that hold at any time.

A fixed-time interval is wrong for somebody who looks every day and stops when it pleases. Here all intervals of a
sequence hold at once with probability 1 − α (Robbins' normal mixture in information time):

    m_t ± √((I + λ) · log((I + λ) / (λ α²))) / I,    I = 1 / V_t.

The errors of means over growing data have independent increments in I, also if the same users come back in every
period (the variance is then clustered by user), so they behave like a Brownian motion W(I)/I, and |W(v)| stays below
√((v + λ) log((v + λ)/(λ α²))) at all v with probability at least 1 − α. That is asymptotic: it fails as long as the
rare events that decide (an item with a small π was shown, one at the ceiling was not) have not happened, because
the variance of the data is then too small. A bought item adds W = Z − (1 − Z) π/(1 − π) to the lift, and if lists
cause nothing,

    E W = 0,    E W² = π/(1 − π) = w,    E W⁴ = π + (1 − π) w⁴,

known before Z is. So Σ E W⁴ / Σ E W² is the square that a deciding event adds, and (Σ E W²)² / Σ E W⁴ the number of
them to be expected. A sequence starts when ten are expected; where they are hopelessly rare it never starts. And
V_t is the variance of the data as if four more of them had happened.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt
from scipy.special import gammaln

from taurank._types import Floats

RECOMMENDED = ("incumbent", "challenger")  # the arms that get lists
COLUMNS = ("visits", "purchases", "lift", "value")  # of a user
WEIGHTED = COLUMNS[2:]
ALPHA = 0.05
# λ in units of the first look's information: tightest at about thirty times that
MIXTURE = 4.0
MIN_USERS = 100  # per arm, at the first look
MIN_EVENTS = 10.0  # expected at the first look; this and the next two were chosen by simulation, on cells and
EXTRA_EVENTS = 4.0  # seeds that are not those of `benchmarks/serve.py --grid`, which shows what they achieve
SAFETY = 0.8  # of α, since the statement is asymptotic


class Interval(NamedTuple):
    """An estimate with its bounds, which are infinite before a sequence starts."""

    estimate: float = math.nan
    low: float = -math.inf
    high: float = math.inf


class Estimate(NamedTuple):
    """A mean per visit, or the difference of two."""

    value: float
    variance: float  # clustered by user
    chance: float  # the variance that chance causes if lists cause nothing
    fourth: float  # the fourth moments behind it
    users: int  # of the smaller arm

    def __sub__(self, other: Estimate) -> Estimate:
        """The difference of two arms, which have no user in common."""
        return Estimate(
            self.value - other.value, self.variance + other.variance, self.chance + other.chance,
            self.fourth + other.fourth, min(self.users, other.users),
        )  # fmt: skip


@dataclass
class Totals:
    """Sums over the users of an arm; a settled period changes them by what its users had before and have after."""

    users: int = 0
    sums: Floats = field(default_factory=lambda: np.zeros((len(COLUMNS), 4)))  # Σx, Σx², Σx·visits, Σx⁴ over users
    chance: Floats = field(default_factory=lambda: np.zeros((len(WEIGHTED), 2)))  # Σ E W², Σ E W⁴ over bought items

    def change(self, before: Floats, after: Floats) -> None:
        """Replace users, one per row with ``COLUMNS``, by what they are now."""
        self.users += int(np.count_nonzero(after[:, 0]) - np.count_nonzero(before[:, 0]))
        self.sums += _moments(after) - _moments(before)

    @property
    def visits(self) -> int:
        return round(float(self.sums[0, 0]))

    def total(self, column: str) -> float:
        return float(self.sums[COLUMNS.index(column), 0])

    def mean(self, column: str) -> Estimate:
        """The mean of a column per visit."""
        total, square, cross, _ = self.sums[COLUMNS.index(column)].tolist()
        visits, visits_square = self.sums[0, :2].tolist()
        mean, variance = mean_and_variance(self.users, visits, visits_square, total, square, cross)
        second, fourth = self.chance[WEIGHTED.index(column)].tolist() if column in WEIGHTED else (0.0, 0.0)
        n = max(visits, 1.0)
        return Estimate(mean, variance, second / n**2, fourth / n**4, self.users)


def _moments(state: Floats) -> Floats:
    return np.stack([state.sum(0), (state**2).sum(0), (state * state[:, :1]).sum(0), (state**4).sum(0)], axis=1)


def mean_and_variance(
    users: int, visits: float, visits_square: float, total: float, square: float, cross: float
) -> tuple[float, float]:
    """m = Σ_u S_u / N and its variance Σ_u (S_u − m·n_u)² / N² · G/(G − 1), for G users with S_u in n_u visits."""
    if users < 2:
        return math.nan, math.inf
    mean = total / visits
    spread = max(square - 2 * mean * cross + mean * mean * visits_square, 0.0)
    return mean, spread / (visits * visits) * users / (users - 1.0)


def half_width(variance: float, first: float, alpha: float) -> float:
    """Half of the interval at a look with this variance; ``first`` is that of the first look."""
    information, mixture = 1.0 / variance, MIXTURE / first
    both = information + mixture
    return math.sqrt(both * math.log(both / (mixture * alpha * alpha))) / information


def against_holdout(lists: Totals, holdout: Totals) -> Estimate:
    """All purchases per visit with lists minus those of the hold-out.

    If lists cause nothing, both arms buy alike: their users' purchases together say how much chance adds to each.
    """
    difference = lists.mean("purchases") - holdout.mean("purchases")
    arms = np.array([lists.visits, holdout.visits], np.float64)
    if not arms.all():
        return difference
    _, square, _, fourth = (lists.sums[1] + holdout.sums[1]) / arms.sum()
    return difference._replace(chance=float(square * (1 / arms).sum()), fourth=float(fourth * (1 / arms**3).sum()))


def interval(estimate: Estimate, first: float, alpha: float = ALPHA) -> tuple[Interval, float]:
    """The interval at a look, and the variance of the first look (0 as long as there was none)."""
    variance = with_extra_events(estimate.variance, estimate.chance, estimate.fourth)
    if estimate.users < MIN_USERS or not 0 < variance < math.inf:
        return Interval(estimate.value), first
    first = first or variance
    width = half_width(variance, first, SAFETY * alpha)
    return Interval(estimate.value, estimate.value - width, estimate.value + width), first


def with_extra_events(variance: float, chance: float, fourth: float) -> float:
    """The variance of a look as if more of the deciding events had happened; infinite if too few are expected."""
    if fourth == 0.0 or chance * chance < MIN_EVENTS * fourth:
        return math.inf
    return variance + EXTRA_EVENTS * fourth / chance


@dataclass
class Measure:
    """The running sums of a surface since a period, and the sequences of intervals made from them."""

    since: int
    periods: int = 0
    arms: dict[str, Totals] = field(default_factory=dict)
    first: dict[str, float] = field(default_factory=dict)
    last: dict[str, Interval] = field(default_factory=dict)

    def arm(self, name: str) -> Totals:
        return self.arms.setdefault(name, Totals())

    def interval(self, name: str) -> Interval:
        return self.last.get(name, Interval())

    def look(self, alpha: float) -> None:
        """The next interval of every sequence; ``alpha`` is that of challenger − incumbent."""
        for column in WEIGHTED:
            for arm in ("recommended", *RECOMMENDED):
                if arm in self.arms:
                    self._next(f"{arm} {column}", self.arms[arm].mean(column), ALPHA)
            if set(RECOMMENDED) <= self.arms.keys():
                challenger, incumbent = self.arms["challenger"], self.arms["incumbent"]
                self._next(f"difference {column}", challenger.mean(column) - incumbent.mean(column), alpha)
        if {"recommended", "holdout"} <= self.arms.keys():
            self._next("holdout", against_holdout(self.arms["recommended"], self.arms["holdout"]), ALPHA)

    def _next(self, name: str, estimate: Estimate, alpha: float) -> None:
        self.last[name], self.first[name] = interval(estimate, self.first.get(name, 0.0), alpha)

    def dump(self) -> str:
        return json.dumps(asdict(self), default=np.ndarray.tolist)

    @classmethod
    def load(cls, since: int, body: str) -> Self:
        """From the text of ``dump``; empty text is a new measure."""
        fields: dict[str, Any] = json.loads(body) if body else {"since": since}
        arms = {
            name: Totals(totals["users"], np.array(totals["sums"]), np.array(totals["chance"]))
            for name, totals in fields.pop("arms", {}).items()
        }
        last = {name: Interval(*ends) for name, ends in fields.pop("last", {}).items()}
        return cls(**fields, arms=arms, last=last)


def chance_moments(propensity: Floats, value: Floats) -> Floats:
    """Σ E W² and Σ E W⁴ of bought items, in purchases and in value."""
    odds = propensity / (1 - propensity)
    fourth = propensity + (1 - propensity) * odds**4
    return np.array([[odds.sum(), fourth.sum()], [(odds * value**2).sum(), (fourth * value**4).sum()]])


def spent_alpha(number: int) -> float:
    """α of the challenger with this number, from 1: all of them together spend ``ALPHA``, however many there are."""
    return ALPHA * 6 / (math.pi * max(1, number)) ** 2


def ratio_evidence(counts: npt.ArrayLike, shares: npt.ArrayLike) -> float:
    """log of the evidence that counts do not follow the planned shares; alarm above log(1/α), at any time.

    The ratio of the Dirichlet-multinomial likelihood (prior mean: the shares) to the planned multinomial one
    is a martingale with mean 1 if the shares are right, so it exceeds 1/α with probability at most α, ever.
    """
    n, p = np.asarray(counts, dtype=np.float64), np.asarray(shares, dtype=np.float64)
    prior = p * 100.0
    mixed = gammaln(prior.sum()) - gammaln((prior + n).sum()) + (gammaln(prior + n) - gammaln(prior)).sum()
    return float(mixed - (n * np.log(p)).sum())
