"""Newton's method for logistic models of weighted cells, and the model of users, items and times, each by itself.

The additive model is fitted over *all* eligible cells; a cell without a row counts as untreated. It is cross-fitted:
the propensity of a cell comes from a model that has not seen whether this cell was treated. It knows nothing of
pairs, so that ``pair_calibration`` refuses it wherever recommendations follow what users like.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import expit

from taurank._types import Floats, Floats32, Longs
from taurank.data.log import Log
from taurank.estimation.folds import Folds
from taurank.estimation.propensity.cells import Model, PairHistory, Proposal, draw_cells

BLOCK = 1 << 16
MAX_STEPS = 50
MAX_STEP = 2.0  # of a coefficient: a full step may overshoot
TOLERANCE = 1e-7  # largest change of a coefficient in the last step or sweep
MAX_SWEEPS = 300


def fit_logistic(
    observed: Floats, offset: Floats | Floats32, x: Floats | Floats32, weight: Floats, ridge: Floats | float
) -> Floats:
    """β that maximizes observed·β − Σ_cells w log(1 + e^η) − ridge/2 Σ β², with η = offset + x·β.

    ``observed`` is Σ w y x, over the treated rows of a log, say: the cells themselves may be a weighted sample, whose
    sums are unbiased for those over all cells.
    """
    beta, penalty = np.zeros(x.shape[1]), np.full(x.shape[1], ridge)
    for _ in range(MAX_STEPS):
        expected, curvature = np.zeros(len(beta)), np.zeros((len(beta), len(beta)))
        for start in range(0, len(x), BLOCK):
            rows = slice(start, start + BLOCK)
            block = x[rows].astype(np.float64)
            p = expit(offset[rows] + block @ beta)
            mass = weight[rows] * p
            expected += mass @ block
            curvature += (block * (mass * (1.0 - p))[:, None]).T @ block
        step = np.linalg.solve(curvature + np.diag(penalty), observed - expected - penalty * beta)
        largest = float(np.abs(step).max())
        beta = beta + step * min(1.0, MAX_STEP / max(largest, 1e-300))
        if largest < TOLERANCE:
            break
    return beta


def fit_intercepts(log_odds: Floats, weight: Floats, group: Longs, wanted: Floats) -> Floats:
    """For each group the intercept d with Σ_cells w σ(log_odds + d) = wanted, by bisection."""
    low, high = np.full(len(wanted), -30.0), np.full(len(wanted), 30.0)
    for _ in range(50):
        middle = 0.5 * (low + high)
        total = np.bincount(group, weight * expit(log_odds + middle[group]), len(wanted))
        low, high = np.where(total < wanted, middle, low), np.where(total < wanted, high, middle)
    return np.asarray(0.5 * (low + high))


def fit_additive(log: Log, generator: np.random.Generator, folds: int, regularization: float) -> AdditiveModel:
    """Fit logit P(Z_uit = 1) = b + a_u + c_i + d_t over all eligible cells, once for every fold left out.

    ``regularization`` λ is the precision of the normal prior of each effect: the objective is
    Σ_treated η − Σ_cells log(1 + e^η) − λ/2 (Σ a_u² + Σ c_i² + Σ d_t²). The effects of users or items with few
    treated cells are shrunk toward the mean. The sum over cells is exact up to a million cells, and estimated
    without bias from a million draws beyond.
    """
    parts = Folds.from_random(log.eligibility.shape, folds, generator)
    cells = draw_cells(log, PairHistory.from_rows(log, log.treated == 1), Proposal.by_popularity(log), generator)
    rows = np.flatnonzero(log.treated)
    treated = [codes[rows] for codes in (log.user, log.item, log.time)]
    treated_fold, fold = parts.at(*treated), parts.at(*cells[:3])
    fits, shape = [], log.eligibility.shape
    for f in range(folds):
        totals = [np.bincount(c[treated_fold != f], minlength=n) for c, n in zip(treated, shape, strict=True)]
        fits.append(_fit_effects(cells[:3], totals, np.where(fold == f, 0.0, cells.weight), float(regularization)))
    intercept, *effects = (np.stack(axis) for axis in zip(*fits, strict=True))
    return AdditiveModel(log, parts, intercept, *effects)


@dataclass(frozen=True, eq=False, repr=False)
class AdditiveModel(Model):
    """A fitted model: one intercept and one set of effects for every fold that was left out."""

    intercept: Floats  # folds
    user_effect: Floats  # folds × users
    item_effect: Floats  # folds × items
    time_effect: Floats  # folds × times

    def _log_odds(self, user: Longs, item: Longs, time: Longs) -> Floats:
        fold = self.folds.at(user, item, time)
        effects = self.user_effect[fold, user] + self.item_effect[fold, item] + self.time_effect[fold, time]
        return np.asarray(self.intercept[fold] + effects)


def _fit_effects(codes: Sequence[Longs], treated: Sequence[Longs], weight: Floats, ridge: float) -> list[Floats]:
    """Intercept and effects that maximize the penalized likelihood, with half a treated and half an untreated cell at
    the intercept, so that it is finite even if no treated cell is left. For users, items and times ``codes`` says
    which of them each cell belongs to, ``treated`` how many treated cells each of them has.

    Each axis in turn takes a Newton step together with the intercept. Users do not depend on each other while items
    and times are held fixed: the curvature has a diagonal h_j + ridge and the border h_j of the intercept, so that
    the step is a matter of sums. An axis with one member has no effect.
    """
    effects = [np.zeros(len(totals)) for totals in treated]
    n_treated, n_cells = float(treated[0].sum()), float(weight.sum())
    intercept = float(np.log((n_treated + 0.5) / (max(n_cells - n_treated, 0.0) + 0.5)))
    log_odds = np.full(len(weight), intercept)
    for _ in range(MAX_SWEEPS):
        change = 0.0
        for code, totals, effect in zip(codes, treated, effects, strict=True):
            if len(effect) == 1:
                continue
            p, prior = expit(log_odds), float(expit(intercept))
            mass = weight * p
            rest = totals - np.bincount(code, mass, len(effect))
            curvature = np.bincount(code, mass * (1.0 - p), len(effect))
            gradient, diagonal = rest - ridge * effect, curvature + ridge
            border = float((curvature * ridge / diagonal).sum()) + prior * (1.0 - prior)
            shift = (float(rest.sum()) + 0.5 - prior - float((curvature / diagonal) @ gradient)) / border
            shift = min(max(shift, -MAX_STEP), MAX_STEP)
            steps = np.clip((gradient - curvature * shift) / diagonal, -MAX_STEP, MAX_STEP)
            intercept, effect[:] = intercept + shift, effect + steps
            log_odds += (steps + shift)[code]
            change = max(change, abs(shift), float(np.abs(steps).max()))
        if change < TOLERANCE:
            break
    else:
        warnings.warn(f"the propensity model did not converge (last change {change:.1e}).", stacklevel=3)
    return [np.array(intercept), *effects]
