"""The training kernels: stochastic gradient descent over the samples of one unit.

Two *chains* alternate, one in each half of the samples, so that the processor works on one while the other waits
for its score. A chain scores its next sample right after the update of its last one: between a score and its step
lies at most one step of the other chain. This order is fixed, and so are the bits.

A step of size η along a sample with gradient g = −dloss/ds descends the loss plus (γ/2)‖·‖² of the rows it scores.
Where a sample has no second row, or no tie, the argument is None, and Numba compiles the loop without it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from taurank._jit import compiled, inlined, vectorized
from taurank._types import Floats32, Longs
from taurank.sgd.intrinsics import prefetch
from taurank.sgd.losses import LOGISTIC, f32, pair_gradient, pair_loss, point_gradient, point_loss
from taurank.sgd.strata import Samples

MEASURE_EVERY = 32  # samples of the right chain: the reported loss is a sub-sample, because a loss costs a logarithm
LARGEST_SUM = np.float32(1e30)  # of the absolute scores of a unit; beyond it, or at NaN, training has diverged
CACHED_FACTORS = 2**20  # factors in both tables; larger tables exceed the near caches, so that prefetching pays
AHEAD = 8  # prefetch distance, in samples
WIDE = 128  # columns; in narrower rows two short loops are faster than one with more streams

UNIT_STATS = np.dtype(
    [
        ("loss", "f8"),  # sum over the measured samples
        ("zero_loss", "f8"),  # the same sum if every score were 0, of absolute values
        ("measured", "i8"),
        ("updates", "i8"),
        ("skipped", "i8"),
        ("overflows", "i8"),  # 1 if a score was not finite or absurdly large
    ]
)


class StepParams(NamedTuple):
    """Hyper-parameters of a step; float32, so that nothing is widened to float64."""

    loss: int | None  # a surrogate; None: the pointwise loss
    steepness: np.float32  # ω
    step: np.float32  # η
    shrink: np.float32  # 1 − η γ
    tie: np.float32 | None  # η λ_c


def pair_params(rate: float, regularization: float, steepness: float = 1.0, surrogate: int = LOGISTIC) -> StepParams:
    """Pairwise steps with the learning rate ``rate``."""
    return StepParams(surrogate, f32(steepness), f32(rate), f32(1 - rate * regularization), None)


def point_params(rate: float, regularization: float, tie: float = 0.0) -> StepParams:
    """Pointwise steps; ``tie`` is λ_c."""
    return StepParams(None, f32(1), f32(rate), f32(1 - rate * regularization), f32(rate * tie) if tie else None)


@compiled
def run_unit(users: Floats32, items: Floats32, samples: Samples, params: StepParams, stats: Any) -> None:
    """Steps over the samples of one unit."""
    loss, tie = params.loss, params.tie
    last, half = len(samples) - 1, len(samples) // 2
    far = users.size + items.size > CACHED_FACTORS
    left, right = _score(users, items, samples[0], loss), _score(users, items, samples[half], loss)
    seen = f32(0)
    for n in range(last + 1 - half):
        here = half + n
        if n % MEASURE_EVERY == 0:
            stats.loss += _loss(right, samples[here].value, loss, params.steepness)
            stats.zero_loss += abs(_loss(f32(0), samples[here].value, loss, params.steepness))
            stats.measured += 1
        seen += abs(left) + abs(right)
        if far:
            _prefetch_rows(users, items, samples[min(n + AHEAD, last)], loss)
            _prefetch_rows(users, items, samples[min(here + AHEAD, last)], loss)
        if n < half:
            left = turn(users, items, samples[n], samples[n + 1], left, params, loss, tie)
        right = turn(users, items, samples[here], samples[min(here + 1, last)], right, params, loss, tie)
    stats.overflows += not seen < LARGEST_SUM


@inlined
def turn(
    users: Floats32, items: Floats32, here: Any, following: Any, score: Any, params: StepParams, loss: Any, tie: Any
) -> Any:
    """Step along the sample ``here``, whose score is given; return the score of the following one.

    Where both have the same user and share no item row, one loop does both.
    """
    u, i, j = _rows(here)
    v, k, o = _rows(following)
    eta_g = _gradient(score, here.value, params, loss)
    second, compared = _row(items, j, tie if loss is None else loss), _row(items, o, loss)
    if u == v and users.shape[1] >= WIDE and k != i and k != j and o != i and o != j:
        return _step(users[u], items[i], second, items[k], compared, eta_g, params.shrink, tie)
    _step(users[u], items[i], second, None, None, eta_g, params.shrink, tie)
    return _dot(users[v], items[k], compared)


@compiled
def fold_users(
    users: Floats32, items: Floats32, samples: Samples, start: Longs, params: StepParams, begin: int, end: int
) -> None:
    """Steps along the samples of the users begin … end − 1; only user rows move."""
    loss = params.loss
    for n in range(start[begin], start[end]):
        u, i, j = _rows(samples[n])
        eta_g = _gradient(_score(users, items, samples[n], loss), samples[n].value, params, loss)
        _move_user(users[u], items[i], _row(items, j, loss), eta_g, params.shrink)


@inlined
def _rows(sample: Any) -> Any:
    return np.uint64(sample.user), np.uint64(sample.item), np.uint64(sample.other)


@inlined
def _row(items: Floats32, row: Any, wanted: Any) -> Any:
    if wanted is None:
        return None
    return items[row]


@inlined
def _score(users: Floats32, items: Floats32, sample: Any, loss: Any) -> Any:
    u, i, j = _rows(sample)
    return _dot(users[u], items[i], _row(items, j, loss))


@inlined
def _loss(score: Any, value: Any, loss: Any, steepness: Any) -> Any:
    if loss is None:
        return point_loss(score, value)
    return pair_loss(score, value, loss, steepness)


@inlined
def _gradient(score: Any, value: Any, params: StepParams, loss: Any) -> Any:
    """η g"""
    if loss is None:
        return params.step * point_gradient(score, value)
    return pair_gradient(score, params.step * value, loss, params.steepness)


@inlined
def _prefetch_rows(users: Floats32, items: Floats32, sample: Any, loss: Any) -> None:
    u, i, j = _rows(sample)
    columns = np.uint64(users.shape[1])
    prefetch(users, u * columns)
    prefetch(items, i * columns)
    if loss is not None:
        prefetch(items, j * columns)


@vectorized
def _dot(p: Any, a: Any, b: Any) -> Any:
    """p · (a − b), or p · a"""
    total = f32(0)
    for c in range(p.size):
        if b is None:
            total += p[c] * a[c]
        else:
            total += p[c] * (a[c] - b[c])
    return total


@vectorized
def _step(p: Any, a: Any, b: Any, k: Any, o: Any, eta_g: Any, shrink: Any, tie: Any) -> Any:
    """Update p, a and b; return the score of the new p with k, or k − o, if they are given.

    With a tie, descend (λ_c/2)‖a − b‖² after the update of p and a.
    """
    total = f32(0)
    for c in range(p.size):
        x, y = p[c], a[c]
        if b is None:
            new = shrink * x + eta_g * y
            p[c] = new
            a[c] = shrink * y + eta_g * x
        elif tie is None:
            z = b[c]
            new = shrink * x + eta_g * (y - z)
            p[c] = new
            a[c] = shrink * y + eta_g * x
            b[c] = shrink * z - eta_g * x
        else:
            z = b[c]
            new = shrink * x + eta_g * y
            p[c] = new
            moved = shrink * y + eta_g * x
            apart = tie * (moved - z)
            a[c] = moved - apart
            b[c] = z + apart
        if k is not None:
            if o is None:
                total += new * k[c]
            else:
                total += new * (k[c] - o[c])
    return total


@vectorized
def _move_user(p: Any, a: Any, b: Any, eta_g: Any, shrink: Any) -> None:
    for c in range(p.size):
        if b is None:
            p[c] = shrink * p[c] + eta_g * a[c]
        else:
            p[c] = shrink * p[c] + eta_g * (a[c] - b[c])
