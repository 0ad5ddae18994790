"""The progress bar: a bar on a terminal, plain lines or nothing elsewhere."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from taurank._progress import Progress

ON_A_TERMINAL = """
import os, sys
from taurank._progress import Progress
with Progress() as progress:
    progress.begin("DLCE", 50)
    for epoch in range(21):
        progress.step(f"loss {1 / (epoch + 1):.4f}  25.3 M updates/s  best 0.1234 (epoch 11) [more] than fits")
    progress.end("best 0.1234 (epoch 11)")
"""


def run_on_a_terminal(code: str, columns: int) -> list[str]:
    """The lines that a program shows on a terminal of this width."""
    import pty

    primary, secondary = pty.openpty()
    environment = {**os.environ, "COLUMNS": str(columns), "TERM": "dumb"}
    process = subprocess.Popen([sys.executable, "-c", code], stderr=secondary, env=environment)
    os.close(secondary)
    written = b""
    try:
        while piece := os.read(primary, 4096):
            written += piece
    except OSError:  # what Linux says at the end
        pass
    os.close(primary)
    assert process.wait() == 0
    return [line for line in written.decode().replace("\r", "\n").splitlines() if line.strip()]


def test_a_bar_fits_the_terminal_and_is_full_after_early_stopping() -> None:
    lines = run_on_a_terminal(ON_A_TERMINAL, 80)
    assert "21/21" in lines[-1]
    assert "best 0.1234 (epoch 11)" in lines[-1]
    assert max(len(line) for line in lines) <= 80


def test_plain_lines_say_what_is_left(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(True, lines=True) as progress:
        progress.begin("fits", 30)
        progress.step("one", steps=29)
        progress.step("two")
        progress.begin("stages", 2)  # too few, and too different, to say how long
        progress.step("log")
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "30 fits left"
    assert lines[1].startswith("[29/30] one; 1 left, about ")
    assert lines[2] == "[30/30] two; none left"
    assert lines[4] == "[1/2] log; 1 left"


@pytest.mark.parametrize("show", [None, False])
def test_silence_in_a_pipe(show: bool | None, capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(show, lines=True) as progress:
        progress.begin("fits", 2)
        progress.step("one")
        progress.say("a word")
        progress.end("done")
    assert capsys.readouterr().err == ""
    assert progress.count == 1
