"""The additive model against a dense twin, folds, cross-fitting, and calibration on recorded propensities."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import expit
from threadpoolctl import threadpool_limits

import taurank as tr
from support.builders import dense_log
from taurank import propensity
from taurank.data.eligibility import Eligibility
from taurank.data.ids import Catalog, Ids
from taurank.data.log import Log
from taurank.errors import InputError
from taurank.estimation.folds import Folds
from taurank.estimation.propensity import AdditiveModel, fill_in
from taurank.estimation.propensity import cells as propensity_cells


def fit_additive(log: Log, random_state: int = 0, folds: Any = 5, regularization: Any = 1.0) -> AdditiveModel:
    model = propensity.fit(log, random_state, folds, regularization, model="additive")
    assert isinstance(model, AdditiveModel)
    return model


def draw(shape: tuple[int, int, int], seed: int, base: float = -1.0, spread: float = 1.0) -> Any:
    rng = np.random.default_rng(seed)
    effects = [rng.normal(0.0, spread, n) for n in shape]
    log_odds = base + effects[0][:, None, None] + effects[1][None, :, None] + effects[2]
    return rng.random(shape) < expit(log_odds)


def dense_fit(treated: Any, seen: Any, ridge: float) -> Any:
    """The objective of ``fit`` written out over all cells and given to a general optimizer."""
    n_users, n_items, n_times = treated.shape
    sizes = [1, n_users, n_items, n_times]
    free = np.repeat([True, n_users > 1, n_items > 1, n_times > 1], sizes)  # a single one has no effect

    def loss(x: Any) -> Any:
        x = x * free
        b, a, c, d = np.split(x, np.cumsum(sizes[:-1]))
        eta = b[0] + a[:, None, None] + c[None, :, None] + d
        value = (seen * (np.logaddexp(0, eta) - treated * eta)).sum() + ridge / 2 * (x[1:] ** 2).sum()
        rest = seen * (expit(eta) - treated)
        slope = np.concatenate([[rest.sum()], rest.sum((1, 2)), rest.sum((0, 2)), rest.sum((0, 1))])
        slope += np.concatenate([[expit(b[0]) - 0.5], ridge * x[1:]])
        return value + np.logaddexp(0, b[0]) - 0.5 * b[0], slope * free

    options = {"ftol": 1e-15, "gtol": 1e-9, "maxiter": 5000}
    return minimize(loss, np.zeros(sum(sizes)), jac=True, method="L-BFGS-B", options=options).x


@pytest.mark.parametrize("ridge", [0.1, 1.0, 30.0])
@pytest.mark.parametrize(("shape", "folds"), [((12, 9, 4), 5), ((7, 11, 1), 3), ((40, 2, 3), 2)])
def test_agrees_with_the_dense_fit(shape: tuple[int, int, int], folds: int, ridge: float) -> None:
    treated = draw(shape, seed=3)
    model = fit_additive(dense_log(treated), random_state=0, folds=folds, regularization=ridge)
    fold = model.folds.at(*np.indices(shape))
    for k in range(folds):
        effects = np.concatenate([model.user_effect[k], model.item_effect[k], model.time_effect[k]])
        expected = dense_fit(treated, fold != k, ridge)
        np.testing.assert_allclose(effects, expected[1:], atol=1e-5)
        np.testing.assert_allclose(model.intercept[k], expected[0], atol=1e-5)


def test_in_every_decile_the_mean_estimate_is_the_share_treated() -> None:
    world = tr.World.synthetic(200, 150, random_state=0)
    log = world.sample(times=10, random_state=1).log
    model = fit_additive(log, random_state=2)
    treated = np.zeros((200, 150, 10), np.int8)
    treated[log.user, log.item, log.time] = log.treated
    estimate = model.at(*np.indices(treated.shape)).ravel()
    order = np.argsort(estimate, kind="stable")
    gaps = [estimate[part].mean() - treated.ravel()[part].mean() for part in np.array_split(order, 10)]
    assert np.abs(gaps).max() < 0.02
    assert estimate[order[-1000:]].mean() > 2 * estimate[order[:1000]].mean()  # it does tell cells apart


def test_a_sample_of_a_large_grid_estimates_what_all_cells_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weighted draws add less error than the few treated cells of a user leave anyway."""
    log = dense_log(draw((300, 100, 4), seed=3, base=-3.0))
    whole = fit_additive(log, random_state=0)
    monkeypatch.setattr(propensity_cells, "MAX_CELLS", 50_000)
    for name, n in (("EVEN", 10_000), ("BY_PROPOSAL", 25_000), ("BY_PAST", 15_000)):
        monkeypatch.setattr(propensity_cells, name, n)
    sampled = fit_additive(log, random_state=0)
    cells = np.indices((300, 100, 4))
    gap = np.log(sampled.at(*cells) / whole.at(*cells))
    assert abs(gap.mean()) < 0.03
    assert gap.std() < 0.2  # a user has some 20 treated cells: an error of 0.22 in any case


def written_out(log: Log, folds: Folds, fold: int) -> tuple[Any, Any]:
    """The cells outside a fold by user and by item, one after the other."""
    users, items = np.zeros(log.n_users), np.zeros(log.n_items)
    for cell in np.ndindex(log.n_users, log.n_items, log.n_times):
        if log.eligibility.contains(*cell) and folds.at(*cell) != fold:
            users[cell[0]] += 1
            items[cell[1]] += 1
    return users, items


TABLES: dict[str, Any] = {
    "everything": (None, None),
    "visits": (([0, 0, 1, 3, 5], [0, 4, 2, 1, 4]), None),
    "candidates": (None, (None, [0, 1, 2, 2, 4], [0, 0, 1, 4, 4])),
    "both": (([0, 0, 1, 3, 5], [0, 4, 2, 1, 4]), (None, [0, 1, 2, 2, 4], [0, 0, 1, 4, 4])),
    "listed": (None, ([0, 0, 1, 3, 5, 5], [4, 2, 2, 0, 1, 3], [0, 4, 2, 1, 4, 0])),
}


@pytest.mark.parametrize("tables", TABLES)
def test_cells_outside_a_fold_agree_with_cells_written_out(tables: str) -> None:
    log: Any = dense_log(np.ones((6, 5, 5), np.int8))
    log = replace(log, eligibility=Eligibility.from_positions(log.catalog, *TABLES[tables]))
    folds = Folds.from_times(log.eligibility.shape, 3)
    for fold in range(3):
        outside, expected = folds.cells_outside(log.eligibility, fold), written_out(log, folds, fold)
        np.testing.assert_array_equal(np.concatenate(outside), np.concatenate(expected))


def test_folds_are_blocks_of_users_or_times_or_equal_random_shares() -> None:
    by_user = Folds.from_users((5, 3, 4), 10)
    assert by_user.count == 5
    np.testing.assert_array_equal(by_user.at(np.arange(5), 2, 3), np.arange(5))
    by_time = Folds.from_times((5, 3, 4), 2)
    np.testing.assert_array_equal(by_time.at(4, 2, np.arange(4)), [0, 0, 1, 1])
    np.testing.assert_array_equal(by_time.times(1), [2, 3])
    one, other = (Folds.from_random((50, 40, 10), 5, np.random.default_rng(seed)) for seed in (0, 1))
    fold, elsewhere = (folds.at(*np.indices((50, 40, 10))) for folds in (one, other))
    np.testing.assert_array_equal(np.bincount(fold.ravel()), np.full(5, 4000))
    assert (fold != elsewhere).mean() > 0.5
    at_one_time = Folds.from_random((50, 40, 1), 5, np.random.default_rng(0))
    users, items = at_one_time.cells_outside(dense_log(np.ones((50, 40, 1), np.int8)).eligibility, 0)
    np.testing.assert_allclose((users, np.append(items, [40] * 10)), (np.full(50, 32.0), np.full(50, 40.0)))


def test_its_own_treatment_does_not_touch_a_cells_propensity() -> None:
    treated = draw((30, 20, 5), seed=1)
    rows = treated | (np.random.default_rng(2).random(treated.shape) < 0.3)
    before = propensity.estimate(dense_log(treated, rows=rows), random_state=7, model="additive")
    assert before.propensity is not None
    for row in (0, 100, 500, len(before) - 1):
        cell = (before.user[row], before.item[row], before.time[row])
        flipped = treated.copy()
        flipped[cell] = ~flipped[cell]
        after = propensity.estimate(dense_log(flipped, rows=rows), random_state=7, model="additive")
        assert after.propensity is not None
        assert after.propensity[row] == before.propensity[row]
        assert (after.propensity != before.propensity).mean() > 0.5  # the other folds have seen it


def test_absent_rows_are_untreated_rows() -> None:
    treated = draw((25, 16, 4), seed=5)
    sparse, dense = (fit_additive(dense_log(treated, rows=rows), 3) for rows in (None, np.ones_like(treated)))
    cells = np.indices(treated.shape)
    np.testing.assert_array_equal(sparse.at(*cells), dense.at(*cells))


def test_estimates_stay_inside_their_bounds() -> None:
    treated = np.zeros((400, 300, 2), bool)
    treated[:3] = True  # three users are shown everything, the others nothing
    estimate = fit_additive(dense_log(treated), random_state=0, regularization=0.01).at(*np.indices(treated.shape))
    assert propensity.BOUND <= estimate.min() < 1e-4
    assert 0.99 < estimate.max() <= 1 - propensity.BOUND


@pytest.mark.parametrize("shape", [(3, 3, 1), (1, 40, 1), (6, 1, 9)])
def test_one_treated_cell_is_enough(shape: tuple[int, int, int]) -> None:
    treated = np.zeros(shape, bool)
    treated[0, 0, 0] = True
    estimate = fit_additive(dense_log(treated), random_state=0).at(*np.indices(shape))
    assert ((estimate > 0) & (estimate < 0.6)).all()


def test_memory_does_not_grow_with_the_grid() -> None:
    rng = np.random.default_rng(0)
    sizes = (200_000, 50_000, 20)
    user, item, time = (rng.integers(0, n, 20_000).astype(np.int32) for n in sizes)
    names = ("user_id", "item_id", "time")
    catalog = Catalog(*(Ids(np.arange(n), name) for n, name in zip(sizes, names, strict=True)))
    log = Log(catalog, user, item, time, np.ones(20_000, np.int8), np.zeros(20_000, np.int8), None)
    tracemalloc.start()
    estimate = propensity.estimate(log, random_state=0, model="additive").propensity
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert estimate is not None
    assert peak < 100e6  # users × items alone would be 10 GB in bytes
    assert estimate.max() < 1e-5


def test_same_seed_same_bits_for_any_number_of_threads() -> None:
    log, estimates = dense_log(draw((100, 100, 2), seed=0)), list[Any]()
    for threads in (1, 3):
        with threadpool_limits(threads):
            both = [propensity.estimate(log, 2, model=m, threads=threads) for m in ("additive", "exposure")]
        estimates.append([one.propensity for one in both])
    np.testing.assert_array_equal(estimates[0], estimates[1])


def test_bad_input_is_refused_with_a_sentence() -> None:
    treated = draw((5, 4, 2), seed=0)
    log, none = dense_log(treated), dense_log(treated & False, rows=treated | True)
    with pytest.raises(InputError, match="'treated' is 0 in all 40 rows"):
        propensity.estimate(none)
    with pytest.raises(InputError, match="'treated' is 1 in all 40 cells"):
        propensity.estimate(dense_log(treated | True))
    for folds in (1, 21, None, 2.0, "5", True, 10**400):
        with pytest.raises(InputError, match="folds must be an integer between 2 and 20"):
            fit_additive(log, folds=folds)
    for regularization in (0.0, -1.0, float("nan"), None, "1", 10**400):
        with pytest.raises(InputError, match="regularization"):
            fit_additive(log, regularization=regularization)
    table: Any = log.to_frame()
    with pytest.raises(InputError, match="log must be a Log, got a DataFrame"):
        propensity.estimate(table)
    model = fit_additive(log)
    with pytest.raises(InputError, match="a log with the catalog of this one"):
        propensity.estimate(dense_log(draw((5, 4, 3), seed=0)), model=model)
    for cells, sentence in (
        (([0, 1], [3, 2, 1], [0, 0]), "same length"),
        (([0, 1], [3, 4], [0, 0]), "item positions must be between 0 and 3; 1 are not, for example 4"),
        ((-1, 0, 0), "user positions must be between"),
        (([0.5], [0], [0]), "user positions must be integers"),
    ):
        with pytest.raises(InputError, match=sentence):
            model.at(*cells)


def partly_recorded(lacking: str, seed: int = 5) -> tuple[Log, Any, Any]:
    """A log whose true propensities follow a taste, and the same with some of them missing."""
    rng = np.random.default_rng(seed)
    effects = [rng.normal(0.0, 1.0, n) for n in (150, 60)]
    log_odds = -1.5 + effects[0][:, None] + effects[1] + rng.normal(0.0, 0.5, (150, 60))
    truth = np.broadcast_to(expit(log_odds)[..., None], (150, 60, 2))
    treated = rng.random(truth.shape) < truth
    log = dense_log(treated, propensity=truth, rows=np.ones_like(treated))
    missing = (log.treated == 0) if lacking == "control" else rng.random(len(log)) < 0.05
    recorded = truth[log.user, log.item, log.time]
    partial = Log.from_frame(log.to_frame().assign(propensity=np.where(missing, np.nan, recorded)))
    return partial, recorded, missing


@pytest.mark.parametrize("lacking", ["some", "control"])
def test_recorded_propensities_stay_and_missing_ones_are_calibrated_on_them(lacking: str) -> None:
    log, truth, missing = partly_recorded(lacking)
    result = propensity.estimate(log, random_state=0, model="additive").propensity
    assert result is not None
    np.testing.assert_array_equal(result[~missing], truth[~missing])
    assert not np.isnan(result).any()
    error = np.sqrt(truth[missing].var() / missing.sum())
    assert result[missing].mean() == pytest.approx(truth[missing].mean(), abs=0.1 * truth[missing].mean() + error)
    replaced = propensity.estimate(log, random_state=0, model="additive", replace=True).propensity
    assert replaced is not None
    assert np.all(replaced[~missing] != truth[~missing])


def test_the_calibration_line_is_found_again() -> None:
    """Estimates that are too extreme and too large are mapped back, also from the other arm."""
    log, truth, missing = partly_recorded("control")
    distorted = expit(0.7 + 1.6 * np.log(truth / (1.0 - truth)))
    filled = fill_in(log, np.clip(distorted, 1e-6, 1 - 1e-6))
    np.testing.assert_allclose(filled[missing], truth[missing], rtol=0.02, atol=1e-3)


def test_a_complete_log_is_estimated_anew_unless_told_to_keep_it() -> None:
    log = dense_log(draw((10, 8, 2), seed=1), propensity=np.full((10, 8, 2), 0.25))
    assert np.all(propensity.estimate(log, random_state=0).propensity != 0.25)
    np.testing.assert_array_equal(propensity.estimate(log, random_state=0, replace=False).propensity, 0.25)
