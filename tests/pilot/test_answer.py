"""Which experiment a pilot proposes when the log cannot tell."""

from pathlib import Path
from typing import Any

import pytest

import taurank as tr
from taurank.pilot.answer import Setting, unknown
from taurank.pilot.config import PilotConfig
from taurank.pilot.power import ExperimentDesign, power


@pytest.fixture(scope="module")
def log() -> tr.Log:
    return tr.World.synthetic(300, 60, 1).sample(4, random_state=2).log


def proposed(log: tr.Log, effect: float, folder: Path) -> ExperimentDesign:
    log.write(folder / "log.parquet")
    sections: dict[str, Any] = {"tables": {"log": folder / "log.parquet"}, "pilot": {"k": 5, "effect": effect}}
    setting = Setting(PilotConfig.read(sections), log, log, None, None, ())
    design = unknown(setting, "reason", "step", bought_anyway=0.2).experiment
    assert design is not None
    return design


def test_the_smallest_share_that_is_done_within_eight_weeks(log: tr.Log, tmp_path: Path) -> None:
    shop: dict[str, Any] = {"users": log.n_users, "items": log.n_items, "slots": 5, "bought_anyway": 0.2}
    for weeks in (9.0, 12.0, 15.0):
        detected = power(weeks=weeks, randomized=0.1, **shop).effect
        design = proposed(log, detected, tmp_path)
        assert design.randomized == 0.2  # 10% of the slots would take longer than eight weeks
        assert design.weeks <= 8.0


def test_all_slots_if_no_share_is_enough(log: tr.Log, tmp_path: Path) -> None:
    design = proposed(log, 1e-3, tmp_path)
    assert design.randomized == 1.0
    assert design.weeks > 8.0
