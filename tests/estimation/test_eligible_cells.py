"""Estimates where only a part of the users visit: means over eligible cells, checked by Monte Carlo."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from scipy.special import expit

import taurank as tr
from support.builders import dense_log
from taurank.data.eligibility import Eligibility

SHAPE = (60, 30, 12)


def visiting_log(seed: int) -> tuple[tr.Log, npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
    """A log in which a third of the users visit at a time; propensities are additive where they do, else 0."""
    rng = np.random.default_rng(seed)
    visits = rng.random((SHAPE[0], SHAPE[2])) < 1 / 3
    users, items = rng.normal(0, 0.7, SHAPE[0]), rng.normal(0, 0.7, SHAPE[1])
    grid = np.broadcast_to(visits[:, None, :], SHAPE)
    propensity = expit(users[:, None, None] + items[None, :, None] - 1.0) * grid
    treated = (rng.random(SHAPE) < propensity).astype(np.int8)
    outcome = ((rng.random(SHAPE) < 0.2 + 0.3 * treated) & grid).astype(np.int8)
    log = dense_log(treated, outcome, np.where(grid, propensity, 0.5))
    limits = Eligibility.from_positions(log.catalog, (np.nonzero(visits)[0], np.nonzero(visits)[1]))
    return replace(log, eligibility=limits), propensity, grid


def test_naive_is_right_on_average_where_only_a_part_visits() -> None:
    """With one propensity for all eligible cells the naive estimate is unbiased; over all cells it is not."""
    rng, totals, truth = np.random.default_rng(0), [], 0.3
    for _ in range(200):
        visits = rng.random((40, 3)) < 0.3
        grid = np.broadcast_to(visits[:, None, :], (40, 10, 3))
        treated = ((rng.random(grid.shape) < 0.4) & grid).astype(np.int8)
        log = dense_log(treated, ((rng.random(grid.shape) < 0.2 + truth * treated) & grid).astype(np.int8))
        user, time = np.nonzero(visits)
        limited = replace(log, eligibility=Eligibility.from_positions(log.catalog, (user, time)))
        totals.append([tr.gains.naive(one).value.sum() / limited.cells for one in (limited, log)])
    mean, error = np.mean(totals, axis=0), np.std(totals, axis=0)[0] / np.sqrt(len(totals))
    assert abs(mean[0] - truth) < 4 * error
    assert abs(mean[1] - truth) > 20 * error


def everywhere(log: tr.Log) -> tr.Log:
    return replace(log, eligibility=Eligibility.everything(log.catalog))


def additive(log: tr.Log) -> Any:
    return tr.propensity.estimate(log, random_state=0, model="additive").propensity


def test_estimated_propensities_ignore_cells_that_are_not_eligible() -> None:
    log, propensity, _ = visiting_log(1)
    truth, limited = propensity[log.user, log.item, log.time], additive(log)
    assert np.corrcoef(limited, truth)[0, 1] > 0.9
    assert abs(limited.mean() - truth.mean()) < 0.02
    assert truth.mean() - additive(everywhere(log)).mean() > 0.1  # who did not come counts as shown nothing


def test_everything_eligible_is_the_same_as_no_table() -> None:
    log = dense_log((np.random.default_rng(3).random((20, 15, 3)) < 0.3).astype(np.int8))
    user, time = (axis.ravel() for axis in np.indices((20, 3)))
    everyone = replace(log, eligibility=Eligibility.from_positions(log.catalog, (user, time)))
    np.testing.assert_allclose(additive(everyone), additive(log), atol=2e-5)


def test_diagnosis_counts_eligible_cells_only() -> None:
    log, _, grid = visiting_log(4)
    limited, blind = (tr.diagnose(one) for one in (log, everywhere(log)))
    assert limited.n_cells == grid.sum()
    assert abs(limited.treated_total.ratio - 1.0) < 0.1
    assert blind.treated_total.ratio < 0.5
    assert limited.users.far <= 3 < blind.users.far


def test_a_fit_that_does_not_converge_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    log, _, _ = visiting_log(0)
    monkeypatch.setattr("taurank.estimation.propensity.logistic.MAX_SWEEPS", 1)
    with pytest.warns(UserWarning, match="the propensity model did not converge"):
        tr.propensity.fit(log, random_state=0, model="additive")
