"""Paths: which files a path, a glob or a folder means, and files that are written whole or not at all."""

from __future__ import annotations

import glob
import os
import re
import stat
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from taurank.errors import InputError, first_line

SUFFIXES = {".parquet": "Parquet", ".pq": "Parquet", ".csv": "CSV", ".csv.gz": "CSV"}


def check_local(path: Any) -> None:
    """Refuse the address of an object store; as a ``Path``, "s3://bucket" has one slash left."""
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", str(path)):
        raise InputError(
            f"'{path}' is an address in an object store, and only folders are read and written; copy it to a folder, "
            "or mount the bucket as a folder that all machines of a cluster reach."
        )


def find_files(path: str | os.PathLike[str]) -> list[Path]:
    """The files behind a path, a glob or a folder, in name order, without leftovers of other tools (``_SUCCESS``)."""
    if not isinstance(path, (str, os.PathLike)):
        raise InputError(f"a path to a file, a glob or a folder is needed, got {path!r}.")
    check_local(path)
    text = os.fsdecode(path)
    folder = Path(text) if os.path.isdir(text) else None
    try:
        if os.path.isfile(text):
            return [Path(text)]
        every = sorted(map(Path, glob.glob(text, recursive=True)) if folder is None else folder.rglob("*"))
        found = [file for file in every if file.is_file() and (folder is None or known_kind(file))]
    except (OSError, ValueError) as error:
        raise InputError(f"'{text}' cannot be read: {reason(error)}.") from error
    files = []
    for file in found:
        parts = (file.name,) if folder is None else file.relative_to(folder).parts
        if any(part.startswith((".", "_")) for part in parts):
            continue
        if column := next((part for part in parts[:-1] if "=" in part), None):
            raise InputError(
                f"'{text}' is partitioned: the folder name '{column}' is the value of a column; "
                "write the column into the files first."
            )
        files.append(file)
    if files:
        return files
    if folder is not None:
        raise InputError(f"the folder '{text}' contains no .parquet or .csv file.")
    if every:
        raise InputError(f"'{text}' is not a regular file; copy it to one first.")
    raise InputError(f"the file '{text}' does not exist.")


def known_kind(file: Path) -> str | None:
    """ "Parquet", "CSV", or None for any other name."""
    return next((kind for suffix, kind in SUFFIXES.items() if file.name.lower().endswith(suffix)), None)


def kind_of(file: Path) -> str:
    if (kind := known_kind(file)) is None:
        raise InputError(f"'{file}' does not end in .parquet or .csv; rename or convert it.")
    return kind


@contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary file beside ``path``; renamed onto it if the block ends well, removed if not.

    A file that is replaced passes its permissions on to the new one.
    """
    target = check_target(path)
    temporary = target.with_name(f".taurank-{uuid.uuid4().hex}.tmp")
    try:
        temporary.touch(exist_ok=False)
        if target.exists():
            temporary.chmod(stat.S_IMODE(target.stat().st_mode))
        yield temporary
        os.replace(temporary, target)
    except OSError as error:
        raise InputError(f"'{target}' cannot be written: {reason(error)}.") from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


@contextmanager
def atomic_folder(path: str | os.PathLike[str], replaced: str | None = None) -> Iterator[Path]:
    """A temporary folder beside ``path`` that takes its place if the block ends well, and is removed if not.

    An older folder is replaced if it has the file ``replaced`` in it, or is empty; anything else there is refused.
    """
    target = check_target(path, folder=True)
    if target.is_dir() and any(target.iterdir()) and not (replaced and (target / replaced).is_file()):
        raise InputError(f"the folder '{path}' has other files in it; name a new one.")
    try:
        with temporary_folder(target.parent) as folder:
            whole = folder / target.name  # with the permissions of any new folder
            whole.mkdir()
            yield whole
            if target.exists():
                os.replace(target, folder / "older")
            os.replace(whole, target)
    except OSError as error:
        raise InputError(f"'{target}' cannot be written: {reason(error)}.") from error


@contextmanager
def temporary_folder(parent: str | os.PathLike[str] | None = None) -> Iterator[Path]:
    """A folder for intermediate results, in ``parent`` or in the system's temporary folder; removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="taurank-", dir=parent, ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def check_target(path: str | os.PathLike[str], folder: bool = False) -> Path:
    """The file (or folder) behind a path to be written to, links followed; refused if it cannot be one."""
    check_local(path)
    try:
        target = Path(path).resolve()
        has_parent, exists = target.parent.is_dir(), target.exists()
        is_right = target.is_dir() if folder else target.is_file()
    except (TypeError, ValueError, OSError, RuntimeError) as error:  # RuntimeError: links in a circle
        raise InputError(f"{path!r} cannot be written: {reason(error)}.") from error
    if exists and not is_right:
        what = "a folder" if target.is_dir() else "a file" if folder else "not a regular file"
        raise InputError(f"'{path}' is {what}; name {'a folder' if folder else 'a file to write'}.")
    if not has_parent:
        raise InputError(f"the folder '{target.parent}' does not exist; create it first.")
    return target


def is_folder(path: Any) -> bool:
    """Whether a path names a folder; False for what is not a path."""
    return isinstance(path, (str, os.PathLike)) and os.path.isdir(path)


def reason(error: BaseException) -> str:
    """Why a file could not be read or written: the system's words, or the first line of the error."""
    return getattr(error, "strerror", None) or first_line(error)
