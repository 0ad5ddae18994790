"""The training kernels: stochastic gradient descent over the samples of one unit.

Two *chains* alternate, one in each half of the samples, so that the processor works on one while the other waits
for its score. A chain scores its next sample right after the update of its last one: between a score and its step
lies at most one step of the other chain. This order is fixed, and so are the bits.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from taurank._jit import compiled, inlined
from taurank._types import Floats32
from taurank.sgd.intrinsics import prefetch
from taurank.sgd.losses import POINTWISE, f32, pair_gradient, pair_loss, point_gradient, point_loss
from taurank.sgd.rows import pair_score, pair_step, point_score, point_step, tied_step
from taurank.sgd.samples import Samples

MEASURE_EVERY = 32  # samples of the right chain: the reported loss is a sub-sample, because a loss costs a logarithm
LARGEST_SUM = np.float32(1e30)  # of the absolute scores of a unit; beyond it, or at NaN, training has diverged
CACHED_FACTORS = 2**20  # factors in both tables; larger tables exceed the near caches, so that prefetching pays
AHEAD = 8  # prefetch distance, in samples

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

    loss: int  # a surrogate, or POINTWISE
    steepness: np.float32  # ω
    step: np.float32  # η
    shrink: np.float32  # 1 − η γ
    tie: np.float32  # η λ_c


@compiled
def run_unit(users: Floats32, items: Floats32, samples: Samples, params: StepParams, stats: Any) -> None:
    """Steps over the samples of one unit, pairs or single items."""
    if params.loss == POINTWISE:
        _run_points(users, items, samples, params, stats)
    else:
        _run_pairs(users, items, samples, params, stats)


@compiled
def _run_pairs(users: Floats32, items: Floats32, samples: Samples, params: StepParams, stats: Any) -> None:
    """Pairwise steps over one unit."""
    last, half = len(samples) - 1, len(samples) // 2
    far = users.size + items.size > CACHED_FACTORS
    left = pair_score(users, items, *sample_rows(samples[0]))
    right = pair_score(users, items, *sample_rows(samples[half]))
    seen = f32(0)
    for n in range(last + 1 - half):
        here = half + n
        if n % MEASURE_EVERY == 0:
            value = samples[here].value
            stats.loss += pair_loss(right, value, params.loss, params.steepness)
            stats.zero_loss += abs(pair_loss(f32(0), value, params.loss, params.steepness))
            stats.measured += 1
        seen += abs(left) + abs(right)
        if far:
            _prefetch_pair(users, items, samples[min(n + AHEAD, last)])
            _prefetch_pair(users, items, samples[min(here + AHEAD, last)])
        if n < half:
            left = _pair_turn(users, items, samples[n], samples[n + 1], params, left)
        right = _pair_turn(users, items, samples[here], samples[min(here + 1, last)], params, right)
    stats.overflows += not seen < LARGEST_SUM


@inlined
def _pair_turn(users: Floats32, items: Floats32, here: Any, following: Any, params: StepParams, score: Any) -> Any:
    """Step along the sample ``here``, whose score is given; return the score of the following one."""
    eta_g = pair_gradient(score, params.step * here.value, params.loss, params.steepness)
    u, i, j = sample_rows(here)
    v, k, o = sample_rows(following)
    return pair_step(users, items, u, i, j, v, k, o, eta_g, params.shrink)


@inlined
def sample_rows(sample: Any) -> Any:
    return np.uint64(sample.user), np.uint64(sample.item), np.uint64(sample.other)


@inlined
def _prefetch_pair(users: Floats32, items: Floats32, sample: Any) -> None:
    u, i, j = sample_rows(sample)
    prefetch(users, u)
    prefetch(items, i)
    prefetch(items, j)


@compiled
def _run_points(users: Floats32, items: Floats32, samples: Samples, params: StepParams, stats: Any) -> None:
    """Pointwise steps over one unit, each with its tie."""
    last, half = len(samples) - 1, len(samples) // 2
    far = users.size + items.size > CACHED_FACTORS
    left = point_score(users, items, *_point(samples[0]))
    right = point_score(users, items, *_point(samples[half]))
    seen = f32(0)
    for n in range(last + 1 - half):
        here = half + n
        if n % MEASURE_EVERY == 0:
            value = samples[here].value
            stats.loss += point_loss(right, value)
            stats.zero_loss += point_loss(f32(0), value)
            stats.measured += 1
        seen += abs(left) + abs(right)
        if far:
            _prefetch_point(users, items, samples[min(n + AHEAD, last)])
            _prefetch_point(users, items, samples[min(here + AHEAD, last)])
        if n < half:
            left = _point_turn(users, items, samples[n], samples[n + 1], params, left)
        right = _point_turn(users, items, samples[here], samples[min(here + 1, last)], params, right)
    stats.overflows += not seen < LARGEST_SUM


@inlined
def _point_turn(users: Floats32, items: Floats32, here: Any, following: Any, params: StepParams, score: Any) -> Any:
    eta_g = params.step * point_gradient(score, here.value)
    u, i = _point(here)
    v, k = _point(following)
    if params.tie != f32(0):
        return tied_step(users, items, u, i, np.uint64(here.other), v, k, eta_g, params.shrink, params.tie)
    return point_step(users, items, u, i, v, k, eta_g, params.shrink)


@inlined
def _point(sample: Any) -> Any:
    return np.uint64(sample.user), np.uint64(sample.item)


@inlined
def _prefetch_point(users: Floats32, items: Floats32, sample: Any) -> None:
    u, i = _point(sample)
    prefetch(users, u)
    prefetch(items, i)
