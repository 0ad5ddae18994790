"""Estimators of an effect as rows of a log: (capped) IPS, SNIPS and the doubly robust one are four settings of one.

    τ̃ = Z·Y / D^T − (1−Z)·Y / D^C + c·(1 − Z / D^T),    D^T = max(P, χ^T), D^C = max(1 − P, χ^C)

IPS has c = 0, SNIPS the one constant that the treated rows within a metric's reach have themselves as their weighted
mean. An absent row has Z = Y = 0 and adds c alone. For any c that does not depend on the cell's own Z and Y the
mean stays what it is, because E[Z] = P; the variance is smallest for c = μ^T + μ^C·P/(1−P), the doubly robust
estimate (docs/theory.md). c must be known at *every* cell, so it is made of factors: a user's readiness to buy times
an item's rates, fitted in folds of times (of users, if there is one time), each without its own rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from taurank._checks import check_integer, check_number
from taurank._types import Codes, Floats, Longs, Mask
from taurank.data.log import Log
from taurank.errors import InputError
from taurank.estimation.folds import MAX_FOLDS, Folds

NEAR = 1e-3  # a propensity within this of 0 or 1, the limits included, lacks overlap: one arm is hardly observed
MAX_WEIGHT = 1e75  # its fourth power can be added up
_ITEM_PRIOR = 20.0  # treated rows of the mean item that every item's rate is shrunk toward
_USER_PRIOR = 3.0  # expected purchases that every user's readiness is shrunk toward 1 with
_MAX_SHARE = 0.9  # an item's share of treated cells, at most: P/(1−P) stays below 9


@dataclass(frozen=True)
class Caps:
    """χ^T and χ^C: capped IPS divides by D^T = max(P, χ^T) and D^C = max(1 − P, χ^C). 0 does not cap."""

    treated: float = 0.0
    control: float = 0.0

    @classmethod
    def of(cls, cap: float | None, cap_treated: float | None = None, cap_control: float | None = None) -> Caps:
        """``cap`` applies to both arms; ``cap_treated`` and ``cap_control`` override it for their own."""
        for name, value in (("cap", cap), ("cap_treated", cap_treated), ("cap_control", cap_control)):
            if value is not None:
                check_number(name, value, 0, maximum=1)
        return cls(*(float((cap or 0.0) if own is None else own) for own in (cap_treated, cap_control)))

    def denominators(self, propensity: npt.NDArray[Any]) -> tuple[Floats, Floats]:
        """max(P, χ^T) and max(1 − P, χ^C)."""
        return np.maximum(propensity, self.treated), np.maximum(1.0 - propensity, self.control)


@dataclass(frozen=True, eq=False)
class Estimator:
    """What an estimate divides by and corrects with; ``normalized`` is SNIPS.

    With ``overlap_only`` rows that lack overlap are set aside when a ranking is measured, unless a cap mends it.
    """

    name: str
    caps: Caps = Caps()
    variate: Variate | None = None
    normalized: bool = False
    overlap_only: bool = False

    @property
    def is_dense(self) -> bool:
        """Whether cells without a row count."""
        return self.variate is not None or self.normalized

    def weights(self, log: Log, rows: Longs) -> Floats:
        """Z / D^T − (1−Z) / D^C: what an outcome in each row counts."""
        treated, control = self.caps.denominators(log.recorded_propensity(self.name)[rows])
        with np.errstate(over="ignore", divide="ignore"):
            weight = np.where(log.treated[rows] == 1, 1.0 / treated, -1.0 / control)
        if not (np.abs(weight) < MAX_WEIGHT).all():
            raise InputError("a propensity is too small to be inverted; give a cap, such as cap=0.01.")
        return weight

    def values(self, log: Log, rows: Longs) -> Floats:
        """τ̃ of each row without the c that every cell adds; SNIPS is normalized later, within a metric's reach."""
        weight = self.weights(log, rows)
        gain = weight * outcomes_of(log, rows)
        if self.variate is None:
            return gain
        expected = self.variate.at(log.user[rows], log.item[rows], log.time[rows])
        return gain - expected * np.where(log.treated[rows] == 1, weight, 0.0)


def outcomes_of(log: Log, rows: Any = slice(None)) -> Floats:
    """Y, or what it is worth where the log has values."""
    outcome: Floats = log.outcome[rows].astype(np.float64)
    return outcome if log.value is None else np.asarray(outcome * log.value[rows], dtype=np.float64)


def almost_never(propensity: npt.NDArray[Any]) -> Mask:
    """P ≤ 0.001: the recommendation is practically never made, so its outcome is hardly observed."""
    return np.asarray(propensity <= NEAR)


def almost_always(propensity: npt.NDArray[Any]) -> Mask:
    """P ≥ 0.999: the recommendation is practically always made, so its absence is hardly observed."""
    return np.asarray(propensity >= 1.0 - NEAR)


def lacks_overlap(propensity: npt.NDArray[Any]) -> Mask:
    """One of the two arms is hardly observed."""
    return almost_never(propensity) | almost_always(propensity)


@dataclass(frozen=True, eq=False)
class Variate:
    """c of a cell in fold f: Σ_r user_factor[f, user, r] · item_factor[f, item, r].

    The fold is that of the cell's time, or of its user where ``fold_of_user`` is given.
    """

    user_factor: Floats  # folds × users × terms
    item_factor: Floats  # folds × items × terms
    fold_of_time: npt.NDArray[Any]
    fold_of_user: npt.NDArray[Any] | None = None

    @property
    def folds(self) -> int:
        return len(self.user_factor)

    def at(self, user: Codes, item: Codes, time: Codes) -> Floats:
        """c at these cells."""
        fold = self.fold_of_time[time] if self.fold_of_user is None else self.fold_of_user[user]
        product = self.user_factor[fold, user] * self.item_factor[fold, item]
        return np.asarray(product.sum(axis=1), dtype=np.float64)


def fit_variate(log: Log, folds: int = 5) -> Variate:
    """Fit c in folds, each from the rows of the other folds: of each item μ^T and μ^C·p/(1−p), and of each user how
    much more than expected the user buys, and how much more than the mean one is shown.
    """
    check_integer("folds", folds, 2, MAX_FOLDS)
    shape, by_time = log.eligibility.shape, log.n_times > 1
    parts = Folds.from_times(shape, folds) if by_time else Folds.from_users(shape, folds)
    fold, outcome, treated = parts.at(log.user, log.item, log.time), outcomes_of(log), log.treated == 1
    cells = log.eligibility.cells_by_item * (1.0 - 1.0 / parts.count)
    users, items = np.ones((parts.count, log.n_users, 2)), np.empty((parts.count, log.n_items, 2))
    for f in range(parts.count):
        seen = fold != f
        on, off = seen & treated, seen & ~treated
        shown = _count(log.item[on], log.n_items)
        rate = _shrunk(_count(log.item[on], log.n_items, outcome[on]), shown)
        anyway = _shrunk(_count(log.item[off], log.n_items, outcome[off]), np.maximum(cells - shown, 0.0))
        share = np.minimum(shown / np.maximum(cells, 1.0), _MAX_SHARE)
        items[f] = np.stack([rate, anyway * share / (1.0 - share)], axis=1)
        if not by_time:
            continue  # the users of this fold have no other rows
        bought, shown = _count(log.user[seen], log.n_users, outcome[seen]), _count(log.user[on], log.n_users)
        expected = _count(log.user[on], log.n_users, rate[log.item[on]]) + float(outcome[off].sum()) / log.n_users
        unit = max(float(bought.sum()), 1e-300) / max(float(np.count_nonzero(log.outcome[seen])), 1.0)
        ready = (bought + _USER_PRIOR * unit) / (expected + _USER_PRIOR * unit)
        exposure = (shown + _ITEM_PRIOR) / (shown.mean() + _ITEM_PRIOR)
        users[f] = np.stack([ready, ready * exposure], axis=1)
    return Variate(users, items, parts.time, None if by_time else parts.user)


def _shrunk(total: Floats, count: Floats) -> Floats:
    """Rates, shrunk toward the common one."""
    common = float(total.sum()) / max(float(count.sum()), 1.0)
    return (total + _ITEM_PRIOR * common) / (count + _ITEM_PRIOR)


def _count(codes: Codes, n: int, weight: Floats | None = None) -> Floats:
    return np.bincount(codes, weight, minlength=n).astype(np.float64)
