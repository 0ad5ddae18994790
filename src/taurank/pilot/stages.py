"""Stages: work that is done once. A stage is named by what it depends on, and its files are used again.

The name is a hash of the stage's inputs: settings, the names of earlier stages, and size and time of change of the
files that are read. A killed pilot continues after its last complete stage; a changed plan repeats only what it
changes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from taurank import __version__
from taurank._progress import Progress
from taurank.errors import InputError

T = TypeVar("T")


class Stages:
    """The folder of a pilot's stages, and the line of progress for each of them."""

    def __init__(self, folder: Path, progress: Progress) -> None:
        self.folder, self.progress = folder, progress
        folder.mkdir(parents=True, exist_ok=True)

    def run(self, name: str, key: str, suffix: str, make: Callable[[Path], Any], read: Callable[[Path], T]) -> T:
        """The result of a stage: read if its file exists, else made, written to the file, and read."""
        path = self.folder / f"{name}-{key}{suffix}"
        done = path.exists()
        if not done:
            try:
                make(path)
            except InputError:  # refused tables leave nothing behind
                with suppress(OSError):
                    self.folder.rmdir()
                    self.folder.parent.rmdir()
                raise
        self.progress.step(f"{name}{' (done before)' if done else ''}")
        return read(path)


def key_of(*parts: Any) -> str:
    """A short name of everything a stage depends on."""
    text = json.dumps([__version__, *parts], sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
