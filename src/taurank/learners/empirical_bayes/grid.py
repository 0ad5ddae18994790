"""Priors of (μ^T, μ^C) on a grid: maximum likelihood, tilted to given means, pulled toward a parent.

A prior is an array K × K of probabilities φ_kj that a pair has μ^T = r_k and μ^C = r_j. The counts of a pair then
have the likelihood Σ_kj φ_kj A_k B_j, with A_k = r_k^{y^T} (1 − r_k)^{n^T − y^T}, and B_j the same of the other arm.
Pairs with the same counts are one pattern with a weight, and patterns with the same (n^T, y^T) share Σ_k φ_kj A_k. So
the cost is K per pattern and K² per such run of patterns, whatever the number of rows.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy.special import expit, logit

from taurank._jit import compiled, vectorized
from taurank._threads import map_blocks
from taurank._types import Codes, Floats, Longs, Mask

RELAXATION = 1.7
TILT_STEPS = 60
STEEPEST = 40.0  # exponent of a tilt: beyond it probabilities vanish to rounding
SHAPE_ROUNDS, SHAPE_TOLERANCE = 60, 1e-4
TOLERANCE = 1e-7  # of the mean log-likelihood, where EM ends
_SMALLEST = 1e-12
_TINY = 1e-300  # a likelihood that is zero to rounding


class Grid(NamedTuple):
    """The rates r, and log g(r) of the function by whose powers priors are tilted."""

    rates: Floats
    log_g: Floats


def make_grid(points: int, lowest: float, highest: float, saturation: float = np.inf) -> Grid:
    """Rates equidistant in log-odds; g(r) = r, or r / (r + saturation), which tilts rates well above it alike."""
    rates = np.asarray(expit(np.linspace(logit(lowest), logit(highest), points)))
    log_g = np.log(rates) - np.log1p(rates / saturation)
    return Grid(rates, log_g - log_g.mean())


class Patterns(NamedTuple):
    """Distinct counts: unit s owns the patterns start[s] .. start[s + 1]; ``counts`` are n^T, y^T, n^C, y^C.

    ``treated`` has the likelihood at every rate of the different (n^T, y^T), and ``of_treated`` says which of them a
    pattern has; the control arm alike.
    """

    start: Longs
    counts: Codes  # 4 × patterns
    weight: Floats
    treated: Floats
    of_treated: Longs
    control: Floats
    of_control: Longs

    @classmethod
    def of(cls, start: Longs, counts: Codes, weight: Floats, rates: Floats) -> Patterns:
        return cls(start, counts, weight, *_likelihood(counts[:2], rates), *_likelihood(counts[2:], rates))


def _likelihood(counts: Codes, rates: Floats) -> tuple[Floats, Longs]:
    """r^y (1 − r)^{n − y} of the different (n, y), scaled so that the largest is 1, and which of them each has."""
    base = int(counts.max(initial=0)) + 1
    code, at = np.unique(counts[0].astype(np.int64) * base + counts[1], return_inverse=True)
    trials, positives = code[:, None] // base, code[:, None] % base
    log = positives * np.log(rates) + (trials - positives) * np.log1p(-rates)
    return np.exp(log - log.max(1, keepdims=True)), at


class Base(NamedTuple):
    """What the priors of units start from: the prior ``parents[parent[s]]`` tilted to the unit's means.

    EM on the unit's own patterns has a Dirichlet(pull · start) prior. In ``independent`` units φ_kj = α_k β_j.
    """

    parents: Floats
    parent: Longs
    means: Floats
    pull: float
    independent: Mask


def fit_priors(patterns: Patterns, base: Base, steps: int, grid: Grid, threads: int | None = 1) -> Floats:
    """The prior of every unit: its base, and then EM until nothing moves, at most so many steps."""
    n, size = len(patterns.start) - 1, len(grid.rates)
    priors = np.empty((n, size, size))
    map_blocks(lambda begin, end: _fit_units(begin, end, patterns, base, steps, grid, priors), n, threads)
    return priors


def posteriors(patterns: Patterns, base: Base, steps: int, grid: Grid, threads: int | None = 1) -> Floats:
    """Of every pattern, under its unit's prior: E[μ^T], E[μ^C] and E[(μ^T − μ^C)²], as an array patterns × 3."""
    n, moments = len(patterns.start) - 1, np.empty((len(patterns.weight), 3))
    map_blocks(lambda begin, end: _unit_moments(begin, end, patterns, base, steps, grid, moments), n, threads)
    return moments


def fit_shapes(
    patterns: Patterns, shapes: Floats, shape: Longs, means: Floats, pull: float, grid: Grid, threads: int | None = 1
) -> Floats:
    """Shapes from those given: unit s has as its prior the shape ``shape[s]`` (in order), tilted to its means.

    A prior that was fitted to all units at once has the spread between the units in it, and each unit would
    inherit that. Here every unit's posterior comes from its own, tilted prior, and φ is such that, over all
    units of a shape, what is expected after seeing the counts is what was expected before:

        φ ← φ · (pull · φ⁰ + Σ_s Σ_p w_p P(k, j | p, s)) / (pull · φ + Σ_s w_s P(k, j | s)).

    With units that need no tilt these are the steps of EM.
    """
    first, fitted = np.searchsorted(shape, np.arange(len(shapes) + 1)), shapes.copy()
    map_blocks(lambda at, end: _fit_shapes(at, end, first, patterns, means, pull, grid, fitted), len(shapes), threads)
    return fitted


@compiled
def _fit_shapes(
    begin: Any, end: Any, first: Any, patterns: Any, means: Any, pull: Any, grid: Any, fitted: Any
) -> None:  # fmt: skip
    for at in range(begin, end):
        given, share = fitted[at].copy(), np.empty_like(fitted[at])
        exponents = np.zeros((first[at + 1] - first[at], 2))
        for _ in range(SHAPE_ROUNDS):
            after, before = pull * given, pull * fitted[at]
            for unit in range(first[at], first[at + 1]):
                own = _own(patterns, unit)
                prior = tilt(fitted[at], grid, means[unit], exponents[unit - first[at]])
                _responsibilities(prior, own, share)
                after += prior * share
                before += prior * own[4].sum()
            _relax(fitted[at], after / before)
            if np.abs(after - before).sum() < SHAPE_TOLERANCE * before.sum():
                break


@compiled
def _fit_units(begin: Any, end: Any, patterns: Any, base: Any, steps: Any, grid: Any, priors: Any) -> None:
    for unit in range(begin, end):
        priors[unit] = _unit_prior(_own(patterns, unit), base, unit, steps, TOLERANCE, grid)


@compiled
def _unit_moments(begin: Any, end: Any, patterns: Any, base: Any, steps: Any, grid: Any, moments: Any) -> None:
    for unit in range(begin, end):
        first, last = patterns.start[unit], patterns.start[unit + 1]
        if first < last:
            own = _own(patterns, unit)
            _moments(_unit_prior(own, base, unit, steps, 0.0, grid), own, grid.rates, moments[first:last])


@compiled
def _own(patterns: Any, unit: Any) -> Any:
    """The patterns of one unit, and their weights."""
    first, last = patterns.start[unit], patterns.start[unit + 1]
    likely = patterns.treated, patterns.of_treated[first:last], patterns.control, patterns.of_control[first:last]
    return *likely, patterns.weight[first:last]


@compiled
def _unit_prior(own: Any, base: Any, unit: Any, steps: Any, tolerance: Any, grid: Any) -> Any:
    """Over-relaxed EM for max_φ Σ_p w_p log(Σ_kj φ_kj A_pk B_pj) + pull · Σ_kj start_kj log φ_kj.

    A step of EM multiplies φ_kj by a ratio. If φ_kj = α_k β_j, it multiplies α_k by the mean ratio of row k, and β_j
    by that of column j.
    """
    start = tilt(base.parents[base.parent[unit]], grid, base.means[unit], np.zeros(2))
    independent, total = base.independent[unit], own[4].sum()
    if independent:
        start = np.outer(start.sum(1), start.sum(0))
    if total == 0.0:
        return start
    prior, share, known = start.copy(), np.empty_like(start), -np.inf
    for _ in range(steps):
        value = _responsibilities(prior, own, share)
        ratio = (base.pull * start / np.maximum(prior, _SMALLEST) + share) / (base.pull + total)
        if independent:
            expected = prior * ratio
            ratio = np.outer(expected.sum(1) / prior.sum(1), expected.sum(0) / prior.sum(0))
        _relax(prior, ratio)
        if value - known < tolerance * total:
            break
        known = value
    return prior


@compiled
def _relax(prior: Any, ratio: Any) -> None:
    """A step that is longer than that of EM, by which every probability would be multiplied by its ratio."""
    scale = 0.0
    for k in range(prior.shape[0]):
        for j in range(prior.shape[1]):
            prior[k, j] = max(prior[k, j] * ratio[k, j] ** RELAXATION, _SMALLEST)
            scale += prior[k, j]
    prior /= scale


@compiled
def _responsibilities(prior: Any, own: Any, share: Any) -> Any:
    """share_kj = Σ_p w_p A_pk B_pj / D_p with D_p = Σ_kj φ_kj A_pk B_pj; returns Σ_p w_p log D_p."""
    treated, of_treated, control, of_control, weight = own
    size, n = len(prior), len(weight)
    share[:] = 0.0
    value, p = 0.0, 0
    mixed, back = np.empty(size), np.empty(size)
    while p < n:
        run = of_treated[p]
        _mix(treated[run], prior, mixed)
        back[:] = 0.0
        while p < n and of_treated[p] == run:
            likely = control[of_control[p]]
            density = max(_dot(mixed, likely), _TINY)
            value += weight[p] * np.log(density)
            scale = weight[p] / density
            for j in range(size):
                back[j] += scale * likely[j]
            p += 1
        for k in range(size):
            a = treated[run, k]
            for j in range(size):
                share[k, j] += a * back[j]
    return value


@compiled
def _mix(weights: Any, rows: Any, mixed: Any) -> None:
    """Σ_k weights_k rows_kj."""
    mixed[:] = 0.0
    for k in range(len(weights)):
        for j in range(len(mixed)):
            mixed[j] += weights[k] * rows[k, j]


@vectorized
def _dot(a: Any, b: Any) -> Any:
    total = 0.0
    for j in range(len(a)):
        total += a[j] * b[j]
    return total


@compiled
def tilt(parent: Any, grid: Any, goal: Any, exponents: Any) -> Any:
    """φ_kj ∝ parent_kj g_k^θ g_j^η, with θ and η such that the means of r_k and r_j are the given ones.

    The search for θ and η begins at ``exponents``, and leaves them there.
    """
    rates, log_g = grid
    goal_treated = np.log(min(max(goal[0], rates[0] * 1.05), rates[-1] * 0.95))
    goal_control = np.log(min(max(goal[1], rates[0] * 1.05), rates[-1] * 0.95))
    tilted = np.empty_like(parent)
    for _ in range(TILT_STEPS):
        up, across = np.exp(exponents[0] * log_g), np.exp(exponents[1] * log_g)
        log_means, slopes = _tilt_by(parent, up, across, rates, log_g, tilted)
        gap_treated, gap_control = goal_treated - log_means[0], goal_control - log_means[1]
        if abs(gap_treated) + abs(gap_control) < 1e-6:
            break
        determinant = slopes[0, 0] * slopes[1, 1] - slopes[0, 1] * slopes[1, 0]
        if not determinant > 1e-9:  # the two rates are one: move them apart, one exponent at a time
            slopes[0, 1] = slopes[1, 0] = 0.0
            determinant = slopes[0, 0] * slopes[1, 1] + 1e-9
        step_treated = (slopes[1, 1] * gap_treated - slopes[0, 1] * gap_control) / determinant
        step_control = (slopes[0, 0] * gap_control - slopes[1, 0] * gap_treated) / determinant
        exponents[0] = _between(-STEEPEST, exponents[0] + _between(-1.0, step_treated, 1.0), STEEPEST)
        exponents[1] = _between(-STEEPEST, exponents[1] + _between(-1.0, step_control, 1.0), STEEPEST)
    return tilted


@compiled
def _between(lowest: Any, value: Any, highest: Any) -> Any:
    return min(highest, max(lowest, value))


@compiled
def _tilt_by(parent: Any, up: Any, across: Any, rates: Any, log_g: Any, tilted: Any) -> Any:
    """Fill ``tilted``; log E[r_k] and log E[r_j], and their derivatives by θ and η: cov(r, log g) / E[r]."""
    size = len(rates)
    mass, rate, height, both = np.zeros(size), np.zeros(size), np.zeros(size), np.zeros(size)
    for k in range(size):
        for j in range(size):
            tilted[k, j] = parent[k, j] * up[k] * across[j]
            mass[j] += tilted[k, j]
            rate[j] += rates[k] * tilted[k, j]
            height[j] += log_g[k] * tilted[k, j]
            both[j] += rates[k] * log_g[k] * tilted[k, j]
    total = mass.sum()
    tilted /= total
    treated, control = rate.sum() / total, (mass * rates).sum() / total
    high_treated, high_control = height.sum() / total, (mass * log_g).sum() / total
    slopes = np.empty((2, 2))
    slopes[0, 0] = both.sum() / total / treated - high_treated
    slopes[0, 1] = (rate * log_g).sum() / total / treated - high_control
    slopes[1, 0] = (height * rates).sum() / total / control - high_treated
    slopes[1, 1] = (mass * rates * log_g).sum() / total / control - high_control
    return (np.log(treated), np.log(control)), slopes


@compiled
def _moments(prior: Any, own: Any, rates: Any, moments: Any) -> None:
    """E[μ^T], E[μ^C] and E[(μ^T − μ^C)²] of every pattern."""
    treated, of_treated, control, of_control, _ = own
    size, n = len(rates), len(of_treated)
    mass, first, square = np.empty(size), np.empty(size), np.empty(size)
    apart = np.empty_like(prior)
    for k in range(size):
        for j in range(size):
            apart[k, j] = prior[k, j] * (rates[k] - rates[j]) ** 2
    p = 0
    while p < n:
        run = of_treated[p]
        _mix(treated[run], prior, mass)
        _mix(treated[run] * rates, prior, first)
        _mix(treated[run], apart, square)
        while p < n and of_treated[p] == run:
            likely = control[of_control[p]]
            total = _dot(mass, likely)
            moments[p, 0] = _dot(first, likely) / total
            moments[p, 1] = _dot(mass * rates, likely) / total
            moments[p, 2] = _dot(square, likely) / total
            p += 1
