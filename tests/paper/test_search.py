"""The search of ``full``: it uses the library's tuner, continues where it stopped, and its settings are used."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import taurank as tr
from support.experiments import GOOD, small, write
from taurank_paper import plan as plans
from taurank_paper import search
from taurank_paper.plan import Budget, Plan
from taurank_paper.worlds import Splits

pytest.importorskip("optuna")

BUDGET = Budget(3, 2000, ("CDCG", "CAR"), (0.03, 0.1))


def plan_of(folder: Path, text: str = GOOD, tuned: Any = None) -> Plan:
    return plans.load(write(folder, text), small(search=BUDGET, per_metric=True), tuned or {})


def searched(plan: Plan, folder: Path) -> plans.Tuned:
    return search.search([plan], folder, Splits(plan.preset, None, 1), show_progress=False)


def test_a_search_continues_where_it_stopped_and_its_settings_are_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_of(tmp_path)
    first = searched(plan, tmp_path)
    monkeypatch.setattr(tr.DLCE, "fit", lambda *_, **__: pytest.fail("all trials are made"))
    assert searched(plan, tmp_path) == first == plans.load_tuned(tmp_path / "tuned.toml")
    table = first["category"]["original"]["dlce"]
    assert table["learning_rate"] in (0.03, 0.1)
    assert table["cap"] in tr.DLCE.space["cap"]
    assert set(table) <= {"regularization", "cap", "learning_rate", *plans.TUNED_METRICS}
    (costs,) = pd.read_csv(tmp_path / "search.csv").to_dict("records")
    assert (costs["method"], costs["trials"], costs["updates"]) == ("dlce", 3, 2000)
    assert json.loads(costs["settings"]) == {name: table[name] for name in ("regularization", "cap", "learning_rate")}


def test_the_settings_known_so_far_are_tried_first_also_after_a_search_has_found_others(tmp_path: Path) -> None:
    found: plans.Tuned = {"category": {"original": {"dlce": {"cap": 0.7}}}}
    plan = replace(plan_of(tmp_path, tuned=found), preset=small(search=BUDGET, tuned="tuned.toml"))
    (one,) = search.searches_of([plan])
    start = {"cap": 0.003, "regularization": 0.03, "learning_rate": 0.03}  # of the package
    assert one.space(plan.preset)[1] == start
    trials = one.run(plan.preset, Splits(plan.preset, None, 1), tmp_path)
    assert trials.loc[0, list(start)].to_dict() == start


def test_limits_and_learners_without_epochs_are_not_searched(tmp_path: Path) -> None:
    methods = '[{name = "dlce"}, {name = "truth"}, {name = "popular"}, {name = "countingbayes"}]'
    plan = plan_of(tmp_path, GOOD.replace('[{name = "dlce"}]', methods))
    assert [one.method for one in search.searches_of([plan])] == ["dlce"]


def test_the_tuned_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    own = {"loss": "hinge", "exact": True, "cap": 0.5}
    tuned: plans.Tuned = {
        "category": {
            "original": {"dlce": {"cap": 0.3, "CP@10": {"cap": 0.1}}, "my_module:X": own},
            "personalized": {"bpr": {}},
        }
    }
    for each in (tuned, plans.packaged_tuned(small(tuned="tuned.toml"))):
        (tmp_path / "tuned.toml").write_text(search.tuned_text(each))
        assert plans.load_tuned(tmp_path / "tuned.toml") == each
