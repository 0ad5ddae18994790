"""Factors pulled toward a linear map of features."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.special import expit

import taurank as tr
from taurank.errors import InputError
from taurank.learners import LEARNERS, Learner
from taurank.learners.factors import FactorLearner
from taurank.learners.features import RidgeMap

TRAINED = [name for name, learner in LEARNERS.items() if issubclass(learner, FactorLearner)]
COLD_USERS, COLD_ITEMS = set(range(0, 200, 10)), set(range(0, 60, 10))


@pytest.fixture(scope="module")
def world() -> tuple[tr.World, tr.Features]:
    """Tastes and effects follow from four features."""
    rng = np.random.default_rng(0)
    x, z = rng.standard_normal((200, 4)), rng.standard_normal((60, 4))
    taste, lift = (x @ rng.standard_normal((4, 4)) @ z.T / 3 for _ in range(2))
    rates = (expit(taste + lift - 1), expit(taste - 2), np.full(taste.shape, 0.4))
    users = pd.DataFrame(x).add_prefix("x").assign(user_id=range(200))
    items = pd.DataFrame(z).add_prefix("z").assign(item_id=range(60))
    return tr.World(*rates, np.arange(200), np.arange(60)), tr.Features(users, items)


@pytest.fixture(scope="module")
def log(world: tuple[tr.World, tr.Features]) -> tr.Log:
    rows = world[0].sample(4, random_state=1).log.to_frame()
    cold = rows["user_id"].isin(COLD_USERS) | rows["item_id"].isin(COLD_ITEMS)
    return tr.Log.from_frame(rows[~cold], users=range(200), items=range(60))


def make(name: str, **options: Any) -> Learner:
    small = {"factors": 8, "epochs": 20, "learning_rate": 0.03, "threads": 1, "random_state": 0}
    return LEARNERS[name](**{**small, **options})


def all_scores(learner: Learner) -> np.ndarray:
    return learner.score_block(np.arange(len(learner.users), dtype=np.int32))


@pytest.mark.parametrize("name", ["bpr", "dlce", "cause"])
def test_cold_users_and_items_get_a_sensible_score(name: str, world: Any, log: tr.Log) -> None:
    effect = np.asarray(world[0].treated_rate, np.float64) - world[0].control_rate
    scores = all_scores(make(name).fit(log, None, features=world[1]))
    users, items = sorted(COLD_USERS), sorted(COLD_ITEMS)
    for rows, columns in ((users, range(60)), (range(200), items), (users, items)):
        cells = np.ix_(rows, columns)
        best = np.argmax(scores[cells], axis=1)
        assert np.take_along_axis(effect[cells], best[:, None], 1).mean() > 1.5 * effect[cells].mean()


@pytest.mark.parametrize("name", TRAINED)
def test_same_bits_for_any_threads_and_from_a_file(name: str, world: Any, log: tr.Log, tmp_path: Path) -> None:
    first = make(name, epochs=3).fit(log, None, features=world[1])
    again = make(name, epochs=3, threads=3).fit(log, None, features=world[1])
    assert np.array_equal(all_scores(first), all_scores(again))
    first.save(tmp_path / "model")
    assert np.array_equal(all_scores(tr.load(tmp_path / "model")), all_scores(first))
    assert not np.array_equal(all_scores(first), all_scores(make(name, epochs=3).fit(log, None)))


def test_without_pull_the_warm_rows_are_those_without_features(world: Any, log: tr.Log) -> None:
    """Only users with rows, and no cold item that could be drawn as the other of a pair."""
    rows = log.to_frame()
    warm = tr.Log.from_frame(rows)
    loose = tr.Features(world[1].users, world[1].items, pull=0.0)
    assert np.array_equal(
        all_scores(make("dlce").fit(warm, None, features=loose)), all_scores(make("dlce").fit(warm, None))
    )


def test_the_map_is_the_weighted_ridge_regression() -> None:
    """Twin: the normal equations, dense, user by user."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.standard_normal((30, 3))).add_prefix("x").assign(user_id=range(30))
    features = tr.Features(users=frame).matrix(tr.data.ids.Ids(range(30), "user_id"))  # type: ignore[attr-defined]
    assert features is not None
    positives = rng.integers(0, 25, 200)
    table = rng.standard_normal((30, 8)).astype(np.float32)
    ridge = RidgeMap(features, positives, positives)
    x, count = features.toarray(), np.bincount(positives, minlength=30)
    weight = count / (count + count[count > 0].mean())
    solution = np.linalg.solve(x.T @ np.diag(weight) @ x + np.eye(4), x.T @ np.diag(weight) @ table)
    assert np.allclose(ridge.predict(table), x @ solution)
    pulled = table.copy()
    ridge.pull(pulled, 0.25)
    assert np.allclose(pulled[25:], (x @ solution)[25:], atol=1e-6)
    assert np.allclose(pulled[:25], 0.75 * table[:25] + 0.25 * (x @ solution)[:25], atol=1e-6)


def test_an_update_with_features_scores_users_and_items_without_rows(world: Any, log: tr.Log) -> None:
    early = tr.Log.from_frame(log.to_frame().query("time < 3"))
    model = make("dlce").fit(early, None, features=world[1])
    before = copy.copy(model)
    rows = log.to_frame().query("time == 3 and user_id % 3 == 0")
    late = tr.Log.from_frame(rows, users=range(200), items=range(60))
    unfed = tr.Features(world[1].users, world[1].items, pull=0.0)
    updated = model.update(late, features=unfed)
    silent = [user for user in range(200) if user % 3 and user not in COLD_USERS]
    kept = updated.users.encode_known(silent)
    assert np.array_equal(updated.user_factors_[kept], before.user_factors_[before.users.encode_known(silent)])  # type: ignore[attr-defined]
    effect = np.asarray(world[0].treated_rate, np.float64) - world[0].control_rate
    cold = updated.score_block(updated.users.encode_known(sorted(COLD_USERS)))[
        :, updated.items.encode_known(range(60))
    ]
    best = np.argmax(cold, axis=1)
    mine = effect[sorted(COLD_USERS)]
    assert np.take_along_axis(mine, best[:, None], 1).mean() > 1.5 * mine.mean()


def test_a_checkpoint_belongs_to_its_features(world: Any, log: tr.Log, tmp_path: Path) -> None:
    make("dlce", epochs=2).fit(log, None, features=world[1], checkpoint=tmp_path / "half")
    with pytest.raises(InputError, match="belongs to another fit"):
        make("dlce", epochs=2).fit(log, None, checkpoint=tmp_path / "half")


def test_learners_without_factors_refuse_features(world: Any, log: tr.Log) -> None:
    with pytest.raises(InputError, match="Popular cannot use features"):
        tr.Popular().fit(log, features=world[1])
    with pytest.raises(InputError, match=r"taurank\.Features"):
        make("dlce").fit(log, features=world[1].users)
