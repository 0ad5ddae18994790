"""``tune``: it finds the better settings, continues from its journal, and refuses what it cannot do."""

from __future__ import annotations

import json
import os
import random
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from taurank import DLCE, Gains, Log, World, evaluate, gains
from taurank.errors import InputError, MissingExtra
from taurank.learners.counting import CountingBayes
from taurank.report.tuning import tuning_page
from taurank.tuning import Report, Search, tune

FIXED: dict[str, Any] = {"factors": 8, "epochs": 10, "learning_rate": 0.03}
SPACE = {"regularization": (0.01, 3.0), "cap": (0.01, 0.3)}


@dataclass(kw_only=True, eq=False)
class Own(DLCE):
    """A user's learner with a choice of its own."""

    flavor: str = "plain"
    space: ClassVar[Any] = {"flavor": ("plain", "sour"), "cap": (0.01, 0.3)}


@dataclass(frozen=True)
class Hill:
    """An objective with its top at x = 6, y = 2."""

    def __call__(self, settings: dict[str, Any], report: Report) -> Mapping[str, float]:
        height = -float((settings["x"] - 6) ** 2 + (settings["y"] - 2) ** 2)
        for check in range(1, 4):
            report({"height": height * 4 / check, "check": check})
        return {"height": height, "check": 4}


def hill(**changes: Any) -> Search:
    space = {"x": list(range(10)), "y": list(range(10))}
    return replace(Search(Hill(), space, "height", True, 30), **changes)


def tried(rows: list[dict[str, Any]]) -> set[tuple[int, int]]:
    return {(row["x"], row["y"]) for row in rows}


@pytest.fixture(scope="module")
def data() -> tuple[Log, Gains]:
    world = World.synthetic(120, 40, random_state=0)
    return world.sample(8, random_state=1).log, world.sample(4, random_state=2).truth


def test_finds_the_best_setting_and_its_value(data: tuple[Log, Gains], tmp_path: Path) -> None:
    log, truth = data
    tuning = tune("dlce", log, truth, metric="CP@10", trials=8, space=SPACE, fixed=FIXED)
    assert tuning.best["regularization"] == 0.01
    finished = tuning.trials.query("state == 'finished'")
    assert tuning.value == finished["CP@10"].max()
    again = tuning.learner().fit(log, truth, "CP@10")
    assert evaluate(again, truth, "CP@10")["CP@10"].mean == pytest.approx(tuning.value)
    assert "best CP@10" in str(tuning)
    assert re.fullmatch(r"Tuning\(4 trials, best CP@10 0\.\d+ with [^\n]+\)", repr(tuning))
    tuning_page(tuning, tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text().count("<svg") == len(SPACE)  # a chart for each hyper-parameter


# ---- what is tried --------------------------------------------------------------------------------


def test_a_search_finds_more_than_chance() -> None:
    """With 30 of 100 points, random search has the top with probability 0.3."""
    tops = sum(max(row["height"] for row in hill(seed=seed).run()) == 0.0 for seed in range(10))
    assert tops >= 6


def test_the_same_seed_makes_the_same_trials_each_once() -> None:
    rows = hill(trials=100).run()
    assert len(tried(rows)) == 100  # the whole grid
    assert hill(trials=40).run() == rows[:40]
    assert hill(seed=1, trials=40).run() != rows[:40]


def test_a_large_grid_is_not_listed() -> None:
    space = {name: list(range(1000)) for name in ("x", "y", "z", "w")}
    assert len(hill(space=space, trials=12).run()) == 12


def test_the_defaults_or_the_start_are_tried_first(data: tuple[Log, Gains]) -> None:
    defaults = DLCE()
    space = {"cap": (0.001, 0.01, defaults.cap), "regularization": (3.0, defaults.regularization)}
    first = tune("dlce", *data, trials=1, space=space, fixed=FIXED).trials.iloc[0]
    assert (first["cap"], first["regularization"]) == (defaults.cap, defaults.regularization)
    first = tune("dlce", *data, trials=2, space=space, fixed=FIXED, start={"cap": 0.2}).trials.iloc[0]
    assert (first["cap"], first["regularization"]) == (0.2, defaults.regularization)
    with pytest.raises(InputError, match="'capp' is not searched"):
        tune("dlce", *data, space=SPACE, start={"capp": 1})


@pytest.mark.filterwarnings("ignore::taurank.errors.UnfinishedWarning")
def test_a_class_of_the_users_own_is_searched_over_any_kind_of_value(data: tuple[Log, Gains]) -> None:
    tuning = tune(Own, *data, trials=8, fixed=FIXED)
    assert isinstance(tuning.learner(), Own)
    assert set(tuning.trials["flavor"]) == {"plain", "sour"}
    assert tuning.to_json()["learner"].endswith(":Own")
    space = {"loss": ("logistic", "hinge"), "cap_treated": (0.1, None)}
    assert set(tune("dlce", *data, trials=4, fixed=FIXED, space=space).trials["loss"]) == {"logistic", "hinge"}


@pytest.mark.parametrize(("metrics", "best"), [(("CDCG",), max), (("CAR", "CP@10"), min)])
def test_a_learner_without_epochs_by_metrics_of_both_kinds(data: tuple[Log, Gains], metrics: Any, best: Any) -> None:
    tuning = tune(CountingBayes, *data, trials=3, space={"weight": (0.5, 2.0, 8.0)}, metric=metrics)
    assert tuning.value == best(tuning.trials[metrics[0]])
    assert len(tuning.trials) == 3
    assert set(metrics) <= set(tuning.trials)


def test_a_log_or_an_estimate_measures(data: tuple[Log, Gains]) -> None:
    other = World.synthetic(120, 40, random_state=0).sample(4, random_state=3).log
    options: dict[str, Any] = {"trials": 2, "space": SPACE, "fixed": FIXED, "metric": "CP@10"}
    by_log, by_gains = (tune("dlce", data[0], each, **options) for each in (other, gains.recommended(other)))
    assert by_log.trials.equals(by_gains.trials)
    assert len(tune("dlce", data[0], gains.capped_ips(other, 0.1), **options).trials) == 2


# ---- how trials end -------------------------------------------------------------------------------


def test_a_trial_behind_the_median_of_the_others_is_pruned() -> None:

    def objective(settings: dict[str, Any], report: Report) -> Mapping[str, float]:
        height = next(heights)
        for check in range(3):
            report({"height": height, "check": check})
        return {"height": height}

    for larger, ends in ((True, ["pruned", "finished"]), (False, ["finished", "pruned"])):
        heights = iter([5.0, 6.0, 7.0, 8.0, 6.4, 6.6])
        rows = hill(objective=objective, larger_is_better=larger, trials=6).run()
        assert [row["state"] for row in rows] == ["finished"] * 4 + ends
        pruned = rows[4 + ends.index("pruned")]
        assert (pruned["height"], pruned["check"]) == (6.4 if larger else 6.6, 1)  # the last ones seen


def test_diverged_trials_do_not_end_a_search(data: tuple[Log, Gains]) -> None:
    options: dict[str, Any] = {"trials": 2, "fixed": {"factors": 8, "epochs": 3}}
    tuning = tune("dlce", *data, space={"learning_rate": (0.03, 1e9)}, **options)
    assert set(tuning.trials["state"]) == {"finished", "diverged"}
    with pytest.raises(InputError, match="no trial finished"):
        tune("dlce", *data, space={"learning_rate": (1e9,)}, **options)
    infinite = hill(objective=lambda *_: {"height": float("nan")}, trials=1).run()
    assert infinite[0]["state"] == "diverged"


def test_an_error_in_a_trial_ends_the_search(tmp_path: Path) -> None:
    def objective(settings: dict[str, Any], report: Report) -> Mapping[str, float]:
        if settings["x"] == 3:
            raise ZeroDivisionError("x is 3")
        report({"height": 1.0})
        return {"height": 1.0}

    search = hill(objective=objective, space={"x": list(range(5)), "y": [1, 2]}, trials=10)
    with pytest.raises(ZeroDivisionError, match="x is 3"):
        search.run(tmp_path / "journal")
    assert 0 < len(replace(search, objective=Hill()).run(tmp_path / "journal")) == 10


def test_progress_is_shown(data: tuple[Log, Gains], capsys: pytest.CaptureFixture[str]) -> None:
    tune("dlce", *data, trials=3, space=SPACE, fixed=FIXED, show_progress=True)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "3 trials left"
    assert [line.split()[0] for line in lines[1:]] == ["[1/3]", "[2/3]", "[3/3]"]
    assert "CDCG" in lines[1]


# ---- the journal ----------------------------------------------------------------------------------


def test_journal_continues(data: tuple[Log, Gains], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    options: dict[str, Any] = {"space": SPACE, "fixed": FIXED, "journal": "journal"}
    first = tune("dlce", *data, trials=2, **options).trials
    second = tune("dlce", *data, trials=4, **options).trials
    assert second.head(2).equals(first)
    assert second.equals(tune("dlce", *data, trials=4, space=SPACE, fixed=FIXED).trials)
    monkeypatch.setattr(DLCE, "fit", lambda *_, **__: pytest.fail("nothing is left to fit"))
    assert second.equals(tune("dlce", *data, trials=4, **options).trials)


def test_cut_anywhere_a_journal_leads_to_the_same_trials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)  # slow
    expected, path = hill(trials=14).run(), tmp_path / "journal"
    hill(trials=14).run(path)
    content = path.read_bytes()
    ends = [at + 1 for at, byte in enumerate(content) if byte == 10]  # after any line, and within some
    for size in [*ends[::3], *random.Random(0).sample(range(len(content)), 12)]:
        path.write_bytes(content[:size])
        assert hill(trials=14).run(path) == expected


@pytest.mark.parametrize(
    "change",
    [
        {"metric": "CP@10"}, {"fixed": {**FIXED, "factors": 9}}, {"random_state": 5},
        {"space": {**SPACE, "cap": (0.01, 0.5)}}, {"learner": Own},
    ],
    ids=str,
)  # fmt: skip
def test_a_journal_of_another_search_is_refused(
    data: tuple[Log, Gains], tmp_path: Path, change: dict[str, Any]
) -> None:
    log, truth = data
    options: dict[str, Any] = {"learner": "dlce", "space": SPACE, "fixed": FIXED, "trials": 1}
    options["journal"] = tmp_path / "journal"
    tune(log=log, validation=truth, **options)
    with pytest.raises(InputError, match="belongs to another search"):
        tune(log=log, validation=truth, **{**options, **change})
    with pytest.raises(InputError, match="belongs to another search"):
        tune(log=Log.from_frame(log.to_frame().assign(propensity=0.5)), validation=truth, **options)


@pytest.mark.parametrize("content", [b"user_id,item_id\n1,2", b"[1]\n", b'{"a": 1}\n2', b"\0\xff\n", b"3\n" * 99])
def test_another_file_is_refused_and_left_as_it_is(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "journal"
    path.write_bytes(content)
    with pytest.raises(InputError, match="not a journal of taurank, or is damaged"):
        hill().run(path)
    assert path.read_bytes() == content


def test_odd_places_and_damaged_lines_are_refused(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for name, words in (("folder", "is a folder"), ("none/journal", "does not exist; create it first")):
        with pytest.raises(InputError, match=words):
            hill().run(tmp_path / name)
    path = tmp_path / "journal"
    hill(trials=3).run(path)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:5], b"nonsense\n", *lines[6:]]))
    with pytest.raises(InputError, match="not a journal of taurank, or is damaged"):
        hill(trials=4).run(path)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, calls = tmp_path / "journal", iter(range(12))

    def sync(_: int) -> None:
        if next(calls, None) is None:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", sync)
    with pytest.raises(InputError, match=r"journal' cannot be written: No space left on device; the trials before"):
        hill(trials=14).run(path)
    monkeypatch.undo()
    assert hill(trials=14).run(path) == hill(trials=14).run()


# ---- results and refusals -------------------------------------------------------------------------


def test_best_settings_are_written_whole(data: tuple[Log, Gains], tmp_path: Path) -> None:
    log, truth = data
    tuning = tune("dlce", log, truth, metric="CP@10", trials=4, space=SPACE, fixed=FIXED)
    tuning.write_json(tmp_path / "best.json")
    written = json.loads((tmp_path / "best.json").read_text())
    assert (written["learner"], written["metric"]) == ("dlce", "CP@10")
    assert {**FIXED, **tuning.best, "random_state": 0}.items() <= written["settings"].items()
    again = DLCE(**written["settings"]).fit(log, truth, "CP@10")
    assert evaluate(again, truth, "CP@10")["CP@10"].mean == written["value"]
    assert "threads" not in tuning.settings


def test_without_optuna_one_sentence_says_what_to_do(
    data: tuple[Log, Gains], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(MissingExtra, match=r"taurank\[tune\]"):
        tune("dlce", *data)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"learner": "nobody"}, "nobody"),
        ({"learner": "popular"}, "no hyper-parameters to search"),
        ({"space": {"capp": (1, 2)}}, "capp"),
        ({"space": {"cap": ()}}, "space to search is empty"),
        ({"space": {"cap": "0.1"}}, "not a list of values for 'cap'"),
        ({"space": {"cap": (0.1, [0.2])}}, "use numbers, strings"),
        ({"space": {"cap": (0.1, 7.0)}}, "between 0 and 1"),
        ({"space": {"cap": (0.1,)}, "fixed": {"cap": 0.2}}, "all of its hyper-parameters are fixed"),
        ({"metric": "XY"}, "unknown metric"),
        ({"metric": ()}, "metric is empty"),
        ({"trials": 0}, "trials must be an integer ≥ 1"),
        ({"log": 3}, "log must be a Log"),
        ({"validation": None}, "validation must be a Gains"),
        ({"random_state": -1}, "random_state must be an integer ≥ 0"),
    ],
    ids=str,
)
def test_refusals(data: tuple[Log, Gains], options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        tune(**{"learner": "dlce", "log": data[0], "validation": data[1], **options})
