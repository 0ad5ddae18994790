"""Several rankers in one table: paired differences from a baseline, as numbers, as a frame and as text."""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import taurank
from support.twins import dense
from taurank import World, compare, evaluate, gains
from taurank.errors import InputError, OverlapWarning
from taurank.evaluation.results import Result

METRICS = ["CP@5", "CDCG", "CAR"]


@pytest.fixture(scope="module")
def made() -> Any:
    rng = np.random.default_rng(9)
    return dense(rng.random((300, 20)) < rng.random((300, 1)) * 0.8)


@pytest.fixture(scope="module")
def rankers(made: Any) -> dict[str, Any]:
    rng = np.random.default_rng(10)
    noise, good = rng.random((300, 20)), np.zeros((300, 20))
    good[made.user, made.item] = rng.random(len(made)) < 0.3
    return {"noise": noise, "good": noise + good, "same": noise.copy()}


def test_the_table_is_each_result_and_each_comparison(made: Any, rankers: dict[str, Any]) -> None:
    table = evaluate(rankers, made, METRICS, baseline="noise", level=0.9)
    assert list(table) == ["noise", "good", "same"]
    assert all(isinstance(result, Result) for result in table.values())
    frame = table.to_frame().set_index(["ranker", "metric"])
    for name, scores in rankers.items():
        for metric in METRICS:
            row: Any = frame.loc[(name, metric)]
            alone = evaluate(scores, made, metric, level=0.9)[metric]
            assert (row["mean"], row["std"], row["low"], row["high"]) == (alone.mean, alone.std, *alone.interval(0.9))
            paired = compare(scores, rankers["noise"], made, metric)
            assert row["difference"] == paired.difference
            assert (row["difference_low"], row["difference_high"]) == paired.interval(0.9)
            if name != "noise":
                assert table.differences[name, metric].interval(0.95) == paired.interval()
    assert frame["better"].tolist() == [""] * 3 + ["yes"] * 3 + ["unclear"] * 3


def test_the_first_ranker_is_the_baseline_unless_named(made: Any, rankers: dict[str, Any]) -> None:
    assert evaluate(rankers, made, "CDCG").baseline == "noise"
    reverse = evaluate(rankers, made, METRICS, baseline="good").to_frame().set_index(["ranker", "metric"])
    assert reverse["better"].tolist() == ["no"] * 3 + [""] * 3 + ["no"] * 3


def test_the_text_fits_80_columns(made: Any, rankers: dict[str, Any]) -> None:
    long = "a ranker with a rather long name"
    table = evaluate({**rankers, long: rankers["good"]}, made, METRICS, baseline="noise")
    lines = str(table).splitlines()
    assert max(map(len, lines)) <= 80
    assert [line.endswith(" better") for line in lines].count(True) == 6
    assert [line.endswith(" worse") for line in lines].count(True) == 0
    assert "CAR (smaller is better)" in lines
    assert any(line.startswith("a ranker with") and "…" in line for line in lines)


def test_warnings_are_said_once_and_wrapped() -> None:
    world = World.synthetic(60, 40, random_state=0).personalized(2.0)
    log = world.sample(random_state=1).log
    with pytest.warns(OverlapWarning) as caught:
        table = evaluate({"a": world.treated_rate, "b": -world.treated_rate}, gains.capped_ips(log, 0.01), METRICS)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    text = str(table)
    assert text.count("bad overlap") == 1
    assert max(map(len, text.splitlines())) <= 80
    assert max(map(len, str(table["a"]).splitlines())) <= 80


def test_printing_ranks_nothing(made: Any, rankers: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any, **options: Any) -> Any:
        raise AssertionError("items were ranked")

    table = evaluate(rankers, made, METRICS)
    monkeypatch.setattr("taurank.evaluation.weights._each_block", refuse)
    assert repr(table) == "Comparison(noise, good, same; baseline noise)"
    assert repr(table["good"]).startswith("Result(CP@5 0.")
    for value in (table, table["good"], table["good"]["CDCG"], table.differences["good", "CP@5"]):
        assert len(repr(value)) < 120
        assert str(value)


def test_results_survive_a_pickle(made: Any, rankers: dict[str, Any]) -> None:
    table = evaluate(rankers, made, [*METRICS, "AUC"])
    again = pickle.loads(pickle.dumps(table))
    assert str(again) == str(table)
    pair = compare(rankers["noise"], rankers["good"], made, "CAR")
    assert pickle.loads(pickle.dumps(pair)).interval() == pair.interval()


@pytest.mark.parametrize(
    ("rankers_given", "options", "sentence"),
    [
        ({}, {}, "no ranker is named"),
        ({1: np.eye(2)}, {}, "rankers are named by text, got 1"),
        ({"a": np.eye(2)}, {"baseline": "b"}, "baseline must be one of 'a', got 'b'"),
        ({"a": np.eye(2)}, {"baseline": ["a"]}, "baseline must be one of 'a'"),
        (np.eye(2), {"baseline": "a"}, "baseline names one of several rankers"),
        ({"a": object()}, {}, "a ranker is a fitted learner"),
    ],
)
def test_odd_rankers(rankers_given: Any, options: Any, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        evaluate(rankers_given, dense(np.eye(2)), **options)


def test_the_examples_of_the_metrics_page_run(made: Any, rankers: dict[str, Any]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(blocks) == 2
    names: dict[str, Any] = {
        "tr": taurank,
        "gains": made,
        "model": rankers["good"],
        "bpr": rankers["noise"],
        "dlce": rankers["good"],
    }
    for block in blocks:
        exec(block, names)
    assert list(names["table"]) == ["BPR", "DLCE"]
