"""The learners, by name, and the classes that a method of one's own extends."""

from __future__ import annotations

from taurank._checks import Range
from taurank.data.storage import Array
from taurank.learners.base import Learner, learner_name
from taurank.learners.baselines import Popular, Random
from taurank.learners.batch_scoring import scorer
from taurank.learners.counting import CountingBayes
from taurank.learners.empirical_bayes import EmpiricalBayes
from taurank.learners.factors import FactorLearner
from taurank.learners.neighbors import CUBN
from taurank.learners.options import Record
from taurank.learners.pairwise import BLCE, BPR, DLCE, DLTO, ULBPR, GainsPass
from taurank.learners.pointwise import ULRMF, CausE
from taurank.learners.registry import LEARNERS, learner_class, load

__all__ = [
    "BLCE", "BPR", "CUBN", "DLCE", "DLTO", "LEARNERS", "ULBPR", "ULRMF", "Array", "CausE", "CountingBayes",
    "EmpiricalBayes", "FactorLearner", "GainsPass", "Learner", "Popular", "Random", "Range", "Record",
    "learner_class", "learner_name", "load", "scorer",
]  # fmt: skip
