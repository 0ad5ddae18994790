"""What an attack counts, and the clock that ends it."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Tally:
    """How often something was tried, and how it ended."""

    tried: int = 0
    refused: int = 0
    accepted: int = 0
    violations: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    def rounds(self, seconds: float, least: int = 1) -> Iterator[int]:
        """Round after round until the time is over; at least so many."""
        number = 0
        while number < least or self.seconds < seconds:
            yield number
            number += 1

    def note(self, what: str, correct: bool, problem: str) -> None:
        """One try that ended as ``what`` ("refused" or "accepted"), or violated a promise."""
        self.tried += 1
        if correct:
            setattr(self, what, getattr(self, what) + 1)
        else:
            self.violations.append(problem)


Attack = Callable[[Path, int, float], Tally]  # folder to work in, seed, seconds

HERE = Path(__file__).parent
PATIENCE = 300.0  # seconds for anything that must come: on the busiest machine only a hang takes so long


def python(*words: str) -> list[str]:
    """The command that runs one of the scripts beside this file."""
    return [sys.executable, str(HERE / words[0]), *words[1:]]


def environment(**changes: str) -> dict[str, str]:
    return {**os.environ, "TERM": "dumb", **changes}
