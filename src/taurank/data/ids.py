"""Ids and the catalog: every user, item and time that counts, in order, whether or not it has rows.

Inside taurank a user is a dense integer; outside it is whatever the caller calls it. ``Ids`` is the one place where
the two meet. Ids are int64, text, or dates and timestamps, whatever library the frames come from.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from taurank._types import Codes as Codes
from taurank._types import Longs
from taurank.errors import InputError, first_line, plural, show

ID_COLUMNS = ("user_id", "item_id", "time")
FEW = 1000  # ids to look up in an index of the catalog; more than that are looked up by Arrow


class Ids:
    """An ordered list of distinct ids: ``encode`` returns their positions, ``decode`` the ids."""

    def __init__(self, values: Any, column: str = "id") -> None:
        self.column = column
        self.values: pa.Array = to_ids(values, column)
        if self.values.null_count:
            raise InputError(f"column '{column}' has {plural(self.values.null_count, 'null id')}; leave it out.")
        if len(pc.unique(self.values)) != len(self):
            counts = pc.value_counts(self.values)
            twice = counts.filter(pc.greater(counts.field("counts"), 1))
            raise InputError(
                f"column '{column}' has {plural(len(twice), 'id')} more than once, for example "
                f"{show(twice.field('values')[0])}; give each id once."
            )

    def __len__(self) -> int:
        return len(self.values)

    def __getstate__(self) -> dict[str, Any]:
        return {"column": self.column, "values": self.values}  # the index is built again where it is needed

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ids) and self.values.equals(other.values)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Ids({self.column}: {len(self):,} of {self.values.type})"

    def encode(self, ids: Any) -> Codes:
        """Positions of ``ids`` in the catalog; −1 where an id is not in it."""
        array = self.match_type(to_ids(ids, self.column))
        if len(array) <= FEW < len(self) and not array.null_count:  # pandas would make integers with nulls floats
            return self._index.get_indexer(array.to_pandas()).astype(np.int32)  # type: ignore[no-any-return]
        codes = pc.index_in(array, value_set=self.values).fill_null(-1)
        return np.asarray(codes, dtype=np.int32)

    @cached_property
    def _index(self) -> Any:
        import pandas as pd

        return pd.Index(self.values.to_pandas())

    def encode_known(self, ids: Any) -> Codes:
        """Like ``encode``, but an id outside the catalog is an error that names it."""
        codes = self.encode(ids)
        unknown = np.flatnonzero(codes < 0)
        if len(unknown):
            example = show(to_array(ids, self.column)[int(unknown[0])])
            raise InputError(
                f"{plural(len(unknown), self.column)} {'is' if len(unknown) == 1 else 'are'} not in the catalog "
                f"({plural(len(self), 'id')}), for example {example}; leave unknown ids out."
            )
        return codes

    def decode(self, codes: npt.NDArray[Any]) -> pa.Array:
        return self.values.take(pa.array(codes))

    def extended(self, *more: Ids) -> Ids:
        """These ids in their order, followed by those of ``more`` that are new: known positions stay valid."""
        ids = self
        for other in more:
            if not len(ids):
                ids = other
            new = other.values.filter(pa.array(ids.encode(other.values) < 0))
            if len(new):
                ids = Ids(pa.concat_arrays([ids.values, ids.match_type(new)]), ids.column)
        return ids

    def match_type(self, array: pa.Array, label: str = "") -> pa.Array:
        """Cast ids to the type of these where that loses nothing, else say that the types differ."""
        own = self.values.type
        if array.type == own:
            return array
        if not len(self) or not len(array):
            return pa.nulls(len(array), own)
        try:
            if pa.types.is_temporal(array.type) and pa.types.is_temporal(own):
                return array.cast(own)
        except pa.ArrowException:
            pass
        raise InputError(
            f"column '{label or self.column}' has {array.type} ids such as {show(array[0])}, but the catalog has "
            f"{own} ids such as {show(self.values[0])}; give both the same type."
        )

    def name(self, code: int) -> str:
        return show(self.values[int(code)])


class Sized:
    users: Ids
    items: Ids
    times: Ids

    @property
    def n_users(self) -> int:
        return len(self.users)

    @property
    def n_items(self) -> int:
        return len(self.items)

    @property
    def n_times(self) -> int:
        return len(self.times)


@dataclass(frozen=True)
class Catalog(Sized):
    """All users, items and times of a log, in order."""

    users: Ids
    items: Ids
    times: Ids

    @property
    def n_cells(self) -> int:
        """users · items · times: every cell at which something could have been recommended."""
        return self.n_users * self.n_items * self.n_times

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.n_users, self.n_items, self.n_times

    @property
    def lists(self) -> tuple[Ids, Ids, Ids]:
        return self.users, self.items, self.times

    def positions_in(self, other: Catalog) -> list[Codes]:
        """The position of each user, item and time in another catalog; −1 where it is not in it."""
        both = zip(self.lists, other.lists, strict=True)
        return [np.arange(len(old), dtype=np.int32) if old is new else new.encode(old.values) for old, new in both]

    def cell_index(self, user: Codes, item: Codes, time: Codes) -> Longs:
        """The number of each cell, counted by time, then user, then item."""
        index = time.astype(np.int64)
        index *= self.n_users
        index += user
        index *= self.n_items
        index += item
        return index


class WithCatalog(Sized):
    """Shortcuts to the lists and sizes of a catalog."""

    catalog: Catalog

    @property
    def users(self) -> Ids:  # type: ignore[override]
        return self.catalog.users

    @property
    def items(self) -> Ids:  # type: ignore[override]
        return self.catalog.items

    @property
    def times(self) -> Ids:  # type: ignore[override]
        return self.catalog.times


def to_array(values: Any, column: str) -> pa.Array:
    """Anything list-like (list, range, numpy, pandas, Polars, Arrow) as one Arrow array."""
    if isinstance(values, (str, bytes, int, float)) or values is None:
        raise InputError(f"'{column}' must be a list of ids, got {values!r}.")
    try:
        array = values.to_arrow() if hasattr(values, "to_arrow") else values
        if not isinstance(array, (pa.Array, pa.ChunkedArray)):
            array = pa.array(array if hasattr(array, "dtype") else list(array))
        array = array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array
        array.validate(full=True)
        return array
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise InputError(
            f"column '{column}' has ids that cannot be read ({first_line(error)}); make all of them integers, or all "
            "of them strings."
        ) from error


def to_ids(values: Any, column: str) -> pa.Array:
    """Anything list-like as ids: whole numbers as int64, text as strings, dates and timestamps as they are."""
    array = to_array(values, column)
    types, kind = pa.types, array.type.value_type if pa.types.is_dictionary(array.type) else array.type
    if types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind):
        target = pa.int64()
    elif types.is_null(kind) or str(kind) in _TEXT:
        target = pa.string()
    elif types.is_date(kind) or types.is_timestamp(kind):
        target = kind
    else:
        raise InputError(f"column '{column}' has type {kind}; ids must be integers, strings or dates.")
    try:
        return array if array.type == target else array.cast(target)
    except pa.ArrowException as error:
        wanted = "int64" if target == pa.int64() else "UTF-8 text of less than 2 GiB"
        raise InputError(
            f"column '{column}' has {kind} ids that are not {wanted} ({first_line(error)}); use integers, strings or "
            "dates."
        ) from error


_TEXT = ("string", "large_string", "string_view", "binary", "large_binary", "binary_view")


def typed_ids(values: pa.Array, id_type: Any, column: str) -> pa.Array:
    """Ids of a CSV in the type asked for; by default int64 if every id is written as one."""
    try:
        if id_type is not None:
            return to_ids(values.cast(pa.type_for_alias(id_type) if isinstance(id_type, str) else id_type), column)
        whole = values.cast(pa.int64())
        return whole if whole.cast(values.type).equals(values) else values
    except (pa.ArrowException, ValueError, TypeError) as error:
        if id_type is None:
            return values
        raise InputError(
            f"column '{column}' cannot be read as {id_type}: its ids look like {show(values[0])}."
        ) from error


def ids_to_arrays(*lists: Ids) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
    """Id lists for a file: the type and length of each, and its bytes; of text also where each id ends."""
    types: dict[str, Any] = {}
    arrays: dict[str, npt.NDArray[Any]] = {}
    for ids in lists:
        array = pa.concat_arrays([ids.values])  # from its first byte on, if it was part of another
        types[ids.column] = [str(array.type), len(array)]
        parts = [np.frombuffer(buffer or b"", np.uint8) for buffer in array.buffers()[1:]]
        if array.type == pa.string():
            ends = parts[0][: 4 * (len(array) + 1)] if len(array) else np.zeros(4, np.uint8)
            parts = [ends, parts[1][: ends[-4:].view(np.int32)[0]]]
        else:
            parts = [parts[0][: len(array) * array.type.bit_width // 8]]
        arrays |= {f"{ids.column}.{n}": part for n, part in enumerate(parts)}
    return types, arrays


def ids_from_arrays(types: Any, arrays: dict[str, npt.NDArray[Any]], *columns: str) -> list[Ids]:
    if not isinstance(types, dict) or list(types) != list(columns):
        found = ", ".join(types) if isinstance(types, dict) else "missing"
        raise InputError(f"the lists of ids are {found}, expected {', '.join(columns)}.")
    lists = []
    try:
        for column, (name, length) in types.items():
            zoned = re.fullmatch(r"timestamp\[(\w+), tz=(.+)\]", name)
            kind = pa.timestamp(*zoned.groups()) if zoned else pa.type_for_alias(name)
            parts = [arrays.pop(f"{column}.{n}") for n in range(2 if kind == pa.string() else 1)]
            values = pa.Array.from_buffers(kind, length, [None, *map(pa.py_buffer, parts)])
            values.validate(full=True)
            lists.append(Ids(values, column))
    except (pa.ArrowException, KeyError, TypeError, ValueError, OverflowError) as error:
        raise InputError(f"the lists of ids are corrupt ({first_line(error)}); save the file again.") from error
    return lists
