"""EmpiricalBayes with eligibility tables, with new rows and with new users; calibration by simulation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest

import taurank.learners.empirical_bayes.learner as learner_module
from support.builders import eligible_log
from taurank import EmpiricalBayes, Features, InputError, Log, World
from taurank.data.eligibility import Eligibility
from taurank.learners.empirical_bayes.choice import HeldOut
from taurank.learners.empirical_bayes.grid import Base, Patterns, make_grid, posteriors
from taurank.learners.pairs import count

PRIORS: list[tuple[str, int]] = [("item", 20), ("exposure", 20), ("propensity", 20), ("taste", 3)]
N_USERS, N_ITEMS = 60, 15


def learner(prior: str, rank: int = 20) -> EmpiricalBayes:
    return EmpiricalBayes(prior=prior, rank=rank, strength=20.0, threads=1)


def scores(model: EmpiricalBayes) -> npt.NDArray[np.float32]:
    return model.score_block(np.arange(len(model.users), dtype=np.int32))


@pytest.fixture(scope="module")
def world() -> World:
    return World.synthetic(N_USERS, N_ITEMS, 0, rank=2)


@pytest.fixture(scope="module")
def log(world: World) -> Log:
    return world.sample(5, random_state=1).log


def dense_chances(log: Log) -> npt.NDArray[np.bool_]:
    assert log.eligibility is not None
    return log.eligibility.contains(*np.indices((log.n_users, log.n_items, log.n_times)))


@pytest.mark.parametrize("listed", [False, True])
def test_chances_are_the_eligible_cells(log: Log, listed: bool) -> None:
    some = eligible_log(log, listed)
    chances = dense_chances(some)
    held_out = HeldOut.of(some)
    for pairs, cells in ((count(some), chances), (held_out.pairs, chances[:, :, :-1])):
        assert pairs.chances.tolist() == cells.sum(2)[pairs.user, pairs.item].tolist()
        assert pairs.item_cells == pytest.approx(cells.sum((0, 2)))
        assert pairs.user_cells == pytest.approx(cells.sum((1, 2)))
        total = pairs.by_item(pairs.chances) + pairs.absent() * pairs.absent_chances()
        assert total == pytest.approx(pairs.item_cells)
    blocks = list(held_out.blocks())
    assert np.array_equal(np.concatenate([block.eligible for block in blocks]), chances[:, :, -1])


def test_cells_that_are_not_eligible_are_not_chances(world: World) -> None:
    """Users who are away half of the time buy half as often per time; their rates per visit do not change."""
    long, short = world.sample(8, random_state=3).log, world.sample(4, random_state=3).log
    padded = replace(short, catalog=long.catalog, eligibility=Eligibility.everything(long.catalog))
    visits = (np.repeat(np.arange(N_USERS), 4), np.tile(np.arange(4), N_USERS))
    tabled = replace(padded, eligibility=Eligibility.from_positions(long.catalog, visits))
    for prior, rank in PRIORS:
        fitted = learner(prior, rank).fit(tabled)
        assert scores(fitted) == pytest.approx(scores(learner(prior, rank).fit(short)), abs=1e-5)
    assert not np.allclose(scores(learner("item").fit(padded)), scores(learner("item").fit(short)))


def parts(world: World) -> tuple[Log, Log]:
    """Rows of four times, and of two later ones that bring new users and items."""
    frame = world.sample(6, random_state=5).log.to_frame()
    early = (frame["time"] < 4) & (frame["user_id"] < 50) & (frame["item_id"] < 13)
    return Log.from_frame(frame[early]), Log.from_frame(frame[frame["time"] >= 4])


def test_an_update_leaves_the_choice_as_it_was(world: World) -> None:
    past, news = parts(world)
    model = EmpiricalBayes(threads=1, rank=3).fit(past)
    chosen = model.chosen_
    assert model.update(news).chosen_ == chosen


def test_what_new_rows_must_have_is_said_in_one_sentence(world: World) -> None:
    past, news = parts(world)
    model, without = learner("propensity").fit(past), replace(news, propensity=None)
    for extend in (model.fold_in, model.update):
        with pytest.raises(InputError, match="propensit"):
            extend(without)


def test_propensities_that_some_rows_lack_are_not_used(log: Log) -> None:
    assert log.propensity is not None
    some = log.propensity.copy()
    some[::7] = np.nan
    partly, without = (EmpiricalBayes(threads=1, rank=3).fit(replace(log, propensity=p)) for p in (some, None))
    assert (scores(partly) == scores(without)).all()


# large logs


@pytest.mark.parametrize("featured", [False, True])
def test_every_nth_user_of_a_large_log_decides(log: Log, monkeypatch: pytest.MonkeyPatch, featured: bool) -> None:
    monkeypatch.setattr(learner_module, "MIN_USERS", log.n_users // 3)
    monkeypatch.setattr(learner_module, "MIN_ROWS", len(log) // 3)
    table = pd.DataFrame({"user_id": np.arange(log.n_users), "age": np.arange(log.n_users) % 5})
    features, of_third = (Features(users=each) if featured else None for each in (table, table[::3]))
    model = EmpiricalBayes(threads=1, rank=3).fit(log, features=features)
    third = EmpiricalBayes(threads=1, rank=3).fit(log.select(users=np.arange(0, log.n_users, 3)), features=of_third)
    assert model.likelihoods_ == third.likelihoods_
    assert model.counts_.n_users == log.n_users  # all users are fitted


# calibration


def test_posteriors_under_a_known_prior_are_calibrated() -> None:
    """Rates drawn from the prior: E[effect | score] is the score, and (effect − score) / deviation has variance 1."""
    rng, grid, n = np.random.default_rng(0), make_grid(8, 0.02, 0.7), 40_000
    rates = grid.rates
    prior = rng.dirichlet(np.full(64, 0.3)).reshape(8, 8)
    cell = rng.choice(64, n, p=prior.ravel())
    treated, control = rates[cell // 8], rates[cell % 8]
    trials = rng.integers(0, 9, n)
    table = np.stack((trials, rng.binomial(trials, treated), 8 - trials, rng.binomial(8 - trials, control)))
    patterns = Patterns.of(np.array([0, n]), table.astype(np.int32), np.zeros(n), rates)
    means = np.array([[prior.sum(1) @ rates, prior.sum(0) @ rates]])
    base = Base(prior[None], np.zeros(1, np.int64), means, 1.0, np.zeros(1, np.bool_))
    moments = posteriors(patterns, base, 0, grid)
    score, effect = moments[:, 0] - moments[:, 1], treated - control
    deviation = np.sqrt(moments[:, 2] - score**2)
    assert_calibrated(score, deviation, effect)


def assert_calibrated(score: Any, deviation: Any, effect: Any) -> None:
    """Slope and variance within four standard errors of 1."""
    centered = score - score.mean()
    slope = centered @ effect / (centered @ centered)
    error = np.sqrt(np.sum(centered**2 * (effect - effect.mean() - slope * centered) ** 2)) / (centered @ centered)
    assert slope == pytest.approx(1.0, abs=4 * error)
    squares = ((effect - score) / deviation) ** 2
    assert squares.mean() == pytest.approx(1.0, abs=4 * squares.std() / np.sqrt(len(squares)))
