"""Damaged and crafted files: only our own error may come back, and memory stays bounded.

Every try runs in a child process, because a violation can kill it. The child counts in a small file of its own,
so that the parent knows which seed killed it, and goes on behind that seed.
"""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path

from torture.tally import PATIENCE, Tally, environment, python


def logs(folder: Path, seed: int, seconds: float) -> Tally:
    """Bits flipped, bytes replaced, cut, doubled and zeroed in Parquet and CSV logs."""
    return _drive("logs", folder, seed, seconds)


def catalogs(folder: Path, seed: int, seconds: float) -> Tally:
    """Parquet logs that are whole but carry a damaged or hostile catalog."""
    return _drive("catalogs", folder, seed, seconds)


def archives(folder: Path, seed: int, seconds: float) -> Tally:
    """Models, worlds and checkpoints with a valid checksum and contents that do not fit together."""
    return _drive("archives", folder, seed, seconds)


def _drive(what: str, folder: Path, seed: int, seconds: float) -> Tally:
    tally, first = Tally(), 0
    while tally.seconds < seconds:
        left = seconds - tally.seconds
        command = python("file_child.py", what, str(folder), str(seed), str(first), str(left))
        child = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=left + PATIENCE)
        first = _add(tally, folder / "counts.json", child, what)
    return tally


def _add(tally: Tally, path: Path, child: subprocess.CompletedProcess[str], what: str) -> int:
    """Add what the child counted; the number of the try to go on with."""
    for _ in range(50):
        if path.exists():
            break
        time.sleep(0.1)
    else:
        tally.violations.append(f"{what}: the child did not start: {child.stderr[-300:]}")
        return 1 << 62
    counts = json.loads(path.read_text())
    path.unlink()
    tally.tried += counts["tried"]
    tally.refused += counts["refused"]
    tally.accepted += counts["accepted"]
    tally.violations += counts["violations"]
    if child.returncode:
        name = signal.Signals(-child.returncode).name if child.returncode < 0 else f"exit {child.returncode}"
        tally.violations.append(f"{what}, try {counts['now']}: the process died ({name}) {child.stderr[-300:]}")
    return int(counts["now"]) + 1
