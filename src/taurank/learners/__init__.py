"""The learners, by name, and the classes that a method of one's own extends."""

from __future__ import annotations

from taurank.data.schema import Array
from taurank.learners.base import Learner, learner_name
from taurank.learners.baselines import Popular, Random
from taurank.learners.checkpoints import Record
from taurank.learners.counting import CountingBayes
from taurank.learners.factorization import FactorLearner
from taurank.learners.pairwise import BLCE, BPR, DLCE, DLTO, ULBPR, GainsPass
from taurank.learners.pointwise import ULRMF, CausE
from taurank.learners.registry import LEARNERS, learner_class, load

__all__ = [
    "BLCE", "BPR", "DLCE", "DLTO", "LEARNERS", "ULBPR", "ULRMF", "Array", "CausE", "CountingBayes", "FactorLearner",
    "GainsPass", "Learner", "Popular", "Random", "Record", "learner_class", "learner_name", "load",
]  # fmt: skip
