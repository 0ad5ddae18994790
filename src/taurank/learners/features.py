"""Factors pulled toward a linear map of features.

The map M of users is the ridge regression of their factors on their features x_u, weighted by how much each user was
trained: the minimum of Σ_u w_u ‖p_u − M x_u‖² + λ‖M‖² with w_u = n_u / (n_u + mean n), n_u the user's positives. It
is solved again after every epoch, and then p_u moves by the share 1 − exp(−η·pull) toward M x_u: a step of descent
on (pull/2)‖p_u − M x_u‖². A user without any row is M x_u itself. Items alike.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.linalg import cho_factor, cho_solve
from scipy.sparse import csr_array, diags_array

from taurank._threads import one_blas_thread
from taurank._types import Floats32
from taurank.data.features import Features
from taurank.data.log import Log
from taurank.learners.training import Epoch
from taurank.sgd.scheduler import Factors, Stats

RIDGE = 1.0  # λ: a prior as strong as one fully trained row


def pulled(epoch: Epoch, features: Features, log: Log, known: tuple[int, int]) -> Epoch:
    """``epoch``, followed by the pull. The first ``known`` users and items are trained, with or without rows."""
    bought, matrices = log.outcome == 1, (features.matrix(log.users), features.matrix(log.items))
    maps = [
        (side, RidgeMap(matrix, codes[bought], codes, known[side]))
        for side, (matrix, codes) in enumerate(zip(matrices, (log.user, log.item), strict=True))
        if matrix is not None
    ]

    def run(factors: Factors, seed: int, number: int, rate: float, threads: int) -> Stats:
        stats = epoch.run(factors, seed, number, rate, threads)
        for side, ridge in maps:
            ridge.pull(factors[side], -math.expm1(-rate * features.pull))
        return stats

    return Epoch(run, epoch.updates)


class Ridge:
    """The weighted ridge regression of rows of numbers on their features."""

    def __init__(self, matrix: csr_array, weight: npt.NDArray[np.float64]) -> None:
        self.matrix, self.weighted = matrix, csr_array((diags_array(weight) @ matrix).T)
        with one_blas_thread():
            gram = (self.weighted @ matrix).toarray()
            self.gram = cho_factor(gram + RIDGE * np.eye(len(gram)))

    def predict(self, rows: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        """What the features say about each row."""
        with one_blas_thread():
            return np.asarray(self.matrix @ cho_solve(self.gram, self.weighted @ rows.astype(np.float64)))


def trust(count: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The weight of a row with so many positives: n / (n + mean n of those that have any)."""
    return np.asarray(count / (count + (count[count > 0].mean() if count.any() else 1.0)))


class RidgeMap(Ridge):
    """The map from one table of features to factors."""

    def __init__(
        self, matrix: csr_array, positives: npt.NDArray[Any], rows: npt.NDArray[Any], known: int = 0
    ) -> None:
        n = matrix.shape[0]
        count = np.bincount(positives, minlength=n).astype(np.float64)
        self.cold = np.bincount(rows, minlength=n) == 0
        self.cold[:known] = False
        weight = trust(count)
        weight[:known] = np.maximum(weight[:known], 0.5)  # trained by rows that are not here: as by the mean of all
        super().__init__(matrix, weight)

    def pull(self, table: Floats32, share: float) -> None:
        """Move rows toward the prediction; with several tables stacked, each has a map of its own."""
        for part in np.split(table, len(table) // self.matrix.shape[0]):
            toward = self.predict(part)
            shares = np.where(self.cold, 1.0, share)[:, None]
            part += (shares * (toward - part)).astype(np.float32)
