"""Search over hyper-parameters: of a learner (``tune``), or of anything that can be measured (``run_searches``)."""

from __future__ import annotations

from taurank.tuning.journal import Trial
from taurank.tuning.search import SearchSpec, best_trial, run_searches
from taurank.tuning.tuner import Tuning, tune

__all__ = ["SearchSpec", "Trial", "Tuning", "best_trial", "run_searches", "tune"]
