"""What comes from files and databases instead of requests: outcomes of the order table, items, and features."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from io import BytesIO
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import BaseModel
from sqlalchemy import Connection, RowMapping, create_engine, delete, select, text
from sqlalchemy.exc import SQLAlchemyError

from taurank.data.features import Features, Table
from taurank.data.tables import open_table
from taurank.errors import InputError, first_line
from taurank.serve import tables
from taurank.serve.decisions import Decider
from taurank.serve.recorder import Write, record
from taurank.serve.schemas import Event
from taurank.serve.settlement import settle_again, settled_periods
from taurank.serve.store import Store, upsert
from taurank.toml import validated

CHUNK = 5_000  # rows per transaction
FEATURES = {"users": "user_id", "items": "item_id"}
_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}

Model = TypeVar("Model", bound=BaseModel)


def rows_of(source: Any, needed: Iterable[str]) -> Iterator[Mapping[str, Any]]:
    """The rows of a file (CSV or Parquet) or a frame."""
    table = open_table(source)
    if missing := [name for name in needed if name not in table.columns]:
        raise InputError(f"{table.name} needs a column '{missing[0]}'; it has {', '.join(table.columns)}.")
    for batch in table.batches(table.columns):
        yield from batch.to_pylist()


def query_rows(address: str, query: str) -> Iterator[RowMapping]:
    """The rows of a query to a database, by its address (sqlite:///shop.db, postgresql://user@host/name)."""
    try:
        engine = create_engine(address.replace("postgresql://", "postgresql+psycopg://", 1))
        with engine.connect() as connection:
            yield from connection.execution_options(yield_per=CHUNK).execute(text(query)).mappings()
        engine.dispose()
    except (SQLAlchemyError, ImportError) as error:
        raise InputError(f"the query failed: {first_line(error)}.") from error


def parsed(rows: Iterable[Any], kind: type[Model]) -> Iterator[list[Model]]:
    """Rows as models, some thousand at a time; columns that the model does not know are left out."""
    chunk: list[Model] = []
    for number, row in enumerate(rows, 1):
        known = {name: _plain(name, row[name]) for name in kind.model_fields if row.get(name) not in (None, "")}
        chunk.append(validated(kind, known, f"row {number}"))
        if len(chunk) == CHUNK:
            yield chunk
            chunk = []
    yield chunk


def _plain(name: str, value: Any) -> Any:
    """A value as a request would have it; a time without a zone is in UTC."""
    try:
        if name in ("time", "until"):
            when = value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
            return (when if when.tzinfo else when.replace(tzinfo=UTC)).isoformat()
        if name == "available":
            return _BOOLEANS.get(str(value).lower(), value)
        return float(value) if name == "value" else value
    except ValueError as error:
        raise InputError(f"'{value}' is not a valid {name}.") from error


def import_outcomes(decider: Decider, rows: Iterable[Any]) -> tuple[int, int, list[str]]:
    """Store outcomes and settle again the periods that got new ones; returns new, known, and these periods.

    Like a repeated request, a repeated import changes nothing.
    """
    new, total, times = 0, 0, []
    for events in parsed(rows, Event):
        if any(event.time is None for event in events):
            raise InputError("every outcome of an import needs a time.")
        write = Write(events=[event.row(0.0) for event in events])
        with decider.store.write() as connection:
            fresh = record(connection, [write])[0].new_events
        new, total = new + fresh, total + len(events)
        times += [row["time"] for row in write.events] if fresh else []
    again = []
    for surface in decider.surfaces.all():
        numbers = {surface.periods.number(time) for time in times}
        for number in sorted(numbers.intersection(settled_periods(decider, surface))):
            period = settle_again(decider, surface.name, surface.periods.start(number), decider.clock())
            again.append(f"{surface.name} {period}")
    return new, total - new, again


def put_features(store: Store, name: str, source: Any) -> int:
    """Store a table of features of "users" or "items" in place of the one before; returns its rows."""
    column = FEATURES[name]
    table = Table.read(source, column)
    stored = pa.table({column: table.ids.cast(pa.string()), **table.columns})
    with store.write() as connection:
        _write_features(connection, name, stored)
    return len(stored)


def _write_features(connection: Connection, name: str, stored: pa.Table) -> None:
    buffer = BytesIO()
    pq.write_table(stored, buffer)
    upsert(connection, tables.features, [{"name": name, "content": buffer.getvalue()}])


def forget_features(connection: Connection, user: str) -> int:
    """Delete a user's row; returns how many there were."""
    own = tables.features.c.name == "users"
    content = connection.scalar(select(tables.features.c.content).where(own))
    if content is None:
        return 0
    stored = pq.read_table(BytesIO(content))
    left = stored.filter(pc.not_equal(stored["user_id"], user))
    if len(left) < len(stored):
        connection.execute(delete(tables.features).where(own))
        if len(left):
            _write_features(connection, "users", left)
    return len(stored) - len(left)


def read_features(store: Store) -> tuple[Features | None, dict[str, list[str]]]:
    """The stored features, and the users and items that they are about; ids without a row get means."""
    found = {row["name"]: pq.read_table(BytesIO(row["content"])) for row in store.rows(select(tables.features))}
    about = {name: table[FEATURES[name]].to_pylist() for name, table in found.items()}
    return Features(**found, impute=True) if found else None, about
