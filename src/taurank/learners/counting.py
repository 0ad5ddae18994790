"""CountingBayes: what each pair's own counts say, shrunk toward the item's mean.

No factors and nothing shared between items: a pair that was often treated and often bought then, and seldom
bought otherwise, goes up. It is strong where pairs repeat themselves (a household and its groceries), and it
cannot help where a pair has no counts of its own: such pairs have the same order for every user.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.sparse import coo_array

from taurank._validation import check_number
from taurank.data.ids import Codes
from taurank.data.log import Log
from taurank.data.schema import Array
from taurank.errors import InputError
from taurank.learners.base import Float32s, Learner

Floats = npt.NDArray[np.float64]

WEIGHT_GRID = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0)


@dataclass(kw_only=True, eq=False)
class CountingBayes(Learner):
    """Rank by μ̂^T − μ̂^C, where in each arm μ̂_ui = (a_ui + w·m_i) / (b_ui + w).

    a_ui are the pair's positives in the arm and b_ui its observations there: the times it was treated, or all
    other times of the log (an absent row is untreated and negative). m_i = Σ_u a_ui / Σ_u b_ui is the item's
    mean in the arm, or the mean of the whole arm for an item that was never in it. ``weight`` is w: the
    item's mean counts as much as that many observations. Propensities are not used, and nothing is drawn.
    """

    weight: float = 2.0

    stored: ClassVar[Mapping[str, Array]] = {
        "unseen": Array("float32", ("items",)),
        "pair_start": Array("int64", ("users + 1",), offsets_of="pairs"),
        "pair_item": Array("int32", ("pairs",), below="items"),
        "pair_score": Array("float32", ("pairs",)),
    }
    space: ClassVar[Mapping[str, Sequence[float]]] = {"weight": WEIGHT_GRID}

    def __post_init__(self) -> None:
        check_number("weight", self.weight, 0)
        if self.weight == 0:
            raise InputError("weight must be larger than 0: a pair never treated has no mean of its own.")

    def learn(self, log: Log) -> None:
        pairs, w = _count(log), self.weight
        treated_times, treated_positives, control_positives = (
            np.bincount(pairs.item, counts, log.n_items).astype(np.float64) for counts in pairs[2:]
        )
        treated_mean = _means("treated", treated_positives, treated_times)
        control_mean = _means("untreated", control_positives, log.n_users * log.n_times - treated_times)
        treated = _smoothed(pairs.treated_positives, pairs.treated, treated_mean[pairs.item], w)
        control = _smoothed(pairs.control_positives, log.n_times - pairs.treated, control_mean[pairs.item], w)
        self.unseen_ = (treated_mean - _smoothed(0.0, log.n_times, control_mean, w)).astype(np.float32)
        self.pair_start_, self.pair_item_ = pairs.start, pairs.item
        self.pair_score_ = (treated - control).astype(np.float32)

    def score_block(self, user_codes: Codes) -> Float32s:
        first, last = self._fitted("pair_start_")[user_codes], self.pair_start_[user_codes + 1]
        row = np.repeat(np.arange(len(user_codes)), last - first)
        within = np.arange(len(row)) - np.repeat(np.cumsum(last - first) - last, last - first)
        scores = np.tile(self.unseen_, (len(user_codes), 1))
        scores[row, self.pair_item_[within]] = self.pair_score_[within]
        return scores


class _Pairs(NamedTuple):
    """The pairs that have rows: user u owns the entries start[u] .. start[u + 1]."""

    start: npt.NDArray[np.int64]
    item: Codes
    treated: Floats
    treated_positives: Floats
    control_positives: Floats


def _count(log: Log) -> _Pairs:
    """How often each pair was treated, and its positives in each arm."""
    treated, positive = log.treated == 1, log.outcome == 1
    # rows are added up pair by pair, and a pair keeps its entry where the sum is 0: one order for all three
    sums = [
        coo_array((rows.astype(np.float64), (log.user, log.item)), (log.n_users, log.n_items)).tocsr()
        for rows in (treated, treated & positive, ~treated & positive)
    ]
    start, item = sums[0].indptr.astype(np.int64), sums[0].indices.astype(np.int32)
    return _Pairs(start, item, *(counts.data for counts in sums))


def _means(arm: str, positives: Floats, observations: Floats) -> Floats:
    """Each item's mean in an arm; the arm's own mean for items that were never in it."""
    if not observations.any():
        raise InputError(f"CountingBayes needs both arms, and nothing in this log is {arm}.")
    whole = np.full(len(positives), positives.sum() / observations.sum())
    return np.asarray(np.divide(positives, observations, out=whole, where=observations > 0))


def _smoothed(positives: Floats | float, observations: Floats | float, mean: Floats, weight: float) -> Floats:
    return np.asarray((positives + weight * mean) / (observations + weight))
