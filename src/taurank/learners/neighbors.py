"""CUBN: the causal effect among similar users (Sato et al. 2021, causality-aware neighborhood methods)."""

from __future__ import annotations

import itertools
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

BLOCK = 256  # users whose similarities are in memory at once


@dataclass(kw_only=True, eq=False)
class CUBN(PairLearner):
    """Rank by the treated mean minus the control mean of the outcome among the nearest users.

    With s_uv the cosine similarity of what two users bought (``similarity="outcome"``) or were recommended
    ("treatment"), over the ``neighbors`` most similar users v of u, u among them:

        μ̂^T_ui = (Σ_v s_uv a^T_vi + w m^T_i) / (Σ_v s_uv b^T_vi + w),    μ̂^C alike,

    where a are positives in the arm (or the sum of their values), b observations there (treated times; all other
    eligible times), and m_i the item's mean in the arm, which counts like ``weight`` observations. Propensities are
    not used.
    """

    neighbors: int = 100
    similarity: str = "outcome"
    weight: float = 2.0

    scores_are_effects: ClassVar[bool] = True
    allowed: ClassVar[Allowed] = {
        "neighbors": Range(1, 100_000, integer=True),
        "similarity": ("outcome", "treatment"),
        "weight": Range(1e-9),
    }
    stored: ClassVar[Mapping[str, Array]] = {
        **stored_pairs("float64", "population"),
        "neighbor": Array("int32", ("users", "neighbors"), below="population"),
        "closeness": Array("float32", ("users", "neighbors"), minimum=0.0),
        "item_means": Array("float64", (2, "items"), minimum=0.0),
    }
    space: ClassVar[Mapping[str, Sequence[Any]]] = {
        "neighbors": (10, 30, 100, 300, 1000),
        "similarity": ("outcome", "treatment"),
        "weight": (0.3, 1.0, 3.0, 10.0, 30.0),
    }

    def learn_pairs(self, pairs: Pairs) -> None:
        self.counts_, self.item_means_ = pairs, item_means(pairs.item_sums(), pairs.item_cells, type(self).__name__)
        self._set_neighbors(np.arange(pairs.n_users))

    def fold(self, log: Log) -> None:
        """The new users join the population; item means and the rows of others stay as they are."""
        known = self._fitted("counts_")
        self.counts_ = beside(known, count(log))
        self._set_neighbors(np.arange(known.n_users, self.counts_.n_users))

    def _set_neighbors(self, users: Longs) -> None:
        """The most similar users of each, in blocks: users × neighbors numbers are stored, no more."""
        pairs = self.counts_
        profiles = self._matrix((pairs.positives if self.similarity == "outcome" else pairs.treated) > 0).copy()
        profiles.eliminate_zeros()  # in place, therefore a copy
        length = np.sqrt(np.diff(profiles.indptr))
        profiles = csr_array(diags_array(1.0 / np.maximum(length, 1.0)) @ profiles)  # rows of length 1
        everyone = csr_array(profiles.T)
        self.neighbor_ = np.zeros((len(users), self.neighbors), np.int32)
        self.closeness_ = np.zeros((len(users), self.neighbors), np.float32)
        for first in range(0, len(users), BLOCK):
            similar = csr_array(profiles[users[first : first + BLOCK]] @ everyone)
            for n, (begin, end) in enumerate(itertools.pairwise(similar.indptr), first):
                columns, values = similar.indices[begin:end], similar.data[begin:end]
                best = np.lexsort((columns, -values))[: self.neighbors]
                self.neighbor_[n, : len(best)], self.closeness_[n, : len(best)] = columns[best], values[best]

    def _matrix(self, values: Any) -> csr_array:
        pairs = self.counts_
        return csr_array((values.astype(np.float64), pairs.item, pairs.start), (pairs.n_users, pairs.n_items))

    def score_block(self, user_codes: Codes) -> Floats32:
        pairs, means, w = self._fitted("counts_"), self.item_means_, self.weight
        closeness = self.closeness_[user_codes].astype(np.float64)
        start = np.arange(len(user_codes) + 1) * self.neighbors
        near = csr_array(
            (closeness.ravel(), self.neighbor_[user_codes].ravel(), start), (len(user_codes), pairs.n_users)
        )
        shown, treated, control = (
            (near @ self._matrix(counts)).toarray()
            for counts in (pairs.treated, pairs.treated_positives, pairs.control_positives)
        )
        absent = pairs.mean_chances()  # of neighbors' pairs without rows
        others = absent * closeness.sum(axis=1)[:, None] - shown
        if pairs.limited:
            others += (near @ self._matrix(pairs.chances - absent[pairs.item])).toarray()
        effect = (treated + w * means[0]) / (shown + w) - (control + w * means[1]) / (np.maximum(others, 0.0) + w)
        return np.asarray(effect, np.float32)
