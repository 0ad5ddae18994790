"""The loop in a world with truth: it learns, promotes, and its intervals cover."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from closed_loop.over_http import simulate
from closed_loop.simulate import Scenario, simulate_directly
from taurank.serve.policy import Policy
from taurank.serve.retrain import RetrainConfig
from taurank.worlds.world import World

SMALL = Policy(k=4, floor=0.04, ceiling=0.8, temperature=0.4)
COUNTING = RetrainConfig("countingbayes", {"weight": 3.0})


@pytest.mark.statistical
def test_the_loop_learns(tmp_path: Path) -> None:
    """Over real HTTP: models are promoted, and the true lift of the last days is well above that of the first."""
    lines: list[str] = []
    scenario = Scenario(periods=10)
    reports = simulate(str(tmp_path), scenario, 0, lambda _: None, lines.append, stay=False)
    assert len(reports) == 10
    assert lines[0].startswith("http://me:taurank_")
    assert any(report.action.startswith("promoted") for report in reports)
    assert np.mean([r.truth for r in reports[-2:]]) > 1.3 * np.mean([r.truth for r in reports[:2]])
    assert all(report.covered for report in reports)
    assert all(report.holdout_covered for report in reports)


@pytest.mark.statistical
def test_intervals_cover_in_most_runs(tmp_path: Path) -> None:
    """A run covers if all of its intervals do; retraining and the gate are part of it."""
    covered = holdout = 0
    runs = 25
    for seed in range(runs):
        scenario = Scenario(300, 25, 6, 0.9, 0.4, 0.5, seed, SMALL, COUNTING)
        reports = simulate_directly(str(tmp_path / str(seed)), scenario)
        assert np.isfinite(reports[-1].high)
        covered += all(report.covered for report in reports)
        holdout += all(report.holdout_covered for report in reports)
    assert covered >= 0.92 * runs  # 95 % are promised; 25 runs may miss two
    assert holdout >= 0.92 * runs


class Dear(Scenario):
    """Ten cheap items, of which lists cause many purchases, and ten dear ones, of which they cause fewer."""

    def world(self) -> World:
        dear = np.arange(20) >= 10
        control = np.tile(np.where(dear, 0.02, 0.05), (self.users, 1))
        treated = control + np.where(dear, 0.10, 0.25)
        return World(treated, control, np.full_like(control, 0.5), range(self.users), range(20))


@pytest.mark.statistical
def test_a_loop_by_value_sells_fewer_but_dearer_items(tmp_path: Path) -> None:
    """Retraining learns from values, and the gate promotes a model that causes fewer purchases of more value."""
    shops = {}
    for outcome in ("purchases", "value"):
        prices = (1.0,) * 10 + (10.0,) * 10
        scenario = Dear(400, 20, 9, 0.9, 0.2, 0.5, 3, SMALL, COUNTING, prices, outcome)
        shops[outcome] = simulate_directly(str(tmp_path / outcome), scenario)
    first, last = shops["value"][0], shops["value"][-1]
    assert any(report.action.startswith("promoted") for report in shops["value"])
    assert last.value > 2 * first.value
    assert last.truth < 0.8 * first.truth
    assert shops["purchases"][-1].truth > last.truth
    assert shops["purchases"][-1].value < last.value / 2


@pytest.mark.slow
def test_same_seed_same_run(tmp_path: Path) -> None:
    scenario = Scenario(200, 15, 3, 0.9, 0.2, 0.5, 7, SMALL, COUNTING)
    results = [simulate(str(tmp_path / name), scenario, 0, lambda _: None, lambda _: None, False) for name in "ab"]
    assert [r.truth for r in results[0]] == [r.truth for r in results[1]]
    assert [r.estimate for r in results[0]] == pytest.approx([r.estimate for r in results[1]])
