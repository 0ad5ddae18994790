"""A folder of arrays: each in one file or several, a manifest with their checksums, opened memory-mapped.

What is too large for one file or one memory is stored like this. ``manifest.json`` is written last and names every
file with its length and SHA-256, so a folder without it is not complete, and a file that changed is refused.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from taurank.data.files import reason
from taurank.errors import InputError, first_line

MANIFEST = "manifest.json"
KIND = "taurank folder"
VERSION = 1
_CHUNK = 1 << 22


class Shard(NamedTuple):
    """One file: its name in the folder, the shape and type of its array, its SHA-256."""

    file: str
    shape: tuple[int, ...]
    dtype: str
    sha256: str


Shards = dict[str, list[Shard]]  # by array, in the order of the rows


class ShardedArray:
    """Rows of several memory-mapped files, one after the other; indexed by rows like an array.

    It is sent to other processes as a list of paths, which they open by themselves.
    """

    def __init__(self, folder: Path, shards: Sequence[Shard]) -> None:
        self.folder, self.shards = folder, tuple(shards)
        self.dtype = np.dtype(shards[0].dtype)
        self.start = np.concatenate(([0], np.cumsum([shard.shape[0] for shard in shards]))).astype(np.int64)
        self.shape = (int(self.start[-1]), *shards[0].shape[1:])
        self._parts: list[npt.NDArray[Any]] | None = None

    @property
    def parts(self) -> list[npt.NDArray[Any]]:
        """The files, mapped into memory when first asked for."""
        if self._parts is None:
            self._parts = [_map(self.folder / shard.file, shard) for shard in self.shards]
        return self._parts

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return int(np.prod(self.shape))

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
        whole = np.concatenate(self.parts) if len(self.parts) != 1 else np.array(self.parts[0])
        return whole if dtype is None else whole.astype(dtype, copy=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_parts": None}

    def files(self) -> list[Path]:
        return [self.folder / shard.file for shard in self.shards]


def write_shard(folder: Path, name: str, number: int, array: npt.NDArray[Any]) -> Shard:
    """Write one file of an array; it is there in full or not at all."""
    file = f"{name}-{number:05d}.npy"
    array = np.ascontiguousarray(array)
    temporary = folder / f".{file}.{os.getpid()}.tmp"
    try:
        with open(temporary, "wb") as stream:
            np.lib.format.write_array(stream, array, allow_pickle=False)
        digest = _digest(temporary)
        temporary.replace(folder / file)
    except OSError as error:
        raise InputError(f"'{folder / file}' cannot be written: {reason(error)}.") from error
    finally:
        temporary.unlink(missing_ok=True)
    return Shard(file, array.shape, array.dtype.str, digest)


def write_manifest(folder: Path, kind: str, metadata: Mapping[str, Any], shards: Shards) -> None:
    """Declare the folder complete."""
    arrays = {name: [shard._asdict() for shard in parts] for name, parts in shards.items()}
    content = {"format": KIND, "version": VERSION, "kind": kind, "metadata": dict(metadata), "arrays": arrays}
    try:
        text = json.dumps(content, indent=1, allow_nan=True)
    except (TypeError, ValueError) as error:
        raise InputError(f"the description of this {kind} cannot be stored as JSON: {first_line(error)}.") from error
    temporary = folder / f".{MANIFEST}.tmp"
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(folder / MANIFEST)


def read_manifest(folder: str | os.PathLike[str], kind: str, check: bool = True) -> tuple[dict[str, Any], Shards]:
    """Metadata and shards of a folder; with ``check`` every file is compared with its checksum."""
    path = Path(folder)
    if not (path / MANIFEST).is_file():
        raise InputError(f"the folder '{path}' has no {MANIFEST}; it is not a {kind}, or was not written completely.")
    try:
        content = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        if content["format"] != KIND or content["version"] > VERSION:
            raise ValueError("another format")
        metadata, found = dict(content["metadata"]), content["kind"]
        shards = {name: [_shard(entry) for entry in parts] for name, parts in content["arrays"].items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise InputError(f"'{path / MANIFEST}' is not a valid manifest ({first_line(error)}).") from error
    if found != kind:
        raise InputError(f"'{path}' contains a {found}, expected a {kind}.")
    if check:
        for parts in shards.values():
            for shard in parts:
                _check(path, shard)
    return metadata, shards


def open_arrays(folder: Path, shards: Shards) -> dict[str, ShardedArray]:
    """The arrays of a folder, memory-mapped."""
    return {name: ShardedArray(folder, parts) for name, parts in shards.items()}


def link_shard(source: Path, target: Path) -> None:
    """The same file in another folder, without a copy where the file system allows it."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


@contextmanager
def whole_folder(path: str | os.PathLike[str], replace: bool = True) -> Iterator[Path]:
    """A new folder beside ``path`` that takes its place if the block ends well, and is removed if not.

    With ``replace``, an older folder with a manifest at ``path`` is replaced; anything else there is refused."""
    target = check_folder(path, replace)
    temporary = target.parent / f".{target.name}.{os.getpid()}.tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir(parents=False)
        yield temporary
        if target.exists():
            shutil.rmtree(target)
        temporary.rename(target)
    except OSError as error:
        raise InputError(f"'{target}' cannot be written: {reason(error)}.") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def check_folder(path: str | os.PathLike[str], replace: bool = True) -> Path:
    """The folder behind a path to be written to; refused if something else is there."""
    try:
        target = Path(path).resolve()
    except TypeError as error:
        raise InputError(f"{path!r} is not the name of a folder.") from error
    if target.exists() and not target.is_dir():
        raise InputError(f"'{path}' is a file; name a folder.")
    if target.is_dir() and any(target.iterdir()) and not (replace and (target / MANIFEST).is_file()):
        raise InputError(f"the folder '{path}' has other files in it; name a new one.")
    if not target.parent.is_dir():
        raise InputError(f"the folder '{target.parent}' does not exist; create it first.")
    return target


def _shard(entry: Mapping[str, Any]) -> Shard:
    shard = Shard(entry["file"], tuple(entry["shape"]), entry["dtype"], entry["sha256"])
    if Path(shard.file).name != shard.file or not all(type(n) is int and n >= 0 for n in shard.shape):
        raise ValueError(f"'{shard.file}' is not a file of this folder")
    if np.dtype(shard.dtype).kind not in "iufb":
        raise ValueError(f"'{shard.file}' has no plain type")
    return shard


def _check(folder: Path, shard: Shard) -> None:
    path = folder / shard.file
    if not path.is_file():
        raise InputError(f"'{path}' is missing; save the model again.")
    if _digest(path) != shard.sha256:
        raise InputError(f"'{path}' is corrupt (checksum mismatch); save it again.")


def _digest(path: Path) -> str:
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _map(path: Path, shard: Shard) -> npt.NDArray[Any]:
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False) if shard.shape[0] else np.load(path)
    except (OSError, ValueError) as error:
        raise InputError(f"'{path}' cannot be read: {first_line(error)}.") from error
    if array.shape != shard.shape or array.dtype != np.dtype(shard.dtype):
        raise InputError(f"'{path}' is not what its manifest announces; save the model again.")
    return np.asarray(array)
