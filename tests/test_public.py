"""``import taurank as tr``: the public names are there, one list has them, and importing costs nothing."""

from __future__ import annotations

import doctest
import inspect
import subprocess
import sys

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


@pytest.mark.parametrize("name", ["Log", "World", "EmpiricalBayes", "Metric", "evaluate", "tune", "gains.ips"])
def test_the_example_of_a_name_runs(name: str) -> None:
    room, _, function = name.rpartition(".")
    item = getattr(getattr(tr, room) if room else tr, function)
    home = vars(sys.modules[item.__module__])
    examples = [
        test for test in doctest.DocTestFinder(recurse=False).find(item, name, globs=dict(home)) if test.examples
    ]
    assert examples
    assert all(doctest.DocTestRunner().run(test).failed == 0 for test in examples)


def test_another_name_is_refused() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = tr.nothing


def test_importing_taurank_imports_nothing_else() -> None:
    script = "import sys, taurank; assert not {'numpy', 'pandas', 'numba', 'typer'} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
