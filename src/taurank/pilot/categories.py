"""The categories that a user can be shown, where a shop shows each user some categories only.

Outside a user's categories the log shows nothing, so it cannot tell what showing would do there; a list that ranks
such items is not to be believed, and could not be shown either. A model is asked for the best items of the user's own
categories. Where no table says what these categories are, ``derived``
finds them in what was shown.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow.compute as pc
from scipy.sparse import csr_array

from taurank._jit import compiled
from taurank._types import Codes, Longs, Mask
from taurank.data.features import Features
from taurank.data.log import Log
from taurank.learners import Learner
from taurank.learners.recommend import Request

LAST = np.float32(-1e30)  # the score of an item that the user cannot be shown
NEIGHBORS = 12  # of an item: those shown to the same users most often, beyond chance
SWEEPS = 30
ENOUGH = 3  # items of a category that a user was shown before it counts as one of the user's own
FOREIGN = 0.2  # chance of a foreign item to be shown, of that of an own one, from which on categories explain nothing
MAX_USERS = 20_000  # to see which items are shown together


@dataclass(frozen=True, eq=False)
class Categories:
    """``own`` (users × categories) says what each user can be shown; ``category`` is that of each item.

    One more category, of nobody, holds the items without one. ``features`` are the same as tables.
    """

    own: Mask
    category: Codes
    features: Features
    are_derived: bool = False

    @classmethod
    def of(cls, features: Features, log: Log, are_derived: bool = False) -> Categories:
        known = features.user_categories(log.users, log.items)
        assert known is not None
        own = np.zeros((log.n_users, max(known.category.max(initial=0), known.item.max(initial=0)) + 1), np.bool_)
        own[known.user, known.category] = True
        return cls(own, known.item.astype(np.int32), features, are_derived)

    @property
    def sentence(self) -> str:
        """What was derived."""
        users = self.own.any(axis=1)
        return (
            f"{self.own.any(axis=0).sum():,} groups of items were found in what was shown, "
            f"{self.own[users].sum(axis=1).mean():.1f} of them for each user; lists stay within them."
        )


def derived(log: Log, items: pd.DataFrame | None, seed: int = 0) -> Categories | None:
    """The categories of users, those of which they were shown items, and of items, unless a table has them.

    Items belong together that are shown to the same users: each takes the label that most of the items have with
    which it is shown more often than chance would have it (label propagation, Raghavan et al. 2007). None if users
    are shown items of other categories almost as often: then everybody can be shown everything.
    """
    rows = np.flatnonzero(log.treated == 1)
    pairs = csr_array((np.ones(len(rows)), (log.user[rows], log.item[rows])), (log.n_users, log.n_items))
    pairs.data[:] = 1.0
    if items is None:
        group = _shown_together(pairs, seed)
        items = pd.DataFrame({"item_id": log.items.values.to_pandas(), "category": [f"group {g}" for g in group]})
    code, labels = pd.factorize(items.set_index("item_id")["category"].reindex(log.items.values.to_pandas()))
    of_group = csr_array((np.ones(log.n_items)[code >= 0], (np.flatnonzero(code >= 0), code[code >= 0])))
    of_group.resize(log.n_items, len(labels))
    counts = (pairs @ of_group).tocoo()  # distinct items that each user was shown
    enough = counts.data >= ENOUGH
    user, group, shown = counts.row[enough], counts.col[enough], counts.data[enough]
    total = np.bincount(user, shown, log.n_users)
    own = pd.DataFrame({
        "user_id": log.users.values.to_pandas().to_numpy()[user], "category": labels.to_numpy()[group],
        "score": np.log(shown / total[user]),
    })  # fmt: skip
    categories = Categories.of(Features(items=items, categories=own), log, are_derived=True)
    active, sizes = total > 0, np.bincount(categories.category, minlength=categories.own.shape[1])
    inside = float((categories.own[active] @ sizes).sum())
    outside = float(active.sum() * log.n_items - inside)
    foreign = (counts.data[~enough].sum() / outside) if outside else 1.0
    return categories if foreign < FOREIGN * total.sum() / max(inside, 1.0) else None


def _shown_together(pairs: Any, seed: int) -> Longs:
    """A label for each item, from users × items."""
    if pairs.shape[0] > MAX_USERS:
        pairs = pairs[np.sort(np.random.default_rng(seed).choice(pairs.shape[0], MAX_USERS, replace=False))]
    n_users, n_items = pairs.shape
    n = np.asarray(pairs.sum(axis=0)).ravel()
    together = (pairs.T @ pairs).tocoo()
    other = together.row != together.col
    row, column, count = together.row[other], together.col[other], together.data[other]
    expected = n[row] * n[column] / n_users
    beyond = (count - expected) / np.sqrt(expected + 1.0)
    order = np.lexsort((column, -beyond, row))
    row, column, beyond = row[order], column[order], beyond[order]
    nearest = (np.arange(len(row)) - np.searchsorted(row, row) < NEIGHBORS) & (beyond > 0.0)
    graph = csr_array((beyond[nearest], (row[nearest], column[nearest])), (n_items, n_items))
    graph = csr_array(graph + graph.T)
    label = np.arange(n_items)
    for _ in range(SWEEPS):
        before = label.copy()
        for item in np.argsort(-n, kind="stable"):
            part = slice(graph.indptr[item], graph.indptr[item + 1])
            if part.start < part.stop:
                known, place = np.unique(label[graph.indices[part]], return_inverse=True)
                weight = np.bincount(place, graph.data[part])
                if weight.max() > weight[known == label[item]].sum():
                    label[item] = known[weight.argmax()]
        if (label == before).all():
            break
    return label


class WithinCategories:
    """A fitted learner whose lists stay within each user's categories; a ranker like the learner itself."""

    def __init__(self, learner: Learner, categories: Categories) -> None:
        self.learner, self.users, self.items = learner, learner.users, learner.items
        self.popularity_, self.scores_are_effects = learner.popularity_, learner.scores_are_effects
        self.categories = categories

    def score_block(self, user_codes: Codes) -> npt.NDArray[Any]:
        scores = np.require(self.learner.score_block(user_codes), requirements=["C", "W"])
        _put_last(scores, self.categories.own[user_codes], self.categories.category)
        return scores

    def recommend(self, k: int, candidates: Any = None, threads: int | None = None) -> pd.DataFrame:
        """As ``Learner.recommend``; a user may get fewer than ``k`` items."""
        frame = Request(self, k, candidates, threads=threads).frame(None)
        return frame[frame["score"] > LAST]

    def write_recommendations(self, path: Any, *, k: int, candidates: Any = None, threads: int | None = None) -> int:
        """``recommend`` straight into a file, block by block; returns the number of rows."""
        request = Request(self, k, candidates, threads=threads)
        shown = (batch.filter(pc.greater(batch["score"], float(LAST))) for batch in request.batches(None))
        return request.write(path, shown)


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
