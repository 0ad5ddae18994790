"""From the schema of one version of the service to the next.

A new store gets the tables as they are now. An old one is migrated by a command, and never by a server that starts:
others may still work with it, and a backup comes first.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy import select, update

from taurank.serve import tables
from taurank.serve.store import Store

# by the schema that each one leads to; schema 1 is that of taurank 0.1.0
MIGRATIONS: dict[int, Callable[[Operations], None]] = {}


def migrate(address: str) -> int:
    """Bring a store to the schema of this version, wholly or not at all; returns the schema that it had."""
    value, own = tables.settings.c.value, tables.settings.c.name == "schema"
    with closing(Store(address, older=True)) as store, store.write() as connection:
        before = int(connection.scalars(select(value).where(own).with_for_update()).one())  # another one waits here
        operations = Operations(MigrationContext.configure(connection))
        for schema in range(before + 1, tables.SCHEMA_VERSION + 1):
            MIGRATIONS[schema](operations)
        connection.execute(update(tables.settings).where(own).values(value=str(tables.SCHEMA_VERSION)))
    return before
