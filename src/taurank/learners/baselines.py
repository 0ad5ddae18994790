"""The two baselines that learn nothing about users: chance, and what everybody buys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numba
import numpy as np

from taurank._random import uniform
from taurank._validation import check_instance, generator
from taurank.data.ids import Codes
from taurank.data.log import Log
from taurank.learners.base import Floats, Learner


@dataclass(kw_only=True, eq=False)
class Random(Learner):
    """Items in random order: every pair of user and item has a score of its own, drawn once."""

    stored: ClassVar[tuple[str, ...]] = ("key",)

    def fit(self, log: Log) -> Self:
        check_instance("log", log, Log, "Log.read or Log.from_frame")
        self._remember(log)
        self.key_ = generator(self.random_state).integers(2**63, size=1, dtype=np.uint64)
        return self

    def score_block(self, user_codes: Codes) -> Floats:
        scores = np.empty((len(user_codes), len(self.items)), np.float32)
        _uniform_scores(self.key_[0], user_codes, scores)
        return scores


@numba.njit(nogil=True, cache=True)
def _uniform_scores(key: Any, users: Any, scores: Any) -> None:
    for row in range(len(users)):
        first = np.uint64(users[row]) * np.uint64(scores.shape[1])
        for item in range(scores.shape[1]):
            scores[row, item] = uniform(key, first + np.uint64(item))


@dataclass(kw_only=True, eq=False)
class Popular(Learner):
    """Items by how often they were bought, Σ_u Y_ui, the same for every user."""

    def fit(self, log: Log) -> Self:
        check_instance("log", log, Log, "Log.read or Log.from_frame")
        self._remember(log)
        return self

    def score_block(self, user_codes: Codes) -> Floats:
        return np.tile(self.popularity_.astype(np.float32), (len(user_codes), 1))
