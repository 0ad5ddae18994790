"""Losses and their derivatives, side by side."""

from __future__ import annotations

from typing import Any

import numpy as np

from taurank._jit import compiled, inlined
from taurank.sgd.intrinsics import fused

f32 = np.float32
LOGISTIC, SIGMOID, HINGE = 0, 1, 2
SURROGATES = {"logistic": LOGISTIC, "sigmoid": SIGMOID, "hinge": HINGE}

_EDGE, _PER = 16, 128  # the table of `sigmoid_neg` reaches from -16 to 16, its entries 1/128 apart
_LAST = 2 * _EDGE * _PER - 1
_VALUES = 1 / (1 + np.exp(np.arange(_LAST + 2) / _PER - _EDGE))
_DROP = np.stack([_VALUES[:-1], np.diff(_VALUES)], axis=1).astype(np.float32).ravel()


@inlined
def pair_gradient(score: Any, weight: Any, surrogate: int, steepness: Any) -> Any:
    """-dloss/ds: how strongly the sample pulls its score up (or down, where weight < 0).

    Linear in the weight, which may therefore bring eta along: the score waits for one factor less."""
    margin = steepness * score
    signed = margin if weight > f32(0) else -margin
    if surrogate == LOGISTIC:
        slope = sigmoid_neg(signed)
    elif surrogate == SIGMOID:
        slope = sigmoid_neg(margin)
        slope = slope * (f32(1) - slope)
    else:
        slope = f32(1) if signed < f32(1) else f32(0)
    return weight * steepness * slope


@compiled
def pair_loss(score: Any, weight: Any, surrogate: int, steepness: Any) -> Any:
    """The surrogate loss of one sample, in float64."""
    margin = float(steepness) * float(score)
    signed = margin if weight > 0 else -margin
    if surrogate == LOGISTIC:
        return abs(weight) * (max(-signed, 0.0) + np.log1p(np.exp(-abs(signed))))
    if surrogate == SIGMOID:
        return weight / (1.0 + np.exp(margin))
    return abs(weight) * max(0.0, 1.0 - signed)


@compiled
def point_loss(score: Any, target: Any) -> Any:
    """Log-loss of sigma(score) against the target, in float64."""
    value = float(score)
    return max(value, 0.0) - value * target + np.log1p(np.exp(-abs(value)))


@inlined
def sigmoid_neg(x: Any) -> Any:
    """1 / (1 + exp(x)) to 1e-6, from a table of it by linear interpolation.

    Between entries h apart the error is at most h^2 / 8 of the second derivative, 0.097."""
    place = fused(x, f32(_PER), f32(_EDGE * _PER))
    place = place if place > f32(0) else f32(0)  # NaN goes to the edge, too
    place = place if place < f32(_LAST) else f32(_LAST)
    entry = np.int32(place)
    low = np.uint64(entry) * np.uint64(2)
    return fused(place - f32(entry), _DROP[low + np.uint64(1)], _DROP[low])
