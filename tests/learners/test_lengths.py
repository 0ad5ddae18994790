"""The length of a fit: several are made, and the effects that another method finds in the log choose among them."""

from __future__ import annotations

import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from taurank import BLCE, BPR, DLCE, EmpiricalBayes, InputError, Log, Random, World, evaluate, gains, load
from taurank.data.eligibility import Eligibility
from taurank.errors import UnfinishedWarning
from taurank.learners import lengths, training
from taurank.learners.options import Record, TrainingOptions
from taurank.learners.pairwise import worth_cap

SMALL: dict[str, Any] = {"factors": 4, "learning_rate": 0.05, "random_state": 0}


@pytest.fixture(scope="module")
def small() -> Log:
    return World.synthetic(60, 40, random_state=0).sample(4, random_state=1).log


def with_visits(log: Log) -> Log:
    """A fifth of the visits, and of the rows, taken away."""
    users, times = np.nonzero(np.random.default_rng(0).random((log.n_users, log.n_times)) < 0.8)
    table = Eligibility.from_positions(log.catalog, (users, times))
    return replace(log.take(table.contains(log.user, log.item, log.time)), eligibility=table)


def test_lengths_double_up_to_the_epochs_of_a_fit() -> None:
    assert lengths.lengths_of(200) == [12, 25, 50, 100, 200]
    assert lengths.lengths_of(60) == [15, 30, 60]
    assert lengths.lengths_of(23) == [23]


def test_the_judge_knows_the_posterior_effects_of_all_pairs(small: Log) -> None:
    model = EmpiricalBayes(random_state=0).fit(small)
    for log in (small, replace(small, value=small.outcome.astype(float))):
        found = lengths.judge(lengths.sample_of(log), None, 1)
        assert found is not None
        dense = np.zeros((small.n_users, small.n_items))
        dense[found.user, found.item] = found.value
        assert np.array_equal(dense, model.score_block(np.arange(small.n_users, dtype=np.int32)))


def test_of_many_users_the_judge_takes_the_same_sample_every_time(small: Log, monkeypatch: Any) -> None:
    monkeypatch.setattr(lengths, "USERS", 50)
    monkeypatch.setattr(lengths, "CELLS", 20 * small.n_items)
    one, again = (lengths.judge(lengths.sample_of(small), None, threads) for threads in (1, 2))
    assert one is not None
    assert again is not None
    assert len(one) == 20 * small.n_items
    assert one.users == again.users
    assert np.array_equal(one.value, again.value)


def test_one_arm_alone_has_no_effects_to_judge_by(small: Log) -> None:
    control = small.take(small.treated == 0)
    assert lengths.judge(control, None, 1) is None
    learner = BPR(**SMALL, epochs=30, threads=1).fit(control)
    assert len(learner.history_) == 30
    assert len(learner.lengths_) == 0


@pytest.mark.parametrize("visits", [False, True])
def test_a_fit_is_the_plain_fit_of_the_length_that_is_judged_best(small: Log, visits: bool) -> None:
    log = with_visits(small) if visits else small
    chosen = DLCE(**SMALL, cap=0.1, epochs=60, threads=1).fit(log)
    tried = chosen.lengths_["epoch"].tolist()
    assert tried[:2] == [30, 15]
    plain = {n: DLCE(**SMALL, cap=0.1, epochs=n, threads=2).fit(log, None) for n in tried}
    judge = lengths.judge(log, None, 1)
    assert judge is not None
    expected = [evaluate(model, judge, "CDCG")["CDCG"].mean for model in plain.values()]
    assert chosen.lengths_["CDCG"].tolist() == pytest.approx(expected, rel=1e-12)
    best = plain[len(chosen.history_)]
    assert expected[tried.index(len(chosen.history_))] >= max(expected) - training.CLEARLY * abs(max(expected))
    assert np.array_equal(chosen.user_factors_, best.user_factors_)
    assert chosen.history_["loss"].tolist() == best.history_["loss"].tolist()


@pytest.mark.parametrize("stop", [7, 22, 60])
def test_a_fit_that_was_killed_goes_on_with_its_length(small: Log, tmp_path: Path, stop: int) -> None:
    """After so many epochs of all lengths together."""

    class Killed(Exception):
        pass

    seen = []

    def kill(_: Any, record: Record) -> None:
        seen.append(record)
        if len(seen) == stop:
            raise Killed

    whole = DLCE(**SMALL, epochs=60, threads=1).fit(small)
    options: dict[str, Any] = {"checkpoint": tmp_path / "fit", "checkpoint_minutes": 0}
    with pytest.raises(Killed):
        DLCE(**SMALL, epochs=60, threads=1).fit(small, callback=kill, validate_every=1, **options)
    again = DLCE(**SMALL, epochs=60, threads=2).fit(small, validate_every=1, **options)
    assert np.array_equal(again.item_factors_, whole.item_factors_)
    assert again.lengths_.equals(whole.lengths_)
    assert again.history_.equals(whole.history_)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [DLCE, BPR])
@pytest.mark.parametrize("times", [1, 8])
def test_the_choice_is_as_good_as_any_length_by_the_truth(kind: Any, times: int) -> None:
    world = World.synthetic(600, 120, random_state=11)
    sample = world.sample(times, random_state=12)
    truth = world.sample(4, random_state=13).truth
    chosen = evaluate(kind(random_state=0).fit(sample.log), truth, "CDCG")["CDCG"].mean
    fits = [kind(random_state=0, epochs=n).fit(sample.log, None) for n in (12, 25, 50, 100, 200)]
    assert chosen >= 0.97 * max(evaluate(model, truth, "CDCG")["CDCG"].mean for model in fits)


@pytest.mark.parametrize("estimator", [
    gains.ips, partial(gains.capped_ips, cap=0.1), gains.snips, gains.doubly_robust, gains.recommended, gains.naive,
    gains.outcome,
])  # fmt: skip
@pytest.mark.parametrize("visits", [False, True])
def test_a_check_of_some_users_is_the_mean_of_the_whole_measurement_over_them(
    small: Log, estimator: Any, visits: bool
) -> None:
    measured, model = estimator(with_visits(small) if visits else small), Random(random_state=0).fit(small)
    options = TrainingOptions(measured, metric=["CP@10", "CDCG"], validation_users=7)
    assert options.sample is not None
    assert len(set(options.sample.tolist())) == 7
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        whole = evaluate(model, measured, ["CP@10", "CDCG"])
    for name, value in options.measure(model).items():
        assert value == pytest.approx(np.nanmean(whole[name].per_user[options.sample]), rel=1e-9)


def test_an_error_of_the_method_itself_ends_the_fit(small: Log) -> None:
    class Refuses(DLCE):
        def gains(self, log: Log) -> Any:
            raise InputError("not this log")

    with pytest.raises(InputError, match="not this log"):
        Refuses(epochs=20).fit(small)


def test_the_bold_setting_is_kept_where_it_is_judged_better(small: Log, tmp_path: Path) -> None:
    fits: list[float] = []
    chosen: Any = DLCE(**SMALL, epochs=60, threads=1).fit(
        small, callback=lambda model, _: fits.append(model.steps_[0])
    )
    first = chosen.lengths_["CDCG"][:2]
    bold = bool(first[1] > first[0])
    assert set(fits[:60]) == {1.0, 3.0}
    assert chosen.steps_.tolist() == ([3.0, pytest.approx(1 / 30)] if bold else [1.0, 1.0])
    chosen.save(tmp_path / "model")
    again: Any = load(tmp_path / "model")
    assert np.array_equal(again.caps_, chosen.caps_)
    assert np.array_equal(again.steps_, chosen.steps_)


@pytest.mark.parametrize(
    ("tried", "expected"),
    [
        ([], (0, 50)),
        ([(50, 1.0)], (1, 50)),
        ([(50, 1.0), (50, 2.0)], (1, 25)),
        ([(50, 1.0), (50, 2.0), (25, 1.0)], (1, 100)),
        ([(50, 1.0), (50, 2.0), (25, 1.0), (100, 2.1)], (1, 200)),
        ([(50, 1.0), (50, 2.0), (25, 1.0), (100, 1.9)], None),
        ([(50, 2.0), (50, 1.0), (25, 2.5), (100, 1.9)], (0, 12)),
        ([(50, 2.0), (50, 1.0), (25, 2.5), (100, 1.9), (12, 3.0)], None),
    ],
)
def test_the_search_goes_where_lists_get_better(tried: Any, expected: Any) -> None:
    assert lengths.following(200, 2, tried) == expected


def test_a_fit_tries_caps_worth_half_and_nine_tenths(small: Log) -> None:
    """Written out: the smallest of 0 and 20 caps per decade, and the steps that go with each."""
    rare = np.random.default_rng(0).random(len(small)) < 0.1
    log = small.with_propensity(np.where(rare == (small.treated == 1), 0.05, 0.95))  # a tenth of weights of 20

    def smallest(chances: Any, worth: float) -> float:
        for cap in (0.0, *(0.001 * 10 ** (step / 20) for step in range(61))):
            weights = [1 / max(chance, cap) for chance in chances]
            if sum(weights) ** 2 >= worth * len(weights) * sum(weight**2 for weight in weights):
                return cap
        raise AssertionError

    treated, control = ((log.outcome == 1) & (log.treated == arm) for arm in (1, 0))
    assert log.propensity is not None
    arms = log.propensity[treated], 1 - log.propensity[control]
    choices = list(DLCE()._choices(log))
    for choice, (worth, *steps) in zip(choices, ((0.5, 1.0, 1.0), (0.9, 3.0, 1 / 30)), strict=True):
        expected = [smallest(arm, worth) for arm in arms]
        assert min(expected) > 0.05
        assert choice["caps_"].tolist() == pytest.approx(expected)
        assert choice["steps_"].tolist() == pytest.approx(steps)


def test_caps_are_the_smallest_with_which_weights_are_worth_enough() -> None:
    chance = np.random.default_rng(0).beta(0.5, 2, 400)
    for worth in (0.5, 0.9):
        cap = worth_cap(chance, worth)
        worths = [np.sum(w) ** 2 / np.sum(w**2) / 400 for w in (1 / np.maximum(chance, c) for c in (cap, cap / 1.13))]
        assert worths[0] >= worth > worths[1]
    assert worth_cap(np.full(9, 0.3), 0.9) == 0


def test_rare_recommendations_do_not_diverge() -> None:
    treated, control, propensity = (np.full((200, 20), rate) for rate in (0.4, 0.1, 0.004))
    world = World(treated, control, propensity, np.arange(200), np.arange(20))
    log = world.sample(10, random_state=0).log
    for kind in (DLCE, BLCE):
        model: Any = kind(factors=8, epochs=30, random_state=0, threads=1).fit(log)
        assert model.steps_[0] < 1


@pytest.mark.parametrize(
    ("values", "warned"), [(range(1, 11), True), ([5] * 10, False), ([9, 10, 9, *[8] * 7], False)]
)
def test_a_curve_that_still_rises_is_said(values: Any, warned: bool) -> None:
    records = [Record(n, 1.0, 1, {"CDCG": float(value)}) for n, value in enumerate(values, 1)]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        TrainingOptions(None).warn_if_improving("DLCE", records, 10)
    assert [one.category for one in caught] == [UnfinishedWarning] * warned
