"""Rank items by the causal effect of recommending them.

The public names are loaded when they are first used, so that ``import taurank`` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_LEARNERS = ("BLCE", "BPR", "DLCE", "DLTO", "ULBPR", "ULRMF", "CausE", "CountingBayes", "Popular", "Random")
_HOMES = {
    "Log": "taurank.data.log",
    "World": "taurank.worlds.world",
    "Gains": "taurank.estimation.gains",
    "Formula": "taurank.evaluation.formulas",
    "evaluate": "taurank.evaluation.evaluate",
    "compare": "taurank.evaluation.evaluate",
    "tune": "taurank.tuning",
    **dict.fromkeys(("LEARNERS", "load", *_LEARNERS), "taurank.learners"),
}
_MODULES = {
    "bounds": "taurank.evaluation.bounds",
    "dunnhumby": "taurank.worlds.dunnhumby",
    "gains": "taurank.estimation.gains",
    "propensity": "taurank.estimation.propensity",
}

__all__ = [
    "BLCE", "BPR", "DLCE", "DLTO", "LEARNERS", "ULBPR", "ULRMF", "CausE", "CountingBayes", "Formula", "Gains", "Log",
    "Popular", "Random", "World", "bounds", "compare", "dunnhumby", "evaluate", "gains", "load", "propensity", "tune",
]  # fmt: skip

if TYPE_CHECKING:
    from taurank.data.log import Log
    from taurank.estimation import gains, propensity
    from taurank.estimation.gains import Gains
    from taurank.evaluation import bounds
    from taurank.evaluation.evaluate import compare, evaluate
    from taurank.evaluation.formulas import Formula
    from taurank.learners import (
        BLCE,
        BPR,
        DLCE,
        DLTO,
        LEARNERS,
        ULBPR,
        ULRMF,
        CausE,
        CountingBayes,
        Popular,
        Random,
        load,
    )  # fmt: skip
    from taurank.tuning import tune
    from taurank.worlds import dunnhumby
    from taurank.worlds.world import World


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    if name in _MODULES:
        return importlib.import_module(_MODULES[name])
    raise AttributeError(f"module 'taurank' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
