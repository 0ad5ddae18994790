"""Help, completion, and what every command declares."""

from __future__ import annotations

import subprocess
import sys
import typing
from pathlib import Path

import pytest

from support.command_line import COMMANDS, GROUPS, Command
from taurank import __version__
from taurank.cli import options
from taurank.cli.options import path_uses
from taurank.learners import LEARNERS

HEAVY = {"numpy", "pandas", "numba", "duckdb", "pyarrow", "scipy", "altair", "optuna", "jinja2", "narwhals"}


def test_help_imports_nothing_heavy() -> None:
    script = (
        "import sys; sys.argv = ['taurank', 'fit', '--help']\n"
        "from taurank.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        f"heavy = {HEAVY} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Usage: taurank fit" in done.stdout


def test_version(taurank: Command, process: Command) -> None:
    assert taurank("--version").out == process("--version").out == f"taurank {__version__}\n"


@pytest.mark.parametrize("group", GROUPS, ids=" ".join)
def test_without_arguments_the_commands_are_listed(
    group: tuple[str, ...], taurank: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERMINAL_WIDTH", "80")
    finished = taurank(*group)
    listed, depth = finished.out + finished.err, len(group)
    inside = {words[depth] for words in COMMANDS if words[:depth] == group and len(words) > depth}
    assert all(f"\n  {word} " in listed for word in inside)
    assert "..." not in listed.split("Commands:")[1]  # no summary is cut


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_has_help_that_fits_80_columns(
    words: tuple[str, ...], taurank: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERMINAL_WIDTH", "80")
    short, full = taurank(*words, "-h"), taurank(*words, "--help")
    assert short == full
    assert short.code == 0
    assert max(map(len, full.out.splitlines())) <= 80
    text = " ".join(full.out.split())
    for name, hint in typing.get_type_hints(COMMANDS[words], include_extras=True).items():
        if name not in ("return", "context"):
            assert " ".join(hint.__metadata__[0].help.split()) in text  # whole words, in this order


def test_usage_errors_are_exit_code_2(taurank: Command) -> None:
    for arguments in (("data", "synthetic"), ("nothing",), ("fit", "dlce"), ("evaluate", "--nothing")):
        finished = taurank(*arguments)
        assert finished.code == 2
        assert "Error: " in finished.err


def test_every_path_of_every_command_says_whether_it_is_read_or_written() -> None:
    for words, command in COMMANDS.items():
        hints = typing.get_type_hints(command)
        paths = {name for name, kind in hints.items() if Path in (kind, *typing.get_args(kind))}
        assert paths == set(path_uses(command)), words


def test_completion_offers_commands_and_learners(process: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_TAURANK_COMPLETE", "complete_bash")
    for words, position, offered in (("taurank ev", 1, "evaluate"), ("taurank fit dl", 2, "dlto\ndlce")):
        monkeypatch.setenv("COMP_WORDS", words)
        monkeypatch.setenv("COMP_CWORD", str(position))
        assert process().out.strip() == offered


def test_completion_can_be_shown_for_bash(process: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")
    assert "complete -o default -F _taurank_completion taurank" in process("--show-completion", "bash").out


def test_the_learners_known_to_completion_are_the_learners() -> None:
    assert tuple(LEARNERS) == options.LEARNERS
