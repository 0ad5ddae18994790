"""Interrupts and kills at random moments: nothing hangs, nothing is lost, nothing is half-written."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

import numpy as np

from torture.tally import PATIENCE, Tally, environment, python

LEARNERS = ("dlce", "bpr", "ulbpr", "cause")


def interrupts(folder: Path, seed: int, seconds: float) -> Tally:
    """SIGINT and SIGTERM during a fit with several threads: the process ends, and by that signal's own code."""
    tally, rng = Tally(), np.random.default_rng([seed, 1])
    for number in tally.rounds(seconds):
        sent = (signal.SIGINT, signal.SIGTERM)[number % 2]
        child = _start("endless", LEARNERS[(seed + number) % len(LEARNERS)])
        _wait_for(child, "training")
        time.sleep(float(rng.uniform(0, 0.3)))
        child.send_signal(sent)
        ended = _ends(child)
        tally.note("accepted", ended, f"try {number}: {sent.name} did not end the process in {PATIENCE:.0f} s")
    return tally


def killed_fits(folder: Path, seed: int, seconds: float) -> Tally:
    """kill -9 during fits with a checkpoint: the next start goes on to the very bits of an undisturbed fit."""
    tally, rng = Tally(), np.random.default_rng([seed, 2])
    wanted: dict[str, str] = {}
    for number in tally.rounds(seconds):
        name, checkpoint = LEARNERS[(seed + number) % len(LEARNERS)], folder / f"checkpoint-{number}"
        if name not in wanted:
            wanted[name] = _finish(_start("fit", name, str(folder / f"undisturbed-{name}")))
        child = _start("fit", name, str(checkpoint))
        _wait_for(child, "training")
        time.sleep(float(rng.uniform(0, 0.5)))
        _kill(child)
        bits = _finish(_start("fit", name, str(checkpoint)))
        tally.note("accepted", bits == wanted[name], f"try {number}: {name} resumed to other bits")
        tally.violations += _leftovers(folder, f"try {number}")
    return tally


def killed_searches(folder: Path, seed: int, seconds: float) -> Tally:
    """kill -9 of a search with a journal at a relative path: the next start finishes, and no child lives on."""
    tally, rng = Tally(), np.random.default_rng([seed, 3])
    for number in tally.rounds(seconds):
        journal = f"journal-{number}"
        child = _start("search", journal, folder=folder)
        _wait_for(child, "searching")
        time.sleep(float(rng.uniform(0.0, 4.0)))
        children = _children(child.pid)
        _kill(child)
        alive = [pid for pid in children if not gone(pid, 60.0)]
        again = _start("search", journal, folder=folder)
        finished = _ends(again) and again.returncode == 0
        tally.note("accepted", finished and not alive, f"try {number}: finished {finished}, children alive {alive}")
    return tally


def killed_writes(folder: Path, seed: int, seconds: float) -> Tally:
    """kill -9 while a log and a model are written over and over: each is the old file or the new one, whole."""
    tally, rng = Tally(), np.random.default_rng([seed, 4])
    for number in tally.rounds(seconds):
        child = _start("write", str(folder))
        _wait_for(child, "writing")
        time.sleep(float(rng.uniform(0, 0.3)))
        _kill(child)
        check = _start("check", str(folder))
        whole = _ends(check) and check.returncode == 0
        tally.note("accepted", whole, f"try {number}: a half-written file was left")
    return tally


def forks(folder: Path, seed: int, seconds: float) -> Tally:
    """A fork after drawing and fitting, a pool of processes, and fits in two Python threads at once."""
    tally = Tally()
    for name in ("fork", "pool", "threads"):
        try:
            command = python("fork_child.py", name)
            done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=PATIENCE)
            tally.note("accepted", done.returncode == 0, f"{name}: exit {done.returncode}: {done.stderr[-200:]}")
        except subprocess.TimeoutExpired:
            tally.note("accepted", False, f"{name}: hangs")
    return tally


def _start(*words: str, folder: Path | None = None) -> subprocess.Popen[str]:
    return subprocess.Popen(
        python("work_child.py", *words), env=environment(), cwd=folder,
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip


def _wait_for(child: subprocess.Popen[str], word: str) -> None:
    """Read lines until the child says that it has begun."""
    assert child.stdout is not None
    for line in child.stdout:
        if line.strip() == word:
            return


def _finish(child: subprocess.Popen[str]) -> str:
    out, _ = child.communicate(timeout=PATIENCE)
    return next((line for line in out.splitlines() if line.startswith("{")), f"exit {child.returncode}")


def _ends(child: subprocess.Popen[str]) -> bool:
    try:
        child.wait(PATIENCE)
        return True
    except subprocess.TimeoutExpired:
        return False
    finally:
        _kill(child)


def _kill(child: subprocess.Popen[str]) -> None:
    """kill -9; its own children may still hold the pipe, so nobody waits for that to close."""
    child.kill()
    child.wait()
    if child.stdout is not None:
        child.stdout.close()


def _children(pid: int) -> list[int]:
    """The processes that this one has started, on systems that tell."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def gone(pid: int, patience: float = 0.0) -> bool:
    end = time.monotonic() + patience
    while True:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
                return True
        except OSError:
            return True
        if time.monotonic() >= end:
            return False
        time.sleep(0.1)


def _leftovers(folder: Path, where: str) -> list[str]:
    """Temporary files that are still there after a later run has finished."""
    return [f"{where}: {path.name} was left behind" for path in folder.iterdir() if path.name.startswith(".")]
