"""The journal: what is written comes back, half lines are dropped, strange files are refused and left as they are."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from taurank.errors import InputError
from taurank.tuning.journal import Journal, Trial

TRIALS = [
    Trial(0, {"cap": 0.1, "loss": "hinge", "bound": None}, "finished", {"CDCG": 1 / 3}, (0.1, 1 / 3), 1.5),
    Trial(2, {"cap": 0.3, "loss": "logistic", "bound": True}, "diverged"),
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "journal"
    journal = Journal(path, "print")
    for trial in TRIALS:
        journal.add(trial)
    journal.close()
    return path


def read(path: Path) -> list[Trial]:
    journal = Journal(path, "print")
    journal.close()
    return list(journal.trials.values())


def test_trials_come_back_as_they_were(path: Path) -> None:
    assert read(path) == TRIALS


def test_cut_anywhere_it_is_read_up_to_the_last_whole_line(path: Path) -> None:
    content = path.read_bytes()
    ends = [n + 1 for n, byte in enumerate(content) if byte == ord("\n")]
    for size in range(len(content)):
        path.write_bytes(content[:size])
        assert read(path) == TRIALS[: max(0, sum(end <= size for end in ends) - 1)]
        journal = Journal(path, "print")
        journal.add(TRIALS[1])
        journal.close()
        assert read(path)[-1] == TRIALS[1]


@pytest.mark.parametrize(
    "content",
    [
        b"nonsense\n", b"nonsense", b"[]\n", b"\xff\xfe", b'{"op_code": 0}\n', b"[" * 100_000 + b"\n",
        b'{"taurank": "journal of a search", "version": 2}\n',
    ],
)  # fmt: skip
def test_another_file_is_refused_and_left_as_it_is(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "notes"
    path.write_bytes(content)
    with pytest.raises(InputError, match="is not a journal of taurank, or is damaged"):
        read(path)
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    "line",
    [
        b"{}", b"3", b"half", b'{"number": 1}', b'{"number": "x", "settings": {}, "state": "finished"}',
        b'{"number": 1, "settings": [], "state": "finished"}', b'{"number": 1, "settings": {}, "state": "odd"}',
        b'{"number": 1, "settings": {}, "state": "finished", "metrics": 3}',
        b'{"number": 1, "settings": {}, "state": "finished", "curve": "ab"}',
        b'{"number": 1, "settings": {}, "state": "finished", "more": 3}',
    ],
)  # fmt: skip
def test_a_damaged_line_is_refused(path: Path, line: bytes) -> None:
    path.write_bytes(path.read_bytes() + line + b"\n")
    with pytest.raises(InputError, match="is damaged"):
        read(path)


@pytest.mark.parametrize("cap", ["0.7", "[1]", '"x"', "{}"])
def test_settings_that_are_not_of_the_space_are_refused(path: Path, cap: str) -> None:
    path.write_text(path.read_text().replace('"cap": 0.1', f'"cap": {cap}'))
    journal = Journal(path, "print")
    with pytest.raises(InputError, match="is damaged"):
        journal.check({"cap": [0.1, 0.3], "loss": ["hinge", "logistic"], "bound": [None, True]}, "CDCG")
    journal.close()


def test_another_search_is_refused(path: Path) -> None:
    with pytest.raises(InputError, match="belongs to another search"):
        Journal(path, "other")


def test_two_writers_are_refused_and_a_closed_one_is_not(path: Path) -> None:
    first = Journal(path, "print")
    with pytest.raises(InputError, match="another process is writing"):
        Journal(path, "print")
    first.close()
    assert read(path) == TRIALS


def test_no_folder_no_file_no_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="does not exist"):
        read(tmp_path / "none" / "journal")
    with pytest.raises(InputError, match="is a folder"):
        read(tmp_path)

    def refuse(*_: Any) -> int:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(InputError, match=r"cannot be opened: Read-only file system\."):
        read(tmp_path / "journal")


FULL = """
import resource, sys
from taurank.errors import InputError
from taurank.tuning.journal import Journal, Trial
journal = Journal("journal", "print")
resource.setrlimit(resource.RLIMIT_FSIZE, (400, 400))
try:
    for number in range(100):
        journal.add(Trial(number, {"cap": 0.1}, "finished", {"CDCG": 0.5}))
except InputError as error:
    print(number, error)
"""


def test_a_full_disk_is_one_sentence_and_the_journal_stays_whole(tmp_path: Path) -> None:
    pytest.importorskip("resource")
    done = subprocess.run([sys.executable, "-c", FULL], cwd=tmp_path, capture_output=True, text=True, check=True)
    count, sentence = done.stdout.split(maxsplit=1)
    assert "the journal 'journal' cannot be written: File too large;" in sentence
    assert len(read(tmp_path / "journal")) == int(count) > 0
