"""What a measurement says: intervals, comparisons, words, frames, and the warning about overlap."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from support.twins import dense
from taurank import Gains, Log, World, gains
from taurank.errors import OverlapWarning
from taurank.evaluation import bootstrap
from taurank.evaluation.evaluate import compare, evaluate
from taurank.evaluation.formulas import position_weights

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


def test_the_interval_covers_a_skewed_mean() -> None:
    """BCa of 60 exponential values, whose mean is 1, 600 times: 95 % wanted, three errors allowed."""
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(600):
        values = rng.exponential(size=60)
        low, high = bootstrap.interval(values, bootstrap.resampled_means(values), 0.95)
        hits += low <= 1.0 <= high
    assert abs(hits / 600 - 0.95) < 3 * np.sqrt(0.95 * 0.05 / 600)


def test_the_interval_is_scipys_bca() -> None:
    values = np.random.default_rng(0).lognormal(sigma=1.5, size=25)
    resamples, error = 20_000, values.std() / np.sqrt(25)
    ours = bootstrap.interval(values, bootstrap.resampled_means(values, resamples), 0.9)
    theirs = stats.bootstrap(
        (values,), np.mean, confidence_level=0.9, n_resamples=resamples, method="BCa", rng=1
    ).confidence_interval
    assert ours == pytest.approx((theirs.low, theirs.high), abs=0.04 * error)


def test_compare_pairs_users() -> None:
    rng = np.random.default_rng(9)
    effect = rng.random((400, 1)) * 0.8
    made = dense(rng.random((400, 30)) < effect)  # users differ much, rankers little
    good = np.zeros((400, 30))
    good[made.user, made.item] = rng.random(len(made)) < 0.1
    noise = rng.random((400, 30))
    both = compare(good + noise, noise, made, "CP@5", unit="week")
    assert both.difference == pytest.approx(both.per_user.mean())
    assert both.winner() == "first"
    assert compare(noise, good + noise, made, "CP@5").winner() == "second"
    low, high = both.interval()
    alone = both.first.interval()
    assert high - low < alone[1] - alone[0]
    assert "the first ranker is better" in str(both)
    assert "extra purchases per user and week" in str(both)
    assert compare(noise, noise, made, "CP@5").winner() is None


def test_compare_knows_that_a_smaller_rank_is_better() -> None:
    made = dense(np.tile([1.0, 0.0, 0.0], (50, 1)))
    best, worst = np.tile([3.0, 2.0, 1.0], (50, 1)), np.tile([1.0, 2.0, 3.0], (50, 1))
    both = compare(best, worst, made, "CAR")
    assert both.difference == pytest.approx((1 - 3) / 3)
    assert both.winner() == "first"
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
    assert result.per_time_frame()["time"].tolist() == [7, 8]


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
    made = gains.ips(Log.from_frame(twice, items=range(3)))
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


def test_the_personalised_setting_is_called_out() -> None:
    world = World.synthetic(60, 80, random_state=0)
    scores = world.treated_rate
    sample = world.personalized(2.0).sample(random_state=1)
    made = gains.capped_ips(sample.log, 0.01)
    with pytest.warns(OverlapWarning):
        result = evaluate(scores, made, "CP@10")
    extreme = np.zeros((60, 80), bool)
    log = sample.log
    assert log.propensity is not None
    extreme[log.user, log.item] = (log.propensity <= 1e-3) | (log.propensity >= 1 - 1e-3)
    shown = np.zeros((60, 80), bool)
    shown[log.user, log.item] = True
    weight = position_weights(scores, "CP@10")
    assert result["CP@10"].overlap_share == pytest.approx(weight[extreme].sum() / weight[shown].sum())
