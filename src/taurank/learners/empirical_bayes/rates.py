"""The mean rate of each unit in both arms, shrunk toward what the units have in common.

A unit (an item, a group of pairs, the pairs of an item in one group) has y^T positives of e^T expected ones, and the
same in the control arm. Its two log-rates are bivariate normal and its positives Poisson,

    (z^T, z^C) ~ N(m, Σ),    y^a ~ Poisson(e^a exp(z^a)),

so a unit that has little in one arm follows what its other arm says. m and Σ are estimated by EM with Laplace's
approximation of each unit's posterior.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

STEPS = 60


def paired_rates(positives: Floats, expected: Floats, steps: int = STEPS) -> Floats:
    """E[exp(z)] of every unit given its positives; both arrays, and the result, are units × 2."""
    total = (positives.sum(0) + 0.5) / (expected.sum(0) + 0.5)
    mean, covariance = np.log(total), np.eye(2)
    z = np.log((positives + 0.5 * total) / (expected + 0.5))
    spread = np.zeros((len(z), 2, 2))
    used = expected.sum(1) > 0
    for _ in range(steps):
        z, spread = _newton(z, positives, expected, mean, covariance)
        if used.any():
            mean, covariance = _moments(z[used], spread[used])
    return np.asarray(np.exp(z))


def _newton(
    z: Floats, positives: Floats, expected: Floats, mean: Floats, covariance: Floats
) -> tuple[Floats, Floats]:
    """One step toward the mode of log p(z | y), and the inverse of its curvature there."""
    precision = np.linalg.inv(covariance)
    fitted = expected * np.exp(np.minimum(z, 50.0))
    a, b, d = precision[0, 0] + fitted[:, 0], precision[0, 1], precision[1, 1] + fitted[:, 1]
    determinant = a * d - b * b
    spread = np.empty((len(z), 2, 2))
    spread[:, 0, 0], spread[:, 1, 1] = d / determinant, a / determinant
    spread[:, 0, 1] = spread[:, 1, 0] = -b / determinant
    slope = positives - fitted - (z - mean) @ precision
    step = np.einsum("sij,sj->si", spread, slope)
    return z + np.clip(step, -1.0, 1.0), spread


def _moments(z: Floats, spread: Floats) -> tuple[Floats, Floats]:
    mean = z.mean(0)
    covariance = (z - mean).T @ (z - mean) / len(z) + spread.mean(0)
    return mean, covariance + 1e-6 * np.eye(2)
