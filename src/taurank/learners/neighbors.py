"""CUBN: the causal effect among similar users (Sato et al. 2021, causality-aware neighborhood methods)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array, diags_array

from taurank._validation import check_choice, check_number
from taurank.data.ids import Codes
from taurank.data.log import Log
from taurank.data.storage import Array
from taurank.learners.base import Float32s, Learner
from taurank.learners.counting import (
    CHANCES,
    Chances,
    Pairs,
    added,
    chances,
    count_pairs,
    entries,
    later_chances,
    store_chances,
    stored_chances,
)

Floats = npt.NDArray[np.float64]

BLOCK = 256  # users whose similarities are in memory at once
_COUNTS = ("treated", "treated_positives", "control_positives")


@dataclass(kw_only=True, eq=False)
class CUBN(Learner):
    """Rank by the treated mean minus the control mean of the outcome among the nearest users.

    With s_uv the cosine similarity of what two users bought (``similarity="outcome"``) or were recommended
    ("treatment"), over the ``neighbors`` most similar users v of u, u among them:

        μ̂^T_ui = (Σ_v s_uv a^T_vi + w m^T_i) / (Σ_v s_uv b^T_vi + w),    μ̂^C alike,

    where a are positives in the arm, b observations there (treated times; all other eligible times), and m_i the
    item's mean in the arm, which counts like ``weight`` observations. Propensities are not used.
    """

    neighbors: int = 100
    similarity: str = "outcome"
    weight: float = 2.0

    stored: ClassVar[Mapping[str, Array]] = {
        "pair_start": Array("int64", ("population + 1",), offsets_of="pairs"),
        "pair_item": Array("int32", ("pairs",), below="items"),
        **{name: Array("int32", ("pairs",)) for name in _COUNTS},
        "times": Array("int64", (1,), maximum=2**31 - 1),
        "neighbor": Array("int32", ("users", "neighbors"), below="population"),
        "closeness": Array("float32", ("users", "neighbors"), minimum=0.0),
        "item_means": Array("float64", (2, "items"), minimum=0.0, maximum=1.0),
        **CHANCES,
    }
    space: ClassVar[Mapping[str, Sequence[Any]]] = {
        "neighbors": (10, 30, 100, 300, 1000),
        "similarity": ("outcome", "treatment"),
        "weight": (0.3, 1.0, 3.0, 10.0, 30.0),
    }

    def __post_init__(self) -> None:
        check_number("neighbors", self.neighbors, 1, 100_000, integer=True)
        check_choice("similarity", self.similarity, ("outcome", "treatment"))
        check_number("weight", self.weight, 1e-9)

    def learn(self, log: Log) -> None:
        pairs = count_pairs(log)
        self._learn(pairs, chances(log, pairs), log.n_users, log.n_times)

    def learn_more(self, log: Log) -> None:
        """Add up the counts, to the bits of a fit to all rows."""
        known, times = self._pairs(), int(self.times_[0])
        pairs = added(known, count_pairs(log))
        had = later_chances(known, stored_chances(self, known, times), log, pairs)
        self._learn(pairs, had, log.n_users, times + log.n_times)

    def fold(self, log: Log) -> None:
        """The new users join the population; means, times and the rows of others stay as they are."""
        known, new = self._pairs(), count_pairs(log)
        moved = Pairs(np.concatenate((np.zeros(len(known.start) - 1, np.int64), new.start)), *new[1:])
        had, pairs = stored_chances(self, known, int(self.times_[0])), added(known, moved)
        if had.limited or not log.eligibility.is_everything:
            pair = np.zeros(len(pairs.item), np.int32)
            for part, each in ((known, had.pair), (moved, chances(log, new).pair)):
                pair[entries(part, pairs, len(self.items))] = each
            store_chances(self, had._replace(pair=pair, limited=True))
        self._set_pairs(pairs)
        self._set_neighbors(np.arange(len(known.start) - 1, len(moved.start) - 1))

    def _learn(self, pairs: Pairs, had: Chances, n_users: int, n_times: int) -> None:
        store_chances(self, had)
        self.times_ = np.array([n_times], np.int64)
        self._set_pairs(pairs)
        n_items = len(self.items)
        sums = [np.bincount(pairs.item, each, n_items).astype(np.float64) for each in pairs[2:]]
        treated, positives, control = sums
        untreated = had.item - treated
        self.item_means_ = np.stack((_share(positives, treated), _share(control, untreated)))
        self._set_neighbors(np.arange(n_users))

    def _set_pairs(self, pairs: Pairs) -> None:
        self.pair_start_, self.pair_item_ = pairs.start, pairs.item
        for name, counts in zip(_COUNTS, pairs[2:], strict=True):
            setattr(self, f"{name}_", counts.astype(np.int32))

    def _pairs(self) -> Pairs:
        counts = (getattr(self, f"{name}_").astype(np.float64) for name in _COUNTS)
        return Pairs(self._fitted("pair_start_"), self.pair_item_, *counts)

    def _set_neighbors(self, users: npt.NDArray[Any]) -> None:
        """The most similar users of each, in blocks: users × neighbors numbers are stored, no more."""
        rows = self._profiles()
        everyone = csr_array(rows.T)
        self.neighbor_ = np.zeros((len(users), self.neighbors), np.int32)
        self.closeness_ = np.zeros((len(users), self.neighbors), np.float32)
        for first in range(0, len(users), BLOCK):
            here = users[first : first + BLOCK]
            similar = csr_array(rows[here] @ everyone)
            for n in range(len(here)):
                part = slice(similar.indptr[n], similar.indptr[n + 1])
                columns, values = similar.indices[part], similar.data[part]
                best = np.lexsort((columns, -values))[: self.neighbors]
                self.neighbor_[first + n, : len(best)] = columns[best]
                self.closeness_[first + n, : len(best)] = values[best]

    def _profiles(self) -> csr_array:
        """What each user bought or was recommended, as rows of length 1."""
        pairs = self._pairs()
        bought = pairs.treated_positives + pairs.control_positives
        profile = self._matrix((bought if self.similarity == "outcome" else pairs.treated) > 0).copy()
        profile.eliminate_zeros()  # in place, therefore a copy
        length = np.sqrt(np.diff(profile.indptr))
        return csr_array(diags_array(1.0 / np.maximum(length, 1.0)) @ profile)

    def _matrix(self, values: npt.NDArray[Any]) -> csr_array:
        shape = (len(self.pair_start_) - 1, len(self.items))
        return csr_array((values.astype(np.float64), self.pair_item_, self.pair_start_), shape)

    def score_block(self, user_codes: Codes) -> Float32s:
        pairs, w = self._pairs(), self.weight
        closeness = self.closeness_[user_codes].astype(np.float64)
        start = np.arange(len(user_codes) + 1) * self.neighbors
        shape = (len(user_codes), len(self.pair_start_) - 1)
        near = csr_array((closeness.ravel(), self.neighbor_[user_codes].ravel(), start), shape)
        shown, treated, control = ((near @ self._matrix(counts)).toarray() for counts in pairs[2:])
        had = stored_chances(self, pairs, int(self.times_[0]))
        others = had.absent * closeness.sum(axis=1)[:, None] - shown
        if had.limited:
            others += (near @ self._matrix(had.pair - had.absent[pairs.item])).toarray()
        means = self.item_means_
        effect = (treated + w * means[0]) / (shown + w) - (control + w * means[1]) / (np.maximum(others, 0.0) + w)
        return np.asarray(effect, np.float32)


def _share(positives: Floats, observations: Floats) -> Floats:
    """Each item's mean; the mean of all items for one without observations, 0 if no item has any."""
    whole = positives.sum() / max(observations.sum(), 1.0)
    return np.asarray(np.divide(positives, observations, out=np.full(len(positives), whole), where=observations > 0))
