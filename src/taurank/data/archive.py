"""One file for arrays and what they mean: no pickle, and a checksum over all of it.

The layout is a magic word, the length of a JSON header, the header, the arrays one after the other, and the
SHA-256 of everything before it. Worlds, fitted learners and checkpoints are all stored like this.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from taurank.data.files import atomic_path
from taurank.errors import InputError

MAGIC = b"taurank\x01"
_CHUNK = 1 << 24
_DIGEST = hashlib.sha256().digest_size

Arrays = dict[str, npt.NDArray[Any]]


def write(
    path: str | os.PathLike[str], kind: str, facts: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]
) -> None:
    """Store ``arrays`` and the JSON-able ``facts`` as a file of this ``kind``; never half of it."""
    whole = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    shapes = [[name, array.dtype.str, list(array.shape)] for name, array in whole.items()]
    header = json.dumps({"kind": kind, "facts": dict(facts), "arrays": shapes}).encode()
    digest = hashlib.sha256()
    with atomic_path(path) as temporary, open(temporary, "wb") as stream:
        for part in _parts(header, whole):
            digest.update(part)
            stream.write(part)
        stream.write(digest.digest())


def _parts(header: bytes, arrays: Arrays) -> Iterator[bytes | memoryview]:
    yield MAGIC + struct.pack("<Q", len(header)) + header
    for array in arrays.values():
        flat = array.reshape(-1).view(np.uint8).data
        for start in range(0, len(flat), _CHUNK):
            yield flat[start : start + _CHUNK]


def read(path: str | os.PathLike[str], kind: str) -> tuple[dict[str, Any], Arrays]:
    """The facts and arrays of a file of this ``kind``; anything else is refused with a sentence."""
    if not isinstance(path, (str, os.PathLike)):
        raise InputError(f"the path of a file is needed, not {path!r}.")
    name = os.fspath(path)
    if not Path(name).is_file():
        raise InputError(f"there is no file '{name}'.")
    with open(name, "rb") as stream:
        header = _header(stream, name, os.path.getsize(name))
        if header.get("kind") != kind:
            raise InputError(f"'{name}' holds a {header.get('kind')}, not a {kind}.")
        arrays = {field: _array(stream, dtype, shape) for field, dtype, shape in header["arrays"]}
    return header["facts"], arrays


def _header(stream: BinaryIO, name: str, size: int) -> dict[str, Any]:
    """The header of a file that is whole: its checksum is compared before anything in it is believed."""
    start = len(MAGIC) + 8
    if stream.read(len(MAGIC)) != MAGIC:
        raise InputError(f"'{name}' is not a taurank file.")
    damaged = InputError(f"'{name}' is truncated or altered: its checksum does not fit; write it anew.")
    stream.seek(0)
    digest = hashlib.sha256()
    left = size - _DIGEST
    while left > 0:
        part = stream.read(min(_CHUNK, left))
        digest.update(part)
        left -= len(part)
    if size < start + _DIGEST or stream.read() != digest.digest():
        raise damaged
    stream.seek(len(MAGIC))
    (length,) = struct.unpack("<Q", stream.read(8))
    header: dict[str, Any] = json.loads(stream.read(length))
    return header


def _array(stream: BinaryIO, dtype: str, shape: list[int]) -> npt.NDArray[Any]:
    array = np.empty(shape, np.dtype(dtype))
    stream.readinto(array.reshape(-1).view(np.uint8).data)  # type: ignore[attr-defined]
    return array
