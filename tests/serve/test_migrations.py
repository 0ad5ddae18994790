"""Stores of earlier versions: the first released schema becomes today's, with its rows, on both databases.

``python tests/serve/test_migrations.py`` writes today's schema as a released one, when a version is released.
"""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy import Column, String, create_engine, inspect, select, text
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.schema import CreateIndex, CreateTable

from support.command_line import Command
from support.shop import SetClock, decider, open_shop, visit
from taurank.errors import InputError
from taurank.serve import tables
from taurank.serve.migrations import MIGRATIONS, migrate
from taurank.serve.store import Store

RELEASED = Path(__file__).with_name("released")
SCHEMAS = [1]  # that have been released


def statements(dialect: str) -> str:
    """The statements that make today's tables."""
    kind = {"sqlite": sqlite, "postgresql": postgresql}[dialect].dialect()
    made: list[Any] = [CreateTable(table) for table in tables.metadata.sorted_tables]
    made += [
        CreateIndex(index) for table in tables.metadata.sorted_tables for index in sorted(table.indexes, key=str)
    ]
    lines = (" ".join(str(each.compile(dialect=kind)).split()) for each in made)
    return "".join(f"{line};\n" for line in lines)


def old_store(address: str, schema: int) -> None:
    """A store as that schema's version of taurank has created it."""
    url = address.replace("postgresql://", "postgresql+psycopg://")
    if "://" not in address:
        Path(address).mkdir()
        url = f"sqlite:///{address}/taurank.db"
    engine = create_engine(url)
    with engine.begin() as connection:
        for statement in (RELEASED / f"{schema}.{engine.name}.sql").read_text().split(";\n")[:-1]:
            connection.execute(text(statement))
        rows = [{"name": "schema", "value": str(schema)}, {"name": "salt", "value": "00" * 32}]
        connection.execute(tables.settings.insert(), rows)
    engine.dispose()


@pytest.mark.parametrize("schema", SCHEMAS)
def test_a_released_schema_becomes_todays(address: str, schema: int) -> None:
    old_store(address, schema)
    assert migrate(address) == schema
    store = Store(address)
    with store.read() as connection:
        options = {"compare_server_default": True}
        difference = compare_metadata(MigrationContext.configure(connection, opts=options), tables.metadata)
    assert difference == [], "a change of tables.py needs a new SCHEMA_VERSION and an entry in MIGRATIONS"
    open_shop(store)
    visit(decider(store, clock := SetClock()), clock, np.random.default_rng(0))
    store.close()


@pytest.fixture
def next_schema(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A later version of taurank, whose decisions have a column more; it notes how often it migrates."""
    calls: list[int] = []

    def add_a_channel(operations: Operations) -> None:
        with operations.batch_alter_table("decisions") as batch:
            batch.add_column(Column("channel", String, nullable=False, server_default="web"))
        calls.append(1)

    monkeypatch.setattr(tables, "SCHEMA_VERSION", tables.SCHEMA_VERSION + 1)
    monkeypatch.setitem(MIGRATIONS, tables.SCHEMA_VERSION, add_a_channel)
    return calls


def rows_of(store: Store) -> dict[str, list[Any]]:
    """All rows, by table."""
    return {name: store.rows(select(table)) for name, table in tables.metadata.tables.items()}


def test_a_migration_keeps_all_rows_and_happens_once(
    store: Store, request: pytest.FixtureRequest, taurank: Command
) -> None:
    open_shop(store)
    visit(decider(store, clock := SetClock()), clock, np.random.default_rng(0))
    before = rows_of(store)
    calls = request.getfixturevalue("next_schema")
    for words in (("serve", "--store", store.address), ("server", "--store", store.address, "jobs")):
        assert taurank(*words).refused_with("migrate`")
    threads = [threading.Thread(target=migrate, args=(store.address,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert calls == [1]
    assert "had schema 2, and has schema 2" in taurank("server", "--store", store.address, "migrate").out
    later = Store(store.address)
    after = rows_of(later)
    assert {row.pop("value") for row in after["settings"] if row["name"] == "schema"} == {"2"}
    assert {**after, "settings": 0} == {**before, "settings": 0}
    channels = later.rows(text("SELECT DISTINCT channel FROM decisions"))
    assert channels == [{"channel": "web"}]
    made = decider(later)
    for row in after["decisions"]:
        assert list(made.replay(row)) == [json.loads(row["shown"]), json.loads(row["propensities"])]
    later.close()


def test_a_migration_that_fails_changes_nothing(store: Store, next_schema: list[int]) -> None:
    good = MIGRATIONS[tables.SCHEMA_VERSION]

    def fails(operations: Operations) -> None:
        good(operations)
        raise InputError("not today")

    MIGRATIONS[tables.SCHEMA_VERSION] = fails
    with pytest.raises(InputError, match="not today"):
        migrate(store.address)
    assert store.rows(text("SELECT value FROM settings WHERE name = 'schema'")) == [{"value": "1"}]
    assert "channel" not in {column["name"] for column in inspect(store.engine).get_columns("decisions")}


def test_a_later_schema_is_refused(store: Store) -> None:
    with store.write() as connection:
        connection.execute(tables.settings.update().where(tables.settings.c.name == "schema").values(value="99"))
    for opens in (Store, migrate):
        with pytest.raises(InputError, match=r"schema 99, .* needs 1; install the later version"):
            opens(store.address)


if __name__ == "__main__":
    for name in ("sqlite", "postgresql"):
        (RELEASED / f"{tables.SCHEMA_VERSION}.{name}.sql").write_text(statements(name), encoding="utf-8")
