"""CountingBayes: what each pair's own counts say, shrunk toward the item's mean.

No factors and nothing shared between items: a pair that was often treated and often bought then, and seldom
bought otherwise, goes up. It is strong where pairs repeat themselves (a household and its groceries), and it
cannot help where a pair has no counts of its own: such pairs have the same order for every user.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from taurank._checks import check_number
from taurank._types import Codes, Floats, Floats32
from taurank.data.log import Log
from taurank.data.storage import Array
from taurank.errors import InputError
from taurank.learners.pairs import COUNTS, PairLearner, Pairs, added, count, stored_pairs

WEIGHT_GRID = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0)


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
    stored: ClassVar[Mapping[str, Array]] = {
        **stored_pairs("float64"),
        "pair_score": Array("float32", ("pairs",)),
        "unseen": Array("float32", ("items",)),
    }
    space: ClassVar[Mapping[str, Sequence[float]]] = {"weight": WEIGHT_GRID}

    def __post_init__(self) -> None:
        check_number("weight", self.weight, 0)
        if self.weight == 0:
            raise InputError("weight must be larger than 0: a pair never treated has no mean of its own.")

    def learn(self, log: Log) -> None:
        pairs = count(log)
        self._set_scores(pairs, self.item_means(pairs))

    def learn_more(self, log: Log) -> None:
        """Add up the counts: the bits are those of a fit to all rows, or within rounding where they have values."""
        pairs = added(self._fitted("counts_"), log)
        self._set_scores(pairs, self.item_means(pairs))

    def fold(self, log: Log) -> None:
        """The users' own counts over the times of their rows, with the item means of the fit."""
        self._set_scores(count(log), self.item_means(self._fitted("counts_")))

    def _set_scores(self, pairs: Pairs, means: ItemMeans) -> None:
        self.counts_, self.unseen_ = pairs, self.unseen_scores(means, pairs.mean_chances())
        self.pair_score_ = self.pair_scores(pairs, means)

    def item_means(self, pairs: Pairs) -> ItemMeans:
        return item_means(item_sums(pairs), pairs.item_cells, type(self).__name__)

    def unseen_scores(self, means: ItemMeans, chances: Floats | float) -> Floats32:
        """The score of each item for users without a row of it, who had so many chances."""
        return (means.treated - _smoothed(0.0, chances, means.control, self.weight)).astype(np.float32)

    def pair_scores(self, pairs: Pairs, means: ItemMeans) -> Floats32:
        """The score of each pair that has rows."""
        treated = _smoothed(pairs.treated_positives, pairs.treated, means.treated[pairs.item], self.weight)
        untreated = pairs.chances - pairs.treated
        control = _smoothed(pairs.control_positives, untreated, means.control[pairs.item], self.weight)
        return (treated - control).astype(np.float32)

    def score_block(self, user_codes: Codes) -> Floats32:
        return self._filled(user_codes, self._fitted("pair_score_"), self.unseen_)


class ItemMeans(NamedTuple):
    """The mean outcome of every item in each arm."""

    treated: Floats
    control: Floats


def item_sums(pairs: Pairs) -> Floats:
    """3 × items: how often each was treated, and its positives in each arm."""
    return np.stack([pairs.by_item(getattr(pairs, name)) for name in COUNTS[1:]])


def item_means(sums: Floats, chances: Floats | float, learner: str) -> ItemMeans:
    """The means from the sums over all users, each of which is out of so many chances."""
    times, treated, control = sums
    arms = {"treated": (treated, times), "untreated": (control, chances - times)}
    for arm, (_, observations) in arms.items():
        if not observations.any():
            raise InputError(f"{learner} needs both arms, and nothing in this log is {arm}.")
    return ItemMeans(*(_means(*arm) for arm in arms.values()))


def _means(positives: Floats, observations: Floats) -> Floats:
    """Each item's mean in an arm; the arm's own mean for items that were never in it."""
    whole = np.full(len(positives), positives.sum() / observations.sum())
    return np.asarray(np.divide(positives, observations, out=whole, where=observations > 0))


def _smoothed(positives: Any, observations: Any, mean: Floats, weight: float) -> Floats:
    return np.asarray((positives + weight * mean) / (observations + weight))
