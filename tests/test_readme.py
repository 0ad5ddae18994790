"""The README's example runs, and prints what the README says it prints."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

README = (Path(__file__).parent.parent / "README.md").read_text()


def test_the_ten_lines_print_what_they_are_said_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    section = README.split("## Ten lines")[1].split("## ")[0]
    code, said = re.findall(r"```(?:python)?\n(.*?)```", section, re.DOTALL)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code, {})
    assert said.strip() in printed.getvalue()
    assert (tmp_path / "model.taurank").exists()


def test_the_main_table_is_the_one_of_the_results() -> None:
    table = (Path(__file__).parent.parent / "docs" / "results" / "comparison.md").read_text()
    assert table.strip() in README


def test_every_linked_file_exists() -> None:
    root = Path(__file__).parent.parent
    links = re.findall(r"\]\(([^)#:]+)\)", README)
    assert links
    assert [link for link in links if not (root / link).exists()] == []
