"""One file for arrays and what they mean: no pickle, and a checksum over all of it.

The layout is a magic word, the length of a JSON header, the header, the arrays one after the other, and the
SHA-256 of everything before it. Worlds, fitted learners and checkpoints are all stored like this. A file with
a valid checksum is still not trusted: what its header announces must be what the file contains.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from taurank.data.files import atomic_path, reason
from taurank.errors import InputError, first_line

MAGIC = b"taurank\x01"
_START = len(MAGIC) + 8
_CHUNK = 1 << 24
_LARGEST = 1 << 50
_DIGEST = hashlib.sha256().digest_size
_DTYPE = re.compile(r"[<>|=]?[biuf]\d{1,2}")  # booleans, integers and floating-point numbers

Arrays = dict[str, npt.NDArray[Any]]


def write(
    path: str | os.PathLike[str], kind: str, metadata: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]
) -> None:
    """Store ``arrays`` and the JSON-able ``metadata`` as a file of this ``kind``; never half of it."""
    whole = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    shapes = [[name, array.dtype.str, list(array.shape)] for name, array in whole.items()]
    try:
        header = json.dumps({"kind": kind, "facts": dict(metadata), "arrays": shapes}).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"the description of this {kind} cannot be stored as JSON: {first_line(error)}.") from error
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
    """The metadata and arrays of a file of this ``kind``; anything else is refused with a sentence."""
    if not isinstance(path, (str, os.PathLike)):
        raise InputError(f"the path of a file is needed, got {path!r}.")
    name = os.fsdecode(path)
    try:
        if not Path(name).is_file():
            raise InputError(f"the file '{name}' does not exist.")
        with open(name, "rb") as stream:
            return _read(stream, name, kind)
    except (OSError, MemoryError) as error:
        raise InputError(f"'{name}' cannot be read: {reason(error)}.") from error


def _read(stream: BinaryIO, name: str, kind: str) -> tuple[dict[str, Any], Arrays]:
    size = os.fstat(stream.fileno()).st_size
    _check_digest(stream, name, size)
    stream.seek(len(MAGIC))
    try:
        header = _header(stream, size)
        shapes = _shapes(header, size - _DIGEST - stream.tell())
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise InputError(
            f"'{name}' is not a valid taurank file: its header is inconsistent; save it again."
        ) from error
    if header["kind"] != kind:
        raise InputError(f"'{name}' contains a {header['kind']}, expected a {kind}.")
    return header["facts"], {field: _array(stream, dtype, shape, name) for field, (dtype, shape) in shapes.items()}


def _check_digest(stream: BinaryIO, name: str, size: int) -> None:
    """The checksum is compared before anything in the file is used."""
    if stream.read(len(MAGIC)) != MAGIC:
        raise InputError(f"'{name}' is not a taurank file.")
    stream.seek(0)
    digest = hashlib.sha256()
    left = size - _DIGEST
    while left > 0:
        part = stream.read(min(_CHUNK, left))
        if not part:
            break
        digest.update(part)
        left -= len(part)
    if size < _START + _DIGEST or stream.read() != digest.digest():
        raise InputError(f"'{name}' is corrupt (checksum mismatch); save it again.")


def _header(stream: BinaryIO, size: int) -> dict[str, Any]:
    """The header, whose length lies within the file."""
    (length,) = struct.unpack("<Q", stream.read(8))
    if length > size - _START - _DIGEST:
        raise ValueError("the header ends beyond the file")
    header = json.loads(stream.read(length))
    if not isinstance(header, dict) or not isinstance(header["facts"], dict) or not isinstance(header["kind"], str):
        raise TypeError("the header is not what it should be")
    return header


def _shapes(header: Mapping[str, Any], size: int) -> dict[str, tuple[np.dtype[Any], tuple[int, ...]]]:
    """Type and shape of every array; together they fill the rest of the file exactly."""
    shapes: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {}
    for field, dtype, shape in header["arrays"]:
        if not _DTYPE.fullmatch(dtype) or not isinstance(field, str) or field in shapes:
            raise TypeError("an array has a name or a type that no array can have")
        if any(type(n) is not int or n < 0 for n in shape) or len(shape) > 8:
            raise ValueError("a shape is a list of integers ≥ 0")
        if math.prod(max(n, 1) for n in shape) > _LARGEST:  # also refused if another length is 0
            raise ValueError("a shape is too large")
        shapes[field] = (np.dtype(dtype), tuple(shape))
    if sum(dtype.itemsize * math.prod(shape) for dtype, shape in shapes.values()) != size:
        raise ValueError("the arrays do not fill the file")
    return shapes


def _array(stream: BinaryIO, dtype: np.dtype[Any], shape: tuple[int, ...], name: str) -> npt.NDArray[Any]:
    array = np.empty(shape, dtype)
    left = array.reshape(-1).view(np.uint8).data
    while len(left):
        count = stream.readinto(left)  # type: ignore[attr-defined]
        if not count:  # shortened since its checksum was compared
            raise InputError(f"'{name}' is truncated; save it again.")
        left = left[count:]
    return array
