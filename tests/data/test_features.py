"""Tables of features: what becomes of numbers, categories and lists, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest

import taurank as tr
from taurank.data.ids import Ids
from taurank.errors import InputError

USERS = Ids([3, 1, 2], "user_id")


def matrix(frame: Any, impute: bool = False) -> np.ndarray:
    rows = tr.Features(users=frame, impute=impute).matrix(USERS)
    assert rows is not None
    return np.asarray(rows.toarray())


def test_numbers_are_standardized_over_the_whole_table() -> None:
    frame = pd.DataFrame({"user_id": [1, 2, 3, 4], "age": [20, 40, 60, 80]})
    ages = (np.array([60, 20, 40]) - 50) / np.std([20, 40, 60, 80])
    assert np.allclose(matrix(frame), np.column_stack([np.ones(3), ages]))
    assert matrix(frame.assign(age=7.0))[:, 1].tolist() == [0, 0, 0]


@pytest.mark.parametrize("make", [pd.DataFrame, pl.DataFrame])
def test_categories_and_lists_become_indicators(make: Any) -> None:
    columns = {"user_id": [1, 2, 3], "plan": ["pro", "free", "pro"], "tags": [["a", "b"], ["b"], []]}
    expected = [[1, 0, 1, 0, 0], [1, 0, 1, 0.5, 0.5], [1, 1, 0, 0, 1]]  # users 3, 1, 2; free, pro, a, b
    assert matrix(make(columns)).tolist() == expected


def test_missing_values_are_refused_or_imputed_and_flagged() -> None:
    frame = pd.DataFrame({"user_id": [1, 2, 3], "age": [20.0, None, 40.0], "plan": ["pro", None, "pro"]})
    with pytest.raises(InputError, match="the feature 'age' has 1 missing value; fill them in, or set impute=True"):
        matrix(frame)
    assert matrix(frame, impute=True).tolist() == [[1, 1, 0, 1, 0], [1, -1, 0, 1, 0], [1, 0, 1, 0, 1]]


def test_an_id_without_a_row_is_refused_or_flagged() -> None:
    frame = pd.DataFrame({"user_id": [1, 2], "x": [1.0, 3.0]})
    with pytest.raises(InputError, match="1 user_id of the log have no features, for example 3"):
        matrix(frame)
    assert matrix(frame, impute=True).tolist() == [[1, 1, 0], [1, 0, -1], [1, 0, 1]]


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        (pd.DataFrame({"id": [1], "x": [1]}), "needs a column 'user_id'; it has id, x"),
        (pd.DataFrame({"user_id": [1]}), "no column beside 'user_id'"),
        (pd.DataFrame({"user_id": [1, 1], "x": [1, 2]}), "column 'user_id' has 1 id more than once"),
        (pd.DataFrame({"user_id": [1], "x": [pd.Timestamp("2024-01-01")]}), "use numbers, text, booleans or lists"),
        ([1], "a pandas, Polars or PyArrow frame is needed"),
        ("none.csv", "does not exist"),
    ],
)
def test_refuses(frame: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        tr.Features(users=frame)


def test_refuses_what_cannot_be_used() -> None:
    with pytest.raises(InputError, match="needs a table of users or of items"):
        tr.Features()
    with pytest.raises(InputError, match="pull"):
        tr.Features(users=pd.DataFrame({"user_id": [1], "x": [1]}), pull=-1)
    with pytest.raises(InputError, match="infinite"):
        matrix(pd.DataFrame({"user_id": [1, 2, 3], "x": [1, 2, np.inf]}))
    many = pd.DataFrame({"user_id": range(6000), "x": [f"c{n}" for n in range(6000)]})
    with pytest.raises(InputError, match="6,001 numbers and categories"):
        tr.Features(users=many).matrix(Ids(range(6000), "user_id"))


def test_the_fingerprint_tells_tables_and_options_apart() -> None:
    frame = pd.DataFrame({"user_id": [1, 2, 3], "x": [1, 2, 3]})
    others: list[dict[str, Any]] = [
        {"users": frame.assign(x=[1, 2, 4])},
        {"users": frame, "pull": 1.0},
        {"items": frame.rename(columns={"user_id": "item_id"})},
    ]
    marks = [tr.Features(**options).fingerprint for options in ({"users": frame}, *others)]
    assert len(set(marks)) == len(marks)
    assert tr.Features(users=frame.copy()).fingerprint == marks[0]


def test_classes_are_tenths_of_fractions_and_categories_as_they_are() -> None:
    ids = Ids(range(102), "user_id")
    frame = pd.DataFrame({"user_id": range(101), "x": [float(n) for n in range(100)] + [np.nan], "plan": "pro"})
    tenths, plans = tr.Features(users=frame).classes(ids)
    assert np.bincount(tenths).tolist() == [2] + 10 * [10]  # 0: without a value, without a row
    assert all((np.diff(tenths[:100]) >= 0).tolist())
    assert plans.tolist() == 101 * [1] + [0]
    with pytest.raises(InputError, match="takes numbers and categories"):
        tr.Features(users=frame.assign(tags=pd.Series([["a"]] * 101, dtype=object))).classes(ids)
    many = pd.DataFrame({"user_id": range(20_000), "x": range(20_000)})
    with pytest.raises(InputError, match="more than 10,000 classes"):
        tr.Features(users=many).classes(Ids(range(20_000), "user_id"))


def test_a_file_is_read_like_a_frame(tmp_path: Path) -> None:
    frame = pd.DataFrame({"user_id": ["3", "1", "2"], "x": [0.5, 1.5, 2.5], "n": [1, 2, 3], "plan": ["a", "b", "a"]})
    frame.to_csv(tmp_path / "users.csv", index=False)
    ids = Ids(["1", "2", "3"], "user_id")
    given, read = tr.Features(users=frame), tr.Features(users=tmp_path / "users.csv")
    assert (given.matrix(ids) != read.matrix(ids)).nnz == 0  # type: ignore[union-attr]
    assert [part.tolist() for part in given.classes(ids)] == [part.tolist() for part in read.classes(ids)]
    with pytest.raises(InputError, match="string ids such as '3', but the catalog has int64 ids"):
        given.classes(Ids([1, 2, 3], "user_id"))


def test_categories_that_users_can_be_shown() -> None:
    items = pd.DataFrame({"item_id": [10, 11, 12, 13], "category": ["tea", "pens", None, "tea"]})
    own = pd.DataFrame({"user_id": [2, 1, 1, 9, 2], "category": ["tea", "pens", "tea", "tea", "ink"]})
    features = tr.Features(items=items, categories=own)
    user, category, score, item = features.user_categories(USERS, Ids([11, 12, 13, 14], "item_id"))  # type: ignore[misc]
    assert item.tolist() == [1, 2, 0, 2]  # tea, pens, and one of nobody
    assert (user.tolist(), category.tolist()) == ([2, 1, 1], [0, 1, 0])  # users 2, 1, 1
    assert score.tolist() == [0, 0, 0]
    scored = tr.Features(items=items, categories=own.assign(score=[1, 2, 3, 4, np.nan]))
    deviations = (np.array([1, 2, 3]) - 2.5) / np.std([1, 2, 3, 4])
    assert np.allclose(scored.user_categories(USERS, Ids([11], "item_id")).score, deviations)  # type: ignore[union-attr]
    assert tr.Features(items=items).user_categories(USERS, Ids([11], "item_id")) is None
    for wrong in (items.rename(columns={"category": "kind"}), None):
        with pytest.raises(InputError, match="one column that the items have too, such as category"):
            tr.Features(users=pd.DataFrame({"user_id": [1], "x": [1]}), items=wrong, categories=own)
    text = tr.Features(items=items, categories=own.assign(score="much"))
    with pytest.raises(InputError, match="the feature 'score' is not numeric"):
        text.user_categories(USERS, Ids([11], "item_id"))
