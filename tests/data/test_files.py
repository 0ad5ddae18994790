"""Files are written whole or not at all, keep their permissions, and a killed process leaves nothing for long."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import taurank as tr
from support.builders import synthetic_log
from taurank.data import files, temporary
from taurank.data.files import atomic_path, check_target
from taurank.data.temporary import temporary_file, temporary_folder
from taurank.errors import InputError
from taurank.report.overlap import overlap_page

KILLED = """
import sys, time
from pathlib import Path
from taurank.data.files import atomic_path
from taurank.data.temporary import temporary_folder
folder = Path(sys.argv[1])
with atomic_path(folder / "out.csv") as path, temporary_folder(folder) as scratch:
    path.write_text("half")
    (scratch / "spilled").write_text("half")
    print("ready", flush=True)
    time.sleep(60)
"""


@pytest.fixture(autouse=True)
def nothing_cleaned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(temporary, "_cleaned", set())


def start_writer(folder: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", KILLED, folder], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


class TestAtomicPath:
    def test_the_file_appears_at_the_end(self, tmp_path: Path) -> None:
        with atomic_path(tmp_path / "a.txt") as path:
            path.write_text("new")
            assert not (tmp_path / "a.txt").exists()
        assert (tmp_path / "a.txt").read_text() == "new"
        assert len(list(tmp_path.iterdir())) == 1

    def test_a_failed_block_leaves_the_old_file(self, tmp_path: Path) -> None:
        (tmp_path / "a.txt").write_text("old")

        def fail() -> None:
            with atomic_path(tmp_path / "a.txt") as path:
                path.write_text("half")
                raise RuntimeError("in the middle")

        with pytest.raises(RuntimeError, match="in the middle"):
            fail()
        assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]
        assert (tmp_path / "a.txt").read_text() == "old"

    @pytest.mark.parametrize("mode", [0o600, 0o640, 0o604])
    def test_a_replaced_file_keeps_its_permissions(self, tmp_path: Path, mode: int) -> None:
        target = tmp_path / "log.parquet"
        target.touch()
        target.chmod(mode)
        synthetic_log().write(target)
        assert stat.S_IMODE(target.stat().st_mode) == mode

    def test_a_new_file_has_the_permissions_of_new_files(self, tmp_path: Path) -> None:
        (tmp_path / "plain").touch()
        with atomic_path(tmp_path / "a") as path:
            path.write_text("x")
        assert (tmp_path / "a").stat().st_mode == (tmp_path / "plain").stat().st_mode

    @pytest.mark.parametrize("path", [None, 5, "", "a\0b", "x" * 5000, "none/a.txt", "."])
    def test_odd_targets_are_refused(self, path: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        with pytest.raises(InputError):
            check_target(path)

    def test_links_in_a_circle_are_refused(self, tmp_path: Path) -> None:
        (tmp_path / "a").symlink_to(tmp_path / "b")
        (tmp_path / "b").symlink_to(tmp_path / "a")
        for act in (lambda: synthetic_log().write(tmp_path / "a"), lambda: tr.Log.read(tmp_path / "a")):
            with pytest.raises(InputError):
                act()


def writers(folder: Path) -> dict[str, Any]:
    log = synthetic_log()
    return {
        "log.parquet": lambda: log.write(folder / "log.parquet"),
        "log.csv": lambda: log.write(folder / "log.csv"),
        "a.world": lambda: tr.World.synthetic(3, 3, random_state=0).save(folder / "a.world"),
        "page.html": lambda: overlap_page(tr.propensity.diagnose(log), folder / "page.html"),
    }


@pytest.mark.parametrize("name", ["log.parquet", "log.csv", "a.world", "page.html"])
class TestBadDisks:
    def test_a_folder_that_cannot_be_written(
        self, name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        """A read-only file system, also for root: the system refuses to create the file."""
        opened = os.open

        def refuse(path: Any, flags: int, *args: Any, **options: Any) -> int:
            if flags & os.O_CREAT and str(path).startswith(str(tmp_path)):
                raise OSError(30, "Read-only file system")
            return opened(path, flags, *args, **options)

        write = writers(tmp_path)[name]
        monkeypatch.setattr(os, "open", refuse)
        with pytest.raises(InputError, match=rf"{name}' cannot be written: Read-only file system\."):
            write()
        assert list(tmp_path.iterdir()) == []

    def test_a_full_disk(self, name: str, tmp_path: Path) -> None:
        """A file-size limit ends a write in the middle, as a full disk does."""
        script = f"""
import resource, signal, sys
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
sys.path.insert(0, {str(Path(__file__).parent)!r})
from pathlib import Path
from test_files import writers
from taurank.errors import InputError
write = writers(Path({str(tmp_path)!r}))[{name!r}]
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (50, 50))
try:
    write()
except InputError as error:
    sys.exit(0 if "cannot be written" in str(error) else 3)
sys.exit(4)
"""
        (tmp_path / name).write_text("old")
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-1500:]
        assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [(name, "old")]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
class TestAfterAKill:
    def test_the_next_run_removes_what_is_left(self, tmp_path: Path, number: signal.Signals) -> None:
        process = start_writer(tmp_path)
        process.send_signal(number)
        process.communicate()
        assert len(list(tmp_path.iterdir())) == 2
        (tmp_path / ".taurank-mine.tmp").touch()  # a name that is only similar
        (tmp_path / ("." + "0" * 32 + ".tmp")).touch()
        with atomic_path(tmp_path / "out.csv") as path, temporary_folder(tmp_path):
            path.write_text("whole")
        left = sorted(p.name for p in tmp_path.iterdir())
        assert left == sorted([".taurank-mine.tmp", "." + "0" * 32 + ".tmp", "out.csv"])

    def test_a_running_process_keeps_its_files(self, tmp_path: Path, number: signal.Signals) -> None:
        process = start_writer(tmp_path)
        before = set(tmp_path.iterdir())
        with atomic_path(tmp_path / "other.csv") as path, temporary_folder(tmp_path):
            path.write_text("whole")
        assert set(tmp_path.iterdir()) == before | {tmp_path / "other.csv"}
        process.send_signal(number)
        process.communicate()


def test_a_folder_is_searched_once_by_a_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Path] = []
    monkeypatch.setattr(temporary, "remove_stale_files", calls.append)
    for _ in range(3):
        with temporary_file(tmp_path), temporary_file(tmp_path):
            pass
    assert calls == [tmp_path]


def test_links_named_like_temporary_files_are_not_followed(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / ".lock").touch()
    (tmp_path / f"taurank-{'0' * 32}").symlink_to(precious)
    (tmp_path / f".taurank-{'0' * 32}.tmp").symlink_to(precious / ".lock")
    temporary.remove_stale_folders(tmp_path)
    temporary.remove_stale_files(tmp_path)
    assert (precious / ".lock").exists()
    assert len(list(tmp_path.iterdir())) == 3


def test_files_that_cannot_be_opened_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synthetic_log().write(tmp_path / "log.csv")
    (tmp_path / "a.world").write_text("x")

    def refuse(*args: Any, **options: Any) -> Any:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("builtins.open", refuse)
    monkeypatch.setattr("pyarrow.input_stream", refuse)
    for act in (lambda: tr.Log.read(tmp_path / "log.csv"), lambda: tr.World.load(tmp_path / "a.world")):
        with pytest.raises(InputError, match="Permission denied"):
            act()


def test_the_kind_of_a_file_is_asked_or_demanded() -> None:
    assert files.known_kind(Path("a.PARQUET")) == files.kind_of(Path("b.pq")) == "Parquet"
    assert files.known_kind(Path("a.txt")) is None
    with pytest.raises(InputError, match=r"does not end in \.parquet or \.csv"):
        files.kind_of(Path("a.txt"))
