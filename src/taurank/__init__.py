"""Rank items by the causal effect of recommending them.

The public names are loaded when they are first used, so that ``import taurank`` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOMES = {
    "Log": "taurank.log",
    "World": "taurank.world",
    "Gains": "taurank.gains",
}
_MODULES = ("dunnhumby", "gains", "propensity")

__all__ = ["Gains", "Log", "World", "dunnhumby", "gains", "propensity"]

if TYPE_CHECKING:
    from taurank import dunnhumby, gains, propensity
    from taurank.gains import Gains
    from taurank.log import Log
    from taurank.world import World


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    if name in _MODULES:
        return importlib.import_module(f"taurank.{name}")
    raise AttributeError(f"module 'taurank' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
