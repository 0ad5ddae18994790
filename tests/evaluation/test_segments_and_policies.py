"""Segments of items and stochastic policies, against slow twins over all cells."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest

from support.builders import cells_frame, logs_of_every_eligibility, sparse_log
from support.twins import by_cells, eligible_cells, list_weights
from taurank import InputError, Log, compare, evaluate, gains

SHAPE = (30, 8, 3)
BASE = sparse_log(cells_frame(*SHAPE, 0))
LOGS = logs_of_every_eligibility(BASE)
SCORES = np.random.default_rng(4).random((30, 8))
SEGMENTS = pd.DataFrame({"item_id": range(8), "price": ["low", "low", "high", "high", "mid", "mid", "low", None]})


@pytest.mark.parametrize("name", LOGS)
@pytest.mark.parametrize("make", [gains.doubly_robust, gains.ips])
@pytest.mark.parametrize("metric", ["CP@3", "CDCG"])
def test_segments_of_items_are_the_slow_twins_and_add_up(name: str, make: Any, metric: str) -> None:
    log, made = LOGS[name], make(LOGS[name])
    result = evaluate(SCORES, made, metric, by=SEGMENTS)
    weight = list_weights(SCORES, eligible_cells(log), metric)
    for label, part in result.segments.items():
        inside = SEGMENTS["price"].fillna("(none)").to_numpy() == label
        assert part[metric].mean == pytest.approx(by_cells(log, made.estimator, weight * inside[:, None]), abs=1e-12)
    assert sum(part[metric].mean for part in result.segments.values()) == pytest.approx(result[metric].mean)


def test_many_segments_add_up_where_users_are_the_folds() -> None:
    """8 segments of 4 terms in 5 folds: more factors than int8 can number."""
    log = sparse_log(cells_frame(30, 8, 1, 1))
    result = evaluate(SCORES, log, "CDCG", by=pd.DataFrame({"item_id": range(8), "name": list("abcdefgh")}))
    parts = [part["CDCG"].mean for part in result.segments.values()]
    assert sum(parts) == pytest.approx(result["CDCG"].mean)


def test_numbers_are_cut_into_quarters() -> None:
    log = sparse_log(cells_frame(30, 40, 2, 0))
    price = pd.DataFrame({"item_id": range(40), "price": np.arange(40) * 1.5})
    result = evaluate(np.zeros((30, 40)), log, "CP@5", by=price)
    assert list(result.segments) == ["1. 0 to 14.6", "2. 14.6 to 29.2", "3. 29.2 to 43.9", "4. 43.9 to 58.5"]


def policy(probability: npt.NDArray[Any]) -> pd.DataFrame:
    user, item = np.nonzero(probability)
    return pd.DataFrame({"user_id": user, "item_id": item, "probability": probability[user, item]})


@pytest.mark.parametrize("name", LOGS)
@pytest.mark.parametrize("make", [gains.doubly_robust, gains.ips, gains.snips])
def test_the_value_of_a_policy_is_the_slow_twins(name: str, make: Any) -> None:
    log, made = LOGS[name], make(LOGS[name])
    chance = np.random.default_rng(5).dirichlet(np.full(8, 0.3), 30)
    result = evaluate(policy(chance), made, "CP@1")["CP@1"]
    weight = np.repeat(chance[:, :, None], log.n_times, axis=2) * eligible_cells(log)
    assert result.mean == pytest.approx(by_cells(log, made.estimator, weight), abs=1e-12)
    assert result.low < result.mean < result.high


@pytest.mark.parametrize("make", [gains.doubly_robust, gains.ips, gains.snips, gains.outcome])
def test_a_policy_that_is_certain_is_its_ranking(make: Any) -> None:
    top = (SCORES.argsort(axis=1).argsort(axis=1) >= 5).astype(float)
    made, metric = make(BASE), "P@3" if make is gains.outcome else "CP@3"
    certain, ranked = (evaluate(one, made, metric)[metric] for one in (policy(top), SCORES))
    np.testing.assert_allclose(certain.per_user, ranked.per_user, atol=1e-12)
    assert (certain.low, certain.high) == pytest.approx((ranked.low, ranked.high))
    pair = compare(policy(top), SCORES, made, metric)
    assert (pair.difference, pair.low, pair.high) == pytest.approx((0.0, 0.0, 0.0), abs=1e-12)


def test_the_logged_policy_has_the_value_of_what_it_showed() -> None:
    """The logging policy is worth what it bought, less what was bought without it."""
    rng = np.random.default_rng(6)
    chance = rng.dirichlet(np.full(8, 4.0), 2000)
    shown = np.array([rng.multinomial(1, row) for row in chance])
    outcome = rng.random(shown.shape) < np.where(shown, 0.4, 0.1)
    rows = np.argwhere((shown == 1) | outcome)
    frame = pd.DataFrame({"user_id": rows[:, 0], "item_id": rows[:, 1], "treated": shown[tuple(rows.T)]})
    frame = frame.assign(outcome=outcome[tuple(rows.T)].astype(int), propensity=chance[tuple(rows.T)])
    log = Log.from_frame(frame, users=range(2000), items=range(8))
    result = evaluate(policy(chance), log, "CP@1")["CP@1"]
    assert result.low < 0.3 < result.high


@pytest.mark.parametrize(
    ("change", "metric", "sentence"),
    [
        ({}, "CDCG", "CDCG does not fit a policy: .* such as CP@1"),
        ({"probability": 0.5}, "CP@1", "the probabilities of user 0 add up to 4; .* such as CP@4"),
        ({"probability": 1.5}, "CP@1", "probability"),
        ({"probability": np.nan}, "CP@1", "probability"),
    ],
)
def test_odd_policies(change: dict[str, Any], metric: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        evaluate(policy(np.full((30, 8), 0.125)).assign(**change), BASE, metric)


def test_bad_segments_of_items() -> None:
    with pytest.raises(InputError, match="by names an item more than once"):
        evaluate(SCORES, BASE, "CP@1", by=pd.DataFrame({"item_id": [1, 1], "price": [1, 2]}))
