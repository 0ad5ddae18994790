"""The event tables of a shop on their way into a database.

A table is walked once, batch by batch: every row is checked, its ids become codes, its time becomes
microseconds and the number of its period. Whatever is wrong in any table is reported at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from taurank.data.columns import (
    ANY_PROPENSITY,
    OUTCOME_VALUE,
    PROPENSITY,
    ColumnRule,
    WrongRows,
    without_dictionary,
)
from taurank.data.events.periods import Microseconds, Periods, in_zone, read_instants, wrong_text
from taurank.data.events.renames import TABLES, Renames
from taurank.data.id_column import IdColumn
from taurank.data.sources import open_table
from taurank.errors import InputError, together

TIMESTAMP = "a timestamp such as 2024-01-31 18:30:00"
_ADVICE = "fill them, or leave these rows out with nulls='drop' (--nulls drop)"
_RAW = "user_code INTEGER, item_code INTEGER, instant BIGINT, period INTEGER, propensity DOUBLE, value DOUBLE"


@dataclass(frozen=True)
class Reading:
    """How tables are read: the periods, the names of columns, the time zone, and what may be wrong in a row."""

    periods: Periods
    renames: Renames
    zone: str | None = None
    nulls: str = "refuse"
    zero_propensity: bool = False  # P = 0 and P = 1 may occur, where a cell is not eligible


class EventTable:
    """One of the tables on its way into the database: ids as codes, time as microseconds.

    All rows are read before it complains, so that a message can say how many are wrong.
    """

    def __init__(self, name: str, data: Any, reading: Reading) -> None:
        self.name, self.reading = name, reading
        try:
            self.source = open_table(data)
        except InputError as error:
            raise InputError(f"{name}: {error}") from error
        self.columns = self._locate()
        self.wrong_rows = WrongRows(_ADVICE)
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

    def _locate(self) -> dict[str, str]:
        """Our columns and those of the source; an error names all that are missing."""
        present = self.source.columns
        columns, missing = self.reading.renames.locate(self.name, present)
        if missing:
            names = " and ".join(f"'{column}'" for column in missing)
            raise InputError(
                f"{self.name} ({self.source.name}) has no column {names}; needed: "
                f"{', '.join(TABLES[self.name][0])}; found: {(', '.join(present) or 'none')[:200]}; "
                f"map other names with columns={{'{missing[0]}': …}} (--columns {missing[0]}=…)."
            )
        return columns

    def _read(self, batch: pa.RecordBatch) -> dict[str, pa.Array]:
        columns = self._whole_rows(batch)
        n = len(next(iter(columns.values())))
        no_codes, no_numbers = pa.nulls(n, pa.int32()), pa.nulls(n, pa.float64())
        instants = self._instants(columns["timestamp"]) if self.has("timestamp") else None
        valid = not self.wrong_rows
        self.n_rows += batch.num_rows
        codes = {name: pa.array(column.add(columns[name])) for name, column in self.ids.items()}
        return {
            "user_code": codes.get("user_id", no_codes),
            "item_code": codes.get("item_id", no_codes),
            "instant": pa.nulls(n, pa.int64()) if instants is None else pa.array(instants),
            "period": no_codes if instants is None or not valid else self.reading.periods.number(instants, self.zone),
            "propensity": self._propensity(columns["propensity"]) if self.has("propensity") else no_numbers,
            "value": self._numbers(columns["value"], OUTCOME_VALUE) if self.has("value") else no_numbers,
        }

    def _whole_rows(self, batch: pa.RecordBatch) -> dict[str, pa.Array]:
        """The columns without the rows that lack something, which are counted."""
        columns = {column: without_dictionary(batch.column(name)) for column, name in self.columns.items()}
        whole = np.ones(batch.num_rows, bool)
        for column, array in columns.items():
            if column != "propensity" and array.null_count:  # a propensity may be null: it was not recorded
                self._count_nulls(column, array)
                whole &= np.asarray(array.is_valid(), dtype=bool)
        if whole.all():
            return columns
        self.n_null += int(np.count_nonzero(~whole))
        return {column: array.filter(pa.array(whole)) for column, array in columns.items()}

    def _count_nulls(self, column: str, array: pa.Array) -> None:
        self.nulls[column] = self.nulls.get(column, 0) + array.null_count
        if self.reading.nulls == "refuse":
            self.wrong_rows.add_nulls(self.label(column), array, self.n_rows)

    def _instants(self, array: pa.Array) -> Microseconds:
        label = self.label("timestamp")
        if not len(array):
            return np.empty(0, np.int64)
        if self.source.text:
            wrong = wrong_text(array)
            if wrong.any():
                self.wrong_rows.add(label, TIMESTAMP, array, wrong)
                return np.zeros(len(array), np.int64)
        instants, own = read_instants(array, label, self.source.text)
        zone = self.reading.zone or own
        if self.n_rows > self.n_null and zone != self.zone and not self.wrong_rows:
            raise InputError(f"column '{label}' has {_zone(self.zone)} in one row and {_zone(zone)} in another.")
        self.zone = zone
        return in_zone(instants, own, self.reading.zone)

    def _propensity(self, array: pa.Array) -> pa.Array:
        rule = ANY_PROPENSITY if self.reading.zero_propensity else PROPENSITY
        return self._numbers(array, rule)

    def _numbers(self, array: pa.Array, rule: ColumnRule) -> pa.Array:
        label, array = self.label(rule.column), self.source.numerals(array)
        return pa.array(rule.read(array, self.wrong_rows, 0, self.source.text, label), from_pandas=True)


def load_tables(database: Any, given: Mapping[str, Any], reading: Reading) -> dict[str, EventTable]:
    """All tables in the database; whatever is wrong in any of them is reported at once."""
    flaws: list[str] = []
    tables: dict[str, EventTable] = {}
    for name, data in given.items():
        try:
            tables[name] = EventTable(name, data, reading)
        except InputError as error:
            flaws.append(str(error))
    flaws += reading.renames.unused() if len(tables) == len(given) else []
    for table in tables.values():
        try:
            table.load(database)
        except InputError as error:
            flaws += table.wrong_rows.sentences() or [str(error)]
    if flaws:
        raise together(flaws)
    _refuse_different_zones([table for table in tables.values() if table.has("timestamp")])
    return tables


def _refuse_different_zones(tables: list[EventTable]) -> None:
    first = tables[0]
    for table in tables[1:]:
        if first.zone != table.zone:
            raise InputError(
                f"column 'timestamp' has {_zone(first.zone)} in {first.name} and {_zone(table.zone)} in "
                f"{table.name}; name one for both with timezone= (--timezone Europe/Berlin)."
            )


def _zone(zone: str | None) -> str:
    return f"the time zone {zone}" if zone else "no time zone"
