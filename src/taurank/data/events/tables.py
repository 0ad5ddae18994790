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
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from taurank.data.events.periods import Microseconds, Periods, read_instants, wrong_text
from taurank.data.ids import Ids, normalize
from taurank.data.reader import not_probability, sorted_ids, to_numbers, typed_ids
from taurank.data.sources import from_files, from_frame
from taurank.errors import InputError, show


class EventTable:
    """One of the two tables on its way into the database: ids as codes, time as microseconds.

    All rows are looked at before it complains, so that a message can say how many are wrong.
    """

    def __init__(self, name: str, data: Any, cut: Periods) -> None:
        self.name, self.cut = name, cut
        try:
            self.source = from_files(data) if isinstance(data, (str, os.PathLike)) else from_frame(data)
        except InputError as error:
            raise InputError(f"{name}: {error}") from error
        self.columns = self._locate()
        self.ids = {column: _SeenIds(f"{name}.{column}") for column in ("user_id", "item_id")}
        self.zone: str | None = None
        self.n_rows = 0
        self.flaws: dict[str, tuple[int, str]] = {}  # sentence with a gap for the count -> count, example

    @property
    def has_propensity(self) -> bool:
        return "propensity" in self.columns

    def load(self, database: Any) -> EventTable:
        """Read and check every row; what is right goes into the table raw_<name>."""
        types = "user_code INTEGER, item_code INTEGER, instant BIGINT, period INTEGER, propensity DOUBLE"
        database.execute(f"CREATE TABLE raw_{self.name} ({types})")
        for batch in self.source.batches(self.columns):
            database.register("batch", pa.table(self._read(batch)))
            database.execute(f"INSERT INTO raw_{self.name} SELECT * FROM batch")
            database.unregister("batch")
        for sentence, (count, example) in self.flaws.items():
            raise InputError(sentence.format(count=f"{count:,}", example=example))
        if not self.n_rows:
            raise InputError(f"{self.name} has no rows; a log needs both impressions and outcomes.")
        return self

    def _locate(self) -> list[str]:
        needed, found = ("user_id", "item_id", "timestamp"), self.source.columns
        for column in needed:
            if column not in found:
                raise InputError(
                    f"{self.name} ({self.source.name}) has no column '{column}'; needed are "
                    f"{', '.join(needed)}, found: {(', '.join(found) or 'none')[:200]}."
                )
        return [*needed, *(["propensity"] if "propensity" in found else [])]

    def _read(self, batch: pa.RecordBatch) -> dict[str, pa.Array]:
        columns = self._whole_rows(batch)
        instants = self._instants(columns["timestamp"])
        n, sound = len(instants), not self.flaws
        self.n_rows += batch.num_rows
        return {
            "user_code": self.ids["user_id"].codes(columns["user_id"]),
            "item_code": self.ids["item_id"].codes(columns["item_id"]),
            "instant": pa.array(instants),
            "period": self.cut.number(instants, self.zone) if sound else pa.nulls(n, pa.int32()),
            "propensity": self._propensity(columns) if self.has_propensity else pa.nulls(n, pa.float64()),
        }

    def _whole_rows(self, batch: pa.RecordBatch) -> dict[str, pa.Array]:
        """The columns without the rows that have a null anywhere, which are noted."""
        columns = {column: _plain(batch.column(column)) for column in self.columns}
        whole = np.ones(batch.num_rows, bool)
        for column, array in columns.items():
            if array.null_count:
                null = np.asarray(array.is_null(), dtype=bool)
                whole &= ~null
                sentence = "has {count} null values, the first in row {example}; fill or drop these rows."
                self._note(column, sentence, array.null_count, str(self.n_rows + int(null.argmax()) + 1))
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
                self._note_wrong("timestamp", "timestamps such as 2024-01-31 18:30:00", array, wrong)
                return np.zeros(len(array), np.int64)
        instants, zone = read_instants(array, label, self.source.text)
        if self.n_rows and zone != self.zone and not self.flaws:
            raise InputError(f"column '{label}' has {_clock(self.zone)} here and {_clock(zone)} there.")
        self.zone = zone
        return instants

    def _propensity(self, columns: Mapping[str, pa.Array]) -> pa.Array:
        array = columns["propensity"]
        values = to_numbers(array, f"{self.name}.propensity", self.source.text)
        wrong = not_probability(values)
        if wrong.any():
            self._note_wrong("propensity", "probabilities strictly between 0 and 1", array, wrong)
        return pa.array(values)

    def _note_wrong(self, column: str, must: str, array: pa.Array, wrong: npt.NDArray[np.bool_]) -> None:
        sentence = f"must hold {must}, but {{count}} rows do not, for example {{example}}."
        example = show(array[int(np.flatnonzero(wrong)[0])])
        self._note(column, sentence, int(np.count_nonzero(wrong)), example)

    def _note(self, column: str, sentence: str, count: int, example: str) -> None:
        sentence = f"column '{self.name}.{column}' {sentence}"
        known, first = self.flaws.get(sentence, (0, example))
        self.flaws[sentence] = (known + count, first)


class _SeenIds:
    """The ids of a column in order of first sight."""

    def __init__(self, label: str) -> None:
        self.label = label
        self.values: Any = None  # an Arrow array from the first batch on

    def codes(self, array: pa.Array) -> pa.Array:
        """Positions of these ids among those seen so far, new ones included."""
        array = normalize(array, self.label)
        if self.values is None:
            self.values = array.slice(0, 0)
        if self.values.type != array.type:
            raise InputError(
                f"column '{self.label}' is {self.values.type} in one file and {array.type} in another; "
                "give it one type."
            )
        codes = pc.index_in(array, value_set=self.values)
        return self._with_new(array, codes) if codes.null_count else codes

    def _with_new(self, array: pa.Array, codes: pa.Array) -> pa.Array:
        """Codes after those known for the ids that have none yet."""
        missing = codes.is_null()
        unknown = array.filter(missing)
        fresh = pc.unique(unknown)
        start = pa.scalar(len(self.values), pa.int32())
        self.values = pa.concat_arrays([self.values, fresh])
        return pc.replace_with_mask(codes, missing, pc.add(pc.index_in(unknown, value_set=fresh), start))


def refuse_two_clocks(shown: EventTable, happened: EventTable) -> None:
    if shown.zone != happened.zone:
        raise InputError(
            f"column 'timestamp' has {_clock(shown.zone)} in impressions and {_clock(happened.zone)} in "
            "outcomes; give both tables the same time zone, or none."
        )


def unite(database: Any, tables: list[EventTable], column: str, given: Any, id_types: Mapping[str, Any]) -> Ids:
    """The catalogue of a column over both tables; the database learns the position of every code in it."""
    own = None if given is None else Ids(given, column)
    parts = _one_kind(tables, column, id_types.get(column) if own is None else own.values.type)
    ids = own if own is not None else Ids(sorted_ids(pc.unique(pa.concat_arrays(parts))), column)
    for table, values in zip(tables, parts, strict=True):
        positions = ids.encode(values)
        codes = np.arange(len(positions), dtype=np.int32)
        database.register("batch", pa.table({"code": pa.array(codes), "position": pa.array(positions)}))
        database.execute(f"CREATE TABLE {table.name}_{column} AS SELECT * FROM batch")
        database.unregister("batch")
        _refuse_unknown(database, table, column, ids, values.filter(pa.array(positions < 0)))
    return ids


def _one_kind(tables: list[EventTable], column: str, kind: Any) -> list[pa.Array]:
    """The ids of both tables in one type: that of the table that has types, or what both CSVs can be."""
    seen = [table.ids[column].values for table in tables]
    typed = [values.type for values, table in zip(seen, tables, strict=True) if not table.source.text]
    if kind is None:
        kind = typed[0] if typed else typed_ids(pc.unique(pa.concat_arrays(seen)), None, column).type
    parts = [
        typed_ids(values, kind, column) if table.source.text else values
        for values, table in zip(seen, tables, strict=True)
    ]
    if len(typed) == 2 and typed[0] != typed[1]:
        raise InputError(
            f"column '{column}' holds {typed[0]} ids such as {show(seen[0][0])} in impressions, but "
            f"{typed[1]} ids such as {show(seen[1][0])} in outcomes; make both the same kind."
        )
    return parts


def _refuse_unknown(database: Any, table: EventTable, column: str, ids: Ids, unknown: pa.Array) -> None:
    if not len(unknown):
        return
    code = column.replace("_id", "_code")
    known = f"raw_{table.name} JOIN {table.name}_{column} ON {code} = code"
    rows = database.execute(f"SELECT count(*) FROM {known} WHERE position < 0").fetchall()[0][0]
    raise InputError(
        f"column '{table.name}.{column}': {rows:,} rows have an id that is not in the given catalogue of "
        f"{len(ids):,}, for example {show(unknown[0])}; add it to the catalogue or drop these rows."
    )


def _plain(array: pa.Array) -> pa.Array:
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array


def _clock(zone: str | None) -> str:
    return f"the time zone {zone}" if zone else "no time zone"
