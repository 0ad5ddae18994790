"""EmpiricalBayes with features: regressions against twins, cold users and items, update, fold-in, files."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest
from scipy.sparse import csr_array
from scipy.special import expit

from taurank import EmpiricalBayes, Features, InputError, Log, Popular, World, load
from taurank.learners.empirical_bayes.counted import paired_rates
from taurank.learners.empirical_bayes.latent import Covariates, fit_latent, goal_of
from taurank.learners.pairs import count, without_cold

N_USERS, N_ITEMS = 400, 80
COLD_USERS, COLD_ITEMS = list(range(0, N_USERS, 10)), list(range(0, N_ITEMS, 10))


def featured_world() -> tuple[World, Features]:
    """Levels, tastes and effects follow from features, but for a little."""
    rng = np.random.default_rng(5)
    x, z = rng.standard_normal((N_USERS, 3)), rng.standard_normal((N_ITEMS, 3))
    taste, lift = (x @ rng.standard_normal((3, 3)) @ z.T / 4 for _ in range(2))
    level = -2.5 + 0.6 * z[:, :1].T + 0.2 * rng.standard_normal((1, N_ITEMS))
    rates = (expit(level + 0.8 + taste + lift), expit(level + taste), np.full(taste.shape, 0.4))
    users = pd.DataFrame(x).add_prefix("x").assign(user_id=range(N_USERS))
    items = pd.DataFrame(z).add_prefix("z").assign(item_id=range(N_ITEMS))
    return World(*rates, np.arange(N_USERS), np.arange(N_ITEMS)), Features(users, items)


@pytest.fixture(scope="module")
def world() -> tuple[World, Features]:
    return featured_world()


@pytest.fixture(scope="module")
def frame(world: tuple[World, Features]) -> pd.DataFrame:
    rows = world[0].sample(6, random_state=1).log.to_frame()
    return rows[~(rows["user_id"].isin(COLD_USERS) | rows["item_id"].isin(COLD_ITEMS))]


@pytest.fixture(scope="module")
def log(frame: pd.DataFrame) -> Log:
    return Log.from_frame(frame, users=range(N_USERS), items=range(N_ITEMS))


@pytest.fixture(scope="module")
def effect(world: tuple[World, Features]) -> npt.NDArray[np.float64]:
    return np.asarray(world[0].treated_rate, np.float64) - world[0].control_rate


def learner(prior: str) -> EmpiricalBayes:
    return EmpiricalBayes(prior=prior, strength=3.0, rank=6 if prior == "taste" else 20, threads=1)


def all_scores(model: EmpiricalBayes) -> npt.NDArray[np.float32]:
    return model.score_block(np.arange(len(model.users), dtype=np.int32))


CELLS = {
    "cold users": (COLD_USERS, range(N_ITEMS)),
    "cold items": (range(N_USERS), COLD_ITEMS),
    "both": (COLD_USERS, COLD_ITEMS),
}


@pytest.mark.parametrize("prior", ["item", "exposure", "propensity", "taste"])
def test_cold_users_and_items_get_effects_in_purchases(prior: str, world: Any, log: Log, effect: Any) -> None:
    """They find the best items, and are effects: right on average, with a slope near 1."""
    model = learner(prior).fit(log, features=world[1])
    scores, blind = all_scores(model), all_scores(learner(prior).fit(log))
    for users, items in CELLS.values():
        cells = np.ix_(users, items)
        mine, true = scores[cells].astype(np.float64), effect[cells]
        assert mine.mean() == pytest.approx(true.mean(), rel=0.15)
        assert np.polyfit(mine.ravel(), true.ravel(), 1)[0] == pytest.approx(1.0, abs=0.25)
        best = np.take_along_axis(true, mine.argmax(1)[:, None], 1).mean()
        without = np.take_along_axis(true, blind[cells].argmax(1)[:, None], 1).mean()
        assert best > 1.5 * true.mean()
        assert best > 1.2 * without


def test_cold_pairs_are_less_certain(world: Any, log: Log) -> None:
    model = learner("taste").fit(log, features=world[1])
    deviation = model.deviation_block(np.arange(N_USERS, dtype=np.int32))
    warm = np.setdiff1d(np.arange(N_USERS), COLD_USERS)
    assert deviation[COLD_USERS].mean() > 1.2 * deviation[warm].mean()


@pytest.mark.parametrize("prior", ["item", "exposure"])
def test_pairs_of_warm_users_and_items_have_the_posterior_of_their_counts(prior: str, world: Any, frame: Any) -> None:
    """Without cold ones, features of users change nothing for priors of counts."""
    log = Log.from_frame(frame)
    featured = learner(prior).fit(log, features=Features(users=world[1].users))
    assert np.array_equal(all_scores(featured), all_scores(learner(prior).fit(log)))


def test_without_rows_means_new_and_not_never_bought(log: Log) -> None:
    pairs = count(log)
    warm = without_cold(pairs, users=True, items=True)
    assert warm.users == len(set(log.user))
    assert (warm.item_cells == np.where(np.isin(np.arange(N_ITEMS), COLD_ITEMS), 0, warm.users * 6)).all()
    assert (warm.user_cells[COLD_USERS] == 0).all()
    assert warm.item_cells.sum() == pytest.approx(warm.user_cells.sum())
    assert without_cold(pairs, users=False, items=False).item_cells == pytest.approx(pairs.item_cells)


# regressions


def test_rates_are_shrunk_toward_the_regression_on_features() -> None:
    """Twin: the stationary point. With z known, B is the ridge regression; z solves its own equation given B."""
    rng = np.random.default_rng(0)
    x = np.column_stack((np.ones(300), rng.standard_normal((300, 2))))
    z = -3 + x[:, 1:] @ np.array([[0.8, 0.3], [-0.5, 0.6]]) + 0.3 * rng.standard_normal((300, 2))
    expected = rng.choice([0.0, 20.0, 2000.0], (300, 1)) * np.ones((300, 2))
    positives = rng.poisson(expected * np.exp(z)).astype(np.float64)
    rates = paired_rates(positives, expected, 300, csr_array(x))
    used = expected[:, 0] > 0
    mode = np.log(rates[used])
    center = mode.mean(0)
    b = np.linalg.solve(x[used].T @ x[used] + np.eye(3), x[used].T @ (mode - center))
    cold = np.log(rates[~used]) - center - x[~used] @ b
    assert cold == pytest.approx(np.broadcast_to(cold[0], cold.shape), abs=1e-6)  # half the variance, for all alike
    assert (cold[0] > 0.02).all()
    plain = paired_rates(positives, expected, 300)
    few = expected[:, 0] == 20.0
    assert np.abs(np.log(rates) - z)[few].mean() < 0.8 * np.abs(np.log(plain) - z)[few].mean()
    assert np.abs(np.log(rates) - z)[~used].mean() < 0.6 * np.abs(np.log(plain) - z)[~used].mean()


def test_the_vectors_of_cold_users_are_a_ridge_regression(world: Any, log: Log) -> None:
    covariates = Covariates.of(world[1], log.users, log.items)
    pairs = covariates.warm(count(log))
    vectors = fit_latent(pairs, 4, 1, covariates).users.astype(np.float64)
    x, n = covariates.users.toarray(), pairs.bought_by_user()
    weight = n / (n + n[n > 0].mean())
    # the map of the sweep before the last, so to a tolerance: the vectors hardly move any more
    m = np.linalg.solve(x.T @ (weight[:, None] * x) + np.eye(x.shape[1]), x.T @ (weight[:, None] * vectors[:, 1:]))
    assert goal_of(covariates.users, n, vectors) == pytest.approx(x @ m)
    assert np.corrcoef(vectors[COLD_USERS, 1:].ravel(), (x[COLD_USERS] @ m).ravel())[0, 1] > 0.99
    warm = np.setdiff1d(np.arange(N_USERS), COLD_USERS)
    assert np.abs(vectors[warm, 1:] - x[warm] @ m).max() > 0.1  # their own rows count as well


def test_features_that_say_nothing_leave_the_item_mean(log: Log) -> None:
    """A cold user with features at random has nearly the order of the items' mean effects."""
    rng = np.random.default_rng(3)
    noise = Features(users=pd.DataFrame({"user_id": range(N_USERS), "x": rng.standard_normal(N_USERS)}))
    scores = all_scores(learner("item").fit(log, features=noise))
    warm = np.setdiff1d(np.arange(N_ITEMS), COLD_ITEMS)
    means = scores[np.setdiff1d(np.arange(N_USERS), COLD_USERS)].mean(0)
    assert np.corrcoef(scores[COLD_USERS].mean(0)[warm], means[warm])[0, 1] > 0.8


# files, threads, updates, new users


@pytest.mark.parametrize("prior", ["exposure", "taste"])
def test_same_bits_for_any_threads_and_from_a_file(prior: str, world: Any, log: Log, tmp_path: Path) -> None:
    model = learner(prior).fit(log, features=world[1])
    again = learner(prior).set_params(threads=3).fit(log, features=world[1])
    assert np.array_equal(all_scores(model), all_scores(again))
    model.save(tmp_path / "model")
    loaded = load(tmp_path / "model")
    assert isinstance(loaded, EmpiricalBayes)
    codes = np.arange(N_USERS, dtype=np.int32)
    assert np.array_equal(all_scores(loaded), all_scores(model))
    assert np.array_equal(loaded.deviation_block(codes), model.deviation_block(codes))
    assert np.array_equal(all_scores(model)[[0, 7]], model.score_block(np.array([0, 7], np.int32)))


@pytest.mark.parametrize("prior", ["item", "exposure", "taste"])
def test_an_update_equals_a_fit_to_all_rows(prior: str, world: Any, frame: pd.DataFrame, tmp_path: Path) -> None:
    """Users that get their first rows are no longer cold; those that are named without rows are."""
    early = frame.query("time < 4 and user_id % 7 != 1 and item_id % 7 != 1")
    everybody: dict[str, Any] = {"users": range(N_USERS), "items": range(N_ITEMS)}
    model = learner(prior).fit(Log.from_frame(early), features=world[1])
    model.save(tmp_path / "model")
    later = frame.drop(early.index)
    later = later[later["time"] >= 4]
    updated = load(tmp_path / "model").update(Log.from_frame(later, **everybody), features=world[1])
    assert isinstance(updated, EmpiricalBayes)
    same_order: dict[str, Any] = {"users": updated.users.values, "items": updated.items.values}
    fitted = learner(prior).fit(Log.from_frame(pd.concat([early, later]), **same_order), features=world[1])
    assert all_scores(updated) == pytest.approx(all_scores(fitted), abs=1e-6)
    users = updated.users.encode_known(range(N_USERS))
    assert updated.cold_user_[users].nonzero()[0].tolist() == COLD_USERS


@pytest.mark.parametrize("prior", ["item", "taste"])
def test_new_users_are_folded_in_with_their_features(
    prior: str, world: Any, frame: pd.DataFrame, effect: Any
) -> None:
    """Those without rows get what their features say, as in a fit that knew them."""
    known = frame[frame["user_id"] % 5 != 3]
    new = [user for user in range(N_USERS) if user % 5 == 3]
    model = learner(prior).fit(Log.from_frame(known, items=range(N_ITEMS)), features=world[1])
    named = Log.from_frame(frame[frame["user_id"] == 8], users=new, items=range(N_ITEMS))
    folded = model.fold_in(named, features=world[1])
    whole = learner(prior).fit(
        Log.from_frame(known, users=[*model.users.values.to_pylist(), *new], items=range(N_ITEMS)), features=world[1]
    )
    silent = [user for user in new if user != 8]
    rows = [model_.users.encode_known(silent) for model_ in (folded, whole)]
    order = [model_.items.encode_known(range(N_ITEMS)) for model_ in (folded, whole)]
    mine, theirs = (m.score_block(r)[:, i] for m, r, i in zip((folded, whole), rows, order, strict=True))
    assert mine == pytest.approx(theirs, abs=0.03)  # the map is one step further than that of the fit
    best = np.take_along_axis(effect[silent], mine.argmax(1)[:, None], 1).mean()
    assert best > 2 * effect[silent].mean()
    lists = model.recommend(silent, 1, history=named, features=world[1])
    assert lists["item_id"].tolist() == mine.argmax(1).tolist()


def test_the_choice_looks_at_warm_cells_only(world: Any, log: Log, frame: pd.DataFrame) -> None:
    """Cold users and items in the catalog change no likelihood."""
    with_cold = EmpiricalBayes(rank=4, threads=1).fit(log, features=world[1]).likelihoods_
    without = EmpiricalBayes(rank=4, threads=1).fit(Log.from_frame(frame), features=world[1]).likelihoods_
    assert list(with_cold) == list(without)
    assert list(with_cold.values()) == pytest.approx(list(without.values()), rel=2e-3)


def test_what_cannot_be_done_with_features_is_said_in_one_sentence(world: Any, log: Log, frame: pd.DataFrame) -> None:
    features = world[1]
    model = learner("item").fit(Log.from_frame(frame[frame["time"] < 3]), features=features)
    later = Log.from_frame(frame[frame["time"] >= 3], users=range(N_USERS))
    with pytest.raises(InputError, match="fitted with features; give update the tables"):
        copy.copy(model).update(later)
    with pytest.raises(InputError, match="no table of users"):
        model.fold_in(later, features=Features(items=features.items))
    with pytest.raises(InputError, match="fitted without features of users"):
        learner("item").fit(Log.from_frame(frame[frame["time"] < 3])).fold_in(later, features=features)
    with pytest.raises(InputError, match="give history="):
        model.recommend([1], features=features)
    with pytest.raises(InputError, match="cannot use the features of new users"):
        Popular().fit(Log.from_frame(frame)).fold_in(log, features=features)
    some = Features(users=pd.DataFrame({"user_id": range(50), "x": range(50)}))
    with pytest.raises(InputError, match="have no features"):
        learner("item").fit(log, features=some)
