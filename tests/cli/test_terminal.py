"""Bad moments on the command line: signals, closed pipes, full disks, other encodings, hostile names."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.command_line import Command
from taurank import __version__
from taurank.cli import app, terminal
from taurank.errors import printable

FULL = Path("/dev/full")
needs_linux = pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full and /sys")
SYNTHETIC = ("data", "synthetic", "--users", "40", "--items", "20", "--times", "2", "--out")


def start(*arguments: object, **options: object) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "taurank", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)  # type: ignore[call-overload,no-any-return]


@pytest.mark.integration
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_a_fit_quietly(number: int, code: int, shop: Path, tmp_path: Path) -> None:
    fit = start(
        "fit", "dlce", shop / "train.parquet", "--set", "epochs=10000000", "--threads", 1, "--all-epochs",
        "--out", tmp_path / "model", "--checkpoint", tmp_path / "checkpoint", "--checkpoint-minutes", 0,
    )  # fmt: skip
    for _ in range(600):  # the first checkpoint shows that it is at work
        if (tmp_path / "checkpoint").exists() or fit.poll() is not None:
            break
        time.sleep(0.1)
    fit.send_signal(number)
    out, err = fit.communicate(timeout=60)
    assert (fit.returncode, out, err) == (code, b"", b"")
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_during_the_start_ends_quietly(number: int) -> None:
    script = (
        "import os, sys, builtins\n"
        "original = builtins.__import__\n"
        "def interrupting(name, *rest):\n"
        f"    if name == 'typer': os.kill(os.getpid(), {int(number)})\n"
        "    return original(name, *rest)\n"
        "builtins.__import__ = interrupting\n"
        "from taurank.cli import main\n"
        "main()"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (128 + number, b"", b"")


def test_a_reader_that_goes_away_is_no_error(shop: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "taurank", "log", "check", str(shop / "train.parquet")]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, b"")


@needs_linux
@pytest.mark.parametrize("arguments", [("log", "check", "train.parquet"), ("--help",)])
def test_standard_output_on_a_full_disk(arguments: tuple[str, ...], shop: Path, process: Command) -> None:
    with FULL.open("wb") as full:
        finished = process(*arguments, cwd=shop, stdout=full, stderr=subprocess.PIPE, capture_output=False)
    assert finished.refused_with("No space left on device")


def limit_files_to_2000_bytes() -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))


@needs_linux
@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        (*SYNTHETIC, "made"),
        ("log", "build", "events.csv", "events.csv", "--out", "made"),
        ("propensity", "estimate", "train.parquet", "--out", "made.parquet"),
        ("propensity", "diagnose", "train.parquet", "--html", "made"),
        ("fit", "countingbayes", "train.parquet", "--out", "made"),
        ("fit", "bpr", "train.parquet", "--checkpoint", "made", "--checkpoint-minutes", "0", "--out", "out"),
        ("recommend", "model.tau", "--out", "made.csv"),
        ("tune", "dlce", "train.parquet", "--truth", "test_truth.parquet", "--set", "epochs=1", "--trials", "2",
         "--journal", "made"),
        ("paper", "statistics", "--preset", "smoke", "--out", "made"),
    ],
    ids=lambda arguments: " ".join(arguments[:2]),
)  # fmt: skip
def test_a_full_disk_is_one_sentence(arguments: tuple[str, ...], shop: Path, process: Command) -> None:
    """A limit on the size of files stands for the full disk: the same calls fail, with another errno."""
    rows = "".join(f"{user},{user % 7},2024-01-0{1 + user % 9} 10:00:00\n" for user in range(3000))
    (shop / "events.csv").write_text("user_id,item_id,timestamp\n" + rows)
    if arguments[0] == "recommend":
        assert process("fit", "popular", "train.parquet", "--out", "model.tau", cwd=shop).code == 0
    finished = process(*arguments, cwd=shop, preexec_fn=limit_files_to_2000_bytes)
    assert finished.code == 2
    assert "Traceback" not in finished.err
    assert finished.err.strip().splitlines()[-1].startswith("taurank: ")
    assert "made" in finished.err
    assert not list(shop.glob(".*.tmp"))


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (OSError(30, "Read-only file system", "some/where"), "taurank: 'some/where': Read-only file system."),
        (MemoryError(), "not enough memory"),
    ],
)
def test_an_unforeseen_failure_is_one_sentence(
    error: Exception, sentence: str, taurank: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(**_: object) -> None:
        raise error

    monkeypatch.setattr(app, "app", fail)
    assert taurank("anything").refused_with(sentence)


@pytest.mark.parametrize(
    ("encoding", "arguments", "shown"),
    [("cp1252", ("log", "check", "τ.csv"), "'?.csv'"), ("ascii", ("log", "build", "--help"), "Usage")],
)
def test_a_terminal_without_unicode(encoding: str, arguments: tuple[str, ...], shown: str, process: Command) -> None:
    """Question marks in place of letters it does not have, in output and in errors."""
    environment = {**os.environ, "PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"}
    finished = process(*arguments, env=environment)
    assert shown in finished.out + finished.err
    assert "Traceback" not in finished.err


@pytest.mark.filterwarnings("default")
def test_a_warning_is_one_sentence_without_source(taurank: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def warn(**_: object) -> None:
        warnings.warn("half of the\nlog is missing", UserWarning, stacklevel=2)

    monkeypatch.setattr(app, "app", warn)
    finished = taurank("anything")
    assert (finished.code, finished.out) == (0, "")
    assert finished.err == "taurank: warning: half of the\\nlog is missing\n"


def test_control_characters_of_a_file_do_not_reach_the_terminal(taurank: Command, tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("user_id,item_id,treated,outcome\x1b[31m,\x07\x9b2J\u202e\n1,2,1,0,3\n", encoding="utf-8")
    finished = taurank("log", "check", path)
    assert finished.refused_with("column")
    assert finished.err[:-1].isprintable()


@given(st.text())
def test_escaping_leaves_only_printable_characters(text: str) -> None:
    assert all(mark == "\n" or mark == "\t" or ord(mark) >= 32 for mark in printable(text))
    assert printable(printable(text)) == printable(text)
    assert printable("τ – naïve, 東京 🍵") == "τ – naïve, 東京 🍵"
    assert printable("\x1b[2J\x7f\x9b\u202e") == r"\u001b[2J\u007f\u009b\u202e"
    assert json.loads(printable(json.dumps(text, ensure_ascii=False))) == text  # escaped JSON is JSON


def test_lines_end_between_words_and_rows_below_their_last_column() -> None:
    text = "a verdict of many words\n\nname      value  a reading of it\nname      value  short"
    assert terminal.wrapped(text, 25) == (
        "a verdict of many words\n\nname      value  a\n                 reading\n                 of it\n"
        "name      value  short"
    )


@given(st.text("ab  \n", max_size=80), st.integers(5, 40))
def test_wrapping_keeps_every_word(text: str, width: int) -> None:
    lines = terminal.wrapped(text, width)
    assert lines.split() == text.split()
    assert all(len(line) <= width or " " not in line.strip() for line in lines.splitlines())


@pytest.mark.skipif(os.name != "posix", reason="needs a terminal to be made")
def test_a_terminal_gets_wrapped_lines_and_a_pipe_does_not(shop: Path, process: Command, taurank: Command) -> None:
    import pty

    reading, writing = pty.openpty()
    arguments = ("fit", "nobody", shop / "train.parquet", "--out", "model")
    environment = {**os.environ, "COLUMNS": "80"}
    process(*arguments, env=environment, stderr=writing, stdout=subprocess.PIPE, capture_output=False)
    os.close(writing)
    text = b""
    while chunk := _read(reading):
        text += chunk
    on_terminal, in_pipe = text.decode(), taurank(*arguments)
    assert in_pipe.refused_with("no learner 'nobody'")
    assert max(map(len, on_terminal.splitlines())) <= 80 < len(in_pipe.err)
    assert on_terminal.split() == in_pipe.err.split()


def _read(terminal_end: int) -> bytes:
    try:
        return os.read(terminal_end, 4096)
    except OSError:  # what Linux answers when the other end is closed
        return b""


def test_quiet_prints_results_and_errors_only(taurank: Command, shop: Path, tmp_path: Path) -> None:
    words = ("fit", "popular", shop / "train.parquet", "-o", tmp_path / "model")
    try:
        assert taurank(*words).out.startswith("Wrote Popular")
        assert taurank("--quiet", *words).out == ""
        assert "CP@10" in taurank("--quiet", "evaluate", tmp_path / "model", shop / "test.parquet").out
        assert taurank("--quiet", "fit", "popular", "nothing.parquet", "-o", tmp_path / "m").code == 2
    finally:
        terminal.be_quiet(False)


def test_the_doctor_knows_versions_extras_and_the_cache(taurank: Command) -> None:
    finished = taurank("doctor")
    assert finished.code == 0
    assert finished.out.split()[:2] == ["taurank", __version__]
    assert "extra cluster" in finished.out
    assert "cached in " in finished.out
