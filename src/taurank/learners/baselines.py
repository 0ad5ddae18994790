"""The two baselines that learn nothing about users: random order, and popularity."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from taurank._checks import generator
from taurank._jit import compiled
from taurank._random import uniform
from taurank._types import Floats32
from taurank.data.ids import Codes
from taurank.data.log import Log
from taurank.data.storage import Array
from taurank.learners.base import Learner


@dataclass(kw_only=True, eq=False)
class Random(Learner):
    """Items in random order: every pair of user and item has a score of its own, drawn once."""

    stored: ClassVar[Mapping[str, Array]] = {"key": Array("uint64", (1,))}

    def learn(self, log: Log) -> None:
        self.key_ = generator(self.random_state).integers(2**63, size=1, dtype=np.uint64)

    def learn_more(self, log: Log) -> None:
        """Nothing: scores are drawn for any catalog."""

    def fold(self, log: Log) -> None:
        """Nothing: a user's scores follow from the position in the catalog."""

    def score_block(self, user_codes: Codes) -> Floats32:
        scores = np.empty((len(user_codes), len(self.items)), np.float32)
        _uniform_scores(self.key_[0], user_codes, scores)
        return scores


@compiled
def _uniform_scores(key: Any, users: Any, scores: Any) -> None:
    for row in range(len(users)):
        first = np.uint64(users[row]) * np.uint64(scores.shape[1])
        for item in range(scores.shape[1]):
            scores[row, item] = uniform(key, first + np.uint64(item))


@dataclass(kw_only=True, eq=False)
class Popular(Learner):
    """Items by how often they were bought, Σ_u Y_ui, weighed by the log's values if it has any; the same for all."""

    def learn(self, log: Log) -> None:
        """Nothing beyond the counts that every learner stores."""

    def learn_more(self, log: Log) -> None:
        """Nothing beyond the counts, which are added up for every learner."""

    def fold(self, log: Log) -> None:
        """Nothing: all users have the same scores."""

    def score_block(self, user_codes: Codes) -> Floats32:
        return np.tile(self.popularity_.astype(np.float32), (len(user_codes), 1))
