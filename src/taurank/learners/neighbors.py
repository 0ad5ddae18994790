"""CUBN and CIBN: the causal effect among similar users, or items (Sato et al. 2021, arXiv 2012.09442)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from scipy.sparse import csr_array, diags_array

from taurank._checks import Allowed, Range
from taurank._types import Codes, Floats32, Longs
from taurank.data.log import Log
from taurank.data.storage import Array
from taurank.learners.pairs import PairLearner, Pairs, beside, count, item_means, stored_pairs

MAX_SCORE = float(np.finfo(np.float32).max)
AT_ONCE = 1024  # items whose similarities to all others are in memory


@dataclass(kw_only=True, eq=False)
class CUBN(PairLearner):
    """Rank by the treated mean minus the control mean of the outcome among similar users (or, CIBN, items).

    With s a power of the cosine similarity of two users, over all users v, u among them:

        μ̂^T_ui = (Σ_v s_uv a^T_vi + w m^T_i) / (Σ_v s_uv b^T_vi + w),    μ̂^C alike,

    where a are positives in the arm (or the sum of their values), b observations there (treated times; all other
    eligible times), and m_i the item's mean in the arm. Propensities are not used.

    Parameters
    ----------
    similarity : of what two users bought ("outcome") or were recommended ("treatment")
    by : "user", or "item" for the sum over the items j similar to i, with a_uj, b_uj and s_ij
    power : of the similarity; the larger, the nearer the neighbors that count
    weight : w, the number of observations that the item's mean counts as
    """

    similarity: str = "outcome"
    by: str = "user"
    power: float = 8.0
    weight: float = 1.0

    scores_are_effects: ClassVar[bool] = True
    allowed: ClassVar[Allowed] = {
        "similarity": ("outcome", "treatment"),
        "by": ("user", "item"),
        "power": Range(0, 100),
        "weight": Range(1e-9),
    }
    stored: ClassVar[Mapping[str, Array]] = {
        **stored_pairs("float64", "population"),
        "own": Array("int64", ("users",), below="population"),
        "item_means": Array("float64", (2, "items"), minimum=0.0),
    }
    space: ClassVar[Mapping[str, Sequence[Any]]] = {
        "similarity": ("outcome", "treatment"),
        "by": ("user", "item"),
        "power": (0.5, 1.0, 2.0, 4.0, 8.0),
        "weight": (0.3, 1.0, 3.0, 10.0, 30.0),
    }

    def learn_pairs(self, pairs: Pairs) -> None:
        self.counts_, self.item_means_ = pairs, item_means(pairs.item_sums(), pairs.item_cells, type(self).__name__)
        self.own_: Longs = np.arange(pairs.n_users)

    def fold(self, log: Log) -> None:
        """The new users join the population; item means and the rows of others stay as they are."""
        known = self._fitted("counts_")
        self.counts_ = beside(known, count(log))
        self.own_ = np.arange(known.n_users, self.counts_.n_users)

    def score_block(self, user_codes: Codes) -> Floats32:
        pairs, users = self._fitted("counts_"), self.own_[user_codes]
        bought = self._matrix((pairs.positives if self.similarity == "outcome" else pairs.treated) > 0)
        profiles = csr_array(bought if self.by == "user" else bought.T)
        profiles = csr_array(diags_array(1.0 / np.maximum(np.sqrt(profiles.sum(axis=1)), 1.0)) @ profiles)
        parts = (
            [users] if self.by == "user" else np.array_split(np.arange(pairs.n_items), pairs.n_items // AT_ONCE + 1)
        )
        absent = pairs.mean_chances()  # of neighbors' pairs without rows
        extra = pairs.chances - absent[pairs.item]
        effects = []
        for part in parts:
            near = csr_array(profiles[part] @ profiles.T)
            near.eliminate_zeros()
            near.data **= self.power

            def summed(counts: Any, near: csr_array = near) -> Any:
                matrix = self._matrix(counts)
                return (near @ matrix).toarray() if self.by == "user" else (matrix[users] @ near.T).toarray()

            columns = slice(None) if self.by == "user" else part
            chances = absent * near.sum(axis=1)[:, None] if self.by == "user" else (near @ absent)[None]
            if pairs.limited:
                chances = chances + summed(extra)
            shown = summed(pairs.treated)
            treated = self._rate(summed(pairs.treated_positives), shown, self.item_means_[0, columns])
            others = np.maximum(chances - shown, 0.0)
            effects.append(
                treated - self._rate(summed(pairs.control_positives), others, self.item_means_[1, columns])
            )
        return np.asarray(np.clip(np.hstack(effects), -MAX_SCORE, MAX_SCORE), np.float32)  # values may be of any size

    def _rate(self, positives: Any, observations: Any, means: Any) -> Any:
        return (positives + self.weight * means) / (observations + self.weight)

    def _matrix(self, values: Any) -> csr_array:
        pairs = self.counts_
        return csr_array((values.astype(np.float64), pairs.item, pairs.start), (pairs.n_users, pairs.n_items))
