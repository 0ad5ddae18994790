"""EmpiricalBayes chapter by chapter against slow twins, and its promises by simulation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest
from scipy.special import comb, expit

import taurank.learners.empirical_bayes.counted as counted_module
import taurank.learners.empirical_bayes.latent as latent_module
from support.builders import eligible_log
from taurank import CountingBayes, EmpiricalBayes, InputError, Log, World
from taurank.learners.empirical_bayes.choice import (
    PULL_EFFECTS,
    PULL_LEVELS,
    TOP,
    HeldOut,
    log_likelihood,
    weights_of_effects,
)
from taurank.learners.empirical_bayes.counted import CountPrior, Groups, item_rates, paired_rates
from taurank.learners.empirical_bayes.grid import (
    Base,
    Patterns,
    fit_priors,
    fit_shapes,
    make_grid,
    posteriors,
    tilt,
)
from taurank.learners.empirical_bayes.latent import fit_latent
from taurank.learners.pairs import count

Floats = npt.NDArray[np.float64]
GRID = make_grid(6, 0.01, 0.9)
RATES = GRID.rates
FIXED = [("item", 20), ("exposure", 20), ("propensity", 20), ("taste", 3)]


@pytest.fixture(scope="module")
def world() -> World:
    """Rates that differ between pairs and items, and in which the user has no part."""
    rng, shape = np.random.default_rng(0), (400, 40)
    level = rng.uniform(0.02, 0.25, shape[1])
    control = rng.beta(2 * level / 0.25, 2 * (1 - level) / 0.25, shape)
    treated = np.clip(control + rng.beta(1.0, 6.0, shape) - 0.05, 0.001, 0.999)
    propensity = np.broadcast_to(rng.uniform(0.2, 0.6, shape[1]), shape)
    return World(treated, control, propensity, *map(np.arange, shape))


@pytest.fixture(scope="module")
def log(world: World) -> Log:
    return world.sample(8, random_state=1).log


@pytest.fixture(scope="module")
def low_rank_log() -> Log:
    return World.synthetic(300, 60, 3, rank=2).sample(4, random_state=4).log


def fixed(prior: str, rank: int = 20, strength: float = 20.0) -> EmpiricalBayes:
    return EmpiricalBayes(prior=prior, rank=rank, strength=strength, threads=1)


def all_scores(learner: EmpiricalBayes, n_users: int) -> npt.NDArray[np.float32]:
    return learner.score_block(np.arange(n_users, dtype=np.int32))


# counts


def test_counts_without_the_last_time_row_by_row(low_rank_log: Log) -> None:
    """A pair that has rows at the last time alone has their propensity, and no counts."""
    log, held_out = low_rank_log, HeldOut.of(low_rank_log)
    pairs, seen, held = held_out.pairs, dict[Any, Any](), dict[Any, Any]()
    assert log.propensity is not None
    for u, i, t, z, y, p in zip(log.user, log.item, log.time, log.treated, log.outcome, log.propensity, strict=True):
        if t == log.n_times - 1:
            held[u, i] = z, y, p
        else:
            seen.setdefault((u, i), []).append((1, z, z * y, (1 - z) * y, p))
    keys = list(zip(pairs.user, pairs.item, strict=True))
    assert keys == sorted(seen.keys() | held.keys())
    sums = np.array([np.sum(seen.get(key, [[0] * 5]), axis=0) for key in keys])
    for k, column in enumerate((pairs.rows, pairs.treated, pairs.treated_positives, pairs.control_positives)):
        assert column.tolist() == sums[:, k].tolist()
    for block in held_out.blocks():
        for at, u in enumerate(block.users):
            for i in range(log.n_items):
                assert (block.treated[at, i], block.positive[at, i]) == held.get((u, i), (0, 0, 0))[:2]
    means = [
        total / rows if rows else held[key][2] for key, rows, total in zip(keys, sums[:, 0], sums[:, 4], strict=True)
    ]
    assert pairs.propensity == pytest.approx(means, rel=1e-5)


def test_one_time_tells_nothing_about_the_choice() -> None:
    """Nothing can be held out, and propensities, here pure noise, would leak which pairs were shown or bought."""
    rng = np.random.default_rng(0)
    rates = rng.uniform(0.05, 0.3, (60, 20))
    log = (
        World(rates, 0.5 * rates, np.full((60, 20), 0.3), np.arange(60), np.arange(20)).sample(1, random_state=1).log
    )
    noise = replace(log, propensity=rng.uniform(0.01, 0.99, len(log)))
    learner, other = (EmpiricalBayes(threads=1).fit(one) for one in (log, noise))
    assert (learner.chosen_, learner.likelihoods_, learner.weights_.tolist()) == ("item", {}, [0.5, 0.5])
    assert np.array_equal(all_scores(learner, 60), all_scores(other, 60))


def test_absent_pairs_are_spread_over_propensities_without_bias() -> None:
    """Pairs of propensity .03 and .3, half of each: Horvitz and Thompson's weights find how many were missed."""
    rng = np.random.default_rng(0)
    n_users, n_items = 4000, 3
    propensity = np.where(rng.random((n_users, n_items)) < 0.5, 0.03, 0.3)
    rates = np.full((n_users, n_items), 1e-7)
    world = World(rates, rates, propensity, np.arange(n_users), np.arange(n_items))
    groups = Groups.of(count(world.sample(5, 1).log, propensity=True), "propensity")
    missed = {0.03: 2000 * 0.97**5, 0.3: 2000 * 0.7**5}
    absent = groups.share * groups.absent[:, None]
    assert absent[:, 1] == pytest.approx(missed[0.03], rel=0.1)
    assert absent[:, 3] == pytest.approx(missed[0.3], rel=0.1)


# grid


def some_patterns(seed: int = 0, times: int = 4) -> Patterns:
    rng = np.random.default_rng(seed)
    every = [(n, y, times - n, c) for n in range(times + 1) for y in range(n + 1) for c in range(times - n + 1)]
    counts = np.array(every, np.int32).T.copy()
    return Patterns.of(np.array([0, len(every)]), counts, rng.exponential(10.0, len(every)), RATES)


def base_of(start: Floats, means: Floats, pull: float) -> Base:
    return Base(start, np.zeros(1, np.int64), means, pull, np.zeros(1, np.bool_))


def dense_likelihood(patterns: Patterns, rates: Floats) -> Floats:
    n, y, m, c = patterns.counts[:, :, None, None]
    a, b = rates[None, :, None], rates[None, None, :]
    return np.asarray(a**y * (1 - a) ** (n - y) * b**c * (1 - b) ** (m - c))


@pytest.mark.parametrize("pull", [1e-6, 25.0])
@pytest.mark.parametrize("independent", [False, True])
def test_the_prior_maximizes_the_penalized_likelihood(independent: bool, pull: float) -> None:
    """Against plain EM, of φ or of its two margins, step by step with dense arrays, until nothing moves."""
    patterns, rng = some_patterns(), np.random.default_rng(1)
    start = rng.dirichlet(np.ones(36)).reshape(6, 6)
    if independent:
        start = np.outer(start.sum(1), start.sum(0))
    base = base_of(start[None], np.array([means_of(start)]), pull)._replace(independent=np.array([independent]))
    prior = fit_priors(patterns, base, 5000, GRID)[0]
    likelihood, weight, twin = dense_likelihood(patterns, RATES), patterns.weight, start.copy()

    def objective(phi: Floats) -> float:
        return float(weight @ np.log((likelihood * phi).sum((1, 2)))) + pull * float((start * np.log(phi)).sum())

    for _ in range(3000):
        share = likelihood * twin / (likelihood * twin).sum((1, 2), keepdims=True)
        after = ((weight[:, None, None] * share).sum(0) + pull * start) / (weight.sum() + pull)
        twin = np.maximum(np.outer(after.sum(1), after.sum(0)) if independent else after, 1e-12)
    assert objective(prior) == pytest.approx(objective(twin), abs=1e-2)
    if independent:
        assert prior == pytest.approx(np.outer(prior.sum(1), prior.sum(0)), abs=1e-9)
    if pull > 1:
        assert prior == pytest.approx(twin, abs=2e-3)


def test_posterior_moments_are_sums_over_the_grid() -> None:
    patterns, prior = some_patterns(), np.random.default_rng(2).dirichlet(np.ones(36)).reshape(6, 6)
    means = np.array([[(prior.sum(1) * RATES).sum(), (prior.sum(0) * RATES).sum()]])
    moments = posteriors(patterns, base_of(prior[None], means, 1.0), 0, GRID)
    weight = dense_likelihood(patterns, RATES) * prior
    weight /= weight.sum((1, 2), keepdims=True)
    a, b = RATES[:, None], RATES[None, :]
    expected = np.stack([(weight * value).sum((1, 2)) for value in (a + 0 * b, b + 0 * a, (a - b) ** 2)], 1)
    assert moments == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("saturation", [np.inf, 0.1])
@pytest.mark.parametrize("goal", [(0.05, 0.02), (0.6, 0.1), (0.3, 0.7)])
def test_a_tilted_prior_has_the_means_it_was_given(goal: tuple[float, float], saturation: float) -> None:
    parent = np.random.default_rng(3).dirichlet(np.ones(36)).reshape(6, 6)
    tilted = tilt(parent, make_grid(6, 0.01, 0.9, saturation), np.array(goal), np.zeros(2))
    assert means_of(tilted) == pytest.approx(goal, rel=1e-5)
    change = np.log(tilted / parent)  # additive in k and j: the dependence between the arms is the parent's
    assert change - change[:1] - change[:, :1] + change[0, 0] == pytest.approx(np.zeros((6, 6)), abs=1e-9)
    g = RATES if np.isinf(saturation) else RATES / (RATES + saturation)
    up = np.diff(change[:, 0]) / np.diff(np.log(g))
    assert up == pytest.approx(np.full(5, up[0]), rel=1e-6)


def means_of(prior: Floats) -> tuple[float, float]:
    return float((prior.sum(1) * RATES).sum()), float((prior.sum(0) * RATES).sum())


def test_unreachable_means_give_a_prior_all_the_same() -> None:
    parent = np.full((6, 6), 1e-12)
    parent[0, 0] = 1.0
    tilted = tilt(parent, make_grid(6, 0.01, 0.9, 0.1), np.array([0.9, 1e-9]), np.zeros(2))
    assert np.isfinite(tilted).all()
    assert tilted.sum() == pytest.approx(1.0)


def test_the_prior_of_one_unit_is_its_shape() -> None:
    """A prior of maximum likelihood has the means of its unit, needs no tilt, and stays as it is."""
    patterns, start = some_patterns(), np.random.default_rng(1).dirichlet(np.ones(36)).reshape(1, 6, 6)
    whole, means = np.zeros(1, np.int64), np.array([means_of(start[0])])
    prior = fit_priors(patterns, base_of(start, means, 1e-6), 20_000, GRID)
    shape = fit_shapes(patterns, prior, whole, np.array([means_of(prior[0])]), 1e-6, GRID)
    assert shape == pytest.approx(prior, abs=2e-3)


def test_units_of_a_shape_expect_after_the_counts_what_they_expected_before() -> None:
    """Straight from the equation, with dense arrays: two units with different means and one shape."""
    rng, means = np.random.default_rng(4), np.array([[0.3, 0.1], [0.1, 0.3]])
    counts, truth = some_patterns(times=6).counts, rng.dirichlet(np.ones(36)).reshape(6, 6)
    n, y, m, c = counts
    number = comb(n, y) * comb(m, c)  # of sequences with these counts
    likelihood = dense_likelihood(Patterns.of(np.array([0, counts.shape[1]]), counts, number, RATES), RATES)
    weights = [1000 * number * (likelihood * tilt(truth, GRID, mean, np.zeros(2))).sum((1, 2)) for mean in means]
    patterns = Patterns.of(np.arange(3) * len(number), np.hstack((counts, counts)), np.concatenate(weights), RATES)
    start = np.full((1, 6, 6), 1 / 36)
    (shape,) = fit_shapes(patterns, start, np.zeros(2, np.int64), means, 1e-6, GRID)
    before, after = np.zeros((6, 6)), np.zeros((6, 6))
    for mean, weight in zip(means, weights, strict=True):
        prior = tilt(shape, GRID, mean, np.zeros(2))
        joint = likelihood * prior
        after += (weight[:, None, None] * joint / joint.sum((1, 2), keepdims=True)).sum(0)
        before += weight.sum() * prior
        expected = number * joint.sum((1, 2))
        assert np.abs(expected / expected.sum() - weight / weight.sum()).sum() < 0.02
    assert np.abs(after - before).sum() < 0.01 * before.sum()


# rates


def test_a_unit_with_nothing_in_one_arm_follows_its_other_arm() -> None:
    rng = np.random.default_rng(0)
    z = rng.multivariate_normal([-2.0, -3.0], [[0.8, 0.7], [0.7, 0.8]], 2000)
    expected = np.stack((np.where(np.arange(2000) % 2, 200.0, 0.0), np.full(2000, 400.0)), 1)
    rates = np.log(paired_rates(rng.poisson(expected * np.exp(z)).astype(float), expected))
    missing = expected[:, 0] == 0
    error = (rates - z)[missing, 0]
    assert error.mean() == pytest.approx(0.0, abs=0.06)
    assert error.std() == pytest.approx(np.sqrt(0.8 - 0.7**2 / 0.8), rel=0.15)  # of the conditional normal
    assert (rates - z)[~missing, 0].std() < 0.25


@pytest.mark.parametrize("units", [1, 2])
def test_rates_of_hardly_any_data_are_finite(units: int) -> None:
    for positives in (0.0, 1.0):
        rates = paired_rates(np.full((units, 2), positives), np.full((units, 2), 3.0))
        assert np.isfinite(rates).all()
        assert (rates > 0).all()


# taste


def dense_taste(log: Log, rank: int, sweeps: int, spelled_out: bool) -> tuple[Floats, Floats]:
    """The equations with dense arrays, cell by cell; E[μ^T] and E[μ^C]."""
    pairs, size = count(log), rank + 1
    n_users, n_items = pairs.n_users, pairs.n_items
    n, y = np.zeros((2, 3, n_users, n_items))
    at = pairs.user, pairs.item
    n[2], y[0][at], y[1][at], y[2][at] = pairs.times, pairs.treated_positives, pairs.control_positives, pairs.treated
    n[0], n[1] = y[2], n[2] - y[2]
    absent = np.ones((n_users, n_items), np.bool_)
    absent[at] = False
    absent &= not spelled_out
    rate = (y.sum((1, 2)) + 0.5) / (n.sum((1, 2)) + 1)
    goal = np.zeros((3, size))
    goal[:, 0] = np.log(rate / (1 - rate))
    w, x = np.tile(goal, (n_items, 1, 1)), np.column_stack((np.ones(n_users), latent_module._begin(pairs, rank)))
    xx = x[:, :, None] * x[:, None, :] + 0.1 * np.diag(np.arange(size) > 0)
    ww = w[..., None] * w[..., None, :]
    cov, eta = 0.3 * np.kron(0.8 + 0.2 * np.eye(3), np.eye(size)), np.einsum("ur,iar->aui", x, w)
    own = np.zeros((3, n_items))

    def omega() -> Floats:
        of_cells = np.tanh(np.abs(eta) / 2) / (2 * np.abs(eta))
        square = (np.einsum("iars,urs->ai", ww, xx) - own) / np.maximum(absent.sum(0), 0.5)
        root = np.sqrt(np.maximum(square, 1e-2))
        return np.asarray(n * np.where(absent, (np.tanh(root / 2) / (2 * root))[:, None], of_cells))

    for _ in range(sweeps):
        weight = omega()
        own = (eta**2 * ~absent * ((n > 0) | (np.arange(3) > 0)[:, None, None])).sum(1)
        spread = np.empty((n_items, 3 * size, 3 * size))
        for i in range(n_items):
            precision, right = np.linalg.inv(cov), np.linalg.inv(cov) @ goal.ravel()
            for a in range(3):
                part = slice(a * size, (a + 1) * size)
                precision[part, part] += np.einsum("u,urs->rs", weight[a, :, i], xx)
                right[part] += (y - n / 2)[a, :, i] @ x
            spread[i] = np.linalg.inv(precision)
            w[i] = (spread[i] @ right).reshape(3, size)
        goal = w.mean(0)
        apart = (w - goal).reshape(n_items, -1)
        cov = (apart.T @ apart + spread.sum(0) + 1e-3 * np.eye(3 * size)) / n_items
        own_parts = [spread[:, a * size : (a + 1) * size, a * size : (a + 1) * size] for a in range(3)]
        ww = w[..., None] * w[..., None, :] + np.stack(own_parts, 1)
        eta = np.einsum("ur,iar->aui", x, w)
        weight, v = omega(), np.empty((n_users, rank, rank))
        for u in range(n_users):
            q = np.einsum("ai,iars->rs", weight[:, u], ww)
            h = np.einsum("ai,iar->r", (y - n / 2)[:, u], w)
            v[u] = np.linalg.inv(q[1:, 1:] + np.eye(rank))
            x[u, 1:] = v[u] @ (h[1:] - q[1:, 0])
        xx = x[:, :, None] * x[:, None, :]
        xx[:, 1:, 1:] += v
        mean, turn = x[:, 1:].mean(0), np.eye(size)
        turn[1:, 0] = mean
        turn[1:, 1:] = np.linalg.cholesky((xx.mean(0) - np.outer(x.mean(0), x.mean(0)))[1:, 1:] + 1e-6 * np.eye(rank))
        back = np.linalg.inv(turn)
        x, xx, w, ww = x @ back.T, back @ xx @ back.T, w @ turn, turn.T @ ww @ turn
        goal, whole = goal @ turn, np.kron(np.eye(3), turn.T)
        cov = whole @ cov @ whole.T
        eta = np.einsum("ur,iar->aui", x, w)
    rates = []
    for a in range(2):
        variance = np.einsum("iars,urs->aui", ww[:, a : a + 1], xx)[0] - eta[a] ** 2
        rates.append(expit(eta[a] / np.sqrt(1 + np.pi / 8 * variance)))
    return rates[0], rates[1]


@pytest.mark.parametrize("spelled_out", [True, False])
def test_taste_is_that_of_dense_arrays(spelled_out: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With all pairs, and with those that have rows and one point of the bound for the others of an item."""
    monkeypatch.setattr(latent_module, "SPELLED_OUT", 100 if spelled_out else 0)
    log = World.synthetic(40, 15, 3, rank=2).sample(4, random_state=4).log
    treated, control, _ = fit_latent(count(log), 3, sweeps=3).moments(np.arange(40, dtype=np.int32))
    twin = dense_taste(log, 3, 3, spelled_out)
    assert treated == pytest.approx(twin[0], rel=2e-3)
    assert control == pytest.approx(twin[1], rel=2e-3)


def test_taste_is_calibrated_in_the_world_it_assumes() -> None:
    """Vectors and deviations drawn from the prior: the slope of the effect on the score, and where it counts."""
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((800, 3)), rng.standard_normal((120, 3))
    lift = 0.4 * rng.standard_normal((120, 3))
    control, treated = expit(-2.5 + x @ w.T), expit(-1.8 + x @ (w + lift).T)
    world = World(treated, control, expit(-1 + 0.5 * x @ w.T), np.arange(800), np.arange(120))
    model = EmpiricalBayes(prior="taste", rank=6, threads=1).fit(world.sample(6, 1).log)
    codes = np.arange(800, dtype=np.int32)
    score, effect = model.score_block(codes).astype(np.float64), treated - control
    assert np.polyfit(score.ravel(), effect.ravel(), 1)[0] == pytest.approx(1.0, abs=0.1)
    best = np.argsort(-score, axis=1)[:, :10]
    promised, brought = (np.take_along_axis(each, best, 1).sum() for each in (score, effect))
    assert promised / brought == pytest.approx(1.0, abs=0.15)
    squares = ((effect - score) / model.deviation_block(codes)) ** 2
    assert squares.mean() == pytest.approx(1.0, abs=0.4)


# the learner


def test_rates_are_independent_where_everything_is_treated(world: World) -> None:
    """Half the users are shown everything: their two rates go together only through the item and the group."""
    propensity = np.where(np.arange(400)[:, None] < 200, 0.99999, 0.4) * np.ones((1, 40))
    pairs = count(
        World(world.treated_rate, world.control_rate, propensity, *map(np.arange, (400, 40))).sample(8, 1).log
    )
    groups = Groups.of(pairs, "exposure")
    segments = CountPrior.fit(pairs, groups, item_rates(pairs), 3.0)
    always = groups.share.shape[1] - 1
    assert np.flatnonzero(segments.independent.reshape(40, -1)[0]).tolist() == [always]
    for priors, parent in segments.clusterings:
        for group in range(always + 1):
            phi = priors[parent.reshape(40, -1)[0, group]]
            apart = np.abs(phi - np.outer(phi.sum(1), phi.sum(0))).max()
            assert (apart < 1e-9) == (group == always)


@pytest.mark.parametrize("prior", ["item", "exposure"])
def test_items_that_are_all_alike_leave_clusters_empty(prior: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counted_module, "PAIRS_PER_CLUSTER", 1)
    cells = [(u, i, u % 2, u % 3 == 0) for u in range(30) for i in range(20) if u % 2 or u % 3 == 0]
    log = Log.from_frame(pd.DataFrame(cells, columns=["user_id", "item_id", "treated", "outcome"]))
    scores = all_scores(fixed(prior).fit(log), log.n_users)
    assert scores == pytest.approx(scores[:, :1] * np.ones((1, 20)), abs=1e-5)


@pytest.mark.parametrize(("prior", "rank"), FIXED[:3])
def test_scores_and_deviations_are_calibrated(world: World, log: Log, prior: str, rank: int) -> None:
    learner, codes = EmpiricalBayes(prior=prior, rank=rank, threads=1).fit(log), np.arange(400, dtype=np.int32)
    score, deviation = learner.score_block(codes).ravel(), learner.deviation_block(codes).ravel()
    truth = (world.treated_rate - world.control_rate).ravel()
    slope, level = np.polyfit(score, truth, 1)
    assert slope == pytest.approx(1.0, abs=0.2)
    assert level + slope * score.mean() == pytest.approx(score.mean(), abs=0.01)
    assert np.sqrt(np.mean(((truth - score) / deviation) ** 2)) == pytest.approx(1.0, abs=0.2)
    counting = CountingBayes().fit(log).score_block(codes).ravel()
    assert np.mean((truth - score) ** 2) < 0.8 * np.mean((truth - counting) ** 2)


@pytest.mark.parametrize("tables", ["none", "visits and candidates", "cells"])
def test_likelihood_and_weights_are_sums_over_eligible_cells(low_rank_log: Log, tables: str) -> None:
    """Cell by cell; the weights by least squares with the pull as further rows."""
    log = low_rank_log if tables == "none" else eligible_log(low_rank_log, tables == "cells")
    held_out, last = HeldOut.of(log), log.time == log.n_times - 1
    users, items = np.indices((log.n_users, log.n_items))
    eligible = log.eligibility.contains(users, items, log.n_times - 1)
    z, y = np.zeros((2, log.n_users, log.n_items))
    z[log.user[last], log.item[last]], y[log.user[last], log.item[last]] = log.treated[last], log.outcome[last]
    counts = CountPrior.of(held_out.pairs, "exposure", 10.0)
    priors: list[Any] = [counts, fit_latent(held_out.pairs, 3)]
    rates = [prior.moments(np.arange(log.n_users, dtype=np.int32))[:2] for prior in priors]
    for prior, (treated, control) in zip(priors, rates, strict=True):
        rate = np.where(z == 1, treated, control)
        expected = np.log(np.where(y == 1, rate, 1 - rate))[eligible].mean()
        assert log_likelihood(prior, held_out) == pytest.approx(expected, rel=1e-6)
    mean = np.mean([np.where(z == 1, *each) for each in rates], axis=0)
    columns = [np.ones_like(z), rates[0][1], rates[1][1], z, *(z * (each[0] - each[1]) for each in rates)]
    root = np.sqrt(np.maximum(mean * (1 - mean), 0.002))[eligible]
    pull, half = np.array([PULL_LEVELS] * 3 + [PULL_EFFECTS * 10] + [PULL_EFFECTS] * 2), [0, 0.5, 0.5, 0, 0.5, 0.5]
    design = np.vstack((np.stack([each[eligible] / root for each in columns], 1), np.diag(np.sqrt(pull))))
    right = np.concatenate((y[eligible] / root, np.sqrt(pull) * half))
    solution = np.maximum(np.linalg.lstsq(design, right, rcond=None)[0][-2:], 0)
    solution[solution < 0.2 * solution.max()] = 0
    shares = solution / solution.sum()
    treated, control = np.einsum("k,kaui->aui", shares, np.stack(rates))
    effect = np.where(eligible, treated - control, -np.inf)
    top = eligible & (effect >= np.sort(effect, axis=1)[:, -TOP][:, None])
    mean = np.where(z == 1, treated, control)
    root = np.sqrt(np.maximum(mean * (1 - mean), 0.002))[top]
    columns, pull = [np.ones_like(z), control, z * (treated - control)], np.array([PULL_LEVELS] * 2 + [PULL_EFFECTS])
    design = np.vstack((np.stack([each[top] / root for each in columns], 1), np.diag(np.sqrt(pull))))
    right = np.concatenate((y[top] / root, np.sqrt(pull) * [0, 1, solution.sum()]))
    slope = np.linalg.lstsq(design, right, rcond=None)[0][-1]
    assert weights_of_effects(priors, held_out) == pytest.approx((slope * shares).tolist(), rel=1e-4)


def test_taste_has_weight_where_there_is_some_and_only_there(log: Log) -> None:
    chosen = EmpiricalBayes(threads=1, rank=4).fit(log)
    assert chosen.weights_[1] == 0
    assert chosen.weights_[0] == pytest.approx(1.0, abs=0.15)
    tasty = World.synthetic(500, 100, 5, rank=2).sample(6, random_state=6)
    learner = EmpiricalBayes(threads=1, rank=6).fit(tasty.log)
    assert max(learner.likelihoods_, key=learner.likelihoods_.__getitem__)[0] == "taste"
    assert learner.chosen_ == "propensity"
    assert learner.weights_[1] > 2 * learner.weights_[0]


@pytest.mark.parametrize(("prior", "rank"), [*FIXED, ("auto", 2)])
@pytest.mark.parametrize("rows", [1, 2, 5])
def test_tiny_logs_give_finite_scores(prior: str, rank: int, rows: int) -> None:
    frame = pd.DataFrame({"user_id": range(rows), "item_id": [0] * rows, "treated": [1] + [0] * (rows - 1),
                          "outcome": [1] * rows, "propensity": [0.5] * rows})  # fmt: skip
    log = Log.from_frame(frame, users=range(6), items=range(2))
    learner = EmpiricalBayes(prior=prior, rank=rank, strength=3.0, threads=1).fit(log)
    assert np.isfinite(all_scores(learner, 6)).all()
    assert np.abs(all_scores(learner, 6)).max() <= 1


def test_what_cannot_be_fitted_is_refused_in_one_sentence(log: Log) -> None:
    rows = {"user_id": [1, 2], "item_id": [1, 1], "outcome": [1, 1]}
    with pytest.raises(InputError, match="prior='propensity' needs the column 'propensity'"):
        fixed("propensity").fit(Log.from_frame(pd.DataFrame({**rows, "treated": [1, 0]})))
    valued = replace(log, value=np.full(len(log), 2.5))
    with pytest.raises(InputError, match="cannot weigh them by the column 'value'"):
        EmpiricalBayes().fit(valued)
    with pytest.raises(InputError, match="cannot weigh them by the column 'value'"):
        fixed("item").fit(log).update(valued)
    for wrong in ({"prior": "user"}, {"strength": 0.0}, {"strength": -1.0}, {"rank": 0}, {"threads": 0}):
        with pytest.raises(InputError, match=next(iter(wrong))):
            EmpiricalBayes(**wrong)  # type: ignore[arg-type]


# min_effect
