"""Odd environments: full disks, no cache folder, other encodings, closed pipes, forks and threads."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from torture.tally import Tally, environment, python

TAURANK = [sys.executable, "-m", "taurank"]


def full_disk(folder: Path, seed: int, seconds: float) -> Tally:
    """Every command that writes, on a disk that is full: one sentence, exit code 2, nothing half-written."""
    tally = Tally()
    if not _can_mount():
        tally.skipped = "this system does not let us mount a small disk"
        return tally
    log = _log(folder)
    commands = {
        "fit": ["fit", "popular", str(log), "--out", "DISK/model"],
        "recommend": ["recommend", str(_model(folder, log)), "--out", "DISK/best.parquet"],
        "synthetic": ["data", "synthetic", "--users", "200", "--items", "100", "--out", "DISK/world"],
        "estimate": ["propensity", "estimate", str(log), "--out", "DISK/estimated.parquet"],
        "diagnose": ["propensity", "diagnose", str(log), "--html", "DISK/overlap.html"],
        "tune": [
            "tune", "countingbayes", str(log), "--validation", str(log), "--trials", "3", "--journal", "DISK/journal",
            "--out", "DISK/best.json",
        ],
    }  # fmt: skip
    for name, command in commands.items():
        done = _on_small_disk(folder / name, command)
        sentence = done.returncode == 2 and "Traceback" not in done.stderr and done.stderr.strip() != ""
        tally.note("refused", sentence, f"{name}: exit {done.returncode}: {done.stderr.strip()[-200:]}")
    return tally


def environments(folder: Path, seed: int, seconds: float) -> Tally:
    """No cache folder, other encodings, full and closed standard output."""
    tally, log = Tally(), _log(folder)
    cases = {
        "cp1252": ([*TAURANK, "propensity", "diagnose", str(log)], {"PYTHONIOENCODING": "cp1252"}),
        "ascii": ([*TAURANK, "--help"], {"PYTHONIOENCODING": "ascii", "LC_ALL": "C"}),
    }
    for name, (command, changes) in cases.items():
        done = subprocess.run(command, env=environment(**changes), capture_output=True, text=True, errors="replace")
        calm = done.returncode == 0 and "Traceback" not in done.stderr
        tally.note("accepted", calm, f"{name}: exit {done.returncode}: {done.stderr.strip()[-200:]}")
    if _can_mount():
        done = _read_only_package(folder, log)
        calm = done.returncode == 0 and "Traceback" not in done.stderr
        tally.note("accepted", calm, f"no cache folder: exit {done.returncode}: {done.stderr.strip()[-200:]}")
    for name, shell in {"full output": "> /dev/full", "closed pipe": "| head -n 1"}.items():
        line = f"{sys.executable} -m taurank log check {log} {shell}"
        done = subprocess.run(line, shell=True, env=environment(), capture_output=True, text=True)
        tally.note("accepted", "Traceback" not in done.stderr, f"{name}: {done.stderr.strip()[-200:]}")
    return tally


def forks(folder: Path, seed: int, seconds: float) -> Tally:
    """A fork after drawing and fitting, a pool of processes, and fits in two Python threads at once."""
    tally = Tally()
    for name in ("fork", "pool", "threads"):
        try:
            command = python("fork_child.py", name)
            done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=120)
            tally.note("accepted", done.returncode == 0, f"{name}: exit {done.returncode}: {done.stderr[-200:]}")
        except subprocess.TimeoutExpired:
            tally.note("accepted", False, f"{name}: hangs")
    return tally


def _log(folder: Path) -> Path:
    _run("data", "synthetic", "--users", "60", "--items", "30", "--times", "3", "--out", str(folder / "made"))
    return folder / "made" / "log.parquet"


def _model(folder: Path, log: Path) -> Path:
    _run("fit", "popular", str(log), "--out", str(folder / "model"))
    return folder / "model"


def _run(*words: str) -> None:
    subprocess.run([*TAURANK, *words], env=environment(), check=True, capture_output=True)


def _can_mount() -> bool:
    if shutil.which("unshare") is None:
        return False
    probe = subprocess.run(["unshare", "-m", "true"], capture_output=True)
    return probe.returncode == 0


def _on_small_disk(folder: Path, command: list[str]) -> subprocess.CompletedProcess[str]:
    """Run with DISK a new file system of 16 kB, gone with the process that sees it."""
    folder.mkdir()
    words = " ".join([*TAURANK, *(word.replace("DISK", str(folder)) for word in command)])
    fill = f"dd if=/dev/zero of={folder}/fill bs=1k 2>/dev/null"
    script = f"mount -t tmpfs -o size=16k tmpfs {folder} && {fill}; exec {words}"
    return subprocess.run(["unshare", "-m", "sh", "-c", script], env=environment(), capture_output=True, text=True)


def _read_only_package(folder: Path, log: Path) -> subprocess.CompletedProcess[str]:
    """A fit with the package on a read-only file system and no home: nowhere to keep compiled kernels."""
    import taurank

    package = folder / "package"
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(taurank.__file__).parent, package / "taurank", ignore=ignore)
    fit = " ".join([*TAURANK, "fit", "bpr", str(log), "--set", "factors=4", "--set", "epochs=1"])
    read_only = f"mount --bind {package} {package} && mount -o remount,bind,ro {package}"
    script = f"{read_only} && exec {fit} --out {folder / 'fitted'}"
    return subprocess.run(
        ["unshare", "-m", "sh", "-c", script], capture_output=True, text=True,
        env=environment(HOME="/proc/nowhere", XDG_CACHE_HOME="/proc/nowhere", PYTHONPATH=str(package)),
    )  # fmt: skip
