"""Stages: work that is done once. A stage is named by what it depends on, and its files are used again.

The name is a hash of the stage's inputs: settings, the names of earlier stages, and size and time of change of the
files that are read. A killed pilot continues after its last complete stage; a changed plan repeats only what it
changes.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from taurank import __version__
from taurank._progress import Progress
from taurank.errors import InputError

T = TypeVar("T")

# what stages take in relation to each other, in seconds, with 5 M impressions of 120,000 users and 3,000 items
SECONDS: dict[str, float] = {
    "log": 10.0, "propensity": 25.0, "model-popular": 8.0, "model-empiricalbayes": 45.0, "model-bpr": 70.0,
    "model-dlce": 40.0, "estimates": 17.0, "refit": 28.0, "report": 9.0,
}  # fmt: skip
SLOW = 60.0  # other learners


class Stages:
    """The folder of a pilot's stages, and the line of progress for each of them; ``names`` are all that follow."""

    def __init__(self, folder: Path, progress: Progress, names: Sequence[str]) -> None:
        self.folder, self.progress, self.names = folder, progress, list(names)
        self.spent = self.cost = 0.0  # seconds, and what they were expected to be
        self.began = time.monotonic()
        folder.mkdir(parents=True, exist_ok=True)
        progress.begin("stages", len(self.names))

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
        result = read(path)
        self.end(name, done)
        return result

    def end(self, name: str, done_before: bool = False) -> None:
        """Say that a stage is done, and how long the others take if they are as slow as those before."""
        now, known = time.monotonic(), next(each for each in self.names if name.startswith(each))
        if not done_before:
            self.spent, self.cost = self.spent + now - self.began, self.cost + SECONDS.get(known, SLOW)
        self.began = now
        self.names.remove(known)
        left = sum(SECONDS.get(each, SLOW) for each in self.names) * self.spent / self.cost if self.cost else 0.0
        text = f"{name}{' (done before)' if done_before else ''}"
        steps = self.progress.total - len(self.names) - self.progress.count  # skipped ones, too
        self.progress.step(f"{text}, about {left / 60:.1f} min left" if left >= 3.0 else text, steps)

    def skip(self, *names: str) -> None:
        """These are not needed."""
        self.names = [name for name in self.names if name not in names]


def key_of(*parts: Any) -> str:
    """A short name of everything a stage depends on."""
    text = json.dumps([__version__, *parts], sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
