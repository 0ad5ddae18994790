"""``Log.from_frame`` and ``Log.read`` with tables of visits and candidates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from taurank import InputError, Log

LOG = pd.DataFrame(
    {
        "user_id": ["a", "a", "b", "b", "c"],
        "item_id": [1, 2, 1, 2, 1],
        "time": [0, 1, 0, 1, 1],
        "treated": [1, 0, 1, 0, 1],
        "outcome": [1, 1, 0, 1, 1],
        "propensity": [0.5, 0.5, 0.5, 0.0, 1.0],
    }
)
VISITS = pd.DataFrame({"user_id": ["d", "a", "a", "b"], "time": [1, 0, 1, 0]})
COLUMNS = ["user_id", "item_id", "time", "treated", "outcome", "propensity"]


def inside(visits: pd.DataFrame) -> pd.DataFrame:
    """The twin: a join."""
    return LOG.merge(visits, on=list(visits.columns))


def test_rows_outside_are_counted_and_may_have_any_propensity() -> None:
    log = Log.from_frame(LOG, visits=VISITS)
    expected = inside(VISITS)
    pd.testing.assert_frame_equal(log.to_frame()[COLUMNS], expected, check_dtype=False)
    assert log.eligibility is not None
    assert log.eligibility.numbers() == (1, 2)  # c's recommendation, and what b and c bought
    assert log.users.values.to_pylist() == ["a", "b", "c", "d"]  # d visits and has no row
    assert log.cells == len(VISITS) * log.n_items


def test_without_the_tables_a_propensity_of_zero_is_refused() -> None:
    with pytest.raises(InputError, match="strictly between 0 and 1"):
        Log.from_frame(LOG)


@pytest.mark.parametrize(
    ("columns", "cells"), [(["item_id"], 4 * 1), (["item_id", "time"], 2), (["user_id", "item_id", "time"], 2)]
)
def test_candidates(columns: list[str], cells: int) -> None:
    """Item 1 for everyone, at time 0, or for two users at time 0; visits as before."""
    table = pd.DataFrame({"user_id": ["a", "b"], "item_id": [1, 1], "time": [0, 0]})[columns]
    log = Log.from_frame(LOG, visits=VISITS, candidates=table)
    assert (len(log), log.cells) == (2, cells)


def test_files_agree_with_frames(tmp_path: Path) -> None:
    """Ids of a CSV get the types of the log's ids."""
    named = LOG.assign(item_id=LOG["item_id"].map("{:03d}".format))
    items = pd.DataFrame({"item_id": ["001", "002"]})
    named.to_parquet(tmp_path / "log.parquet")
    VISITS.to_csv(tmp_path / "visits.csv", index=False)
    items.to_csv(tmp_path / "items.csv", index=False)
    read = Log.read(tmp_path / "log.parquet", visits=tmp_path / "visits.csv", candidates=tmp_path / "items.csv")
    assert read.equals(Log.from_frame(named, visits=VISITS, candidates=items))
    read.write(tmp_path / "again.parquet")
    assert Log.read(tmp_path / "again.parquet").equals(read)


@pytest.mark.parametrize(
    ("tables", "sentence"),
    [
        ({"visits": VISITS[["time"]]}, "the visits have no column 'user_id'"),
        ({"candidates": VISITS}, "the candidates have no column 'item_id'"),
        ({"visits": VISITS[:0]}, "the table of visits has no rows"),
        ({"visits": VISITS.assign(user_id=VISITS["user_id"].where(VISITS["user_id"] != "d"))}, "null"),
        ({"visits": VISITS.assign(user_id="z")}, "no row of the log is in an eligible cell"),
        ({"visits": VISITS, "users": ["a", "b", "c"]}, "visits: 1 row has a user_id that is not in users="),
        ({"visits": LOG[["user_id", "time"]]}, "strictly between 0 and 1 in eligible cells"),
        ({"candidates": pd.DataFrame({"user_id": ["a"], "item_id": [1]})}, "need a time as well"),
    ],
)
def test_what_is_wrong(tables: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        Log.from_frame(LOG, **tables)


def test_a_log_without_times_has_visits_without_times() -> None:
    flat = LOG[LOG["time"] == 0].drop(columns="time")
    log = Log.from_frame(flat, visits=VISITS[["user_id"]])
    assert log.eligibility is not None
    np.testing.assert_array_equal(log.eligibility.cells_by_user, log.n_items)
    with pytest.raises(InputError, match="the visits have a column 'time', but the log has none"):
        Log.from_frame(flat, visits=VISITS)
