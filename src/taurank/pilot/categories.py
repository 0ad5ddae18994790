"""Categories that a user can be shown, where a shop shows each user some categories only.

Outside a user's categories the log shows nothing, so it cannot tell what showing would do there; a list that ranks
such items is not to be believed, and could not be shown either. A model is asked for the best items of the user's own
categories.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow.compute as pc

from taurank._jit import compiled
from taurank.data.features import Features
from taurank.data.ids import Codes, Ids
from taurank.data.tables import write_batches
from taurank.learners import Learner
from taurank.learners.recommend import Request

LAST = np.float32(-1e30)  # the score of an item that the user cannot be shown


@dataclass(frozen=True)
class Categories:
    """The categories of each user and of each item, by id; items without a category are shown to nobody."""

    of_user: pd.DataFrame  # user_id, category
    of_item: pd.DataFrame  # item_id, category

    def mask(self, users: Ids, items: Ids) -> tuple[npt.NDArray[np.bool_], Codes]:
        """users × categories, and the category of each item (one more category, of nobody, for the others)."""
        known = self.features().user_categories(users, items)
        assert known is not None
        own = np.zeros((len(users), max(known.category.max(initial=0), known.item.max(initial=0)) + 1), np.bool_)
        own[known.user, known.category] = True
        return own, known.item.astype(np.int32)

    def features(self) -> Features:
        """What a model of exposure can know of them; see ``taurank.propensity.fit``."""
        items = self.of_item[["item_id", "category"]].drop_duplicates("item_id")
        columns = [name for name in ("user_id", "category", "score") if name in self.of_user]
        return Features(items=items, categories=self.of_user[columns])


class WithinCategories:
    """A fitted learner whose lists stay within each user's categories; a ranker like the learner itself."""

    def __init__(self, learner: Learner, categories: Categories) -> None:
        self.learner = learner
        self.popularity_ = learner.popularity_
        self.scores_are_effects = learner.scores_are_effects
        self.own, self.category = categories.mask(learner.users, learner.items)

    @property
    def users(self) -> Ids:
        return self.learner.users

    @property
    def items(self) -> Ids:
        return self.learner.items

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
        shown = [batch.filter(pc.greater(batch["score"], float(LAST))) for batch in request.batches(None)]
        write_batches(path, request.schema(), shown)
        return sum(batch.num_rows for batch in shown)


@compiled
def _put_last(scores: Any, own: Any, category: Any) -> None:
    for row in range(scores.shape[0]):
        one, mine = scores[row], own[row]
        for j in range(len(one)):
            if not mine[category[j]]:
                one[j] = LAST
