"""docs/equations.md names only what exists and lacks no equation.

docs/theory.md shows what its code prints.
"""

from __future__ import annotations

import ast
import doctest
import importlib
import re
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
SECTIONS = ("3", "4.1", "4.2", "4.3", "5", "Beyond")


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


@pytest.mark.parametrize("section", SECTIONS)
def test_every_equation_has_its_code_and_its_test(section: str) -> None:
    table = rows(section)
    assert table
    for equation, printed, _, code, test in table:
        assert equation
        assert printed
        assert "`taurank." in code or code in PENDING
        assert "test_" in test or test in PENDING


def test_every_labeled_equation_has_a_row() -> None:
    named = {row[0].strip("()") for section in SECTIONS for row in rows(section)}
    assert set(LABELS) <= named


def test_a_name_that_does_not_exist_is_noticed() -> None:
    with pytest.raises(AttributeError):
        resolve("taurank.evaluation.bounds.nothing")
    assert "nothing" not in names_in("worlds/test_bounds.py")


def test_theory_shows_what_its_code_prints() -> None:
    result = doctest.testfile(str(ROOT / "docs" / "theory.md"), module_relative=False, encoding="utf-8")
    assert result.attempted > 10
    assert result.failed == 0
