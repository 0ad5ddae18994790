"""The control variate: unbiased for any c, best for the doubly robust one, and fitted without its own row."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from support.builders import dense_log, synthetic_log
from taurank import InputError, gains
from taurank.estimation.estimators import Estimator, Variate, fit_variate

P, TREATED, CONTROL, DRAWS = 0.2, 0.3, 0.1, 200_000


def corrected(c: float, recorded: float = P) -> np.ndarray:
    """τ̃ of many cells with the same rates, by the estimator and a constant c; all cells have rows."""
    rng = np.random.default_rng(0)
    treated = rng.random((DRAWS, 1, 1)) < P
    outcome = rng.random(treated.shape) < np.where(treated, TREATED, CONTROL)
    log = dense_log(treated, outcome, np.full(treated.shape, recorded), np.ones_like(treated))
    variate = Variate(np.ones((1, DRAWS, 1)), np.full((1, 1, 1), c), np.zeros(1, np.int8))
    return Estimator("DR", variate=variate).values(log, np.arange(DRAWS)) + c


@pytest.mark.parametrize("c", [-1.0, 0.0, 2.0])
def test_any_constant_has_the_mean_right_and_the_doubly_robust_one_the_least_variance(c: float) -> None:
    drawn, best = corrected(c), corrected(TREATED + CONTROL * P / (1 - P))
    for values in (drawn, best):
        assert values.mean() == pytest.approx(TREATED - CONTROL, abs=4.5 * values.std() / DRAWS**0.5)
    assert best.var() < 0.99 * drawn.var()


def test_wrong_propensities_do_no_harm_if_c_is_right() -> None:
    """Doubly robust: with P̂ in the weights and in c, and the right rates, the mean is right all the same."""
    robust, plain = (corrected(c, 0.35) for c in (TREATED + CONTROL * 0.35 / 0.65, 0.0))
    assert robust.mean() == pytest.approx(TREATED - CONTROL, abs=4.5 * robust.std() / DRAWS**0.5)
    assert abs(plain.mean() - (TREATED - CONTROL)) > 0.05


@pytest.mark.parametrize("times", [1, 6])
def test_c_never_sees_its_own_row(times: int) -> None:
    """Turning the outcomes and treatments of a fold around leaves the fold's own c as it is, bit for bit."""
    rng = np.random.default_rng(2)
    shape = (12, 7, times)
    treated, outcome, chance = rng.integers(0, 2, shape), rng.integers(0, 2, shape), rng.uniform(0.2, 0.8, shape)
    whole = np.ones(shape, bool)
    log = dense_log(treated, outcome, chance, whole)
    fitted = fit_variate(log, 3)
    fold = fitted.fold_of_time[log.time] if fitted.fold_of_user is None else fitted.fold_of_user[log.user]
    for own in range(fitted.folds):
        here = fold == own
        flipped = replace(log, treated=np.where(here, 1 - log.treated, log.treated).astype(np.int8))
        flipped = replace(flipped, outcome=np.where(here, 1 - log.outcome, log.outcome).astype(np.int8))
        cells = log.user[here], log.item[here], log.time[here]
        np.testing.assert_array_equal(fit_variate(flipped, 3).at(*cells), fitted.at(*cells))
        assert not np.array_equal(fit_variate(flipped, 3).at(log.user, log.item, log.time),
                                  fitted.at(log.user, log.item, log.time))  # fmt: skip


def test_c_is_the_product_of_its_factors() -> None:
    rng = np.random.default_rng(3)
    fitted = Variate(rng.random((2, 4, 2)), rng.random((2, 3, 2)), np.array([0, 1, 1]))
    cells = (np.array([3, 0]), np.array([1, 2]), np.array([2, 0]))
    expected = [
        fitted.user_factor[1, 3] @ fitted.item_factor[1, 1],
        fitted.user_factor[0, 0] @ fitted.item_factor[0, 2],
    ]
    np.testing.assert_allclose(fitted.at(*cells), expected)


def test_gains_hold_the_logged_rows() -> None:
    log = synthetic_log()
    made = gains.doubly_robust(log)
    assert made.estimator is not None
    assert made.estimator.variate is not None
    assert len(made) == np.count_nonzero(log.treated | log.outcome)
    assert gains.recommended(log).name == "doubly_robust"
    assert fit_variate(synthetic_log(users=3, items=8, times=1), folds=5).folds == 3  # few users at one time
    assert gains.snips(log).estimator is not None
    assert made.where(lambda value: value > 0).estimator is None  # no longer the estimate


def test_bad_arguments() -> None:
    log = synthetic_log()
    with pytest.raises(InputError, match="folds must be an integer between 2 and 20, got 1"):
        gains.doubly_robust(log, folds=1)
    with pytest.raises(InputError, match="doubly robust estimator needs the column 'propensity'"):
        gains.doubly_robust(replace(log, propensity=None))
    tiny = replace(log, propensity=np.full(len(log), 1e-310))
    with pytest.raises(InputError, match="too small to be inverted"):
        Estimator("IPS").values(tiny, np.flatnonzero(tiny.treated))
