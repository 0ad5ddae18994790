"""Rank items by the causal effect of recommending them.

The public names are loaded when they are first used, so that ``import taurank`` costs nothing. The list of
them is ``_PUBLIC``; the imports for type checkers repeat it, and a test compares the two.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_PUBLIC = {
    "taurank": ["cluster", "pilot"],
    "taurank.data.features": ["Features"],
    "taurank.data.channels": ["Channels"],
    "taurank.data.log": ["Log"],
    "taurank.errors": [
        "DivergedError", "InputError", "MissingExtra", "OverlapWarning", "TrainingLogWarning", "UnfinishedWarning",
    ],
    "taurank.estimation": ["gains", "propensity"],
    "taurank.estimation.gains": ["Gains"],
    "taurank.evaluation": ["bounds"],
    "taurank.evaluation.estimate": ["estimate"],
    "taurank.evaluation.estimates": ["Estimate"],
    "taurank.evaluation.evaluate": ["compare", "evaluate"],
    "taurank.evaluation.metrics": ["Metric"],
    "taurank.evaluation.results": ["Result"],
    "taurank.learners": [
        "BLCE", "BPR", "CUBN", "DLCE", "DLTO", "LEARNERS", "ULBPR", "ULRMF", "CausE", "CountingBayes",
        "EmpiricalBayes", "Learner", "Popular", "Random", "load", "scorer",
    ],
    "taurank.learners.channels": ["BestChannel"],
    "taurank.tuning": ["tune"],
    "taurank.worlds": ["dunnhumby", "shop"],
    "taurank.worlds.world": ["World"],
}  # fmt: skip

_HOMES = {name: home for home, names in _PUBLIC.items() for name in names}
__all__ = sorted(_HOMES)

if TYPE_CHECKING:  # isort: off
    from taurank import cluster as cluster, pilot as pilot
    from taurank.data.features import Features as Features
    from taurank.data.channels import Channels as Channels
    from taurank.data.log import Log as Log
    from taurank.errors import DivergedError as DivergedError, InputError as InputError
    from taurank.errors import MissingExtra as MissingExtra, OverlapWarning as OverlapWarning
    from taurank.errors import TrainingLogWarning as TrainingLogWarning
    from taurank.errors import UnfinishedWarning as UnfinishedWarning
    from taurank.estimation import gains as gains, propensity as propensity
    from taurank.estimation.gains import Gains as Gains
    from taurank.evaluation import bounds as bounds
    from taurank.evaluation.estimate import estimate as estimate
    from taurank.evaluation.estimates import Estimate as Estimate
    from taurank.evaluation.evaluate import compare as compare, evaluate as evaluate
    from taurank.evaluation.metrics import Metric as Metric
    from taurank.evaluation.results import Result as Result
    from taurank.learners import BLCE as BLCE, BPR as BPR, CUBN as CUBN, DLCE as DLCE, DLTO as DLTO
    from taurank.learners import LEARNERS as LEARNERS
    from taurank.learners import ULBPR as ULBPR, ULRMF as ULRMF, CausE as CausE, CountingBayes as CountingBayes
    from taurank.learners import EmpiricalBayes as EmpiricalBayes
    from taurank.learners import Learner as Learner, Popular as Popular, Random as Random, load as load
    from taurank.learners import scorer as scorer
    from taurank.learners.channels import BestChannel as BestChannel
    from taurank.tuning import tune as tune
    from taurank.worlds import dunnhumby as dunnhumby, shop as shop
    from taurank.worlds.world import World as World
# isort: on


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
