"""Propensity: P(treated = 1) for logs that did not record it, and what a log says about its own.

``estimate`` supplies missing propensities from a model of exposure, ``fit`` returns the model itself. The "exposure"
model knows which pairs were shown before and which items go together, "additive" knows users, items and times alone.
Both are cross-fitted: the propensity of a cell comes from effects that have not seen whether this cell was treated.
``slate_softmax`` and its neighbors compute the propensities of slates whose scores are known; ``pair_calibration``
says whether propensities fit pairs, ``diagnose`` whether effects can be learned from a log.
"""

from __future__ import annotations

from typing import get_args

from taurank._checks import check_choice
from taurank._choices import PropensityKind
from taurank.data.features import Features
from taurank.data.log import Log
from taurank.errors import InputError
from taurank.estimation.propensity.additive import AdditiveModel, fit_additive
from taurank.estimation.propensity.calibration import (
    PairCalibration,
    PairStratum,
    fill_in,
    pair_calibration,
    require_pair_calibration,
)
from taurank.estimation.propensity.cells import BOUND, RandomState
from taurank.estimation.propensity.exposure import ExposureModel, fit_exposure
from taurank.estimation.propensity.overlap import Diagnosis, diagnose
from taurank.estimation.propensity.slates import slate_epsilon_greedy, slate_softmax, slate_weighted

__all__ = [
    "BOUND",
    "AdditiveModel",
    "Diagnosis",
    "ExposureModel",
    "PairCalibration",
    "PairStratum",
    "diagnose",
    "estimate",
    "fit",
    "pair_calibration",
    "require_pair_calibration",
    "slate_epsilon_greedy",
    "slate_softmax",
    "slate_weighted",
]


def estimate(
    log: Log,
    random_state: RandomState = None,
    folds: int = 5,
    regularization: float = 1.0,
    *,
    model: str = "exposure",
    features: Features | None = None,
    replace: bool | None = None,
    threads: int | None = None,
) -> Log:
    """The log with a propensity in every row: recorded ones are kept, missing ones are estimated.

    Where other rows record a propensity, the estimates are calibrated on those. ``replace=True`` estimates every row
    anew; so does the default where all rows record one, since nothing is missing there. The other parameters are
    those of ``fit``, whose model also has the propensities of cells without a row.
    """
    estimates = fit(log, random_state, folds, regularization, model=model, features=features, threads=threads).at(
        log.user, log.item, log.time
    )
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
) -> ExposureModel | AdditiveModel:
    """Fit a model of exposure, whose ``at`` is the propensity of any cell.

    ``model="exposure"`` knows which items a user is shown and what became of the pair before, and may have
    ``features``: tables of users and items, and of the categories that each user can be shown. ``model="additive"``
    knows users, items and times alone, and fits no log in which recommendations follow what users like: check it with
    ``require_pair_calibration``. An estimate comes from a model that has not seen its cell; the folds of "exposure"
    are blocks of times. ``regularization`` is the precision of the normal prior of each coefficient.
    """
    check_choice("model", model, get_args(PropensityKind))
    if model == "exposure":
        return fit_exposure(log, random_state, folds, regularization, features, threads)
    if features is not None:
        raise InputError('features are used by model="exposure" only.')
    return fit_additive(log, random_state, folds, regularization)
