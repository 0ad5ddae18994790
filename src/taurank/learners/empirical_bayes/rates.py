"""The mean rate of each unit in both arms, shrunk toward what the units have in common.

A unit (an item, a group of pairs, the pairs of an item in one group) has y^T positives of e^T expected ones, and the
same in the control arm. Its two log-rates are bivariate normal and its positives Poisson,

    (z^T, z^C) ~ N(m, Σ),    y^a ~ Poisson(e^a exp(z^a)),

so a unit that has little in one arm follows what its other arm says. m and Σ are estimated by EM with Laplace's
approximation of each unit's posterior. With features f of the units, m + B f takes the place of m, a ridge regression
of z, and Σ is what it leaves unexplained.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from taurank._types import Floats, Mask
from taurank.learners.features import Ridge

STEPS = 60


def paired_rates(positives: Floats, expected: Floats, steps: int = STEPS, features: Any = None) -> Floats:
    """exp(z) of every unit given its positives; both arrays, and the result, are units × 2.

    z is the mode of the posterior. A unit of which nothing is known but its features gets E[exp(z)], since
    its z is far from certain.
    """
    total = (positives.sum(0) + 0.5) / (expected.sum(0) + 0.5)
    mean, covariance = np.log(total), np.eye(2)
    z = np.log((positives + 0.5 * total) / (expected + 0.5))
    spread = np.zeros((len(z), 2, 2))
    used = expected.sum(1) > 0
    ridge = None if features is None else Ridge(features, used.astype(np.float64))
    for _ in range(steps):
        z, spread = _newton(z, positives, expected, mean, covariance)
        if used.any():
            mean, covariance = _moments(z, spread, used, ridge)
    if ridge is not None:
        z = np.where(used[:, None], z, mean + 0.5 * np.diag(covariance))
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


def _moments(z: Floats, spread: Floats, used: Mask, ridge: Ridge | None) -> tuple[Floats, Floats]:
    """The mean (of each unit, where there are features), and the covariance around it."""
    mean = z[used].mean(0)
    if ridge is not None:
        mean = mean + ridge.predict(z - mean)
    rest = (z - mean)[used]
    covariance = rest.T @ rest / len(rest) + spread[used].mean(0)
    return mean, covariance + 1e-6 * np.eye(2)
