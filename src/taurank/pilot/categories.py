"""Lists within the categories that a user can be shown, where a shop shows each user some categories only.

Outside a user's categories the log shows nothing, so it cannot tell what showing would do there; a list that ranks
such items is not to be believed, and could not be shown either. A model is asked for the best items of the user's own
categories.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow.compute as pc

from taurank._jit import compiled
from taurank._types import Codes, Mask
from taurank.data.features import Features
from taurank.data.ids import Ids
from taurank.learners import Learner
from taurank.learners.recommend import Request

LAST = np.float32(-1e30)  # the score of an item that the user cannot be shown


def own_categories(features: Features, users: Ids, items: Ids) -> tuple[Mask, Codes]:
    """users × categories, and the category of each item (one more category, of nobody, for the others)."""
    known = features.user_categories(users, items)
    assert known is not None
    own = np.zeros((len(users), max(known.category.max(initial=0), known.item.max(initial=0)) + 1), np.bool_)
    own[known.user, known.category] = True
    return own, known.item.astype(np.int32)


class WithinCategories:
    """A fitted learner whose lists stay within each user's categories; a ranker like the learner itself."""

    def __init__(self, learner: Learner, features: Features) -> None:
        self.learner, self.users, self.items = learner, learner.users, learner.items
        self.popularity_, self.scores_are_effects = learner.popularity_, learner.scores_are_effects
        self.own, self.category = own_categories(features, learner.users, learner.items)

    def score_block(self, user_codes: Codes) -> npt.NDArray[Any]:
        scores = np.require(self.learner.score_block(user_codes), requirements=["C", "W"])
        _put_last(scores, self.own[user_codes], self.category)
        return scores

    def recommend(self, k: int, candidates: Any = None, threads: int | None = None) -> pd.DataFrame:
        """As ``Learner.recommend``; a user may get fewer than ``k`` items."""
        frame = Request(self, k, candidates, threads=threads).frame(None)
        return frame[frame["score"] > LAST]

    def write_recommendations(self, path: Any, *, k: int, candidates: Any = None, threads: int | None = None) -> int:
        """``recommend`` straight into a file, block by block; returns the number of rows."""
        request = Request(self, k, candidates, threads=threads)
        shown = (batch.filter(pc.greater(batch["score"], float(LAST))) for batch in request.batches(None))
        return request.write_batches(path, shown)


Ranking = Learner | WithinCategories


def learner_of(ranking: Ranking) -> Learner:
    return ranking.learner if isinstance(ranking, WithinCategories) else ranking


@compiled
def _put_last(scores: Any, own: Any, category: Any) -> None:
    for row in range(scores.shape[0]):
        one, mine = scores[row], own[row]
        for j in range(len(one)):
            if not mine[category[j]]:
                one[j] = LAST
