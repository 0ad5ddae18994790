"""Files are written whole or not at all, keep their permissions, and leave nothing half-written."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import taurank as tr
from support.builders import synthetic_log
from taurank.data.files import atomic_folder, atomic_path, check_target, temporary_folder
from taurank.errors import InputError
from taurank.report.overlap import overlap_page


class TestAtomicPath:
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
        "page.html": lambda: overlap_page(tr.diagnose(log), folder / "page.html"),
    }


WRITTEN = ("log.parquet", "log.csv", "a.world", "page.html")


@pytest.mark.parametrize("name", WRITTEN)
def test_a_folder_that_cannot_be_written(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
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


def test_a_full_disk(tmp_path: Path) -> None:
    """A file-size limit ends a write in the middle, as a full disk does."""
    script = f"""
import resource, signal, sys
sys.path[:0] = {[str(Path(__file__).parents[1]), str(Path(__file__).parent)]!r}
from pathlib import Path
from test_files import writers
from taurank.errors import InputError
write = writers(Path({str(tmp_path)!r}))
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (50, 50))
for name, act in write.items():
    try:
        act()
    except InputError as error:
        if "cannot be written" in str(error):
            continue
    sys.exit(name)
"""
    for name in WRITTEN:
        (tmp_path / name).write_text("old")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-1500:]
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == dict.fromkeys(WRITTEN, "old")


def test_temporary_folders_go_with_their_block_even_if_it_is_interrupted(tmp_path: Path) -> None:
    def interrupted() -> None:
        with temporary_folder(tmp_path) as folder, atomic_path(tmp_path / "out.csv") as path:
            (folder / "spilled").write_text("half")
            path.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list(tmp_path.iterdir()) == []


class TestAtomicFolder:
    def test_it_appears_at_the_end_and_replaces_one_of_its_kind(self, tmp_path: Path) -> None:
        for text in ("old", "new"):
            with atomic_folder(tmp_path / "a", "index") as folder:
                (folder / "index").write_text(text)
        assert (tmp_path / "a" / "index").read_text() == "new"
        with pytest.raises(RuntimeError), atomic_folder(tmp_path / "a", "index"):
            raise RuntimeError
        assert (tmp_path / "a" / "index").read_text() == "new"
        assert len(list(tmp_path.iterdir())) == 1

    @pytest.mark.parametrize("path", [None, "file", "full", "none/a"])
    def test_other_targets_are_refused(self, path: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "file").touch()
        (tmp_path / "full").mkdir()
        (tmp_path / "full" / "precious").touch()
        with pytest.raises(InputError), atomic_folder(path, "index"):
            pass
        assert (tmp_path / "full" / "precious").exists()


def test_files_that_cannot_be_opened_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synthetic_log().write(tmp_path / "log.csv")
    (tmp_path / "a.world").write_text("x")

    def refuse(*args: Any, **options: Any) -> Any:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("builtins.open", refuse)
    monkeypatch.setattr("taurank.data.storage.safe_open", refuse)
    monkeypatch.setattr("pyarrow.input_stream", refuse)
    for act in (lambda: tr.Log.read(tmp_path / "log.csv"), lambda: tr.World.load(tmp_path / "a.world")):
        with pytest.raises(InputError, match="Permission denied"):
            act()
