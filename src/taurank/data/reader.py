"""Rows that belong to cells (user, item, time): read once, checked once, kept as dense integers.

A ``Log`` and ``Gains`` are both such rows; they differ in their number columns. The reader walks a source
batch by batch and keeps only integer codes and numbers, so its memory is that of the result. All rows are
looked at before it complains, so that a message can say how many are wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from taurank.data.ids import Catalogue, Codes, Ids, match_type, normalize
from taurank.data.sources import Source
from taurank.errors import InputError, plural, show

ID_COLUMNS = ("user_id", "item_id", "time")
RESEARCH_NAMES = {"user_id": "idx_user", "item_id": "idx_item", "time": "idx_time"}
CATALOGUE_KEY = b"taurank.catalogue"
_TRUTH_WORDS = {"true": 1.0, "false": 0.0}

Numbers = npt.NDArray[Any]


@dataclass(frozen=True)
class ColumnRule:
    """A number column: where it may stand, how it is kept, and which of its values are wrong."""

    column: str
    dtype: type[np.generic]
    wrong: Callable[[npt.NDArray[np.float64]], npt.NDArray[np.bool_]]
    must: str
    required: bool = True


@dataclass(frozen=True)
class Cells:
    """What was read: the catalogue, three codes per row, and the number columns."""

    catalogue: Catalogue
    user: Codes
    item: Codes
    time: Codes
    timed: bool
    numbers: dict[str, Numbers]


Given = tuple[Any, Any, Any]


def read_cells(
    source: Source,
    given: Given,
    rules: Iterable[ColumnRule],
    renames: Mapping[str, str] | None = None,
    id_types: Mapping[str, Any] | None = None,
) -> Cells:
    """Read, check and encode the rows of ``source``.

    ``given`` holds the caller's users, items and times (None: sorted ids that occur, or what the file
    records). ``renames`` maps our column names to those of the source; ``id_types`` types the ids of a CSV.
    """
    rules = list(rules)
    if id_types is not None and not (isinstance(id_types, Mapping) and set(id_types) <= set(ID_COLUMNS)):
        raise InputError(f"id_types maps {', '.join(ID_COLUMNS)} to types such as 'string', not {id_types!r}.")
    names = _locate(source, rules, renames or {})
    ids = {column: _GrowingIds(column) for column in ID_COLUMNS if column in names}
    numbers = {rule.column: _NumberColumn(rule) for rule in rules if rule.column in names}
    for batch in source.batches(names.values()):
        for column, reader in (*ids.items(), *numbers.items()):
            reader.take(batch.column(names[column]), source.text)
    _complain((*ids.values(), *numbers.values()))
    if not ids["user_id"].n_rows:
        raise InputError(f"{source.name} has no rows; a log needs at least one.")
    given = tuple(
        own if own is not None else recorded for own, recorded in zip(given, _recorded(source), strict=True)
    )  # type: ignore[assignment]
    return _assemble(ids, numbers, given, source.text, id_types or {})


def read_ids(source: Source, column: str) -> pa.Array:
    """One id column of a table, row by row, checked and typed like those of a log."""
    if column not in source.columns:
        raise InputError(f"{source.name} has no column '{column}'; found: {', '.join(source.columns)}.")
    reader = _GrowingIds(column)
    for batch in source.batches([column]):
        reader.take(batch.column(column), source.text)
    _complain([reader])
    if not reader.n_rows:
        raise InputError(f"{source.name} has no rows.")
    ids, codes = reader.finish(None, source.text, None)
    return ids.decode(codes)


def _locate(source: Source, rules: list[ColumnRule], renames: Mapping[str, str]) -> dict[str, str]:
    """Which column of the source serves each of ours; an error names the missing one."""
    research = "idx_user" in source.columns and "user_id" not in source.columns
    renames = {**(RESEARCH_NAMES if research else {}), **renames}
    wanted = [("user_id", True), ("item_id", True), ("time", False)]
    wanted += [(rule.column, rule.required) for rule in rules]
    names = {}
    for column, required in wanted:
        name = next((n for n in (column, renames.get(column)) if n in source.columns), None)
        if name is not None:
            names[column] = name
        elif required:
            needed = ", ".join(c for c, need in wanted if need)
            found = ", ".join(source.columns) or "none"
            hint = " Separate columns by commas." if len(source.columns) == 1 and column in source.columns[0] else ""
            raise InputError(
                f"{source.name} has no column '{column}'; needed are {needed}, found: {found[:200]}.{hint}"
            )
    return names


def _recorded(source: Source) -> Given:
    """The catalogue that our own Parquet files carry; of several files, their union in order."""
    texts = [metadata.get(CATALOGUE_KEY) for metadata in source.metadata]
    if not texts or None in texts:
        return None, None, None
    try:
        catalogues = [Catalogue.from_text(text) for text in dict.fromkeys(texts) if text]
        parts = [[c.users.values, c.items.values, c.times.values] for c in catalogues]
        return tuple(pc.unique(pa.concat_arrays(lists)) for lists in zip(*parts, strict=True))  # type: ignore[return-value]
    except (pa.ArrowException, ValueError, KeyError) as error:
        raise InputError(f"{source.name} carries a catalogue that cannot be read.") from error


def _assemble(
    ids: dict[str, _GrowingIds],
    numbers: dict[str, _NumberColumn],
    given: Given,
    text: bool,
    id_types: Mapping[str, Any],
) -> Cells:
    lists, codes = {}, {}
    for column, own in zip(ID_COLUMNS, given, strict=True):
        if column in ids:
            lists[column], codes[column] = ids[column].finish(own, text, id_types.get(column))
    timed = "time" in lists
    if not timed:
        lists["time"] = _single_time(given[2])
        codes["time"] = np.zeros(len(codes["user_id"]), np.int32)
    catalogue = Catalogue(lists["user_id"], lists["item_id"], lists["time"])
    refuse_twice(catalogue, codes["user_id"], codes["item_id"], codes["time"])
    values = {column: reader.finish() for column, reader in numbers.items()}
    return Cells(catalogue, codes["user_id"], codes["item_id"], codes["time"], timed, values)


def _single_time(times: Any) -> Ids:
    """Without a time column all rows belong to one time."""
    ids = Ids([0] if times is None else times, "time")
    if len(ids) != 1:
        raise InputError(f"the catalogue names {len(ids):,} times, but there is no column 'time' to tell them apart.")
    return ids


def refuse_twice(catalogue: Catalogue, user: Codes, item: Codes, time: Codes) -> None:
    """One cell, one row: the same user, item and time twice is an error."""
    if catalogue.n_cells < 2**63:
        key = cell_index(catalogue, user, item, time)
        key.sort()
        twice = int(np.count_nonzero(key[1:] == key[:-1]))
        if not twice:
            return
        first = key[1:][key[1:] == key[:-1]][0]
        first_time, pair = divmod(int(first), catalogue.n_users * catalogue.n_items)
        first_user, first_item = divmod(pair, catalogue.n_items)
    else:
        order = np.lexsort((item, user, time))
        same = (np.diff(item[order]) == 0) & (np.diff(user[order]) == 0) & (np.diff(time[order]) == 0)
        twice = int(np.count_nonzero(same))
        if not twice:
            return
        row = order[1:][same][0]
        first_user, first_item, first_time = int(user[row]), int(item[row]), int(time[row])
    raise InputError(
        f"columns 'user_id', 'item_id' and 'time': a cell stands again in {plural(twice, 'row')}, "
        f"for example user {catalogue.users.name(first_user)}, item {catalogue.items.name(first_item)}, "
        f"time {catalogue.times.name(first_time)}; merge them into one row."
    )


def cell_index(catalogue: Catalogue, user: Codes, item: Codes, time: Codes) -> npt.NDArray[np.int64]:
    """The number of each cell, counted by time, then user, then item."""
    index = time.astype(np.int64)
    index *= catalogue.n_users
    index += user
    index *= catalogue.n_items
    index += item
    return index


class _Reader:
    """Counts what is wrong with a column, remembers the first example, and goes on."""

    def __init__(self, column: str) -> None:
        self.column = column
        self.n_nulls = 0
        self.n_wrong = 0
        self.example: str = ""
        self.must: str = ""

    def take(self, array: pa.Array, text: bool) -> None:
        """Read one batch of the column; ``text`` says that it comes from a CSV."""
        raise NotImplementedError

    def note_nulls(self, array: pa.Array) -> None:
        self.n_nulls += array.null_count

    def sentence(self) -> str | None:
        if self.n_nulls:
            return f"column '{self.column}' has {plural(self.n_nulls, 'null value')}; fill or drop these rows."
        if self.n_wrong:
            return (
                f"column '{self.column}' must hold {self.must}: wrong in {plural(self.n_wrong, 'row')}, "
                f"for example {self.example}."
            )
        return None


class _GrowingIds(_Reader):
    """Codes of an id column in order of first sight; sorted, typed or matched when all rows are in."""

    def __init__(self, column: str) -> None:
        super().__init__(column)
        self.values: Any = None
        self.codes: list[Codes] = []
        self.n_rows = 0

    def take(self, array: pa.Array, text: bool) -> None:
        self.note_nulls(array)
        array = normalize(array, self.column)
        self._grow(pc.unique(array).drop_null())
        codes = pc.index_in(array, value_set=self.values).fill_null(0)
        self.codes.append(np.asarray(codes, dtype=np.int32))
        self.n_rows += len(array)

    def _grow(self, seen: pa.Array) -> None:
        if self.values is None:
            self.values = seen
        elif self.values.type != seen.type:
            raise InputError(
                f"column '{self.column}' is {self.values.type} in one file and {seen.type} in another; "
                "give it one type."
            )
        else:
            fresh = seen.filter(pc.invert(pc.is_in(seen, value_set=self.values)))
            self.values = pa.concat_arrays([self.values, fresh])

    def finish(self, given: Any, text: bool, id_type: Any) -> tuple[Ids, Codes]:
        """The catalogue and the codes in it."""
        codes = np.concatenate(self.codes)
        self.codes.clear()
        values = self.values
        if given is not None:
            ids = Ids(given, self.column)
            known = typed_ids(values, ids.values.type, self.column) if text else match_type(values, ids)
            position = ids.encode(known)
            self._refuse_unknown(position, codes, ids)
        else:
            values = typed_ids(values, id_type, self.column) if text or id_type else values
            ids = Ids(sorted_ids(pc.unique(values)), self.column)
            position = ids.encode(values)
        return ids, position[codes]

    def _refuse_unknown(self, position: Codes, codes: Codes, ids: Ids) -> None:
        unknown = position < 0
        if unknown.any():
            rows = int(np.count_nonzero(unknown[codes]))
            raise ids.unknown(rows, self.values[int(np.flatnonzero(unknown)[0])])


def sorted_ids(values: pa.Array) -> pa.Array:
    return values.take(pc.array_sort_indices(values))


def typed_ids(values: pa.Array, id_type: Any, column: str) -> pa.Array:
    """Ids that came as text in the type asked for; unasked, integers if all are written as integers are."""
    if id_type is None:
        try:
            whole = values.cast(pa.int64())
        except pa.ArrowInvalid:
            return values
        return whole if whole.cast(values.type).equals(values) else values
    try:
        target = pa.type_for_alias(id_type) if isinstance(id_type, str) else id_type
        return normalize(values.cast(target), column)
    except (pa.ArrowException, ValueError, TypeError) as error:
        raise InputError(
            f"column '{column}' cannot be read as {id_type}: its ids look like {show(values[0])}."
        ) from error


class _NumberColumn(_Reader):
    """A column of numbers, checked by its rule and kept in its rule's type."""

    def __init__(self, rule: ColumnRule) -> None:
        super().__init__(rule.column)
        self.rule = rule
        self.must = rule.must
        self.chunks: list[Numbers] = []

    def take(self, array: pa.Array, text: bool) -> None:
        self.note_nulls(array)
        array = array.drop_null() if array.null_count else array
        values = to_numbers(array, self.column, text)
        wrong = self.rule.wrong(values)
        if wrong.any():
            self.n_wrong += int(np.count_nonzero(wrong))
            self.example = self.example or show(array[int(np.flatnonzero(wrong)[0])])
            values = np.where(wrong, 0.0, values)
        self.chunks.append(values.astype(self.rule.dtype, copy=False))

    def finish(self) -> Numbers:
        values = np.concatenate(self.chunks)
        self.chunks.clear()
        return values


def to_numbers(array: pa.Array, column: str, text: bool) -> npt.NDArray[np.float64]:
    """Any number column as float64; what is no number becomes NaN where ``text`` allows text at all."""
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if text:
        return _parse(array)
    if pa.types.is_temporal(array.type) or pa.types.is_string(array.type):
        raise InputError(f"column '{column}' has the type {array.type}; it must hold numbers.")
    try:
        if pa.types.is_boolean(array.type):
            array = array.cast(pa.int8())
        return np.asarray(array.cast(pa.float64(), safe=False), dtype=np.float64)
    except (pa.ArrowException, ValueError, TypeError) as error:
        raise InputError(f"column '{column}' has the type {array.type}; it must hold numbers.") from error


def _parse(array: pa.Array) -> npt.NDArray[np.float64]:
    try:
        return np.asarray(array.cast(pa.float64()), dtype=np.float64)
    except pa.ArrowInvalid:
        encoded = array.dictionary_encode()
        parsed = np.array([_parse_word(word) for word in encoded.dictionary.to_pylist()], np.float64)
        return np.asarray(parsed[np.asarray(encoded.indices)])


def _parse_word(word: str) -> float:
    try:
        return _TRUTH_WORDS.get(word.lower()) or float(word)
    except ValueError:
        return _TRUTH_WORDS.get(word.lower(), float("nan"))


def _complain(readers: Iterable[_Reader]) -> None:
    for reader in readers:
        sentence = reader.sentence()
        if sentence:
            raise InputError(sentence)


def not_binary(values: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    return np.asarray((values != 0.0) & (values != 1.0))


def not_probability(values: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    return ~((values > 0.0) & (values < 1.0))  # true for NaN as well
