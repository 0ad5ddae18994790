"""The learners, by name."""

from __future__ import annotations

from taurank.learners.base import Learner, load
from taurank.learners.simple import Popular, Random

LEARNERS: dict[str, type[Learner]] = {learner.__name__.lower(): learner for learner in (Random, Popular)}

__all__ = ["LEARNERS", "Learner", "Popular", "Random", "load"]
