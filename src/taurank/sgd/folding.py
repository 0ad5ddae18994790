"""Steps on the rows of users alone: what new users are worth to a model whose items stay as they are.

Each user is trained alone, by samples and random numbers that depend on the user's own rows, so that neither the
other users nor the number of threads change a bit.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from taurank._jit import compiled, vectorized
from taurank._random import Stream, below, stream, stream_key
from taurank._threads import map_blocks
from taurank._types import Floats32, Longs
from taurank.sgd.kernels import StepParams, sample_rows
from taurank.sgd.losses import POINTWISE, pair_gradient, point_gradient
from taurank.sgd.negatives import contains
from taurank.sgd.rows import pair_score, point_score
from taurank.sgd.samples import NO_BASKETS, TRIES, Baskets, Positives, Samples
from taurank.sgd.scheduler import Factors, Pairwise, Pointwise, step_params


def fold_pairs(
    factors: Factors, positives: Positives, n_items: int, seed: int, epoch: int, params: Pairwise,
    threads: int = 1, baskets: Baskets | None = None,
) -> None:  # fmt: skip
    """One pass over the positives of each user, each against a uniform item; only user rows move.

    The random numbers of a positive depend on its place among those of its user. With ``baskets``, an item of the
    same basket is not drawn.
    """
    key, outside = stream(seed, epoch, Stream.FOLDING), positives.in_baskets and baskets is not None
    listed, steps = baskets or NO_BASKETS, step_params(params)

    def work(begin: int, end: int) -> None:
        _fold_pairs(factors.users, factors.items, positives, n_items, key, steps, outside, listed, begin, end)

    map_blocks(work, len(positives.start) - 1, threads)


def fold_drawn(
    factors: Factors, drawn: Samples, params: Pairwise | Pointwise, n_users: int, threads: int = 1
) -> None:
    """Steps along drawn samples, user by user; only user rows move."""
    drawn = drawn[np.argsort(drawn["user"], kind="stable")]
    start = np.searchsorted(drawn["user"], np.arange(n_users + 1)).astype(np.int64)
    steps = step_params(params)
    map_blocks(lambda begin, end: _fold_drawn(*factors, drawn, start, steps, begin, end), n_users, threads)


@compiled
def _fold_pairs(
    users: Floats32, items: Floats32, positives: Positives, n_items: int, key: Any, params: StepParams,
    outside: bool, baskets: Baskets, begin: int, end: int,
) -> None:  # fmt: skip
    for u in range(begin, end):
        first = positives.start[u]
        for n in range(first, positives.start[u + 1]):
            i = np.int64(positives.item[n])
            own = stream_key(key, n - first, 0)
            j = _other(i, n_items, own, baskets, positives.basket[n] if outside else -1)
            if j >= 0:
                _pair_toward(users, items, u, i, j, positives.weight[n], params)


@compiled
def _other(i: Any, n_items: int, key: Any, baskets: Baskets, basket: Any) -> Any:
    """A uniform item other than i, outside the basket if there is one; −1 if none was found."""
    for attempt in range(TRIES if n_items > 1 else 0):
        j = np.int64(below(key, np.uint64(attempt), n_items - 1))
        j += j >= i
        if basket < 0 or not contains(baskets.item[baskets.start[basket] : baskets.start[basket + 1]], j):
            return j
    return np.int64(-1)


@compiled
def _fold_drawn(
    users: Floats32, items: Floats32, drawn: Samples, start: Longs, params: StepParams, begin: int, end: int
) -> None:
    for n in range(start[begin], start[end]):
        u, i, j = sample_rows(drawn[n])
        if params.loss == POINTWISE:
            eta_g = params.step * point_gradient(point_score(users, items, u, i), drawn[n].value)
            _point_toward(users[u], items[i], eta_g, params.shrink)
        else:
            _pair_toward(users, items, u, i, j, drawn[n].value, params)


@compiled
def _pair_toward(users: Any, items: Any, u: Any, i: Any, j: Any, weight: Any, params: StepParams) -> None:
    score = pair_score(users, items, u, i, j)
    eta_g = pair_gradient(score, params.step * weight, params.loss, params.steepness)
    _between_toward(users[u], items[i], items[j], eta_g, params.shrink)


@vectorized
def _between_toward(p: Any, a: Any, b: Any, eta_g: Any, shrink: Any) -> None:
    for c in range(p.size):
        p[c] = shrink * p[c] + eta_g * (a[c] - b[c])


@vectorized
def _point_toward(p: Any, a: Any, eta_g: Any, shrink: Any) -> None:
    for c in range(p.size):
        p[c] = shrink * p[c] + eta_g * a[c]
