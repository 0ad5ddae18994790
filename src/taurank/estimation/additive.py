"""The additive logistic model over a whole grid of cells, fitted without visiting the cells.

With logit p = intercept + user effect + item effect + time effect, the likelihood of all cells needs

    F(x) = Σ over the cells of one user of σ(x + item effect + time effect)

and the same for items and times. F depends on the other effects only through *how many* cells have which
sum of effects. So the effects are spread onto a fine grid (cubic Lagrange weights, which preserve sums of
smooth functions), sums of effects become convolutions of these histograms, F is tabulated on the grid, and a
user's equation is solved by interpolation. The cost does not grow with users × items × times;
against the sum over the cells the relative error is about 1e-6 (tested).

The cells of a fold are left out exactly: a cell's fold is the sum of its user's, item's and time's class,
modulo the number of folds, so that "all cells but this fold" is again made of such histograms.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import expit

Floats = npt.NDArray[np.float64]
Longs = npt.NDArray[np.int64]

STEP = 1.0 / 16.0  # between two points of the grid of effects
BOUND = 25.0  # no effect is larger than this: odds of e^±25
TOLERANCE = 1e-8  # largest change of an effect in the last sweep
MAX_SWEEPS = 500


@dataclass(frozen=True)
class Axis:
    """Users, items or times, of which those with the same class and count have the same effect.

    ``level`` says for each of them which level it belongs to; ``group`` (the class), ``treated`` (its number
    of treated cells) and ``size`` (how many share the level) describe the levels.
    """

    level: Longs
    group: Longs
    treated: Floats
    size: Floats

    @classmethod
    def of(cls, group: npt.NDArray[np.int8], treated: Longs, folds: int) -> Axis:
        key, level, size = np.unique(treated * folds + group, return_inverse=True, return_counts=True)
        return cls(level, key % folds, (key // folds).astype(np.float64), size.astype(np.float64))

    @property
    def free(self) -> bool:
        """A single user, item or time has no effect of its own: the intercept is its effect."""
        return len(self.level) > 1


def fit_without_fold(axes: Sequence[Axis], folds: int, fold: int, ridge: float) -> tuple[float, list[Floats]]:
    """Intercept and effects that maximize the penalized likelihood of the cells outside ``fold``:

        Σ_cells [Z η − log(1 + e^η)] − ridge/2 Σ effect²  +  intercept/2 − log(1 + e^intercept)

    with η = intercept + Σ effects. The last two terms add half a treated and half an untreated cell, so
    that the intercept is finite even if no treated cell is left. One axis after the other is solved with
    the others held fixed; each step raises this concave function, from the same start for every log.
    """
    effects = [np.zeros(len(axis.size)) for axis in axes]
    intercept = _first_intercept(axes, folds, fold)
    for _ in range(MAX_SWEEPS):
        change = 0.0
        for own, axis in enumerate(axes):
            if not axis.free:
                continue
            others = [(axes[k], effects[k]) for k in range(len(axes)) if k != own]
            table = LogisticSum(others, folds, fold, intercept)
            solved = _solve(axis.treated, ridge, lambda x, t=table, g=axis.group: t.evaluate(x, g), effects[own])  # type: ignore[misc]
            moved = _solve_intercept(intercept, solved, axis, table)
            moved, solved = share_with_intercept(moved, solved, axis.size, ridge)
            change = max(change, abs(moved - intercept), float(np.abs(solved - effects[own]).max()))
            intercept, effects[own] = moved, solved
        if change < TOLERANCE:
            break
    else:
        warnings.warn(f"the propensity model did not converge (last change {change:.1e}).", stacklevel=3)
    return intercept, [values[axis.level] for values, axis in zip(effects, axes, strict=True)]


def _first_intercept(axes: Sequence[Axis], folds: int, fold: int) -> float:
    """Log-odds of the treated share of the cells outside the fold."""
    per_group = [np.bincount(axis.group, axis.size, folds) for axis in axes]
    residues = per_group[0]
    for more in per_group[1:]:
        residues = np.array([(residues * np.roll(more[::-1], r + 1)).sum() for r in range(folds)])
    cells = residues.sum() - residues[fold]
    treated = float((axes[0].treated * axes[0].size).sum())
    return float(np.log((treated + 0.5) / (cells - treated + 0.5)))


def _solve_intercept(intercept: float, effects: Floats, axis: Axis, table: LogisticSum) -> float:
    """The best intercept with all effects held fixed."""

    def all_cells(x: Floats) -> tuple[Floats, Floats]:
        value, slope = table.evaluate(effects + (x[0] - intercept), axis.group)
        half, half_slope = _one_cell(x)
        return half + value @ axis.size, half_slope + slope @ axis.size

    target = np.array([0.5 + float(axis.treated @ axis.size)])
    return float(_solve(target, 0.0, all_cells, np.array([intercept]))[0])


def share_with_intercept(intercept: float, effects: Floats, size: Floats, ridge: float) -> tuple[float, Floats]:
    """Move what all effects of an axis have in common into the intercept, which is not penalized.

    η stays as it is; the best intercept b solves ½ − σ(b) + ridge Σ(effect + intercept − b) = 0.
    """
    target = np.array([0.5 + ridge * float(((effects + intercept) * size).sum())])
    best = _solve(target, ridge * float(size.sum()), _one_cell, np.array([intercept]))
    return float(best[0]), effects + (intercept - best[0])


def _one_cell(x: Floats) -> tuple[Floats, Floats]:
    p = expit(x)
    return p, p * (1.0 - p)


def _solve(
    target: Floats, ridge: float, evaluate: Callable[[Floats], tuple[Floats, Floats]], start: Floats
) -> Floats:
    """The roots of target − F(x) − ridge·x, F rising: Newton steps, halving where one leaves its bracket."""
    x = start
    low, high = np.full_like(x, -BOUND), np.full_like(x, BOUND)
    for _ in range(100):
        value, slope = evaluate(x)
        rest = target - value - ridge * x
        low, high = np.where(rest > 0.0, x, low), np.where(rest > 0.0, high, x)
        step = x + rest / (slope + ridge)
        inside = (step >= low) & (step <= high)
        following = np.where(inside, step, 0.5 * (low + high))
        moved = np.abs(following - x).max()
        x = following
        if moved < 0.01 * TOLERANCE:
            break
    return x


class LogisticSum:
    """F and F′ of every class of one axis, tabulated on the grid, for the cells outside a fold."""

    def __init__(self, others: list[tuple[Axis, Floats]], folds: int, fold: int, intercept: float) -> None:
        low, counts = _sums_by_residue(others, folds)
        others = [counts.sum(axis=0) - counts[(fold - group) % folds] for group in range(folds)]
        self.low = -int(BOUND / STEP) - 2
        points = 2 * int(BOUND / STEP) + 5
        grid = (self.low + low + np.arange(points + counts.shape[1] - 1)) * STEP + intercept
        kernel = _one_cell(grid)
        self.value, self.slope = (
            np.array([np.correlate(function, cells, "valid") for cells in others]) for function in kernel
        )

    def evaluate(self, x: Floats, group: Longs) -> tuple[Floats, Floats]:
        """F(x) and F′(x) for units of these classes."""
        first, weights = _lagrange(np.clip(x, -BOUND, BOUND))
        parts = [(weight, first - self.low + shift) for shift, weight in enumerate(weights)]
        value = sum((w * self.value[group, point] for w, point in parts), np.zeros_like(x))
        slope = sum((w * self.slope[group, point] for w, point in parts), np.zeros_like(x))
        return value, slope


def _sums_by_residue(others: list[tuple[Axis, Floats]], folds: int) -> tuple[int, Floats]:
    """How many pairs of the two other axes have which sum of effects, by the residue of their classes."""
    (low_a, a), (low_b, b) = (_spread(axis, effects, folds) for axis, effects in others)
    sums = np.zeros((folds, a.shape[1] + b.shape[1] - 1))
    for i in np.flatnonzero(a.any(axis=1)):
        for j in np.flatnonzero(b.any(axis=1)):
            sums[(i + j) % folds] += np.convolve(a[i], b[j])
    return low_a + low_b, sums


def _spread(axis: Axis, effects: Floats, folds: int) -> tuple[int, Floats]:
    """The effects of an axis as weights on the grid, a row for each class; also the lowest grid point."""
    first, weights = _lagrange(effects)
    low = int(first.min())
    length = int(first.max()) - low + 4
    flat = axis.group * length + (first - low)
    counts = np.zeros(folds * length)
    for shift, weight in enumerate(weights):
        counts += np.bincount(flat + shift, weight * axis.size, folds * length)
    return low, counts.reshape(folds, length)


def _lagrange(x: Floats) -> tuple[Longs, tuple[Floats, Floats, Floats, Floats]]:
    """Cubic Lagrange interpolation: the first of the four grid points around x, and the weights of the four."""
    scaled = x / STEP
    base = np.floor(scaled)
    f = scaled - base
    weights = (
        -f * (f - 1) * (f - 2) / 6,
        (f + 1) * (f - 1) * (f - 2) / 2,
        -(f + 1) * f * (f - 2) / 2,
        (f + 1) * f * (f - 1) / 6,
    )
    return base.astype(np.int64) - 1, weights
