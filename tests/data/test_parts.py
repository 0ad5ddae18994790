"""Parts of a log: selection and split against frames."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

import taurank as tr
from support.builders import synthetic_log
from support.command_line import Command
from taurank.data.eligibility import Eligibility
from taurank.errors import InputError


def small_log() -> tr.Log:
    log = synthetic_log(6, 5, 4)
    visits = (np.array([0, 1, 2, 3, 3, 4, 5]), np.array([0, 0, 1, 1, 2, 3, 3]))
    return replace(
        log, value=np.arange(len(log), dtype=float), eligibility=Eligibility.from_positions(log.catalog, visits)
    )


def test_select_keeps_rows_catalog_values_and_eligible_cells() -> None:
    log = small_log()
    part = log.select(users=[4, 1, 0], items=[2, 3], times=[3, 0])
    rows = log.to_frame()
    kept = rows[rows["user_id"].isin([0, 1, 4]) & rows["item_id"].isin([2, 3]) & rows["time"].isin([0, 3])]
    pd.testing.assert_frame_equal(part.to_frame(), kept.reset_index(drop=True))
    assert [ids.values.to_pylist() for ids in (part.users, part.items, part.times)] == [[4, 1, 0], [2, 3], [3, 0]]
    assert part.cells == 3 * 2  # user 4 at time 3, users 0 and 1 at time 0
    assert log.select().equals(replace(log, summary=None))


@pytest.mark.parametrize(
    ("options", "later"), [({"times": 1}, [3]), ({"share": 0.5}, [2, 3]), ({"times": [1, 3]}, [1, 3])]
)
def test_split_by_time(options: dict[str, Any], later: list[int]) -> None:
    log = small_log()
    first, second = log.split(**options)
    assert second.times.values.to_pylist() == later
    assert len(first) + len(second) == len(log)
    assert first.cells + second.cells == log.cells
    assert first.users == second.users == log.users


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({}, "split needs either times or share"),
        ({"times": 1, "share": 0.5}, "split needs either times or share"),
        ({"times": 4}, "of which 4 would be in the later part; both parts need at least one"),
        ({"share": 0.0}, "of which 0 would be in the later part"),
        ({"share": 2}, "share must be a number between 0 and 1, got 2"),
        ({"times": [9]}, "1 time is not in the catalog"),
    ],
)
def test_impossible_splits_are_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        small_log().split(**options)
    with pytest.raises(InputError, match="select needs at least one user_id"):
        small_log().select(users=[])


def test_the_parts_of_a_split_together_are_the_log() -> None:
    """Also where a time has visits and no row."""
    whole = small_log()
    for log in (whole, whole.take(whole.time != 1), whole.take(whole.time != 3)):
        both = log.select(times=[0, 1]).concat(log.select(times=[2, 3]))
        order = ["time", "user_id", "item_id"]
        joined, expected = (part.to_frame().sort_values(order, ignore_index=True) for part in (both, log))
        pd.testing.assert_frame_equal(joined, expected)
        assert both.catalog == log.catalog
        user, item, time = np.indices(log.eligibility.shape)
        cells = both.eligibility.contains(user, item, time)
        assert np.array_equal(cells, log.eligibility.contains(user, item, time))


def test_logs_that_share_a_catalog_have_the_eligible_cells_of_their_own_rows() -> None:
    log = small_log()
    early, late = log.take(log.time < 2), log.take(log.time >= 2)
    everything = replace(late, eligibility=Eligibility.everything(log.catalog))
    both = early.concat(everything)
    by_time = log.eligibility.cells_by_time
    assert both.eligibility.cells_by_time.tolist() == [*by_time[:2], 30, 30]


def test_a_failure_in_the_second_file_leaves_the_first_as_it_was(
    tmp_path: Path, taurank: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_log().write(tmp_path / "log.parquet")
    train, test = tmp_path / "train.parquet", tmp_path / "test.parquet"
    train.write_bytes(b"an earlier one")
    written: list[Path] = []

    def full(path: Path, *rest: Any, **options: Any) -> Any:
        written.append(path)
        if len(written) == 2:
            raise InputError("the disk is full.")
        return writer(path, *rest, **options)

    writer = pq.ParquetWriter
    monkeypatch.setattr(pq, "ParquetWriter", full)
    command = ["log", "split", tmp_path / "log.parquet", "--times", 1, "--train", train, "--test", test]
    assert taurank(*command).refused_with("the disk is full")
    assert len(written) == 2
    assert train.read_bytes() == b"an earlier one"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["log.parquet", "train.parquet"]


def test_the_command_writes_both_parts_or_none(tmp_path: Path, taurank: Command) -> None:
    log = small_log()
    log.write(tmp_path / "log.parquet")
    files = [tmp_path / name for name in ("train.parquet", "test.parquet")]
    command = ["log", "split", tmp_path / "log.parquet", "--train", files[0], "--test", files[1]]
    assert taurank(*command, "--times", 9).code == 2
    assert not any(file.exists() for file in files)
    assert taurank(*command, "--times", 1).code == 0
    for file, part in zip(files, log.split(times=1), strict=True):
        assert tr.Log.read(file).equals(part)
