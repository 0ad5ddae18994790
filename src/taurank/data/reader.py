"""Rows that belong to cells (user, item, time): read once, checked once, stored as dense integers.

A ``Log`` and ``Gains`` are both such rows; they differ in their number columns. The reader walks a source
batch by batch and stores only integer codes and numbers, so its memory is that of the result. All rows are
read before it complains, so that a message can say how many are wrong. Tables of visits and candidates, which limit
the rows of a log to eligible cells, are read in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from taurank._types import Codes, Floats, Longs, Mask
from taurank.data.cell_table import CATALOG_KEY, ELIGIBILITY_KEY, Numbers, from_metadata
from taurank.data.eligibility import Eligibility
from taurank.data.ids import ID_COLUMNS, Catalog, Ids, to_ids, typed_ids
from taurank.data.tables import Source, open_table
from taurank.errors import InputError, first_line, plural, show, together

RESEARCH_NAMES = {"user_id": "idx_user", "item_id": "idx_item", "time": "idx_time"}

Given = tuple[Any, Any, Any]  # the caller's users, items and times


@dataclass(frozen=True)
class ColumnRule:
    """A number column: its name, the type it is stored in, and which of its values are right."""

    column: str
    dtype: type[np.generic]
    is_right: Callable[[Floats], Mask]  # false for NaN
    must: str  # "column 'treated' must be …"
    required: bool = True
    nullable: bool = False  # a null means "not recorded" and is stored as NaN

    def check(self, values: Floats) -> None:
        wrong = ~np.asarray(self.is_right(values))
        if wrong.any():
            raise InputError(_wrong_values(self.column, self.must, int(wrong.sum()), show(values[wrong][0])))

    def read(self, array: pa.Array, wrong_rows: WrongRows, source: Source, label: str = "") -> Floats:
        """The numbers of a batch, NaN where there is a null; what is wrong is counted under the ``label``."""
        label = label or self.column
        array = without_dictionary(array)
        if not self.nullable:
            wrong_rows.add_nulls(label, array)
        known = array.drop_null() if array.null_count else array
        values = to_numbers(known, label, source)
        wrong = ~np.asarray(self.is_right(values))
        if wrong.any():
            wrong_rows.add(label, self.must, int(np.count_nonzero(wrong)), show(known[int(wrong.argmax())]))
            values = np.where(wrong, 0.0, values)
        if len(known) == len(array):
            return values
        rows = np.full(len(array), np.nan if self.nullable else 0.0)
        rows[np.asarray(array.is_valid(), dtype=bool)] = values
        return rows


TREATED = ColumnRule("treated", np.int8, lambda values: (values == 0.0) | (values == 1.0), "0 or 1")
OUTCOME = replace(TREATED, column="outcome")
PROPENSITY = ColumnRule(
    "propensity", np.float64, lambda values: (values > 0.0) & (values < 1.0),
    "a probability strictly between 0 and 1", required=False, nullable=True,
)  # fmt: skip
ANY_PROPENSITY = replace(  # where nothing could have been recommended
    PROPENSITY, is_right=lambda values: (values >= 0.0) & (values <= 1.0), must="a probability between 0 and 1"
)
VALUE = ColumnRule("value", np.float64, np.isfinite, "a finite number")
OUTCOME_VALUE = ColumnRule(
    "value", np.float64, lambda values: np.isfinite(values) & (values >= 0.0), "a finite number ≥ 0", required=False
)


class WrongRows:
    """The wrong rows of a table: how many of each kind, and the first of them."""

    def __init__(self, advice: str = "fill or drop these rows") -> None:
        self.advice = advice  # about nulls
        self.rows_before = 0  # of the batch that is being read
        self._kinds: dict[tuple[str, str], tuple[int, str]] = {}

    def add_nulls(self, column: str, array: pa.Array) -> None:
        if array.null_count:
            first = int(np.asarray(array.is_null(), dtype=bool).argmax())
            self.add(column, "", array.null_count, f"{self.rows_before + first + 1:,}")

    def add(self, column: str, must: str, count: int, example: str) -> None:
        before, first = self._kinds.get((column, must), (0, example))
        self._kinds[column, must] = (before + count, first)

    def sentences(self) -> list[str]:
        """What is wrong, one sentence for each kind of wrong row; nulls come first."""
        kinds = sorted(self._kinds.items(), key=lambda kind: kind[0][1] != "")
        return [
            _wrong_values(column, must, count, example)
            if must
            else f"column '{column}' has {plural(count, 'null value')}, the first in row {example}; {self.advice}."
            for (column, must), (count, example) in kinds
        ]

    def check(self) -> None:
        if self._kinds:
            raise together(self.sentences())


def _wrong_values(column: str, must: str, count: int, example: str) -> str:
    verb = "is" if count == 1 else "are"
    return f"column '{column}' must be {must}; {plural(count, 'row')} {verb} not, for example {example}."


def without_dictionary(array: pa.Array) -> pa.Array:
    """The values themselves; only then are the nulls of a dictionary nulls of the column."""
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array


def to_numbers(array: pa.Array, column: str, source: Source) -> Floats:
    """Any number column as float64; of a CSV, text that is not a number becomes NaN."""
    kind, text = array.type, source.text
    array = source.numerals(array) if text else array
    try:
        if not text and (pa.types.is_temporal(kind) or pa.types.is_string(kind)):
            raise TypeError
        array = array.cast(pa.int8()) if pa.types.is_boolean(kind) else array
        return np.asarray(array.cast(pa.float64(), safe=False), dtype=np.float64)
    except (pa.ArrowException, ValueError, TypeError) as error:
        if not text:
            raise InputError(f"column '{column}' has type {kind}; it must have numbers.") from error
    encoded = array.dictionary_encode()
    words = encoded.dictionary.to_pandas().str.lower().replace({"true": "1", "false": "0"})
    numbers = np.asarray(pd.to_numeric(words, errors="coerce"), np.float64)
    return np.asarray(numbers[np.asarray(encoded.indices)])


class IdColumn:
    """A column of ids over the batches of one table, or of several.

    Every row gets a provisional code, which counts the distinct ids of all batches so far. When all are read, the
    type of the ids is known, and ``encode`` returns the catalog and the position of every code in it.
    """

    def __init__(self, column: str) -> None:
        self.column = column
        self._parts: list[tuple[str, pa.Array, bool]] = []  # of each batch: label, distinct ids, text of a CSV
        self._rows: list[Longs] = []  # of each batch: how many rows have each of them
        self._n_codes = 0

    def add(self, array: pa.Array, wrong_rows: WrongRows, label: str = "", text: bool = False) -> Codes:
        """The provisional codes of one batch; a row with a null, which is counted, has any code.

        ``label`` names the column in messages ("outcomes.user_id"); ``text`` of a CSV has no type yet.
        """
        label = label or self.column
        encoded = to_ids(array, label).dictionary_encode()
        wrong_rows.add_nulls(label, encoded.indices)
        codes, first = np.asarray(encoded.indices.fill_null(0)), self._n_codes
        self._parts.append((label, encoded.dictionary, text))
        self._rows.append(np.bincount(codes, minlength=len(encoded.dictionary)))
        self._n_codes += len(encoded.dictionary)
        return (codes + first).astype(np.int32, copy=False)

    def encode(self, given: Any = None, recorded: Any = None, id_type: Any = None) -> tuple[Ids, Codes]:
        """The catalog of the column, and the position in it of every provisional code.

        ``given`` is the caller's own list, and complete. ``recorded`` is what files carry; ids that occur beyond it
        follow it. Without either: the ids that occur, sorted. ``id_type`` is the type that the caller asks for.
        """
        parts = self._parts
        if id_type is not None:
            parts = [(label, typed_ids(ids, id_type, self.column), False) for label, ids, _ in parts]
        known = given if given is not None else recorded
        if known is None:  # the type alone
            typed = [ids for _, ids, text in parts if not text and len(ids)]
            texts = [ids for _, ids, text in parts if text] or [pa.array([], pa.string())]
            known = (typed[0] if typed else typed_ids(pa.concat_arrays(texts), None, self.column))[:1]
        catalog = Ids(known, self.column)
        kind = catalog.values.type
        arrays = [
            typed_ids(ids, kind, self.column) if text else catalog.match_type(ids, label)
            for label, ids, text in parts
        ]
        every = pa.chunked_array(arrays, kind)
        distinct = pc.unique(every)
        if given is None:
            beyond = Ids(distinct.sort(), self.column)
            catalog = beyond if recorded is None else catalog.extended(beyond)
        positions = catalog.encode(distinct)[pc.index_in(every, value_set=distinct).to_numpy()]
        unknown = positions < 0
        if unknown.any():
            labels = np.repeat([label for label, *_ in parts], list(map(len, arrays)))
            example, label = every[int(unknown.argmax())], str(labels[unknown.argmax()])
            n = int(np.concatenate(self._rows)[unknown & (labels == label)].sum())
            table, dot, _ = label.partition(".")
            raise InputError(
                f"{f'{table}: ' if dot else ''}{plural(n, 'row')} {'has' if n == 1 else 'have'} "
                f"{_NOT_GIVEN[self.column]} ({plural(len(catalog), 'id')}), for example {show(example)}; "
                "add it there or drop these rows."
            )
        return catalog, positions


_NOT_GIVEN = {
    "user_id": "a user_id that is not in users=", "item_id": "an item_id that is not in items=",
    "time": "a time that is not in times=",
}  # fmt: skip


@dataclass(frozen=True)
class Rows:
    catalog: Catalog
    user: Codes
    item: Codes
    time: Codes
    timed: bool
    numbers: dict[str, Numbers]
    eligibility: Eligibility  # that the files carry


def read_cells(
    source: Source, given: Given, rules: Iterable[ColumnRule], renames: Mapping[str, str] | None = None,
    id_types: Mapping[str, Any] | None = None,
) -> Rows:  # fmt: skip
    """Read, check and encode the rows of ``source``.

    ``given`` has the caller's users, items and times (None: what the files record, and the ids that occur,
    sorted). ``renames`` maps our column names to those of the source; ``id_types`` types the ids of a CSV.
    """
    rules = list(rules)
    if id_types is not None and not (isinstance(id_types, Mapping) and set(id_types) <= set(ID_COLUMNS)):
        raise InputError(f"id_types maps {', '.join(ID_COLUMNS)} to types such as 'string', got {id_types!r}.")
    ids, columns = _walk(source, _locate(source, rules, renames or {}), rules)
    lists = {}
    for column, own, known in zip(ID_COLUMNS, given, recorded_ids(source), strict=True):
        if column in ids:
            lists[column], positions = ids[column].encode(own, known, (id_types or {}).get(column))
            columns[column] = positions[columns[column]]
        else:
            lists[column] = single_time(own, known)
            columns[column] = np.zeros(len(columns["user_id"]), np.int32)
    catalog = Catalog(*lists.values())
    codes = (columns.pop("user_id"), columns.pop("item_id"), columns.pop("time"))
    key = catalog.cell_index(*codes)
    key.sort()
    if len(again := key[1:][key[1:] == key[:-1]]):
        time, pair = divmod(int(again[0]), catalog.n_users * catalog.n_items)
        cell = zip(catalog.lists, (*divmod(pair, catalog.n_items), time), strict=True)
        named = {own.column: own.name(code) for own, code in cell if own.column in ids}
        raise InputError(
            f"{plural(len(again), 'row')} {'repeats' if len(again) == 1 else 'repeat'} an earlier "
            f"({', '.join(named)}), for example ({', '.join(named.values())}); keep one of each."
        )
    return Rows(catalog, *codes, "time" in ids, columns, _recorded_eligibility(source, catalog))


def single_time(times: Any, recorded: pa.Array | None) -> Ids:
    """Without a time column all rows belong to one time."""
    if times is None:
        return Ids([0] if recorded is None or len(recorded) != 1 else recorded, "time")
    ids = Ids(times, "time")
    if len(ids) != 1:
        raise InputError(f"times= has {len(ids):,} times, but there is no column 'time'.")
    return ids


def read_ids(source: Source, column: str) -> pa.Array:
    """One id column of a table, row by row, checked and typed like those of a log."""
    if column not in source.columns:
        raise InputError(f"{source.name} has no column '{column}'; found: {', '.join(source.columns)}.")
    columns, codes = _walk(source, {column: column})
    ids, positions = columns[column].encode()
    return ids.decode(positions[codes[column]])


def read_limits(
    catalog: Catalog, timed: bool, given: Given, tables: Mapping[str, Any]
) -> tuple[Catalog, Eligibility]:
    """The eligible cells that the tables ``visits`` and ``candidates`` name, and the catalog extended by their ids.

    Where ``given`` has no list, ids that occur in a table only follow those of the log.
    """
    lists = dict(zip(ID_COLUMNS, catalog.lists, strict=True))
    positions: dict[str, dict[str, Any]] = {"visits": {}, "candidates": {}}
    for name, needed in (("visits", "user_id"), ("candidates", "item_id")):
        if tables[name] is None:
            continue
        source = replace(open_table(tables[name]), name=f"the table of {name}")
        if needed not in source.columns:
            raise InputError(f"the {name} have no column '{needed}'; found: {', '.join(source.columns)}.")
        if "time" in source.columns and not timed:
            raise InputError(f"the {name} have a column 'time', but the log has none.")
        wanted = [own for own in ID_COLUMNS if own in source.columns and (name, own) != ("visits", "item_id")]
        ids, codes = _walk(source, dict(zip(wanted, wanted, strict=True)), label=f"{name}.")
        for column in wanted:
            known, complete = lists[column].values, given[ID_COLUMNS.index(column)] is not None
            lists[column], places = ids[column].encode(known if complete else None, known)
            positions[name][column] = places[codes[column]]
    catalog = Catalog(*lists.values())
    visit, candidate = positions["visits"].get, positions["candidates"].get
    return catalog, Eligibility.from_positions(
        catalog, (visit("user_id"), visit("time")), (candidate("user_id"), candidate("item_id"), candidate("time"))
    )


def _walk(
    source: Source, names: Mapping[str, str], rules: Iterable[ColumnRule] = (), label: str = ""
) -> tuple[dict[str, IdColumn], dict[str, Any]]:
    """The columns of ids, and for all rows their provisional codes or numbers; refuses wrong rows at the end."""
    wrong_rows = WrongRows()
    checked = {rule.column: rule for rule in rules if rule.column in names}
    ids = {column: IdColumn(column) for column in names if column not in checked}
    parts: dict[str, list[Any]] = {column: [] for column in names}
    for batch in source.batches(names.values()):
        for column, name in names.items():
            if column in ids:
                codes = ids[column].add(batch.column(name), wrong_rows, label + column, source.text)
                parts[column].append(codes)
            else:
                rule = checked[column]
                numbers = rule.read(batch.column(name), wrong_rows, source)
                parts[column].append(numbers.astype(rule.dtype, copy=False))
        wrong_rows.rows_before += batch.num_rows
    wrong_rows.check()
    if not wrong_rows.rows_before:
        raise InputError(f"{source.name} has no rows.")
    return ids, {column: np.concatenate(parts.pop(column)) for column in names}


def _locate(source: Source, rules: list[ColumnRule], renames: Mapping[str, str]) -> dict[str, str]:
    """Which column of the source serves each of ours; an error names the missing one."""
    research = "idx_user" in source.columns and "user_id" not in source.columns
    renames = {**(RESEARCH_NAMES if research else {}), **renames}
    required = {"user_id": True, "item_id": True, "time": False, **{rule.column: rule.required for rule in rules}}
    names = {column: column if column in source.columns else renames.get(column, "") for column in required}
    names = {column: name for column, name in names.items() if name in source.columns}
    for column in required:
        if required[column] and column not in names:
            one = len(source.columns) == 1 and column in source.columns[0]
            raise InputError(
                f"{source.name} has no column '{column}'; needed: {', '.join(c for c in required if required[c])}; "
                f"found: {(', '.join(source.columns) or 'none')[:200]}."
                f"{' Separate columns by commas, semicolons or tabs.' if one else ''}"
            )
    return names


def recorded_ids(source: Source) -> list[pa.Array | None]:
    """The catalog that files written by ``Log.write`` carry; of several files, their union in order."""
    texts = dict.fromkeys(metadata[CATALOG_KEY] for metadata in source.metadata if CATALOG_KEY in metadata)
    catalogs = [from_metadata({CATALOG_KEY: text}, source.name)[0] for text in texts]
    try:
        lists = zip(*(catalog.lists for catalog in catalogs), strict=True)
        return [pc.unique(pa.concat_arrays([ids.values for ids in same])) for same in lists] or [None, None, None]
    except pa.ArrowException as error:
        raise InputError(f"{source.name} have ids of different types ({first_line(error)}).") from error


def _recorded_eligibility(source: Source, catalog: Catalog) -> Eligibility:
    """The eligible cells that files written by ``Log.write`` carry, at their positions in ``catalog``."""
    texts = {(metadata.get(CATALOG_KEY), metadata.get(ELIGIBILITY_KEY)) for metadata in source.metadata}
    if not any(eligible for _, eligible in texts):
        return Eligibility.everything(catalog)
    if len(texts) > 1:
        raise InputError(f"{source.name} have different eligible cells; read them one at a time.")
    own, eligibility = from_metadata(source.metadata[0], source.name)
    return eligibility if own == catalog else eligibility.reindex(catalog, *own.positions_in(catalog))
