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
from taurank.data.events.periods import Periods, parse, read_instants
from taurank.data.ids import Ids, sorted_ids, typed_ids
from taurank.data.reader import (
    ANY_PROPENSITY,
    OUTCOME_VALUE,
    PROPENSITY,
    IdColumn,
    WrongRows,
    not_in_catalog,
    without_dictionary,
)
from taurank.data.tables import open_table
from taurank.errors import InputError, show, together

# name of the table: the columns it needs, and those it may have
TABLES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "impressions": (("user_id", "item_id", "timestamp"), ("propensity",)),
    "outcomes": (("user_id", "item_id", "timestamp"), ("propensity", "value")),
    "visits": (("user_id", "timestamp"), ()),
    "candidates": (("item_id",), ("user_id", "timestamp")),
}
_RAW = "user_id INTEGER, item_id INTEGER, instant BIGINT, period INTEGER, propensity DOUBLE, value DOUBLE"


@dataclass(frozen=True)
class EventOptions:
    """How tables are read and events matched; ``Log.from_events`` explains every option."""

    periods: Periods
    window: int | None  # microseconds
    combine: str
    columns: Mapping[str, str]
    nulls: str
    zone: str | None
    incomplete: str
    id_types: Mapping[str, Any]

    def __post_init__(self) -> None:
        for name, choices in (("combine", Combine), ("nulls", Nulls), ("incomplete", Incomplete)):
            check_choice(name, getattr(self, name), get_args(choices))
        if not isinstance(self.columns, Mapping):
            raise InputError(
                f"columns must map our names to yours, such as {{'user_id': 'customer'}}, got {self.columns!r}."
            )
        every = {table: (*needed, *optional) for table, (needed, optional) in TABLES.items()}
        ours = list(dict.fromkeys(column for columns in every.values() for column in columns))
        known = {*ours, *(f"{table}.{column}" for table, columns in every.items() for column in columns)}
        for key, name in self.columns.items():
            if key not in known or not isinstance(name, str):
                raise InputError(
                    f"columns has {show(key)}: {show(name)}; it maps {', '.join(ours)}, or one of them in "
                    "one table such as outcomes.timestamp, to the name of a column."
                )

    def locate(self, table: str, present: Sequence[str]) -> dict[str, str]:
        """Our columns and theirs: by a name for this table, by one for every table, or by ours."""
        found: dict[str, str] = {}
        for column in (*TABLES[table][0], *TABLES[table][1]):
            own = f"{table}.{column}"
            names = (self.columns.get(own), self.columns.get(column), None if own in self.columns else column)
            name = next((name for name in names if name in present), None)
            found |= {column: name} if name else {}
        return found


class EventTable:
    """One of the tables on its way into the database: ids as codes, time as microseconds.

    All rows are read before it complains, so that a message can say how many are wrong. ``limited`` by visits or
    candidates, P = 0 and P = 1 may occur, where a cell is not eligible.
    """

    def __init__(self, name: str, data: Any, options: EventOptions, limited: bool) -> None:
        self.name, self.options = name, options
        try:
            self.source = open_table(data)
        except InputError as error:
            raise InputError(f"{name}: {error}") from error
        self.columns = options.locate(name, self.source.columns)
        missing = [column for column in TABLES[name][0] if column not in self.columns]
        if missing:
            names = " and ".join(f"'{column}'" for column in missing)
            raise InputError(
                f"{name} ({self.source.name}) has no column {names}; "
                f"needed: {', '.join(TABLES[name][0])}; found: {(', '.join(self.source.columns) or 'none')[:200]}; "
                f"map other names with columns={{'{missing[0]}': …}} (--columns {missing[0]}=…)."
            )
        if "user_id" in self.columns and "timestamp" not in self.columns:
            raise InputError(f"{name} with a user_id need a timestamp as well; add the column to the table.")
        self.rules = {"propensity": ANY_PROPENSITY if limited else PROPENSITY, "value": OUTCOME_VALUE}
        self.wrong_rows = WrongRows("fill them, or leave these rows out with nulls='drop' (--nulls drop)")
        self.ids: dict[str, IdColumn] = {
            column: IdColumn(self.label(column), self.wrong_rows)
            for column in ("user_id", "item_id")
            if column in self.columns
        }
        self.zones: list[str | None] = []  # of each batch
        self.n_rows = 0
        self.nulls: dict[str, int] = {}  # by column; a row may lack several
        self.n_null = 0

    def label(self, column: str) -> str:
        """One of our columns by the caller's name for it, as a message says it."""
        return f"{self.name}.{self.columns.get(column, column)}"

    def load(self, database: Any) -> None:
        """Read and check every row; the valid ones go into the table raw_<name>."""
        database.execute(f"CREATE TABLE raw_{self.name} ({_RAW})")
        for batch in self.source.batches(dict.fromkeys(self.columns.values())):
            columns = self._whole_rows(batch)
            if len(next(iter(columns.values()))):
                database.register("batch", self._read(columns))
                database.execute(f"INSERT INTO raw_{self.name} BY NAME SELECT * FROM batch")
                database.unregister("batch")
        self.wrong_rows.check()
        if self.n_rows == self.n_null:
            what = "no rows" if not self.n_rows else "a null in every row"
            raise InputError(f"{self.name} has {what}; a log needs both impressions and outcomes.")

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
        self.n_rows += batch.num_rows
        self.n_null += int(np.count_nonzero(~whole))
        return {name: array if whole.all() else array.filter(pa.array(whole)) for name, array in columns.items()}

    def _read(self, columns: dict[str, pa.Array]) -> pa.Table:
        rows: dict[str, Any] = {}
        for column, array in columns.items():
            if column == "timestamp":
                rows["instant"] = self._instants(array)
                rows["period"] = self.options.periods.number(rows["instant"], self.zones[-1])
            elif column in self.ids:
                rows[column] = self.ids[column].add(array)
            else:
                label, array = self.label(column), self.source.numerals(array)
                numbers = self.rules[column].read(array, self.wrong_rows, 0, self.source.text, label)
                rows[column] = pa.array(numbers, from_pandas=True)
        return pa.table(rows)

    def _instants(self, array: pa.Array) -> Longs:
        label = self.label("timestamp")
        times = parse(array, label) if self.source.text else array
        if isinstance(times, np.ndarray):
            self.wrong_rows.add(label, "a timestamp such as 2024-01-31 18:30:00", array, times)
            times = pa.nulls(len(array), pa.timestamp("us")).fill_null(0)
        instants, own = read_instants(times, label, self.options.zone)
        self.zones.append(self.options.zone or own)
        return instants


def load_tables(database: Any, given: Mapping[str, Any], options: EventOptions) -> dict[str, EventTable]:
    """All tables in the database; whatever is wrong in any of them is reported at once."""
    problems: list[str] = []
    tables: dict[str, EventTable] = {}
    for name, data in given.items():
        try:
            tables[name] = EventTable(name, data, options, "visits" in given or "candidates" in given)
        except InputError as error:
            problems.append(str(error))
    for key, name in options.columns.items():
        present = (table.source.columns for table in tables.values() if "." not in key or key.startswith(table.name))
        if len(tables) == len(given) and not any(name in columns for columns in present):
            problems.append(f"columns maps '{key}' to '{name}', but no table has a column '{name}'.")
    for table in tables.values():
        try:
            table.load(database)
        except InputError as error:
            problems += table.wrong_rows.sentences() or [str(error)]
    if problems:
        raise together(problems)
    zones: dict[str | None, str] = {}
    for table in tables.values():
        for zone in table.zones:
            zones.setdefault(zone, table.name)
    if len(zones) > 1:
        (zone, name), (other_zone, other), *_ = zones.items()
        raise InputError(
            f"column 'timestamp' has {_show_zone(zone)} in {name} and {_show_zone(other_zone)} in {other}; "
            "name one for all with timezone= (--timezone Europe/Berlin)."
        )
    return tables


def _show_zone(zone: str | None) -> str:
    return f"the time zone {zone}" if zone else "no time zone"


def merge_ids(database: Any, tables: list[EventTable], column: str, given: Any, id_type: Any) -> Ids:
    """The catalog of a column over all tables.

    All ids get the type of those that are given or have one; else that which the text of all CSVs can be. Table
    <column>_codes gets the position of every code of every table.
    """
    tables = [table for table in tables if column in table.columns]
    columns = [table.ids[column].finish() for table in tables]
    typed = [ids for table, (ids, _) in zip(tables, columns, strict=True) if not table.source.text]
    text = [ids for table, (ids, _) in zip(tables, columns, strict=True) if table.source.text]
    known = given if given is not None else typed[0] if typed else None
    model = Ids(typed_ids(pc.unique(pa.concat_arrays(text)), id_type, column) if known is None else known, column)
    parts = [
        typed_ids(ids, model.values.type, column)
        if table.source.text
        else Ids(model.values, table.label(column)).match_type(ids)
        for table, (ids, _) in zip(tables, columns, strict=True)
    ]
    catalog = Ids(sorted_ids(pc.unique(pa.concat_arrays(parts))), column) if given is None else model
    database.execute(f"CREATE TABLE {column}_codes (source VARCHAR, code INTEGER, position INTEGER)")
    for table, ids, (_, merged) in zip(tables, parts, columns, strict=True):
        positions = catalog.encode(ids)
        database.register("batch", pa.table({"code": np.arange(len(merged)), "position": positions[merged]}))
        database.execute(f"INSERT INTO {column}_codes SELECT '{table.name}', code, position FROM batch")
        database.unregister("batch")
        unknown = ids.filter(pa.array(positions < 0))
        if len(unknown):
            rows = f"raw_{table.name} JOIN {column}_codes ON {column} = code AND source = '{table.name}'"
            n = database.execute(f"SELECT count(*) FROM {rows} WHERE position < 0").fetchall()[0][0]
            raise InputError(f"{table.name}: {not_in_catalog(n, catalog, unknown[0])}")
    return catalog
