"""The link from taste to rates, against a regression over all pairs, one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.optimize import minimize

from taurank import Log, World
from taurank.learners.empirical_bayes import taste as links
from taurank.learners.empirical_bayes.taste import Taste, fit_taste
from taurank.learners.pairs import Pairs, count

Floats = npt.NDArray[np.float64]


@pytest.fixture(scope="module")
def log() -> Log:
    return World.synthetic(300, 60, 3, rank=2).sample(4, random_state=4).log


@pytest.fixture(scope="module")
def pairs(log: Log) -> Pairs:
    return count(log)


@pytest.fixture(scope="module")
def learned(pairs: Pairs) -> tuple[Taste, Floats]:
    prior = fit_taste(pairs, 3, 1.0)
    return prior.taste, prior.left_out


def every_pair(log: Log, pairs: Pairs, learned: tuple[Taste, Floats], arm: int) -> tuple[Floats, Floats, Floats]:
    """x·v, trials and purchases of all users × items in one arm."""
    taste, left_out = learned
    shown, bought = np.zeros((2, log.n_users, log.n_items))
    np.add.at(shown, (log.user, log.item), log.treated)
    np.add.at(bought, (log.user, log.item), log.outcome * (log.treated == 1 - arm))
    trials = shown if arm == 0 else log.n_times - shown
    product = taste.users @ taste.items[:, arm].T
    for pair, (u, i) in enumerate(zip(pairs.user, pairs.item, strict=True)):
        if pairs.treated[pair] or pairs.control_positives[pair]:
            product[u, i] = left_out[pair, arm]
    return product, trials, bought


@pytest.mark.parametrize("arm", [0, 1])
def test_a_poisson_regression_over_all_pairs(log: Log, pairs: Pairs, learned: tuple[Taste, Floats], arm: int) -> None:
    product, trials, bought = every_pair(log, pairs, learned, arm)
    taste = learned[0]
    z = np.log(np.clip(product, 0.02, 50.0))
    offset = trials * taste.means[:, arm]

    def minus_likelihood(coefficients: Floats) -> float:
        log_level = coefficients[0] + coefficients[1] * z + coefficients[2] * z**2
        pull = 0.5 * ((coefficients - [0.0, 1.0, 0.0]) ** 2).sum()
        return float((offset * np.exp(log_level) - bought * log_level).sum() + pull)

    expected = minimize(minus_likelihood, [0.0, 1.0, 0.0], method="BFGS").x
    assert taste.link[arm] == pytest.approx(expected, abs=0.02)
    # as many purchases as there were, which least squares alone does not promise
    assert (offset * links.level(taste.link[arm], product)).sum() == pytest.approx(bought.sum(), rel=0.01)


def test_a_sample_of_users_stands_for_all(pairs: Pairs, learned: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    taste, left_out = learned
    monkeypatch.setattr(links, "SAMPLED_USERS", 100)
    sampled = links.fit_link(pairs, taste.users, taste.items, taste.means, left_out)
    assert sampled == pytest.approx(taste.link, abs=0.1)


def test_without_purchases_the_link_is_straight() -> None:
    assert links._regress(np.zeros((3, 65))) == pytest.approx([0.0, 1.0, 0.0])
    assert links.level(links.STRAIGHT, np.array([-1.0, 0.5, 3.0])) == pytest.approx([0.02, 0.5, 3.0])


coefficient = st.floats(-3.0, 3.0)


@example(0.0, 0.0, -9e-10)
@given(coefficient, coefficient, coefficient)
def test_a_level_never_falls_and_stays_in_its_range(a: float, b: float, c: float) -> None:
    levels = links.level(np.array([a, b, c]), np.linspace(-1.0, 100.0, 200))
    assert (np.diff(levels) >= -1e-9 * levels[1:]).all()
    assert levels[0] >= links.LEAST * (1 - 1e-12)
    assert levels[-1] <= links.HIGHEST * (1 + 1e-12)
