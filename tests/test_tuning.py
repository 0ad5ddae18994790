"""Tuning: the search finds the better settings, goes on from its journal, and refuses what it cannot do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from taurank import Gains, Log, World, evaluate
from taurank.errors import InputError
from taurank.tuning import tune

FIXED: dict[str, Any] = {"factors": 8, "epochs": 10, "learning_rate": 0.03}
SPACE = {"regularization": (0.01, 3.0), "cap": (0.01, 0.3)}


@pytest.fixture(scope="module")
def data() -> tuple[Log, Gains]:
    world = World.synthetic(120, 40, random_state=0)
    return world.sample(8, random_state=1).log, world.sample(4, random_state=2).truth


def test_finds_the_best_setting_and_says_its_value(data: tuple[Log, Gains], tmp_path: Path) -> None:
    log, truth = data
    found = tune("dlce", log, truth, metric="CP@10", trials=8, space=SPACE, fixed=FIXED)
    assert found.best["regularization"] == 0.01
    assert set(found.trials["state"]) <= {"finished", "cut"}
    finished = found.trials.query("state == 'finished'")
    assert found.value == finished["CP@10"].max()
    again = found.learner().fit(log, truth, "CP@10")  # type: ignore[call-arg]
    assert evaluate(again, truth, "CP@10")["CP@10"].mean == pytest.approx(found.value)
    assert "best CP@10" in str(found)
    found.write_html(tmp_path / "page.html")
    assert "<svg" in (tmp_path / "page.html").read_text()


def test_smaller_is_better_for_car(data: tuple[Log, Gains]) -> None:
    found = tune("dlce", *data, metric="CAR", trials=6, space=SPACE, fixed=FIXED)
    assert found.value == found.trials.query("state == 'finished'")["CAR"].min()


def test_same_seed_same_trials(data: tuple[Log, Gains]) -> None:
    first, second = (tune("blce", *data, trials=4, fixed=FIXED).trials for _ in range(2))
    assert first.equals(second)


def test_journal_goes_on(data: tuple[Log, Gains], tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    options: dict[str, Any] = {"space": SPACE, "fixed": FIXED, "journal": journal}
    assert len(tune("dlce", *data, trials=3, **options).trials) == 3
    assert len(tune("dlce", *data, trials=5, **options).trials) == 5
    assert len(tune("dlce", *data, trials=5, **options).trials) == 5
    with pytest.raises(InputError, match="belongs to another search"):
        tune("dlce", *data, trials=6, metric="CP@10", **options)
    journal.write_text("nonsense\n")
    with pytest.raises(InputError, match="cannot be read"):
        tune("dlce", *data, trials=6, **options)


def test_two_processes_share_a_search(data: tuple[Log, Gains], tmp_path: Path) -> None:
    found = tune("dlce", *data, trials=4, space=SPACE, fixed=FIXED, jobs=2, journal=tmp_path / "journal")
    assert len(found.trials) == 4


def test_refusals(data: tuple[Log, Gains]) -> None:
    with pytest.raises(InputError, match="there is no learner 'nobody'"):
        tune("nobody", *data)
    with pytest.raises(InputError, match="no hyper-parameters to search"):
        tune("popular", *data)
    with pytest.raises(InputError, match="does not take these hyper-parameters"):
        tune("dlce", *data, space={"capp": (1, 2)})
    with pytest.raises(InputError, match="space to search is empty"):
        tune("dlce", *data, space={"cap": ()})
    with pytest.raises(InputError, match="unknown metric"):
        tune("dlce", *data, metric="XY")
    with pytest.raises(InputError, match="at least 1"):
        tune("dlce", *data, trials=0)
