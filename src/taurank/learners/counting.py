"""CountingBayes: what each pair's own counts say, shrunk toward the item's mean.

No factors and nothing shared between items: a pair that was often treated and often bought then, and seldom
bought otherwise, goes up. It is strong where pairs repeat themselves (a household and its groceries), and it
cannot help where a pair has no counts of its own: such pairs have the same order for every user.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from taurank._checks import Allowed, Range
from taurank._types import Codes, Floats, Floats32
from taurank.data.log import Log
from taurank.data.storage import Array
from taurank.learners.pairs import PairLearner, Pairs, count, item_means, stored_pairs


@dataclass(kw_only=True, eq=False)
class CountingBayes(PairLearner):
    """Rank by μ̂^T − μ̂^C, where in each arm μ̂_ui = (a_ui + w·m_i) / (b_ui + w).

    a_ui are the pair's positives in the arm, or the sum of their values, and b_ui its observations there: the times
    it was treated, or all other times of the log at which it was eligible (an absent row is untreated and negative).
    m_i = Σ_u a_ui / Σ_u b_ui is the item's
    mean in the arm, or the mean of the whole arm for an item that was never in it. ``weight`` is w: the
    item's mean counts as much as that many observations. Propensities are not used, and nothing is drawn.
    """

    weight: float = 2.0

    scores_are_effects: ClassVar[bool] = True
    allowed: ClassVar[Allowed] = {"weight": Range(0, above=True)}  # a pair never treated has no mean of its own
    stored: ClassVar[Mapping[str, Array]] = {
        **stored_pairs("float64"),
        "pair_score": Array("float32", ("pairs",)),
        "unseen": Array("float32", ("items",)),
    }
    space: ClassVar[Mapping[str, Sequence[float]]] = {"weight": (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0)}

    def learn_pairs(self, pairs: Pairs) -> None:
        self._set_scores(pairs, self._item_means(pairs))

    def fold(self, log: Log) -> None:
        """The users' own counts over the times of their rows, with the item means of the fit."""
        self._set_scores(count(log), self._item_means(self._fitted("counts_")))

    def _item_means(self, pairs: Pairs) -> Floats:
        return item_means(pairs.item_sums(), pairs.item_cells, type(self).__name__)

    def _set_scores(self, pairs: Pairs, means: Floats) -> None:
        """The score of each pair that has rows, and of each item for users without a row of it."""
        unseen = means[0] - self._rate(0.0, pairs.mean_chances(), means[1])
        treated = self._rate(pairs.treated_positives, pairs.treated, means[0, pairs.item])
        control = self._rate(pairs.control_positives, pairs.chances - pairs.treated, means[1, pairs.item])
        self.counts_, self.unseen_ = pairs, np.asarray(unseen, np.float32)
        self.pair_score_ = np.asarray(treated - control, np.float32)

    def _rate(self, positives: Any, observations: Any, mean: Floats) -> Floats:
        return np.asarray((positives + self.weight * mean) / (observations + self.weight))

    def score_block(self, user_codes: Codes) -> Floats32:
        return self._filled(user_codes, self._fitted("pair_score_"), self.unseen_)
