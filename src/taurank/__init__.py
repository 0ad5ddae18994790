"""Rank items by the causal effect of recommending them.

The public names are loaded when they are first used, so that ``import taurank`` costs nothing. The list of
them is ``_PUBLIC``; the imports for type checkers repeat it, and a test compares the two.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_PUBLIC = {
    "taurank.data.log": ["Log"],
    "taurank.errors": ["Diverged", "InputError", "MissingExtra", "OverlapWarning", "TrainingLogWarning"],
    "taurank.estimation": ["gains", "propensity"],
    "taurank.estimation.gains": ["Gains"],
    "taurank.evaluation": ["bounds"],
    "taurank.evaluation.evaluate": ["compare", "evaluate"],
    "taurank.evaluation.formulas": ["Formula"],
    "taurank.evaluation.results": ["Result"],
    "taurank.learners": [
        "BLCE", "BPR", "DLCE", "DLTO", "LEARNERS", "ULBPR", "ULRMF", "CausE", "CountingBayes", "Learner",
        "Popular", "Random", "load",
    ],
    "taurank.tuning": ["tune"],
    "taurank.worlds": ["dunnhumby"],
    "taurank.worlds.world": ["World"],
}  # fmt: skip

_HOMES = {name: home for home, names in _PUBLIC.items() for name in names}
__all__ = sorted(_HOMES)

if TYPE_CHECKING:  # isort: off
    from taurank.data.log import Log as Log
    from taurank.errors import Diverged as Diverged, InputError as InputError
    from taurank.errors import MissingExtra as MissingExtra, OverlapWarning as OverlapWarning
    from taurank.errors import TrainingLogWarning as TrainingLogWarning
    from taurank.estimation import gains as gains, propensity as propensity
    from taurank.estimation.gains import Gains as Gains
    from taurank.evaluation import bounds as bounds
    from taurank.evaluation.evaluate import compare as compare, evaluate as evaluate
    from taurank.evaluation.formulas import Formula as Formula
    from taurank.evaluation.results import Result as Result
    from taurank.learners import BLCE as BLCE, BPR as BPR, DLCE as DLCE, DLTO as DLTO, LEARNERS as LEARNERS
    from taurank.learners import ULBPR as ULBPR, ULRMF as ULRMF, CausE as CausE, CountingBayes as CountingBayes
    from taurank.learners import Learner as Learner, Popular as Popular, Random as Random, load as load
    from taurank.tuning import tune as tune
    from taurank.worlds import dunnhumby as dunnhumby
    from taurank.worlds.world import World as World
# isort: on


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'taurank' has no attribute '{name}'")
    home = __import__(_HOMES[name], fromlist=[name])  # what "from home import name" does, modules included
    globals()[name] = value = getattr(home, name)
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
