"""docs/equations.md names only what exists, lacks nothing, and cites tests that execute the code they are cited for.

docs/theory.md shows what its code prints.
"""

from __future__ import annotations

import ast
import doctest
import importlib
import inspect
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "equations.md").read_text(encoding="utf-8")
HEAD = ["Equation", "As printed", "Right", "Code", "Test"]
PENDING = {"learning: not yet", "none"}
LABELS = (
    "observed_outcome", "delta_u_y", "delta_u_tau", "tau_naive", "tau_IPS", "e_delta_u_IPS",
    "bias_estimated_propensity", "bound", "tail_bound_IPS", "local_loss1", "approximation", "upper_bound",
    "approximation_local_loss", "upper_bound_local_loss", "gen_propensity", "misIPS",
)  # fmt: skip
PER_SECTION = {"3": 11, "4.1": 7, "4.2": 6, "4.3": 5 + 1, "5": 7, "Beyond": 17}  # 4.3 with the algorithm


def rows(section: str) -> list[list[str]]:
    """The cells of a section's table, without its head."""
    body = re.split(r"^## ", TEXT, flags=re.MULTILINE)
    found = next(part for part in body if part.startswith(f"{section} "))
    lines = [line for line in found.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    assert cells[0] == HEAD
    return cells[2:]


def resolve(name: str) -> Any:
    """The object of a dotted name: the longest importable module, then attributes."""
    parts = name.split(".")
    for size in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:size]))
        except ModuleNotFoundError:
            continue
        for part in parts[size:]:
            found = getattr(found, part)  # public modules such as taurank.gains are attributes
        return found
    raise ModuleNotFoundError(name)


def names_in(file: str) -> set[str]:
    """All tests of a file as ``name`` or ``Class::name``."""
    tree = ast.parse((ROOT / "tests" / file).read_text(encoding="utf-8"))
    names = set()
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}::{part.name}" for part in node.body if isinstance(part, ast.FunctionDef)}
        elif isinstance(node, ast.FunctionDef):
            names.add(node.name)
    return names


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`(taurank\.[\w.]+)`", TEXT))))
def test_named_code_exists(name: str) -> None:
    assert resolve(name) is not None


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`([\w/]*test_\w+\.py::[\w:]+)`", TEXT))))
def test_named_test_exists(name: str) -> None:
    file, _, test = name.partition("::")
    assert test in names_in(file)


@pytest.mark.parametrize("section", PER_SECTION)
def test_every_equation_has_its_code_and_its_test(section: str) -> None:
    table = rows(section)
    assert len(table) == PER_SECTION[section]
    for equation, printed, _, code, test in table:
        assert equation
        assert printed
        assert "`taurank." in code or code in PENDING
        assert "test_" in test or test in PENDING


def test_every_labeled_equation_has_a_row() -> None:
    named = {row[0].strip("()") for section in PER_SECTION for row in rows(section)}
    assert set(LABELS) <= named


Executed = dict[str, set[str]]  # test: "file:first line" of what it executes


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> Executed:
    """One run of all cited tests that records what they execute."""
    tests = sorted({f"tests/{name}" for name in cited(TEXT)})
    path = tmp_path_factory.mktemp("executed") / "executed.json"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "support.executed", *tests], cwd=ROOT, capture_output=True, text=True,
        check=False, env={**os.environ, "TAURANK_EXECUTED": str(path), "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:]
    return {name.removeprefix("tests/"): set(lines) for name, lines in json.loads(path.read_text()).items()}


@pytest.mark.parametrize("section", PER_SECTION)
def test_the_cited_tests_execute_the_cited_code(section: str, executed: Executed) -> None:
    """Each function of a row is executed by one of the row's tests; a compiled one is at least named by its file."""
    unproved = []
    for equation, _, _, code, test in rows(section):
        seen = set().union(*(executed[name] for name in cited(test)))
        text = "".join((ROOT / "tests" / name.split("::")[0]).read_text(encoding="utf-8") for name in cited(test))
        for name in re.findall(r"`(taurank\.[\w.]+)`", code):
            thing = resolve(name)
            compiled = hasattr(thing, "py_func") and name.rsplit(".", 1)[1] in text
            if not compiled and not seen & set(lines_of(thing)):
                unproved.append(f"{equation}: {name}")
    assert unproved == []


def cited(cell: str) -> list[str]:
    return re.findall(r"`([\w/]*test_\w+\.py::[\w:]+)`", cell)


def lines_of(thing: Any) -> Iterator[str]:
    """Where the functions of an object begin: its own, or those of a class."""
    for part in [*vars(thing).values()] if inspect.isclass(thing) else [thing]:
        function = inspect.unwrap(getattr(part, "fget", None) or getattr(part, "__func__", None) or part)
        if inspect.isfunction(function):
            yield f"{function.__code__.co_filename}:{function.__code__.co_firstlineno}"


def test_a_name_that_does_not_exist_is_noticed() -> None:
    with pytest.raises(AttributeError):
        resolve("taurank.evaluation.bounds.nothing")
    assert "nothing" not in names_in("evaluation/test_bounds.py")


def test_theory_shows_what_its_code_prints() -> None:
    result = doctest.testfile(str(ROOT / "docs" / "theory.md"), module_relative=False, encoding="utf-8")
    assert result.attempted > 10
    assert result.failed == 0
