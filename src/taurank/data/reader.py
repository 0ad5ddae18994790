"""Rows that belong to cells (user, item, time): read once, checked once, stored as dense integers.

A ``Log`` and ``Gains`` are both such rows; they differ in their number columns. The reader walks a source
batch by batch and stores only integer codes and numbers, so its memory is that of the result. All rows are
read before it complains, so that a message can say how many are wrong.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from taurank.data.columns import ID_COLUMNS, RESEARCH_NAMES, ColumnRule, NumberColumn, Numbers, WrongRows
from taurank.data.eligibility import Eligibility
from taurank.data.id_column import IdColumn, catalog_of
from taurank.data.ids import Catalog, Codes, Ids
from taurank.data.metadata import CATALOG_KEY, ELIGIBILITY_KEY, eligibility_from_metadata, from_metadata
from taurank.data.sources import Source
from taurank.errors import InputError, first_line, plural

__all__ = [
    "Cells",
    "ColumnRule",
    "Numbers",
    "cell_index",
    "read_cells",
    "read_ids",
    "recorded_eligibility",
    "refuse_repeated",
]

Given = tuple[Any, Any, Any]

MANY_ROWS = 1 << 24  # up to here all rows are read, and the repeated ones counted


@dataclass(frozen=True)
class Cells:
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
) -> Cells:
    """Read, check and encode the rows of ``source``.

    ``given`` has the caller's users, items and times (None: what the files record, and the ids that occur,
    sorted). ``renames`` maps our column names to those of the source; ``id_types`` types the ids of a CSV.
    """
    rules = list(rules)
    if id_types is not None and not (isinstance(id_types, Mapping) and set(id_types) <= set(ID_COLUMNS)):
        raise InputError(f"id_types maps {', '.join(ID_COLUMNS)} to types such as 'string', got {id_types!r}.")
    names = _locate(source, rules, renames or {})
    wrong_rows = WrongRows()
    ids = {column: IdColumn(column, wrong_rows) for column in ID_COLUMNS if column in names}
    numbers = {rule.column: NumberColumn(rule, wrong_rows) for rule in rules if rule.column in names}
    codes: dict[str, list[Codes]] = {column: [] for column in ids}
    for batch in source.batches(names.values()):
        for column, reader in ids.items():
            codes[column].append(reader.add(batch.column(names[column])))
        for column, numbers_reader in numbers.items():
            numbers_reader.add(source.numerals(batch.column(names[column])), source.text)
        _refuse_surplus(source, list(ids.values()))
    wrong_rows.refuse()
    if not codes["user_id"]:
        raise InputError(f"{source.name} has no rows.")
    values = {column: reader.finish() for column, reader in numbers.items()}
    return _assemble(source, ids, codes, values, given, id_types or {})


def _refuse_surplus(source: Source, ids: list[IdColumn]) -> None:
    """More rows than cells must repeat cells: a small file that claims billions of rows is not read to its end."""
    rows, cells = ids[0].n_rows, math.prod(column.max_ids for column in ids)
    if rows > max(cells, MANY_ROWS):
        raise InputError(
            f"{source.name} has {rows:,} rows or more for {cells:,} combinations of user_id, item_id and time, "
            "so that most rows repeat an earlier one; keep one of each."
        )


def read_ids(source: Source, column: str) -> pa.Array:
    """One id column of a table, row by row, checked and typed like those of a log."""
    if column not in source.columns:
        raise InputError(f"{source.name} has no column '{column}'; found: {', '.join(source.columns)}.")
    wrong_rows = WrongRows()
    reader = IdColumn(column, wrong_rows)
    codes = [reader.add(batch.column(column)) for batch in source.batches([column])]
    wrong_rows.refuse()
    if not codes:
        raise InputError(f"{source.name} has no rows.")
    ids, positions = catalog_of(reader, column, None, None, source.text, None)
    return ids.decode(positions[np.concatenate(codes)])


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
            raise _missing(source, column, [c for c, need in wanted if need])
    return names


def _missing(source: Source, column: str, needed: list[str]) -> InputError:
    columns = ", ".join(source.columns) or "none"
    hint = (
        " Separate columns by commas, semicolons or tabs."
        if len(source.columns) == 1 and column in source.columns[0]
        else ""
    )
    return InputError(
        f"{source.name} has no column '{column}'; needed: {', '.join(needed)}; found: {columns[:200]}.{hint}"
    )


def _assemble(
    source: Source,
    ids: dict[str, IdColumn],
    codes: dict[str, list[Codes]],
    numbers: dict[str, Numbers],
    given: Given,
    id_types: Mapping[str, Any],
) -> Cells:
    lists, rows = {}, {}
    recorded = recorded_ids(source)
    for column, own, known in zip(ID_COLUMNS, given, recorded, strict=True):
        if column in ids:
            lists[column], positions = catalog_of(ids[column], column, own, known, source.text, id_types.get(column))
            rows[column] = _positions(positions, codes[column], lists[column], ids[column])
    timed = "time" in lists
    if not timed:
        lists["time"] = _single_time(given[2], recorded[2])
        rows["time"] = np.zeros(len(rows["user_id"]), np.int32)
    catalog = Catalog(lists["user_id"], lists["item_id"], lists["time"])
    refuse_repeated(catalog, rows["user_id"], rows["item_id"], rows["time"], timed)
    return Cells(catalog, rows["user_id"], rows["item_id"], rows["time"], timed, numbers)


def _positions(positions: Codes, codes: list[Codes], ids: Ids, column: IdColumn) -> Codes:
    """The catalog position of every row; an id outside the catalog is refused."""
    provisional = np.concatenate(codes)
    codes.clear()
    rows = positions[provisional]
    unknown = rows < 0
    if unknown.any():
        values, merged = column.finish()
        example = values[int(merged[provisional[int(unknown.argmax())]])]
        raise ids.unknown(int(np.count_nonzero(unknown)), example)
    return rows


def recorded_ids(source: Source) -> list[pa.Array | None]:
    """The catalog that files written by ``Log.write`` carry; of several files, their union in order."""
    try:
        unique = {tuple(sorted(metadata.items())): metadata for metadata in source.metadata}
        catalogs = [c for c in map(from_metadata, unique.values()) if c is not None]
        lists = [[c.users, c.items, c.times] for c in catalogs]
        return [_union(list(same)) for same in zip(*lists, strict=True)] or [None, None, None]
    except (InputError, pa.ArrowException) as error:
        raise InputError(f"{source.name} has a catalog that cannot be used: {first_line(error)}.") from error


def recorded_eligibility(source: Source, catalog: Catalog) -> Eligibility:
    """The eligible cells that files written by ``Log.write`` carry, at their positions in ``catalog``."""
    recorded = {metadata.get(ELIGIBILITY_KEY): metadata for metadata in source.metadata}
    if not recorded.keys() - {None}:
        return Eligibility.everything(catalog)
    if len({(metadata.get(CATALOG_KEY), key) for key, metadata in recorded.items()}) > 1:
        raise InputError(f"{source.name} have different eligible cells; read them one at a time.")
    metadata = next(iter(recorded.values()))
    try:
        own = from_metadata(metadata)
        if own is None:
            return Eligibility.everything(catalog)
        eligibility = eligibility_from_metadata(metadata, own)
    except InputError as error:
        raise InputError(f"{source.name} cannot be used: {first_line(error)}.") from error
    if own == catalog:
        return eligibility
    return eligibility.reindex(catalog, *own.positions_in(catalog))


def _union(lists: list[Ids]) -> pa.Array:
    return pc.unique(pa.concat_arrays([ids.values for ids in lists]))


def _single_time(times: Any, recorded: pa.Array | None) -> Ids:
    """Without a time column all rows belong to one time."""
    if times is None:
        return Ids([0] if recorded is None or len(recorded) != 1 else recorded, "time")
    ids = Ids(times, "time")
    if len(ids) != 1:
        raise InputError(f"times= has {len(ids):,} times, but there is no column 'time'.")
    return ids


def refuse_repeated(catalog: Catalog, user: Codes, item: Codes, time: Codes, timed: bool = True) -> None:
    """One cell, one row: the same user, item and time twice is an error."""
    if catalog.n_cells < 2**63:
        key = cell_index(catalog, user, item, time)
        key.sort()
        again = key[1:] == key[:-1]
        if not again.any():
            return
        first_time, pair = divmod(int(key[1:][again][0]), catalog.n_users * catalog.n_items)
        first_user, first_item = divmod(pair, catalog.n_items)
    else:
        order = np.lexsort((item, user, time))
        again = (np.diff(item[order]) == 0) & (np.diff(user[order]) == 0) & (np.diff(time[order]) == 0)
        if not again.any():
            return
        row = order[1:][again][0]
        first_user, first_item, first_time = int(user[row]), int(item[row]), int(time[row])
    named = {"user_id": catalog.users.name(first_user), "item_id": catalog.items.name(first_item)}
    if timed:
        named["time"] = catalog.times.name(first_time)
    count = int(np.count_nonzero(again))
    raise InputError(
        f"{plural(count, 'row')} {'repeats' if count == 1 else 'repeat'} an earlier ({', '.join(named)}), "
        f"for example ({', '.join(named.values())}); keep one of each."
    )


def cell_index(catalog: Catalog, user: Codes, item: Codes, time: Codes) -> npt.NDArray[np.int64]:
    """The number of each cell, counted by time, then user, then item."""
    index = time.astype(np.int64)
    index *= catalog.n_users
    index += user
    index *= catalog.n_items
    index += item
    return index
