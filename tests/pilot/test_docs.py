"""The commands of the walk and the example of its page run."""

import contextlib
import io
import re
import shlex
import tomllib
from pathlib import Path

import pytest

from support.command_line import Command
from taurank.pilot.config import PilotConfig

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "afternoon.md").read_text(encoding="utf-8")


def _blocks(language: str) -> list[str]:
    """The code blocks of the page in this language; every second part between fences is one."""
    parts = [part.split("\n", 1) for part in PAGE.split("```")[1::2]]
    return [body for name, body in parts if name == language]


def test_the_walk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taurank: Command) -> None:
    monkeypatch.chdir(tmp_path)
    commands = [
        shlex.split(line) for block in _blocks("") for line in block.splitlines() if line.startswith("taurank")
    ]
    assert [command[1] for command in commands] == ["data", "pilot"]
    smaller = {"data": ["--users", "500", "--items", "120", "--weeks", "3"], "pilot": []}
    for _, command, *arguments in commands:
        finished = taurank(command, *arguments, *smaller[command], "--threads", "1")
        assert finished.code == 0, finished.err
    written = set(re.findall(r"`([a-z]+\.(?:parquet|toml|truth|html))`", PAGE))
    for name in written - {"recommendations.parquet"}:  # only if a learner was chosen
        assert (tmp_path / "shop" / name).exists() or (tmp_path / "answer" / name).exists(), name
    assert finished.out.startswith(("Show ", "Keep today's ranking: ", "The log cannot tell "))


def test_the_example_prints_a_plan() -> None:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(_blocks("python")[0], {})
    assert printed.getvalue().startswith("20,000 users in ")


def test_the_plan_of_the_page_is_valid(tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(_blocks("toml")[0])
    for path in tomllib.loads(_blocks("toml")[0])["tables"].values():
        (tmp_path / path).touch()
    assert PilotConfig.read(tmp_path / "plan.toml").pilot.segment == "segment"
