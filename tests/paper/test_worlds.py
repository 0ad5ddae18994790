"""The limits against their formulas, and what methods aim at against the mean of their weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from taurank import Log, World, evaluate
from taurank.learners import LEARNERS
from taurank_paper.worlds import TARGETS, target_scores, ten_weeks_scores, truth_scores


def oracle(world: World, log: Log) -> npt.NDArray[np.float64]:
    """Σ_v (μ^T_vi − μ^C_vi) L_vi / Σ_v L_vi, pair by pair."""
    treated_rate, control_rate = world.treated_rate.astype(np.float64), world.control_rate.astype(np.float64)
    scores = np.empty(treated_rate.shape)
    for u, i in np.ndindex(scores.shape):
        mine = (log.user == u) & (log.item == i)
        z, y = log.treated[mine], log.outcome[mine]
        n_treated, y_treated, y_control = z.sum(), (z * y).sum(), ((1 - z) * y).sum()
        likelihood = binom.pmf(y_treated, n_treated, treated_rate[:, i])
        likelihood = likelihood * binom.pmf(y_control, log.n_times - n_treated, control_rate[:, i])
        effect = treated_rate[:, i] - control_rate[:, i]
        scores[u, i] = (effect * likelihood).sum() / likelihood.sum()
    return scores


def random_world(shape: tuple[int, int], seed: int, edges: bool) -> World:
    """Rates anywhere in [0, 1], also exactly at its ends."""
    rng = np.random.default_rng(seed)
    rates = rng.random((3, *shape))
    if edges:
        rates[:2] = np.clip(2.0 * rates[:2] - 0.5, 0.0, 1.0)
    return World(rates[0], rates[1], rates[2], np.arange(shape[0]), np.arange(shape[1]))


@settings(max_examples=40, deadline=None)
@given(
    shape=st.tuples(st.integers(1, 6), st.integers(1, 4)),
    times=st.integers(1, 12),
    seed=st.integers(0, 10_000),
    edges=st.booleans(),
)
def test_agrees_with_the_formula(shape: tuple[int, int], times: int, seed: int, edges: bool) -> None:
    world = random_world(shape, seed, edges)
    log = world.sample(times, random_state=seed).log
    np.testing.assert_allclose(ten_weeks_scores(world, log), oracle(world, log), rtol=1e-9, atol=1e-12)


def test_many_observations_come_near_the_truth() -> None:
    """Thousands of times: likelihoods below any float, so that they must be scaled before they are divided."""
    world = random_world((5, 3), 2, edges=False)
    scores = ten_weeks_scores(world, world.sample(20_000, random_state=0).log)
    np.testing.assert_allclose(scores, truth_scores(world), atol=1e-6)


def test_truth_is_above_ten_weeks_and_ten_weeks_above_counting() -> None:
    from taurank import CountingBayes

    world = World.synthetic(400, 80, random_state=0, effect_spread=1.0)
    log, truth = world.sample(10, random_state=1).log, world.sample(30, random_state=2).truth
    rankers: list[Any] = [CountingBayes().fit(log), ten_weeks_scores(world, log), truth_scores(world)]
    counting, ten_weeks, best = (evaluate(ranker, truth, "CDCG")["CDCG"].mean for ranker in rankers)
    assert counting < ten_weeks < best


@pytest.mark.parametrize("method", TARGETS)
def test_a_target_is_the_mean_of_a_methods_weights(method: str) -> None:
    world, times = random_world((3, 4), 7, edges=False), 40_000
    kind: Any = LEARNERS[method]
    learner = kind(cap=0.4) if method in ("dlto", "dlce") else kind()
    weights = learner.gains(world.sample(times, random_state=1).log)
    found = np.zeros((3, 4))
    np.add.at(found, (weights.user, weights.item), weights.value)
    np.testing.assert_allclose(found / times, target_scores(method, world, 0.4), atol=0.04)


def test_without_a_cap_the_target_of_dlce_is_the_truth_and_a_cap_hides_what_is_hardly_seen() -> None:
    world = random_world((5, 6), 3, edges=True)
    np.testing.assert_allclose(target_scores("dlce", world), truth_scores(world), atol=1e-12)
    sure = World(world.treated_rate, world.control_rate, np.ones((5, 6)), world.users, world.items)
    np.testing.assert_allclose(target_scores("dlce", sure, 0.01), world.treated_rate, atol=1e-3)
