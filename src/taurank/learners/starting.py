"""Factors to start training from: those of the scores of another model, by a truncated singular value decomposition.

Scores are read block by block of users, so nothing of size users × items is in memory. Each user's scores
are centered, because a constant of the user changes no ranking, and all of them are scaled to one spread,
because the scores of the other model may have any unit.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from taurank._threads import one_blas_thread
from taurank.data.log import Log
from taurank.errors import InputError
from taurank.learners.base import Learner
from taurank.sgd.scheduler import Factors, factor_table

Floats = npt.NDArray[np.float64]

BLOCK = 256  # users
PASSES, EXTRA = 4, 8  # of the subspace iteration, and its columns beyond the factors
SPREAD = 0.5  # standard deviation of a user's scores at the start


def factors_of(model: Learner, log: Log, factors: int) -> Factors:
    """The best approximation of the model's centered scores by this many factors, half of the scale on each side."""
    if model.users != log.users or model.items != log.items:
        raise InputError("the model to start from has other users or items than the log; fit it to the same log.")
    with one_blas_thread():
        users, items, spread = _truncated(model, log, factors)
    scale = np.sqrt(SPREAD / max(spread, 1e-30))
    tables = Factors(factor_table(log.n_users, factors), factor_table(log.n_items, factors))
    tables.users[:, : users.shape[1]] = scale * users
    tables.items[:, : items.shape[1]] = scale * items
    return tables


def _truncated(model: Learner, log: Log, factors: int) -> tuple[Floats, Floats, float]:
    """Both sides of the decomposition, and the standard deviation of the scores it is of."""
    width = min(factors + EXTRA, log.n_items)
    basis = np.linalg.qr(np.random.default_rng(0).standard_normal((log.n_items, width)))[0]
    for _ in range(PASSES):
        image = np.zeros_like(basis)
        for _, scores in _centered(model, log.n_users):
            image += scores.T @ (scores @ basis)
        basis = np.linalg.qr(image)[0]
    seen, squares = np.empty((log.n_users, width)), 0.0
    for part, scores in _centered(model, log.n_users):
        seen[part] = scores @ basis
        squares += float(np.sum(scores**2))
    left, size, right = np.linalg.svd(seen, full_matrices=False)
    kept, root = slice(min(factors, len(size))), np.sqrt(size)
    items = (basis @ right.T)[:, kept] * root[kept]
    return left[:, kept] * root[kept], items, float(np.sqrt(squares / (log.n_users * log.n_items)))


def _centered(model: Learner, n_users: int) -> Iterator[tuple[slice, npt.NDArray[Any]]]:
    for first in range(0, n_users, BLOCK):
        codes = np.arange(first, min(first + BLOCK, n_users), dtype=np.int32)
        scores = model.score_block(codes).astype(np.float64)
        yield slice(first, first + len(codes)), scores - scores.mean(axis=1, keepdims=True)
