"""The search behind ``tune``: proposals, pruning, several searches at once, and interruptions at any moment."""

from __future__ import annotations

import itertools
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from taurank.errors import DivergedError, InputError
from taurank.tuning import SearchSpec, best_trial, run_searches, search
from taurank.tuning.proposals import grid_size, walk
from taurank.tuning.search import Report, falls_behind

KILLS = int(os.environ.get("TAURANK_KILLS", "5"))


@dataclass(frozen=True)
class Hill:
    """An objective with its top at x = 6, y = 2."""

    fails_at: int = -1

    def __call__(self, settings: dict[str, Any], report: Report) -> Mapping[str, float]:
        height = -float((settings["x"] - 6) ** 2 + (settings["y"] - 2) ** 2)
        if settings["x"] == self.fails_at:
            raise DivergedError("too steep")
        for check in range(1, 4):
            report({"height": height * 4 / check})
        return {"height": height, "depth": -height}


def hill(**changes: Any) -> SearchSpec:
    space = {"x": list(range(10)), "y": list(range(10))}
    return replace(SearchSpec("hill", Hill(), space, "height", True, 30), **changes)


@pytest.mark.parametrize("sampler", ["tpe", "walk"])
def test_a_search_finds_more_than_chance(sampler: str) -> None:
    """With 30 of 100 points, random search has the top with probability 0.3; ten seeds have it three times."""
    tops = 0
    for seed in range(10):
        (trials,) = run_searches([hill(sampler=sampler, seed=seed)], [None])
        best = best_trial(trials, "height", True)
        assert best is not None
        tops += best.metrics["height"] >= -1.0  # the top or one of its four neighbors
    assert tops >= 8


def test_several_searches_share_the_processes(tmp_path: Path) -> None:
    specs = [hill(sampler="walk"), hill(sampler="walk", objective=Hill(3), seed=1, trials=9)]
    alone = [run_searches([spec], [None])[0] for spec in specs]
    together = run_searches(specs, [tmp_path / "a", tmp_path / "b"], jobs=2)
    assert [[replace(t, seconds=0) for t in trials] for trials in together] == [
        [replace(t, seconds=0) for t in trials] for trials in alone
    ]
    assert [len(trials) for trials in together] == [30, 9]
    again = run_searches(specs, [tmp_path / "a", tmp_path / "b"])
    assert again == together, "all is in the journals"


def test_no_settings_are_tried_twice_even_if_rounds_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when a search with many jobs is continued with few."""
    spec = hill(sampler="walk", trials=5)
    with monkeypatch.context() as patch:
        patch.setattr(search, "ROUND", 8)
        run_searches([spec], [tmp_path / "journal"])
    (trials,) = run_searches([replace(spec, trials=100)], [tmp_path / "journal"])
    assert len({(t.settings["x"], t.settings["y"]) for t in trials}) == len(trials) == 100


def test_metrics_of_a_trial_that_never_reports_count() -> None:
    spec = hill(objective=silent, trials=4)
    (trials,) = run_searches([spec], [None])
    assert [trial.state for trial in trials] == ["finished"] * 4
    (trials,) = run_searches([hill(objective=endless, trials=2)], [None])
    assert [trial.state for trial in trials] == ["diverged"] * 2
    assert best_trial(trials, "height", True) is None


def silent(settings: dict[str, Any], _: Report) -> Mapping[str, float]:
    return {"height": float(settings["x"])}


def endless(_: dict[str, Any], __: Report) -> Mapping[str, float]:
    return {"height": float("nan")}


def fails(_: dict[str, Any], __: Report) -> Mapping[str, float]:
    raise InputError("this log is empty.")


def dies(_: dict[str, Any], __: Report) -> Mapping[str, float]:
    os._exit(9)


@pytest.mark.parametrize("jobs", [1, 2])
def test_an_error_in_a_trial_ends_the_search(jobs: int) -> None:
    with pytest.raises(InputError, match="this log is empty"):
        run_searches([hill(objective=fails)], [None], jobs)


def test_a_worker_that_dies_is_reported() -> None:
    with pytest.raises(InputError, match="a worker process ended unexpectedly"):
        run_searches([hill(objective=dies)], [None], jobs=2)


# ---- proposals and pruning -----------------------------------------------------------------------


def test_the_walk_goes_to_the_nearest_new_point_and_leaps_now_and_then() -> None:
    space = {"cap": [0.1, 0.3, 0.5], "regularization": [0.01, 0.1]}
    best = {"cap": 0.1, "regularization": 0.01}
    grid = [{"cap": cap, "regularization": γ} for cap in space["cap"] for γ in space["regularization"]]
    beside = [{"cap": 0.3, "regularization": 0.01}, {"cap": 0.1, "regularization": 0.1}]
    behind = [{"cap": 0.5, "regularization": 0.01}, {"cap": 0.3, "regularization": 0.1}]

    def drawn(tried: list[dict[str, float]], start: dict[str, float] | None) -> list[dict[str, float]]:
        proposals = [walk(space, tried, start, np.random.default_rng(seed)) for seed in range(50)]
        return [settings for settings in grid if settings in proposals]

    assert drawn([], None) == grid
    far = [settings for settings in grid if settings not in beside and settings != best]
    assert drawn([best, *far][:4], best) == [settings for settings in grid if settings in beside]
    assert drawn([best, *beside, grid[-1]], best) == [settings for settings in grid if settings in behind]
    assert drawn([best, best, *beside, *beside], best) == far, "every third trial goes anywhere new"
    assert walk(space, grid, best, np.random.default_rng(0)) is None


def test_words_have_no_order_on_the_grid() -> None:
    space: dict[str, list[Any]] = {"loss": ["a", "b", "c", "d"], "cap": [1, 2, 3]}
    tried = [{"loss": "a", "cap": cap} for cap in (1, 2, 3)] + [{"loss": "b", "cap": 3}]
    proposals = [walk(space, tried, {"loss": "a", "cap": 1}, np.random.default_rng(seed)) for seed in range(50)]
    assert {(each or {})["loss"] for each in proposals} == {"b", "c", "d"}
    assert {(each or {})["cap"] for each in proposals} == {1}


def test_a_large_grid_is_not_built() -> None:
    space = {f"x{n}": list(range(100)) for n in range(30)}
    assert grid_size(space) == 100**30
    best = dict.fromkeys(space, 50)
    tried = [dict.fromkeys(space, value) for value in range(4)]
    near = walk(space, tried, best, np.random.default_rng(0))
    assert near is not None
    assert sum(abs(near[name] - 50) for name in space) == 1


curves = st.lists(st.floats(-10, 10), min_size=1, max_size=6)


@given(curve=curves, rivals=st.lists(curves, max_size=8), larger=st.booleans(), warmup=st.integers(0, 3))
def test_pruning_by_hand(curve: list[float], rivals: list[list[float]], larger: bool, warmup: int) -> None:
    """Turn everything so that larger is better, extend short curves, and compare with the median of running bests."""
    sign = 1 if larger else -1
    best = [list(itertools.accumulate((sign * v for v in each), max)) for each in (curve, *rivals)]
    padded = [each + [each[-1]] * 10 for each in best]
    at = len(curve) - 1
    expected = len(rivals) >= 4 and at >= warmup and padded[0][at] < median(each[at] for each in padded[1:])
    assert falls_behind(curve, rivals, larger, warmup) == expected


# ---- kill -9 -------------------------------------------------------------------------------------

PROGRAM = """
import time
from taurank.tuning import SearchSpec, run_searches

def objective(settings, report):
    for check in range(3):
        time.sleep(0.01)
        report({"value": -abs(settings["x"] - 20) - abs(settings["y"] - 5) + check})
    return {"value": -abs(settings["x"] - 20) - abs(settings["y"] - 5) + 3}

if __name__ == "__main__":
    space = {"x": list(range(40)), "y": list(range(40))}
    spec = SearchSpec("program", objective, space, "value", True, 40, sampler="walk")
    (trials,) = run_searches([spec], ["search.journal"], jobs=2)
    print([(t.number, t.settings, t.state, t.metrics, t.curve) for t in trials])
"""


def start(folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "program.py"], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip


def size_of(journal: Path) -> int:
    return journal.stat().st_size if journal.exists() else 0


def wait_for_a_trial(journal: Path, size: int) -> None:
    """Until the journal is longer than ``size`` and its first line."""
    began = time.monotonic()
    while size_of(journal) <= max(size, 150) and time.monotonic() - began < 60:
        time.sleep(0.01)


def wait_until_gone(group: int) -> None:
    """All processes of the group must end by themselves."""
    for _ in range(200):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return
        time.sleep(0.1)
    pytest.fail("a child of the killed search is still alive after 20 s")


def test_a_search_killed_at_random_moments_ends_as_if_it_had_not_been(tmp_path: Path) -> None:
    """With a relative path; every later run must end, and no child may stay behind."""
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for folder in (whole, killed):
        folder.mkdir()
        (folder / "program.py").write_text(PROGRAM)
    expected, _ = start(whole).communicate(timeout=120)
    draw, journal = random.Random(KILLS), killed / "search.journal"
    for _ in range(KILLS):
        size = size_of(journal)
        process = start(killed)
        wait_for_a_trial(journal, size)
        time.sleep(draw.uniform(0, 0.15))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        wait_until_gone(process.pid)
    output, _ = start(killed).communicate(timeout=120)
    assert output == expected
    assert len(expected) > 1000


def test_ctrl_c_ends_all_processes_at_once_and_only_one_of_them_speaks(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM.replace("sleep(0.01)", "sleep(1.0)"))
    process = start(tmp_path)
    wait_for_a_trial(tmp_path / "search.journal", 0)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    wait_until_gone(process.pid)
    assert process.returncode != 0
    assert errors.count("Traceback") == errors.count("KeyboardInterrupt") == 1
