"""The event tables of a shop on their way into a database.

A table is walked once, batch by batch: every row is checked, its ids become codes, its time becomes
microseconds and the number of its period. Whatever is wrong in any table is reported at once. When all tables are in,
all ids are known, and their type: only then the codes get their positions in the catalog.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from taurank._checks import check_choice
from taurank._choices import Combine, Incomplete, Nulls
from taurank._types import Longs
from taurank.data.events.periods import Periods, from_local_time, read_instants, wrong_text
from taurank.data.ids import Ids, sorted_ids, typed_ids
from taurank.data.reader import (
    ANY_PROPENSITY,
    OUTCOME_VALUE,
    PROPENSITY,
    ColumnRule,
    IdColumn,
    WrongRows,
    without_dictionary,
)
from taurank.data.tables import open_table
from taurank.errors import InputError, plural, show, together

# name of the table: the columns it needs, and those it may have
TABLES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "impressions": (("user_id", "item_id", "timestamp"), ("propensity",)),
    "outcomes": (("user_id", "item_id", "timestamp"), ("propensity", "value")),
    "visits": (("user_id", "timestamp"), ()),
    "candidates": (("item_id",), ("user_id", "timestamp")),
}
_RAW = "user_code INTEGER, item_code INTEGER, instant BIGINT, period INTEGER, propensity DOUBLE, value DOUBLE"


@dataclass(frozen=True)
class EventOptions:
    """How tables are read and events matched; ``Log.from_events`` explains every option."""

    periods: Periods
    window: int | None  # microseconds
    combine: str
    renames: Renames
    nulls: str
    zone: str | None
    incomplete: str
    id_types: Mapping[str, Any]
    limited: bool  # by visits or candidates: P = 0 and P = 1 may occur, where a cell is not eligible

    def __post_init__(self) -> None:
        for name, choices in (("combine", Combine), ("nulls", Nulls), ("incomplete", Incomplete)):
            check_choice(name, getattr(self, name), get_args(choices))


class Renames:
    """The caller's names of columns: ``{"user_id": "customer", "outcomes.timestamp": "bought_at"}``.

    A name without a table is meant for every table that has such a column; a table that already has ours keeps it.
    """

    def __init__(self, columns: Any) -> None:
        if columns is not None and not isinstance(columns, Mapping):
            raise InputError(
                f"columns must map our names to yours, such as {{'user_id': 'customer'}}, got {columns!r}."
            )
        self.names: dict[str, str] = dict(columns or {})
        self.used: set[str] = set()
        every = {table: (*needed, *optional) for table, (needed, optional) in TABLES.items()}
        ours = list(dict.fromkeys(column for columns in every.values() for column in columns))
        known = {*ours, *(f"{table}.{column}" for table, columns in every.items() for column in columns)}
        for key, name in self.names.items():
            if key not in known or not isinstance(name, str):
                raise InputError(
                    f"columns has {show(key)}: {show(name)}; it maps {', '.join(ours)}, or one of them in "
                    "one table such as outcomes.timestamp, to the name of a column."
                )

    def locate(self, table: str, present: Sequence[str]) -> dict[str, str]:
        """Our columns and theirs, as far as the table has them."""
        found: dict[str, str] = {}
        for column in (*TABLES[table][0], *TABLES[table][1]):
            for key in (f"{table}.{column}", column):
                if self.names.get(key) in present:
                    found.setdefault(column, self.names[key])
                    self.used.add(key)
            if column in present and f"{table}.{column}" not in self.names:
                found.setdefault(column, column)
        return found

    def unused(self) -> list[str]:
        """The sentences about names that no table has."""
        return [
            f"columns maps '{key}' to '{name}', but no table has a column '{name}'."
            for key, name in self.names.items()
            if key not in self.used
        ]


class EventTable:
    """One of the tables on its way into the database: ids as codes, time as microseconds.

    All rows are read before it complains, so that a message can say how many are wrong.
    """

    def __init__(self, name: str, data: Any, options: EventOptions) -> None:
        self.name, self.options = name, options
        try:
            self.source = open_table(data)
        except InputError as error:
            raise InputError(f"{name}: {error}") from error
        self.columns = options.renames.locate(name, self.source.columns)
        missing = [column for column in TABLES[name][0] if column not in self.columns]
        if missing:
            names = " and ".join(f"'{column}'" for column in missing)
            raise InputError(
                f"{name} ({self.source.name}) has no column {names}; "
                f"needed: {', '.join(TABLES[name][0])}; found: {(', '.join(self.source.columns) or 'none')[:200]}; "
                f"map other names with columns={{'{missing[0]}': …}} (--columns {missing[0]}=…)."
            )
        self.wrong_rows = WrongRows("fill them, or leave these rows out with nulls='drop' (--nulls drop)")
        self.ids: dict[str, IdColumn] = {
            column: IdColumn(self.label(column), self.wrong_rows)
            for column in ("user_id", "item_id")
            if column in self.columns
        }
        self.zone: str | None = None
        self.n_rows = 0
        self.nulls: dict[str, int] = {}  # by column; a row may lack several
        self.n_null = 0

    def has(self, column: str) -> bool:
        return column in self.columns

    def label(self, column: str) -> str:
        """One of our columns by the caller's name for it, as a message says it."""
        return f"{self.name}.{self.columns.get(column, column)}"

    def load(self, database: Any) -> None:
        """Read and check every row; the valid ones go into the table raw_<name>."""
        database.execute(f"CREATE TABLE raw_{self.name} ({_RAW})")
        for batch in self.source.batches(dict.fromkeys(self.columns.values())):
            database.register("batch", pa.table(self._read(batch)))
            database.execute(f"INSERT INTO raw_{self.name} SELECT * FROM batch")
            database.unregister("batch")
        self.wrong_rows.check()
        if self.n_rows == self.n_null:
            what = "no rows" if not self.n_rows else "a null in every row"
            raise InputError(f"{self.name} has {what}; a log needs both impressions and outcomes.")

    def _read(self, batch: pa.RecordBatch) -> dict[str, pa.Array]:
        columns = self._whole_rows(batch)
        n = len(next(iter(columns.values())))
        instants = self._instants(columns["timestamp"]) if self.has("timestamp") else None
        right = not self.wrong_rows
        self.n_rows += batch.num_rows
        codes = {name: pa.array(column.add(columns[name])) for name, column in self.ids.items()}
        propensity = ANY_PROPENSITY if self.options.limited else PROPENSITY
        no_codes, no_numbers = pa.nulls(n, pa.int32()), pa.nulls(n, pa.float64())
        return {
            "user_code": codes.get("user_id", no_codes),
            "item_code": codes.get("item_id", no_codes),
            "instant": pa.nulls(n, pa.int64()) if instants is None else pa.array(instants),
            "period": no_codes if instants is None or not right else self.options.periods.number(instants, self.zone),
            "propensity": self._numbers(columns["propensity"], propensity) if self.has("propensity") else no_numbers,
            "value": self._numbers(columns["value"], OUTCOME_VALUE) if self.has("value") else no_numbers,
        }

    def _whole_rows(self, batch: pa.RecordBatch) -> dict[str, pa.Array]:
        """The columns without the rows that lack something, which are counted."""
        columns = {column: without_dictionary(batch.column(name)) for column, name in self.columns.items()}
        whole = np.ones(batch.num_rows, bool)
        for column, array in columns.items():
            if column != "propensity" and array.null_count:  # a propensity may be null: it was not recorded
                self.nulls[column] = self.nulls.get(column, 0) + array.null_count
                if self.options.nulls == "refuse":
                    self.wrong_rows.add_nulls(self.label(column), array, self.n_rows)
                whole &= np.asarray(array.is_valid(), dtype=bool)
        if whole.all():
            return columns
        self.n_null += int(np.count_nonzero(~whole))
        return {column: array.filter(pa.array(whole)) for column, array in columns.items()}

    def _instants(self, array: pa.Array) -> Longs:
        label = self.label("timestamp")
        if not len(array):
            return np.empty(0, np.int64)
        if self.source.text:
            wrong = wrong_text(array)
            if wrong.any():
                self.wrong_rows.add(label, "a timestamp such as 2024-01-31 18:30:00", array, wrong)
                return np.zeros(len(array), np.int64)
        instants, own = read_instants(array, label, self.source.text)
        asked = self.options.zone
        zone = asked or own
        if self.n_rows > self.n_null and zone != self.zone and not self.wrong_rows:
            raise InputError(f"column '{label}' has {_zone(self.zone)} in one row and {_zone(zone)} in another.")
        self.zone = zone
        return instants if asked is None or own is not None else from_local_time(instants, asked)

    def _numbers(self, array: pa.Array, rule: ColumnRule) -> pa.Array:
        label, array = self.label(rule.column), self.source.numerals(array)
        return pa.array(rule.read(array, self.wrong_rows, 0, self.source.text, label), from_pandas=True)


def load_tables(database: Any, given: Mapping[str, Any], options: EventOptions) -> dict[str, EventTable]:
    """All tables in the database; whatever is wrong in any of them is reported at once."""
    problems: list[str] = []
    tables: dict[str, EventTable] = {}
    for name, data in given.items():
        try:
            tables[name] = EventTable(name, data, options)
        except InputError as error:
            problems.append(str(error))
    problems += options.renames.unused() if len(tables) == len(given) else []
    for table in tables.values():
        try:
            table.load(database)
        except InputError as error:
            problems += table.wrong_rows.sentences() or [str(error)]
    if problems:
        raise together(problems)
    first, *others = (table for table in tables.values() if table.has("timestamp"))
    for table in others:
        if first.zone != table.zone:
            raise InputError(
                f"column 'timestamp' has {_zone(first.zone)} in {first.name} and {_zone(table.zone)} in "
                f"{table.name}; name one for both with timezone= (--timezone Europe/Berlin)."
            )
    return tables


def _zone(zone: str | None) -> str:
    return f"the time zone {zone}" if zone else "no time zone"


def merge_ids(database: Any, tables: list[EventTable], column: str, given: Any, id_type: Any) -> Ids:
    """The catalog of a column over all tables; table <name>_<column> gets the position of every code in it."""
    tables = [table for table in tables if table.has(column)]
    own = None if given is None else Ids(given, column)
    columns = [table.ids[column].finish() for table in tables]
    parts = _of_one_type(
        tables, [values for values, _ in columns], column, id_type if own is None else own.values.type
    )
    ids = Ids(sorted_ids(pc.unique(pa.concat_arrays(parts))), column) if own is None else own
    for table, values, (_, merged) in zip(tables, parts, columns, strict=True):
        name, positions = f"{table.name}_{column}", ids.encode(values)
        codes = pa.array(np.arange(len(merged), dtype=np.int32))
        database.register("batch", pa.table({"code": codes, "position": pa.array(positions[merged])}))
        database.execute(f"CREATE TABLE {name} AS SELECT * FROM batch")
        database.unregister("batch")
        unknown = values.filter(pa.array(positions < 0))
        if len(unknown):
            rows = f"raw_{table.name} JOIN {name} ON {column.replace('_id', '_code')} = code WHERE position < 0"
            n = database.execute(f"SELECT count(*) FROM {rows}").fetchall()[0][0]
            what, where = ("a user_id", "users=") if column == "user_id" else ("an item_id", "items=")
            raise InputError(
                f"{plural(n, 'row')} of {table.name} {'has' if n == 1 else 'have'} {what} that is not in {where} "
                f"({plural(len(ids), 'id')}), for example {show(unknown[0])}; add it there or drop these rows."
            )
    return ids


def _of_one_type(tables: list[EventTable], lists: list[pa.Array], column: str, kind: Any) -> list[pa.Array]:
    """The ids of all tables in one type: that of a table that has types, or what all CSVs can be."""
    typed = [(values, table.name) for values, table in zip(lists, tables, strict=True) if not table.source.text]
    for values, name in typed[1:]:
        first, first_name = typed[0]
        if values.type != first.type:
            raise InputError(
                f"column '{column}' has {first.type} ids such as {show(first[0])} in {first_name}, but "
                f"{values.type} ids such as {show(values[0])} in {name}; give both the same type."
            )
    if kind is None:
        kind = typed[0][0].type if typed else typed_ids(pc.unique(pa.concat_arrays(lists)), None, column).type
    return [
        typed_ids(values, kind, column) if table.source.text else values
        for values, table in zip(lists, tables, strict=True)
    ]
