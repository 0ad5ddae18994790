"""The learners, by name."""

from __future__ import annotations

from taurank.learners.base import Learner, load
from taurank.learners.baselines import Popular, Random
from taurank.learners.counting import CountingBayes
from taurank.learners.pairwise import BLCE, BPR, DLCE, DLTO, ULBPR
from taurank.learners.pointwise import ULRMF, CausE

LEARNERS: dict[str, type[Learner]] = {
    learner.__name__.lower(): learner
    for learner in (Random, Popular, BPR, ULBPR, ULRMF, CausE, BLCE, DLTO, DLCE, CountingBayes)
}

__all__ = [
    "BLCE", "BPR", "DLCE", "DLTO", "LEARNERS", "ULBPR", "ULRMF", "CausE", "CountingBayes", "Learner",
    "Popular", "Random", "load",
]  # fmt: skip
