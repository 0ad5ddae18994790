"""The uncertainty of a mean over users: resample the users, and take quantiles of the resampled means.

Every draw is a hash of its own number, so that the same values have the same interval on any machine and
with any number of threads.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr, ndtri, stdtrit

from taurank._jit import compiled
from taurank._random import uniform
from taurank._threads import map_blocks, worker_count
from taurank.errors import InputError, show

Floats = npt.NDArray[np.float64]

RESAMPLES = 2000
_KEY = np.uint64(0x7A5BCA31)


class Bootstrap:
    """Intervals of the mean of ``values``, one per user; the users are resampled once, when first needed.

    BCa intervals, widened as Student's is, which matters for few users.
    """

    def __init__(self, values: Floats) -> None:
        self.values = values
        self._means: Floats | None = None

    def interval(self, level: float = 0.95, threads: int | None = None) -> tuple[float, float]:
        check_fraction("level", level)
        if self._means is None:
            self._means = resampled_means(self.values, threads=worker_count(threads))
        low, high = interval(self.values, self._means, level)
        if len(self.values) < 2:
            return low, high
        mean, widening = float(self.values.mean()), _widening(len(self.values), level)
        return mean - widening * (mean - low), mean + widening * (high - mean)


def resampled_means(values: Floats, resamples: int = RESAMPLES, threads: int = 1) -> Floats:
    """Means of ``resamples`` draws of len(values) users with replacement."""
    means = np.empty(resamples)
    map_blocks(lambda first, last: _resample(values, first, means[first:last]), resamples, threads)
    return means


def interval(values: Floats, means: Floats, level: float) -> tuple[float, float]:
    """The bias-corrected and accelerated (BCa) interval of Efron (1987) for the mean of ``values``.

    The acceleration of a mean is Σd³ / (6 (Σd²)^1.5), d the deviations from it: it moves the interval where
    a few users have large values, as inverse propensities do. (nan, nan) for a single user.
    """
    check_fraction("level", level)
    if len(values) < 2:
        return float("nan"), float("nan")
    deviation = values - values.mean()
    deviation /= max(float(np.abs(deviation).max()), np.finfo(np.float64).tiny)  # the acceleration has no scale
    spread = float(np.sum(deviation**2))
    if spread == 0.0 or means.min() == means.max():
        return float(values.mean()), float(values.mean())
    acceleration = float(np.sum(deviation**3)) / (6.0 * spread**1.5)
    low, high = np.quantile(means, _levels(values.mean(), means, acceleration, level))
    return float(low), float(high)


def _widening(n: int, level: float) -> float:
    """Student's quantile over the normal one, and the variance over n − 1: resampled means vary too little."""
    tail = 0.5 + level / 2.0
    return float(stdtrit(n - 1, tail) / ndtri(tail) * np.sqrt(n / (n - 1.0)))


def check_fraction(name: str, value: Any) -> None:
    """Refuse anything but a number strictly between 0 and 1."""
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)) or not 0 < value < 1:
        raise InputError(f"{name} must be a number between 0 and 1, got {show(value)}.")


def _levels(mean: Any, means: Floats, acceleration: float, level: float) -> Floats:
    """The quantiles of the resampled means that bound the interval."""
    below = (np.count_nonzero(means < mean) + 0.5 * np.count_nonzero(means == mean)) / len(means)
    edge = 0.5 / len(means)
    bias = ndtri(min(max(below, edge), 1.0 - edge))
    z = bias + ndtri(np.array([0.5 - level / 2.0, 0.5 + level / 2.0]))
    return np.asarray(ndtr(bias + z / (1.0 - acceleration * z)))


@compiled
def _resample(values: Any, first: Any, means: Any) -> None:
    n = len(values)
    for m in range(len(means)):
        total = 0.0
        for j in range(n):
            total += values[np.int64(uniform(_KEY, np.uint64((first + m) * n + j)) * n)]
        means[m] = total / n
