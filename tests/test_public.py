"""``import taurank as tr``: the public names are there, one list has them, and importing costs nothing."""

from __future__ import annotations

import doctest
import importlib
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import taurank as tr

NAMES = {
    "Log", "World", "Gains", "Features", "Channels", "Metric", "InputError", "gains", "propensity", "bounds",
    "dunnhumby", "diagnose", "evaluate", "compare", "tune", "load", "Learner", "Random", "Popular", "BPR", "ULBPR",
    "ULRMF", "CausE", "BLCE", "DLTO", "DLCE", "CountingBayes", "CUBN", "EmpiricalBayes", "BestChannel",
    "effect_curve", "spend",
}  # fmt: skip
ROOMS = {"cluster", "errors", "learners", "pilot"}


def test_the_names_are_a_contract() -> None:
    assert set(tr.__all__) == NAMES | ROOMS
    assert set(dir(tr)) == {*tr.__all__, "__version__"}


@pytest.mark.parametrize("name", sorted(NAMES | ROOMS))
def test_every_name_can_be_used(name: str) -> None:
    assert inspect.ismodule(getattr(tr, name)) == (name in ROOMS | {"gains", "propensity", "bounds", "dunnhumby"})


def test_all_learners_are_public() -> None:
    assert all(getattr(tr, learner.__name__) is learner for learner in tr.learners.LEARNERS.values())


SOURCE = Path(tr.__file__).parent
EXAMPLES = [path for path in sorted(SOURCE.rglob("*.py")) if ">>> " in path.read_text(encoding="utf-8")]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_the_examples_of_docstrings_run(path: Path) -> None:
    module = importlib.import_module(".".join(path.relative_to(SOURCE.parent).with_suffix("").parts))
    assert doctest.testmod(module).failed == 0


def _callables() -> Iterator[tuple[str, Any]]:
    """The public functions and classes, and the public methods of these."""
    for name in tr.__all__:
        item = getattr(tr, name)
        if not inspect.ismodule(item):
            yield name, item
        home = item.__name__ if inspect.ismodule(item) else "taurank"
        for part in vars(item):
            value = getattr(item, part)
            is_own = inspect.isroutine(value) or inspect.isclass(value)
            if is_own and not part.startswith("_") and value.__module__.startswith(home):
                yield f"{name}.{part}", value


CALLABLES = dict(_callables())
MEAN_THE_SAME_EVERYWHERE = {"log", "random_state", "threads", "show_progress"}


@pytest.mark.parametrize("name", CALLABLES)
def test_a_docstring_names_the_parameters_of_the_signature(name: str) -> None:
    item = CALLABLES[name]
    docstring = inspect.getdoc(item)
    assert docstring
    section = re.search(r"Parameters\n-+\n(.*?)(\n\n|$)", docstring, re.DOTALL)
    if section is None:
        return
    heads = [line.split(" : ")[0] for line in section[1].splitlines() if not line.startswith(" ")]
    documented = {one for head in heads for one in head.split(", ")}
    taken = inspect.signature(item).parameters.keys() - {"self"}
    missing = taken - documented - MEAN_THE_SAME_EVERYWHERE
    assert documented <= taken
    assert inspect.isclass(item) or not missing


def test_another_name_is_refused() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = tr.nothing


def test_importing_taurank_imports_nothing_else() -> None:
    script = "import sys, taurank; assert not {'numpy', 'pandas', 'numba', 'typer'} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
