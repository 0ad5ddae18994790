"""Estimates from a log against slow twins, intervals that cover, and a verdict in front of every number."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest
from scipy.special import chdtri, ndtr, stdtrit

from support.builders import cells_frame, dense_log, limited_log, sparse_log
from support.twins import by_cells, cube, eligible_cells, list_weights
from taurank import InputError, Log, World, bounds, compare, evaluate, gains
from taurank.errors import OverlapWarning
from taurank.estimation.estimators import Estimator
from taurank.evaluation.evidence import slope
from taurank.evaluation.intervals import Estimate, Events, Moments, clustered_variance

METRICS = ["CP@3", "CDCG", "CAR"]
WORLD = World.synthetic(300, 60, random_state=0)
TODAY = np.asarray(WORLD.control_rate)
BETTER = np.asarray(WORLD.treated_rate) - WORLD.control_rate


@pytest.fixture(scope="module")
def log() -> Log:
    return WORLD.sample(4, random_state=1).log


def slow(log: Log, estimator: Estimator, scores: npt.NDArray[Any], metric: str) -> float:
    return by_cells(log, estimator, list_weights(scores, eligible_cells(log), metric))


def area(scores: npt.NDArray[Any], eligible: npt.NDArray[Any], bought: npt.NDArray[Any]) -> float:
    """0 without a purchase; ½ where everything was bought."""
    good, bad = scores[eligible & (bought == 1)][:, None], scores[eligible & (bought == 0)]
    if not good.size:
        return 0.0
    return float(((good > bad) + 0.5 * (good == bad)).mean()) if bad.size else 0.5


def small(times: int = 4, seed: int = 0) -> Log:
    return sparse_log(cells_frame(9, 8, times, seed))


RNG = np.random.default_rng(7)
SOME = RNG.random((9, 8, 4)) < 0.7
LOGS = {
    "all cells": small(),
    "one time": small(1),
    "visits": limited_log(small(), visits=(np.repeat(np.arange(9), 2), np.arange(18) % 4)),
    "items": limited_log(small(), candidates=(None, np.array([0, 1, 2, 5, 7]), None)),
    "items by time": limited_log(small(), candidates=(None, np.arange(16) % 8, np.arange(16) // 4)),
    "items, one time": limited_log(small(1), candidates=(None, np.array([0, 3, 4, 7]), None)),
    "items at some times": limited_log(
        small(), candidates=(None, np.array([0, 1, 2, 2, 5]), np.array([0, 0, 0, 2, 2]))
    ),
    "visits and items": limited_log(
        small(), (np.repeat(np.arange(9), 2), np.arange(18) % 4), (None, np.array([0, 1, 2, 5, 7]), None)
    ),
    "listed": limited_log(small(), candidates=np.nonzero(SOME)),
}


class TestAgainstTheSlowTwin:
    @pytest.mark.parametrize("name", LOGS)
    @pytest.mark.parametrize("ties", [False, True])
    @pytest.mark.parametrize("make", [gains.doubly_robust, gains.snips, gains.ips])
    def test_every_estimator(self, name: str, ties: bool, make: Any) -> None:
        log = LOGS[name]
        scores = np.random.default_rng(3).integers(0, 3 if ties else 10_000, (9, 8)).astype(float)
        made = make(log)
        result = evaluate(scores, made, METRICS)
        for metric in METRICS:
            expected = slow(log, made.estimator, scores, metric)
            assert result[metric].mean == pytest.approx(expected, abs=1e-12)
            assert result[metric].estimate.contributions.mean() == pytest.approx(expected, abs=1e-12)

    @pytest.mark.parametrize("name", LOGS)
    @pytest.mark.parametrize("metric", ["P@3", "DCG", "AR", "CAUC", "AUC"])
    def test_gains_that_are_no_estimate(self, name: str, metric: str) -> None:
        """The outcome, and AUC as the share of pairs of a bought and an unbought candidate in the right order."""
        log = LOGS[name]
        scores = np.random.default_rng(8).integers(0, 5, (9, 8)).astype(float)
        eligible, bought = eligible_cells(log), cube(log, log.outcome)
        if metric == "AUC":
            expected = sum(
                area(scores[u], eligible[u, :, t], bought[u, :, t]) for u in range(9) for t in range(log.n_times)
            )
        else:
            expected = (list_weights(scores, eligible, metric) * bought).sum()
        result = evaluate(scores, gains.outcome(log), metric)[metric]
        assert result.mean == pytest.approx(expected / eligible.any(axis=1).sum(), abs=1e-12)

    @pytest.mark.parametrize("name", ["items", "items by time", "listed"])
    def test_a_ranker_without_the_ineligible_items_is_the_same(self, name: str) -> None:
        """What could not be shown takes no rank, whatever its score is; unknown items and users come last."""
        log = LOGS[name]
        scores = np.random.default_rng(9).random((9, 8))
        never = ~eligible_cells(log).any(axis=(0, 2))
        for make in (gains.doubly_robust, gains.outcome):
            first, last = (evaluate(scores + shift * never, make(log), ["CP@3", "CDCG"]) for shift in (9.0, -9.0))
            assert first["CP@3"].mean == last["CP@3"].mean
            assert first["CDCG"].mean == last["CDCG"].mean
        table = pd.DataFrame(
            [(u, i, scores[u, i]) for u in range(7) for i in range(6)], columns=["user_id", "item_id", "score"]
        )
        filled = np.where((np.arange(8) < 6) & (np.arange(9) < 7)[:, None], scores, -1.0)
        made = gains.doubly_robust(log)
        assert made.estimator is not None
        for metric in METRICS:
            known = evaluate(table, made, metric, unlisted="last")[metric].mean
            assert known == pytest.approx(slow(log, made.estimator, filled, metric), abs=1e-12)

    @pytest.mark.parametrize("name", ["items by time", "listed"])
    def test_threads_do_not_change_a_bit_among_candidates(self, name: str) -> None:
        scores = np.random.default_rng(9).random((9, 8))
        one, three = (evaluate(scores, LOGS[name], METRICS, threads=n).to_frame() for n in (1, 3))
        pd.testing.assert_frame_equal(one, three, check_exact=True)

    def test_a_table_that_lists_too_few_candidates_is_refused(self) -> None:
        """Six of eight items are listed, but only four of the five candidates."""
        table = pd.DataFrame(
            [(u, i, -i) for u in range(9) for i in range(6)], columns=["user_id", "item_id", "score"]
        )
        with pytest.raises(
            InputError, match="the first 5 items, but the ranking lists fewer than 5 items for 9 users"
        ):
            evaluate(table, LOGS["items"], "CP@5")
        evaluate(table, LOGS["items"], "CP@4")


def test_right_on_average() -> None:
    """The mean over logs is the expected metric, with c from the log itself (cross-fitted)."""
    world = World.synthetic(60, 30, random_state=3)
    drawn = [evaluate(world.control_rate, world.sample(3, seed).log, "CP@5")["CP@5"].mean for seed in range(150)]
    truth = bounds.expected(world, world.control_rate, "CP@5")
    assert np.mean(drawn) == pytest.approx(truth, abs=4 * np.std(drawn) / len(drawn) ** 0.5)


def estimate(per_user: Any, per_time: Any, moments: Moments, unit: float, *limits: Any) -> Estimate:
    """Where everybody visits always."""
    visits = np.full(len(per_user), len(per_time)), np.full(len(per_time), len(per_user))
    return Estimate(per_user, per_time, visits, moments, unit, *limits)


def rows_of(weight: Any, outcome: Any, treated: Any = True, propensity: Any = 0.01, value: Any = None) -> Events:
    """Rows that add their outcome times their weight."""
    treated, propensity = (np.broadcast_to(column, len(weight)) for column in (treated, propensity))
    outcome = np.asarray(outcome, np.float64)
    return Events(
        np.arange(len(weight)), weight, outcome, treated, propensity, weight * outcome if value is None else value
    )


def events(
    rng: np.random.Generator, users: int, times: int, low: float, high: float, rates: tuple[float, float],
    shock: float = 0.0,
) -> Estimate:  # fmt: skip
    """IPS of CP@10 for a log of its ten items; ``shock`` is the spread of the log of a factor common to a time."""
    shape = (users, 10, times)
    chance = np.exp(rng.uniform(np.log(low), np.log(high), shape))
    treated = rng.random(shape) < chance
    common = np.exp(rng.normal(-(shock**2) / 2, shock, times)) if shock else 1.0
    outcome = rng.random(shape) < np.where(treated, *rates) * common
    weight = 0.1 * np.where(treated, 1 / chance, -1 / (1 - chance))
    value, kept, n = weight * outcome, treated | outcome, users * times
    rows = rows_of(weight[kept] / n, outcome[kept], treated[kept], chance[kept])
    per_user, per_time = value.sum((1, 2)) / times, value.sum((0, 1)) / users
    return estimate(per_user, per_time, Moments.of(rows), 0.1 / n, (-1.0, 1.0))


@pytest.mark.statistical
class TestCoverage:
    """A small version of ``benchmarks/coverage.py``: the bootstrap covers 12 to 85 % of the rare cases."""

    @pytest.mark.parametrize(
        ("case", "least", "most"),
        [
            ((300, 2, 0.1, 0.5, (0.03, 0.01)), 0.925, 0.98),  # good overlap
            ((800, 4, 0.01, 0.5, (0.05, 0.02)), 0.925, 0.985),  # heavy weights
            ((200, 1, 0.005, 0.02, (0.01, 0.003)), 0.93, 1.0),  # rarely shown items first
            ((1000, 1, 0.005, 0.02, (0.003, 0.001)), 0.93, 1.0),
            ((3, 10, 0.2, 0.6, (0.1, 0.05)), 0.93, 1.0),  # three users
            ((10, 10, 0.2, 0.6, (0.1, 0.05)), 0.92, 1.0),
            ((300, 2, 0.97, 0.998, (0.1, 0.05)), 0.93, 1.0),  # hardly ever withheld
        ],
    )
    def test_it_covers_as_often_as_it_says(self, case: Any, least: float, most: float) -> None:
        rng, truth = np.random.default_rng(11), case[-1][0] - case[-1][1]
        ends = np.array([events(rng, *case).interval() for _ in range(400)])
        covered = float(np.mean((ends[:, 0] <= truth) & (truth <= ends[:, 1])))
        assert least <= covered <= most

    @pytest.mark.parametrize("times", [3, 4, 5, 8, 20])
    @pytest.mark.parametrize("shock", [0.0, 0.1, 0.3, 1.0, 3.0, 10.0, 1e6])
    def test_a_few_times_cover_whatever_they_have_in_common(self, times: int, shock: float) -> None:
        """By integration, not by chance: rows have the variance 1, a time adds ``shock`` to that of the mean.

        The variance between times is then (1 + shock)·χ²(T−1)/(T−1), independent of the mean, which is normal.
        """
        between = (1.0 + shock) * chdtri(times - 1, (np.arange(4000) + 0.5) / 4000) / (times - 1)
        pairs = [clustered_variance(1.0, 10**9, one, times, 1.0) for one in between]
        half = np.array([np.sqrt(variance) * stdtrit(freedom, 0.975) for variance, freedom in pairs])
        covered = float(np.mean(2.0 * ndtr(half / np.sqrt(1.0 + shock)) - 1.0))
        assert 0.93 <= covered <= 0.971

    def test_it_covers_where_times_have_something_in_common(self) -> None:
        """With the variance between users alone it covers 77 %.

        By the integration above it covers 94.3 % where the mean is normal (4 times, a shock of 1.65 times the rows'
        variance, as here); of 600 logs the share is within 4 standard errors, 0.95 % each.
        """
        rng = np.random.default_rng(12)
        ends = np.array([events(rng, 200, 4, 0.1, 0.5, (0.1, 0.04), 0.35).interval() for _ in range(600)])
        covered = float(np.mean((ends[:, 0] <= 0.06) & (ends[:, 1] >= 0.06)))
        assert 0.943 - 4 * 0.0095 <= covered <= 0.943 + 4 * 0.0095

    def test_a_list_that_was_never_shown_may_have_any_effect_up_to_its_weight(self) -> None:
        rows = rows_of(np.full(2, -0.01), np.ones(2), False, 0.1)
        per_user = np.array([-0.1, -0.1, 0.0, 0.0, 0.0])
        low, high = estimate(per_user, per_user.mean(keepdims=True), Moments.of(rows), 0.01, (-0.5, 0.5)).interval()
        assert high == 0.5
        assert -0.5 < low < per_user.mean()

    def test_without_other_times_the_variance_is_that_of_the_mean_over_users(self) -> None:
        rng = np.random.default_rng(1)
        one = events(rng, 20, 1, 0.2, 0.6, (0.3, 0.1))
        variance, freedom = one.clustered()
        assert variance == pytest.approx(one.per_user.var(ddof=1) / 20, rel=1e-12)
        assert freedom == 19.0

    def test_one_poisson_count_is_jeffreys(self) -> None:
        """Equal weights, many users, one arm: limits of Gamma(x + ½) above, Gamma(x) below."""
        from scipy.stats import gamma

        users, weight = 100_000, 1e-5
        rows = rows_of(np.full(5000, weight), np.arange(5000) < 4)
        per_user = np.zeros(users)
        per_user[:4] = weight * users
        low, high = estimate(per_user, np.array([per_user.mean()]), Moments.of(rows), 1e-12).interval()
        assert high == pytest.approx(weight * gamma.ppf(0.975, 4.5), rel=0.02)
        assert low == pytest.approx(weight * gamma.ppf(0.025, 4), rel=0.02)


def expected_moments(weight: Any, outcome: Any) -> tuple[Any, float]:
    """What the upper limit expects of treated rows with these weights."""
    *moments, common = Moments.of(rows_of(weight, outcome)).expected(1.0, 1.0)
    return np.array(moments), common


class TestExpectedMoments:
    """Of rows by their chance of an outcome, which the log's own purchases tell."""

    def test_equal_weights_have_one_rate_and_the_covariance_of_what_was_seen(self) -> None:
        moments, common = expected_moments(np.full(1000, 2.0), (np.arange(1000) < 30).astype(float))
        assert moments == pytest.approx([30.5 / 1001 * 1000 * 2.0**j for j in (2, 3, 4)])
        assert common == pytest.approx(moments[1])

    def test_no_rows(self) -> None:
        moments, common = expected_moments(np.zeros(0), np.zeros(0))
        assert (moments == 0).all()
        assert common == 0.0

    @pytest.mark.parametrize("tilt", [-0.4, 0.0, 0.4])
    def test_by_simulation(self, tilt: float) -> None:
        """The second moment is right on average within 5 %, and varies with the sum as the covariance says.

        The prior pulls a tilt of ±0.4 toward 0, by some 5 % of it with 150 purchases.
        """
        rng = np.random.default_rng(3)
        weight = np.exp(rng.uniform(0.0, 4.0, 3000))
        rate = 0.05 * weight**tilt / np.mean(weight**tilt)
        drawn = [(rng.random(3000) < rate).astype(float) for _ in range(2000)]
        second, common = np.array([(one[0][0], one[1]) for one in (expected_moments(weight, y) for y in drawn)]).T
        sums = np.array([weight @ y for y in drawn])
        assert second.mean() == pytest.approx(np.sum(weight**2 * rate), rel=0.05)
        product = (sums - sums.mean()) * (second - second.mean())
        assert product.mean() == pytest.approx(
            common.mean(), abs=4 * product.std() / 2000**0.5 + 0.05 * common.mean()
        )
        assert common.mean() < 0.9 * np.sum(weight**3 * rate)  # less than that of a variance that was seen


def test_rows_of_weight_zero_count_for_nothing() -> None:
    """They occur in paired differences; where P > ½ a treated row would stand for control cells."""
    rng = np.random.default_rng(2)
    weight = rng.normal(size=60)
    rows = rows_of(weight, rng.random(60) < 0.4, rng.random(60) < 0.6, rng.random(60), weight * 0.3)
    with_zeros = Events(*(np.concatenate([column, column[:20]]) for column in rows))
    with_zeros.weight[60:] = with_zeros.value[60:] = 0.0
    first, second = Moments.of(rows), Moments.of(with_zeros)
    for side in (-1.0, 1.0):
        assert first.expected(side, 0.1) == pytest.approx(second.expected(side, 0.1), rel=1e-12)
    assert first.squares == pytest.approx(second.squares)
    assert (first.rows, first.treated, first.positive) == (second.rows, second.treated, second.positive)


class TestVerdict:
    def test_good_overlap_is_believed_and_said_first(self, log: Log) -> None:
        result = evaluate(TODAY, log, "CP@10")
        assert result.verdict is not None
        assert result.verdict.believe
        assert str(result).startswith("Believe it, because the propensities fit")
        assert result.to_frame()["believe"].tolist() == [True]

    def test_propensities_that_do_not_fit_are_refused(self, log: Log) -> None:
        chance = log.recorded_propensity("a test")
        wrong = log.with_propensity(chance / np.where(log.treated == 1, 3.0, 1.0))
        for made in (wrong, gains.ips(wrong), gains.capped_ips(wrong, 0.01)):
            text = str(evaluate(TODAY, made, "CP@10"))
            assert text.startswith("Do not believe it, because the log shows the items on this list ")

    @pytest.mark.parametrize(
        ("users", "chance", "recorded", "rate", "k", "reason"),
        [
            (
                400,
                np.where(np.arange(20) < 10, 0.4, 0.0),
                0.01,
                0.2,
                20,
                "50% of the list lies on pairs that",
            ),
            (300, np.full(12, 0.005), 0.005, 0.005, 10, r"purchases of recommended items \(at least 10 needed\)"),
            (6, np.full(30, 0.5), 0.5, 0.5, 30, r"it rests on 6 users \(at least 20 needed\)"),
        ],
    )
    def test_what_the_log_cannot_tell_is_refused(
        self, users: int, chance: Any, recorded: float, rate: float, k: int, reason: str
    ) -> None:
        """A list that is half never shown, one that is rarely shown, and few users."""
        rng = np.random.default_rng(5)
        chances = np.broadcast_to(chance[None, :, None], (users, len(chance), 2))
        shown = rng.random(chances.shape) < chances
        drawn = dense_log(shown, rng.random(chances.shape) < rate, np.maximum(chances, recorded))
        scores = np.tile(-np.arange(float(len(chance))), (users, 1))
        verdict = evaluate(scores, drawn, f"CP@{k}")["CP@" + str(k)].verdict
        assert verdict is not None
        assert not verdict.believe
        assert re.search(reason, verdict.reason)

    def test_where_overlap_fails_only_the_worst_case_is_certain(self) -> None:
        personal = WORLD.personalized(2.0)
        truth = bounds.expected(personal, TODAY, "CP@10")
        with pytest.warns(OverlapWarning):
            made = evaluate(TODAY, personal.sample(3, random_state=2).log, "CP@10", detail=True)
        assert made.verdict is not None
        assert not made.verdict.believe
        (worst,) = made.estimators().query("estimator == 'worst case'").to_dict("records")
        assert f"all that is certain is {worst['low']:.3g} to" in str(made.verdict)
        assert worst["low"] <= truth <= worst["high"]
        assert worst["low"] > -1.0

    def test_the_training_log_is_refused(self, log: Log) -> None:
        from taurank import Popular
        from taurank.errors import TrainingLogWarning

        with pytest.warns(TrainingLogWarning):
            result = evaluate(Popular().fit(log), log, "CP@10")
        assert str(result).startswith("Do not believe it, because the model was trained on the log it is measured on")

    def test_the_truth_has_no_verdict(self) -> None:
        result = evaluate(TODAY, WORLD.sample(1, random_state=2).truth, "CP@10")
        assert result.verdict is None
        assert not str(result).startswith(("Believe", "Do not"))

    def test_a_result_is_of_the_ranker_as_it_was(self, log: Log) -> None:
        scores = TODAY.astype(float)
        result, want = (evaluate(one, gains.ips(log), "CP@10") for one in (scores, TODAY.astype(float)))
        scores[:] = np.nan
        assert str(result) == str(want)
        assert result["CP@10"].interval(0.9) == want["CP@10"].interval(0.9)


@pytest.fixture(scope="module")
def made(log: Log) -> Any:
    rankers = {"today": TODAY, "better": BETTER, "also today": TODAY.copy()}
    return evaluate(rankers, log, ["CP@10", "CAR"], by=np.where(np.arange(300) % 3, "a", "b"), detail=True)


class TestSeveral:
    def test_one_row_per_estimator_the_recommended_first(self, made: Any) -> None:
        rows = made.estimators().query("segment == 'all' and ranker == 'today' and metric == 'CP@10'")
        assert rows["estimator"].tolist()[:3] == ["doubly robust", "SNIPS", "IPS"]
        assert rows["estimator"].iloc[-1].startswith("SLOPE: ")
        assert rows["estimate"].iloc[0] == made["today"]["CP@10"].mean
        assert len(made.to_frame()) == 3 * 2 * 3
        assert (made.estimators()["low"] <= made.estimators()["estimate"]).all()

    def test_the_choice_is_the_better_one(self, made: Any) -> None:
        assert made.choice == "better"
        assert str(made).startswith("Believe it, because better is clearly better than today")
        assert max(map(len, str(made).splitlines())) <= 80
        assert set(made.verdicts) == {(r, m) for r in ("today", "better", "also today") for m in ("CP@10", "CAR")}

    def test_differences_are_paired(self, made: Any, log: Log) -> None:
        rows = made.to_frame().query("segment == 'all' and metric == 'CP@10'").set_index("ranker")
        assert rows.loc["also today", ["difference", "difference_low", "difference_high"]].tolist() == [0.0, 0.0, 0.0]
        pair = compare(BETTER, TODAY, log, "CP@10")
        assert rows.loc["better", "difference"] == pytest.approx(pair.difference)
        assert rows.loc["better", ["difference_low", "difference_high"]].tolist() == pytest.approx(
            list(pair.interval())
        )
        assert str(pair).startswith("Believe it")

    def test_a_segment_is_the_estimate_of_its_users(self, made: Any, log: Log) -> None:
        part = made.segments["a"]["better"]["CP@10"]
        per_user = evaluate(BETTER, log, "CP@10")["CP@10"].per_user
        assert part.mean == pytest.approx(per_user[np.arange(300) % 3 != 0].mean())

    def test_segments_as_a_frame_or_a_mapping(self, log: Log) -> None:
        users = log.users.values.to_pylist()
        frame = pd.DataFrame({"user_id": users[:200], "region": ["x"] * 200})
        for by in (frame, dict.fromkeys(users[:200], "x")):
            made = evaluate(TODAY, log, "CP@5", by=by)
            assert made.to_frame()["segment"].tolist() == ["all", "(none)", "x"]

    @pytest.mark.parametrize(
        ("by", "sentence"),
        [
            (pd.DataFrame({"user_id": [1]}), "needs user_id and one more column"),
            (["a"], "one label per user"),
            ({-5: "a"}, "names none of the users"),
            (3, "a frame, a mapping or labels"),
        ],
    )
    def test_bad_segments(self, log: Log, by: Any, sentence: str) -> None:
        with pytest.raises(InputError, match=sentence):
            evaluate(TODAY, log, "CP@5", by=by)

    def test_two_equal_rankings_cannot_be_told_apart(self, log: Log) -> None:
        made = evaluate({"a": TODAY, "b": TODAY + 1e-9 * BETTER}, log, "CP@10")
        assert made.choice is None
        assert "no ranking is clearly better than a" in str(made)

    def test_a_metric_of_all_items_alike_is_the_same_for_any_two_rankings(self, log: Log) -> None:
        pair = compare(TODAY, BETTER, log, f"CP@{log.n_items}")
        assert pair.interval() == (0.0, 0.0)

    def test_bad_arguments(self, log: Log) -> None:
        with pytest.raises(InputError, match="AUC needs gains of 0 or 1"):
            evaluate(TODAY, log, "AUC")
        with pytest.raises(InputError, match="AUC is not a weighted sum of effects; estimate CAUC"):
            evaluate(TODAY, gains.ips(log.with_propensity(np.full(len(log), 0.5)).take(np.zeros(0, int))), "AUC")
        with pytest.raises(InputError, match="by and detail need an estimate"):
            evaluate(TODAY, gains.outcome(log), "P@10", detail=True)


def test_slope_takes_the_largest_cap_that_agrees() -> None:
    def spread(mean: float, half: float) -> Any:
        return type("Spread", (), {"mean": mean, "interval": lambda self, level: (mean - half, mean + half)})()

    assert slope([spread(1.0, 1.0), spread(1.2, 0.5), spread(1.4, 0.1), spread(9.0, 0.01)], 0.95) == 2
    assert slope([spread(1.0, 0.1)], 0.95) == 0


@pytest.mark.parametrize("size", [1e-9, 1.0, 1e9])
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_sums_over_parts_of_the_events_give_the_interval_of_the_whole(size: float, share: float) -> None:
    """Also where only one arm was seen, and where P is near 1."""
    rng = np.random.default_rng(8)
    n, users, times = 400, 50, 6
    propensity = np.where(rng.random(n) < 0.3, rng.uniform(0.9, 1.0, n), rng.uniform(0.01, 1.0, n))
    treated, outcome = rng.random(n) < share, (rng.random(n) < 0.3).astype(float)
    weight = size * rng.choice([1.0, 0.5, -0.2], n) * np.where(treated, 1 / propensity, -1 / (1 - propensity))
    events = rows_of(weight, outcome, treated, propensity)
    per_user: Any = np.bincount(rng.integers(0, users, n), weight * outcome, minlength=users)
    per_time: Any = np.bincount(rng.integers(0, times, n), weight * outcome, minlength=times)
    parts = np.split(np.arange(n), [0, 3, 250])  # one of them is empty
    columns: list[Any] = list(events)
    sums = Moments.added([Moments.of(Events(*(column[part] for column in columns))) for part in parts])
    whole, added = (estimate(per_user, per_time, one, size).interval() for one in (Moments.of(events), sums))
    assert added == pytest.approx(whole, rel=1e-9)


def test_two_times_are_said_before_the_number() -> None:
    log = WORLD.sample(2, random_state=3).log
    assert str(evaluate(TODAY, log, "CP@10")).startswith("Believe it with caution (two times say little")
    lead, _, rest = str(evaluate({"a": TODAY, "b": BETTER}, log, "CP@10")).partition("ranker ")
    assert "Caution: two times say little" in " ".join(lead.split())
    assert "two times" not in rest
    assert "two times" not in str(evaluate(TODAY, WORLD.sample(3, random_state=3).log, "CP@10"))


def test_a_difference_has_no_rows_that_differ_by_rounding_alone() -> None:
    n = 50
    weight, outcome = np.linspace(1.0, 2.0, n), np.arange(n) % 2
    nearly = weight * (1.0 + 3 * np.finfo(float).eps)
    nearly[7] *= 1.5
    first, other = rows_of(weight, outcome), rows_of(nearly, outcome)
    assert first.minus(other).row.tolist() == [7]
