"""Temporary files and folders: removed when their block ends, or, after a kill, by the next process.

A process holds a lock on what it uses, and the system releases the lock when the process ends, however it
ends. So a temporary file whose lock is free is stale. The first write of a process into a folder
removes those, and only those that have taurank's own name pattern. (Without ``fcntl``, on Windows, nothing is
locked and nothing is removed.)
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

fcntl: Any
try:
    import fcntl
except ImportError:  # pragma: no cover
    fcntl = None

_FILE = re.compile(r"\.taurank-[0-9a-f]{32}\.tmp")
_FOLDER = re.compile(r"taurank-[0-9a-f]{32}")
_LOCK = ".lock"
_cleaned: set[str] = set()


@contextmanager
def temporary_file(folder: Path, mode: int | None = None) -> Iterator[Path]:
    """An empty file in ``folder``, with the permissions ``mode`` (None: those of any new file)."""
    _once(folder, remove_stale_files)
    path = folder / f".taurank-{uuid.uuid4().hex}.tmp"
    descriptor = None
    try:  # the file may exist as soon as it is being created: an interrupt can come at any moment
        descriptor = _create_locked(path)
        if mode is not None:
            os.chmod(path, mode)
        yield path
    finally:
        with suppress(OSError):
            path.unlink(missing_ok=True)
        if descriptor is not None:
            _release(descriptor)


@contextmanager
def temporary_folder(parent: str | os.PathLike[str] | None = None) -> Iterator[Path]:
    """A folder for intermediate results, in ``parent`` or in the system's temporary folder."""
    root = Path(parent if parent is not None else tempfile.gettempdir())
    _once(root, remove_stale_folders)
    folder = root / f"taurank-{uuid.uuid4().hex}"
    descriptor = None
    try:
        folder.mkdir(mode=0o700)
        descriptor = _create_locked(folder / _LOCK)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if descriptor is not None:
            _release(descriptor)


def remove_stale_files(folder: Path) -> None:
    """Remove temporary files that a killed process left here."""
    for entry in _entries(folder, _FILE):
        if entry.is_file(follow_symlinks=False):
            _if_unlocked(entry.path, lambda path=entry.path: os.unlink(path))  # type: ignore[misc]


def remove_stale_folders(parent: Path) -> None:
    """Remove temporary folders that a killed process left here."""
    for entry in _entries(parent, _FOLDER):
        if entry.is_dir(follow_symlinks=False):
            lock = os.path.join(entry.path, _LOCK)
            _if_unlocked(lock, lambda path=entry.path: shutil.rmtree(path, ignore_errors=True))  # type: ignore[misc]


def _once(folder: Path, clean: Callable[[Path], None]) -> None:
    """Clean a folder at its first use by this process."""
    key = f"{clean.__name__} {folder}"
    if key not in _cleaned:
        _cleaned.add(key)
        with suppress(OSError):
            clean(folder)


def _entries(folder: Path, pattern: re.Pattern[str]) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        return [entry for entry in entries if pattern.fullmatch(entry.name)]


def _create_locked(path: Path) -> int:
    """A new file and the lock on it; made again if another process took it for stale before it was locked."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        if fcntl is None:  # pragma: no cover
            os.close(descriptor)
            return -1
        with suppress(OSError):  # a file system without locks: the file is never taken for stale either
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if path.exists():
            return descriptor
        os.close(descriptor)


def _release(descriptor: int) -> None:
    if descriptor >= 0:
        os.close(descriptor)


def _if_unlocked(path: str, act: Callable[[], None]) -> None:
    """Act if no process holds the lock of this file."""
    if fcntl is None:  # pragma: no cover
        return
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            act()
        finally:
            os.close(descriptor)
