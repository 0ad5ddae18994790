"""Ids of every type, in one batch or many: never another user, never another library's error, in linear time."""

from __future__ import annotations

import pickle
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taurank import Log
from taurank.data import ids as ids_module
from taurank.data.ids import Ids
from taurank.data.reader import IdColumn, WrongRows
from taurank.errors import InputError


def table(user: Any, n: int | None = None) -> pa.Table:
    users = user if isinstance(user, (pa.Array, pa.ChunkedArray)) else pa.array(user)
    n = len(users) if n is None else n
    flags = np.ones(n, np.int8)
    return pa.table({"user_id": users, "item_id": np.arange(n), "treated": flags, "outcome": flags})


def users_of(log: Log) -> list[Any]:
    """The user of every row."""
    ids: list[Any] = log.users.decode(log.user).to_pylist()
    return ids


@given(st.lists(st.lists(st.one_of(st.integers(0, 20), st.none()), max_size=6), max_size=12), st.booleans())
@settings(max_examples=200, deadline=None)
def test_batches_are_encoded_like_the_slow_twin(batches: list[list[int | None]], encoded: bool) -> None:
    """The twin: a dictionary of ids in order of first occurrence."""
    twin: dict[int | None, int] = {}
    expected = [twin.setdefault(value, len(twin)) for batch in batches for value in batch]
    column, wrong = IdColumn("user_id"), WrongRows()
    arrays = [pa.array(batch, pa.int64()) for batch in batches]
    codes = []
    for array in arrays:
        codes.append(column.add(array.dictionary_encode() if encoded else array, wrong))
        wrong.rows_before += len(array)
    if None in twin:
        first = [value for batch in batches for value in batch].index(None) + 1
        with pytest.raises(InputError, match=f"the first in row {first};"):
            wrong.check()
    elif expected:
        ids, positions = column.encode()
        values = ids.decode(positions[np.concatenate(codes)]).to_pylist()
        assert values == [value for batch in batches for value in batch]
        assert ids.values.to_pylist() == sorted(twin)  # type: ignore[type-var]


@pytest.mark.parametrize("values", [np.arange(100), [f"u{n}" for n in range(100)], np.arange(100).view("M8[s]")])
def test_a_few_ids_are_found_where_many_are(values: Any) -> None:
    ids = Ids(values)
    everything = list(values)
    assert ids.encode(everything).tolist() == list(range(len(everything)))
    for few in (1, 2, 4, 5):
        assert ids.encode(everything[-few:]).tolist() == list(range(len(everything)))[-few:]
    assert ids.encode(pa.array([everything[1], None], ids.values.type)).tolist() == [1, -1]
    assert Ids([1, 2]).encode([3, 2]).tolist() == [-1, 1]
    assert Ids(["a"]).encode([]).tolist() == []
    with pytest.raises(InputError, match=r"^2 item_ids are not in the catalog \(1 id\), for example 3; leave"):
        Ids([1], "item_id").encode_known([1, 3, 4])
    with pytest.raises(InputError, match=r"^1 row has an item_id that is not in items= \(1 id\), for example 1"):
        Log.from_frame(table([5, 6]), items=[0])


TEXTS = st.lists(st.text(max_size=3), unique=True, max_size=30)
INTEGERS = st.lists(st.integers(-20, 20) | st.integers(-(2**63), 2**63 - 1), unique=True, max_size=30)


@given(data=st.data(), kind=st.sampled_from([(TEXTS, pa.string()), (INTEGERS, pa.int64())]))
def test_the_index_of_few_ids_agrees_with_hashing(data: st.DataObject, kind: Any) -> None:
    values, of_type = kind
    ids = Ids(pa.array(data.draw(values), of_type), "user_id")
    asked = pa.array([*data.draw(values), *data.draw(st.permutations(ids.values.to_pylist()))], of_type)
    hashed = ids.encode(asked)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ids_module, "FEW", len(ids) - 1)
        assert ids.encode(asked[: len(ids) - 1]).tolist() == hashed[: len(ids) - 1].tolist()


def test_a_few_ids_are_found_without_hashing_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = Ids(np.arange(5000)[::-1], "user_id")
    again = pickle.loads(pickle.dumps(ids))
    monkeypatch.setattr(pc, "index_in", None)
    assert ids.encode([4999, 7, 5000]).tolist() == [0, 4992, -1]
    assert again.encode([1]).tolist() == [4998]


class TestNulls:
    @pytest.mark.parametrize(
        "users",
        [
            pa.DictionaryArray.from_arrays(pa.array([0, 1, 0]), pa.array(["a", None])),
            pa.DictionaryArray.from_arrays(pa.array([2, None, 2]), pa.array(["a", None, "c"])),
        ],
    )
    def test_a_null_in_a_dictionary_is_a_null(self, users: pa.Array) -> None:
        with pytest.raises(InputError, match="column 'user_id' has 1 null value, the first in row 2"):
            Log.from_frame(table(users))
        events = pa.table({"user_id": users, "item_id": [1, 2, 3], "timestamp": [date(2024, 1, 1)] * 3})
        with pytest.raises(InputError, match=r"'impressions.user_id' has 1 null value, the first in row 2"):
            Log.from_events(events, events)

    def test_a_null_in_a_dictionary_of_numbers_is_a_null(self) -> None:
        flags = pa.DictionaryArray.from_arrays(pa.array([0, 1, 0]), pa.array([1, None]))
        with pytest.raises(InputError, match="column 'treated' has 1 null value, the first in row 2"):
            Log.from_frame(table([1, 2, 3]).set_column(2, "treated", flags))

    def test_unused_entries_of_a_dictionary_are_left_out(self) -> None:
        used = pa.DictionaryArray.from_arrays(pa.array([2, 2, 0]), pa.array(["a", None, "c"]))
        assert Log.from_frame(table(used)).users.values.to_pylist() == ["a", "c"]


TYPES = [  # ids as they come, and as they are stored
    (pa.array([3, 1], pa.uint64()), pa.array([1, 3])),
    (pa.array([3.0, 1.0]), pa.array([1, 3])),
    (pa.array([Decimal(3), Decimal(1)], pa.decimal128(20, 0)), pa.array([1, 3])),
    (pa.array(["b", "a"], pa.large_string()), pa.array(["a", "b"])),
    (pa.array([b"b", b"a"]), pa.array(["a", "b"])),
    (pa.array([date(9999, 12, 31), date(1, 1, 1)]), pa.array([date(1, 1, 1), date(9999, 12, 31)])),
    (pa.array([5, 3], pa.timestamp("ms", "UTC")), pa.array([3, 5], pa.timestamp("ms", "UTC"))),
]


@pytest.mark.parametrize(("given", "stored"), TYPES)
def test_ids_have_one_type_for_each_kind(given: pa.Array, stored: pa.Array, tmp_path: Path) -> None:
    log = Log.from_frame(table(given))
    assert log.users.values.equals(stored)
    log.write(tmp_path / "log.parquet")
    assert Log.read(tmp_path / "log.parquet").equals(log)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        (pa.array([2**63], pa.uint64()), "has uint64 ids that are not int64"),
        ([1.5], "has double ids that are not int64"),
        ([float("nan"), 1.0], "has double ids that are not int64"),
        ([Decimal("1.50")], "ids that are not int64"),
        ([b"\xff"], "has binary ids that are not UTF-8 text"),
        ([True], "has type bool; ids must be integers, strings or dates"),
        ([timedelta(1)], "has type duration"),
        ([1, "a"], "has ids that cannot be read"),
        ([2**64], "has ids that cannot be read"),
        (5, "must be a list of ids, got 5"),
    ],
)
def test_other_ids_are_refused(values: Any, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        Ids(values, "user_id")


def test_files_whose_ids_differ_in_type(tmp_path: Path) -> None:
    pq.write_table(table(np.array([5, 6], np.uint64)), tmp_path / "a.parquet")
    pq.write_table(table(np.array([-1, 2], np.int64)), tmp_path / "b.parquet")
    assert users_of(Log.read(tmp_path)) == [5, 6, -1, 2]
    pq.write_table(table(["a"]), tmp_path / "b.parquet")
    with pytest.raises(InputError, match="has string ids such as 'a', but the catalog has int64 ids such as 5"):
        Log.read(tmp_path)


def test_text_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    bad = pa.StringArray.from_buffers(2, pa.py_buffer(np.array([0, 1, 2], np.int32)), pa.py_buffer(b"a\xff"))
    with pytest.raises(InputError, match=r"the frame cannot be read: .*UTF8"):
        Log.from_frame(table(bad))
    with pytest.raises(InputError, match="has ids that cannot be read"):
        Log.from_frame(table(["a", "b"]), users=bad)
    (tmp_path / "log.csv").write_bytes(b"user_id,item_id,treated,outcome\n\xff,1,1,1\n")
    with pytest.raises(InputError, match=r"log\.csv"):
        Log.read(tmp_path / "log.csv")


def test_two_columns_of_one_name(tmp_path: Path) -> None:
    names = ["user_id", "item_id", "treated", "outcome", "outcome"]
    twice = pa.Table.from_arrays([pa.array([1])] * 5, names)
    pq.write_table(twice, tmp_path / "log.parquet")
    (tmp_path / "log.csv").write_text(",".join(names) + "\n1,1,1,1,1\n")
    for data in (twice, tmp_path / "log.parquet", tmp_path / "log.csv"):
        with pytest.raises(InputError, match="has two columns named 'outcome'; rename one of them"):
            Log.read(data)


class TestRecordedCatalogs:
    def frame(self) -> pd.DataFrame:
        return pd.DataFrame({"user_id": [1, 2], "item_id": [1, 1], "treated": 1, "outcome": 0, "time": [0, 1]})

    def test_a_folder_of_our_files_and_others_keeps_the_catalog_and_adds_to_it(self, tmp_path: Path) -> None:
        Log.from_frame(self.frame(), users=[9, 2, 1], items=[5, 1], times=[1, 0]).write(tmp_path / "a.parquet")
        other = self.frame().assign(user_id=[4, 3], item_id=[7, 5])
        other.to_parquet(tmp_path / "b.parquet")
        log = Log.read(tmp_path)
        assert log.users.values.to_pylist() == [9, 2, 1, 3, 4]
        assert log.items.values.to_pylist() == [5, 1, 7]
        assert log.times.values.to_pylist() == [1, 0]
        assert users_of(log) == [1, 2, 4, 3]

    def test_rows_that_another_tool_removes_or_adds(self, tmp_path: Path) -> None:
        Log.from_frame(self.frame(), users=[9, 2, 1]).write(tmp_path / "a.parquet")
        rows = pq.read_table(tmp_path / "a.parquet")
        pq.write_table(rows.slice(0, 1), tmp_path / "less.parquet")
        filtered = Log.read(tmp_path / "less.parquet")
        assert filtered.users.values.to_pylist() == [9, 2, 1]
        assert Log.from_frame(filtered.to_frame()).users.values.to_pylist() == [1]  # how to drop it
        with pytest.raises(InputError, match="1 row has a user_id that is not in users="):
            Log.read(tmp_path / "less.parquet", users=[2])
        more = rows.set_column(0, "user_id", pa.array([11, 10]))
        pq.write_table(pa.concat_tables([rows, more]), tmp_path / "more.parquet")
        assert Log.read(tmp_path / "more.parquet").users.values.to_pylist() == [9, 2, 1, 10, 11]
