"""The README's example and its commands run, and print what the README shows."""

from __future__ import annotations

import contextlib
import io
import itertools
import re
import shlex
from pathlib import Path

import pytest

from support.command_line import Command

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    return README.split(f"## {title}\n")[1].split("\n## ")[0]


def split_numbers(text: str) -> tuple[str, list[float]]:
    """A text without its decimal numbers, and these."""
    decimal = r"\d+\.\d+"
    return re.sub(decimal, "#", text), [float(number) for number in re.findall(decimal, text)]


def test_the_ten_lines_print_what_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taurank: Command) -> None:
    monkeypatch.chdir(tmp_path)
    command, code, shown = re.findall(r"```(?:python)?\n(.*?)```", section("Ten lines"), re.DOTALL)
    assert taurank(*shlex.split(command)[1:]).code == 0
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code, {})
    words, numbers = split_numbers(shown)
    last_words, last_numbers = split_numbers("\n".join(printed.getvalue().splitlines()[-len(shown.splitlines()) :]))
    assert last_words.split() == words.split()
    assert last_numbers == pytest.approx(numbers, rel=0.05)  # the last digits of a fit depend on the kind of CPU
    assert (tmp_path / "model.taurank").exists()


@pytest.mark.slow  # a search
def test_the_commands_run_in_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taurank: Command) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out").mkdir()
    block = re.findall(r"```\n(.*?)```", section("On the command line"), re.DOTALL)[0]
    commands = [shlex.split(line, comments=True) for line in block.splitlines()]
    assert {command[1] for command in commands} >= {"data", "propensity", "fit", "evaluate", "recommend", "tune"}
    for name, *arguments in commands:
        assert name == "taurank"
        finished = taurank(*arguments)
        assert finished.code == 0, finished.err
        outputs = [value for option, value in itertools.pairwise(arguments) if option in ("--out", "--html")]
        assert all((tmp_path / output).exists() for output in outputs)


PAGES = [path for folder in (".", "examples", "docs", "docs/notes") for path in sorted((ROOT / folder).glob("*.md"))]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_linked_file_exists(path: Path) -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", path.read_text(encoding="utf-8"))
    made = ("generated/", "notebooks/")  # with the site
    assert [link for link in links if not link.startswith(made) and not (path.parent / link).exists()] == []
