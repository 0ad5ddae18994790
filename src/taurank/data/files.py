"""Paths: which files a path, a glob or a folder means, and files that are written whole or not at all."""

from __future__ import annotations

import glob
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from taurank.errors import InputError, first_line

SUFFIXES = {".parquet": "Parquet", ".pq": "Parquet", ".csv": "CSV", ".csv.gz": "CSV"}


def find_files(path: str | os.PathLike[str]) -> list[Path]:
    """The files behind a path, in name order."""
    if not isinstance(path, (str, os.PathLike)):
        raise InputError(f"the path of a file, a glob or a folder is needed, not {path!r}.")
    text = os.fspath(path)
    if os.path.isdir(text):
        inside = [p for p in sorted(Path(text).rglob("*")) if not _is_hidden(p.relative_to(text))]
        found = [p for p in inside if p.is_file() and kind_of(p, ask=True)]
        _refuse_partitions(found, text)
        if not found:
            raise InputError(f"the folder '{text}' holds no .parquet or .csv file.")
        return found
    if os.path.exists(text):
        if not os.path.isfile(text):
            raise InputError(f"'{text}' is no ordinary file; copy it to one first.")
        return [Path(text)]
    matched = [Path(p) for p in sorted(glob.glob(text, recursive=True)) if os.path.isfile(p)]
    found = [p for p in matched if not p.name.startswith(("_", "."))]
    if not found:
        raise InputError(f"there is no file '{text}'.")
    return found


def _is_hidden(relative: Path) -> bool:
    """Leftovers of other tools: .ipynb_checkpoints/…, ._a.parquet, _SUCCESS."""
    return any(part.startswith((".", "_")) for part in relative.parts)


def _refuse_partitions(files: list[Path], folder: str) -> None:
    for file in files:
        for part in file.relative_to(folder).parts[:-1]:
            if "=" in part:
                raise InputError(
                    f"'{folder}' is partitioned: '{part}' holds a column in the name of a folder; "
                    "write the column into the files first."
                )


def kind_of(file: Path, ask: bool = False) -> str:
    """ "Parquet" or "CSV", by name; ``ask`` gives an empty string instead of an error."""
    for suffix, kind in SUFFIXES.items():
        if file.name.lower().endswith(suffix):
            return kind
    if ask:
        return ""
    raise InputError(f"'{file}' is neither .parquet nor .csv by its name; rename or convert it.")


@contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary path beside ``path``; renamed onto it if the block ends well, removed if not."""
    target = check_target(path)
    temporary = target.parent / f".{uuid.uuid4().hex}.tmp"
    try:
        yield temporary
        temporary.replace(target)
    except OSError as error:
        raise InputError(f"'{target}' cannot be written: {error.strerror or first_line(error)}.") from error
    finally:
        temporary.unlink(missing_ok=True)


def check_target(path: str | os.PathLike[str]) -> Path:
    """The file behind a path to be written to, links followed; refused if it can be none."""
    try:
        target = Path(path).resolve()
        is_folder, is_other = target.is_dir(), target.exists() and not target.is_file()
    except (TypeError, ValueError, OSError) as error:
        raise InputError(f"{path!r} is not the name of a file.") from error
    if is_folder or is_other:
        raise InputError(f"'{path}' is {'a folder' if is_folder else 'no ordinary file'}; name a file to write.")
    if not target.parent.is_dir():
        raise InputError(f"the folder '{target.parent}' does not exist; make it first.")
    return target
