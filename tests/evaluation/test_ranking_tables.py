"""Rankings as tables: frames and files, scores and ranks, and lists that end early."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from support.twins import dense, sparse_gains
from taurank import bounds, compare, evaluate
from taurank.errors import InputError
from taurank.evaluation.rankers import TableRanker
from taurank.worlds.world import World

METRICS = ["CP@1", "CP@3", "CDCG", "CAR", "CAUC"]
USERS, ITEMS = 12, 8


@pytest.fixture
def scores() -> Any:
    return np.random.default_rng(0).integers(0, 5, (USERS, ITEMS)).astype(float)  # with ties


@pytest.fixture
def made() -> Any:
    return sparse_gains(np.random.default_rng(1), (2, USERS, ITEMS), 0.4)


def listed(scores: Any, k: int = ITEMS) -> pd.DataFrame:
    """The k best of every user, in a shuffled order of rows."""
    user, item = (codes.ravel() for codes in np.indices(scores.shape))
    frame = pd.DataFrame({"user_id": user, "item_id": item, "score": scores.ravel()})
    return (
        frame.sort_values("score", ascending=False, kind="stable")
        .groupby("user_id")
        .head(k)
        .sample(frac=1, random_state=2)
    )


def write_csv(frame: pd.DataFrame, folder: Path) -> Path:
    frame.to_csv(folder / "ranking.csv", index=False)
    return folder / "ranking.csv"


def write_parquet(frame: pd.DataFrame, folder: Path) -> str:
    frame.to_parquet(folder / "ranking.parquet")
    return str(folder / "ranking.parquet")


FORMS: dict[str, Any] = {
    "pandas": lambda frame, folder: frame,
    "polars": lambda frame, folder: pl.from_pandas(frame),
    "lazy": lambda frame, folder: pl.from_pandas(frame).lazy(),
    "arrow": lambda frame, folder: pa.Table.from_pandas(frame),
    "csv": write_csv,
    "parquet": write_parquet,
    "ranker": lambda frame, folder: TableRanker(frame),
}


@pytest.mark.parametrize("form", list(FORMS))
def test_a_whole_table_is_the_array_of_its_scores(form: str, scores: Any, made: Any, tmp_path: Path) -> None:
    table = FORMS[form](listed(scores), tmp_path)
    by_table, by_array = evaluate(table, made, METRICS), evaluate(scores, made, METRICS)
    for name in METRICS:
        assert np.array_equal(by_table[name].per_user, by_array[name].per_user)
    other = scores[:, ::-1]
    assert compare(table, other, made, "CDCG").difference == compare(scores, other, made, "CDCG").difference


def test_ranks_are_read_where_there_is_no_score(scores: Any, made: Any) -> None:
    frame = listed(scores)
    ranks = frame.groupby("user_id")["score"].rank(method="min", ascending=False).astype(int)
    by_rank = evaluate(frame.drop(columns="score").assign(rank=ranks), made, METRICS)
    by_both = evaluate(frame.assign(rank=1), made, METRICS)  # the score decides
    for name, metric in evaluate(scores, made, METRICS).items():
        assert np.array_equal(by_rank[name].per_user, metric.per_user)
        assert np.array_equal(by_both[name].per_user, metric.per_user)


def test_a_top_k_list_is_measured_as_deep_as_it_is(scores: Any, made: Any) -> None:
    """Without ties at its end, the list of the first 3 has the P@k of the whole ranking for k ≤ 3."""
    scores = np.argsort(np.random.default_rng(3).random(scores.shape), axis=1).astype(float)
    top = evaluate(listed(scores, 3), made, ["CP@1", "CP@3"])
    for name, metric in evaluate(scores, made, ["CP@1", "CP@3"]).items():
        assert np.array_equal(top[name].per_user, metric.per_user)


@pytest.mark.parametrize("metric", ["CP@4", "CP@100", "CDCG", "CAR", "CAUC"])
def test_a_top_k_list_is_refused_by_metrics_that_look_further(metric: str, scores: Any, made: Any) -> None:
    whole = "the first 4 items" if metric == "CP@4" else "the first 8 items" if "@" in metric else "the whole list"
    sentence = (
        rf"{metric} counts {whole}, but the ranking lists fewer than \d items for 12 users, .* 3 items for user"
        r".* with unlisted='last' \(--unlisted last\)"
    )
    for measure in (
        lambda: evaluate(listed(scores, 3), made, metric),
        lambda: evaluate({"list": listed(scores, 3), "all": scores}, made, metric),
        lambda: compare(scores, listed(scores, 3), made, metric),
    ):
        with pytest.raises(InputError, match=sentence):
            measure()  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("metric", ["CP@4", "CDCG", "CAR", "CAUC"])
def test_unlisted_items_rank_last_and_tied_on_demand(metric: str, scores: Any, made: Any) -> None:
    frame = listed(scores, 3)
    array = np.full(scores.shape, -1.0)
    array[frame["user_id"], frame["item_id"]] = frame["score"]
    result = evaluate(frame, made, metric, unlisted="last")
    assert result[metric].per_user == pytest.approx(evaluate(array, made, metric)[metric].per_user, abs=1e-12)
    assert compare(frame, array, made, metric, unlisted="last").difference == pytest.approx(0, abs=1e-12)


def test_one_short_list_is_enough_to_refuse(scores: Any, made: Any) -> None:
    frame = listed(scores, 3)
    short = frame.drop(frame.index[frame["user_id"] == 5][0])
    with pytest.raises(InputError, match="fewer than 3 items for 1 user, for example 2 items for user 5; list more"):
        evaluate(short, made, "CP@3")
    assert evaluate(short, made, "CP@2")


def test_items_outside_the_catalog_do_not_lengthen_a_list(scores: Any, made: Any) -> None:
    foreign = listed(scores, 3).assign(item_id=lambda frame: frame["item_id"].where(frame["item_id"] != 0, 99))
    with pytest.raises(InputError, match="CP@3 counts the first 3 items"):
        evaluate(foreign, made, "CP@3")


def test_users_without_a_list_see_ties_and_are_counted(scores: Any, made: Any) -> None:
    frame = listed(scores)
    result = evaluate(frame[frame["user_id"] != 4], made, METRICS)
    tied = scores.copy()
    tied[4] = 0
    assert result.unknown_users == 1
    for name in METRICS:
        assert result[name].per_user == pytest.approx(evaluate(tied, made, METRICS)[name].per_user, abs=1e-12)


def test_a_table_has_bounds() -> None:
    world = World.synthetic(5, 4, random_state=0)
    scores = np.random.default_rng(0).random((5, 4))
    assert bounds.expected(world, listed(scores), "CDCG") == bounds.expected(world, scores, "CDCG")


def test_unlisted_pairs_rank_below_large_scores() -> None:
    frame = pd.DataFrame({"user_id": [0, 1], "item_id": [0, 1], "score": [1e17, 1e17]})
    assert evaluate(frame, dense(np.eye(2)), "CP@1")["CP@1"].mean == 1.0


ODD_TABLES: list[tuple[Any, str]] = [
    (lambda frame: frame.assign(score=np.nan), "score"),
    (lambda frame: frame.assign(score=np.inf), "must .*finite numbers"),
    (lambda frame: frame.assign(score=-np.finfo(float).max), "must .*finite numbers"),
    (lambda frame: frame.assign(time=1), "has a column 'time', but a ranking has one score"),
    (lambda frame: frame.assign(user_id=3, item_id=3), "user_id"),
    (lambda frame: frame.drop(columns="score").assign(rank=0), r"'rank' must .*integers ≥ 1"),
    (lambda frame: frame.drop(columns="score").assign(rank=1.5), r"'rank' must .*integers ≥ 1"),
    (lambda frame: frame.drop(columns="score"), r"neither a column 'score' nor 'rank'; .* found: user_id, item_id"),
    (lambda frame: frame.drop(columns="item_id"), "no column 'item_id'"),
    (lambda frame: "nothing.csv", "nothing"),
]


@pytest.mark.parametrize(("change", "sentence"), ODD_TABLES)
def test_odd_tables(change: Any, sentence: str, scores: Any, made: Any) -> None:
    with pytest.raises(InputError, match=sentence):
        evaluate(change(listed(scores)), made, "CP@1")
