"""Inclusion probabilities of a draw without replacement, by exponential races.

Let item j finish a race at a random time T_j with distribution Exp(w_j). The order in which the items finish is
that of drawing without replacement with probabilities proportional to w. So item i is among the first k if it
finishes at some t while fewer than k others have:

    π_i = ∫ w_i e^(−w_i t) P(N_i(t) ≤ k − 1) dt,    N_i(t) = Σ_{j ≠ i} 1[T_j ≤ t]

N_i(t) is a sum of independent coins with p_j = 1 − e^(−w_j t): its distribution up to k − 1 comes from a table
of all items before i and one of all items after i, O(k) for every item. With x = log t the integrand is smooth, and
Gauss–Legendre nodes on the interval in which the k-th item finishes (all but 1e-13 of it) are doubled until
nothing changes by more than 1e-9. Weights enter as logarithms, so that nothing overflows.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from taurank._jit import compiled

TAIL = 30.0  # −log of the probability that the k-th item finishes outside the interval, e^−30 = 1e-13
TOLERANCE = 1e-9
ORDER = 16  # nodes of a panel
MAX_PANELS = 1 << 10

NODES, WEIGHTS = np.polynomial.legendre.leggauss(ORDER)


def inclusion_of_slates(log_weights: Any, starts: Any, begin: int, end: int, size: int, out: Any) -> None:
    """π of the slates ``begin`` … ``end`` − 1; slate s is log_weights[starts[s]:starts[s + 1]]."""
    _inclusion_of_slates(log_weights, starts, begin, end, size, out, NODES, WEIGHTS)


@compiled
def _inclusion_of_slates(
    log_weights: Any, starts: Any, begin: int, end: int, size: int, out: Any, nodes: Any, weights: Any
) -> None:
    for slate in range(begin, end):
        first, last = starts[slate], starts[slate + 1]
        inclusion(log_weights[first:last], np.arange(last - first), size, out[first:last], nodes, weights)


@compiled
def inclusion(log_weights: Any, wanted: Any, size: int, out: Any, nodes: Any, weights: Any) -> None:
    """π of the items at the ``wanted`` positions, each once, on a slate drawn from all; −inf is never drawn."""
    present = 0
    for value in log_weights:
        if value > -np.inf:
            present += 1
    if present <= size:
        for n in range(len(wanted)):
            out[n] = 1.0 if log_weights[wanted[n]] > -np.inf else 0.0
    else:
        _converge(log_weights, wanted, _others(log_weights, wanted), size, out, nodes, weights)


@compiled
def _others(log_weights: Any, wanted: Any) -> Any:
    """The positions that are not wanted."""
    is_other = np.ones(len(log_weights), np.bool_)
    for position in wanted:
        is_other[position] = False
    return np.flatnonzero(is_other)


@compiled
def _converge(log_weights: Any, wanted: Any, others: Any, size: int, out: Any, nodes: Any, weights: Any) -> None:
    """Panels are doubled until the result stays; clipped only then, or two values above 1 would look alike."""
    low, high = _interval(log_weights, size)
    before = np.empty((len(wanted) + 1, size))
    _integrate(log_weights, wanted, others, size, low, high, 2, before, out, nodes, weights)
    finer = np.empty_like(out)
    panels = 4
    while panels <= MAX_PANELS:
        _integrate(log_weights, wanted, others, size, low, high, panels, before, finer, nodes, weights)
        change = np.abs(finer - out).max()
        out[:] = finer
        if change < TOLERANCE:
            break
        panels *= 2
    for n in range(len(out)):
        out[n] = min(max(out[n], 0.0), 1.0)


@compiled
def _integrate(
    log_weights: Any, wanted: Any, others: Any, size: int, low: float, high: float, panels: int, before: Any,
    out: Any, nodes: Any, weights: Any,
) -> None:  # fmt: skip
    """Up to ``low`` every finisher is among the first k; from there to ``high`` by quadrature."""
    for n in range(len(out)):
        out[n] = -np.expm1(-np.exp(log_weights[wanted[n]] + low))
    half = (high - low) / (2 * panels)
    for panel in range(panels):
        middle = low + (2 * panel + 1) * half
        for node in range(len(nodes)):
            x, share = middle + half * nodes[node], half * weights[node]
            _add_node(log_weights, wanted, others, size, x, share, before, out)


@compiled
def _add_node(
    log_weights: Any, wanted: Any, others: Any, size: int, x: float, share: float, before: Any, out: Any
) -> None:
    """Add share · w t e^(−w t) P(N_i(t) ≤ k − 1) at t = e^x for every wanted item i.

    The items that are not wanted come first: their table is that of the items before the first wanted one.
    """
    n = len(wanted)
    before[0] = 0.0
    before[0, 0] = 1.0
    for j in others:
        _finish(before[0], -np.expm1(-np.exp(log_weights[j] + x)))
    for i in range(n):
        before[i + 1] = before[i]
        _finish(before[i + 1], -np.expm1(-np.exp(log_weights[wanted[i]] + x)))
    after = np.zeros(size)
    after[0] = 1.0
    for i in range(n - 1, -1, -1):
        hazard = np.exp(log_weights[wanted[i]] + x)
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

    For a sum N of independent coins with mean m, P(N ≥ k) ≤ e^−g if m ≤ k and P(N ≤ k) ≤ e^−g if m ≥ k, with
    g = k log(k/m) − k + m (Chernoff).
    """
    top = -np.inf
    bottom = np.inf
    for value in log_weights:
        if value > -np.inf:
            top = max(top, value)
            bottom = min(bottom, value)
    # before the first time all items together have mean 1e-13; after the last the slowest has finished
    first = -top - np.log(float(len(log_weights))) - TAIL
    last = -bottom + np.log(TAIL + 10.0)
    low = _where_mean_is(log_weights, _mean_with_tail(float(size), False), first, last)
    high = _where_mean_is(log_weights, _mean_with_tail(float(size - 1), True), first, last)
    return low, high


@compiled
def _mean_with_tail(count: float, above: bool) -> float:
    """The mean m below (or above) ``count`` at which Chernoff's exponent is TAIL."""
    inner, outer = count, (count + 2.0 * TAIL + 4.0 * np.sqrt(TAIL * (count + 1.0)) if above else 0.0)
    for _ in range(60):
        middle = 0.5 * (inner + outer)
        gap = middle - count + (count * np.log(count / middle) if count > 0.0 else 0.0)
        if gap < TAIL:
            inner = middle
        else:
            outer = middle
    return 0.5 * (inner + outer)


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
