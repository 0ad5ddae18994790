"""Stores on SQLite and on a real PostgreSQL, small models and a clock that tests can set."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.postgresql import start_postgresql

CLIENTS = ("httpx2", "httpx")  # later versions of Starlette need the first one, earlier ones the second
MISSING = [name for name in ("fastapi", "uvicorn", "sqlalchemy") if find_spec(name) is None]
MISSING += [] if any(map(find_spec, CLIENTS)) else CLIENTS[:1]
collect_ignore_glob = ["test_*.py"] if MISSING else []

if TYPE_CHECKING or not MISSING:
    from closed_loop.simulate import fix_arms
    from support.shop import SetClock
    from taurank.serve.store import Store


def pytest_report_header() -> str:
    return f"tests/serve is left out: {', '.join(MISSING)} not installed" if MISSING else ""


@pytest.fixture(scope="session")
def postgresql() -> Any:
    """A PostgreSQL server, stopped when Python exits."""
    folder = tempfile.mkdtemp(prefix="taurank-pg-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return start_postgresql(folder)


_databases = iter(range(10**6))


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.integration)])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return str(tmp_path / "state")
    server = request.getfixturevalue("postgresql")
    name = f"shop{next(_databases)}"
    server.psql(f"CREATE DATABASE {name};")
    return str(server.get_uri(name))


@pytest.fixture
def store(address: str) -> Iterator[Store]:
    opened = Store(address, create=True)
    fix_arms(opened, 0)
    yield opened
    opened.close()


@pytest.fixture
def sqlite_store(tmp_path: Path) -> Iterator[Store]:
    opened = Store(str(tmp_path / "state"), create=True)
    fix_arms(opened, 0)
    yield opened
    opened.close()


@pytest.fixture
def clock() -> SetClock:
    return SetClock()
