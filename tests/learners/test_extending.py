"""Every block of docs/extending.md runs, in a process of its own that has only the module of the page."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "extending.md").read_text()
MODULE = "# my_methods.py\n"


def blocks(section: str) -> list[str]:
    """The Python blocks under one heading."""
    text = PAGE.split(f"\n## {section}\n")[1].split("\n## ")[0]
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    own = [block.removeprefix(MODULE) for block in blocks("A learner") if block.startswith(MODULE)]
    (tmp_path / "my_methods.py").write_text("\n\n".join(own))
    return tmp_path


def run(folder: Path, *code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", "\n\n".join(code)], cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


LEARNER = [block for block in blocks("A learner") if not block.startswith(MODULE)]


def test_a_learner(folder: Path) -> None:
    shown = run(folder, *LEARNER)
    assert "Record(epoch=1, " in shown
    assert "CP@10" in shown
    assert b"my_methods:Truncated" in (folder / "model.taurank").read_bytes()


def test_a_learner_is_loaded_by_a_program_that_does_not_know_it(folder: Path) -> None:
    run(folder, *LEARNER)
    load = "import taurank as tr\nmodel = tr.load('model.taurank'{})\nprint(type(model), model.largest)"
    assert run(folder, load.format(", trust=['my_methods']")) == "<class 'my_methods.Truncated'> 10.0\n"
    with pytest.raises(
        AssertionError, match=r"InputError.*'my_methods:Truncated'.* load it with trust=\['my_methods'\]"
    ):
        run(folder, load.format(""))


def test_a_metric(folder: Path) -> None:
    shown = run(folder, *LEARNER[1:], *blocks("A metric"), "print(list(model.history_))")
    assert shown.endswith("['epoch', 'loss', 'updates', 'CRR']\n")


def test_a_gains_estimator(folder: Path) -> None:
    assert "CP@10" in run(folder, *LEARNER[1:], *blocks("A gains estimator"))


def test_a_world(folder: Path) -> None:
    assert "CP@10" in run(folder, *LEARNER[1:], *blocks("A world"))
