"""What tests of several rooms share: the command line in this process, and a small shop to try it on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support.command_line import Command, Finished

LONG = ("test_cluster.py", "test_search.py", "test_safety.py", "test_simulate.py", "test_pilot.py", "test_report.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files first: the last one would keep one process busy while the other has nothing left to do."""
    items.sort(key=lambda item: item.path.name not in LONG)


@pytest.fixture
def taurank(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """``taurank("fit", "dlce", …)``: a command of the command line, in this process."""
    from taurank.cli import main

    def run(*arguments: object) -> Finished:
        monkeypatch.setattr(sys, "argv", ["taurank", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            main()
        captured = capsys.readouterr()
        return Finished(int(stop.value.code or 0), captured.out, captured.err)

    return run


@pytest.fixture
def process(tmp_path: Path) -> Command:
    """The same as a process of its own, in an empty folder."""

    def run(*arguments: object, **options: object) -> Finished:
        command = [sys.executable, "-m", "taurank", *map(str, arguments)]
        done = subprocess.run(command, **{"capture_output": True, "cwd": tmp_path, **options})  # type: ignore[call-overload]
        out, err = ((stream or b"").decode("utf-8", "replace") for stream in (done.stdout, done.stderr))
        return Finished(done.returncode, out, err)

    return run


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a log, its truth, and another log of the same world with its truth."""
    from taurank import World

    folder = tmp_path_factory.mktemp("shop")
    world = World.synthetic(80, 30, random_state=0)
    for name, seed in (("train", 1), ("test", 2)):
        sample = world.sample(5, random_state=seed)
        sample.log.write(folder / f"{name}.parquet")
        sample.truth.write(folder / f"{name}_truth.parquet")
    return folder
