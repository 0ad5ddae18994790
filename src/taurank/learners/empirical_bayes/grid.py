"""Priors of (μ^T, μ^C) on a grid: maximum likelihood, tilted to given means, pulled toward a parent.

A prior is an array K × K of probabilities φ_kj that a pair has μ^T = r_k and μ^C = r_j. The counts of a pair then
have the likelihood Σ_kj φ_kj A_k B_j, with A_k = r_k^{y^T} (1 − r_k)^{n^T − y^T}, and B_j the same of the other arm.
Pairs with the same counts are one pattern with a weight, so the cost is patterns × K², not rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import expit, logit

from taurank._jit import compiled, vectorized
from taurank._threads import map_blocks

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

RELAXATION = 1.7
TILT_STEPS = 40
TOLERANCE = 1e-7  # of the mean log-likelihood, where EM ends
_SMALLEST = 1e-12


def make_grid(points: int, lowest: float, highest: float) -> Floats:
    return np.asarray(expit(np.linspace(logit(lowest), logit(highest), points)))


@dataclass(frozen=True)
class Patterns:
    """Distinct counts: unit s owns the patterns start[s] .. start[s + 1]; ``counts`` are n^T, y^T, n^C, y^C."""

    start: Integers
    counts: npt.NDArray[np.int32]  # 4 × patterns
    weight: Floats


def fit_priors(
    patterns: Patterns, parents: Floats, parent: Integers, means: Floats, pull: float, steps: int, rates: Floats,
    threads: int | None = 1,
) -> Floats:  # fmt: skip
    """The prior of every unit: its parent tilted to its means, then EM with a Dirichlet(pull · parent) prior."""
    n = len(patterns.start) - 1
    priors = np.empty((n, len(rates), len(rates)))
    nothing = np.empty((0, 0))
    map_blocks(
        lambda begin, end: _units(
            begin, end, patterns.start, patterns.counts, patterns.weight, parents, parent, means, pull, steps,
            TOLERANCE, rates, priors, nothing,
        ),
        n, threads,
    )  # fmt: skip
    return priors


def posteriors(
    patterns: Patterns, parents: Floats, parent: Integers, means: Floats, pull: float, steps: int, rates: Floats,
    threads: int | None = 1,
) -> Floats:  # fmt: skip
    """Of every pattern, under its unit's prior: E[μ^T], E[μ^C] and E[(μ^T − μ^C)²], as an array patterns × 3."""
    moments = np.empty((len(patterns.weight), 3))
    nothing = np.empty((0, 0, 0))
    map_blocks(
        lambda begin, end: _units(
            begin, end, patterns.start, patterns.counts, patterns.weight, parents, parent, means, pull, steps, 0.0,
            rates, nothing, moments,
        ),
        len(patterns.start) - 1, threads,
    )  # fmt: skip
    return moments


@compiled
def _units(
    begin: Any, end: Any, start: Any, counts: Any, weight: Any, parents: Any, parent: Any, means: Any, pull: Any,
    steps: Any, tolerance: Any, rates: Any, priors: Any, moments: Any,
) -> None:  # fmt: skip
    log_rate, log_rest = np.log(rates), np.log1p(-rates)
    for unit in range(begin, end):
        first, last = start[unit], start[unit + 1]
        if first == last and len(priors) == 0:
            continue
        treated = _likelihood(counts[0, first:last], counts[1, first:last], log_rate, log_rest)
        control = _likelihood(counts[2, first:last], counts[3, first:last], log_rate, log_rest)
        prior = tilt(parents[parent[unit]], rates, log_rate, means[unit, 0], means[unit, 1])
        prior = _maximize(prior, treated, control, weight[first:last], pull, steps, tolerance)
        if len(priors):
            priors[unit] = prior
        else:
            _moments(prior, treated, control, rates, moments[first:last])


@compiled
def _likelihood(trials: Any, positives: Any, log_rate: Any, log_rest: Any) -> Any:
    """r^y (1 − r)^{n − y} for every pattern and grid point, scaled so that the largest of a pattern is 1."""
    result = np.empty((len(trials), len(log_rate)))
    for p in range(len(trials)):
        largest = -np.inf
        for k in range(len(log_rate)):
            result[p, k] = positives[p] * log_rate[k] + (trials[p] - positives[p]) * log_rest[k]
            largest = max(largest, result[p, k])
        for k in range(len(log_rate)):
            result[p, k] = np.exp(result[p, k] - largest)
    return result


@compiled
def _maximize(start: Any, treated: Any, control: Any, weight: Any, pull: Any, steps: Any, tolerance: Any) -> Any:
    """Over-relaxed EM for max_φ Σ_p w_p log(Σ_kj φ_kj A_pk B_pj) + pull · Σ_kj start_kj log φ_kj."""
    total = weight.sum()
    if total == 0.0 or steps == 0:
        return start
    prior, known = start.copy(), -np.inf
    share = np.empty_like(prior)
    for _ in range(steps):
        value = _responsibilities(prior, treated, control, weight, share)
        scale = 0.0
        for k in range(prior.shape[0]):
            for j in range(prior.shape[1]):
                old = prior[k, j]
                new = (pull * start[k, j] + old * share[k, j]) / (pull + total)
                prior[k, j] = max(old * (new / old) ** RELAXATION if old > 0.0 else new, _SMALLEST)
                scale += prior[k, j]
        prior /= scale
        if value - known < tolerance * total:
            break
        known = value
    return prior


@compiled
def _responsibilities(prior: Any, treated: Any, control: Any, weight: Any, share: Any) -> Any:
    """share_kj = Σ_p w_p A_pk B_pj / D_p with D_p = Σ_kj φ_kj A_pk B_pj; returns Σ_p w_p log D_p."""
    n, rows, columns = len(weight), prior.shape[0], prior.shape[1]
    share[:] = 0.0
    value = 0.0
    mixed = np.empty(columns)
    for p in range(n):
        mixed[:] = 0.0
        for k in range(rows):
            a = treated[p, k]
            for j in range(columns):
                mixed[j] += a * prior[k, j]
        density = _dot(mixed, control[p])
        value += weight[p] * np.log(density)
        scale = weight[p] / density
        for k in range(rows):
            a = treated[p, k] * scale
            for j in range(columns):
                share[k, j] += a * control[p, j]
    return value


@vectorized
def _dot(a: Any, b: Any) -> Any:
    total = 0.0
    for j in range(len(a)):
        total += a[j] * b[j]
    return total


@compiled
def tilt(parent: Any, rates: Any, log_rate: Any, treated_mean: Any, control_mean: Any) -> Any:
    """φ_kj ∝ parent_kj r_k^θ r_j^η, with θ and η such that the means of r_k and r_j are the given ones."""
    lowest, highest = rates[0] * 1.05, rates[-1] * 0.95
    goal_treated = np.log(min(max(treated_mean, lowest), highest))
    goal_control = np.log(min(max(control_mean, lowest), highest))
    theta, eta = 0.0, 0.0
    tilted = parent.copy()
    for _ in range(TILT_STEPS):
        log_means, slopes = _tilted_means(tilted, rates, log_rate)
        gap_treated, gap_control = goal_treated - log_means[0], goal_control - log_means[1]
        if abs(gap_treated) + abs(gap_control) < 1e-6:
            break
        determinant = slopes[0, 0] * slopes[1, 1] - slopes[0, 1] * slopes[1, 0]
        if not determinant > 1e-9:  # the two rates are one: move them apart, one exponent at a time
            slopes[0, 1] = slopes[1, 0] = 0.0
            determinant = slopes[0, 0] * slopes[1, 1] + 1e-9
        step_theta = (slopes[1, 1] * gap_treated - slopes[0, 1] * gap_control) / determinant
        step_eta = (slopes[0, 0] * gap_control - slopes[1, 0] * gap_treated) / determinant
        theta += min(1.0, max(-1.0, step_theta))
        eta += min(1.0, max(-1.0, step_eta))
        up, across = np.exp(theta * (log_rate - log_rate.mean())), np.exp(eta * (log_rate - log_rate.mean()))
        for k in range(len(rates)):
            for j in range(len(rates)):
                tilted[k, j] = parent[k, j] * up[k] * across[j]
        tilted /= tilted.sum()
    return tilted


@compiled
def _tilted_means(tilted: Any, rates: Any, log_rate: Any) -> Any:
    """log E[r_k] and log E[r_j], and their derivatives by θ and η: covariances of r and log r, divided by E[r]."""
    row, column = tilted.sum(1), tilted.sum(0)
    treated, control = (row * rates).sum(), (column * rates).sum()
    log_treated, log_control = (row * log_rate).sum(), (column * log_rate).sum()
    slopes = np.zeros((2, 2))
    slopes[0, 0] = (row * rates * log_rate).sum() / treated - log_treated
    slopes[1, 1] = (column * rates * log_rate).sum() / control - log_control
    for k in range(len(rates)):
        for j in range(len(rates)):
            slopes[0, 1] += tilted[k, j] * rates[k] * (log_rate[j] - log_control) / treated
            slopes[1, 0] += tilted[k, j] * rates[j] * (log_rate[k] - log_treated) / control
    return (np.log(treated), np.log(control)), slopes


@compiled
def _moments(prior: Any, treated: Any, control: Any, rates: Any, moments: Any) -> None:
    size = len(rates)
    for p in range(len(treated)):
        mass, first, second, square = 0.0, 0.0, 0.0, 0.0
        for k in range(size):
            row_mass, row_second, row_square = 0.0, 0.0, 0.0
            for j in range(size):
                share = prior[k, j] * control[p, j]
                row_mass += share
                row_second += share * rates[j]
                row_square += share * (rates[k] - rates[j]) ** 2
            a = treated[p, k]
            mass += a * row_mass
            first += a * row_mass * rates[k]
            second += a * row_second
            square += a * row_square
        moments[p, 0], moments[p, 1], moments[p, 2] = first / mass, second / mass, square / mass
