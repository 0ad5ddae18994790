"""Models, worlds and checkpoints on disk: arrays with JSON metadata and checksums, in a file or in a folder.

A file is safetensors; its header has the kind of thing it holds, what the arrays mean (as JSON), and a SHA-256 of all
of it. Arrays that no single file or memory holds are sharded: a folder has each in several ``.npy`` files, named by
their SHA-256 and opened memory-mapped, and ``index.safetensors``, which names them and holds everything else. Nothing
is pickled. Every kind of file declares its arrays (``Array``), so that one whose parts do not fit together is refused
instead of read out of bounds.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import safetensors.numpy
from safetensors import SafetensorError, safe_open

from taurank.data.files import atomic_folder, atomic_path, check_local, is_folder, reason
from taurank.errors import InputError, first_line

ENTRY = "taurank"  # of the header
INDEX = "index.safetensors"
Values = npt.NDArray[Any]
Arrays = dict[str, Values]


def write(
    path: str | os.PathLike[str], kind: str, metadata: Mapping[str, Any], arrays: Mapping[str, Any]
) -> dict[str, Any]:
    """Store ``arrays`` and the JSON-able ``metadata`` as a file of this ``kind``, or as a folder if some are sharded.

    Returns the arrays, sharded ones where they are now.
    """
    sharded = {name: array.files for name, array in arrays.items() if isinstance(array, ShardedArray)}
    if not sharded:
        header, plain = _described(kind, metadata, arrays)
        with atomic_path(path) as temporary:
            try:
                safetensors.numpy.save_file(plain, temporary, header)
            except SafetensorError as error:  # such as a full disk
                raise InputError(f"'{path}' cannot be written: {first_line(error)}.") from error
        return dict(arrays)
    if Path(path).suffix:
        raise InputError(
            f"'{path}' is the name of a file, but this {kind} is sharded and becomes a folder; "
            f"name it without an ending, such as '{Path(path).with_suffix('')}'."
        )
    small = {name: array for name, array in arrays.items() if name not in sharded}
    shards = {name: [file.name for file in files] for name, files in sharded.items()}
    with atomic_folder(path, INDEX) as folder:
        for file in {*chain.from_iterable(sharded.values())}:
            try:
                os.link(file, folder / file.name)
            except OSError:  # another file system
                shutil.copyfile(file, folder / file.name)
        write(folder / INDEX, kind, {**metadata, "shards": shards}, small)
    return small | {name: ShardedArray([Path(path).resolve() / file for file in shards[name]]) for name in shards}


def read(path: str | os.PathLike[str], kind: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The metadata and arrays of a file or folder of this ``kind``; anything else is refused with a sentence."""
    if not isinstance(path, (str, os.PathLike)):
        raise InputError(f"the path of a file is needed, got {path!r}.")
    name = os.fsdecode(path)
    check_local(name)
    folder = Path(name).resolve() if is_folder(name) else None
    if folder and not (folder / INDEX).is_file():
        raise InputError(f"the folder '{name}' has no {INDEX}; it is not a {kind}, or not written completely.")
    try:
        with safe_open(folder / INDEX if folder else name, framework="numpy") as opened:
            header = opened.metadata() or {}
            arrays: dict[str, Any] = {field: opened.get_tensor(field) for field in opened.keys()}  # noqa: SIM118
    except FileNotFoundError as error:
        raise InputError(f"the file '{name}' does not exist.") from error
    except (OSError, MemoryError) as error:
        raise InputError(f"'{name}' cannot be read: {reason(error)}.") from error
    except (SafetensorError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise InputError(f"'{name}' is not a complete taurank file ({first_line(error)}); save it again.") from error
    metadata = _checked(f"'{name}'", kind, header, arrays)
    for field, files in metadata.pop("shards").items() if folder else ():
        arrays[field] = ShardedArray([folder / shard for shard in files])
        for shard in arrays[field].files:
            if _digest(shard) != shard.stem.rpartition("-")[2]:
                raise InputError(f"'{shard}' is corrupt (checksum mismatch); save it again.")
    return metadata, arrays


def to_bytes(kind: str, metadata: Mapping[str, Any], arrays: Mapping[str, Values]) -> bytes:
    """What ``write`` would store, for a place within another file."""
    header, plain = _described(kind, metadata, arrays)
    return safetensors.numpy.save(plain, header)


def from_bytes(name: str, data: bytes, kind: str) -> tuple[dict[str, Any], Arrays]:
    """The metadata and arrays that ``to_bytes`` stored; ``name`` is what a message calls them."""
    try:
        arrays = safetensors.numpy.load(data)
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")]).get("__metadata__", {})
    except (SafetensorError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise InputError(f"{name} is corrupt ({first_line(error)}); save the file again.") from error
    return _checked(name, kind, header, arrays), arrays


def is_stored(path: str | os.PathLike[str]) -> bool:
    try:
        with open(Path(path, INDEX) if is_folder(path) else path, "rb") as stream:
            start = stream.read(9)
    except OSError:
        return False
    return start[8:] == b"{" and int.from_bytes(start[:8], "little") < 1 << 30


def _described(kind: str, metadata: Mapping[str, Any], arrays: Mapping[str, Values]) -> tuple[dict[str, str], Arrays]:
    """The header of a file, and its arrays as one block of memory each."""
    try:
        text = json.dumps(dict(metadata))
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"the description of this {kind} cannot be stored as JSON: {first_line(error)}.") from error
    plain = {name: np.require(array, requirements="C") for name, array in arrays.items()}
    # one entry: safetensors writes several in any order, and equal models shall be equal files
    return {ENTRY: json.dumps({"kind": kind, "metadata": text, "sha256": checksum(kind, text, plain)})}, plain


def checksum(kind: str, metadata: str, arrays: Mapping[str, Values]) -> str:
    names = sorted(arrays)
    shapes = [[name, arrays[name].dtype.str, arrays[name].shape] for name in names]
    digest = hashlib.sha256(json.dumps([kind, metadata, shapes]).encode())
    for name in names:
        digest.update(arrays[name].reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def _checked(name: str, kind: str, header: Any, arrays: Arrays) -> dict[str, Any]:
    try:
        header = json.loads(header[ENTRY])
        found, text, digest = (header[key] for key in ("kind", "metadata", "sha256"))
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise InputError(f"{name} is not a taurank file.") from error
    if checksum(found, text, arrays) != digest:
        raise InputError(f"{name} is corrupt (checksum mismatch); save it again.")
    if found != kind:
        raise InputError(f"{name} contains a {found}, expected a {kind}.")
    metadata: dict[str, Any] = json.loads(text)
    return metadata


class ShardedArray:
    """Rows of several memory-mapped files, one after the other; indexed by rows like an array.

    It is sent to other processes as a list of paths, which they open by themselves.
    """

    def __init__(self, files: Sequence[Path]) -> None:
        self.files = tuple(files)
        try:
            self.parts = [np.asarray(np.load(file, mmap_mode="r", allow_pickle=False)) for file in self.files]
        except (OSError, ValueError, EOFError) as error:
            raise InputError(
                f"the shards of '{self.files[0].parent}' cannot be read: {reason(error)}; save the model again."
            ) from error
        self.start = np.cumsum([0, *map(len, self.parts)])
        self.dtype, self.shape = self.parts[0].dtype, (int(self.start[-1]), *self.parts[0].shape[1:])
        self.ndim, self.size = len(self.shape), int(np.prod(self.shape))

    def __len__(self) -> int:
        return int(self.start[-1])

    def __getitem__(self, rows: Any) -> Values:
        rows = np.arange(*rows.indices(len(self))) if isinstance(rows, slice) else np.asarray(rows)
        result = np.empty((len(rows), *self.shape[1:]), self.dtype)
        home = np.searchsorted(self.start, rows, "right") - 1
        for number in np.unique(home):
            here = np.flatnonzero(home == number)
            result[here] = self.parts[number][rows[here] - self.start[number]]
        return result

    def min(self) -> Any:
        return min((part.min() for part in self.parts if part.size), default=0)

    def max(self) -> Any:
        return max((part.max() for part in self.parts if part.size), default=0)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Values:
        return np.concatenate(self.parts, dtype=dtype)

    def __reduce__(self) -> tuple[Any, ...]:
        return ShardedArray, (self.files,)


def write_shard(folder: Path, name: str, array: Values) -> Path:
    temporary = folder / f".taurank-{uuid.uuid4().hex}.tmp"
    with open(temporary, "wb") as stream:
        np.save(stream, array, allow_pickle=False)
    return temporary.rename(folder / f"{name}-{_digest(temporary)}.npy")


def _digest(file: Path) -> str:
    with open(file, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@dataclass(frozen=True)
class Array:
    """The declaration of one stored array.

    An axis is a number, ``"users"``, ``"items"``, the name of a hyper-parameter such as ``"factors"``, or any
    other word for a length that is free but the same wherever the word occurs; ``"users + 1"`` is one more.
    Floating-point values must be finite and integers ≥ 0; ``minimum`` and ``maximum`` limit them further; with
    ``below`` they are positions in that axis; ``offsets_of`` names the axis that they divide into stretches, from 0
    to its length.
    """

    dtype: str
    shape: tuple[str | int, ...]
    below: str | None = None
    offsets_of: str | None = None
    minimum: float | None = None
    maximum: float | None = None
    optional: bool = False


def check_arrays(arrays: Mapping[str, Values], declared: Mapping[str, Array], lengths: Mapping[str, Any]) -> None:
    """Raise ValueError with a short reason unless ``arrays`` are exactly the declared ones.

    ``lengths`` has the axes that are known; another is taken from the first array that has it.
    """
    if missing := sorted(name for name, array in declared.items() if name not in arrays and not array.optional):
        raise ValueError(f"the array '{missing[0]}' is missing")
    if unknown := sorted(arrays.keys() - declared.keys()):
        raise ValueError(f"the array '{unknown[0]}' is unknown")
    sizes = dict(lengths)
    present = [(name, arrays[name], rule) for name, rule in declared.items() if name in arrays]
    for name, array, rule in present:
        expected: list[int] = []
        if array.dtype != np.dtype(rule.dtype):
            raise ValueError(f"the array '{name}' has type {array.dtype}, expected {rule.dtype}")
        for axis, length in zip(rule.shape, array.shape, strict=False):
            word, _, more = str(axis).partition(" + ")
            free = length - int(more or 0)  # a free axis has the length it is first seen with
            expected.append(axis if isinstance(axis, int) else sizes.setdefault(word, free) + int(more or 0))
        if array.ndim != len(rule.shape) or array.shape != tuple(expected):
            wanted = tuple(expected) if array.ndim == len(rule.shape) else " × ".join(map(str, rule.shape))
            raise ValueError(f"the array '{name}' has shape {array.shape}, expected {wanted}")
    for name, array, rule in present:
        if problem := _value_problem(array, rule, sizes):
            raise ValueError(f"the array '{name}' {problem}")


def _value_problem(array: Values, rule: Array, sizes: Mapping[str, int]) -> str:
    if rule.offsets_of:
        length = sizes[rule.offsets_of]
        if array[0] != 0 or array[-1] != length or (array[1:] < array[:-1]).any():
            return f"does not divide its {length:,} entries"
    if not array.size:
        return ""
    low, high = array.min(), array.max()
    if array.dtype.kind == "f" and not (np.isfinite(low) and np.isfinite(high)):
        return "has values that are not finite"
    least = 0 if array.dtype.kind == "i" and rule.minimum is None else rule.minimum
    most = sizes[rule.below] - 1 if rule.below else rule.maximum
    if (least is not None and low < least) or (most is not None and high > most):
        return f"has values out of range, from {low} to {high}"
    return ""
