"""Metrics by hand, against slow twins, and by their invariants."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.twins import by_all_orders, by_argsort, by_pandas, dense, pairwise_auc, sparse_gains
from taurank import Gains
from taurank.data.ids import Ids
from taurank.errors import InputError
from taurank.evaluation import rank_kernels, rankers, topk, weights
from taurank.evaluation.evaluate import evaluate
from taurank.evaluation.metrics import parse, position_weights

PLAIN = ("P@1", "P@2", "P@10", "DCG", "AR")
BOTH = [*PLAIN, *("C" + name for name in PLAIN), "CAUC"]


class Factors:
    """The smallest learner: scores are products of factors."""

    def __init__(self, users: Any, items: Any, seed: int = 0, kind: Any = np.float32) -> None:
        rng = np.random.default_rng(seed)
        self.users, self.items = Ids(users, "user_id"), Ids(items, "item_id")
        self.user_factors = rng.standard_normal((len(users), 4)).astype(kind)
        self.item_factors = rng.standard_normal((len(items), 4)).astype(kind)

    def score_block(self, user_codes: npt.NDArray[np.int32]) -> npt.NDArray[Any]:
        return np.asarray(self.user_factors[user_codes] @ self.item_factors.T)


# --- by hand ---------------------------------------------------------------------------------------------


def test_one_user_by_hand() -> None:
    scores = [[0.1, 0.9, 0.5, 0.3]]  # ranks 4, 1, 2, 3
    result = evaluate(scores, dense([[1.0, 0.0, -1.0, 1.0]]), ["CP@1", "CP@2", "CP@3", "CDCG", "CAR", "CAUC"])
    assert result["CP@1"].mean == 0.0
    assert result["CP@2"].mean == -1 / 2
    assert result["CP@3"].mean == 0.0
    expected = 1 / np.log2(5) - 1 / np.log2(3) + 1 / np.log2(4)
    assert result["CDCG"].mean == pytest.approx(expected, abs=1e-15)
    assert result["CAR"].mean == (4 - 2 + 3) / 4
    assert result["CAUC"].mean == pytest.approx((0 - 2 + 1) / 4 / 3, abs=1e-15)


def test_users_without_gains_count_as_zero_and_times_are_averaged() -> None:
    values = np.zeros((2, 3, 2))
    values[0, 0, 0], values[0, 1, 0], values[1, 0, 1] = 1, 1, 1  # time, user, item
    metric = evaluate(np.tile([2.0, 1.0], (3, 1)), dense(values), "CP@1")["CP@1"]
    assert metric.per_time.tolist() == pytest.approx([2 / 3, 0])
    assert metric.per_user.tolist() == pytest.approx([0.5, 0.5, 0])
    assert metric.mean == pytest.approx(1 / 3)
    assert metric.std == pytest.approx(1 / 3)  # divided by the number of times


def test_no_gains_at_all() -> None:
    result = evaluate(np.eye(3), dense(np.zeros((3, 3)), "outcome"), [*BOTH, "AUC"])
    assert all(metric.mean == 0 and not metric.per_user.any() for metric in result.values())
    assert result["P@1"].interval() == (0.0, 0.0)


def test_one_item_and_one_user() -> None:
    result = evaluate([[0.0]], dense([[2.0]]), ["P@1", "DCG", "AR", "CAUC"])
    assert [metric.mean for metric in result.values()] == [2.0, 2.0, 2.0, 0.0]
    assert np.isnan(result["AR"].interval()).all()


@pytest.mark.parametrize("seed", range(3))
def test_auc_of_outcomes_is_the_share_of_ordered_pairs(seed: int) -> None:
    rng = np.random.default_rng(seed)
    scores = rng.integers(0, 4, (5, 7)).astype(float)
    bought = rng.random((2, 5, 7)) < 0.4
    bought[:, 0], bought[:, 1] = False, True
    metric = evaluate(scores, dense(bought, "outcome"), "AUC")["AUC"]
    expected = np.zeros((2, 5))
    expected[:, 1] = 0.5  # nothing but positives: no pair to order
    for time in range(2):
        for user in range(2, 5):
            if bought[time, user].any():
                expected[time, user] = pairwise_auc(scores[user], bought[time, user])
    assert metric.per_user == pytest.approx(expected.mean(axis=0), abs=1e-12)
    assert metric.per_time == pytest.approx(expected.mean(axis=1), abs=1e-12)


@pytest.mark.parametrize("kind", ["effect", "outcome", None])
def test_auc_is_the_area_and_cauc_is_linear_by_name_alone(kind: Any) -> None:
    """The same 0/1 gains have the same AUC whatever they are declared or called."""
    rng = np.random.default_rng(0)
    scores, bought = rng.standard_normal((4, 6)), rng.random((4, 6)) < 0.5
    made = dense(bought, kind)
    for named in (made, replace(made, name="outcome"), replace(made, name="gain")):
        result = evaluate(scores, named, ["AUC", "CAUC"])
        area = [pairwise_auc(scores[u], bought[u]) if bought[u].any() else 0.0 for u in range(4)]
        linear = [by_all_orders(list(scores[u]), list(bought[u].astype(float)), "AUC") for u in range(4)]
        assert result["AUC"].per_user == pytest.approx(area, abs=1e-12)
        assert result["CAUC"].per_user == pytest.approx(linear, abs=1e-12)


@pytest.mark.parametrize("kind", ["effect", "outcome", None])
def test_auc_looks_at_the_values(kind: Any) -> None:
    with pytest.raises(InputError, match=r"AUC needs gains of 0 or 1; 'made up' .* in 1 cell, for example 2\. CAUC"):
        evaluate(np.eye(2), dense([[1.0, 2.0], [0.0, 0.0]], kind), "AUC")
    with pytest.raises(InputError, match="AUC is not a weighted sum of gains; CAUC is"):
        position_weights(np.eye(2), "AUC")


# --- against twins ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("share", [0.02, 0.7])
def test_agrees_with_pandas_without_ties(kind: type[np.generic], share: float) -> None:
    rng = np.random.default_rng(5)
    shape = (40, 400)
    scores = np.argsort(rng.random(shape), axis=1).astype(kind)
    made = sparse_gains(rng, (3, *shape), share)
    result = evaluate(scores, made, ["CP@1", "CP@10", "CP@100", "CDCG", "CAR", "CAUC"])
    plain = tuple(name[1:] for name in result)
    twin = by_pandas(scores, made, plain)
    for name in plain:
        values = twin[name].unstack().reindex(index=range(40), columns=range(3)).fillna(0).to_numpy()
        assert result["C" + name].per_user == pytest.approx(values.mean(axis=1), abs=1e-9)
        assert result["C" + name].per_time == pytest.approx(values.mean(axis=0), abs=1e-9)
        assert result["C" + name].mean == pytest.approx(values.mean(), abs=1e-9)
        assert result["C" + name].std == pytest.approx(values.mean(axis=0).std(), abs=1e-9)
    assert by_argsort(scores, made, plain) / 3 == pytest.approx(
        np.stack([metric.per_user for metric in result.values()]), abs=1e-9
    )


@given(
    scores=st.lists(st.integers(0, 2), min_size=2, max_size=5),
    data=st.data(),
    metric=st.sampled_from(["P@1", "P@2", "P@3", "DCG", "AR", "AUC"]),  # the causal readings of these
)
@settings(max_examples=60, deadline=None)
def test_ties_are_the_mean_over_all_orders(scores: list[int], data: Any, metric: str) -> None:
    floats = [float(score) for score in scores]
    values = data.draw(st.lists(st.integers(-2, 2), min_size=len(scores), max_size=len(scores)))
    expected = by_all_orders(floats, [float(value) for value in values], metric)
    causal = f"C{metric}"
    assert evaluate([floats], dense([values]), causal)[causal].mean == pytest.approx(expected, abs=1e-12)


def awkward_rows(kind: Any) -> dict[str, npt.NDArray[Any]]:
    rng = np.random.default_rng(1)
    largest, smallest = np.finfo(kind).max, np.finfo(kind).smallest_subnormal
    rows = {
        "normal": rng.standard_normal(5000),
        "ties": rng.integers(-3, 3, 5000) * -1.0,  # with -0 among the zeros
        "constant": np.full(5000, 2.5),
        "outlier": np.append(rng.standard_normal(4999), 1e30),
        "overflowing": np.append(rng.standard_normal(4998), [largest, -largest]),
        "tiny": rng.integers(0, 50, 5000) * float(smallest),
        "one": np.array([1.0]),
    }
    return {name: row.astype(kind) for name, row in rows.items()}


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("name", list(awkward_rows(np.float64)))
@pytest.mark.parametrize("depth", [None, 3])
def test_counting_and_lists_of_any_depth_find_the_ranks(kind: Any, name: str, depth: int | None) -> None:
    scores = awkward_rows(kind)[name][None]
    metric = parse("AR" if depth is None else f"P@{depth}")
    tables = weights.rank_weights([metric], [scores.shape[1]])
    order, length = topk.best_first(scores, int(tables.depth.max()))
    ordered = np.ones((1, *scores.shape))
    rank_kernels.weigh_in_order(scores, order, length, tables, ordered)
    whole, at = position_weights(scores, metric), np.arange(0, scores.shape[1], 29).astype(np.int32)
    assert ordered[0] == pytest.approx(whole, rel=1e-9, abs=1e-15)
    counted = np.zeros((1, len(at)))
    rank_kernels.weigh_by_counting(scores, np.array([0, len(at)]), at, tables, counted)
    assert counted[0] == pytest.approx(whole[0, at], rel=1e-9, abs=1e-15)


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("share", [0.002, 0.05])
def test_agrees_with_weights_of_all_cells_under_ties(kind: type[np.generic], share: float) -> None:
    rng = np.random.default_rng(1)
    scores = rng.integers(-3, 3, (7, 5000)).astype(kind)
    made = sparse_gains(rng, (2, 7, 5000), share)
    for name, metric in evaluate(scores, made, ["P@10", "P@3000", "DCG", "AR", "CAUC"]).items():
        cells = position_weights(scores, name)
        expected = np.zeros(7)
        np.add.at(expected, made.user, cells[made.user, made.item] * made.value / 2)
        assert metric.per_user == pytest.approx(expected, abs=1e-12)


def test_position_weights_are_the_twins_weights() -> None:
    weights = position_weights(np.array([[3.0, 1.0, 1.0, 0.0]]), "P@2")
    assert weights.tolist() == [[0.5, 0.25, 0.25, 0.0]]
    assert position_weights([[2, 1]], "CAR").tolist() == [[0.5, 1.0]]


# --- invariants ------------------------------------------------------------------------------------------


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=15, deadline=None)
def test_invariants(seed: int) -> None:
    rng = np.random.default_rng(seed)
    scores = rng.integers(-3, 4, (6, 9)).astype(float)
    first, second = (rng.integers(-1, 2, (6, 9)).astype(float) for _ in range(2))
    names = ["P@2", "DCG", "AR", "CAUC"]
    base = evaluate(scores, dense(first), names)
    other = evaluate(scores, dense(second), names)
    both = evaluate(scores, dense(2 * first + second), names)
    shuffle = rng.permutation(9)
    moved = evaluate(scores[:, shuffle], dense(first[:, shuffle]), names)
    squeezed = evaluate(np.exp(scores), dense(first), names)
    for name in names:
        assert np.array_equal(squeezed[name].per_user, base[name].per_user)
        assert moved[name].per_user == pytest.approx(base[name].per_user, abs=1e-12)
        linear = 2 * base[name].per_user + other[name].per_user
        assert both[name].per_user == pytest.approx(linear, abs=1e-12)


def test_bits_do_not_depend_on_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rankers, "_BLOCK_USERS", 16)
    rng = np.random.default_rng(2)
    made = sparse_gains(rng, (3, 200, 90), 0.05)
    learner = Factors(range(200), range(90))
    one, *more = (evaluate(learner, made, BOTH, threads=n) for n in (1, 2, 3))
    for other in more:
        for name in BOTH:
            assert one[name].per_user.tobytes() == other[name].per_user.tobytes()
            assert one[name].per_time.tobytes() == other[name].per_time.tobytes()
            assert one[name].interval() == other[name].interval()


def test_both_spellings_and_any_case() -> None:
    made = sparse_gains(np.random.default_rng(0), (5, 8), 0.5)
    scores = np.random.default_rng(1).random((5, 8))
    result = evaluate(scores, made, ["P@3", "CP@3", "dcg", "CDCG", "AR", "CAR", "P@3"])
    assert list(result) == ["P@3", "CP@3", "DCG", "CDCG", "AR", "CAR"]
    for plain in ("P@3", "DCG", "AR"):
        assert result[plain].mean == result["C" + plain].mean
    assert result["cdcg"] is result["CDCG"]


# --- rankers ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_bad_scores_name_user_and_item(bad: float, kind: type[np.generic]) -> None:
    frame = pd.DataFrame({"user_id": ["ann"], "item_id": ["tea"], "value": [1.0]})
    made = Gains.from_frame(frame, users=["bob", "ann"], items=["milk", "tea", "rice"])
    scores = np.zeros((2, 3), kind)
    scores[0, 2] = bad
    with pytest.raises(ValueError, match=r"user 'bob' and item 'rice' is -?(nan|inf)"):
        evaluate(scores, made)


def test_a_learners_bad_score_names_the_gains_ids() -> None:
    learner = Factors(["ann", "bob"], ["rice", "milk", "tea"])
    learner.item_factors[2] = np.nan
    frame = pd.DataFrame({"user_id": ["bob"], "item_id": ["milk"], "value": [1.0]})
    with pytest.raises(ValueError, match="user 'bob' and item 'tea' is nan"):
        evaluate(learner, Gains.from_frame(frame, users=["bob"], items=["tea", "milk"]))
    fine = evaluate(learner, Gains.from_frame(frame, users=["bob"], items=["rice", "milk"]))
    assert fine.unknown_items == 0  # a bad score of an item that is not ranked does not matter


@pytest.mark.parametrize(("n_users", "n_items"), [(30, 20), (40, 35)])  # as the gains, and more than them
def test_a_learner_and_its_scores_agree_in_any_order_of_ids(n_users: int, n_items: int) -> None:
    rng = np.random.default_rng(4)
    made = sparse_gains(rng, (30, 20), 0.2)
    users, items = rng.permutation(n_users), rng.permutation(n_items)
    learner = Factors(users, items)
    scores = learner.score_block(np.arange(n_users, dtype=np.int32))
    arranged = scores[np.argsort(users)[:30]][:, np.argsort(items)[:20]]
    by_learner, by_array = evaluate(learner, made, BOTH), evaluate(arranged, made, BOTH)
    assert (by_learner.unknown_users, by_learner.unknown_items) == (0, 0)
    for name in BOTH:
        assert np.array_equal(by_learner[name].per_user, by_array[name].per_user)


@pytest.mark.parametrize("n_items", [7, 200])
def test_unknown_items_come_last_and_unknown_users_see_ties(n_items: int) -> None:
    rng = np.random.default_rng(6)
    made = sparse_gains(rng, (12, n_items + 3), 0.5)
    learner = Factors(range(9), range(n_items))
    scores = np.zeros((12, n_items + 3))
    scores[:9, :n_items] = learner.score_block(np.arange(9, dtype=np.int32))
    scores[:9, n_items:] = scores.min() - 1
    result, expected = evaluate(learner, made, BOTH), evaluate(scores, made, BOTH)
    assert (result.unknown_users, result.unknown_items) == (3, 3)
    for name in BOTH:
        assert result[name].per_user == pytest.approx(expected[name].per_user, abs=1e-12)
    assert "3 users unknown to the ranker" in str(result)
    assert "3 items unknown to the ranker" in str(result)


def test_integers_and_frames_are_scores_too() -> None:
    made = sparse_gains(np.random.default_rng(0), (4, 6), 0.5)
    scores = np.random.default_rng(1).permutation(24).reshape(4, 6)
    expected = evaluate(scores.astype(float), made)["CDCG"].mean
    frozen = scores.astype(float)
    frozen.flags.writeable = False
    for same in (scores, scores.astype(np.int8), pd.DataFrame(scores), scores.astype(float).T.copy().T, frozen):
        assert evaluate(same, made)["CDCG"].mean == expected


def test_masked_scores_are_refused_and_unmasked_ones_are_not() -> None:
    scores, made = np.ma.masked_greater([[0.1, 9.0], [0.3, 0.2]], 5), dense(np.eye(2))
    with pytest.raises(ValueError, match="masked entries; fill them"):
        evaluate(scores, made)
    filled = scores.filled(-1.0)
    assert evaluate(np.ma.masked_array(filled), made)["CDCG"].mean == evaluate(filled, made)["CDCG"].mean


def test_a_learner_with_scores_of_the_wrong_shape() -> None:
    learner = Factors([0, 1], [0, 1])
    learner.item_factors = learner.item_factors[:1]
    with pytest.raises(ValueError, match=r"scores of shape \(2, 1\) .* expected numbers of shape \(2, 2\)"):
        evaluate(learner, dense(np.eye(2)))


def test_gains_outside_their_catalog_do_not_reach_a_kernel() -> None:
    good = dense(np.eye(2))
    wrong: list[Any] = [good.user + 1, good.user - 1, good.user.astype(np.int64) + 2**32]
    for user in wrong:
        with pytest.raises(InputError, match="user_id positions must be between"):
            Gains(good.catalog, user, good.item, good.time, good.value)
