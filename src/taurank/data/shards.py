"""A folder of arrays that no single file or memory holds: each in several files, its shards, opened memory-mapped.

``index.safetensors`` is written last. It has the metadata and the small arrays, and names every shard with its shape
and checksum, so a folder without it is not complete, and a shard that changed is refused.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from taurank.data import storage
from taurank.data.files import atomic_folder, reason
from taurank.errors import InputError, first_line

INDEX = "index.safetensors"


class Shard(NamedTuple):
    """One file: its name in the folder, the name, shape and type of its array, its checksum."""

    file: str
    array: str
    shape: tuple[int, ...]
    dtype: str
    sha256: str


class ShardedArray:
    """Rows of several memory-mapped files, one after the other; indexed by rows like an array.

    It is sent to other processes as a list of paths, which they open by themselves.
    """

    def __init__(self, folder: Path, shards: Sequence[Shard]) -> None:
        self.folder, self.shards = folder, tuple(shards)
        self.dtype = np.dtype(shards[0].dtype)
        self.start = np.concatenate(([0], np.cumsum([shard.shape[0] for shard in shards]))).astype(np.int64)
        self.shape = (int(self.start[-1]), *shards[0].shape[1:])
        self.ndim, self.size = len(self.shape), int(np.prod(self.shape))
        self._parts: list[npt.NDArray[Any]] | None = None

    @property
    def parts(self) -> list[npt.NDArray[Any]]:
        """The files, mapped into memory when first asked for."""
        if self._parts is None:
            self._parts = [_map(self.folder, shard) for shard in self.shards]
        return self._parts

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> npt.NDArray[Any]:
        if isinstance(rows, slice):
            rows = np.arange(*rows.indices(len(self)))
        rows = np.asarray(rows)
        if len(self.shards) == 1:
            return np.asarray(self.parts[0][rows])
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

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return np.concatenate(self.parts, dtype=dtype)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_parts": None}


def write_shard(folder: Path, name: str, number: int, array: npt.NDArray[Any]) -> Shard:
    """Write one file of an array, atomically."""
    file = f"{name}-{number:05d}.safetensors"
    digest = storage.write(folder / file, "shard", {}, {name: array})
    return Shard(file, name, array.shape, array.dtype.str, digest)


def write_index(
    folder: Path,
    kind: str,
    metadata: Mapping[str, Any],
    arrays: Mapping[str, npt.NDArray[Any]],
    shards: Mapping[str, Sequence[Shard]],
) -> None:
    """Declare the folder complete."""
    storage.write(folder / INDEX, kind, {**metadata, "shards": {**shards}}, arrays)


def write_folder(
    path: str | os.PathLike[str], kind: str, metadata: Mapping[str, Any], arrays: Mapping[str, Any]
) -> dict[str, Any]:
    """Write a folder of arrays, some of them sharded, whose files are linked or copied; returns the arrays in it."""
    if Path(path).suffix:
        raise InputError(
            f"'{path}' is the name of a file, but this {kind} is sharded and becomes a folder; "
            f"name it without an ending, such as '{Path(path).with_suffix('')}'."
        )
    large = {name: array for name, array in arrays.items() if isinstance(array, ShardedArray)}
    small = {name: array for name, array in arrays.items() if name not in large}
    with atomic_folder(path, INDEX) as folder:
        for array in large.values():
            for shard in array.shards:
                link_file(array.folder / shard.file, folder / shard.file)
        write_index(folder, kind, metadata, small, {name: array.shards for name, array in large.items()})
    target = Path(path).resolve()
    return {**small, **{name: ShardedArray(target, array.shards) for name, array in large.items()}}


def read_folder(path: str | os.PathLike[str], kind: str, check: bool = True) -> tuple[dict[str, Any], dict[str, Any]]:
    """Metadata and arrays of a folder, the sharded ones memory-mapped; with ``check`` every checksum is compared."""
    folder = Path(path).resolve()
    if not (folder / INDEX).is_file():
        raise InputError(f"the folder '{path}' has no {INDEX}; it is not a {kind}, or was not written completely.")
    metadata, arrays = storage.read(folder / INDEX, kind)
    try:
        shards = {name: [_shard(*entry) for entry in parts] for name, parts in metadata.pop("shards").items()}
        sharded = {name: ShardedArray(folder, parts) for name, parts in shards.items()}
    except (ValueError, TypeError, KeyError, AttributeError, IndexError) as error:
        raise InputError(f"'{folder / INDEX}' does not name its shards ({first_line(error)}).") from error
    for parts in shards.values() if check else ():
        for shard in parts:
            if storage.checksum("shard", "{}", {shard.array: _map(folder, shard)}) != shard.sha256:
                raise InputError(f"'{folder / shard.file}' is corrupt (checksum mismatch); save it again.")
    return metadata, {**arrays, **sharded}


def link_file(source: Path, target: Path) -> None:
    """The same file in another folder, without a copy where the file system allows it."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def _shard(file: str, array: str, shape: list[int], dtype: str, sha256: str) -> Shard:
    if Path(file).name != file or not all(type(n) is int and n >= 0 for n in shape) or not shape:
        raise ValueError(f"'{file}' is not a file of this folder")
    if np.dtype(dtype).kind not in "iufb":
        raise ValueError(f"'{file}' has no plain type")
    return Shard(file, array, tuple(shape), dtype, sha256)


def _map(folder: Path, shard: Shard) -> npt.NDArray[Any]:
    """The array of a shard; it is the only one of its file and ends it."""
    path = folder / shard.file
    size = int(np.prod(shard.shape)) * np.dtype(shard.dtype).itemsize
    try:
        with open(path, "rb") as stream:
            start = 8 + int.from_bytes(stream.read(8), "little")
        if path.stat().st_size != start + size:
            raise InputError(f"'{path}' is not what its index announces; save the model again.")
        if not size:
            return np.empty(shard.shape, shard.dtype)
        return np.asarray(np.memmap(path, shard.dtype, "r", start, shard.shape))
    except FileNotFoundError as error:
        raise InputError(f"'{path}' is missing; save the model again.") from error
    except OSError as error:
        raise InputError(f"'{path}' cannot be read: {reason(error)}.") from error
