"""Estimators of an effect as rows of a log: (capped) IPS, SNIPS and the doubly robust one are four settings of one.

    τ̃ = Z·Y / D^T − (1−Z)·Y / D^C + c·(1 − Z / D^T),    D^T = max(P, χ^T), D^C = max(1 − P, χ^C)

IPS has c = 0, the doubly robust estimator a cross-fitted c, and SNIPS the one constant that the treated rows within a
metric's reach have themselves as their weighted mean. An absent row has Z = Y = 0 and adds c alone. Where P is within
NEAR of 0 or 1 one arm is hardly observed: such rows and their pairs lack overlap.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from taurank._checks import check_number
from taurank._types import Floats, Longs, Mask
from taurank.data.log import Log
from taurank.errors import InputError
from taurank.estimation.variate import Variate, outcomes_of

NEAR = 1e-3  # a propensity within this of 0 or 1, the limits included, lacks overlap


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
        both = cap or 0.0
        return cls(
            float(both if cap_treated is None else cap_treated), float(both if cap_control is None else cap_control)
        )

    def denominators(self, propensity: npt.NDArray[Any]) -> tuple[Floats, Floats]:
        """max(P, χ^T) and max(1 − P, χ^C)."""
        return np.maximum(propensity, self.treated), np.maximum(1.0 - propensity, self.control)


_NO_CAPS = Caps()


@dataclass(frozen=True, eq=False)
class Estimator:
    """What an estimate divides by and corrects with; ``normalized`` is SNIPS."""

    name: str
    caps: Caps = _NO_CAPS
    variate: Variate | None = None
    normalized: bool = False

    @property
    def is_dense(self) -> bool:
        """Whether cells without a row count."""
        return self.variate is not None or self.normalized

    def weights(self, log: Log, rows: Longs) -> Floats:
        """Z / D^T − (1−Z) / D^C: what an outcome in each row counts."""
        treated, control = self.caps.denominators(log.recorded_propensity(self.name)[rows])
        with np.errstate(over="ignore", divide="ignore"):
            weight = np.where(log.treated[rows] == 1, 1.0 / treated, -1.0 / control)
        if not np.isfinite(weight).all():
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


def almost_never(propensity: npt.NDArray[Any]) -> Mask:
    """P ≤ 0.001: the recommendation is practically never made, so its outcome is hardly observed."""
    return np.asarray(propensity <= NEAR)


def almost_always(propensity: npt.NDArray[Any]) -> Mask:
    """P ≥ 0.999: the recommendation is practically always made, so its absence is hardly observed."""
    return np.asarray(propensity >= 1.0 - NEAR)


def lacks_overlap(propensity: npt.NDArray[Any]) -> Mask:
    """One of the two arms is hardly observed."""
    return almost_never(propensity) | almost_always(propensity)
