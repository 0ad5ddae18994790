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


LEARNER = [block for block in blocks("A learner") if not block.startswith(MODULE)]


def run(folder: Path, *code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", "\n\n".join(code)], cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    own = [block.removeprefix(MODULE) for block in blocks("A learner") if block.startswith(MODULE)]
    (folder / "my_methods.py").write_text("\n\n".join(own))
    return folder


def test_every_section_runs_after_the_first(folder: Path) -> None:
    sections = ("A metric", "A gains estimator", "A world")
    marked = [[f"print('## {title}')", *blocks(title)] for title in sections]
    marked[0].append("print(list(model.history_))")
    learner, metric, *others = run(folder, *LEARNER, *(code for part in marked for code in part)).split("## ")
    assert "Record(epoch=1, " in learner
    assert metric.endswith("['epoch', 'loss', 'updates', 'CRR']\n")
    assert all("CP@10" in printed for printed in (learner, *others))
    assert b"my_methods:Truncated" in (folder / "model.taurank").read_bytes()


LOAD = """
import taurank as tr
try:
    tr.load("model.taurank")
except tr.InputError as error:
    print(error)
model = tr.load("model.taurank", trust=["my_methods"])
print(type(model), model.largest)
"""


def test_a_learner_is_loaded_by_a_program_that_does_not_know_it(folder: Path) -> None:
    if not (folder / "model.taurank").exists():
        run(folder, *LEARNER)
    refusal, loaded = run(folder, LOAD).splitlines()
    assert re.search(r"'my_methods:Truncated'.* load it with trust=\['my_methods'\]", refusal)
    assert loaded == "<class 'my_methods.Truncated'> 10.0"
