"""Slates: the probability that an item is anywhere on a slate, for policies whose scores are known.

"Recommended" is to be on the slate, in whichever slot; where slot after slot is drawn, its probability is not that of
a single draw. A softmax without replacement (Gumbel noise and the k largest; the Plackett–Luce model) is computed by
exponential races: if item j finishes at a random time T_j with distribution Exp(w_j), the order in which the items
finish is that of the draws. Item i is among the first k if it finishes at some t while fewer than k others have:

    π_i = ∫ w_i e^(−w_i t) P(N_i(t) ≤ k − 1) dt,    N_i(t) = Σ_{j ≠ i} 1[T_j ≤ t]

N_i(t) is a sum of independent coins with p_j = 1 − e^(−w_j t): its distribution up to k − 1 comes from a table
of all items before i and one of all items after i, O(k) for every item. With x = log t the integrand is smooth, and
Gauss–Legendre nodes on the interval in which the k-th item finishes (all but 1e-13 of it) are doubled until
nothing changes by more than 1e-9. Weights enter as logarithms, so that nothing overflows.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from taurank._checks import check_choice, check_integer, check_number
from taurank._jit import compiled
from taurank._threads import map_blocks
from taurank._types import Floats, Longs
from taurank.errors import InputError

PER = ("slot", "slate")
TAIL = 30.0  # −log of the probability that the k-th item finishes outside the interval, e^−30 = 1e-13
TOLERANCE = 1e-9
ORDER = 16  # nodes of a panel
MAX_PANELS = 1 << 10

NODES, WEIGHTS = np.polynomial.legendre.leggauss(ORDER)


def slate_softmax(
    scores: npt.ArrayLike, size: int, temperature: float = 1.0, *, threads: int | None = None
) -> Floats:
    """P(on the slate) of each candidate where items are drawn by softmax(score / temperature).

    Slot after slot, an item is drawn among those not drawn yet with probability proportional to exp(score /
    temperature). Exact to about 1e-9.

    Parameters
    ----------
    scores : one row per slate and one column per candidate (or one row); −inf marks one that could not be shown
    size : the number of slots, which each row of the result adds up to
    temperature : larger than 0

    Examples
    --------
    >>> slate_softmax([2.0, 1.0, 0.0], size=1, temperature=1.0).round(3)
    array([0.665, 0.245, 0.09 ])
    """
    check_number("temperature", temperature, 0.0)
    if temperature == 0.0:
        raise InputError("temperature must be > 0; a slate of temperature 0 has no randomness, and no propensity.")
    values = _candidates("scores", scores)
    return _softmax(values / temperature, size, threads)


def slate_weighted(weights: npt.ArrayLike, size: int, *, threads: int | None = None) -> Floats:
    """The same where an item is drawn with probability proportional to its weight; 0 marks one that could not be."""
    values = _candidates("weights", weights)
    if np.any(values < 0.0):
        raise InputError(f"weights must be ≥ 0; {np.count_nonzero(values < 0.0):,} are negative.")
    with np.errstate(divide="ignore"):
        return _softmax(np.log(values), size, threads)


def slate_epsilon_greedy(scores: npt.ArrayLike, size: int, epsilon: float, per: str = "slot") -> Floats:
    """P(on the slate) of each candidate of an ε-greedy slate.

    Items with equal scores share their ranks' probabilities: ties are broken at random.

    Parameters
    ----------
    scores, size : as in ``slate_softmax``
    epsilon : ε
    per : "slot": every slot by itself holds, with probability ε, a uniform draw among the items not on the slate yet,
        else the best of them. "slate": with probability ε the whole slate is a uniform draw, else it has the best
        items

    Examples
    --------
    >>> slate_epsilon_greedy([2.0, 1.0, 0.0], size=1, epsilon=0.3)
    array([0.8, 0.1, 0.1])
    """
    check_number("epsilon", epsilon, 0.0, 1.0)
    check_choice("per", per, PER)
    values = _candidates("scores", scores)
    check_integer("size", size)
    rows = np.atleast_2d(values)
    result = np.zeros_like(rows)
    for row, out in zip(rows, result, strict=True):
        present = np.flatnonzero(row > -np.inf)
        by_rank = _epsilon_by_rank(len(present), min(size, len(present)), float(epsilon), per)
        _, tie, count = np.unique(-row[present], return_inverse=True, return_counts=True)
        out[present] = (np.add.reduceat(by_rank, np.cumsum(count) - count) / count)[tie]
    return result.reshape(values.shape)


def slates_of(values: Floats, starts: Longs, size: int, threads: int | None = None) -> Floats:
    """``slate_softmax`` at temperature 1 of slates of any lengths: slate s is values[starts[s]:starts[s + 1]]."""
    check_integer("size", size)
    result = np.empty(len(values))

    def work(begin: int, end: int) -> None:
        _inclusion_of_slates(values, starts, begin, end, size, result, NODES, WEIGHTS)

    map_blocks(work, len(starts) - 1, threads)
    return result


def _softmax(log_weights: Floats, size: int, threads: int | None) -> Floats:
    n = log_weights.shape[-1]
    starts = np.arange(0, log_weights.size + 1, n, dtype=np.int64)
    return slates_of(log_weights.reshape(-1), starts, size, threads).reshape(log_weights.shape)


def _candidates(name: str, values: npt.ArrayLike) -> Floats:
    try:
        array = np.array(values, dtype=np.float64)
    except (ValueError, TypeError) as error:
        raise InputError(f"{name} must be numbers: one row per slate, one column per candidate.") from error
    if array.ndim not in (1, 2) or not array.size:
        raise InputError(f"{name} must have one row per slate and one column per candidate, got shape {array.shape}.")
    check_scores(name, array)
    return array


def check_scores(name: str, values: Floats) -> None:
    """NaN and +∞ are not scores; −∞ is: of a candidate that could not be shown."""
    wrong = np.isnan(values) | (values == np.inf)
    if wrong.any():
        raise InputError(
            f"{name} must be finite (or −inf for a candidate that could not be shown); "
            f"{np.count_nonzero(wrong):,} are not, for example {values[wrong][0]}."
        )


@cache
def _epsilon_by_rank(n: int, size: int, epsilon: float, per: str) -> Any:
    """P(on the slate) by rank, the best first."""
    if size == n:
        return np.ones(n)
    if per == "slate":
        return (1.0 - epsilon) * (np.arange(n) < size) + epsilon * size / n
    result = np.empty(n)
    for rank in range(size + 1):  # items of later ranks are never the best of the rest, like this last one
        absent = np.zeros(rank + 1)  # by a: P(the item is not on the slate yet, and ``a`` better ones are)
        absent[0] = 1.0
        better_left = rank - np.arange(rank + 1)
        for slot in range(size):
            uniform = epsilon / (n - slot)
            better = uniform * better_left + (1.0 - epsilon) * (better_left > 0)
            itself = uniform + (1.0 - epsilon) * (better_left == 0)
            following = absent * np.maximum(1.0 - better - itself, 0.0)
            following[1:] += (absent * better)[:-1]
            absent = following
        result[rank:] = 1.0 - absent.sum()
    return result


@compiled
def _inclusion_of_slates(
    log_weights: Any, starts: Any, begin: int, end: int, size: int, out: Any, nodes: Any, weights: Any
) -> None:
    for slate in range(begin, end):
        own = slice(starts[slate], starts[slate + 1])
        inclusion(log_weights[own], size, out[own], nodes, weights)


@compiled
def inclusion(log_weights: Any, size: int, out: Any, nodes: Any, weights: Any) -> None:
    """π of each item on a slate of ``size``; −inf is never drawn. Panels are doubled until the result stays."""
    if (log_weights > -np.inf).sum() <= size:
        for i in range(len(out)):
            out[i] = 1.0 if log_weights[i] > -np.inf else 0.0
        return
    low, high = _interval(log_weights, size)
    before, finer = np.empty((len(out) + 1, size)), np.empty_like(out)
    _integrate(log_weights, size, low, high, 2, before, out, nodes, weights)
    panels, change = 4, 1.0
    while panels <= MAX_PANELS and change >= TOLERANCE:
        _integrate(log_weights, size, low, high, panels, before, finer, nodes, weights)
        change = np.abs(finer - out).max()
        out[:] = finer
        panels *= 2
    for i in range(len(out)):  # not before: two values above 1 would look alike
        out[i] = min(max(out[i], 0.0), 1.0)


@compiled
def _integrate(
    log_weights: Any, size: int, low: float, high: float, panels: int, before: Any, out: Any, nodes: Any, weights: Any
) -> None:
    """Up to ``low`` every finisher is among the first k; from there to ``high`` by quadrature."""
    for i in range(len(out)):
        out[i] = -np.expm1(-np.exp(log_weights[i] + low))
    half = (high - low) / (2 * panels)
    for panel in range(panels):
        middle = low + (2 * panel + 1) * half
        for node in range(len(nodes)):
            _add_node(log_weights, size, middle + half * nodes[node], half * weights[node], before, out)


@compiled
def _add_node(log_weights: Any, size: int, x: float, share: float, before: Any, out: Any) -> None:
    """Add share · w t e^(−w t) P(N_i(t) ≤ k − 1) at t = e^x for every item i."""
    before[0] = 0.0
    before[0, 0] = 1.0
    for i in range(len(out)):
        before[i + 1] = before[i]
        _finish(before[i + 1], -np.expm1(-np.exp(log_weights[i] + x)))
    after = np.zeros(size)
    after[0] = 1.0
    for i in range(len(out) - 1, -1, -1):
        hazard = np.exp(log_weights[i] + x)
        density = hazard * np.exp(-hazard)
        if density > 0.0:
            fewer = 0.0  # P(count or fewer of the later items have finished)
            total = 0.0
            for count in range(size):
                fewer += after[count]
                total += fewer * before[i, size - 1 - count]
            out[i] += share * density * total
        _finish(after, -np.expm1(-hazard))


@compiled
def _finish(finished: Any, p: float) -> None:
    """The distribution of how many have finished, up to its length, with one more that has with probability p."""
    for count in range(len(finished) - 1, 0, -1):
        finished[count] = finished[count] * (1.0 - p) + finished[count - 1] * p
    finished[0] *= 1.0 - p


@compiled
def _interval(log_weights: Any, size: int) -> tuple[float, float]:
    """log t between which the k-th item finishes, but for a probability of e^−TAIL on either side.

    For a sum N of independent coins with mean m (Chernoff): P(N ≥ k) ≤ exp(−k log(k/m) + k), which is e^−TAIL at
    m = k exp(−1 − TAIL/k), and P(N ≤ j) ≤ exp(−(m − j)² / 2m), which is so at m = j + TAIL + √(TAIL² + 2 TAIL j).
    """
    top, bottom = log_weights.max(), log_weights[log_weights > -np.inf].min()
    # before the first time all items together have mean 1e-13; after the last the slowest has finished
    first = -top - np.log(float(len(log_weights))) - TAIL
    last = -bottom + np.log(TAIL + 10.0)
    earlier = float(size - 1)
    low = _where_mean_is(log_weights, size * np.exp(-1.0 - TAIL / size), first, last)
    high = _where_mean_is(log_weights, earlier + TAIL + np.sqrt(TAIL**2 + 2.0 * TAIL * earlier), first, last)
    return low, high


@compiled
def _where_mean_is(log_weights: Any, mean: float, low: float, high: float) -> float:
    """log t at which ``mean`` items have finished on average (the nearer end if that is never so)."""
    for _ in range(40):
        middle = 0.5 * (low + high)
        total = 0.0
        for value in log_weights:
            total -= np.expm1(-np.exp(value + middle))
        if total < mean:
            low = middle
        else:
            high = middle
    return 0.5 * (low + high)
