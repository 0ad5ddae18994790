"""The search of ``full``: it uses the library's tuner, continues where it stopped, and its settings are used."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import taurank as tr
from support.experiments import small, write
from taurank._progress import Progress
from taurank.errors import InputError
from taurank_paper.plan import reading
from taurank_paper.plan.plans import Plan
from taurank_paper.plan.toml_table import parse_toml
from taurank_paper.runs import search

GOOD = 'kind = "comparison"\nmetrics = ["CDCG"]\ndata = [{items = "category"}]\nmethods = [{name = "dlce"}]\n'
BUDGET = {"trials": 3, "updates": 2000, "validations": 2, "objectives": ["CDCG", "CAR"], "learning_rate": [0.1]}


def plan_of(folder: Path, text: str = GOOD, **changes: Any) -> Plan:
    preset = small(search={**BUDGET, **changes}, use_tuned=True, per_metric=True)
    return reading.load(write(folder, text), preset, {})


def test_search_continues_where_it_stopped_and_its_settings_are_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_of(tmp_path)
    with Progress(False) as progress:
        first = search.search([plan], tmp_path, None, progress)
        assert progress.count == 3
    with Progress(False) as progress:
        monkeypatch.setattr(search.MethodSearch, "__call__", lambda *_: pytest.fail("all trials are made"))
        assert search.search([plan], tmp_path, None, progress) == first
        assert (progress.total, progress.count) == (3, 3)
    assert first == reading.load_tuned(tmp_path / "tuned.toml")
    table = first["category"]["original"]["dlce"]
    assert table["learning_rate"] in (0.003, 0.1)  # the authors' own is tried too
    assert table["cap"] in tr.DLCE.space["cap"]
    (costs,) = pd.read_csv(tmp_path / "search.csv").to_dict("records")
    assert (costs["method"], costs["trials"], costs["cut"]) == ("dlce", 3, 0)
    assert json.loads(costs["settings"]) == {name: table[name] for name in ("regularization", "cap", "learning_rate")}


def test_the_settings_known_so_far_are_tried_first_and_each_start_at_several_rates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = {"cap": 0.123, "regularization": 0.01, "learning_rate": 0.03}
    authors = {"cap": 0.01, "regularization": 0.01, "learning_rate": 0.003, "updates": 5000}
    files = {"tuned.toml": known, "authors.toml": authors}
    monkeypatch.setattr(search, "load_tuned", lambda packaged: {"category": {"original": {"dlce": files[packaged]}}})
    plan = plan_of(tmp_path, learning_rate=[0.001, 0.003, 0.01, 0.03, 0.1, 0.3], updates=1000)
    (one,) = search._searches([plan], tmp_path, None)
    start = one.spec().start
    assert [trial["learning_rate"] for trial in start if trial["cap"] == 0.123] == [0.03, 0.1, 0.3]
    # 5 times the updates at .003 are as far as the same number at .015
    assert [trial["learning_rate"] for trial in start if trial["cap"] == 0.01] == [0.01, 0.003, 0.001]
    assert {0.123, 0.01} <= set(one.space()["cap"])


def test_a_search_continues_after_it_has_written_its_settings(tmp_path: Path) -> None:
    """What is known so far is what the package has: the search's own results do not make it another search."""
    plan = plan_of(tmp_path)
    other = replace(plan, tuned={"category": {"original": {"dlce": {"cap": 0.7, "learning_rate": 0.1}}}})
    journals = {search._searches([each], tmp_path, None)[0].journal() for each in (plan, other)}
    assert len(journals) == 1


@pytest.mark.parametrize("decay", [1.0, 0.03, 0.5])
def test_the_mean_rate_is_that_of_the_schedule(decay: float) -> None:
    rates = decay ** (np.arange(10_000) / 9_999)
    assert search.mean_rate({"rate_decay": decay}) == pytest.approx(rates.mean(), rel=1e-3)


def test_every_method_has_the_same_budget_and_the_schedule_of_the_preset(tmp_path: Path) -> None:
    methods = '[{name = "dlce"}, {name = "bpr"}, {name = "cause"}, {name = "ulbpr"}]'
    plan = plan_of(tmp_path, GOOD.replace('[{name = "dlce"}]', methods))
    assert {one.spec().trials for one in search._searches([plan], tmp_path, None)} == {3}
    for name, decay in (("quick", 0.03), ("full", 0.03), ("authors", 1.0)):
        assert reading.load_preset(name).settings["rate_decay"] == decay


def test_limits_and_learners_without_epochs_are_not_searched(tmp_path: Path) -> None:
    methods = '[{name = "dlce"}, {name = "truth"}, {name = "popular"}, {name = "countingbayes"}]'
    plan = plan_of(tmp_path, GOOD.replace('[{name = "dlce"}]', methods))
    assert [one.method for one in search._searches([plan], tmp_path, None)] == ["dlce"]


def test_the_tuned_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    own = {"loss": "hinge", "exact": True, "cap": 0.5}
    tuned = {
        "category": {
            "original": {"dlce": {"cap": 0.3, "CP@10": {"cap": 0.1}}, "my_module:X": own},
            "personalized": {"bpr": {}},
        }
    }
    (tmp_path / "tuned.toml").write_text(search.tuned_text(tuned))
    assert reading.load_tuned(tmp_path / "tuned.toml") == tuned
    assert reading.load_tuned() == parse_toml(search.tuned_text(reading.load_tuned()), "again")


def test_a_damaged_table_of_costs_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "search.csv").write_text("nonsense\n1,2,3\n")
    with Progress(False) as progress, pytest.raises(InputError, match=r"search\.csv' is not a table of searches"):
        search.search([plan_of(tmp_path)], tmp_path, None, progress)
