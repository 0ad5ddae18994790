"""Gains from a log: each estimator against its equation, cell by cell."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from taurank import Gains, Log, World, gains
from taurank.errors import InputError
from taurank.report.diagnosis import diagnose

ROWS = pd.DataFrame(
    {
        "user_id": ["a", "a", "b", "b", "b"],
        "item_id": [1, 2, 1, 2, 3],
        "treated": [1, 0, 1, 0, 1],
        "outcome": [1, 1, 0, 1, 1],
        "propensity": [0.5, 0.2, 0.4, 0.9995, 0.001],
    }
)


@pytest.fixture
def log() -> Log:
    return Log.from_frame(ROWS, users=["b", "a", "c"], items=[3, 2, 1, 0])


def as_dict(made: Gains) -> dict[tuple[Any, Any], float]:
    frame = made.to_frame()
    return dict(zip(zip(frame["user_id"], frame["item_id"], strict=True), frame["value"], strict=True))


def test_outcome_keeps_only_what_happened(log: Log) -> None:
    made = gains.outcome(log)
    assert as_dict(made) == {("a", 1): 1.0, ("a", 2): 1.0, ("b", 2): 1.0, ("b", 3): 1.0}
    assert (made.name, made.kind) == ("outcome", "outcome")
    assert made.extreme is None
    assert made.catalog == log.catalog


def test_naive_counts_absent_cells_at_every_time_and_needs_no_propensity(log: Log) -> None:
    treated = 3 / 12  # of three users × four items
    expected = {("a", 1): 1 / treated, ("b", 3): 1 / treated}
    expected |= {("a", 2): -1 / (1 - treated), ("b", 2): -1 / (1 - treated)}
    assert as_dict(gains.naive(log)) == pytest.approx(expected)
    made = gains.naive(Log.from_frame(ROWS.drop(columns="propensity").assign(time=3), times=[1, 2, 3, 4]))
    assert made.value.max() == pytest.approx(2 * 3 * 4 / 3)
    assert made.extreme is None


@pytest.mark.parametrize(
    ("caps", "treated", "control"),
    [
        ({"cap": 0.6}, 0.6, 0.6),
        ({"cap_treated": 0.1, "cap_control": 0.9}, 0.1, 0.9),
        ({"cap": 0.1, "cap_control": 0.9}, 0.1, 0.9),
        ({"cap_treated": 0.6}, 0.6, 0.0),  # an arm without a cap is not capped
        ({"cap": 0.2, "cap_treated": 0}, 0.0, 0.2),
        ({"cap": 0}, 0.0, 0.0),
    ],
)
def test_capped_ips_caps_each_arm_by_its_own_probability(log: Log, caps: Any, treated: float, control: float) -> None:
    expected = {("a", 1): 1 / max(0.5, treated), ("b", 3): 1 / max(0.001, treated)}
    expected |= {("a", 2): -1 / max(0.8, control), ("b", 2): -1 / max(0.0005, control)}
    assert as_dict(gains.capped_ips(log, **caps)) == pytest.approx(expected)
    if not any(caps.values()):
        assert as_dict(gains.ips(log)) == pytest.approx(expected)


@pytest.mark.parametrize("cap", [-0.1, 1.1, float("nan"), "0.1", True])
def test_a_wrong_cap_is_refused(log: Log, cap: Any) -> None:
    with pytest.raises(ValueError, match="cap must"):
        gains.capped_ips(log, cap)
    with pytest.raises(ValueError, match="cap_control must"):
        gains.capped_ips(log, 0.1, cap_control=cap)


def test_estimates_need_propensities_and_capped_ones_a_cap(log: Log) -> None:
    with pytest.raises(InputError, match="needs a cap"):
        gains.capped_ips(log)
    for make in (gains.ips, gains.snips, gains.doubly_robust):
        with pytest.raises(InputError, match="needs the column 'propensity'"):
            make(replace(log, propensity=None))


def test_estimates_know_which_logged_cells_lack_overlap(log: Log) -> None:
    for made in (gains.naive(log), gains.ips(log), gains.capped_ips(log, 0.1)):
        assert made.kind == "effect"
        assert made.log is log
        assert made.extreme is not None
        assert made.extreme.tolist() == [False, False, False, True, True]


@pytest.mark.parametrize("p", [1e-3, 1 - 1e-3, np.nextafter(1e-3, 1), np.nextafter(1 - 1e-3, 0)])
def test_the_diagnosis_and_the_estimates_agree_where_overlap_ends(p: float) -> None:
    """At exactly 0.001 and 0.999 both count a cell as lacking overlap; one bit further inside neither does."""
    rows = {"user_id": [0, 1], "item_id": [0, 0], "treated": [1, 0], "outcome": [1, 1], "propensity": [p, p]}
    log = Log.from_frame(pd.DataFrame(rows))
    at_limit = p in (1e-3, 1 - 1e-3)
    extreme = gains.ips(log).extreme
    diagnosed = diagnose(log)
    assert extreme is not None
    assert extreme.tolist() == [at_limit, at_limit]
    for arm in (diagnosed.treated, diagnosed.control):
        assert (arm.never, arm.always) == (int(p == 1e-3), int(p == 1 - 1e-3))


@pytest.mark.parametrize("make", [gains.outcome, gains.naive, gains.ips, gains.doubly_robust])
@pytest.mark.parametrize("odd", [ROWS, None, "log.csv"])
def test_only_a_log_makes_gains(make: Any, odd: Any) -> None:
    with pytest.raises(InputError, match=r"log must be a Log, got .*; make one with Log\.from_frame"):
        make(odd)


def test_a_tiny_propensity_is_inverted_or_refused(log: Log) -> None:
    tiny = log.with_propensity([1e-70] * 5)
    assert gains.ips(tiny).value.max() == pytest.approx(1e70)
    with pytest.raises(InputError, match="too small to be inverted; give a cap"):
        gains.ips(log.with_propensity([1e-80] * 5))
    assert gains.capped_ips(log.with_propensity([1e-310] * 5), 0.01).value.max() == pytest.approx(100)


def test_where_selects_cells_by_value(log: Log) -> None:
    made = gains.ips(log)
    kept = made.where(lambda value: value > 0)
    assert as_dict(kept) == {pair: value for pair, value in as_dict(made).items() if value > 0}
    assert (kept.name, kept.kind, kept.log) == (made.name, made.kind, log)
    wrong: list[Any] = [lambda value: value, lambda value: True, lambda value: value[:1] > 0]
    for odd in wrong:
        with pytest.raises(InputError, match="returns True or False for each"):
            made.where(odd)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"user": np.array([0, 9], np.int32)}, "user_id positions must be between 0 and 1; 1 are not, for example 9"),
        ({"item": np.array([-1, 0], np.int32)}, "item_id positions"),
        ({"time": np.array([0, 1], np.int32)}, "time positions"),
        ({"user": np.array([0, 2**32], np.int64)}, "user_id positions"),
        ({"user": np.array([0.0, 1.0])}, "user_id positions must be integers"),
        ({"item": np.array([0], np.int32)}, "must be arrays of the same length"),
        ({"value": np.array([1.0])}, "must be arrays of the same length"),
        ({"value": np.array([1.0, np.nan])}, "must be finite; wrong in 1 cell, for example nan"),
        ({"value": ["a", "b"]}, "must be numbers"),
        ({"kind": "truth"}, "kind must be one of 'effect', 'outcome', got 'truth'"),
        ({"kind": [1]}, "kind must be"),
        ({"catalog": None}, "catalog must be a Catalog"),
    ],
)
def test_gains_are_checked_when_they_are_made(change: dict[str, Any], sentence: str) -> None:
    frame = pd.DataFrame({"user_id": [1, 2], "item_id": [1, 2], "value": [1.0, 2.0]})
    with pytest.raises(InputError, match=sentence):
        replace(Gains.from_frame(frame), **change)


def test_gains_refuse_the_log_of_another_catalog(log: Log) -> None:
    with pytest.raises(InputError, match="must have the catalog of the gains"):
        replace(gains.ips(log), log=Log.from_frame(ROWS))
    nothing = Log.from_frame(ROWS.assign(outcome=0))
    for made in (gains.outcome(nothing), gains.naive(nothing), gains.ips(nothing)):
        assert len(made) == 0


def test_ips_is_unbiased_and_naive_is_not() -> None:
    """Mean of the summed gains over 2,000 logs of one world, against the summed effects."""
    world = World.synthetic(6, 5, random_state=3, purchase_rate=0.3)
    sample = world.sample(times=2000, random_state=4)
    effect = (world.treated_rate.astype(float) - world.control_rate.astype(float)).sum()
    means, errors = [], []
    for made in (gains.ips(sample.log), gains.naive(sample.log)):
        per_time = np.bincount(made.time, made.value, minlength=2000)
        means.append(per_time.mean() - effect)
        errors.append(per_time.std() / np.sqrt(2000))
    assert abs(means[0]) < 3 * errors[0]
    assert abs(means[1]) > 3 * errors[1]


def test_a_name_and_a_kind_can_be_declared(tmp_path: Any) -> None:
    frame = pd.DataFrame({"user_id": [1], "item_id": [2], "value": [1.0]})
    Gains.from_frame(frame, name="bought", kind="outcome").write(tmp_path / "gains.parquet")
    for options, expected in (({}, ("gain", None)), ({"name": "bought", "kind": "outcome"}, ("bought", "outcome"))):
        read = Gains.read(tmp_path / "gains.parquet", **options)  # type: ignore[arg-type]
        assert (read.name, read.kind) == expected


@pytest.mark.parametrize("estimate", [gains.outcome, gains.naive, gains.ips, gains.snips, gains.doubly_robust])
def test_outcomes_that_are_worth_seven_have_seven_times_the_gain(estimate: Any) -> None:
    log = World.synthetic(40, 20, 1).sample(3, random_state=2).log
    worth = replace(log, value=np.full(len(log), 7.0))
    np.testing.assert_allclose(estimate(worth).value, 7.0 * estimate(log).value, rtol=1e-9)
