"""Where overlap ends: the one threshold that the diagnosis of a log and the warning of ``evaluate`` share."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

NEAR = 1e-3  # a propensity within this of 0 or 1, the limits included, is treated as lacking overlap

Mask = npt.NDArray[np.bool_]


def almost_never(propensity: npt.NDArray[Any]) -> Mask:
    """P ≤ 0.001: the recommendation is practically never made, so its outcome is hardly observed."""
    return np.asarray(propensity <= NEAR)


def almost_always(propensity: npt.NDArray[Any]) -> Mask:
    """P ≥ 0.999: the recommendation is practically always made, so its absence is hardly observed."""
    return np.asarray(propensity >= 1.0 - NEAR)


def lacks_overlap(propensity: npt.NDArray[Any]) -> Mask:
    """One of the two arms is hardly observed."""
    return almost_never(propensity) | almost_always(propensity)
