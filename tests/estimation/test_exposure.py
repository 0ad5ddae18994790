"""The exposure model on a shop whose propensities are known: draws, lifts, calibration, and the order of rankings."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import minimize
from scipy.special import expit

import taurank as tr
from support.exposure_shop import ExposureShop, exposure_shop, shop_item_features
from taurank import propensity
from taurank.data.eligibility import Eligibility
from taurank.errors import InputError
from taurank.estimation.propensity import cells as draws
from taurank.estimation.propensity.cells import PairHistory
from taurank.estimation.propensity.exposure import LIFT_PRIOR, Lift
from taurank.estimation.propensity.logistic import fit_intercepts, fit_logistic
from taurank.estimation.propensity.shares import Exposures, fit_mixture


@pytest.fixture(scope="module")
def shop() -> ExposureShop:
    return exposure_shop(users=400, items=80, times=5, categories=6, seed=1)


@pytest.fixture(scope="module")
def model(shop: ExposureShop) -> propensity.ExposureModel:
    model = propensity.fit(shop.log, random_state=0, threads=1)
    assert isinstance(model, propensity.ExposureModel)
    return model


@pytest.fixture(scope="module")
def additive(shop: ExposureShop) -> propensity.Model:
    return propensity.fit(shop.log, random_state=0, model="additive")


def treated_grid(log: tr.Log) -> Any:
    grid = np.zeros((log.n_users, log.n_items, log.n_times), bool)
    rows = log.treated == 1
    grid[log.user[rows], log.item[rows], log.time[rows]] = True
    return grid


def visits_of(shop: ExposureShop) -> Any:
    return np.nonzero(shop.visits)


def test_the_past_of_pairs_agrees_with_a_count_over_all_cells(shop: ExposureShop) -> None:
    grid = treated_grid(shop.log)
    history = PairHistory.from_rows(shop.log, shop.log.treated == 1)
    user, item, time = (axis.ravel() for axis in np.indices(grid.shape))
    count, ago = history.before(user, item, time)
    earlier = (np.cumsum(grid, axis=2) - grid)[user, item, time]
    np.testing.assert_array_equal(count, earlier)
    last = np.array(
        [np.flatnonzero(grid[u, i, :t])[-1] if n else t for u, i, t, n in zip(user, item, time, count, strict=True)]
    )
    np.testing.assert_array_equal(ago, time - last)
    number = np.arange(history.n_later_cells)
    cells = np.stack(history.later_cells(number))
    np.testing.assert_array_equal(np.unique(cells, axis=1), np.stack(np.nonzero(np.cumsum(grid, axis=2) - grid)))
    assert len(number) == cells.shape[1] == np.count_nonzero(earlier)


def test_weighted_draws_stand_for_all_cells(
    shop: ExposureShop, model: propensity.ExposureModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any sum over cells is estimated without bias, also over eligible cells alone."""
    for name, n in (("MAX_CELLS", 0), ("EVEN", 3000), ("BY_PROPOSAL", 5000), ("BY_PAST", 2000)):
        monkeypatch.setattr(draws, name, n)
    visits = Eligibility.from_positions(shop.log.catalog, visits_of(shop))
    for eligibility in (Eligibility.everything(shop.log.catalog), visits):
        log = replace(shop.log, eligibility=eligibility)
        inside = np.ones((log.n_users, log.n_items, log.n_times), bool)
        if not eligibility.is_everything:
            inside &= shop.visits[:, None, :]
        g = shop.propensity[:, :, None] * (1.0 + np.arange(log.n_times))
        estimates = []
        for seed in range(12):
            cells = draws.draw_cells(log, model.first.shown, model.first.proposal, np.random.default_rng(seed))
            estimates.append((cells.weight * g[cells.user, cells.item, cells.time]).sum())
        error = np.std(estimates) / np.sqrt(len(estimates))
        assert np.mean(estimates) == pytest.approx((g * inside).sum(), abs=4 * error)
        assert error < 0.02 * (g * inside).sum()


def test_lifts_agree_with_counts() -> None:
    rng = np.random.default_rng(0)
    left, right, fold = rng.integers(0, 4, 300), rng.integers(0, 3, 300), rng.integers(0, 2, 300)
    lift = Lift.from_rows(np.arange(4), np.arange(3), 2, left, right, fold)
    for case in np.ndindex(4, 3, 2):
        a, b, f = case
        out = fold != f
        share = ((right == b) & out).sum() + 0.5
        share /= out.sum() + 1.5
        expected = (
            (((left == a) & (right == b) & out).sum() + LIFT_PRIOR * share)
            / (((left == a) & out).sum() + LIFT_PRIOR)
            / share
        )
        assert lift.at(*(np.array([x]) for x in case))[0] == pytest.approx(np.log(expected))


def test_the_second_stage_maximizes_the_likelihood_of_all_cells() -> None:
    rng = np.random.default_rng(2)
    x = rng.normal(size=(400, 3)).astype(np.float32)
    offset = rng.normal(-1.0, 0.5, 400).astype(np.float32)
    z = rng.random(400) < expit(offset + x @ np.array([0.5, -0.3, 0.2]))
    table = np.column_stack([np.ones(400, np.float32), x])
    ridge = np.array([1e-6, 0.7, 0.7, 0.7])
    found = fit_logistic(table[z].sum(axis=0, dtype=np.float64), offset, table, np.ones(400), ridge)

    def loss(beta: Any) -> Any:
        eta = offset.astype(float) + table.astype(float) @ beta
        return np.logaddexp(0, eta).sum() - eta[z].sum() + 0.35 * (beta[1:] ** 2).sum()

    np.testing.assert_allclose(found, minimize(loss, np.zeros(4)).x, atol=1e-3)
    group = rng.integers(0, 3, 400)
    shift = fit_intercepts(offset.astype(np.float64), np.full(400, 2.0), group, np.array([5.0, 50.0, 100.0]))
    np.testing.assert_allclose(np.bincount(group, 2.0 * expit(offset + shift[group])), [5.0, 50.0, 100.0], rtol=1e-6)


def test_a_mixture_predicts_other_times_and_do_not_depend_on_threads(shop: ExposureShop) -> None:
    rows = shop.log.treated == 1
    fold = (shop.log.time[rows] == 0).astype(np.int8)
    exposures = Exposures.from_rows(400, 80, shop.log.user[rows], shop.log.item[rows], fold)
    mixtures = [fit_mixture(exposures, exposures, 1, 8, np.random.default_rng(0), threads) for threads in (1, 2)]
    np.testing.assert_array_equal(mixtures[0].user, mixtures[1].user)
    np.testing.assert_array_equal(mixtures[0].item, mixtures[1].item)
    np.testing.assert_allclose(mixtures[0].user.sum(axis=1), 1.0, rtol=1e-5)
    np.testing.assert_allclose(mixtures[0].item.sum(axis=0), 1.0, rtol=1e-5)
    held = shop.log.time == 0
    held &= rows
    item = shop.log.item[held]
    assert np.log(mixtures[0].chance(shop.log.user[held], item) / mixtures[0].popularity[item]).mean() > 0.25


def test_pairs_are_calibrated_where_the_additive_model_is_not(
    shop: ExposureShop, model: propensity.ExposureModel, additive: propensity.Model
) -> None:
    log, grid = shop.log, treated_grid(shop.log)
    fitted, plain = (
        propensity.pair_calibration(propensity.estimate(log, model=one)) for one in (model, additive)
    )  # fmt: skip
    assert fitted.identified
    assert fitted.holds
    past, p = np.minimum(np.cumsum(grid, axis=2) - grid, 2), model.at(*np.indices(grid.shape))
    for k in range(3):  # over all cells, absent ones too
        assert grid[..., 1:][past[..., 1:] == k].sum() == pytest.approx(p[..., 1:][past[..., 1:] == k].sum(), rel=0.1)
    assert not plain.holds
    assert "fails: pairs shown" in plain.sentence


def test_strata_agree_with_the_grid(shop: ExposureShop) -> None:
    """Σ 1/P and the number of cells, counted over all cells; the truth fits."""
    log = shop.log.with_propensity(shop.propensity[shop.log.user, shop.log.item])
    grid = treated_grid(log)
    past = np.minimum(np.cumsum(grid, axis=2) - grid, 2)
    for eligible in (None, shop.visits):
        part = log if eligible is None else replace(
            log, eligibility=Eligibility.from_positions(log.catalog, visits_of(shop))
        )  # fmt: skip
        inside = (
            np.arange(log.n_times) > 0 if eligible is None else (np.arange(log.n_times) > 0) & eligible[:, None, :]
        )
        result = propensity.pair_calibration(part)
        for k, stratum in enumerate(result.strata):
            cells = (past == k) & inside
            assert stratum.cells == np.count_nonzero(cells)
            assert stratum.rows == np.count_nonzero(cells & grid)
            weights = np.broadcast_to(1.0 / shop.propensity[:, :, None], grid.shape)[cells & grid]
            assert stratum.ratio == pytest.approx(weights.sum() / cells.sum())
    assert propensity.pair_calibration(log).holds


def test_additive_propensities_are_refused(shop: ExposureShop, additive: propensity.Model) -> None:
    log = shop.log.with_propensity(additive.at(shop.log.user, shop.log.item, shop.log.time))
    diagnosis = tr.diagnose(log)
    assert diagnosis.level == "poor"
    assert "Pair-level calibration fails" in diagnosis.verdict
    assert diagnosis.to_dict()["pairs"]["strata"][1]["name"] == "shown once before"


def test_capped_ips_orders_rankings_right_with_pairs_and_wrong_without(
    shop: ExposureShop, model: propensity.ExposureModel, additive: propensity.Model
) -> None:
    """Two rankings of ten: items the user would buy anyway, and items with an effect."""
    log = shop.log
    rankings = {"taste": shop.bought, "effect": shop.effect}
    top = {name: np.argsort(-scores, axis=1)[:, :10] for name, scores in rankings.items()}
    truth = {name: np.take_along_axis(shop.effect, items, 1).sum(axis=1).mean() for name, items in top.items()}
    assert truth["effect"] > 1.5 * truth["taste"]

    def gap(values: Any) -> Any:
        gains = tr.gains.capped_ips(log.with_propensity(values), cap=0.005)
        grid = np.zeros((log.n_users, log.n_items))
        np.add.at(grid, (gains.user, gains.item), gains.value / log.n_times)
        taste, effect = (np.take_along_axis(grid, items, 1).sum(axis=1).mean() for items in top.values())
        return effect - taste

    assert gap(model.at(log.user, log.item, log.time)) > 0.4 * (truth["effect"] - truth["taste"])
    assert gap(additive.at(log.user, log.item, log.time)) < 0.0


def test_its_own_treatment_hardly_touches_a_cells_propensity(
    shop: ExposureShop, model: propensity.ExposureModel
) -> None:
    log = shop.log
    row = np.flatnonzero((log.treated == 1) & (log.time == 4))[:1]
    flipped = log.treated.copy()
    flipped[row] = 0
    other = propensity.fit(replace(log, treated=flipped), random_state=0, threads=1)
    cell = (log.user[row], log.item[row], log.time[row])
    assert other.at(*cell)[0] == pytest.approx(model.at(*cell)[0], rel=0.02)


def test_features_options_and_refusals(shop: ExposureShop, tmp_path: Any) -> None:
    log = shop.log
    items = shop_item_features(shop).assign(price=np.linspace(1.0, 9.0, log.n_items))
    users = pd.DataFrame({"user_id": np.arange(50), "segment": ["a", None] * 25})
    items.to_csv(tmp_path / "items.csv", index=False)
    features = tr.Features(users=users, items=tmp_path / "items.csv")
    result = propensity.estimate(log, 0, features=features, threads=1)
    assert propensity.pair_calibration(result).identified
    with pytest.raises(InputError, match="features are used by"):
        propensity.estimate(log, model="additive", features=features)
    table: Any = items
    with pytest.raises(InputError, match="features must be a Features, got a DataFrame"):
        propensity.estimate(log, features=table)
    with pytest.raises(InputError, match="model must be one of 'exposure', 'additive'"):
        propensity.estimate(log, model="taste")


def test_coefficients_have_names(shop: ExposureShop, model: propensity.ExposureModel) -> None:
    """Each column says what it is: the twin takes them by name."""
    log = shop.log
    assert model.coefficients.shape == (5, len(model.names))
    assert len(set(model.names)) == len(model.names)
    cells = (log.user[:50], log.item[:50], log.time[:50])
    columns = model.first.columns(*cells)
    assert columns.names == model.names
    by_name = dict(zip(columns.names, columns.values.T, strict=True))
    count, ago = model.first.shown.before(*cells)
    np.testing.assert_array_equal(by_name["intercept"], 1.0)
    np.testing.assert_allclose(by_name["rate"], columns.offset + 5.0, rtol=1e-6)
    np.testing.assert_array_equal(by_name["shown before"], count > 0)
    np.testing.assert_array_equal(by_name["shown twice before"], count > 1)
    np.testing.assert_allclose(by_name["shown recently"], np.where(count > 0, 1.0 / np.maximum(ago, 1), 0.0))
    np.testing.assert_array_equal(by_name["lift above 0"], np.maximum(by_name["lift"], 0.0))
    fold = model.first.folds.at(*cells)
    eta = columns.offset + (columns.values * model.coefficients[fold]).sum(axis=1) + model.time_effect[cells[2]]
    np.testing.assert_allclose(model.at(*cells), np.clip(expit(eta), 1e-6, 1 - 1e-6), rtol=1e-6)


def test_a_last_time_without_exposures_has_almost_no_propensity(shop: ExposureShop) -> None:
    log = shop.log.take((shop.log.time < 4) | (shop.log.treated == 0))
    model = propensity.fit(log, random_state=0, threads=1)
    by_time = model.at(*np.indices((log.n_users, log.n_items, log.n_times))).sum((0, 1))
    assert by_time[:4] == pytest.approx(treated_grid(log).sum((0, 1))[:4], rel=0.05)
    assert by_time[4] < 1


def test_a_log_with_a_single_time_has_a_mixture_too() -> None:
    shop = exposure_shop(users=500, items=60, times=1, categories=4, visit=2.0, seed=3)
    model = propensity.fit(shop.log, random_state=0, threads=1)
    estimated = model.at(*np.indices((500, 60)))
    plain = propensity.fit(shop.log, random_state=0, model="additive").at(*np.indices((500, 60)))
    truth = shop.propensity
    exposure, additive = ((truth * np.log(p) + (1.0 - truth) * np.log1p(-p)).sum() for p in (estimated, plain))
    assert exposure > additive + 100.0
    assert estimated.sum() == pytest.approx(np.count_nonzero(shop.log.treated), rel=1e-3)
    assert not propensity.pair_calibration(propensity.estimate(shop.log, model=model)).identified
