"""What a measurement says: intervals, comparisons, words, frames, and the warning about overlap."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from support.twins import dense
from taurank import Gains, Log, World, gains
from taurank.data.cell_table import fingerprint
from taurank.errors import InputError, OverlapWarning, TrainingLogWarning
from taurank.evaluation.evaluate import compare, evaluate
from taurank.evaluation.intervals import Estimate

# --- intervals and comparisons ---------------------------------------------------------------------------


def test_the_interval_is_near_the_normal_one_and_grows_with_the_level() -> None:
    rng = np.random.default_rng(3)
    made = dense((rng.random((1000, 5)) < 0.3).astype(float))
    metric = evaluate(rng.random((1000, 5)), made, "CP@2")["CP@2"]
    error = metric.per_user.std() / np.sqrt(1000)
    low, high = metric.interval()
    assert low == pytest.approx(metric.mean - 1.96 * error, abs=0.15 * error)
    assert high == pytest.approx(metric.mean + 1.96 * error, abs=0.15 * error)
    wide = metric.interval(0.99)
    assert wide[0] < low < high < wide[1]
    with pytest.raises(ValueError, match="level must be a number between 0 and 1, got 95"):
        metric.interval(95)


@pytest.mark.statistical
def test_the_interval_covers_a_skewed_mean() -> None:
    """60 exponential values, whose mean is 1, 2,000 times: 95% wanted, three errors and a bias of 1% allowed."""
    rng = np.random.default_rng(0)
    visits = np.ones(60, int), np.full(1, 60)
    drawn = (rng.exponential(size=60) for _ in range(2000))
    ends = np.array([Estimate(one, one.mean(keepdims=True), visits).interval() for one in drawn])
    covered = np.mean((ends[:, 0] <= 1.0) & (ends[:, 1] >= 1.0))
    assert abs(covered - 0.945) < 0.005 + 3 * np.sqrt(0.95 * 0.05 / 2000)


def test_compare_pairs_users() -> None:
    rng = np.random.default_rng(9)
    effect = rng.random((400, 1)) * 0.8
    made = dense(rng.random((400, 30)) < effect)  # users differ much, rankers little
    good = np.zeros((400, 30))
    good[made.user, made.item] = rng.random(len(made)) < 0.1
    noise = rng.random((400, 30))
    both = compare(good + noise, noise, made, "CP@5", unit="week")
    assert both.difference == pytest.approx(both.per_user.mean())
    assert both.winner == "first"
    assert compare(noise, good + noise, made, "CP@5").winner == "second"
    low, high = both.interval()
    alone = both.first.interval()
    assert high - low < alone[1] - alone[0]
    assert "the first ranker is better" in str(both)
    assert "extra purchases per user and week" in str(both)
    assert compare(noise, noise, made, "CP@5").winner is None


def test_compare_knows_that_a_smaller_rank_is_better() -> None:
    made = dense(np.tile([1.0, 0.0, 0.0], (50, 1)))
    best, worst = np.tile([3.0, 2.0, 1.0], (50, 1)), np.tile([1.0, 2.0, 3.0], (50, 1))
    both = compare(best, worst, made, "CAR")
    assert both.difference == pytest.approx((1 - 3) / 3)
    assert both.winner == "first"
    assert "smaller is better" in str(both)


# --- words and frames ------------------------------------------------------------------------------------


def test_the_shops_words() -> None:
    made = dense(np.ones((2, 3, 4)))
    result = evaluate(np.zeros((3, 4)), made, ["CP@2", "CDCG", "CAR"], unit="week")
    assert "top 2: 2 extra purchases per user and week" in str(result)
    assert "CAR: smaller is better" in str(result)
    outcomes = evaluate(np.zeros((3, 4)), dense(np.ones((3, 4)), "outcome"), "P@2")
    assert "top 2: 2 purchases per user and time" in str(outcomes)
    untimed = Gains.from_frame(pd.DataFrame({"user_id": [1], "item_id": [2], "value": [1.0]}))
    assert str(evaluate([[0.0]], untimed, "CP@1")).endswith("top 1: 1 extra purchases per user")


def test_frames() -> None:
    frame = pd.DataFrame({"user_id": ["b", "a"], "item_id": [1, 2], "time": [7, 8], "value": [1.0, 1.0]})
    made = Gains.from_frame(frame, users=["b", "a", "c"])
    result = evaluate(np.tile([2.0, 1.0], (3, 1)), made, ["CP@1", "CAR"])
    table = result.to_frame().set_index("metric")
    assert table.loc["CP@1", "mean"] == pytest.approx(result["CP@1"].mean)
    assert (table.loc["CP@1", "low"], table.loc["CP@1", "high"]) == result["CP@1"].interval()
    assert table["smaller_is_better"].tolist() == [False, True]
    assert table["overlap_share"].isna().all()
    assert result.per_user_frame()["user_id"].tolist() == ["b", "a", "c"]
    assert result.per_user_frame()["CP@1"].tolist() == [0.5, 0.0, 0.0]


# --- overlap ---------------------------------------------------------------------------------------------


def logged(propensity: list[float]) -> Log:
    n = len(propensity)
    rows = {"user_id": [0] * n, "item_id": range(n), "treated": [1] * n, "outcome": [1] * n}
    return Log.from_frame(pd.DataFrame({**rows, "propensity": propensity}), items=range(n + 1))


def test_the_share_of_the_weight_without_overlap_by_hand() -> None:
    made = gains.ips(logged([0.5, 0.9995, 0.3, 0.0005]))
    scores = [[5.0, 4.0, 3.0, 2.0, 9.0]]  # ranks 2, 3, 4, 5; the item that was never logged is first
    with pytest.warns(OverlapWarning, match=r"CP@3 50%, CAR 57%"):
        result = evaluate(scores, made, ["CP@3", "CP@2", "CAR"])
    assert result["CP@3"].overlap_share == pytest.approx(1 / 2)
    assert result["CP@2"].overlap_share == 0.0
    assert result["CAR"].overlap_share == pytest.approx((3 + 5) / (2 + 3 + 4 + 5))
    assert "bad overlap" in str(result)
    with pytest.warns(OverlapWarning):
        assert "bad overlap" in str(compare(scores, scores, made, "CAR"))


def test_a_pair_counts_once_over_times() -> None:
    log = logged([0.5, 0.9995])
    frame = log.to_frame()
    twice = pd.concat([frame.assign(time=0), frame.assign(time=1, propensity=[0.5, 0.5])])
    shuffled = twice.sample(frac=1, random_state=0)
    made = gains.ips(Log.from_frame(shuffled, items=range(3)))
    with pytest.warns(OverlapWarning):
        assert evaluate([[3.0, 2.0, 1.0]], made, "CAR")["CAR"].overlap_share == pytest.approx(2 / 3)


def test_good_overlap_and_no_estimate_say_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        good = evaluate([[1.0, 2.0, 3.0]], gains.ips(logged([0.5, 0.3])), "CAR")
        rare = evaluate(np.arange(41.0)[None], gains.ips(logged([0.5] * 39 + [0.9999])), "CP@50")
        outcome = evaluate([[1.0, 2.0, 3.0]], gains.outcome(logged([0.5, 0.9999])), "CAR")
    assert good["CAR"].overlap_share == 0.0
    assert rare["CP@50"].overlap_share == pytest.approx(1 / 40)
    assert outcome["CAR"].overlap_share is None


def test_a_gains_log_with_odd_positions_does_not_reach_a_kernel() -> None:
    log = logged([0.5, 0.9995])
    broken = replace(log, item=np.array([0, 7], np.int32), outcome=np.array([1, 0], np.int8))
    with pytest.raises(InputError, match="item_id positions must be between 0 and 2"):
        evaluate([[3.0, 2.0, 1.0]], gains.ips(broken), "CAR")


# --- defaults that fit the gains ---------------------------------------------------------------------------


def test_default_metrics_fit_the_gains() -> None:
    log, scores = logged([0.5, 0.3]), [[3.0, 2.0, 1.0]]
    assert list(evaluate(scores, gains.outcome(log))) == ["P@10", "P@100", "DCG", "AR"]
    assert list(evaluate(scores, gains.ips(log))) == ["CP@10", "CP@100", "CDCG", "CAR"]
    assert compare(scores, scores, gains.outcome(log)).first.name == "P@10"
    assert compare(scores, scores, gains.ips(log)).first.name == "CP@10"
    world = World.synthetic(3, 3, random_state=0)
    assert list(evaluate(np.eye(3), world.sample(random_state=0).truth)) == ["CP@10", "CP@100", "CDCG", "CAR"]


@pytest.mark.parametrize(
    ("kind", "metric", "words"),
    [
        ("effect", "P@2", "2 extra purchases"),
        ("effect", "CP@2", "2 extra purchases"),
        ("outcome", "P@2", "2 purchases"),
        ("outcome", "CP@2", "2 purchases"),
        (None, "P@2", "2 purchases"),
        (None, "CP@2", "2 extra purchases"),
    ],
)
def test_purchases_are_extra_by_the_kind_of_the_gains(kind: Any, metric: str, words: str) -> None:
    assert f"top 2: {words} per user" in str(evaluate([[1.0, 2.0]], dense([[1.0, 1.0]], kind), metric))


# --- the training log --------------------------------------------------------------------------------------


class Trained:
    """A ranker that carries the fingerprint of its training log, as fitted learners do."""

    def __init__(self, log: Log, fingerprint: Any) -> None:
        self.users, self.items, self.log_fingerprint_ = log.users, log.items, fingerprint

    def score_block(self, user_codes: Any) -> Any:
        return np.zeros((len(user_codes), len(self.items)))


@pytest.fixture
def fingerprints(monkeypatch: pytest.MonkeyPatch) -> list[Log]:
    """The logs whose fingerprint was computed for gains."""
    computed: list[Log] = []

    def of(log: Log) -> str:
        computed.append(log)
        return fingerprint(log)

    monkeypatch.setattr("taurank.estimation.gains.fingerprint", of)
    return computed


def test_measuring_on_the_training_log_warns(fingerprints: list[Log]) -> None:
    log, other = logged([0.5, 0.3]), logged([0.5, 0.4])
    model = Trained(log, fingerprint(log))
    for made in (gains.ips(log), gains.outcome(log), gains.ips(log).where(lambda value: value > 0)):
        with pytest.warns(TrainingLogWarning, match="measured on the log the model was trained on"):
            result = evaluate(model, made)
        assert "too optimistic; measure on another log" in str(result).replace("\n", " ")
    with pytest.warns(TrainingLogWarning, match="DLCE: measured on the log"):
        table = evaluate({"noise": [[1.0, 2.0, 3.0]], "DLCE": model}, gains.ips(log))
    assert "DLCE: measured on the log the model was trained on" in str(table)
    with pytest.warns(TrainingLogWarning, match="second: measured on the log"):
        assert "too optimistic" in str(compare([[1.0, 2.0, 3.0]], model, gains.ips(log)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        evaluate(model, gains.ips(other))
        evaluate(model, replace(gains.ips(log), log=None))


def test_the_fingerprint_is_computed_once_and_only_if_needed(fingerprints: list[Log]) -> None:
    log, other = logged([0.5, 0.3]), logged([0.5, 0.4])
    made = gains.ips(log)
    evaluate([[1.0, 2.0, 3.0]], made)
    evaluate(Trained(other, None), made)
    assert fingerprints == []
    for _ in range(3):
        evaluate(Trained(other, fingerprint(other)), made)
    assert fingerprints == [log]


# --- odd arguments and tiny propensities --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"gains": pd.DataFrame()}, "gains must be a Gains, got a DataFrame"),
        ({"metrics": 5}, "metrics must be names"),
        ({"metrics": [None]}, "unknown metric None"),
        ({"level": 95}, "level must be a number between 0 and 1, got 95"),
        ({"unit": 5}, "unit must be the name of a time"),
        ({"threads": "2"}, "threads must be an integer"),
        ({"unlisted": "first"}, "unlisted must be one of 'last', got 'first'"),
        ({"ranker": None}, "a ranker is a fitted learner"),
        ({"ranker": [[1.0], [1.0, 2.0]]}, "the scores are not an array users × items"),
        ({"ranker": [["a", "b"], ["c", "d"]]}, "a ranker is a fitted learner"),
        ({"ranker": np.zeros((2, 2), complex)}, "a ranker is a fitted learner"),
        ({"ranker": 5}, "a ranker is a fitted learner"),
    ],
)
def test_odd_arguments_are_refused_in_one_sentence(options: dict[str, Any], sentence: str) -> None:
    arguments: dict[str, Any] = {"ranker": np.eye(2), "gains": dense(np.eye(2)), **options}
    with pytest.raises(InputError, match=sentence):
        evaluate(**arguments)


@pytest.mark.parametrize("metric", [5, ["CDCG", "CAR"], {}])
def test_compare_takes_one_metric(metric: Any) -> None:
    with pytest.raises(InputError, match="compare takes one metric"):
        compare(np.eye(2), np.eye(2), dense(np.eye(2)), metric)


@pytest.mark.parametrize("users", [[0, 1], np.arange(2), None])
def test_a_ranker_of_ones_own_needs_ids(users: Any) -> None:
    ranker = Trained(logged([0.5]), None)
    ranker.users = users
    with pytest.raises(InputError, match="a ranker's users and items must be a Ids"):
        evaluate(ranker, gains.ips(logged([0.5])))


def test_tiny_propensities_are_set_aside_unless_the_estimator_is_named() -> None:
    frame = logged([1e-30, 0.5]).to_frame()
    log = Log.from_frame(pd.concat([frame.assign(user_id=user, time=time) for user in range(5) for time in range(3)]))
    scores, names = np.tile([3.0, 2.0], (5, 1)), ["CP@1", "CP@2"]
    with pytest.warns(OverlapWarning):
        result = evaluate(scores, log, names)
    with pytest.warns(OverlapWarning):
        named = evaluate(scores, gains.ips(log), "CP@1")
    assert result["CP@1"].mean == 0.0
    assert result["CP@2"].mean == pytest.approx(0.5, rel=0.1)  # of the other item alone
    assert all(np.isfinite([one.std, one.low, one.high]).all() for one in result.values())
    assert named["CP@1"].mean == pytest.approx(1e30)
    tiny = log.with_propensity(np.full(len(log), 1e-80))
    with pytest.raises(InputError, match="too small to be inverted"):
        evaluate(scores, gains.ips(tiny), names)


def test_gains_too_large_to_add_up_are_refused() -> None:
    with pytest.raises(InputError, match=r"too large to add up \(up to 1.0e\+308\); cap them"):
        evaluate(np.eye(3), dense(np.full((3, 3), 1e308)), "CAR")
