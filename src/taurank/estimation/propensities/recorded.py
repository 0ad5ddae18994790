"""Propensities for the rows that lack one, on the scale of those that were recorded.

A model of exposure has estimates p̂ for all rows, and some rows record the true P. Among these the line
logit P = a + b logit p̂ is fitted and applied to the estimates of the rows without a record. The fit must
represent the rows it is used for. Missing rows of an arm are represented by recorded rows of the same arm; where an
arm has none (purchases of items that were not shown, say), by those of the other arm, weighted from one arm to
the other: a treated row stands for (1 − P)/P untreated cells like it, an untreated one for P/(1 − P) treated ones.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.special import expit, logit

from taurank.data.log import Log
from taurank.estimation.propensities.cells import BOUND

Floats = npt.NDArray[np.float64]

ENOUGH = 50  # recorded rows of an arm that represent it
HEAVIEST = 1000.0  # largest weight of a row that represents the other arm
PRIOR = 1.0  # as if so many rows said a = 0, b = 1


def fill_in(log: Log, estimates: Floats) -> Floats:
    """The recorded propensities, and calibrated estimates in the rows that have none."""
    if log.propensity is None:
        return estimates
    result = log.propensity.copy()
    lacking = np.isnan(result)
    for arm in (0, 1):
        missing = lacking & (log.treated == arm)
        if missing.any():
            rows, weight = _representatives(log, result, arm)
            a, b = calibration_line(logit(estimates[rows]), result[rows], weight)
            result[missing] = np.clip(expit(a + b * logit(estimates[missing])), BOUND, 1.0 - BOUND)
    return result


def _representatives(log: Log, propensity: Floats, arm: int) -> tuple[npt.NDArray[np.int64], Floats]:
    """Recorded rows and the weights with which they represent the rows of an arm."""
    recorded = ~np.isnan(propensity)
    own = np.flatnonzero(recorded & (log.treated == arm))
    other = np.flatnonzero(recorded & (log.treated != arm))
    if len(own) >= ENOUGH or not len(other):
        return own, np.ones(len(own))
    p = propensity[other]
    odds = (1.0 - p) / p if arm == 0 else p / (1.0 - p)
    return other, np.minimum(odds, HEAVIEST)


def calibration_line(log_odds: Floats, target: Floats, weight: Floats) -> tuple[float, float]:
    """a, b that maximize Σ w [P log q + (1 − P) log(1 − q)], q = σ(a + b·log_odds), held near (0, 1) by PRIOR."""
    line, at_rest = np.array([0.0, 1.0]), np.array([0.0, 1.0])
    if not len(log_odds):
        return 0.0, 1.0
    weight = weight / weight.mean()
    columns = np.stack([np.ones_like(log_odds), log_odds])
    for _ in range(100):
        q = expit(line @ columns)
        slope = columns @ (weight * (target - q)) - PRIOR * (line - at_rest)
        curvature = (columns * (weight * q * (1.0 - q))) @ columns.T + PRIOR * np.eye(2)
        step = np.linalg.solve(curvature, slope)
        line = line + step / max(1.0, float(np.abs(step).max()))
        if np.abs(step).max() < 1e-10:
            break
    return float(line[0]), float(line[1])
