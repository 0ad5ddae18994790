"""Caps: lower limits of the two probabilities that capped IPS divides by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from taurank._validation import check_number

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Caps:
    """χ^T and χ^C: capped IPS divides by D^T = max(P, χ^T) and D^C = max(1 − P, χ^C). 0 does not cap."""

    treated: float = 0.0
    control: float = 0.0

    @classmethod
    def of(cls, cap: float | None, cap_treated: float | None = None, cap_control: float | None = None) -> Caps:
        """``cap`` applies to both arms; ``cap_treated`` and ``cap_control`` override it for their own."""
        both = _checked("cap", cap, 0.0)
        return cls(_checked("cap_treated", cap_treated, both), _checked("cap_control", cap_control, both))

    def denominators(self, propensity: npt.NDArray[Any]) -> tuple[Floats, Floats]:
        """max(P, χ^T) and max(1 − P, χ^C)."""
        return np.maximum(propensity, self.treated), np.maximum(1.0 - propensity, self.control)


def _checked(name: str, cap: float | None, default: float) -> float:
    if cap is None:
        return default
    check_number(name, cap, 0, maximum=1)
    return float(cap)
