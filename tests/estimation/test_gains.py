"""Gains from a log: each estimator against its equation, cell by cell."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from taurank import Gains, Log, World, gains

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
    assert made.name == "outcome"
    assert made.overlap is None
    assert made.catalogue == log.catalogue


def test_naive_counts_absent_cells(log: Log) -> None:
    treated = 3 / 12  # of three users × four items
    expected = {("a", 1): 1 / treated, ("b", 3): 1 / treated}
    expected |= {("a", 2): -1 / (1 - treated), ("b", 2): -1 / (1 - treated)}
    assert as_dict(gains.naive(log)) == pytest.approx(expected)


def test_naive_counts_every_time() -> None:
    log = Log.from_frame(ROWS.assign(time=3), times=[1, 2, 3, 4])
    assert gains.naive(log).value.max() == pytest.approx(2 * 3 * 4 / 3)


def test_naive_needs_no_propensity() -> None:
    made = gains.naive(Log.from_frame(ROWS.drop(columns="propensity")))
    assert made.overlap is None
    assert len(made) == 4


def test_ips(log: Log) -> None:
    expected = {("a", 1): 1 / 0.5, ("a", 2): -1 / 0.8, ("b", 2): -1 / 0.0005, ("b", 3): 1 / 0.001}
    assert as_dict(gains.ips(log)) == pytest.approx(expected)


def test_capped_ips_caps_each_arm_by_its_own_probability(log: Log) -> None:
    both = {("a", 1): 1 / 0.6, ("a", 2): -1 / 0.8, ("b", 2): -1 / 0.6, ("b", 3): 1 / 0.6}
    assert as_dict(gains.capped_ips(log, 0.6)) == pytest.approx(both)
    apart = {("a", 1): 1 / 0.5, ("a", 2): -1 / 0.9, ("b", 2): -1 / 0.9, ("b", 3): 1 / 0.1}
    assert as_dict(gains.capped_ips(log, cap_treated=0.1, cap_control=0.9)) == pytest.approx(apart)
    mixed = as_dict(gains.capped_ips(log, 0.1, cap_control=0.9))
    assert mixed == pytest.approx(apart)


def test_an_arm_without_a_cap_is_not_capped(log: Log) -> None:
    ips, capped = as_dict(gains.ips(log)), as_dict(gains.capped_ips(log, cap_treated=0.6))
    assert capped["b", 2] == ips["b", 2]
    assert capped["b", 3] == pytest.approx(1 / 0.6)


def test_a_cap_of_zero_is_ips(log: Log) -> None:
    assert np.array_equal(gains.capped_ips(log, 0).value, gains.ips(log).value)


@pytest.mark.parametrize("cap", [-0.1, 1.1, float("nan"), "0.1", True])
def test_a_wrong_cap_is_refused(log: Log, cap: Any) -> None:
    with pytest.raises(ValueError, match="cap must"):
        gains.capped_ips(log, cap)
    with pytest.raises(ValueError, match="cap_control must"):
        gains.capped_ips(log, 0.1, cap_control=cap)


def test_a_cap_is_needed(log: Log) -> None:
    with pytest.raises(ValueError, match="needs a cap"):
        gains.capped_ips(log)


@pytest.mark.parametrize("make", [gains.ips, lambda log: gains.capped_ips(log, 0.1)])
def test_weighting_needs_propensities(make: Any) -> None:
    with pytest.raises(ValueError, match="needs the column 'propensity'"):
        make(Log.from_frame(ROWS.drop(columns="propensity")))


def test_estimators_remember_extreme_propensities_and_share_the_logs_arrays(log: Log) -> None:
    for made in (gains.naive(log), gains.ips(log), gains.capped_ips(log, 0.1)):
        assert made.overlap is not None
        assert np.shares_memory(made.overlap.user, log.user)
        assert np.shares_memory(made.overlap.item, log.item)
        assert made.overlap.extreme.tolist() == [False, False, False, True, True]


def test_a_log_where_nothing_happened() -> None:
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


def test_names_survive_reading(tmp_path: Any) -> None:
    frame = pd.DataFrame({"user_id": [1], "item_id": [2], "value": [1.0]})
    assert Gains.from_frame(frame, name="outcome").name == "outcome"
    Gains.from_frame(frame).write(tmp_path / "gains.parquet")
    assert Gains.read(tmp_path / "gains.parquet", name="outcome").name == "outcome"
    assert Gains.read(tmp_path / "gains.parquet").name == "gain"
