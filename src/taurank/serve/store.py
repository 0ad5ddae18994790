"""The database: SQLite in a folder by default, PostgreSQL by address.

SQLite runs in WAL mode with full synchronization, and every writer starts with BEGIN IMMEDIATE, so that two
processes never deadlock on a lock upgrade. Whatever the database cannot do right now (lost connection, full
disk, lock timeout) becomes ``Unavailable``.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, Table, create_engine, event, insert, inspect, make_url, select
from sqlalchemy.dialects import postgresql
from sqlalchemy.dialects import sqlite as sqlite_dialect
from sqlalchemy.exc import InterfaceError, InternalError, OperationalError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from taurank.errors import InputError, first_line
from taurank.serve import tables

BUSY_SECONDS = 5.0
_RETRY_SECONDS = 0.001
_SECRET_BYTES = 32


class Unavailable(InputError):
    """The same request may succeed later. ``public`` leaves out the reason, which can name the database's address."""

    def __init__(self, public: str, reason: str = "") -> None:
        super().__init__(f"{public}: {reason}." if reason else f"{public}.")
        self.public = public


class NotFound(InputError):
    """A surface or a model that does not exist."""


class Conflict(InputError):
    """A request that is right in itself, but not in the state that a surface is in."""


class Store:
    """Transactions on one database. ``address`` is a folder (SQLite) or ``postgresql://…``.

    Without ``create`` the database must be there, with it there must be none. Its schema must be that of this version
    of taurank, or with ``older`` an earlier one.
    """

    def __init__(self, address: str, create: bool = False, older: bool = False) -> None:
        self.address = address
        self.engine = _engine(address, create)
        try:
            with self.write() as connection:
                if inspect(connection).has_table(tables.settings.name):
                    if create:
                        raise InputError(f"there is a store in '{show_address(address)}' already.")
                elif not create:
                    raise _missing(address)
                else:
                    tables.metadata.create_all(connection)
                    salt = secrets.token_hex(32)  # of the arms; outlives a rotation of the secret
                    first = [{"name": "schema", "value": str(tables.SCHEMA_VERSION)}, {"name": "salt", "value": salt}]
                    connection.execute(insert(tables.settings), first)
                version = int(setting(connection, "schema") or 0)
            has = f"the store has schema {version}, this version of taurank needs {tables.SCHEMA_VERSION}"
            if version > tables.SCHEMA_VERSION:
                raise InputError(f"{has}; install the later version that made it.")
            if version < tables.SCHEMA_VERSION and not older:
                command = f"taurank server --store {show_address(address)} migrate"
                raise InputError(f"{has}; make a backup, then run `{command}`.")
        except BaseException:
            self.close()
            raise

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """A transaction that may write; committed at the end of the block, or not at all."""
        with _unavailable(), self.engine.connect() as plain:
            connection = plain.execution_options(immediate=True)
            with connection.begin():
                yield connection

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A consistent view of the database."""
        with _unavailable(), self.engine.connect() as connection, connection.begin():
            yield connection

    def rows(self, statement: Any) -> list[dict[str, Any]]:
        """The rows of one query."""
        with self.read() as connection:
            return [dict(row) for row in connection.execute(statement).mappings()]

    def close(self) -> None:
        self.engine.dispose()


def setting(connection: Connection, name: str) -> str | None:
    value: str | None = connection.scalar(select(tables.settings.c.value).where(tables.settings.c.name == name))
    return value


def insert_new(connection: Connection, table: Table, rows: Mapping[Any, dict[str, Any]]) -> set[Any]:
    """Insert the rows, by primary key, whose key is not there yet; returns the keys of these."""
    if not rows:
        return set()
    # in one order for all processes: two transactions that insert the same keys do not deadlock
    statement = _insert_or_skip(connection.dialect.name, table)
    inserted = connection.execute(statement, [rows[key] for key in sorted(rows)]).all()
    return {row[0] if len(row) == 1 else tuple(row) for row in inserted}


def upsert(connection: Connection, table: Table, rows: list[dict[str, Any]], add: bool = False) -> None:
    """Insert rows, or replace those with the same primary key; ``add`` to their figures instead."""
    if not rows:
        return
    kind: Any = postgresql if connection.dialect.name == "postgresql" else sqlite_dialect
    statement = kind.insert(table)
    figures = [column for column in table.columns if not column.primary_key]
    new = {column.name: statement.excluded[column.name] for column in figures}
    values = {column.name: column + new[column.name] for column in figures} if add else new
    keys = list(table.primary_key.columns)
    connection.execute(statement.on_conflict_do_update(index_elements=keys, set_=values), rows)


@cache
def _insert_or_skip(dialect: str, table: Table) -> Any:
    kind: Any = postgresql if dialect == "postgresql" else sqlite_dialect
    return kind.insert(table).on_conflict_do_nothing().returning(*table.primary_key.columns)


@contextmanager
def _unavailable() -> Iterator[None]:
    try:
        yield
    except (OperationalError, InterfaceError, InternalError, PoolTimeout) as error:
        if _sqlite_code(error) == sqlite3.SQLITE_ERROR:  # a wrong statement: ours, and no later attempt would succeed
            raise
        reason = first_line(getattr(error, "orig", None) or error)
        raise Unavailable("the database does not answer", reason) from error


def _engine(address: str, create: bool) -> Engine:
    if "://" not in address:
        folder = Path(address)
        if create:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "taurank.db").touch(0o600)  # for its owner only, as the files that SQLite makes beside it
        elif not (folder / "taurank.db").is_file():
            raise _missing(address)
        return _sqlite(folder / "taurank.db")
    if not address.startswith(("postgresql://", "postgresql+psycopg://")):
        raise InputError(f"'{address}' is not a folder or an address such as postgresql://user@host/name.")
    url = address.replace("postgresql://", "postgresql+psycopg://", 1)
    options = {"connect_timeout": 3, "client_encoding": "utf8", "options": f"-c lock_timeout={BUSY_SECONDS}s"}
    try:
        return create_engine(url, pool_pre_ping=True, pool_timeout=5, connect_args=options)
    except (SQLAlchemyError, ImportError, ValueError) as error:
        raise InputError(f"the address of the database cannot be used: {first_line(error)}.") from error


def _missing(address: str) -> InputError:
    place = "the database has no tables of taurank" if "://" in address else f"there is no store in '{address}'"
    return InputError(f"{place}; create it with `taurank server --store {show_address(address)} init`.")


def show_address(address: str) -> str:
    """The address without its password."""
    return make_url(address).render_as_string() if "://" in address else address


def _sqlite(path: Path) -> Engine:
    engine = create_engine(f"sqlite:///{path}", connect_args={"timeout": BUSY_SECONDS}, pool_timeout=5)

    @event.listens_for(engine, "connect")
    def configure(connection: Any, _: Any) -> None:
        connection.isolation_level = None  # transactions are begun below, not by the driver
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        if connection.get_execution_options().get("immediate", False):
            _begin_immediate(connection)
        else:
            connection.exec_driver_sql("BEGIN")

    return engine


def _begin_immediate(connection: Connection) -> None:
    """Take the write lock. SQLite itself would try it ever more rarely, down to every 100 ms."""
    end = time.monotonic() + BUSY_SECONDS
    driver: Any = connection.connection.driver_connection
    driver.execute("PRAGMA busy_timeout=0")
    try:
        while True:
            try:
                connection.exec_driver_sql("BEGIN IMMEDIATE")
                return
            except OperationalError as error:
                if _sqlite_code(error) != sqlite3.SQLITE_BUSY or time.monotonic() >= end:
                    raise
                time.sleep(_RETRY_SECONDS)
    finally:
        driver.execute(f"PRAGMA busy_timeout={round(1000 * BUSY_SECONDS)}")


def _sqlite_code(error: Exception) -> int:
    """The primary result code of SQLite; 0 for other errors."""
    code: int = getattr(getattr(error, "orig", None), "sqlite_errorcode", 0)
    return code & 0xFF


def secret_for(address: str) -> bytes:
    """The secret in TAURANK_SECRET, or in the file ``secret`` of the store's folder, made on first use."""
    text = os.environ.get("TAURANK_SECRET")
    if text is not None:
        return _parse_secret(text, "TAURANK_SECRET")
    if "://" in address:
        raise InputError("set TAURANK_SECRET to 64 hexadecimal digits: a PostgreSQL store has no folder for it.")
    path = Path(address) / "secret"
    try:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as stream:
            stream.write(secrets.token_hex(_SECRET_BYTES))
    except FileExistsError:
        pass
    except OSError as error:
        raise InputError(f"'{path}' cannot be written: {error.strerror}.") from error
    return _parse_secret(path.read_text(encoding="ascii"), str(path))


def _parse_secret(text: str, origin: str) -> bytes:
    try:
        secret = bytes.fromhex(text.strip())
    except ValueError:
        secret = b""
    if len(secret) != _SECRET_BYTES:
        raise InputError(f"the secret in {origin} must be {2 * _SECRET_BYTES} hexadecimal digits.")
    return secret
