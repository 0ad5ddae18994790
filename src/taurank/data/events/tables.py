"""The event tables of a shop on their way into a database.

A table is walked once, batch by batch: every row is checked, its ids become codes, its time becomes
microseconds and the number of its period. Whatever is wrong in any table is reported at once. When all tables are in,
all ids are known, and their type: only then the codes get their positions in the catalog.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from taurank._checks import check_choice
from taurank._choices import Combine, Incomplete, Nulls
from taurank.data.events.periods import Periods, parse, read_instants
from taurank.data.ids import Ids, to_ids
from taurank.data.reader import ANY_PROPENSITY, VALUE, IdColumn, WrongRows, without_dictionary
from taurank.data.tables import open_table
from taurank.errors import InputError, show, together

# name of the table: the columns it needs, and those it may have
TABLES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "impressions": (("user_id", "item_id", "timestamp"), ("propensity",)),
    "outcomes": (("user_id", "item_id", "timestamp"), ("propensity", "value")),
    "visits": (("user_id", "timestamp"), ()),
    "candidates": (("item_id",), ("user_id", "timestamp")),
    "slates": (("user_id", "item_id", "timestamp", "propensity"), ("slate_id",)),
}
RECTOOLS = {"timestamp": "datetime", "value": "weight"}  # its names, where a table has no timestamp
_RAW = (
    "user_id INTEGER, item_id INTEGER, instant BIGINT, period INTEGER, propensity DOUBLE, value DOUBLE, "
    "slate_id VARCHAR"
)


@dataclass(frozen=True)
class EventOptions:
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


class EventTable:
    """One of the tables on its way into the database: ids as codes, time as microseconds.

    All rows are read before it complains, so that a message can say how many are wrong. P = 0 and P = 1 may occur;
    their cells are set aside. A negative value (or quantity) of an outcome is a return.
    """

    def __init__(self, name: str, data: Any, options: EventOptions, ids: Mapping[str, IdColumn]) -> None:
        self.name, self.options = name, options
        try:
            self.source = open_table(data)
        except InputError as error:
            raise InputError(f"{name}: {error}") from error
        needed, optional = TABLES[name]
        self.columns: dict[str, str] = {}
        for column in (*needed, *optional):  # by the caller's name in this table, else in every table, else by ours
            own, mapped = f"{name}.{column}", options.columns
            names = [mapped.get(own), mapped.get(column), None if own in mapped else column]
            names += [RECTOOLS.get(column)] * ("timestamp" not in self.source.columns)
            if present := [each for each in names if each in self.source.columns]:
                self.columns[column] = present[0]
        self.has_values = "value" in self.columns
        if name == "outcomes" and not self.has_values and "quantity" in self.source.columns:
            self.columns["value"] = "quantity"  # not what an outcome is worth: returns are netted by it
        missing = [column for column in needed if column not in self.columns]
        if missing:
            lacking = " and ".join(f"'{column}'" for column in missing)
            raise InputError(
                f"{name} ({self.source.name}) has no column {lacking}; "
                f"needed: {', '.join(needed)}; found: {(', '.join(self.source.columns) or 'none')[:200]}; "
                f"map other names with columns={{'{missing[0]}': …}} (--columns {missing[0]}=…)."
            )
        if "user_id" in self.columns and "timestamp" not in self.columns:
            raise InputError(f"{name} with a user_id need a timestamp as well; add the column to the table.")
        self.rules = {"propensity": ANY_PROPENSITY, "value": VALUE}
        self.wrong_rows = WrongRows("fill them, or leave these rows out with nulls='drop' (--nulls drop)")
        self.ids = ids
        self.zones: list[str | None] = []  # of each batch
        self.nulls: dict[str, int] = {}  # by column; a row may lack several
        self.n_rows = self.n_null = 0

    def label(self, column: str) -> str:
        """One of our columns by the caller's name for it, as a message says it."""
        return f"{self.name}.{self.columns.get(column, column)}"

    def load(self, database: Any) -> None:
        """Read and check every row; the valid ones go into the table raw_<name>."""
        database.execute(f"CREATE TABLE raw_{self.name} ({_RAW})")
        for batch in self.source.batches(dict.fromkeys(self.columns.values())):
            whole, columns = np.ones(batch.num_rows, bool), {}
            for column, name in self.columns.items():
                columns[column] = array = without_dictionary(batch.column(name))
                if column == "value" and not self.has_values:
                    columns[column] = array = pc.fill_null(array, 1)
                if column != "propensity" and array.null_count:  # a propensity may be null: it was not recorded
                    self.nulls[column] = self.nulls.get(column, 0) + array.null_count
                    if self.options.nulls == "refuse":
                        self.wrong_rows.add_nulls(self.label(column), array)
                    whole &= np.asarray(array.is_valid(), dtype=bool)
            self.n_rows = self.wrong_rows.rows_before = self.n_rows + batch.num_rows
            self.n_null += int(np.count_nonzero(~whole))
            if whole.any():
                rows = {column: array.filter(pa.array(whole)) for column, array in columns.items()}
                database.register("batch", self._read(columns if whole.all() else rows))
                database.execute(f"INSERT INTO raw_{self.name} BY NAME SELECT * FROM batch")
                database.unregister("batch")
        self.wrong_rows.check()
        if self.n_rows == self.n_null:
            what = "no rows" if not self.n_rows else "a null in every row"
            raise InputError(f"{self.name} has {what}; a log needs both impressions and outcomes.")

    def _read(self, columns: Mapping[str, pa.Array]) -> pa.Table:
        rows: dict[str, Any] = {}
        for column, array in columns.items():
            label = self.label(column)
            if column == "timestamp":
                times = parse(array, label) if self.source.text else array
                if isinstance(times, np.ndarray):
                    must, example = "a timestamp such as 2024-01-31 18:30:00", show(array[int(times.argmax())])
                    self.wrong_rows.add(label, must, int(np.count_nonzero(times)), example)
                    times = pa.nulls(len(array), pa.timestamp("us")).fill_null(0)
                rows["instant"], own = read_instants(times, label, self.options.zone)
                self.zones.append(self.options.zone or own)
                rows["period"] = self.options.periods.number(rows["instant"], self.zones[-1])
            elif column in self.ids:
                rows[column] = self.ids[column].add(array, self.wrong_rows, label, self.source.text)
            elif column == "slate_id":
                rows[column] = to_ids(array, label).cast(pa.string())
            else:
                numbers = self.rules[column].read(array, self.wrong_rows, self.source, label)
                rows[column] = pa.array(numbers, from_pandas=True)
        return pa.table(rows)


def load_tables(
    database: Any, given: Mapping[str, Any], options: EventOptions, ids: Mapping[str, IdColumn]
) -> dict[str, EventTable]:
    """All tables in the database; whatever is wrong in any of them is reported at once."""
    problems: list[str] = []
    tables: dict[str, EventTable] = {}
    for name, data in given.items():
        try:
            tables[name] = EventTable(name, data, options, ids)
        except InputError as error:
            problems.append(str(error))
    for key, name in options.columns.items():
        own = [table.columns.get(key.removeprefix(f"{table.name}.")) for table in tables.values()]
        if len(tables) == len(given) and name not in own:
            ours = dict.fromkeys(column for columns in TABLES.values() for each in columns for column in each)
            problems.append(
                f"columns maps '{key}' to '{name}', but no table has such a column; it maps {', '.join(ours)}, or "
                "one of them in one table such as outcomes.timestamp, to the name of a column."
            )
    zones: dict[str, str] = {}
    for table in tables.values():
        try:
            table.load(database)
        except InputError as error:
            problems += table.wrong_rows.sentences() or [str(error)]
        for zone in table.zones:
            zones.setdefault(f"the time zone {zone}" if zone else "no time zone", table.name)
    if not problems and len(zones) > 1:
        (zone, name), (other_zone, other), *_ = zones.items()
        problems.append(
            f"column 'timestamp' has {zone} in {name} and {other_zone} in {other}; "
            "name one for all with timezone= (--timezone Europe/Berlin)."
        )
    if problems:
        raise together(problems)
    return tables


def merge_ids(database: Any, ids: IdColumn, given: Any, id_type: Any) -> Ids:
    """The catalog of a column over all tables; the table <column>_codes gets the position of every code."""
    catalog, positions = ids.encode(given, id_type=id_type)
    database.register("batch", pa.table({"code": np.arange(len(positions)), "position": positions}))
    database.execute(f"CREATE TABLE {ids.column}_codes AS FROM batch")
    database.unregister("batch")
    return catalog
