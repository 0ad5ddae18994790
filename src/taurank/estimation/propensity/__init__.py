"""Propensity: P(treated = 1) for logs that did not record it, and whether recorded ones fit.

``estimate`` supplies missing propensities from a model of exposure, ``fit`` returns the model itself. The "exposure"
model knows which pairs were shown before and which items go together, "additive" knows users, items and times alone.
Both are cross-fitted: the propensity of a cell comes from effects that have not seen whether this cell was treated.
``slate_softmax`` and its neighbors compute the propensities of slates whose scores are known; ``pair_calibration``
says whether propensities fit pairs.
"""

from __future__ import annotations

from typing import get_args

import numpy as np
from scipy.special import expit, logit

from taurank._checks import RandomState, check_choice, check_instance, check_integer, check_number, generator
from taurank._choices import PropensityKind
from taurank._types import Floats
from taurank.data.features import Features
from taurank.data.log import Log
from taurank.errors import InputError
from taurank.estimation.folds import MAX_FOLDS
from taurank.estimation.propensity.calibration import ENOUGH, PairCalibration, pair_calibration
from taurank.estimation.propensity.cells import BOUND, Model
from taurank.estimation.propensity.exposure import ExposureModel, fit_exposure
from taurank.estimation.propensity.logistic import AdditiveModel, fit_additive, fit_logistic
from taurank.estimation.propensity.slates import slate_epsilon_greedy, slate_softmax, slate_weighted

__all__ = [
    "BOUND", "AdditiveModel", "ExposureModel", "Model", "PairCalibration", "estimate", "fit", "pair_calibration",
    "slate_epsilon_greedy", "slate_softmax", "slate_weighted",
]  # fmt: skip

MAX_WEIGHT = 1000.0  # of a row that represents the other arm
MIN_REGULARIZATION = 0.01  # a prior of standard deviation 10 on log-odds: weaker has no meaning


def estimate(
    log: Log,
    random_state: RandomState = None,
    *,
    model: str | Model = "exposure",
    features: Features | None = None,
    replace: bool | None = None,
    threads: int | None = None,
) -> Log:
    """The log with a propensity in every row: recorded ones are kept, missing ones are estimated.

    Where other rows record a propensity, the estimates are calibrated on those.

    Parameters
    ----------
    random_state, features, threads : as in ``fit``
    model : the name of one, which is fitted to this log, or one from ``fit``
    replace : estimate every row anew; so does the default where all rows record one, since nothing is missing there

    Examples
    --------
    >>> import pandas as pd
    >>> rows = pd.DataFrame({"user_id": [1, 2, 3, 4], "item_id": [5, 5, 6, 6], "treated": [1, 0, 1, 0], "outcome": 1})
    >>> log = estimate(Log.from_frame(rows), random_state=0, model="additive")
    >>> log.n_without_propensity
    0
    """
    if not isinstance(model, Model):
        model = fit(log, random_state, model=model, features=features, threads=threads)
    elif model.log.catalog != log.catalog:
        raise InputError("the model must be fitted to a log with the catalog of this one.")
    estimates = model.at(log.user, log.item, log.time)
    missing = log.n_without_propensity
    if replace or missing == len(log) or (replace is None and missing == 0):
        return log.with_propensity(estimates)
    return log.with_propensity(fill_in(log, estimates))


def fit(
    log: Log,
    random_state: RandomState = None,
    folds: int = 5,
    regularization: float = 1.0,
    *,
    model: str = "exposure",
    features: Features | None = None,
    threads: int | None = None,
) -> Model:
    """Fit a model of exposure, whose ``at`` is the propensity of any cell.

    An estimate comes from a model that has not seen its cell; the folds of "exposure" are blocks of times, those of
    "additive" random.

    Parameters
    ----------
    log : a log in which something was recommended, but not everything
    folds : how many
    regularization : the precision of the normal prior of each coefficient
    model : "exposure" knows which items a user is shown and what became of the pair before. "additive" knows users,
        items and times alone, logit P = b + a_u + c_i + d_t, and fits no log in which recommendations follow what
        users like: check it with ``pair_calibration``
    features : tables of users and items, and of the categories that each user can be shown ("exposure" only)
    """
    check_choice("model", model, get_args(PropensityKind))
    check_instance("log", log, Log, "Log.from_frame or Log.read")
    check_integer("folds", folds, 2, MAX_FOLDS)
    check_number("regularization", regularization, MIN_REGULARIZATION)
    if features is not None:
        check_instance("features", features, Features, "taurank.Features(items=…)")
    n_treated = int(np.count_nonzero(log.treated))
    if n_treated == 0:
        raise InputError(
            f"column 'treated' is 0 in all {len(log):,} rows; a propensity can be estimated only from a "
            "log in which something was recommended."
        )
    if n_treated == log.eligibility.cells:
        raise InputError(
            f"column 'treated' is 1 in all {n_treated:,} cells; without a cell that was not recommended there "
            "is no propensity to estimate (does the catalog have all users, items and times?)."
        )
    if model == "exposure":
        return fit_exposure(log, generator(random_state), folds, regularization, features, threads)
    if features is not None:
        raise InputError('features are used by model="exposure" only.')
    return fit_additive(log, generator(random_state), folds, regularization)


def fill_in(log: Log, estimates: Floats) -> Floats:
    """The recorded propensities, and calibrated estimates in the rows that have none.

    Among rows that record the true P the line logit P = a + b logit p̂ is fitted, with a ridge toward slope 1 and
    intercept 0 (Platt scaling), and applied to the estimates p̂ of the rows without a record. The fit must represent
    the rows it is used for. Missing rows of an arm are represented by recorded rows of the same arm; where an arm has
    too few (purchases of items that were not shown, say), by those of the other arm, weighted from one arm to the
    other: a treated row stands for (1 − P)/P untreated cells like it, an untreated one for P/(1 − P) treated ones.
    """
    if log.propensity is None:
        return estimates
    result, log_odds = log.propensity.copy(), logit(estimates)
    recorded = ~np.isnan(result)
    for arm in (0, 1):
        missing = ~recorded & (log.treated == arm)
        if not missing.any():
            continue
        rows, other = (np.flatnonzero(recorded & here) for here in (log.treated == arm, log.treated != arm))
        weight = np.ones(len(rows))
        if len(rows) < ENOUGH and len(other):
            rows, p = other, result[other]
            weight = np.minimum((1.0 - p) / p if arm == 0 else p / (1.0 - p), MAX_WEIGHT)
            weight /= weight.mean()
        x = np.stack([np.ones(len(rows)), log_odds[rows]], axis=1)
        a, b = fit_logistic((weight * result[rows]) @ x, log_odds[rows], x, weight, 1.0)
        result[missing] = np.clip(expit(a + (1.0 + b) * log_odds[missing]), BOUND, 1.0 - BOUND)
    return result
