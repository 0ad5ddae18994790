"""Streams of ids from anywhere: what is packed comes back, bombs and wrong offsets are refused before any harm."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taurank.data.ids import Catalog, Ids, ids_from_bytes, ids_to_bytes
from taurank.data.metadata import CATALOG_KEY, from_metadata, to_metadata
from taurank.data.packing import _announced, _stream, pack, unpack
from taurank.errors import InputError

LISTS = st.one_of(
    st.lists(st.integers(-(2**63), 2**63 - 1)),
    st.lists(st.text(st.characters(exclude_categories=["Cs"]))),
    st.lists(st.dates()),
    st.lists(st.floats(allow_nan=False)),
)


@given(LISTS, LISTS)
@settings(max_examples=100, deadline=None)
def test_what_is_packed_comes_back(users: list[Any], items: list[Any]) -> None:
    lists = {"user_id": pa.array(users, None if users else pa.int64()), "item_id": pa.array(items or ["x"])}
    for name, values in unpack(pack(lists)).items():
        assert values.equals(lists[name])


def stream_of(array: pa.Array, compression: str | None = "zstd") -> bytes:
    return _stream(pa.record_batch([array], names=["user_id"]), compression)


def list_of(values: pa.Array) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values)


def test_the_announced_size_is_the_decompressed_size() -> None:
    column = list_of(pa.array(np.zeros(1 << 20, np.int64)))
    for compression in ("zstd", "lz4", None):
        messages = pa.ipc.MessageReader.open_stream(stream_of(column, compression))
        messages.read_next_message()
        announced = _announced(messages.read_next_message())
        assert 8 << 20 <= announced < (8 << 20) + 200


def test_a_bomb_is_refused_before_it_grows() -> None:
    script = """
import resource, sys
from taurank.data.packing import unpack
from taurank.errors import InputError
data = sys.stdin.buffer.read()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    unpack(data)
except InputError:
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    sys.exit(0 if grown < 100e6 else 5)
"""
    bomb = stream_of(list_of(pa.array(np.zeros(1 << 26, np.int64))))
    assert len(bomb) < 100_000
    subprocess.run([sys.executable, "-c", script], input=bomb, check=True)


def test_ids_that_compress_too_well_are_stored_as_they_are() -> None:
    alike = pa.array(np.zeros(1 << 20, np.int64))
    assert len(stream_of(list_of(alike))) < 10_000
    assert unpack(pack({"user_id": alike}))["user_id"].equals(alike)


@pytest.mark.parametrize("offsets", [[0, 1, 2**30], [0, -5, 3], [7, 8, 9]])
def test_offsets_outside_the_data_are_refused(offsets: list[int]) -> None:
    good = stream_of(list_of(pa.array(["a", "bc"])), None)
    right, wrong = (np.array(values, np.int32).tobytes() for values in ([0, 1, 3], offsets))
    assert good.count(right) == 1
    assert unpack(good)["user_id"].to_pylist() == ["a", "bc"]
    with pytest.raises(InputError, match="the lists of ids are corrupt"):
        unpack(good.replace(right, wrong))


def test_a_list_longer_than_its_values_is_refused() -> None:
    good = stream_of(list_of(pa.array([7, 8, 9])), None)
    right, wrong = (np.array([0, n], np.int32).tobytes() + bytes(4) for n in (3, 10**6))
    assert right in good
    with pytest.raises(InputError, match="the lists of ids are corrupt"):
        unpack(good.replace(right, wrong))


@pytest.mark.parametrize(
    "batch",
    [
        pa.record_batch({"user_id": [1, 2]}),
        pa.record_batch({"user_id": [[1], [2]]}),
        pa.record_batch({"user_id": pa.array([None], pa.list_(pa.int64()))}),
        pa.record_batch({"user_id": [[[1]]]}),
        pa.record_batch({"user_id": [[{"a": 1}]]}),
        pa.record_batch({"user_id": pa.array([["a"]], pa.list_(pa.dictionary(pa.int8(), pa.string())))}),
        pa.RecordBatch.from_arrays([pa.array([[1]])] * 2, ["user_id", "user_id"]),
        pa.record_batch({"user_id": [[b"\xff"]]}).cast(pa.schema({"user_id": pa.list_(pa.binary())})),
    ],
)
def test_other_streams_are_refused(batch: pa.RecordBatch) -> None:
    data = _stream(batch, None)
    if batch.schema.field(0).type == pa.list_(pa.binary()):
        assert unpack(data)["user_id"].to_pylist() == [b"\xff"]
        return
    with pytest.raises(InputError, match="the lists of ids are corrupt"):
        unpack(data)


@pytest.mark.parametrize("data", [b"", b"\x00", b"\xff" * 100, bytes(1000)])
def test_bytes_of_any_kind_are_refused(data: bytes) -> None:
    with pytest.raises(InputError, match="the lists of ids are corrupt"):
        ids_from_bytes(data)


def test_other_lists_than_the_expected_are_refused() -> None:
    data = ids_to_bytes(Ids([1], "item_id"), Ids([1], "user_id"))
    with pytest.raises(InputError, match="are item_id, user_id, expected user_id, item_id"):
        ids_from_bytes(data)


def test_the_catalog_in_metadata() -> None:
    catalog = Catalog(Ids([1, 2], "user_id"), Ids(["a"], "item_id"), Ids([0], "time"))
    assert from_metadata(to_metadata(catalog)) == catalog
    assert from_metadata({}) is None
    for text in (b"", b"!", b"AAAA"):
        with pytest.raises(InputError, match="corrupt"):
            from_metadata({CATALOG_KEY: text})
