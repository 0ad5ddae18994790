"""Estimators of an effect as rows of a log: (capped) IPS, SNIPS and the doubly robust one are four settings of one.

    τ̃ = Z·Y / D^T − (1−Z)·Y / D^C + c·(1 − Z / D^T),    D^T = max(P, χ^T), D^C = max(1 − P, χ^C)

IPS has c = 0, the doubly robust estimator a cross-fitted c, and SNIPS the one constant that the treated rows within a
metric's reach have themselves as their weighted mean. An absent row has Z = Y = 0 and adds c alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from taurank.data.log import Log
from taurank.errors import InputError
from taurank.estimation.caps import Caps
from taurank.estimation.variate import Variate, outcomes_of

Floats = npt.NDArray[np.float64]
Rows = npt.NDArray[np.intp]


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

    def weights(self, log: Log, rows: Rows) -> Floats:
        """Z / D^T − (1−Z) / D^C: what an outcome in each row counts."""
        propensity = log.recorded_propensity(self.name)[rows]
        treated = log.treated[rows] == 1
        floor, control = np.maximum(propensity, self.caps.treated), np.maximum(1.0 - propensity, self.caps.control)
        with np.errstate(over="ignore", divide="ignore"):
            weight = np.where(treated, 1.0 / floor, -1.0 / control)
        if not np.isfinite(weight).all():
            raise InputError("a propensity is too small to be inverted; give a cap, such as cap=0.01.")
        return weight

    def values(self, log: Log, rows: Rows) -> Floats:
        """τ̃ of each row without the c that every cell adds; SNIPS is normalized later, within a metric's reach."""
        weight = self.weights(log, rows)
        gain = weight * outcomes_of(log, rows)
        if self.variate is None:
            return gain
        expected = self.variate.at(log.user[rows], log.item[rows], log.time[rows])
        return gain - expected * np.where(log.treated[rows] == 1, weight, 0.0)
