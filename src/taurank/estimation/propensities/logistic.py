"""A logistic model of cells from treated rows and weighted cells.

The log-likelihood of all cells is Σ_treated η − Σ_cells log(1 + e^η). The first sum is over rows of the log; the
second is estimated without bias by cells that were drawn with known probabilities and carry the inverse weight.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.special import expit

Floats = npt.NDArray[np.float64]
Floats32 = npt.NDArray[np.float32]

BLOCK = 1 << 16
STEPS = 50


def fit_logistic(cases: Floats32, case_weight: float, cells: Floats32, weight: Floats, ridge: float) -> Floats:
    """β that maximizes Σ_cases w η − Σ_cells w log(1 + e^η) − ridge/2 Σ β², η = offset + x·β.

    Column 0 of both tables is the offset; column 1, the intercept, is not penalized.
    """
    gathered = case_weight * cases[:, 1:].sum(axis=0, dtype=np.float64)
    beta = np.zeros(cells.shape[1] - 1)
    penalty = np.full(len(beta), ridge)
    penalty[0] = 1e-6
    for _ in range(STEPS):
        slope, curvature = _moments(cells, weight, beta)
        step = np.linalg.solve(curvature + np.diag(penalty), gathered - slope - penalty * beta)
        largest = float(np.abs(step).max())
        beta = beta + step * min(1.0, 2.0 / max(largest, 1e-300))
        if largest < 1e-7:
            break
    return beta


def _moments(cells: Floats32, weight: Floats, beta: Floats) -> tuple[Floats, Floats]:
    """Σ w p x and Σ w p (1 − p) x xᵀ, block by block."""
    slope, curvature = np.zeros(len(beta)), np.zeros((len(beta), len(beta)))
    for start in range(0, len(cells), BLOCK):
        block = cells[start : start + BLOCK].astype(np.float64)
        x = block[:, 1:]
        p = expit(block[:, 0] + x @ beta)
        mass = weight[start : start + BLOCK] * p
        slope += mass @ x
        curvature += (x * (mass * (1.0 - p))[:, None]).T @ x
    return slope, curvature


def level(log_odds: Floats, weight: Floats, group: npt.NDArray[np.int64], wanted: Floats) -> Floats:
    """For each group the shift d with Σ_cells w σ(log_odds + d) = wanted."""
    n = len(wanted)
    low, high = np.full(n, -30.0), np.full(n, 30.0)
    for _ in range(50):
        middle = 0.5 * (low + high)
        total = np.bincount(group, weight * expit(log_odds + middle[group]), n)
        low, high = np.where(total < wanted, middle, low), np.where(total < wanted, high, middle)
    return np.asarray(0.5 * (low + high))
