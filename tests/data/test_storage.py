"""Saved files: what is written comes back, and nothing else is believed, checksum or not."""

from __future__ import annotations

import pickle
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from taurank.data import storage
from taurank.data.cell_table import CATALOG_KEY, from_metadata, to_metadata
from taurank.data.eligibility import Eligibility
from taurank.data.ids import Catalog, Ids, ids_from_arrays, ids_to_arrays
from taurank.data.storage import Array, ShardedArray, check_arrays
from taurank.errors import InputError

ARRAYS = {
    "a": np.arange(6.0).reshape(2, 3),
    "b": np.array([], np.int32),
    "c": np.array(True),
    "d": np.arange(4, 0, -1),
    "e": np.zeros((0, 10_000), np.float32),
    "f": np.arange(6.0).reshape(2, 3).T,  # not one block of memory in this order
}


def test_what_is_written_comes_back_and_others_can_read_it(tmp_path: Path) -> None:
    storage.write(tmp_path / "a", "test", {"x": [1, None]}, ARRAYS)
    data = storage.to_bytes("test", {"x": [1, None]}, ARRAYS)
    assert storage.is_stored(tmp_path / "a")
    assert all(storage.to_bytes("test", {"x": [1, None]}, ARRAYS) == data for _ in range(20))  # equal files
    for metadata, arrays in (storage.read(tmp_path / "a", "test"), storage.from_bytes("it", data, "test")):
        assert metadata == {"x": [1, None]}
        for name, array in ARRAYS.items():
            np.testing.assert_array_equal(arrays[name], array)
            assert arrays[name].dtype == array.dtype
    np.testing.assert_array_equal(load_file(tmp_path / "a")["f"], ARRAYS["f"])


@given(st.integers(0, 10**6), st.integers(1, 255), st.integers(0, 10**6))
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_changed_or_shortened_file_is_refused(tmp_path: Path, at: int, flip: int, cut: int) -> None:
    path = tmp_path / "a"
    storage.write(path, "test", {"x": 1}, ARRAYS)
    data = bytearray(original := path.read_bytes())
    data[at % len(data)] ^= flip
    del data[len(data) - cut % 3 :]
    path.write_bytes(bytes(data))
    for in_memory in (False, True):
        try:
            if in_memory:
                metadata, arrays = storage.from_bytes("it", bytes(data), "test")
            else:
                metadata, arrays = storage.read(path, "test")
        except InputError:
            continue
        assert metadata == {"x": 1}  # such as another kind of white space in the header
        assert all(np.array_equal(arrays[name], array) for name, array in ARRAYS.items())
        assert len(data) == len(original)


def test_files_of_others_and_of_another_kind_are_refused(tmp_path: Path) -> None:
    save_file({"a": np.ones(2)}, tmp_path / "a")
    with pytest.raises(InputError, match="a' is not a taurank file"):
        storage.read(tmp_path / "a", "test")
    storage.write(tmp_path / "a", "world", {}, {})
    with pytest.raises(InputError, match="contains a world, expected a model"):
        storage.read(tmp_path / "a", "model")
    for content in (b"", b"{", b"PK", bytes(100), b"\xff" * 100):
        (tmp_path / "a").write_bytes(content)
        with pytest.raises(InputError, match="is not a complete taurank file"):
            storage.read(tmp_path / "a", "test")


def test_odd_paths_are_refused(tmp_path: Path) -> None:
    odd: list[Any] = [None, 5, tmp_path, tmp_path / "none", "a\0b", "x" * 5000]
    for path in odd:
        with pytest.raises(InputError):
            storage.read(path, "test")


IDS: list[Any] = [
    [1, -(2**63), 2**63 - 1], ["a", "", "ü"], [date(2024, 2, 29)], [datetime(2024, 1, 1)],
    [datetime(2024, 1, 1, tzinfo=UTC)], pa.array([], pa.int64()), pa.array([], pa.string()),
    pa.array(["x", "ann", "bob"]).slice(1, 1), pa.array([1, 2, 3]).slice(1),
    pa.array([date(2024, 1, 1)], pa.date64()),
]  # fmt: skip


@pytest.mark.parametrize("values", IDS)
def test_ids_of_every_type_come_back(values: Any) -> None:
    lists = Ids(values, "user_id"), Ids([1], "item_id")
    types, arrays = ids_to_arrays(*lists)
    data = storage.to_bytes("test", {"ids": types}, arrays)
    metadata, stored = storage.from_bytes("it", data, "test")
    again = ids_from_arrays(metadata["ids"], stored, "user_id", "item_id")
    assert tuple(again) == lists
    assert not stored


@pytest.mark.parametrize("ends", [[0, 1, 2**30], [0, -5, 3], [7, 8, 9]])
def test_text_that_ends_outside_its_bytes_is_refused(ends: list[int]) -> None:
    types, arrays = ids_to_arrays(Ids(["a", "bc"], "user_id"))
    arrays["user_id.0"] = np.array(ends, np.int32).view(np.uint8)
    with pytest.raises(InputError, match="the lists of ids are corrupt"):
        ids_from_arrays(types, arrays, "user_id")


def test_the_catalog_in_metadata() -> None:
    catalog = Catalog(Ids([1, 2], "user_id"), Ids(["a"], "item_id"), Ids([0], "time"))
    metadata = to_metadata(catalog, Eligibility.everything(catalog))
    assert from_metadata(metadata, "it")[0] == catalog
    for text in (b"", b"!", b"AAAA", metadata[CATALOG_KEY][:-60], metadata[CATALOG_KEY].replace(b"A", b"B")):
        with pytest.raises(InputError, match="corrupt"):
            from_metadata({CATALOG_KEY: text}, "it")


class TestFolders:
    ROWS = np.arange(20.0).reshape(10, 2)

    def sharded(self, folder: Path) -> ShardedArray:
        folder.mkdir()
        return ShardedArray([storage.write_shard(folder, "rows", self.ROWS[n : n + 3]) for n in (0, 3, 6, 9, 12)])

    def test_a_folder_has_the_same_rows_as_one_array(self, tmp_path: Path) -> None:
        rows = self.sharded(tmp_path / "parts")
        metadata = {"x": 1}
        written = storage.write(tmp_path / "model", "model", metadata, {"rows": rows, "few": np.arange(3)})
        assert storage.is_stored(tmp_path / "model")
        found, arrays = storage.read(tmp_path / "model", "model")
        assert found == metadata
        for one in (rows, written["rows"], arrays["rows"], pickle.loads(pickle.dumps(rows))):
            assert (one.shape, one.min(), one.max(), len(one)) == (self.ROWS.shape, 0.0, 19.0, 10)
            np.testing.assert_array_equal(one[np.array([9, 0, 4, 4])], self.ROWS[[9, 0, 4, 4]])
            np.testing.assert_array_equal(one[2:8], self.ROWS[2:8])
            np.testing.assert_array_equal(np.asarray(one), self.ROWS)
        assert isinstance(arrays["few"], np.ndarray)
        storage.write(tmp_path / "model", "model", metadata, {"rows": arrays["rows"]})  # onto itself
        assert "few" not in storage.read(tmp_path / "model", "model")[1]
        assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "parts"]

    def test_damage_is_refused(self, tmp_path: Path) -> None:
        storage.write(tmp_path / "model", "model", {}, {"rows": self.sharded(tmp_path / "parts")})
        shard = min((tmp_path / "model").glob("*.npy"))
        content = bytearray(shard.read_bytes())
        content[-1] ^= 1
        shard.unlink()
        for damaged, sentence in ((content, "is corrupt"), (content[:-1], "cannot be read"), (b"", "cannot be read")):
            shard.write_bytes(damaged)
            with pytest.raises(InputError, match=sentence):
                storage.read(tmp_path / "model", "model")
        shard.unlink()
        with pytest.raises(InputError, match="No such file"):
            storage.read(tmp_path / "model", "model")
        (tmp_path / "model" / storage.INDEX).unlink()
        with pytest.raises(InputError, match="not written completely"):
            storage.read(tmp_path / "model", "model")

    def test_the_name_of_a_file_is_refused(self, tmp_path: Path) -> None:
        rows = self.sharded(tmp_path / "parts")
        with pytest.raises(InputError, match=r"one.npz' is the name of a file, but this model is sharded"):
            storage.write(tmp_path / "one.npz", "model", {}, {"rows": rows})
        assert [path.name for path in tmp_path.iterdir()] == ["parts"]


SPECS = {
    "users": Array("float32", ("users", "factors")),
    "items": Array("float32", ("items", "factors")),
    "rows": Array("int32", ("rows",), below="items", optional=True),
}


def valid() -> dict[str, npt.NDArray[Any]]:
    ones = np.ones((3, 2), np.float32)
    return {"users": ones, "items": np.ones((5, 2), np.float32), "rows": np.array([0, 4, 4], np.int32)}


def test_a_declaration_accepts_what_it_describes() -> None:
    check_arrays(valid(), SPECS, {"users": 3, "items": 5})
    check_arrays({name: valid()[name] for name in ("users", "items")}, SPECS, {"users": 3, "items": 5})


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"users": None}, "array 'users' is missing"),
        ({"more": np.zeros(1)}, "array 'more' is unknown"),
        ({"users": np.ones((4, 2), np.float32)}, r"'users' has shape \(4, 2\), expected \(3, 2\)"),
        ({"items": np.ones((5, 3), np.float32)}, r"'items' has shape \(5, 3\), expected \(5, 2\)"),
        ({"items": np.ones(5, np.float32)}, "'items' has shape"),
        ({"users": np.ones((3, 2))}, "'users' has type float64, expected float32"),
        ({"users": np.full((3, 2), np.inf, np.float32)}, "'users' has values that are not finite"),
        ({"users": np.array([[1, 1], [1, np.nan], [1, 1]], np.float32)}, "'users' has values that are not finite"),
        ({"rows": np.array([0, -1], np.int32)}, "'rows' has values out of range, from -1 to 0"),
        ({"rows": np.array([0, 5], np.int32)}, "'rows' has values out of range, from 0 to 5"),
    ],
)
def test_a_declaration_refuses_anything_else(change: dict[str, Any], sentence: str) -> None:
    arrays = {name: array for name, array in {**valid(), **change}.items() if array is not None}
    with pytest.raises(ValueError, match=sentence):
        check_arrays(arrays, SPECS, {"users": 3, "items": 5})
