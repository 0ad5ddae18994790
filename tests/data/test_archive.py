"""Saved files: what is written comes back, and nothing else is believed, checksum or not."""

from __future__ import annotations

import hashlib
import json
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from taurank.data import archive
from taurank.data.schema import Array, check_arrays
from taurank.errors import InputError

ARRAYS = {
    "a": np.arange(6.0).reshape(2, 3),
    "b": np.array([], np.int32),
    "c": np.array(True),
    "d": np.arange(4, 0, -1),
    "e": np.zeros((0, 10_000), np.float32),
}


def signed(header: bytes, body: bytes = b"", length: int | None = None) -> bytes:
    """A file with a valid checksum."""
    content = archive.MAGIC + struct.pack("<Q", len(header) if length is None else length) + header + body
    return content + hashlib.sha256(content).digest()


def header(arrays: Any, **changes: Any) -> bytes:
    return json.dumps({"kind": "test", "facts": {}, "arrays": arrays, **changes}).encode()


def test_what_is_written_comes_back(tmp_path: Path) -> None:
    archive.write(tmp_path / "a", "test", {"x": [1, None]}, ARRAYS)
    metadata, arrays = archive.read(tmp_path / "a", "test")
    assert metadata == {"x": [1, None]}
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(arrays[name], array)
        assert arrays[name].dtype == array.dtype


CRAFTED: dict[str, bytes] = {
    "array beyond the file": signed(header([["a", "<f8", [1000]]])),
    "array shorter than the file": signed(header([["a", "<f8", [1]]]), bytes(16)),
    "bytes after the arrays": signed(header([]), bytes(8)),
    "huge shape": signed(header([["a", "<f8", [2**62, 2**62]]]), bytes(8)),
    "huge and empty shape": signed(header([["a", "<f8", [2**62, 0]]])),
    "negative shape": signed(header([["a", "<f8", [-1]]]), bytes(8)),
    "shape of floats": signed(header([["a", "<f8", [1.0]]]), bytes(8)),
    "shape of booleans": signed(header([["a", "<f8", [True]]]), bytes(8)),
    "shape is a number": signed(header([["a", "<f8", 1]]), bytes(8)),
    "many dimensions": signed(header([["a", "<f8", [1] * 100]]), bytes(8)),
    "objects": signed(header([["a", "|O", [1]]]), bytes(8)),
    "text": signed(header([["a", "<U2", [1]]]), bytes(8)),
    "structure": signed(header([["a", "f4,f4", [1]]]), bytes(8)),
    "no type": signed(header([["a", "nothing", [1]]]), bytes(8)),
    "odd type": signed(header([["a", "<f3", [1]]]), bytes(3)),
    "type is a number": signed(header([["a", 8, [1]]]), bytes(8)),
    "name is a number": signed(header([[1, "<f8", [1]]]), bytes(8)),
    "the same name twice": signed(header([["a", "<f8", [1]], ["a", "<f8", [1]]]), bytes(16)),
    "arrays is a number": signed(header(5)),
    "arrays of pairs": signed(header([["a", "<f8"]]), bytes(8)),
    "no facts": signed(b'{"kind": "test", "arrays": []}'),
    "facts is a list": signed(header([], facts=[])),
    "no kind": signed(b'{"facts": {}, "arrays": []}'),
    "kind is a number": signed(header([], kind=5)),
    "no arrays": signed(b'{"kind": "test", "facts": {}}'),
    "header is a list": signed(b"[]"),
    "header is not JSON": signed(b"{"),
    "header is not UTF-8": signed(b"\xff\xfe{}"),
    "deep JSON": signed(b"[" * 100_000 + b"]" * 100_000),
    "deep facts": signed(header([]).replace(b"{}", b'{"a":' * 100_000 + b"1" + b"}" * 100_000)),
    "a number of 10,000 digits": signed(header([]).replace(b"{}", b'{"a": ' + b"9" * 10_000 + b"}")),
    "header beyond the file": signed(header([]), length=10**6),
    "header of 2**64 bytes": signed(header([]), length=2**64 - 1),
    "empty header": signed(b""),
}


@pytest.mark.parametrize("name", CRAFTED)
def test_a_crafted_file_is_refused_even_with_a_valid_checksum(tmp_path: Path, name: str) -> None:
    (tmp_path / "a").write_bytes(CRAFTED[name])
    with pytest.raises(InputError, match="is not a valid taurank file: its header is inconsistent"):
        archive.read(tmp_path / "a", "test")


@given(st.integers(0, 10**6), st.integers(1, 255), st.integers(0, 10**6), st.booleans())
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_changed_or_shortened_file_is_refused(tmp_path: Path, at: int, flip: int, cut: int, sign: bool) -> None:
    path = tmp_path / "a"
    archive.write(path, "test", {"x": 1}, ARRAYS)
    data = bytearray(path.read_bytes())
    original = bytes(data)
    data[at % len(data)] ^= flip
    del data[len(data) - cut % 3 :]
    if sign:  # a stranger can compute the checksum as well
        data[-32:] = hashlib.sha256(bytes(data[:-32])).digest()
    path.write_bytes(bytes(data))
    try:
        archive.read(path, "test")
    except InputError:
        return
    assert sign or bytes(data) == original


def test_a_file_that_shrinks_while_it_is_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive.write(tmp_path / "a", "test", {}, {"a": np.ones(10_000)})
    check = archive._check_digest

    def check_and_cut(stream: Any, name: str, size: int) -> None:
        check(stream, name, size)
        os.truncate(name, 9000)

    monkeypatch.setattr(archive, "_check_digest", check_and_cut)
    with pytest.raises(InputError, match="is truncated"):
        archive.read(tmp_path / "a", "test")


def test_odd_paths_are_refused(tmp_path: Path) -> None:
    odd: list[Any] = [None, 5, tmp_path, tmp_path / "none", "a\0b", "x" * 5000]
    for path in odd:
        with pytest.raises(InputError):
            archive.read(path, "test")


SPECS = {
    "users": Array("float32", ("users", "factors")),
    "items": Array("float32", ("items", "factors")),
    "rows": Array("int32", ("rows",), below="items", optional=True),
}


def valid() -> dict[str, npt.NDArray[Any]]:
    ones = np.ones((3, 2), np.float32)
    return {"users": ones, "items": np.ones((5, 2), np.float32), "rows": np.array([0, 4, 4], np.int32)}


def test_a_schema_accepts_what_it_describes() -> None:
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
def test_a_schema_refuses_anything_else(change: dict[str, Any], sentence: str) -> None:
    arrays = {name: array for name, array in {**valid(), **change}.items() if array is not None}
    with pytest.raises(ValueError, match=sentence):
        check_arrays(arrays, SPECS, {"users": 3, "items": 5})
