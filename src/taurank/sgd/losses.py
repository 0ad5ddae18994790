"""Losses and their derivatives, side by side.

Pairwise, for a sample (u, i, j) with signed weight w, steepness ω and s = p_u · (q_i − q_j); the sign of w tells the
treated arm (+) from the control arm (−):

    logistic   |w| log(1 + exp(−sign(w) ω s))          Eq. (upper_bound_local_loss)
    sigmoid      w / (1 + exp(ω s))                    Eq. (approximation_local_loss)
    hinge      |w| max(0, 1 − sign(w) ω s)

Pointwise, for (u, i) with target y in [0, 1] and s = p_u · q_i: the log-loss of σ(s).

Losses are float64 and exact; slopes, −dloss/ds, are float32 and read σ from a table.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from taurank._jit import compiled, inlined, vectorized

f32 = np.float32
LOGISTIC, SIGMOID, HINGE = 0, 1, 2
SURROGATES = {"logistic": LOGISTIC, "sigmoid": SIGMOID, "hinge": HINGE}


@compiled
def pair_loss(score: Any, weight: Any, surrogate: int, steepness: Any) -> Any:
    """The surrogate loss of one pair."""
    margin = float(steepness) * float(score)
    signed = margin if weight > 0 else -margin
    if surrogate == LOGISTIC:
        return abs(weight) * log1p_exp(-signed)
    if surrogate == SIGMOID:
        return weight * (1.0 / (1.0 + np.exp(margin)))
    return abs(weight) * max(0.0, 1.0 - signed)


@inlined
def pair_gradient(score: Any, weight: Any, surrogate: int, steepness: Any) -> Any:
    """−dloss/ds of one pair; linear in the weight, which may therefore include the learning rate η."""
    margin = steepness * score
    signed = margin if weight > f32(0) else -margin
    if surrogate == LOGISTIC:
        slope = sigmoid_neg(signed)
    elif surrogate == SIGMOID:
        slope = sigmoid_slope(margin)
    else:
        slope = f32(1) if signed < f32(1) else f32(0)
    return weight * steepness * slope


@inlined
def sigmoid_slope(x: Any) -> Any:
    """exp(x) / (1 + exp(x))²"""
    value = sigmoid_neg(x)
    return value * (f32(1) - value)


@compiled
def point_loss(score: Any, target: Any) -> Any:
    """−y log σ(s) − (1 − y) log(1 − σ(s))"""
    return log1p_exp(float(score)) - float(score) * target


@inlined
def point_gradient(score: Any, target: Any) -> Any:
    """−dloss/ds: y − σ(s)"""
    return target - sigmoid_neg(-score)


@inlined
def log1p_exp(x: Any) -> Any:
    """log(1 + exp(x))"""
    return max(x, 0.0) + np.log1p(np.exp(-abs(x)))


_EDGE, _PER = 16, 128  # the table reaches from −16 to 16, its entries 1/128 apart
_LAST = 2 * _EDGE * _PER - 1
_VALUES = 1 / (1 + np.exp(np.arange(_LAST + 2) / _PER - _EDGE))
_TABLE = np.stack([_VALUES[:-1], np.diff(_VALUES)], axis=1).astype(np.float32).ravel()  # value, difference, value, …


@vectorized
def sigmoid_neg(x: Any) -> Any:
    """1 / (1 + exp(x)) to 1e-6, by linear interpolation in a table.

    Between entries h apart the error is at most h²/8 times the largest second derivative, 0.097.
    """
    position = x * f32(_PER) + f32(_EDGE * _PER)
    position = position if position > f32(0) else f32(0)  # NaN goes to the edge, too
    position = position if position < f32(_LAST) else f32(_LAST)
    entry = np.int32(position)
    low = np.uint64(entry) * np.uint64(2)
    return (position - f32(entry)) * _TABLE[low + np.uint64(1)] + _TABLE[low]
