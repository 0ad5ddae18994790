"""Samples with soft labels: a pair of items of one user, and the probability that the first should rank higher.

The cross-entropy of a soft label y is y·log(1 + exp(−s)) + (1 − y)·log(1 + exp(s)), the mean of the logistic loss
over labels drawn with probability y. So a sample gets the weight +1 with probability y, else −1, and the
pairwise kernel needs nothing new.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from taurank._jit import compiled, inlined
from taurank._random import below, uniform
from taurank.sgd.samples import Float32s, Ints, Longs, Samples

_STEPS = np.uint64(8)  # random numbers reserved for one sample


class SoftPairs(NamedTuple):
    """Effects τ̂ and their corrections φ − τ̂, of the pairs that have rows and of the others, item by item."""

    start: Longs  # users + 1
    user: Ints
    item: Ints  # sorted within each user
    effect: Float32s
    correction: Float32s
    absent_effect: Float32s
    absent_correction: Float32s


@compiled
def choose_soft_pairs(pairs: SoftPairs, key: Any, samples: Samples, begin: int, end: int) -> None:
    """A uniform pair of user and item that has rows; its number is left in ``other``."""
    for n in range(begin, end):
        number = np.int64(below(key, np.uint64(n) * _STEPS, len(pairs.item)))
        samples[n].user = pairs.user[number]
        samples[n].item = pairs.item[number]
        samples[n].other = number
        samples[n].weight = 1


@compiled
def fill_soft_pairs(pairs: SoftPairs, temperature: float, key: Any, samples: Samples, begin: int, end: int) -> None:
    """A uniform other item of the user, and a label drawn with the probability of the soft one."""
    n_items = len(pairs.absent_effect)
    for n in range(begin, end):
        counter, number = np.uint64(n) * _STEPS, np.int64(samples[n].other)
        user, item = np.int64(samples[n].user), np.int64(samples[n].item)
        other = np.int64(below(key, counter + np.uint64(1), n_items - 1))
        other += other >= item
        effect, correction = _of_other(pairs, user, other)
        label = soft_label(pairs.effect[number] - effect, pairs.correction[number] - correction, temperature)
        samples[n].other = other
        samples[n].weight = 1 if uniform(key, counter + np.uint64(2)) < label else -1


@inlined
def soft_label(effect: Any, correction: Any, temperature: Any) -> Any:
    """clip(s + s(1 − s)/κ · correction, 0, 1) with s = σ(effect / κ), for differences between two items."""
    s = 1.0 / (1.0 + np.exp(-effect / temperature))
    return min(1.0, max(0.0, s + s * (1.0 - s) / temperature * correction))


@compiled
def _of_other(pairs: SoftPairs, user: Any, item: Any) -> Any:
    low, high = pairs.start[user], pairs.start[user + 1]
    at = low + np.searchsorted(pairs.item[low:high], item)
    if at < high and pairs.item[at] == item:
        return pairs.effect[at], pairs.correction[at]
    return pairs.absent_effect[item], pairs.absent_correction[item]
