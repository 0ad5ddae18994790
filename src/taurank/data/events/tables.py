"""The event tables of a shop on their way into a database.

A table is walked once, batch by batch: every row is checked, its ids become codes, its time becomes
microseconds and the number of its period. The catalogue is made when both tables are in, since only then all
ids are known, and for a CSV their type.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from taurank.data.columns import PROPENSITY, WrongRows, to_numbers, without_dictionary
from taurank.data.events.periods import Microseconds, Periods, read_instants, wrong_text
from taurank.data.id_column import IdColumn, sorted_ids, typed_ids
from taurank.data.ids import Codes, Ids
from taurank.data.sources import from_files, from_frame
from taurank.errors import InputError, plural, show

TIMESTAMP = "a timestamp such as 2024-01-31 18:30:00"


class EventTable:
    """One of the two tables on its way into the database: ids as codes, time as microseconds.

    All rows are read before it complains, so that a message can say how many are wrong.
    """

    def __init__(self, name: str, data: Any, periods: Periods) -> None:
        self.name, self.periods = name, periods
        try:
            self.source = from_files(data) if isinstance(data, (str, os.PathLike)) else from_frame(data)
        except InputError as error:
            raise InputError(f"{name}: {error}") from error
        self.columns = self._locate()
        self.wrong_rows = WrongRows()
        self.ids = {column: IdColumn(f"{name}.{column}", self.wrong_rows) for column in ("user_id", "item_id")}
        self.zone: str | None = None
        self.n_rows = 0

    @property
    def has_propensity(self) -> bool:
        return "propensity" in self.columns

    def load(self, database: Any) -> EventTable:
        """Read and check every row; the valid ones go into the table raw_<name>."""
        types = "user_code INTEGER, item_code INTEGER, instant BIGINT, period INTEGER, propensity DOUBLE"
        database.execute(f"CREATE TABLE raw_{self.name} ({types})")
        for batch in self.source.batches(self.columns):
            database.register("batch", pa.table(self._read(batch)))
            database.execute(f"INSERT INTO raw_{self.name} SELECT * FROM batch")
            database.unregister("batch")
        self.wrong_rows.refuse()
        if not self.n_rows:
            raise InputError(f"{self.name} has no rows; a log needs both impressions and outcomes.")
        return self

    def _locate(self) -> list[str]:
        needed, columns = ("user_id", "item_id", "timestamp"), self.source.columns
        for column in needed:
            if column not in columns:
                raise InputError(
                    f"{self.name} ({self.source.name}) has no column '{column}'; needed: "
                    f"{', '.join(needed)}; found: {(', '.join(columns) or 'none')[:200]}."
                )
        return [*needed, *(["propensity"] if "propensity" in columns else [])]

    def _read(self, batch: pa.RecordBatch) -> dict[str, pa.Array]:
        columns = self._whole_rows(batch)
        instants = self._instants(columns["timestamp"])
        n, valid = len(instants), not self.wrong_rows
        self.n_rows += batch.num_rows
        return {
            "user_code": pa.array(self.ids["user_id"].add(columns["user_id"])),
            "item_code": pa.array(self.ids["item_id"].add(columns["item_id"])),
            "instant": pa.array(instants),
            "period": self.periods.number(instants, self.zone) if valid else pa.nulls(n, pa.int32()),
            "propensity": self._propensity(columns) if self.has_propensity else pa.nulls(n, pa.float64()),
        }

    def _whole_rows(self, batch: pa.RecordBatch) -> dict[str, pa.Array]:
        """The columns without the rows that have a null anywhere, which are counted."""
        columns = {column: without_dictionary(batch.column(column)) for column in self.columns}
        whole = np.ones(batch.num_rows, bool)
        for column, array in columns.items():
            self.wrong_rows.add_nulls(f"{self.name}.{column}", array, self.n_rows)
            whole &= np.asarray(array.is_valid(), dtype=bool)
        if whole.all():
            return columns
        return {column: array.filter(pa.array(whole)) for column, array in columns.items()}

    def _instants(self, array: pa.Array) -> Microseconds:
        label = f"{self.name}.timestamp"
        if not len(array):
            return np.empty(0, np.int64)
        if self.source.text:
            wrong = wrong_text(array)
            if wrong.any():
                self.wrong_rows.add(label, TIMESTAMP, array, wrong)
                return np.zeros(len(array), np.int64)
        instants, zone = read_instants(array, label, self.source.text)
        if self.n_rows and zone != self.zone and not self.wrong_rows:
            raise InputError(f"column '{label}' has {_zone(self.zone)} in one row and {_zone(zone)} in another.")
        self.zone = zone
        return instants

    def _propensity(self, columns: Mapping[str, pa.Array]) -> pa.Array:
        array, label = columns["propensity"], f"{self.name}.propensity"
        values = to_numbers(array, label, self.source.text)
        self.wrong_rows.add(label, PROPENSITY.must, array, PROPENSITY.wrong(values))
        return pa.array(values)


def refuse_different_zones(impressions: EventTable, outcomes: EventTable) -> None:
    if impressions.zone != outcomes.zone:
        raise InputError(
            f"column 'timestamp' has {_zone(impressions.zone)} in impressions and {_zone(outcomes.zone)} in "
            "outcomes; give both tables the same time zone, or none."
        )


def merge_ids(database: Any, tables: list[EventTable], column: str, given: Any, id_types: Mapping[str, Any]) -> Ids:
    """The catalogue of a column over both tables; the database gets the position of every code in it."""
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
    """The ids of both tables in one type: that of the table that has types, or what both CSVs can be."""
    typed = [values.type for values, table in zip(lists, tables, strict=True) if not table.source.text]
    if kind is None:
        kind = typed[0] if typed else typed_ids(pc.unique(pa.concat_arrays(lists)), None, column).type
    parts = [
        typed_ids(values, kind, column) if table.source.text else values
        for values, table in zip(lists, tables, strict=True)
    ]
    if len(typed) == 2 and typed[0] != typed[1]:
        raise InputError(
            f"column '{column}' has {typed[0]} ids such as {show(lists[0][0])} in impressions, but "
            f"{typed[1]} ids such as {show(lists[1][0])} in outcomes; give both the same type."
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


def _zone(zone: str | None) -> str:
    return f"the time zone {zone}" if zone else "no time zone"
