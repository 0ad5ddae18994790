"""The training kernels: stochastic gradient descent over the samples of one unit.

Two losses serve every method. *Pairwise*, for a sample (u, i, j) with a signed weight w, steepness
omega and s = p_u . (q_i - q_j); the sign of w tells the treated (+) from the control arm (-):

    logistic   |w| log(1 + exp(-sign(w) omega s))          Eq. (upper_bound_local_loss)
    sigmoid      w / (1 + exp(omega s))                    Eq. (approximation_local_loss)
    hinge      |w| max(0, 1 - sign(w) omega s)

*Pointwise*, for (u, i) with a target y in [0, 1] and s = p_u . q_i: the log-loss of sigma(s), plus
(lambda_c / 2) |q_i - q_o|^2 where row i is tied to row o of a second item table.
A step of size eta descends the loss plus (gamma / 2) |.|^2 of the rows it scores.

Two *chains* walk in turn, one through each half of the samples, so that the processor works on
one while the other waits for its score. A chain scores its next sample as it updates the last one:
between a score and its step lies at most one step of the other chain. That order is fixed, and
so are the bits.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from taurank._jit import compiled, inlined
from taurank._random import below
from taurank.sgd.intrinsics import prefetch
from taurank.sgd.losses import f32, pair_gradient, pair_loss, point_loss, sigmoid_neg
from taurank.sgd.rows import pair_same_user, pair_score, pair_step, point_score, point_step, tie_step
from taurank.sgd.samples import Baskets, Floats, Ints, Samples

MEASURE_EVERY = 32  # the loss is reported from every 32nd round of the chains: it costs a log
LARGEST_SUM = np.float32(1e30)  # of a unit's absolute scores: beyond it, or NaN, it has diverged
NEAR = 2**20  # factors, in all: larger tables lie outside the near caches, so rows are fetched
AHEAD = 8  # so many samples before they are used
TRIES = 32  # random negatives before a basket's block is searched item by item

Statistics = NDArray[np.float64]


class StepParams(NamedTuple):
    """Hyper-parameters as the kernels use them; float32, so that nothing widens to float64."""

    pointwise: bool
    surrogate: int
    steepness: np.float32
    step: np.float32  # eta
    keep: np.float32  # 1 - eta * gamma
    tie: np.float32  # eta * lambda_c


@compiled
def draw_others(samples: Samples, items: Ints, key: Any) -> None:
    """j uniform over `items` without i: where the draw hits i, the last item stands in.

    The draw never gives the last item itself, so all but i are equally likely."""
    bound = len(items) - 1
    for n in range(len(samples)):
        j = items[below(key, n, bound)]
        samples[n].other = items[bound] if j == samples[n].item else j


@compiled
def draw_outside(samples: Samples, baskets: Baskets, items: Ints, key: Any) -> int:
    """j uniform over `items` outside the basket; where there is none, weight 0 and count."""
    skipped = 0
    for n in range(len(samples)):
        i, basket = samples[n].item, samples[n].other
        bought = baskets.item[baskets.start[basket] : baskets.start[basket + 1]]
        j = _outside(i, bought, items, key, n * TRIES)
        if j < 0:
            skipped += 1
            samples[n].weight = 0
            j = items[0] if items[0] != i else items[1]
        samples[n].other = j
    return skipped


@compiled
def _outside(i: int, bought: Ints, items: Ints, key: Any, counter: int) -> Any:
    """A random item that is neither i nor bought, or -1: by trial, then by a walk through all."""
    place = np.int64(0)
    for attempt in range(TRIES + len(items)):
        place = (place + 1) % len(items)
        if attempt < TRIES:
            place = np.int64(below(key, counter + attempt, len(items)))
        j = items[place]
        found = np.searchsorted(bought, j)
        if j != i and (found == len(bought) or bought[found] != j):
            return j
    return -1


@compiled
def run_pairs(users: Floats, items: Floats, samples: Samples, rule: StepParams, statistics: Statistics) -> None:
    """Pairwise steps over one unit; adds (loss, measured, ., ., diverged) to the statistics."""
    last, half = len(samples) - 1, len(samples) // 2
    far = users.size + items.size > NEAR
    left = pair_score(users, items, *_pair(samples[0]))
    right = pair_score(users, items, *_pair(samples[half]))
    seen = f32(0)
    for n in range(last + 1 - half):
        here = half + n
        if n % MEASURE_EVERY == 0:
            weight = samples[here].weight
            statistics[0] += pair_loss(right, weight, rule.surrogate, rule.steepness)
            statistics[1] += 1
        seen += abs(left) + abs(right)
        if far:
            _fetch_pair(users, items, samples[n + AHEAD if n + AHEAD < last else last])
            _fetch_pair(users, items, samples[here + AHEAD if here + AHEAD < last else last])
        if n < half:
            left = _pair_turn(users, items, samples[n], samples[n + 1], rule, left)
        following = samples[min(here + 1, last)]
        right = _pair_turn(users, items, samples[here], following, rule, right)
    statistics[4] += not seen < LARGEST_SUM


@inlined
def _pair(sample: Any) -> Any:
    return np.uint64(sample.user), np.uint64(sample.item), np.uint64(sample.other)


@inlined
def _fetch_pair(users: Floats, items: Floats, sample: Any) -> None:
    u, i, j = _pair(sample)
    prefetch(users, u)
    prefetch(items, i)
    prefetch(items, j)


@inlined
def _pair_turn(users: Floats, items: Floats, here: Any, following: Any, rule: StepParams, score: Any) -> Any:
    """Step along the sample `here`, whose score is given; return the score of the following."""
    pull = pair_gradient(score, rule.step * here.weight, rule.surrogate, rule.steepness)
    u, i, j = _pair(here)
    v, k, o = _pair(following)
    if u == v:
        return pair_same_user(users, items, u, i, j, v, k, o, pull, rule.keep)
    return pair_step(users, items, u, i, j, v, k, o, pull, rule.keep)


@compiled
def run_points(users: Floats, items: Floats, samples: Samples, rule: StepParams, statistics: Statistics) -> None:
    """Pointwise steps over one unit; the tie follows the step it belongs to."""
    last, half = len(samples) - 1, len(samples) // 2
    far = users.size + items.size > NEAR
    left = point_score(users, items, *_point(samples[0]))
    right = point_score(users, items, *_point(samples[half]))
    seen = f32(0)
    for n in range(last + 1 - half):
        here = half + n
        if n % MEASURE_EVERY == 0:
            statistics[0] += point_loss(right, samples[here].weight)
            statistics[1] += 1
        seen += abs(left) + abs(right)
        if far:
            _fetch_point(users, items, samples[n + AHEAD if n + AHEAD < last else last])
            _fetch_point(users, items, samples[here + AHEAD if here + AHEAD < last else last])
        if n < half:
            left = _point_turn(users, items, samples[n], samples[n + 1], rule, left)
        following = samples[min(here + 1, last)]
        right = _point_turn(users, items, samples[here], following, rule, right)
    statistics[4] += not seen < LARGEST_SUM


@inlined
def _point(sample: Any) -> Any:
    return np.uint64(sample.user), np.uint64(sample.item)


@inlined
def _fetch_point(users: Floats, items: Floats, sample: Any) -> None:
    u, i = _point(sample)
    prefetch(users, u)
    prefetch(items, i)


@inlined
def _point_turn(users: Floats, items: Floats, here: Any, following: Any, rule: StepParams, score: Any) -> Any:
    pull = rule.step * (here.weight - sigmoid_neg(-score))
    u, i = _point(here)
    v, k = _point(following)
    ahead = point_step(users, items, u, i, v, k, pull, rule.keep)
    if rule.tie != f32(0):
        tie_step(items, i, np.uint64(here.other), rule.tie)
    return ahead
