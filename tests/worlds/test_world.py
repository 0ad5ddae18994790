"""Worlds: sampling follows the probabilities, personalized and misspecified propensities the equations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.special import expit, logit

import taurank as tr
from taurank import World
from taurank.data import storage
from taurank.errors import InputError
from taurank.worlds.shop import Shop

RATES = np.array([[0.0, 1.0, 0.5], [0.2, 0.9, 0.1]])


def small_world() -> World:
    return World(RATES, RATES[::-1], np.full((2, 3), 0.3), ["x", "y"], [5, 6, 7])


class TestSampling:
    def test_log_and_truth_agree_with_an_obvious_simulation(self) -> None:
        """Frequencies of every observable pattern of a cell equal their probabilities."""
        world = small_world()
        times = 40_000
        sample = world.sample(times, random_state=0)
        log, truth = sample.log, sample.truth
        effect = np.zeros((2, 3))
        np.add.at(effect, (truth.user, truth.item), truth.value)
        for user in range(2):
            for item in range(3):
                rows = (log.user == user) & (log.item == item)
                treated, control, p = (
                    float(rates[user, item]) for rates in (world.treated_rate, world.control_rate, world.propensity)
                )
                expected = {(1, 1): p * treated, (1, 0): p * (1 - treated), (0, 1): (1 - p) * control}
                for (z, y), probability in expected.items():
                    seen = np.count_nonzero(rows & (log.treated == z) & (log.outcome == y)) / times
                    assert seen == pytest.approx(probability, abs=4 * np.sqrt(0.25 / times))
                assert effect[user, item] / times == pytest.approx(treated - control, abs=4 * np.sqrt(0.5 / times))

    def test_potential_outcomes_are_independent_of_treatment(self) -> None:
        world = World(np.full((1, 1), 0.5), np.full((1, 1), 0.5), np.full((1, 1), 0.5), [0], [0])
        sample = world.sample(50_000, random_state=3)
        both = np.zeros(50_000)
        both[sample.truth.time] = sample.truth.value
        is_treated = np.zeros(50_000, bool)
        is_treated[sample.log.time[sample.log.treated == 1]] = True
        assert both[is_treated].mean() == pytest.approx(0.0, abs=0.02)
        assert np.count_nonzero(both) / 50_000 == pytest.approx(0.5, abs=0.01)

    def test_rows_with_nothing_are_absent_and_the_catalog_is_whole(self) -> None:
        sample = small_world().sample(3, random_state=1)
        assert ((sample.log.treated == 1) | (sample.log.outcome == 1)).all()
        for part in (sample.log, sample.truth):
            assert (part.n_users, part.n_items, part.n_times) == (2, 3, 3)
        assert set(np.unique(sample.truth.value)) <= {-1.0, 1.0}

    def test_same_seed_same_ordered_log_for_any_number_of_threads(self) -> None:
        world = World.synthetic(37, 23, random_state=0)
        first = world.sample(5, random_state=7, threads=1)
        second = world.sample(5, random_state=7, threads=2)
        order = np.lexsort((first.log.item, first.log.user, first.log.time))
        assert (order == np.arange(len(order))).all()
        assert first.log.equals(second.log)
        assert np.array_equal(first.truth.value, second.truth.value)
        assert not first.log.equals(world.sample(5, random_state=8).log)
        rng = np.random.default_rng(0)
        assert not world.sample(5, rng).log.equals(world.sample(5, rng).log)

    def test_a_block_of_users_gives_the_same_rows_as_the_whole_world(self) -> None:
        """Draws depend on the cell alone: the first users of a one-time world do not notice the others."""
        world = World.synthetic(30, 11, random_state=0)
        treated, control, shown = (rates[:10] for rates in (world.treated_rate, world.control_rate, world.propensity))
        part = World(treated, control, shown, np.arange(10), world.items)
        whole, block = (w.sample(1, random_state=5).log.to_frame() for w in (world, part))
        first = whole[whole["user_id"] < 10].reset_index(drop=True)
        assert first.equals(block)


class TestPersonalized:
    def test_equation_and_mean(self) -> None:
        world = World.synthetic(9, 40, random_state=2)
        personal = world.personalized(beta=1.5)
        alpha = personal.origin["personalized"]["alpha"]
        wide = [r.astype(np.float64) for r in (world.treated_rate, world.control_rate, world.propensity)]
        purchase = wide[2] * wide[0] + (1 - wide[2]) * wide[1]
        for user in range(9):
            for item in range(40):
                rank = 1 + np.count_nonzero(purchase[user] > purchase[user, item])
                expected = np.clip(min(1.0, alpha * (1 / rank) ** 1.5), 1e-6, 1 - 1e-6)
                assert personal.propensity[user, item] == pytest.approx(expected, rel=1e-6)
        assert personal.propensity.mean() == pytest.approx(world.propensity.mean(), abs=1e-6)

    def test_ties_follow_the_catalog_and_beta_zero_is_even(self) -> None:
        flat = np.full((2, 5), 0.1)
        world = World(flat, flat, np.full((2, 5), 0.2), [0, 1], list("abcde"))
        assert (np.diff(world.personalized(2.0).propensity, axis=1) < 0).all()
        assert np.ptp(World.synthetic(4, 6, random_state=0).personalized(0.0).propensity) == 0
        for beta in (-1.0, float("nan"), float("inf")):
            with pytest.raises(InputError, match="beta must be"):
                world.personalized(beta)


class TestMisspecified:
    def test_equation(self) -> None:
        world = World.synthetic(6, 7, random_state=1)
        log_odds = logit(world.propensity.astype(np.float64))
        expected = expit(0.7 * log_odds + 0.3 * log_odds.mean())
        recorded = world.misspecified(0.3).recorded
        assert recorded is not None
        np.testing.assert_allclose(recorded, expected, rtol=1e-6)

    def test_treatment_follows_the_truth_while_the_log_records_the_shift(self) -> None:
        world = World.synthetic(6, 7, random_state=1)
        shifted = world.misspecified(0.5)
        true_log, wrong_log = (w.sample(20, random_state=0).log for w in (world, shifted))
        assert np.array_equal(true_log.treated, wrong_log.treated)
        assert shifted.recorded is not None
        assert wrong_log.propensity is not None
        assert np.array_equal(wrong_log.propensity, shifted.recorded[wrong_log.user, wrong_log.item])
        assert true_log.propensity is not None
        assert not np.array_equal(wrong_log.propensity, true_log.propensity)


class TestSynthetic:
    def test_effects_differ_and_some_are_negative_and_overlap_is_good(self) -> None:
        world = World.synthetic(300, 100, random_state=0)
        effect = world.treated_rate - world.control_rate
        assert 0.02 < np.mean(effect < 0) < 0.4
        assert effect.mean() > 0
        assert world.propensity.min() >= 0.1 - 1e-6
        assert world.propensity.max() <= 0.9 + 1e-6
        assert world.propensity.mean() == pytest.approx(0.3, abs=1e-4)


class TestFiles:
    def test_save_and_load(self, tmp_path: Path) -> None:
        world = small_world().misspecified(0.4)
        world.save(tmp_path / "a.world")
        again = World.load(tmp_path / "a.world")
        for name in ("treated_rate", "control_rate", "propensity", "recorded"):
            assert np.array_equal(getattr(world, name), getattr(again, name))
        assert (again.users, again.items, again.origin) == (world.users, world.items, world.origin)

    @pytest.mark.parametrize(
        ("change", "sentence"),
        [
            ({"propensity": None}, "array 'propensity' is missing"),
            ({"treated_rate": np.zeros((2, 2), np.float32)}, r"shape \(2, 2\), expected \(2, 3\)"),
            ({"control_rate": np.full((2, 3), 2, np.float32)}, "out of range, from 2.0 to 2.0"),
            ({"user_id.0": None}, "lists of ids are corrupt"),
            ({"origin": [1]}, "no origin"),
        ],
    )
    def test_an_inconsistent_world_is_refused(self, tmp_path: Path, change: dict[str, Any], sentence: str) -> None:
        path = tmp_path / "a.world"
        small_world().save(path)
        metadata, arrays = storage.read(path, "world")
        metadata |= {"origin": change.pop("origin", metadata["origin"])}
        changed = {name: array for name, array in {**arrays, **change}.items() if array is not None}
        storage.write(path, "world", metadata, changed)
        with pytest.raises(InputError, match=sentence):
            World.load(path)
        storage.write(path, "model", {}, {})
        with pytest.raises(InputError, match="contains a model, expected a world"):
            World.load(path)

    def test_an_origin_that_is_not_json_is_refused_and_nothing_is_written(self, tmp_path: Path) -> None:
        world = World(RATES, RATES, np.full((2, 3), 0.3), [0, 1], [0, 1, 2], origin={"made": object()})
        with pytest.raises(InputError, match="cannot be stored as JSON"):
            world.save(tmp_path / "a.world")
        assert list(tmp_path.iterdir()) == []


class TestArraysAreItsOwn:
    def test_the_callers_arrays_can_change_and_the_world_does_not(self) -> None:
        own = np.full((2, 3), 0.5, np.float32)
        world = World(own, own, own, [0, 1], [0, 1, 2])
        own[:] = 0.25
        for name in ("treated_rate", "control_rate", "propensity"):
            assert (getattr(world, name) == 0.5).all()
        assert own.flags.writeable

    def test_worlds_made_from_a_world_share_what_they_do_not_change(self) -> None:
        world = small_world()
        assert np.shares_memory(world.misspecified(0.4).treated_rate, world.treated_rate)


@pytest.mark.parametrize(
    "options",
    [
        {"n_users": 10**6, "n_items": 10**6},
        {"n_users": 0},
        {"treated_share": 0.05},
        {"purchase_rate": "x"},
        {"purchase_rate": 0.0},
        {"overlap": None},
        {"treated_share": [0.5]},
        {"effect": float("nan")},
        {"effect_spread": "x"},
        {"rank": 10**400},
    ],
)
def test_odd_arguments_of_a_synthetic_world(options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=rf"{next(iter(options))}.* must be"):
        World.synthetic(**{"n_users": 3, "n_items": 3, **options})


def test_describe_is_the_papers_table() -> None:
    row = small_world().describe().iloc[0]
    assert row["users"] == 2
    assert row["items"] == 3
    assert row["treated_rate"] == pytest.approx(RATES.mean())


def test_bad_rates() -> None:
    with pytest.raises(InputError, match=r"treated_rate must be probabilities between 0 and 1; 1 value is not"):
        World(np.array([[np.nan]]), np.array([[0.5]]), np.array([[0.5]]), [0], [0])
    with pytest.raises(InputError, match="shape users × items"):
        World(RATES, RATES, RATES, [0], [0, 1, 2])
    with pytest.raises(InputError, match="times must be an integer ≥ 1"):
        small_world().sample(0)
    with pytest.raises(InputError, match="times × users must be at most"):
        small_world().sample(10**13)


def test_a_table_of_all_pairs_is_a_world(tmp_path: Path) -> None:
    world = World.synthetic(5, 4, random_state=0)
    user, item = (codes.ravel() for codes in np.indices((5, 4)))
    table = pd.DataFrame({
        "idx_user": user + 7, "idx_item": item, "propensity": world.propensity.ravel(),
        "prob_outcome_treated": world.treated_rate.ravel(), "prob_outcome_control": world.control_rate.ravel(),
    }).sample(frac=1.0, random_state=1)  # fmt: skip
    table.to_csv(tmp_path / "world.csv", index=False)
    for given in (table, tmp_path / "world.csv"):
        made = World.from_table(given)
        assert made.users.values.to_pylist() == [7, 8, 9, 10, 11]
        for name in ("treated_rate", "control_rate", "propensity"):
            np.testing.assert_allclose(getattr(made, name), getattr(world, name), rtol=1e-6)
    with pytest.raises(InputError, match="a row for every pair, 5 users × 4 items; got 19 rows"):
        World.from_table(table.iloc[1:])
    with pytest.raises(InputError, match="'prob_outcome_treated' must be a probability between 0 and 1; 1 row"):
        World.from_table(table.assign(prob_outcome_treated=[2.0] + [0.5] * 19))


def test_a_world_like_a_log_gives_logs_like_it() -> None:
    """Shares of the log within noise: how often each item is shown, what is bought of it, how it was weighted."""
    shop = Shop.draw(users=800, items=120, weeks=8, seed=4)
    log = shop.log()
    world = World.like(log, 0, features=shop.features(), threads=1)
    assert (world.n_users, world.n_items) == (800, 120)
    times = world.origin["times"]
    assert times == round(log.cells / (800 * 120)) == 2
    drawn = world.sample(times, 1).log

    def rates(one: tr.Log) -> Any:
        bought = one.outcome == 1
        arms = [one.treated == 1, bought & (one.treated == 1), bought & (one.treated == 0)]
        return np.stack([np.bincount(one.item[arm], minlength=120) / one.eligibility.cells_by_item for arm in arms])

    here, there = rates(log), rates(drawn)
    sizes = log.cells / 120, 800 * times
    common = (sizes[0] * here + sizes[1] * there + 1.0) / sum(sizes)
    z = (there - here) / np.sqrt(common / sizes[0] + common / sizes[1])
    assert (np.abs(z).max(axis=1) < 5.0).all()
    assert (np.sqrt((z**2).mean(axis=1)) < 1.3).all()
    shares = [np.quantile(one.recorded_propensity("")[one.treated == 1], [0.1, 0.5, 0.9]) for one in (log, drawn)]
    np.testing.assert_allclose(shares[1], shares[0], rtol=0.1)
    estimate = tr.evaluate(tr.Popular().fit(log), tr.gains.ips(drawn), ["CP@10"])["CP@10"]
    truth = tr.bounds.expected(world, tr.Popular().fit(log), "CP@10")
    assert estimate.low < truth < estimate.high
