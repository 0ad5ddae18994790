"""The journal of a search: a file with one JSON line per trial, so that a killed search continues where it stopped.

One process writes a journal. It holds the operating system's lock on the file, which ends with the process, however
that ends: there is no lock file to go stale. A line that a kill left incomplete is dropped.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from taurank.data.files import check_target
from taurank.errors import InputError, first_line

HEADER = {"taurank": "journal of a search", "version": 1}
STATES = ("finished", "pruned", "diverged")


@dataclass(frozen=True)
class Trial:
    """One measured setting.

    ``metrics`` are the final values of a finished trial and the last ones seen of a pruned one; ``curve`` is the
    searched metric at every check on the way.
    """

    number: int
    settings: Mapping[str, Any]
    state: str
    metrics: Mapping[str, float] = field(default_factory=dict)
    curve: tuple[float, ...] = ()
    seconds: float = 0.0


class Journal:
    """The trials of one search by number: in memory, and in the file ``path`` unless that is None."""

    def __init__(self, path: Path | None, fingerprint: str) -> None:
        self.path, self.trials = path, dict[int, Trial]()
        self._file = None if path is None else _open_locked(path)
        try:
            self._read(fingerprint)
        except BaseException:
            self.close()
            raise

    def check(self, space: Mapping[str, Sequence[Any]], metric: str) -> None:
        """Refuse a journal whose trials cannot be of this search."""
        for trial in self.trials.values():
            inside = set(trial.settings) == set(space) and all(v in space[k] for k, v in trial.settings.items())
            if not inside or (trial.state == "finished" and not math.isfinite(trial.metrics.get(metric, math.nan))):
                raise self._unreadable()

    def add(self, trial: Trial) -> None:
        """Store a trial; it is on disk when this returns."""
        self._append(asdict(trial))
        self.trials[trial.number] = trial

    def close(self) -> None:
        """Close the file and give up its lock."""
        if self._file is not None:
            self._file.close()

    def _read(self, fingerprint: str) -> None:
        if self._file is None:
            return
        header = {**HEADER, "fingerprint": fingerprint}
        content = self._content()
        lines = content[: content.rfind(b"\n") + 1].splitlines()
        if not lines:
            self._begin(content, header)
            return
        if self._parse(lines[0]) != header:
            raise self._refusal(lines[0])
        trials = [self._trial(line) for line in lines[1:]]
        self.trials = {trial.number: trial for trial in trials}
        self._cut_to(content.rfind(b"\n") + 1)

    def _content(self) -> bytes:
        assert self._file is not None
        try:
            return self._file.read()
        except OSError as error:
            raise InputError(f"the journal '{self.path}' cannot be read: {first_line(error)}.") from error

    def _begin(self, content: bytes, header: Mapping[str, Any]) -> None:
        """A new journal, or one whose first line was never completed."""
        if not json.dumps(HEADER)[:-1].encode().startswith(content[: len(json.dumps(HEADER)) - 1]):
            raise self._unreadable()
        self._cut_to(0)
        self._append(header)

    def _refusal(self, line: bytes) -> InputError:
        if HEADER.items() <= self._parse(line).items():
            return InputError(
                f"the journal '{self.path}' belongs to another search (other data, metric, space or fixed "
                "hyper-parameters); remove it or name another file."
            )
        return self._unreadable()

    def _trial(self, line: bytes) -> Trial:
        try:
            trial = Trial(**self._parse(line))
            curve = tuple(float(value) for value in trial.curve)
            if trial.state not in STATES or not isinstance(trial.settings, dict) or int(trial.number) < 0:
                raise self._unreadable()
            metrics = {str(name): float(value) for name, value in trial.metrics.items()}
            return Trial(int(trial.number), trial.settings, trial.state, metrics, curve, float(trial.seconds))
        except (TypeError, ValueError, AttributeError) as error:
            raise self._unreadable() from error

    def _parse(self, line: bytes) -> dict[str, Any]:
        try:
            facts = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise self._unreadable() from error
        if not isinstance(facts, dict):
            raise self._unreadable()
        return facts

    def _unreadable(self) -> InputError:
        return InputError(
            f"'{self.path}' is not a journal of taurank, or is damaged; remove it or name another file."
        )

    def _cut_to(self, size: int) -> None:
        assert self._file is not None
        try:
            self._file.truncate(size)
            self._file.seek(size)
        except OSError as error:
            raise self._unwritable(error) from error

    def _append(self, facts: Mapping[str, Any]) -> None:
        if self._file is None:
            return
        size = self._file.tell()
        try:
            line = memoryview(json.dumps(facts).encode() + b"\n")
            while line:  # a disk that is nearly full takes a part
                line = line[self._file.write(line) :]
            os.fsync(self._file.fileno())
        except OSError as error:
            with suppress(OSError):
                self._file.truncate(size)
            raise self._unwritable(error) from error

    def _unwritable(self, error: OSError) -> InputError:
        reason = error.strerror or first_line(error)
        return InputError(
            f"the journal '{self.path}' cannot be written: {reason}; the trials before this one are stored."
        )


def _open_locked(path: Path) -> BinaryIO:
    """The file, created if need be, unbuffered and locked for as long as it is open."""
    target = check_target(path)
    try:
        file = os.fdopen(os.open(target, os.O_RDWR | os.O_CREAT, 0o666), "r+b", buffering=0)
    except OSError as error:
        raise InputError(f"the journal '{path}' cannot be opened: {error.strerror}.") from error
    try:
        _lock(file)
    except BlockingIOError as error:
        file.close()
        raise InputError(
            f"another process is writing the journal '{path}'; wait for it or name another file."
        ) from error
    return file


def _lock(file: BinaryIO) -> None:
    try:
        import fcntl
    except ImportError:  # not on Windows
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:  # a file system without locks
        return
