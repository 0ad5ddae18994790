"""Curves by share and by k against slow twins, the coverage of their intervals, and budgets."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest

from support.builders import cells_frame, logs_of_every_eligibility, sparse_log
from support.twins import cell_effects
from taurank import InputError, Log, World, evaluate, gains
from taurank.evaluation.curves import effect_curve, spend

SHAPE = (30, 8, 3)
BASE = sparse_log(cells_frame(*SHAPE, 0))
LOGS = logs_of_every_eligibility(BASE)
SCORES = np.random.default_rng(4).integers(0, 12, (30, 8)).astype(float)  # with ties


def slow_curve(log: Log, tau: npt.NDArray[Any], n: int) -> npt.NDArray[Any]:
    """τ(q) pair by pair, per visit: each pair's chance to be among the best, averaged over orders of ties."""
    visits = log.eligibility.contains(*np.indices(tau.shape)).any(axis=1).sum()
    worth = tau.sum(axis=2).ravel() / visits
    scores, points = SCORES.ravel(), []
    for share in np.arange(1, n + 1) / n:
        left, total = share * scores.size, 0.0
        for score in np.unique(scores)[::-1]:
            tied = scores == score
            taken = min(left, tied.sum())
            total += worth[tied].sum() * taken / tied.sum()
            left -= taken
        points.append(total)
    return np.array(points)


@pytest.mark.parametrize("name", LOGS)
@pytest.mark.parametrize("make", [gains.doubly_robust, gains.ips])
def test_a_curve_by_share_is_the_slow_twins(name: str, make: Any) -> None:
    log, made = LOGS[name], make(LOGS[name])
    curve = effect_curve(SCORES, made, points=20)
    points = slow_curve(log, cell_effects(log, made.estimator), 20)
    assert [one.estimate for one in curve.effects] == pytest.approx(points.tolist(), abs=1e-12)
    area = float(np.trapezoid(np.append(0.0, points), dx=1 / 20))
    shares = np.arange(1, 21) / 20
    toc = points / (shares * 8) - points[-1] / 8
    wanted = {"AUUC": area, "Qini": area - points[-1] / 2, "AUTOC": toc.mean()}
    assert {name: one.estimate for name, one in curve.areas.items()} == pytest.approx(wanted, abs=1e-12)
    tenths = np.diff(points[1::2], prepend=0.0) / 0.8
    assert curve.deciles()["effect"].tolist() == pytest.approx(tenths.tolist(), abs=1e-12)
    ordered = np.sort(SCORES, axis=None)[::-1].reshape(10, -1)
    assert curve.deciles()["score"].tolist() == pytest.approx(ordered.mean(axis=1).tolist())
    frame = curve.to_frame()
    assert frame["uplift"].tolist() == pytest.approx((points / (shares * 8)).tolist(), abs=1e-12)
    assert (frame["low"] <= frame["effect"]).all()
    assert (frame["effect"] <= frame["high"]).all()
    assert "AUUC" in str(curve)


def test_a_curve_of_the_truth_is_that_of_its_gains() -> None:
    sample = World.synthetic(30, 8, random_state=0).sample(3, random_state=1)
    tau = np.zeros(SHAPE)
    np.add.at(tau, (sample.truth.user, sample.truth.item, sample.truth.time), sample.truth.value)
    curve = effect_curve(SCORES, sample.truth, points=10)
    assert [one.estimate for one in curve.effects] == pytest.approx(slow_curve(sample.log, tau, 10).tolist())
    assert curve.verdict is None


def test_a_curve_by_k_is_the_metric_of_each_k() -> None:
    curve = effect_curve(SCORES, BASE, by="k", points=[1, 3, 8])
    result = evaluate(SCORES, BASE, ["CP@1", "CP@3", "CP@8"])
    assert curve.to_frame()["uplift"].tolist() == [one.mean for one in result.values()]
    highs = [k * result[f"CP@{k}"].high for k in (1, 3, 8)]
    assert [one.high for one in curve.effects] == pytest.approx(highs)
    assert effect_curve(SCORES, BASE, by="k").shares.tolist() == [1, 2, 3, 5]


@pytest.mark.statistical
def test_intervals_of_areas_and_deciles_cover() -> None:
    """New users in each of 200 logs; 95 % ± 3 standard errors."""
    rng, users, items = np.random.default_rng(0), 150, 6
    effect = np.linspace(0.3, 0.0, items)
    hits = []
    for _ in range(200):
        shown = rng.random((users, items)) < 0.4
        bought = rng.random(shown.shape) < 0.1 + effect * shown
        user, item = np.nonzero(shown | bought)
        frame = pd.DataFrame({"user_id": user, "item_id": item, "treated": shown[user, item].astype(int)})
        frame = frame.assign(outcome=bought[user, item].astype(int), propensity=0.4)
        log = Log.from_frame(frame, users=range(users), items=range(items))
        curve = effect_curve(np.tile(-np.arange(6.0), (users, 1)), log, points=30, threads=1)
        shares = np.arange(1, 31) / 30
        points = np.interp(shares * 6, np.arange(7), np.append(0.0, np.cumsum(effect)))
        area = float(np.trapezoid(np.append(0.0, points), dx=1 / 30))
        toc = float(np.mean(points / (shares * 6) - points[-1] / 6))
        truth = {"AUUC": area, "Qini": area - points[-1] / 2, "AUTOC": toc}
        hits.append(
            [one.low <= truth[name] <= one.high for name, one in curve.areas.items()]
            + [
                curve.effects[9].low <= points[9] <= curve.effects[9].high,
                curve.tenths[0][3] <= effect[0] <= curve.tenths[0][4],
            ]
        )
    assert (np.mean(hits, axis=0) >= 0.95 - 3 * np.sqrt(0.95 * 0.05 / 200)).all()


def test_money_is_spent_on_the_best_pairs_first() -> None:
    scores = np.array([[0.5, 0.4, 0.1], [0.3, 0.9, 0.0]])
    log = sparse_log(cells_frame(2, 3, 1, 0))
    shown = spend(scores, log, 6.0, cost={0: 1.0, 1: 2.0, 2: 1.0})
    assert shown[["user_id", "item_id"]].to_numpy().tolist() == [[0, 0], [1, 1], [1, 0], [0, 1]]
    assert shown["cost"].sum() == 6.0
    few = spend(scores, log, 6.0, cost=pd.DataFrame({"item_id": [0, 1, 2], "cost": [1.0, 2.0, 1.0]}), k=1)
    assert few[["user_id", "item_id"]].to_numpy().tolist() == [[0, 0], [1, 1]]
    worth = spend(scores, log, 6.0, cost=1.0, value=2.1)
    assert worth["score"].tolist() == [0.9, 0.5]
    assert not len(spend(scores, log, 0.5))


def test_what_a_budget_shows_is_a_policy() -> None:
    shown = spend(SCORES, BASE, 40, k=3)
    assert len(shown) == 40
    result = evaluate(shown, BASE, "CP@3")["CP@3"]
    assert np.isfinite(result.mean)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: effect_curve(SCORES, BASE, by="rank"), "by must be one of 'share', 'k'"),  # type: ignore[arg-type]
        (lambda: effect_curve(SCORES, BASE, points=15), "multiple of 10"),
        (lambda: effect_curve(SCORES, BASE, by="k", points=3), "points must be numbers of items"),
        (lambda: effect_curve(SCORES, BASE, level=2), "level must be a number between 0 and 1"),
        (lambda: spend(SCORES, BASE, -1), "budget must be a number"),
        (lambda: spend(SCORES, BASE, 5, cost={0: 1.0}), "cost lacks 7 items, for example 1"),
        (lambda: spend(SCORES, BASE, 5, cost=0), "cost must be a number"),
        (lambda: spend(SCORES, BASE, 5, cost=pd.DataFrame({"item": [1]})), "cost needs item_id and cost"),
    ],
)
def test_odd_arguments(call: Any, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        call()


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_deciles_of_scores_of_any_sign_and_with_ties(kind: type) -> None:
    """They are found by the bits of the scores: −0, negative numbers, tiny differences and large ones."""
    rng = np.random.default_rng(7)
    near, far = 1 + 1e-7 * rng.normal(size=40), np.tile([-9e9, 9e9], 20)
    scores = np.concatenate([np.zeros(50), -np.zeros(50), rng.normal(size=60), near, far])
    scores = rng.permutation(scores).astype(kind).reshape(30, 8)
    wanted = np.sort(scores.astype(float), axis=None)[::-1].reshape(10, -1).mean(axis=1)
    found = effect_curve(scores, BASE, points=10).deciles()["score"]
    assert found.tolist() == pytest.approx(wanted.tolist(), rel=1e-9, abs=1e-12)
