"""The additive logistic model where only some cells are eligible: fitted on these cells, or a sample of them.

The objective is that of ``additive``, with its sum over the eligible cells. Up to MAX_CELLS all of them are visited.
Beyond that all treated cells and a random sample of the untreated ones are, each of the latter with the weight
untreated / sampled, so that the weighted sums are unbiased for those over all eligible cells.
"""

from __future__ import annotations

import warnings
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import expit

from taurank.data.eligibility import Eligibility, is_among
from taurank.data.log import Log
from taurank.data.reader import cell_index
from taurank.estimation.additive import share_with_intercept

Floats = npt.NDArray[np.float64]
Longs = npt.NDArray[np.int64]

MAX_CELLS = 1_000_000
TOLERANCE = 1e-5  # largest change of an effect in the last sweep
MAX_SWEEPS = 300
LONGEST_STEP = 2.0  # of an effect in one sweep: Newton's step may overshoot


class WeightedCells(NamedTuple):
    """Eligible cells: three positions, whether each was treated, and how many cells it stands for."""

    codes: tuple[Longs, Longs, Longs]
    treated: Floats
    weight: Floats

    def where(self, keep: npt.NDArray[np.bool_]) -> WeightedCells:
        user, item, time = (codes[keep] for codes in self.codes)
        return WeightedCells((user, item, time), self.treated[keep], self.weight[keep])


def eligible_cells(log: Log, eligibility: Eligibility, generator: np.random.Generator) -> WeightedCells:
    """All eligible cells of a log, or its treated ones and a sample of the others."""
    rows = np.flatnonzero(log.treated)
    shown = (log.user[rows], log.item[rows], log.time[rows])
    treated = np.sort(cell_index(log.catalog, *shown))
    everything = eligibility.cells <= MAX_CELLS
    number = np.arange(eligibility.cells) if everything else generator.integers(0, eligibility.cells, MAX_CELLS)
    user, item, time = eligibility.cell(number)
    control = ~is_among((time * log.n_users + user) * log.n_items + item, treated)
    stands_for = (eligibility.cells - len(rows)) / max(int(np.count_nonzero(control)), 1)
    codes = [
        np.concatenate([own.astype(np.int64), drawn[control]])
        for own, drawn in zip(shown, (user, item, time), strict=True)
    ]
    flags = np.repeat([1.0, 0.0], [len(rows), len(codes[0]) - len(rows)])
    return WeightedCells((codes[0], codes[1], codes[2]), flags, np.where(flags == 1.0, 1.0, stands_for))


def fit_cells(cells: WeightedCells, sizes: tuple[int, int, int], ridge: float) -> tuple[float, list[Floats]]:
    """Intercept and effects that maximize the penalized likelihood of these cells.

    One Newton step for the intercept and for each axis in turn; users do not depend on each other while items and
    times are held fixed, so that a step is exact to second order. What the effects of an axis have in common goes to
    the intercept, which would take hundreds of sweeps otherwise. An axis with one member has no effect.
    """
    effects = [np.zeros(size) for size in sizes]
    share = float(cells.weight @ cells.treated + 0.5) / float(cells.weight.sum() + 1.0)
    intercept = float(np.log(share / (1.0 - share)))
    log_odds = np.full(len(cells.treated), intercept)
    for _ in range(MAX_SWEEPS):
        rest, slope = _moments(cells, log_odds)
        p = expit(intercept)
        step = float((rest.sum() + 0.5 - p) / (slope.sum() + p * (1.0 - p)))
        intercept, change = intercept + step, abs(step)
        log_odds += step
        for codes, effect, size in zip(cells.codes, effects, sizes, strict=True):
            if size == 1:
                continue
            rest, slope = _moments(cells, log_odds)
            gradient = np.bincount(codes, rest, size) - ridge * effect
            steps = np.clip(gradient / (np.bincount(codes, slope, size) + ridge), -LONGEST_STEP, LONGEST_STEP)
            log_odds += steps[codes]
            change = max(change, float(np.abs(steps).max()))
            intercept, effect[:] = share_with_intercept(intercept, effect + steps, np.ones(size), ridge)
        if change < TOLERANCE:
            break
    else:
        warnings.warn(f"the propensity model did not converge (last change {change:.1e}).", stacklevel=3)
    return intercept, effects


def _moments(cells: WeightedCells, log_odds: Floats) -> tuple[Floats, Floats]:
    p = expit(log_odds)
    return cells.weight * (cells.treated - p), cells.weight * p * (1.0 - p)
