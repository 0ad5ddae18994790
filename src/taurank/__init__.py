"""Rank items by the causal effect of recommending them.

The public names are loaded when they are first used, so that ``import taurank`` costs nothing. The block for type
checkers is the one list of them: this module reads it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:  # isort: off
    from taurank import cluster as cluster, errors as errors, learners as learners, pilot as pilot
    from taurank.data.channels import Channels as Channels
    from taurank.data.features import Features as Features
    from taurank.data.log import Log as Log
    from taurank.errors import InputError as InputError
    from taurank.estimation import gains as gains, propensity as propensity
    from taurank.estimation.gains import Gains as Gains
    from taurank.evaluation.curves import effect_curve as effect_curve, spend as spend
    from taurank.evaluation.evaluate import compare as compare, evaluate as evaluate
    from taurank.evaluation.metrics import Metric as Metric
    from taurank.learners import BLCE as BLCE, BPR as BPR, CUBN as CUBN, DLCE as DLCE, DLTO as DLTO
    from taurank.learners import ULBPR as ULBPR, ULRMF as ULRMF, CausE as CausE, CountingBayes as CountingBayes
    from taurank.learners import EmpiricalBayes as EmpiricalBayes, Popular as Popular, Random as Random
    from taurank.learners import Learner as Learner, load as load
    from taurank.learners.channels import BestChannel as BestChannel
    from taurank.report.diagnosis import diagnose as diagnose
    from taurank.tuning import tune as tune
    from taurank.worlds import bounds as bounds, dunnhumby as dunnhumby
    from taurank.worlds.world import World as World
# isort: on


def _homes() -> dict[str, str]:
    """The module of each name, from lines such as ``from taurank.data.log import Log as Log``."""
    homes: dict[str, str] = {}
    with open(__file__, encoding="utf-8") as source:
        for line in source:
            if line.startswith("    from taurank"):
                _, home, _, *names = line.replace(",", "").split()
                homes |= dict.fromkeys(names[::3], home)
    return homes


_HOMES = _homes()
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'taurank' has no attribute '{name}'")
    if _HOMES[name] == "taurank":  # a room
        return import_module(f"taurank.{name}")
    home = __import__(_HOMES[name], fromlist=[name])  # what "from home import name" does, modules included
    globals()[name] = value = getattr(home, name)
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
