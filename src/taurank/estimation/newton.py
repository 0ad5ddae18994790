"""Newton's method for logistic models of weighted cells with a ridge, and the intercepts of groups of cells."""

from __future__ import annotations

import numpy as np
from scipy.special import expit

from taurank._types import Floats, Floats32, Longs

BLOCK = 1 << 16
MAX_STEPS = 50
MAX_STEP = 2.0  # of a coefficient: a full step may overshoot
TOLERANCE = 1e-7  # largest change of a coefficient in the last step


def fit_logistic(
    observed: Floats, offset: Floats | Floats32, x: Floats | Floats32, weight: Floats, ridge: Floats | float
) -> Floats:
    """β that maximizes observed·β − Σ_cells w log(1 + e^η) − ridge/2 Σ β², with η = offset + x·β.

    ``observed`` is Σ w y x, over the treated rows of a log, say: the cells themselves may be a weighted sample, whose
    sums are unbiased for those over all cells.
    """
    beta, penalty = np.zeros(x.shape[1]), np.full(x.shape[1], ridge)
    for _ in range(MAX_STEPS):
        expected, curvature = np.zeros(len(beta)), np.zeros((len(beta), len(beta)))
        for start in range(0, len(x), BLOCK):
            rows = slice(start, start + BLOCK)
            block = x[rows].astype(np.float64)
            p = expit(offset[rows] + block @ beta)
            mass = weight[rows] * p
            expected += mass @ block
            curvature += (block * (mass * (1.0 - p))[:, None]).T @ block
        step = np.linalg.solve(curvature + np.diag(penalty), observed - expected - penalty * beta)
        largest = float(np.abs(step).max())
        beta = beta + step * min(1.0, MAX_STEP / max(largest, 1e-300))
        if largest < TOLERANCE:
            break
    return beta


def fit_intercepts(log_odds: Floats, weight: Floats, group: Longs, wanted: Floats) -> Floats:
    """For each group the intercept d with Σ_cells w σ(log_odds + d) = wanted."""
    low, high = np.full(len(wanted), -30.0), np.full(len(wanted), 30.0)
    for _ in range(50):
        middle = 0.5 * (low + high)
        total = np.bincount(group, weight * expit(log_odds + middle[group]), len(wanted))
        low, high = np.where(total < wanted, middle, low), np.where(total < wanted, high, middle)
    return np.asarray(0.5 * (low + high))
