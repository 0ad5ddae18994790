"""Metrics: metrics by name, metrics of one's own, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from support.twins import dense, sparse_gains, worth
from taurank import Metric, evaluate
from taurank.errors import InputError
from taurank.evaluation.metrics import parse, parse_all, position_weights

RECIPROCAL = Metric("reciprocal rank", lambda ranks, n_items: 1.0 / ranks)


@pytest.mark.parametrize("name", ["P@1", "P@7", "P@1000", "DCG", "AR", "CAUC"])
def test_weights_are_those_of_the_equations(name: str) -> None:
    ranks = np.arange(1, 21)
    assert parse(name).weights(20) == pytest.approx(worth(name.removeprefix("C"), ranks, 20), rel=1e-15)


@pytest.mark.parametrize("name", ["P@3", "CP@3", "DCG", "CDCG", "AR", "CAR", "AUC", "CAUC"])
def test_larger_is_better_for_all_but_average_rank(name: str) -> None:
    assert parse(name).larger_is_better == (name not in ("AR", "CAR"))
    assert parse(name).depth == (3 if "@" in name else None)


def test_a_formula_of_ones_own_is_measured_like_any_metric() -> None:
    rng = np.random.default_rng(0)
    scores, made = np.argsort(rng.random((30, 12)), axis=1).astype(float), sparse_gains(rng, (30, 12), 0.4)
    result = evaluate(scores, made, [RECIPROCAL, "CDCG"])
    ranks = (scores[:, None, :] > scores[:, :, None]).sum(axis=2) + 1
    twin = np.zeros(30)
    for user, item, value in zip(made.user, made.item, made.value, strict=True):
        twin[user] += value / ranks[user, item]
    assert list(result) == ["reciprocal rank", "CDCG"]
    assert result["reciprocal rank"].per_user == pytest.approx(twin, abs=1e-12)
    assert "reciprocal rank" in str(result)


def test_a_formula_says_which_direction_is_better() -> None:
    made = dense(np.tile([1.0, 0.0, 0.0], (50, 1)))
    best, worst = np.tile([3.0, 2.0, 1.0], (50, 1)), np.tile([1.0, 2.0, 3.0], (50, 1))
    cost = Metric("cost", lambda ranks, n_items: ranks**2, larger_is_better=False)
    table = evaluate({"best": best, "worst": worst}, made, [cost, RECIPROCAL], baseline="worst")
    frame = table.to_frame().set_index(["ranker", "metric"])
    assert frame["better"].to_dict() == {
        ("best", "cost"): "yes", ("best", "reciprocal rank"): "yes",
        ("worst", "cost"): "", ("worst", "reciprocal rank"): "",
    }  # fmt: skip
    assert frame["smaller_is_better"].to_dict()["best", "cost"]
    assert "cost: smaller is better" in str(table["best"])


@pytest.mark.parametrize("name", ["XY", "P@", "P@0", "CP@-1", "CCAR", "P@1.5", ""])
def test_unknown_metrics(name: str) -> None:
    with pytest.raises(InputError, match=f"unknown metric '{name}'; known:"):
        parse(name)


def test_k_is_at_most_the_largest_catalog() -> None:
    assert parse("P@2147483647").depth == 2**31 - 1
    with pytest.raises(InputError, match="k must be at most 2,147,483,647"):
        parse("P@2147483648")
    with pytest.raises(InputError, match="unknown metric 'P@999"):
        parse("P@" + "9" * 5000)


@pytest.mark.parametrize("odd", [5, None, b"CP@10", 1.5, [], {}, object()])
def test_odd_metrics_are_refused_in_one_sentence(odd: Any) -> None:
    with pytest.raises(InputError, match=r"unknown metric|metrics must be names|no metric is named"):
        parse_all([odd] if odd is None else odd)


def test_two_formulas_of_one_name_are_refused() -> None:
    twice = [RECIPROCAL, Metric("reciprocal rank", lambda ranks, n_items: ranks)]
    with pytest.raises(InputError, match="two metrics are called 'reciprocal rank'"):
        parse_all(twice)
    assert [formula.name for formula in parse_all([RECIPROCAL, RECIPROCAL, "CAR", "car"])] == [
        "reciprocal rank",
        "CAR",
    ]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"name": ""}, "needs a name"),
        ({"name": 5}, "needs a name"),
        ({"weight": 5}, "must be a function"),
        ({"depth": 0}, "depth of 'x' must be an integer ≥ 1"),
        ({"depth": "10"}, "depth of 'x' must be an integer ≥ 1"),
    ],
)
def test_odd_formulas(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        Metric(**{"name": "x", "weight": lambda ranks, n_items: ranks, **arguments})


def fail(ranks: Any, n_items: int) -> Any:
    raise ValueError("no such rank")


@pytest.mark.parametrize(
    ("weight", "sentence"),
    [
        (lambda ranks, n_items: 1.0, "must be 4 finite numbers, one per rank"),
        (lambda ranks, n_items: ranks[:2], "must be 4 finite numbers, one per rank"),
        (lambda ranks, n_items: ranks * np.nan, "must be 4 finite numbers, one per rank"),
        (lambda ranks, n_items: ["a"] * n_items, "cannot be computed"),
        (lambda ranks, n_items: None, "must be 4 finite numbers|cannot be computed"),
        (fail, "cannot be computed: no such rank"),
    ],
)
def test_odd_weights_never_reach_a_kernel(weight: Any, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        evaluate(np.eye(4), dense(np.eye(4)), Metric("x", weight))


def test_a_depth_is_kept() -> None:
    with pytest.raises(InputError, match="must be 0 beyond its depth of 2"):
        evaluate(np.eye(4), dense(np.eye(4)), Metric("x", lambda ranks, n_items: ranks, depth=2))


def test_nan_has_no_weight() -> None:
    with pytest.raises(InputError, match="contain NaN, which cannot be ranked"):
        position_weights([[1.0, np.nan]], "CDCG")
