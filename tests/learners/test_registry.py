"""Learners by name: ours, foreign ones, and those that a model file names."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import taurank as tr
from taurank import Log, World
from taurank.data import storage
from taurank.errors import InputError
from taurank.learners import DLCE, LEARNERS, FactorLearner, Learner, Popular, learner_class, learner_name, load

OURS = DLCE


class Foreign(Popular):
    pass


class _Namesake(tr.DLCE):
    """A user's class that is called like ours."""


_Namesake.__name__ = _Namesake.__qualname__ = "DLCE"
Learner._registered["elsewhere:DLCE"] = _Namesake
_Namesake.__module__ = "elsewhere"


@pytest.fixture(scope="module")
def log() -> Log:
    return World.synthetic(20, 8, random_state=0).sample(5, random_state=0).log


@pytest.mark.parametrize("name", LEARNERS)
def test_ours_are_found_by_name_and_name_themselves(name: str) -> None:
    assert learner_class(name) is learner_class(name.upper()) is LEARNERS[name]
    assert learner_name(LEARNERS[name]) == name


def test_foreign_ones_are_found_by_path_and_name_themselves() -> None:
    path = f"{__name__}:Foreign"
    assert learner_name(Foreign) == path
    assert learner_class(path) is learner_class(Foreign) is Foreign


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("dclt", "there is no learner 'dclt'; known: random, .*my_module:MyClass"),
        ("no_such_module:X", "'no_such_module:X' cannot be imported: No module named"),
        ("json:Nothing", "'json:Nothing' cannot be imported: .*no attribute"),
        ("json:JSONDecoder", "is not a learner"),
        ("taurank.learners:FactorLearner", "is not a learner"),
        (int, "is not a learner"),
        (3, "3 is not a learner"),
        (FactorLearner, "is not a learner"),
    ],
)
def test_what_is_not_a_learner(name: Any, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        learner_class(name)


def test_a_module_that_fails_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_module.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InputError, match="'broken_module:X' cannot be imported: division by zero"):
        learner_class("broken_module:X")


def test_a_namesake_is_never_confused_with_ours(log: Log, tmp_path: Path) -> None:
    options: dict[str, Any] = {"factors": 4, "epochs": 2, "random_state": 0}
    _Namesake(**options).fit(log).save(tmp_path / "theirs")
    OURS(**options).fit(log).save(tmp_path / "ours")
    assert type(load(tmp_path / "theirs")) is _Namesake
    assert type(load(tmp_path / "ours")) is OURS
    assert learner_class(_Namesake) is _Namesake
    assert learner_name(_Namesake) == "elsewhere:DLCE"


MODULE = (
    "import pathlib\n"
    "from taurank.learners import Popular\n"
    "pathlib.Path(__file__).with_name('imported').touch()\n"
    "class Mine(Popular):\n"
    "    class Inner(Popular): pass\n"
)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package and models of its classes, written by another process."""
    folder = tmp_path_factory.mktemp("written")
    package = folder / "some_package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "methods.py").write_text(MODULE)
    code = (
        "import sys, taurank as tr\n"
        "from some_package.methods import Mine\n"
        "log = tr.World.synthetic(20, 8, random_state=0).sample(5, random_state=0).log\n"
        "Mine().fit(log).save('model')\n"
        "Mine.Inner().fit(log).save('inner')\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=folder, check=True)
    (package / "imported").unlink()
    return folder


class TestTrust:
    """A file that names a class of a module which nobody has imported."""

    @pytest.fixture
    def model(self, written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
        shutil.copytree(written, tmp_path, dirs_exist_ok=True)
        monkeypatch.syspath_prepend(tmp_path)
        yield tmp_path / "model"
        for name in [name for name in sys.modules if name.startswith("some_package")]:
            del sys.modules[name]
        for path in [path for path in Learner._registered if path.startswith("some_package")]:
            del Learner._registered[path]

    @pytest.mark.parametrize("trust", [(), ["some"], ["methods"], ["some_package.methods.Mine"], "other"])
    def test_without_trust_nothing_is_imported(self, model: Path, trust: Any) -> None:
        with pytest.raises(InputError, match=r"'some_package.methods:Mine'.*trust=\['some_package.methods'\]"):
            load(model, trust)
        assert not (model.parent / "some_package" / "imported").exists()

    @pytest.mark.parametrize("trust", [["some_package.methods"], "some_package.methods", ("x", "some_package")])
    def test_with_trust(self, model: Path, trust: Any) -> None:
        assert type(load(model, trust=trust)).__name__ == "Mine"
        assert (model.parent / "some_package" / "imported").exists()
        assert type(load(model)).__name__ == "Mine"  # imported already
        assert type(load(model.with_name("inner"))).__qualname__ == "Mine.Inner"

    @pytest.mark.parametrize("name", ["os:system", "json:JSONDecoder"])
    def test_a_class_that_is_not_a_learner(self, log: Log, tmp_path: Path, name: str) -> None:
        Popular().fit(log).save(tmp_path / "model")
        facts, arrays = storage.read(tmp_path / "model", "model")
        storage.write(tmp_path / "model", "model", {**facts, "learner": name}, arrays)
        with pytest.raises(InputError, match="is not a learner"):
            load(tmp_path / "model", trust=["os", "json"])
