"""The fingerprint of data: equal for equal data, different for every single change."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import taurank as tr
from taurank.data.cell_table import fingerprint

FRAME = pd.DataFrame(
    {
        "user_id": ["ann", "ann", "bob"],
        "item_id": [1, 2, 1],
        "time": [0, 1, 0],
        "treated": [1, 0, 1],
        "outcome": [1, 1, 0],
        "propensity": [0.5, 0.25, 0.125],
    }
)


def log_of(frame: pd.DataFrame = FRAME, **catalog: Any) -> tr.Log:
    return tr.Log.from_frame(frame, **catalog)


def test_the_same_data_from_anywhere_have_one_fingerprint(tmp_path: Path) -> None:
    log_of().write(tmp_path / "log.parquet")
    log_of().write(tmp_path / "log.csv")
    logs = [
        log_of(),
        tr.Log.from_frame(pl.from_pandas(FRAME)),
        tr.Log.from_frame(pa.Table.from_pandas(FRAME)),
        tr.Log.read(tmp_path / "log.parquet"),
        tr.Log.read(tmp_path / "log.csv"),
    ]
    assert len({fingerprint(log) for log in logs}) == 1


@pytest.mark.parametrize("column", list(FRAME.columns))
def test_one_changed_value_changes_it(column: str) -> None:
    changed = FRAME.copy()
    other: Any = {"user_id": "cat", "item_id": 3, "time": 1, "treated": 0, "outcome": 1, "propensity": 0.126}
    changed.loc[2, column] = other[column]
    assert fingerprint(log_of(changed)) != fingerprint(log_of())


def test_the_catalog_the_order_and_absent_columns_count() -> None:
    log = log_of()
    variants = [
        log,
        log_of(users=["ann", "bob", "cat"]),
        log_of(users=["bob", "ann"]),
        log_of(items=[1, 2, 3]),
        log_of(times=[0, 1, 2]),
        log_of(FRAME.iloc[::-1]),
        log_of(FRAME.drop(columns="propensity")),
        replace(log, timed=False),
    ]
    assert len({fingerprint(one) for one in variants}) == len(variants)


def test_gains_and_several_tables() -> None:
    log = log_of()
    gains = tr.gains.ips(log)
    other = tr.gains.capped_ips(log, cap=0.9)
    together = {fingerprint(log, gains), fingerprint(gains, log), fingerprint(log, other), fingerprint(log)}
    assert len(together) == 4
    assert fingerprint(log, gains) == fingerprint(log_of(), tr.gains.ips(log_of()))


def test_ids_of_a_slice_are_those_of_a_whole_array() -> None:
    whole = pa.array(["x", "ann", "bob", "y"])
    assert fingerprint(log_of(users=whole.slice(1, 2))) == fingerprint(log_of(users=["ann", "bob"]))
    numbers = pa.array([9, 1, 2, 9])
    assert fingerprint(log_of(items=numbers.slice(1, 2))) == fingerprint(log_of(items=[1, 2]))


def test_the_borders_between_texts_count() -> None:
    def of(*users: str) -> str:
        frame = pd.DataFrame({"user_id": list(users), "item_id": 1, "treated": 1, "outcome": 1})
        return fingerprint(tr.Log.from_frame(frame))

    assert of("ab", "c") != of("a", "bc")
