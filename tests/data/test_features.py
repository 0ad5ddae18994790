"""Tables of features: what becomes of numbers, categories and lists, and what is refused."""

from __future__ import annotations

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
    rows = tr.Features(users=frame, impute=impute).of_users(USERS)
    assert rows is not None
    return np.asarray(rows.toarray())


def test_numbers_are_standardized_over_the_whole_table() -> None:
    frame = pd.DataFrame({"user_id": [1, 2, 3, 4], "age": [20, 40, 60, 80]})
    ages = (np.array([60, 20, 40]) - 50) / np.std([20, 40, 60, 80])
    assert np.allclose(matrix(frame), np.column_stack([np.ones(3), ages]))


@pytest.mark.parametrize("make", [pd.DataFrame, pl.DataFrame])
def test_categories_and_lists_become_indicators(make: Any) -> None:
    columns = {"user_id": [1, 2, 3], "plan": ["pro", "free", "pro"], "tags": [["a", "b"], ["b"], []]}
    expected = [[1, 0, 1, 0, 0], [1, 0, 1, 0.5, 0.5], [1, 1, 0, 0, 1]]  # users 3, 1, 2; free, pro, a, b
    assert matrix(make(columns)).tolist() == expected


def test_a_constant_number_is_zero() -> None:
    assert matrix(pd.DataFrame({"user_id": [1, 2, 3], "x": 7.0}))[:, 1].tolist() == [0, 0, 0]


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
        (pd.DataFrame({"user_id": [1, 1], "x": [1, 2]}), "more than once"),
        (pd.DataFrame({"user_id": [1], "x": [pd.Timestamp("2024-01-01")]}), "use numbers, text, booleans or lists"),
        ("frame", "a pandas, Polars or PyArrow frame is needed"),
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
        tr.Features(users=many).of_users(Ids(range(6000), "user_id"))


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
