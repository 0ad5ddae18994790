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

from taurank._types import Codes, Floats, Mask
from taurank.data.cell_table import CATALOG_KEY, ELIGIBILITY_KEY, Numbers, from_metadata
from taurank.data.eligibility import Eligibility
from taurank.data.ids import ID_COLUMNS, Catalog, Ids, to_ids, unite
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
        """The numbers of a batch, NaN where there is a null; what is wrong is counted.

        ``label`` is what messages call the column.
        """
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
    """A column of ids, read batch by batch; ``label`` is its name in messages.

    Every row gets a provisional code, which counts the distinct ids of all batches so far.
    """

    def __init__(self, label: str, wrong_rows: WrongRows) -> None:
        self.label, self.wrong_rows = label, wrong_rows
        self.n_codes = 0
        self._parts: list[pa.Array] = []  # the distinct ids of each batch

    def add(self, array: pa.Array) -> Codes:
        """The provisional codes of one batch; a row with a null, which is counted, has any code."""
        encoded = to_ids(array, self.label).dictionary_encode()
        self.wrong_rows.add_nulls(self.label, encoded.indices)
        codes = np.asarray(encoded.indices.fill_null(0)) + self.n_codes
        self._parts.append(encoded.dictionary)
        self.n_codes += len(encoded.dictionary)
        return codes.astype(np.int32, copy=False)

    def finish(self) -> tuple[pa.Array, Codes]:
        """All distinct ids, and the position among them of every provisional code."""
        kinds = list(dict.fromkeys(part.type for part in self._parts if len(part))) or [pa.string()]
        if len(kinds) > 1:
            raise InputError(
                f"column '{self.label}' has type {kinds[0]} in one file and {kinds[1]} in another; give it one type."
            )
        every = pa.chunked_array([part.cast(kinds[0]) for part in self._parts], kinds[0])
        ids = pc.unique(every)
        return ids, pc.index_in(every, value_set=ids).to_numpy().astype(np.int32, copy=False)

    def encode(
        self, codes: Codes, column: str, given: Any = None, recorded: Any = None, *, text: bool = False,
        id_type: Any = None, where: str = "",
    ) -> tuple[Ids, Codes]:  # fmt: skip
        """The catalog of the column (see ``unite``), and the positions in it of rows with these provisional codes."""
        values, merged = self.finish()
        ids, (values,) = unite(column, [(column, values, text)], given, recorded, id_type)
        positions = ids.encode(values)
        rows = positions[merged][codes]
        if given is not None and (positions < 0).any():
            example = values[int(np.argmax(positions < 0))]
            raise InputError(f"{where}{not_in_catalog(int(np.count_nonzero(rows < 0)), ids, example)}")
        return ids, rows


def not_in_catalog(n: int, ids: Ids, example: Any) -> str:
    """The sentence about ``n`` rows whose ids are not in the caller's list."""
    what = {"user_id": "a user_id that is not in users=", "item_id": "an item_id that is not in items="}
    return (
        f"{plural(n, 'row')} {'has' if n == 1 else 'have'} {what.get(ids.column, 'a time that is not in times=')} "
        f"({plural(len(ids), 'id')}), for example {show(example)}; add it there or drop these rows."
    )


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
    source: Source,
    given: Given,
    rules: Iterable[ColumnRule],
    renames: Mapping[str, str] | None = None,
    id_types: Mapping[str, Any] | None = None,
) -> Rows:
    """Read, check and encode the rows of ``source``.

    ``given`` has the caller's users, items and times (None: what the files record, and the ids that occur,
    sorted). ``renames`` maps our column names to those of the source; ``id_types`` types the ids of a CSV.
    """
    rules = list(rules)
    if id_types is not None and not (isinstance(id_types, Mapping) and set(id_types) <= set(ID_COLUMNS)):
        raise InputError(f"id_types maps {', '.join(ID_COLUMNS)} to types such as 'string', got {id_types!r}.")
    ids, columns = _walk(source, _locate(source, rules, renames or {}), rules)
    timed, lists = "time" in ids, {}
    for column, own, known in zip(ID_COLUMNS, given, recorded_ids(source), strict=True):
        if column in ids:
            lists[column], columns[column] = ids[column].encode(
                columns[column], column, own, known, text=source.text, id_type=(id_types or {}).get(column)
            )
        else:
            lists[column] = single_time(own, known)
            columns[column] = np.zeros(len(columns["user_id"]), np.int32)
    catalog = Catalog(*lists.values())
    codes = (columns.pop("user_id"), columns.pop("item_id"), columns.pop("time"))
    key = catalog.cell_index(*codes)
    key.sort()
    again = key[1:] == key[:-1]
    if again.any():
        raise _repeated_cells(catalog, int(key[1:][again][0]), int(np.count_nonzero(again)), timed)
    return Rows(catalog, *codes, timed, columns, _recorded_eligibility(source, catalog))


def single_time(times: Any, recorded: pa.Array | None) -> Ids:
    """Without a time column all rows belong to one time."""
    if times is None:
        return Ids([0] if recorded is None or len(recorded) != 1 else recorded, "time")
    ids = Ids(times, "time")
    if len(ids) != 1:
        raise InputError(f"times= has {len(ids):,} times, but there is no column 'time'.")
    return ids


def _repeated_cells(catalog: Catalog, cell: int, count: int, timed: bool) -> InputError:
    time, pair = divmod(cell, catalog.n_users * catalog.n_items)
    codes = (*divmod(pair, catalog.n_items), time)
    named = {ids.column: ids.name(code) for ids, code in zip(catalog.lists, codes, strict=True)}
    if not timed:
        del named["time"]
    return InputError(
        f"{plural(count, 'row')} {'repeats' if count == 1 else 'repeat'} an earlier ({', '.join(named)}), "
        f"for example ({', '.join(named.values())}); keep one of each."
    )


def read_ids(source: Source, column: str) -> pa.Array:
    """One id column of a table, row by row, checked and typed like those of a log."""
    if column not in source.columns:
        raise InputError(f"{source.name} has no column '{column}'; found: {', '.join(source.columns)}.")
    columns, codes = _walk(source, {column: column})
    ids, rows = columns[column].encode(codes[column], column, text=source.text)
    return ids.decode(rows)


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
        ids, codes = _walk(source, dict(zip(wanted, wanted, strict=True)))
        for column in wanted:
            known, complete = lists[column].values, given[ID_COLUMNS.index(column)] is not None
            lists[column], positions[name][column] = ids[column].encode(
                codes[column], column, known if complete else None, known, text=source.text, where=f"{name}: "
            )
    catalog = Catalog(*lists.values())
    visit, candidate = positions["visits"].get, positions["candidates"].get
    return catalog, Eligibility.from_positions(
        catalog, (visit("user_id"), visit("time")), (candidate("user_id"), candidate("item_id"), candidate("time"))
    )


def _walk(
    source: Source, names: Mapping[str, str], rules: Iterable[ColumnRule] = ()
) -> tuple[dict[str, IdColumn], dict[str, Any]]:
    """The columns of ids, and for all rows their provisional codes or numbers; refuses wrong rows at the end."""
    wrong_rows = WrongRows()
    checked = {rule.column: rule for rule in rules if rule.column in names}
    ids = {column: IdColumn(column, wrong_rows) for column in names if column not in checked}
    parts: dict[str, list[Any]] = {column: [] for column in names}
    for batch in source.batches(names.values()):
        for column, name in names.items():
            if column in ids:
                parts[column].append(ids[column].add(batch.column(name)))
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
    if not catalogs:
        return [None, None, None]
    try:
        lists = zip(*(catalog.lists for catalog in catalogs), strict=True)
        return [pc.unique(pa.concat_arrays([ids.values for ids in same])) for same in lists]
    except pa.ArrowException as error:
        raise InputError(f"{source.name} have ids of different types ({first_line(error)}).") from error


def _recorded_eligibility(source: Source, catalog: Catalog) -> Eligibility:
    """The eligible cells that files written by ``Log.write`` carry, at their positions in ``catalog``."""
    limited = [metadata for metadata in source.metadata if ELIGIBILITY_KEY in metadata]
    if not limited:
        return Eligibility.everything(catalog)
    texts = {(metadata.get(CATALOG_KEY), metadata[ELIGIBILITY_KEY]) for metadata in limited}
    if len(texts) > 1 or len(limited) < len(source.metadata):
        raise InputError(f"{source.name} have different eligible cells; read them one at a time.")
    own, eligibility = from_metadata(limited[0], source.name)
    return eligibility if own == catalog else eligibility.reindex(catalog, *own.positions_in(catalog))
