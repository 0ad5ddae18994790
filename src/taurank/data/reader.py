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
import pyarrow as pa
import pyarrow.compute as pc

from taurank._types import Codes, Floats, Longs, Mask
from taurank.data.cell_table import CATALOG_KEY, ELIGIBILITY_KEY, Numbers, eligibility_from_metadata, from_metadata
from taurank.data.eligibility import Eligibility
from taurank.data.ids import ID_COLUMNS, Catalog, Ids, match_type, narrow_integers, normalize, sorted_ids, typed_ids
from taurank.data.tables import Source, open_table
from taurank.errors import InputError, first_line, plural, show, together

MERGE_AT = 1 << 16
RESEARCH_NAMES = {"user_id": "idx_user", "item_id": "idx_item", "time": "idx_time"}


@dataclass(frozen=True)
class ColumnRule:
    """A number column: its name, the type it is stored in, and which of its values are right."""

    column: str
    dtype: type[np.generic]
    is_right: Callable[[Floats], Mask]  # false for NaN
    must: str  # "column 'treated' must be …"
    required: bool = True
    nullable: bool = False  # a null means "not recorded" and is stored as NaN

    def wrong(self, values: Floats) -> Mask:
        return ~np.asarray(self.is_right(values))

    def error(self, count: int, example: str) -> InputError:
        """The sentence about values that are not what they must be."""
        return InputError(_wrong_values(self.column, self.must, count, example))

    def read(self, array: pa.Array, wrong_rows: WrongRows, rows_before: int, text: bool, label: str = "") -> Floats:
        """The numbers of a batch that begins after ``rows_before`` rows, NaN where a null is allowed.

        What is wrong is counted; ``text`` says that the batch comes from a CSV, ``label`` what messages call the
        column.
        """
        label = label or self.column
        array = without_dictionary(array)
        if not self.nullable:
            wrong_rows.add_nulls(label, array, rows_before)
        known = array.drop_null() if array.null_count else array
        values = to_numbers(known, label, text)
        wrong = self.wrong(values)
        if wrong.any():
            wrong_rows.add(label, self.must, known, wrong)
            values = np.where(wrong, 0.0, values)
        if len(known) < len(array):
            rows = np.full(len(array), np.nan if self.nullable else 0.0)
            rows[np.asarray(array.is_valid(), dtype=bool)] = values
            return rows
        return values


TREATED = ColumnRule("treated", np.int8, lambda values: (values == 0.0) | (values == 1.0), "0 or 1")
OUTCOME = replace(TREATED, column="outcome")
PROPENSITY = ColumnRule(
    "propensity", np.float64, lambda values: (values > 0.0) & (values < 1.0),
    "a probability strictly between 0 and 1", required=False, nullable=True,
)  # fmt: skip
ANY_PROPENSITY = replace(  # where nothing could have been recommended
    PROPENSITY, is_right=lambda values: (values >= 0.0) & (values <= 1.0)
)
VALUE = ColumnRule("value", np.float64, np.isfinite, "a finite number")
OUTCOME_VALUE = ColumnRule(
    "value", np.float64, lambda values: np.isfinite(values) & (values >= 0.0), "a finite number ≥ 0", required=False
)


class WrongRows:
    """The wrong rows of a table: how many of each kind, and the first of them."""

    def __init__(self, advice: str = "fill or drop these rows") -> None:
        self.advice = advice  # about nulls
        self._kinds: dict[tuple[str, str], tuple[int, str]] = {}

    def __bool__(self) -> bool:
        return bool(self._kinds)

    def add_nulls(self, column: str, array: pa.Array, rows_before: int) -> None:
        """Count the nulls of a batch that begins after ``rows_before`` rows."""
        if array.null_count:
            first = int(np.asarray(array.is_null(), dtype=bool).argmax())
            self._add(column, "", array.null_count, f"{rows_before + first + 1:,}")

    def add(self, column: str, must: str, array: pa.Array, wrong: Mask) -> None:
        """Count the values of a batch that are not what they must be."""
        if wrong.any():
            self._add(column, must, int(np.count_nonzero(wrong)), show(array[int(wrong.argmax())]))

    def _add(self, column: str, must: str, count: int, example: str) -> None:
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
        """Raise an error about all kinds of wrong rows, if there are any."""
        if self:
            raise together(self.sentences())


def _wrong_values(column: str, must: str, count: int, example: str) -> str:
    verb = "is" if count == 1 else "are"
    return f"column '{column}' must be {must}; {plural(count, 'row')} {verb} not, for example {example}."


def without_dictionary(array: pa.Array) -> pa.Array:
    """The values themselves; only then are the nulls of a dictionary nulls of the column."""
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array


def to_numbers(array: pa.Array, column: str, text: bool) -> Floats:
    """Any number column as float64; text that is not a number becomes NaN where ``text`` allows text at all."""
    kind = array.type
    if not text and (pa.types.is_temporal(kind) or pa.types.is_string(kind)):
        raise InputError(f"column '{column}' has type {kind}; it must have numbers.")
    try:
        array = array.cast(pa.int8()) if pa.types.is_boolean(kind) else array
        return np.asarray(array.cast(pa.float64(), safe=False), dtype=np.float64)
    except (pa.ArrowException, ValueError, TypeError) as error:
        if not text:
            raise InputError(f"column '{column}' has type {kind}; it must have numbers.") from error
    encoded = array.dictionary_encode()
    parsed = np.array([_parse(word.lower()) for word in encoded.dictionary.to_pylist()], np.float64)
    return np.asarray(parsed[np.asarray(encoded.indices)])


def _parse(word: str) -> float:
    try:
        return float({"true": "1", "false": "0"}.get(word, word))
    except ValueError:
        return float("nan")


class IdColumn:
    """A column of ids, read batch by batch in time proportional to its rows; ``label`` is its name in messages.

    Every row gets a provisional code; codes are global across batches. The distinct ids of the batches are merged
    when they have doubled, so that each is hashed a bounded number of times and memory stays that of the ids.
    """

    def __init__(self, label: str, wrong_rows: WrongRows) -> None:
        self.label, self.wrong_rows = label, wrong_rows
        self.n_rows = 0
        self._ids: Any = None  # merged so far, an Arrow array from the first batch on
        self._waiting: list[pa.Array] = []
        self._merged: list[Codes] = []  # position in _ids of each provisional code
        self._n_codes = 0

    def add(self, array: pa.Array) -> Codes:
        """The provisional codes of one batch; rows with a null, which are counted, have code 0."""
        ids, codes = _distinct(array, self.label)
        null = np.asarray(ids.is_null(), dtype=bool)
        if null.any():
            self.wrong_rows.add_nulls(self.label, pa.array(codes, mask=null[codes]), self.n_rows)
            codes = np.where(null[codes], 0, codes)
        self.n_rows += len(array)
        self._waiting.append(ids)
        first, self._n_codes = self._n_codes, self._n_codes + len(ids)
        if sum(map(len, self._waiting)) >= max(MERGE_AT, 0 if self._ids is None else len(self._ids)):
            self._merge()
        return (codes + first).astype(np.int32)

    def finish(self) -> tuple[pa.Array, Codes]:
        """All distinct ids, and the position among them of every provisional code."""
        if self._waiting:
            self._merge()
        return narrow_integers(self._ids), np.concatenate(self._merged)

    def _merge(self) -> None:
        known = [] if self._ids is None else [self._ids]
        try:
            parts = _of_one_type([*known, *self._waiting], self.label)
            fresh = pa.concat_arrays(parts[len(known) :])
            self._ids = pc.unique(pa.concat_arrays(parts))
        except pa.ArrowException as error:
            raise InputError(f"column '{self.label}' has more than 2 GiB of text; use shorter ids.") from error
        self._merged.append(np.asarray(pc.index_in(fresh, value_set=self._ids), dtype=np.int32))
        self._waiting = []

    def catalog(
        self, name: str, given: Any = None, recorded: pa.Array | None = None, text: bool = False, id_type: Any = None
    ) -> tuple[Ids, Codes]:
        """The catalog of the column, and the position in it of every provisional code (−1: not in it).

        ``given`` is the caller's own list, and complete. ``recorded`` is what the files carry; ids that occur
        beyond it follow it. Without either: the ids that occur, sorted. ``text`` says that the ids come from a CSV
        and have no type yet; ``id_type`` is the one the caller asks for.
        """
        values, merged = self.finish()
        known = given if given is not None else recorded
        if known is None:
            values = typed_ids(values, id_type, name) if text or id_type else values
            ids = Ids(sorted_ids(pc.unique(values)), name)
        else:
            ids = Ids(known, name)
            values = typed_ids(values, ids.values.type, name) if text else match_type(values, ids)
            if given is None:
                fresh = values.filter(pa.array(ids.encode(values) < 0))
                ids = ids.extended(Ids(sorted_ids(fresh), name)) if len(fresh) else ids
        return ids, ids.encode(values)[merged]


def _distinct(array: pa.Array, label: str) -> tuple[pa.Array, Longs]:
    """The distinct ids of a batch, a null among them if there is one, and the position of each row's."""
    if not pa.types.is_dictionary(array.type):
        encoded = normalize(array, label).dictionary_encode("encode")
        return encoded.dictionary, np.asarray(encoded.indices, dtype=np.int64)
    size = len(array.dictionary)
    indices = np.asarray(array.indices.cast(pa.int64()).fill_null(size))
    used, codes = np.unique(indices, return_inverse=True)  # a dictionary may list ids that no row has
    return normalize(array.dictionary.take(pa.array(used, mask=used == size)), label), codes.astype(np.int64)


def _of_one_type(parts: list[pa.Array], label: str) -> list[pa.Array]:
    """Parts of a column in one type; int64 and uint64 are both integers, anything else must be the same."""
    kinds = list(dict.fromkeys(part.type for part in parts if len(part)))
    if len(kinds) <= 1:
        return [part.cast(kinds[0]) if kinds and part.type != kinds[0] else part for part in parts]
    if all(pa.types.is_integer(kind) for kind in kinds):
        for kind in (pa.int64(), pa.uint64()):
            try:
                return [part.cast(kind) for part in parts]
            except pa.ArrowInvalid:
                pass
    raise InputError(f"column '{label}' has type {kinds[0]} in one file and {kinds[1]} in another; give it one type.")


Given = tuple[Any, Any, Any]  # the caller's users, items and times


@dataclass(frozen=True)
class Rows:
    """What was read: the catalog, three codes per row, and the number columns."""

    catalog: Catalog
    user: Codes
    item: Codes
    time: Codes
    timed: bool
    numbers: dict[str, Numbers]


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
    table = _walk(source, _locate(source, rules, renames or {}), rules)
    recorded = recorded_ids(source)
    lists, rows = {}, {}
    for column, own, known in zip(ID_COLUMNS, given, recorded, strict=True):
        if column in table.ids:
            lists[column], rows[column] = table.encode(column, own, known, (id_types or {}).get(column))
    timed = "time" in lists
    if not timed:
        lists["time"] = _single_time(given[2], recorded[2])
        rows["time"] = np.zeros(len(rows["user_id"]), np.int32)
    catalog = Catalog(*(lists[column] for column in ID_COLUMNS))
    codes = (rows["user_id"], rows["item_id"], rows["time"])
    _check_repeated(catalog, *codes, timed)
    return Rows(catalog, *codes, timed, table.numbers)


def read_ids(source: Source, column: str) -> pa.Array:
    """One id column of a table, row by row, checked and typed like those of a log."""
    if column not in source.columns:
        raise InputError(f"{source.name} has no column '{column}'; found: {', '.join(source.columns)}.")
    ids, codes = _walk(source, {column: column}).encode(column, None, None, None)
    return ids.decode(codes)


def eligible_rows(rows: Rows, visits: Any, candidates: Any, given: Given) -> tuple[Rows, Eligibility]:
    """The rows in eligible cells, and the eligible cells, which tables of visits and candidates name.

    Where ``given`` has no list, ids that occur in a table only follow those of the log. Rows outside are counted,
    and may have any propensity from 0 to 1.
    """
    catalog, tables = rows.catalog, {}
    for name, data in (("visits", visits), ("candidates", candidates)):
        if data is not None:
            catalog, tables[name] = _read_limits(name, data, catalog, rows.timed, given)
    visit, candidate = tables.get("visits"), tables.get("candidates")
    eligible = Eligibility.from_positions(
        catalog,
        None if visit is None else (visit["user_id"], visit.get("time")),
        None if candidate is None else (candidate.get("user_id"), candidate["item_id"], candidate.get("time")),
    )
    inside = eligible.contains(rows.user, rows.item, rows.time)
    if not inside.any():
        raise InputError("no row of the log is in an eligible cell; do visits and candidates have its ids and times?")
    treated, outcome = (int(np.count_nonzero(rows.numbers[name][~inside])) for name in ("treated", "outcome"))
    numbers = {name: values[inside] for name, values in rows.numbers.items()}
    propensity = numbers.get("propensity", np.empty(0))
    wrong = propensity[PROPENSITY.wrong(propensity) & ~np.isnan(propensity)]
    if len(wrong):
        rule = replace(PROPENSITY, must=f"{PROPENSITY.must} in eligible cells")
        raise rule.error(len(wrong), show(wrong[0]))
    kept = Rows(catalog, rows.user[inside], rows.item[inside], rows.time[inside], rows.timed, numbers)
    return kept, replace(eligible, treated_outside=treated, outcomes_outside=outcome)


def _read_limits(
    name: str, data: Any, catalog: Catalog, timed: bool, given: Given
) -> tuple[Catalog, dict[str, Codes]]:
    """A table of visits or candidates as positions in a catalog that has its ids."""
    source = open_table(data)
    needed = {"visits": "user_id", "candidates": "item_id"}[name]
    if needed not in source.columns:
        raise InputError(f"the {name} have no column '{needed}'; found: {', '.join(source.columns)}.")
    if "time" in source.columns and not timed:
        raise InputError(f"the {name} have a column 'time', but the log has none.")
    wanted = [column for column in ID_COLUMNS if column in source.columns and (name, column) != ("visits", "item_id")]
    table = _walk(replace(source, name=f"the table of {name}"), {column: column for column in wanted})
    lists, codes = dict(zip(ID_COLUMNS, catalog.lists, strict=True)), {}
    for column, own in zip(ID_COLUMNS, given, strict=True):
        if column in wanted:
            known = lists[column].values
            fixed = None if own is None else known
            lists[column], codes[column] = table.encode(column, fixed, known, None, f"{name}: ")
    return Catalog(*lists.values()), codes


@dataclass(frozen=True)
class _Walked:
    """The columns of a source: ids, provisional codes of their rows, and numbers."""

    source: Source
    ids: dict[str, IdColumn]
    codes: dict[str, Codes]
    numbers: dict[str, Numbers]

    def encode(self, column: str, given: Any, known: Any, id_type: Any, where: str = "") -> tuple[Ids, Codes]:
        """The catalog of a column and the position of every row in it; an id outside the catalog is refused."""
        ids, positions = self.ids[column].catalog(column, given, known, self.source.text, id_type)
        rows = positions[self.codes.pop(column)]
        if (rows < 0).any():
            values, merged = self.ids[column].finish()
            example = values[int(merged[int(np.argmax(positions < 0))])]
            raise InputError(f"{where}{ids.unknown(int(np.count_nonzero(rows < 0)), example)}")
        return ids, rows


def _walk(source: Source, names: Mapping[str, str], rules: Iterable[ColumnRule] = ()) -> _Walked:
    """All rows of some columns; wrong rows are refused when all have been read."""
    wrong_rows = WrongRows()
    checked = [rule for rule in rules if rule.column in names]
    ids = {column: IdColumn(column, wrong_rows) for column in names if column not in {r.column for r in checked}}
    parts: dict[str, list[Any]] = {column: [] for column in names}
    n_rows = 0
    for batch in source.batches(names.values()):
        for column, reader in ids.items():
            parts[column].append(reader.add(batch.column(names[column])))
        for rule in checked:
            array = source.numerals(batch.column(names[rule.column]))
            numbers = rule.read(array, wrong_rows, n_rows, source.text)
            parts[rule.column].append(numbers.astype(rule.dtype, copy=False))
        n_rows += batch.num_rows
    wrong_rows.check()
    if not n_rows:
        raise InputError(f"{source.name} has no rows.")
    columns = {column: np.concatenate(parts.pop(column)) for column in names}
    return _Walked(source, ids, columns, {rule.column: columns.pop(rule.column) for rule in checked})


def _locate(source: Source, rules: list[ColumnRule], renames: Mapping[str, str]) -> dict[str, str]:
    """Which column of the source serves each of ours; an error names the missing one."""
    research = "idx_user" in source.columns and "user_id" not in source.columns
    renames = {**(RESEARCH_NAMES if research else {}), **renames}
    required = {"user_id": True, "item_id": True, "time": False, **{rule.column: rule.required for rule in rules}}
    names = {}
    for column, is_required in required.items():
        name = column if column in source.columns else renames.get(column)
        if name in source.columns:
            names[column] = str(name)
        elif is_required:
            one = len(source.columns) == 1 and column in source.columns[0]
            raise InputError(
                f"{source.name} has no column '{column}'; needed: {', '.join(c for c in required if required[c])}; "
                f"found: {(', '.join(source.columns) or 'none')[:200]}."
                f"{' Separate columns by commas, semicolons or tabs.' if one else ''}"
            )
    return names


def recorded_ids(source: Source) -> list[pa.Array | None]:
    """The catalog that files written by ``Log.write`` carry; of several files, their union in order."""
    try:
        texts = dict.fromkeys(metadata.get(CATALOG_KEY) for metadata in source.metadata)
        catalogs = [from_metadata({CATALOG_KEY: text}) for text in texts if text is not None]
        lists = [catalog.lists for catalog in catalogs if catalog is not None]
        return [pc.unique(pa.concat_arrays([ids.values for ids in same])) for same in zip(*lists, strict=True)] or [
            None
        ] * 3
    except (InputError, pa.ArrowException) as error:
        raise InputError(f"{source.name} has a catalog that cannot be used: {first_line(error)}.") from error


def recorded_eligibility(source: Source, catalog: Catalog) -> Eligibility:
    """The eligible cells that files written by ``Log.write`` carry, at their positions in ``catalog``."""
    recorded = {(m.get(CATALOG_KEY), m.get(ELIGIBILITY_KEY)): m for m in source.metadata if ELIGIBILITY_KEY in m}
    if not recorded:
        return Eligibility.everything(catalog)
    if len(recorded) > 1 or not all(ELIGIBILITY_KEY in metadata for metadata in source.metadata):
        raise InputError(f"{source.name} have different eligible cells; read them one at a time.")
    (metadata,) = recorded.values()
    try:
        own = from_metadata(metadata)
        if own is None:
            return Eligibility.everything(catalog)
        eligibility = eligibility_from_metadata(metadata, own)
    except InputError as error:
        raise InputError(f"{source.name} cannot be used: {first_line(error)}.") from error
    return eligibility if own == catalog else eligibility.reindex(catalog, *own.positions_in(catalog))


def _single_time(times: Any, recorded: pa.Array | None) -> Ids:
    """Without a time column all rows belong to one time."""
    if times is None:
        return Ids([0] if recorded is None or len(recorded) != 1 else recorded, "time")
    ids = Ids(times, "time")
    if len(ids) != 1:
        raise InputError(f"times= has {len(ids):,} times, but there is no column 'time'.")
    return ids


def _check_repeated(catalog: Catalog, user: Codes, item: Codes, time: Codes, timed: bool) -> None:
    """One cell, one row: the same user, item and time twice is an error."""
    key = catalog.cell_index(user, item, time)
    key.sort()
    again = key[1:] == key[:-1]
    if not again.any():
        return
    first_time, pair = divmod(int(key[1:][again][0]), catalog.n_users * catalog.n_items)
    codes = (*divmod(pair, catalog.n_items), first_time)
    named = {ids.column: ids.name(code) for ids, code in zip(catalog.lists, codes, strict=True)}
    if not timed:
        del named["time"]
    count = int(np.count_nonzero(again))
    raise InputError(
        f"{plural(count, 'row')} {'repeats' if count == 1 else 'repeat'} an earlier ({', '.join(named)}), "
        f"for example ({', '.join(named.values())}); keep one of each."
    )
