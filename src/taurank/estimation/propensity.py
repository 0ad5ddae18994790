"""Propensity: P(treated = 1) for logs that did not record it, and what a log says about its own.

``estimate`` supplies missing propensities from a model of exposure: "taste" knows which pairs were shown before and
which items go together, "additive" knows users, items and times alone. Both are cross-fitted: the propensity of
a cell comes from effects that have not seen whether this cell was treated. ``slate_softmax`` and its neighbors
compute the propensities of slates whose scores are known; ``pair_calibration`` says whether propensities fit pairs,
``diagnose`` whether effects can be learned from a log.
"""

from __future__ import annotations

from typing import Any, get_args

from taurank._choices import PropensityKind
from taurank._validation import check_choice, check_instance
from taurank.data.log import Log
from taurank.errors import InputError
from taurank.estimation.overlap.diagnosis import Diagnosis, diagnose
from taurank.estimation.propensities.additive_model import PropensityModel, fit_additive
from taurank.estimation.propensities.calibration import (
    PairCalibration,
    PairStratum,
    pair_calibration,
    require_pair_calibration,
)
from taurank.estimation.propensities.cells import BOUND, RandomState
from taurank.estimation.propensities.recorded import fill_in
from taurank.estimation.propensities.slates import slate_epsilon_greedy, slate_softmax, slate_weighted
from taurank.estimation.propensities.taste_model import TasteModel, fit_taste

__all__ = [
    "BOUND",
    "Diagnosis",
    "PairCalibration",
    "PairStratum",
    "PropensityModel",
    "TasteModel",
    "diagnose",
    "estimate",
    "fit",
    "fit_taste",
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
    model: str = "additive",
    features: Any = None,
    replace: bool | None = None,
    threads: int | None = None,
) -> Log:
    """The log with a propensity in every row: recorded ones are kept, missing ones are estimated.

    ``model="taste"`` knows which items a user is shown and what became of the pair before. It may have ``features``:
    {"user": table, "item": table}, frames or files with ``user_id`` or ``item_id`` and a column per feature.
    ``model="additive"`` knows users, items and times alone; check it with ``require_pair_calibration`` first. An
    estimate comes from a model that has not seen its cell; the folds of "taste" are blocks of times.

    Where other rows record a propensity, the estimates are calibrated on those. ``replace=True`` estimates every row
    anew; so does the default where all rows record one, since nothing is missing there. ``folds`` and
    ``regularization`` are those of ``fit`` and ``fit_taste``, which also return the propensities of absent cells.
    """
    check_choice("model", model, get_args(PropensityKind))
    if features is not None and model != "taste":
        raise InputError('features are used by model="taste" only.')
    fitted: PropensityModel | TasteModel
    if model == "taste":
        fitted = fit_taste(log, random_state, folds, regularization, features, threads)
    else:
        fitted = fit(log, random_state, folds, regularization)
    estimates = fitted.at(log.user, log.item, log.time)
    missing = log.n_without_propensity
    if replace or missing == len(log) or (replace is None and missing == 0):
        return log.with_propensity(estimates)
    return log.with_propensity(fill_in(log, estimates))


def fit(log: Log, random_state: RandomState = None, folds: int = 5, regularization: float = 1.0) -> PropensityModel:
    """Fit the additive model to the log; see ``fit_taste`` for the model that knows pairs."""
    check_instance("log", log, Log, "Log.from_frame or Log.read")
    return fit_additive(log, random_state, folds, regularization)
