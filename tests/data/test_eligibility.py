"""Eligible cells against the cells written out, their way through a file, and tables of visits and candidates."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import taurank as tr
from support.builders import synthetic_log
from taurank.data.cell_table import ELIGIBILITY_KEY, fingerprint, from_metadata, to_metadata
from taurank.data.eligibility import Eligibility
from taurank.data.ids import Catalog, Ids
from taurank.errors import InputError

SHAPE = (4, 5, 3)
KINDS = ("all", "item", "item_time", "user_item_time")


def catalog_of(shape: tuple[int, int, int] = SHAPE) -> Catalog:
    return Catalog(*(Ids(np.arange(n), name) for n, name in zip(shape, ("user_id", "item_id", "time"), strict=True)))


def eligibility_of(seed: int, kind: str, visits: bool) -> tuple[Eligibility, npt.NDArray[np.bool_]]:
    """Random tables with repeated rows, and the grid of eligible cells that they mean."""
    rng = np.random.default_rng(seed)
    user, _, time = (rng.integers(0, n, 12) for n in SHAPE)
    grid = np.ones(SHAPE, bool)
    visitors = (user, time) if visits else None
    if visits:
        present = np.zeros((SHAPE[0], SHAPE[2]), bool)
        present[user, time] = True
        grid &= present[:, None, :]
    users, items, times = (rng.integers(0, n, 9) for n in SHAPE)
    candidates: Any = {
        "all": None,
        "item": (None, items, None),
        "item_time": (None, items, times),
        "user_item_time": (users, items, times),
    }[kind]
    listed = np.zeros(SHAPE, bool)
    where: dict[str, Any] = {"all": ..., "item": (slice(None), items), "item_time": (slice(None), items, times)}
    listed[where.get(kind, (users, items, times))] = True
    return Eligibility.from_positions(catalog_of(), visitors, candidates), grid & listed


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from(KINDS), st.booleans())
def test_counts_and_membership_equal_those_of_the_cells_written_out(seed: int, kind: str, visits: bool) -> None:
    eligibility, grid = eligibility_of(seed, kind, visits)
    user, item, time = np.indices(SHAPE)
    assert np.array_equal(eligibility.contains(user, item, time), grid)
    assert eligibility.cells == grid.sum()
    assert np.array_equal(eligibility.cells_by_user, grid.sum((1, 2)))
    assert np.array_equal(eligibility.cells_by_item, grid.sum((0, 2)))
    assert np.array_equal(eligibility.cells_by_time, grid.sum((0, 1)))
    numbered = [code.tolist() for code in eligibility.cell(np.arange(eligibility.cells))]
    by_time = np.argwhere(grid.transpose(2, 0, 1))
    assert numbered == [by_time[:, 1].tolist(), by_time[:, 2].tolist(), by_time[:, 0].tolist()]


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from(KINDS), st.booleans())
def test_a_smaller_catalog_keeps_the_cells_that_remain(seed: int, kind: str, visits: bool) -> None:
    eligibility, grid = eligibility_of(seed, kind, visits)
    kept = [np.array([0, 2, 3]), np.array([4, 1]), np.array([2, 0])]
    moves = [np.full(n, -1) for n in SHAPE]
    for move, codes in zip(moves, kept, strict=True):
        move[codes] = np.arange(len(codes))
    moved = eligibility.reindex(catalog_of((3, 2, 2)), *moves)
    assert np.array_equal(moved.contains(*np.indices((3, 2, 2))), grid[np.ix_(*kept)])


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from(KINDS), st.booleans())
def test_metadata_restores_it(seed: int, kind: str, visits: bool) -> None:
    eligibility = replace(eligibility_of(seed, kind, visits)[0], outside=(3, 7))
    catalog, restored = from_metadata(to_metadata(catalog_of(), eligibility), "it")
    assert catalog == catalog_of()
    assert restored.outside == (3, 7)
    np.testing.assert_equal(restored.arrays(), eligibility.arrays())


def test_a_log_writes_and_reads_its_eligible_cells(tmp_path: Path) -> None:
    log = synthetic_log(4, 5, 3)
    limited = replace(log, eligibility=eligibility_of(1, "item_time", True)[0])
    limited.write(tmp_path / "log.parquet")
    again = tr.Log.read(tmp_path / "log.parquet")
    assert again.equals(limited)
    assert again.cells == limited.cells < log.cells == 60
    assert not again.equals(log)
    assert fingerprint(again) == fingerprint(limited) != fingerprint(log)
    assert copy.deepcopy(again).equals(again)
    tr.gains.outcome(limited).write(tmp_path / "gains.parquet")
    assert fingerprint(tr.Gains.read(tmp_path / "gains.parquet")) == fingerprint(tr.gains.outcome(limited))
    assert pickle.loads(pickle.dumps(again)).equals(again)


def test_files_with_different_eligible_cells_are_refused_together(tmp_path: Path) -> None:
    frame, lists = synthetic_log(4, 5, 3).to_frame(), [range(n) for n in SHAPE]
    for seed, rows in ((1, frame[::2]), (2, frame[1::2])):
        half = tr.Log.from_frame(rows, *lists)
        replace(half, eligibility=eligibility_of(seed, "item", True)[0]).write(tmp_path / f"{seed}.parquet")
    with pytest.raises(InputError, match="have different eligible cells; read them one at a time"):
        tr.Log.read(tmp_path)


def test_damaged_metadata_is_refused() -> None:
    metadata = to_metadata(catalog_of(), eligibility_of(3, "item_time", True)[0])
    for wrong in (b"", b"!", b"AAAA", metadata[ELIGIBILITY_KEY][:-60]):
        with pytest.raises(InputError, match="the eligibility of it is corrupt"):
            from_metadata({**metadata, ELIGIBILITY_KEY: wrong}, "it")


def test_counts_need_no_memory_for_the_cells() -> None:
    size = 1_000_000
    eligibility = Eligibility.from_positions(
        catalog_of((size, size, 2)), ([5, 6, 6], [0, 0, 1]), (None, [1, 2], None)
    )
    assert eligibility.cells == 6
    assert eligibility.cells_by_user[:8].tolist() == [0, 0, 0, 0, 0, 2, 4, 0]


def test_the_column_value_is_read_and_written(tmp_path: Path) -> None:
    frame = pd.DataFrame({"user_id": [1, 2], "item_id": 1, "treated": [1, 0], "outcome": 1, "value": [2.5, 0.0]})
    log = tr.Log.from_frame(frame)
    np.testing.assert_array_equal(log.value, [2.5, 0.0])
    log.write(tmp_path / "log.parquet")
    assert tr.Log.read(tmp_path / "log.parquet").equals(log)
    with pytest.raises(InputError, match="column 'value' must be a finite number ≥ 0; 1 row is not, for example -1"):
        tr.Log.from_frame(frame.assign(value=[-1.0, 1.0]))


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
    log = tr.Log.from_frame(LOG, visits=VISITS)
    expected = inside(VISITS)
    pd.testing.assert_frame_equal(log.to_frame()[COLUMNS], expected, check_dtype=False)
    assert log.eligibility.outside == (1, 2)  # c's recommendation, and what b and c bought
    assert log.users.values.to_pylist() == ["a", "b", "c", "d"]  # d visits and has no row
    assert log.cells == len(VISITS) * log.n_items


@pytest.mark.parametrize(
    ("columns", "cells"), [(["item_id"], 4 * 1), (["item_id", "time"], 2), (["user_id", "item_id", "time"], 2)]
)
def test_candidates(columns: list[str], cells: int) -> None:
    """Item 1 for everyone, at time 0, or for two users at time 0; visits as before."""
    table = pd.DataFrame({"user_id": ["a", "b"], "item_id": [1, 1], "time": [0, 0]})[columns]
    log = tr.Log.from_frame(LOG, visits=VISITS, candidates=table)
    assert (len(log), log.cells) == (2, cells)


def test_files_agree_with_frames(tmp_path: Path) -> None:
    """Ids of a CSV get the types of the log's ids."""
    named = LOG.assign(item_id=LOG["item_id"].map("{:03d}".format))
    items = pd.DataFrame({"item_id": ["001", "002"]})
    named.to_parquet(tmp_path / "log.parquet")
    VISITS.to_csv(tmp_path / "visits.csv", index=False)
    items.to_csv(tmp_path / "items.csv", index=False)
    read = tr.Log.read(tmp_path / "log.parquet", visits=tmp_path / "visits.csv", candidates=tmp_path / "items.csv")
    assert read.equals(tr.Log.from_frame(named, visits=VISITS, candidates=items))
    read.write(tmp_path / "again.parquet")
    assert tr.Log.read(tmp_path / "again.parquet").equals(read)


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
        tr.Log.from_frame(LOG, **tables)


def test_a_log_without_times_has_visits_without_times() -> None:
    flat = LOG[LOG["time"] == 0].drop(columns="time")
    log = tr.Log.from_frame(flat, visits=VISITS[["user_id"]])
    np.testing.assert_array_equal(log.eligibility.cells_by_user, log.n_items)
    with pytest.raises(InputError, match="the visits have a column 'time', but the log has none"):
        tr.Log.from_frame(flat, visits=VISITS)
