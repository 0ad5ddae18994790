"""Features of the users and items of a log, as the priors use them.

Items' mean rates are shrunk toward a regression on the items' features (``rates.py``). The vectors of taste are
shrunk toward a linear map of the features: of users and, in both arms, of items. Users and items without any row
are what their features say.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from taurank._types import Floats
from taurank.data.features import Features
from taurank.data.ids import Ids
from taurank.learners.features import Ridge, trust
from taurank.learners.pairs import Pairs, without_cold


@dataclass(frozen=True)
class Covariates:
    """The features of all users and of all items, one sparse matrix each; None without a table of them."""

    users: Any = None
    items: Any = None

    @classmethod
    def of(cls, features: Features | None, users: Ids, items: Ids) -> Covariates:
        return NOTHING_KNOWN if features is None else cls(features.matrix(users), features.matrix(items))

    @property
    def given(self) -> bool:
        return self.users is not None or self.items is not None

    def warm(self, pairs: Pairs) -> Pairs:
        """The counts; those who have features and no rows are new, and count for nothing."""
        return without_cold(pairs, self.users is not None, self.items is not None)


NOTHING_KNOWN = Covariates()


class VectorMap:
    """From the features of users, or of items, to their vectors of taste, whose first entry is 1 without data."""

    def __init__(self, matrix: Any, positives: Floats) -> None:
        """``positives`` are the purchases of each row, which its vector comes from."""
        self.ridge = Ridge(matrix, trust(positives))

    def predict(self, vectors: Floats) -> Floats:
        """What the features say about each vector, given all of them; any axes between the first and the last."""
        usual = np.eye(vectors.shape[-1])[0]
        predicted = self.ridge.predict((vectors - usual).reshape(len(vectors), -1))
        return np.asarray(predicted.reshape(-1, *vectors.shape[1:]) + usual)
