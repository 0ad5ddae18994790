"""``tune``: it finds the better settings, continues from its journal, and refuses what it cannot do."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from taurank import DLCE, Gains, Log, World, evaluate, gains
from taurank.errors import InputError, MissingExtra
from taurank.learners.counting import CountingBayes
from taurank.tuning import tune

FIXED: dict[str, Any] = {"factors": 8, "epochs": 10, "learning_rate": 0.03}
SPACE = {"regularization": (0.01, 3.0), "cap": (0.01, 0.3)}


@dataclass(kw_only=True, eq=False)
class Own(DLCE):
    """A user's learner with a choice of its own."""

    flavor: str = "plain"
    space: ClassVar[Any] = {"flavor": ("plain", "sour"), "cap": (0.01, 0.3)}


@pytest.fixture(scope="module")
def data() -> tuple[Log, Gains]:
    world = World.synthetic(120, 40, random_state=0)
    return world.sample(8, random_state=1).log, world.sample(4, random_state=2).truth


def test_finds_the_best_setting_and_its_value(data: tuple[Log, Gains], tmp_path: Path) -> None:
    log, truth = data
    tuning = tune("dlce", log, truth, metric="CP@10", trials=8, space=SPACE, fixed=FIXED)
    assert tuning.best["regularization"] == 0.01
    assert set(tuning.trials["state"]) <= {"finished", "pruned"}
    finished = tuning.trials.query("state == 'finished'")
    assert tuning.value == finished["CP@10"].max()
    again = tuning.learner().fit(log, truth, metric="CP@10")
    assert evaluate(again, truth, "CP@10")["CP@10"].mean == pytest.approx(tuning.value)
    assert "best CP@10" in str(tuning)
    assert re.fullmatch(r"Tuning\(\d+ trials, best CP@10 0\.\d+ with [^\n]+\)", repr(tuning))
    tuning.write_html(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text().count("<svg") == len(SPACE)  # a chart for each hyper-parameter
    assert len(tuning.chart().hconcat) == len(SPACE)


def test_smaller_is_better_for_car(data: tuple[Log, Gains]) -> None:
    tuning = tune("dlce", *data, metric="CAR", trials=6, space=SPACE, fixed=FIXED)
    assert tuning.value == tuning.trials.query("state == 'finished'")["CAR"].min()


@pytest.mark.parametrize("sampler", ["tpe", "walk"])
def test_same_trials_for_any_number_of_jobs(data: tuple[Log, Gains], sampler: str) -> None:
    options: dict[str, Any] = {"trials": 14, "fixed": FIXED, "sampler": sampler, "metric": ("CDCG", "CP@10")}
    options["space"] = {"cap": (0.003, 0.01, 0.03, 0.1, 0.3), "regularization": (0.003, 0.03, 0.3, 3.0)}
    one, two = (tune("dlce", *data, jobs=jobs, **options) for jobs in (1, 2))
    assert one.trials.equals(two.trials)
    assert not one.trials.duplicated(["cap", "regularization"]).any()
    assert {"CDCG", "CP@10"} <= set(one.trials)
    assert set(one.trials["state"]) == {"finished", "pruned"}, "the comparison must include pruning"


def test_a_grid_is_tried_once(data: tuple[Log, Gains]) -> None:
    tuning = tune("dlce", *data, trials=50, space=SPACE, fixed=FIXED)
    assert len(tuning.trials) == 4
    assert not tuning.trials.duplicated(list(SPACE)).any()


def test_journal_continues(data: tuple[Log, Gains], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    options: dict[str, Any] = {"space": SPACE, "fixed": FIXED, "journal": "journal"}
    first = tune("dlce", *data, trials=2, **options).trials
    second = tune("dlce", *data, trials=4, **options).trials
    assert second.head(2).equals(first)
    assert second.equals(tune("dlce", *data, trials=4, space=SPACE, fixed=FIXED).trials)
    monkeypatch.setattr(DLCE, "fit", lambda *_, **__: pytest.fail("nothing is left to fit"))
    assert second.equals(tune("dlce", *data, trials=4, **options).trials)


@pytest.mark.parametrize(
    "change",
    [
        {"metric": "CP@10"}, {"fixed": {**FIXED, "factors": 9}}, {"random_state": 5}, {"sampler": "walk"},
        {"space": {**SPACE, "cap": (0.01, 0.5)}}, {"learner": Own},
    ],
    ids=str,
)  # fmt: skip
def test_a_journal_of_another_search_is_refused(
    data: tuple[Log, Gains], tmp_path: Path, change: dict[str, Any]
) -> None:
    options: dict[str, Any] = {"learner": "dlce", "space": SPACE, "fixed": FIXED, "journal": tmp_path / "journal"}
    log, truth = data
    tune(log=log, validation=truth, trials=1, **options)
    with pytest.raises(InputError, match="belongs to another search"):
        tune(log=log, validation=truth, trials=1, **{**options, **change})


def test_a_journal_of_other_data_is_refused(data: tuple[Log, Gains], tmp_path: Path) -> None:
    """Also where only propensities, times, the catalog or the cells of the validation differ."""
    log, truth = data
    options: dict[str, Any] = {"trials": 1, "space": SPACE, "fixed": FIXED, "journal": tmp_path / "journal"}
    tune("dlce", log, truth, **options)
    frame = log.to_frame()
    catalog = {"users": log.users, "items": log.items, "times": log.times}
    same = Log.from_frame(frame, **{name: ids.values.to_pylist() for name, ids in catalog.items()})
    tune("dlce", same, truth, **options)
    others = [
        Log.from_frame(frame.assign(propensity=0.5)),
        Log.from_frame(frame.assign(time=frame["time"].max() - frame["time"])),
        Log.from_frame(frame, items=[*log.items.values.to_pylist(), 10**6]),
    ]
    for other in others:
        with pytest.raises(InputError, match="belongs to another search"):
            tune("dlce", other, truth, **options)
    moved = Gains(truth.catalog, truth.user, np.flip(truth.item), truth.time, truth.value, truth.name, truth.timed)
    with pytest.raises(InputError, match="belongs to another search"):
        tune("dlce", log, moved, **options)


@pytest.mark.filterwarnings("ignore::taurank.UnfinishedWarning")
def test_a_class_of_the_users_own_is_searched_over_any_kind_of_value(data: tuple[Log, Gains]) -> None:
    tuning = tune(Own, *data, trials=8, fixed=FIXED)
    assert isinstance(tuning.learner(), Own)
    assert set(tuning.trials["flavor"]) == {"plain", "sour"}
    assert tuning.to_json()["learner"].endswith(":Own")
    losses = tune(
        "dlce", *data, trials=4, fixed=FIXED, space={"loss": ("logistic", "hinge"), "cap_treated": (0.1, None)}
    )
    assert set(losses.trials["loss"]) == {"logistic", "hinge"}
    assert "loss=" in str(losses)


def test_best_settings_are_written_whole(data: tuple[Log, Gains], tmp_path: Path) -> None:
    log, truth = data
    tuning = tune("dlce", log, truth, metric="CP@10", trials=4, space=SPACE, fixed=FIXED)
    tuning.write_json(tmp_path / "best.json")
    written = json.loads((tmp_path / "best.json").read_text())
    assert written["learner"] == "dlce"
    assert written["metric"] == "CP@10"
    assert {**FIXED, **tuning.best, "random_state": 0}.items() <= written["settings"].items()
    again = DLCE(**written["settings"]).fit(log, truth, metric="CP@10")
    assert evaluate(again, truth, "CP@10")["CP@10"].mean == written["value"]
    assert "threads" not in tune("dlce", log, truth, trials=1, space=SPACE, fixed=FIXED, jobs=2).settings


def test_start_is_tried_first(data: tuple[Log, Gains]) -> None:
    tuning = tune("dlce", *data, trials=2, space=SPACE, fixed=FIXED, start={"cap": 0.2, "regularization": 3.0})
    first = tuning.trials.iloc[0]
    assert (first["cap"], first["regularization"]) == (0.2, 3.0)
    with pytest.raises(InputError, match="'capp' is not searched"):
        tune("dlce", *data, space=SPACE, start={"capp": 1})


def test_a_learner_without_epochs(data: tuple[Log, Gains]) -> None:
    tuning = tune(CountingBayes, *data, trials=3, space={"weight": (0.5, 2.0, 8.0)})
    assert tuning.value == tuning.trials["CDCG"].max()
    assert len(tuning.trials) == 3


def test_diverged_trials_do_not_end_a_search(data: tuple[Log, Gains]) -> None:
    space = {"learning_rate": (0.03, 1e9)}
    tuning = tune("dlce", *data, trials=2, space=space, fixed={"factors": 8, "epochs": 3})
    assert set(tuning.trials["state"]) == {"finished", "diverged"}
    with pytest.raises(InputError, match="no trial finished"):
        tune("dlce", *data, trials=1, space={"learning_rate": (1e9,)}, fixed={"factors": 8, "epochs": 3})


@pytest.mark.parametrize("jobs", [1, 2])
def test_progress_is_shown_for_any_number_of_jobs(
    data: tuple[Log, Gains], jobs: int, capsys: pytest.CaptureFixture[str]
) -> None:
    tune("dlce", *data, trials=3, space=SPACE, fixed=FIXED, jobs=jobs, show_progress=True)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "3 trials left"
    assert [line.split()[0] for line in lines[1:]] == ["[1/3]", "[2/3]", "[3/3]"]
    assert "CDCG" in lines[1]


def test_without_optuna_one_sentence_says_what_to_do(
    data: tuple[Log, Gains], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(MissingExtra, match=r"taurank\[tune\].*sampler=\"walk\""):
        tune("dlce", *data)
    assert len(tune("dlce", *data, trials=2, space=SPACE, fixed=FIXED, sampler="walk").trials) == 2


def test_estimates_serve_as_validation(data: tuple[Log, Gains]) -> None:
    other = World.synthetic(120, 40, random_state=0).sample(4, random_state=3).log
    estimate = gains.capped_ips(other, 0.1)
    assert len(tune("dlce", data[0], estimate, trials=2, space=SPACE, fixed=FIXED).trials) == 2


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
        ({"trials": 0}, "trials must be an integer ≥ 1"),
        ({"jobs": 1.5}, "jobs must be an integer ≥ 1"),
        ({"sampler": "grid"}, "sampler must be one of tpe, walk"),
        ({"log": 3}, "log must be a Log"),
        ({"validation": None}, "validation must be a Gains"),
        ({"random_state": -1}, "random_state must be an integer ≥ 0"),
    ],
    ids=str,
)
def test_refusals(data: tuple[Log, Gains], options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        tune(**{"learner": "dlce", "log": data[0], "validation": data[1], **options})


def test_a_local_class_is_refused_with_several_jobs(data: tuple[Log, Gains]) -> None:
    class Local(DLCE):
        pass

    with pytest.raises(InputError, match="cannot be sent to other processes"):
        tune(Local, *data, jobs=2)
