"""The additive model: who the user is, which item it is and when, each by itself.

A regularized logistic model of treatment on user, item and time effects over *all* eligible cells; a cell without a
row counts as untreated. It is cross-fitted: the propensity of a cell comes from a model that has not seen whether
this cell was treated. It knows nothing of pairs, so that ``pair_calibration`` refuses it wherever recommendations
follow what users like.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import expit

from taurank._checks import check_number, generator
from taurank._types import Bits, Floats, Longs
from taurank.data.ids import Catalog
from taurank.data.log import Log
from taurank.estimation.folds import Folds
from taurank.estimation.newton import MAX_STEP
from taurank.estimation.propensity.cells import (
    Model,
    PairHistory,
    Proposal,
    RandomState,
    check_log,
    draw_cells,
    positions,
)

MIN_REGULARIZATION = 0.01  # a prior of standard deviation 10 on log-odds: weaker has no meaning
TOLERANCE = 1e-7  # largest change of an effect in the last sweep
MAX_SWEEPS = 300


def fit_additive(
    log: Log, random_state: RandomState = None, folds: int = 5, regularization: float = 1.0
) -> AdditiveModel:
    """Fit logit P(Z_uit = 1) = b + a_u + c_i + d_t over all eligible cells, once for every fold left out.

    ``regularization`` λ is the precision of the normal prior of each effect: the objective is
    Σ_treated η − Σ_cells log(1 + e^η) − λ/2 (Σ a_u² + Σ c_i² + Σ d_t²). The effects of users or items with few
    treated cells are shrunk toward the mean. The sum over cells is exact up to a million cells, and estimated
    without bias from a million draws beyond. ``random_state`` decides how cells fall into folds, and the draws.
    """
    check_log(log, folds)
    check_number("regularization", regularization, MIN_REGULARIZATION)
    random = generator(random_state)
    parts = Folds.from_random(log.catalog, folds, random)
    cells = draw_cells(log, PairHistory.from_rows(log, log.treated == 1), Proposal.by_popularity(log), random)
    rows = np.flatnonzero(log.treated)
    treated = [codes[rows] for codes in (log.user, log.item, log.time)]
    treated_fold, fold = parts.at(*treated), parts.at(cells.user, cells.item, cells.time)
    fits = []
    for left_out in range(folds):
        seen = treated_fold != left_out
        totals = [
            np.bincount(codes[seen], minlength=n).astype(np.float64)
            for codes, n in zip(treated, (log.n_users, log.n_items, log.n_times), strict=True)
        ]
        fits.append(_fit(cells[:3], totals, np.where(fold == left_out, 0.0, cells.weight), float(regularization)))
    intercept = np.array([b for b, _ in fits])
    effects = (np.stack(axis) for axis in zip(*(effects for _, effects in fits), strict=True))
    return AdditiveModel(log.catalog, parts, intercept, *effects)


@dataclass(frozen=True, eq=False)
class AdditiveModel(Model):
    """A fitted model: one intercept and one set of effects for every fold that was left out."""

    catalog: Catalog
    folds: Folds
    intercept: Floats  # folds
    user_effect: Floats  # folds × users
    item_effect: Floats  # folds × items
    time_effect: Floats  # folds × times

    def __repr__(self) -> str:
        size = self.catalog
        return (
            f"AdditiveModel({size.n_users:,} users, {size.n_items:,} items, {size.n_times:,} times, "
            f"{self.folds.count} folds)"
        )

    def fold(self, user: Any, item: Any, time: Any = 0) -> Bits:
        """The fold of cells, given as positions in the catalog."""
        return self.folds.at(*positions(self.catalog, user, item, time))

    def _log_odds(self, user: Longs, item: Longs, time: Longs) -> Floats:
        fold = self.folds.at(user, item, time)
        log_odds = self.intercept[fold] + self.user_effect[fold, user]
        log_odds += self.item_effect[fold, item]
        log_odds += self.time_effect[fold, time]
        return np.asarray(log_odds)


def _fit(
    codes: Sequence[Longs], treated: Sequence[Floats], weight: Floats, ridge: float
) -> tuple[float, list[Floats]]:
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
    return intercept, effects
