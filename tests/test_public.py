"""``import taurank as tr``: the public names are there, one list has them, and importing costs nothing."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import taurank as tr

NAMES = {
    "Log", "World", "Gains", "Learner", "Metric", "Result", "evaluate", "compare", "load", "tune", "LEARNERS",
    "Random", "Popular", "BPR", "ULBPR", "ULRMF", "CausE", "BLCE", "DLTO", "DLCE", "CountingBayes", "CUBN",
    "InputError", "DivergedError", "MissingExtra", "OverlapWarning", "TrainingLogWarning",
    "gains", "propensity", "bounds", "dunnhumby",
}  # fmt: skip


def test_the_names_are_a_contract() -> None:
    assert set(tr.__all__) >= NAMES
    assert set(dir(tr)) == {*tr.__all__, "__version__"}


@pytest.mark.parametrize("name", sorted(NAMES))
def test_every_name_can_be_used(name: str) -> None:
    assert getattr(tr, name) is not None


def test_type_checkers_see_the_same_names_from_the_same_modules() -> None:
    tree = ast.parse(Path(tr.__file__).read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen: dict[str, set[str]] = {}
    for node in block.body:
        assert isinstance(node, ast.ImportFrom)
        assert all(alias.asname == alias.name for alias in node.names)
        seen.setdefault(str(node.module), set()).update(alias.name for alias in node.names)
    assert seen == {home: set(names) for home, names in tr._PUBLIC.items()}


def test_modules_and_functions_are_what_their_names_say() -> None:
    assert all(inspect.ismodule(module) for module in (tr.gains, tr.propensity, tr.bounds, tr.dunnhumby))
    assert all(inspect.isfunction(function) for function in (tr.tune, tr.evaluate, tr.compare, tr.load))
    assert all(getattr(tr, learner.__name__) is learner for learner in tr.LEARNERS.values())


def test_another_name_is_refused() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = tr.nothing


def test_importing_taurank_imports_nothing_else() -> None:
    script = "import sys, taurank; assert not {'numpy', 'pandas', 'numba', 'typer'} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
