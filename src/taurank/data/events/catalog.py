"""The catalog of the event tables, made when all are in: only then all ids are known, and their type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from taurank.data.events.tables import EventTable
from taurank.data.id_column import sorted_ids, typed_ids
from taurank.data.ids import Codes, Ids
from taurank.errors import InputError, plural, show


def merge_ids(database: Any, tables: list[EventTable], column: str, given: Any, id_types: Mapping[str, Any]) -> Ids:
    """The catalog of a column over all tables; the database gets the position of every code in it."""
    tables = [table for table in tables if table.has(column)]
    own = None if given is None else Ids(given, column)
    columns = [table.ids[column].finish() for table in tables]
    kind = id_types.get(column) if own is None else own.values.type
    parts = _of_one_type(tables, [values for values, _ in columns], column, kind)
    ids = own if own is not None else Ids(sorted_ids(pc.unique(pa.concat_arrays(parts))), column)
    for table, values, (_, merged) in zip(tables, parts, columns, strict=True):
        positions = ids.encode(values)
        _store_positions(database, f"{table.name}_{column}", positions[merged])
        _refuse_unknown(database, table, column, ids, values.filter(pa.array(positions < 0)))
    return ids


def _store_positions(database: Any, name: str, positions: Codes) -> None:
    codes = np.arange(len(positions), dtype=np.int32)
    database.register("batch", pa.table({"code": pa.array(codes), "position": pa.array(positions)}))
    database.execute(f"CREATE TABLE {name} AS SELECT * FROM batch")
    database.unregister("batch")


def _of_one_type(tables: list[EventTable], lists: list[pa.Array], column: str, kind: Any) -> list[pa.Array]:
    """The ids of all tables in one type: that of a table that has types, or what all CSVs can be."""
    typed = [(values, table.name) for values, table in zip(lists, tables, strict=True) if not table.source.text]
    if kind is None:
        kind = typed[0][0].type if typed else typed_ids(pc.unique(pa.concat_arrays(lists)), None, column).type
    parts = [
        typed_ids(values, kind, column) if table.source.text else values
        for values, table in zip(lists, tables, strict=True)
    ]
    for values, name in typed[1:]:
        if values.type != typed[0][0].type:
            raise InputError(
                f"column '{column}' has {typed[0][0].type} ids such as {show(typed[0][0][0])} in {typed[0][1]}, but "
                f"{values.type} ids such as {show(values[0])} in {name}; give both the same type."
            )
    return parts


def _refuse_unknown(database: Any, table: EventTable, column: str, ids: Ids, unknown: pa.Array) -> None:
    if not len(unknown):
        return
    code = column.replace("_id", "_code")
    known = f"raw_{table.name} JOIN {table.name}_{column} ON {code} = code"
    rows = database.execute(f"SELECT count(*) FROM {known} WHERE position < 0").fetchall()[0][0]
    given, column = ("users=", "a user_id") if column == "user_id" else ("items=", "an item_id")
    raise InputError(
        f"{plural(rows, 'row')} of {table.name} {'has' if rows == 1 else 'have'} {column} that is not in {given} "
        f"({plural(len(ids), 'id')}), for example {show(unknown[0])}; add it there or drop these rows."
    )
