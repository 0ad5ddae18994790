"""Ids and the catalog: every user, item and time that counts, in order, whether or not it has rows.

Inside taurank a user is a dense integer; outside it is whatever the caller calls it. ``Ids`` is the one
place where the two meet. Integer ids are stored as int64 and text as Arrow strings, so that pandas, Polars
and PyArrow frames of the same ids have the same catalog.
"""

from __future__ import annotations

import re
from bisect import bisect_left
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
FEW = 1000  # ids to look up in a sorted index; more than that are looked up by hashing the catalog

_PLAIN_KINDS = (
    pa.types.is_boolean, pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_temporal,
    pa.types.is_string, pa.types.is_binary,
)  # fmt: skip


class Ids:
    """An ordered list of distinct ids: ``encode`` returns their positions, ``decode`` the ids."""

    def __init__(self, values: Any, column: str = "id") -> None:
        array = to_ids(values, column)
        self.column = column
        self.values: pa.Array = array
        if array.null_count:
            raise InputError(f"the catalog of '{column}' has {plural(array.null_count, 'null id')}; leave it out.")
        if len(pc.unique(array)) != len(array):
            counts = pc.value_counts(array)
            twice = counts.filter(pc.greater(counts.field("counts"), 1))
            raise InputError(
                f"the catalog of '{column}' has {plural(len(twice), 'id')} more than once, "
                f"for example {show(twice.field('values')[0])}; give each id once."
            )

    def __len__(self) -> int:
        return len(self.values)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ids) and self.values.equals(other.values)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Ids({self.column}: {len(self):,} of {self.values.type})"

    def __getstate__(self) -> dict[str, Any]:
        return {"column": self.column, "values": self.values}  # the index is built again where it is needed

    def encode(self, ids: Any) -> Codes:
        """Positions of ``ids`` in the catalog; −1 where an id is not in it."""
        array = match_type(to_ids(ids, self.column), self)
        indexed = pa.types.is_string(array.type) or array.type == pa.int64()
        if indexed and len(array) <= FEW < len(self) and not array.null_count:
            return self._encode_few(array)
        codes = pc.index_in(array, value_set=self.values).fill_null(-1)
        return np.asarray(codes, dtype=np.int32)

    def _encode_few(self, array: pa.Array) -> Codes:
        """``encode`` by bisection, in microseconds once the index is there."""
        order = self._order
        if array.type == pa.int64():
            place: Any = np.searchsorted(self.values.to_numpy(), array.to_numpy(), sorter=order)
        else:  # Arrow and Python order text alike, by code point
            place = [
                bisect_left(range(len(order)), text, key=lambda n: self.values[int(order[n])].as_py())
                for text in array.to_pylist()
            ]
        position = order[np.minimum(np.asarray(place, np.int64), len(order) - 1)]
        same = np.asarray(pc.equal(self.values.take(pa.array(position)), array))
        return np.where(same, position, -1).astype(np.int32)

    @cached_property
    def _order(self) -> Longs:
        """The positions in the order of the ids."""
        return np.asarray(pc.array_sort_indices(self.values)).astype(np.int64)

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

    def unknown(self, rows: int, example: Any, of: str = "") -> InputError:
        """The error that says how many rows (``of`` a table) name something outside the catalog."""
        source = {"user_id": "users=", "item_id": "items=", "time": "times="}.get(self.column, "the catalog")
        article = "an" if self.column[:1] in "aeio" else "a"
        return InputError(
            f"{plural(rows, 'row')}{of} {'has' if rows == 1 else 'have'} {article} {self.column} that is not in "
            f"{source} ({plural(len(self), 'id')}), for example {show(example)}; add it there or drop these rows."
        )

    def decode(self, codes: npt.NDArray[Any]) -> pa.Array:
        """The ids at these positions."""
        return self.values.take(pa.array(codes))

    def extended(self, *more: Ids) -> Ids:
        """These ids in their order, followed by those of ``more`` that are new: known positions stay valid."""
        ids = self
        for other in more:
            if not len(ids):
                ids = other
                continue
            values = match_type(other.values, ids)
            new = values.filter(pc.is_null(pc.index_in(values, value_set=ids.values)))
            if len(new):
                ids = Ids(pa.concat_arrays([ids.values, new]), ids.column)
        return ids

    def buffers(self) -> list[npt.NDArray[np.uint8]]:
        """The bytes of the ids; text has two arrays, where each id ends and what they say."""
        array = self.values.cast(pa.uint8()) if pa.types.is_boolean(self.values.type) else self.values
        first, last = array.offset, array.offset + len(array)
        buffers = [np.frombuffer(buffer or b"", np.uint8) for buffer in array.buffers()[1:]]
        if pa.types.is_string(array.type) or pa.types.is_binary(array.type):
            ends = buffers[0].view(np.int32)[first : last + 1] if len(array) else np.zeros(1, np.int32)
            return [(ends - ends[0]).view(np.uint8), buffers[1][int(ends[0]) : int(ends[-1])]]
        width = array.type.bit_width // 8
        return [buffers[0][first * width : last * width]]

    def name(self, code: int) -> str:
        """One id as it is written in a message."""
        return show(self.values[int(code)])


@dataclass(frozen=True)
class Catalog:
    """All users, items and times of a log, in order."""

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

    @property
    def n_cells(self) -> int:
        """users · items · times: every cell at which something could have been recommended."""
        return self.n_users * self.n_items * self.n_times

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


class WithCatalog:
    """Shortcuts to the lists and sizes of a catalog."""

    catalog: Catalog

    @property
    def users(self) -> Ids:
        return self.catalog.users

    @property
    def items(self) -> Ids:
        return self.catalog.items

    @property
    def times(self) -> Ids:
        return self.catalog.times

    @property
    def n_users(self) -> int:
        return self.catalog.n_users

    @property
    def n_items(self) -> int:
        return self.catalog.n_items

    @property
    def n_times(self) -> int:
        return self.catalog.n_times


def ids_to_arrays(*lists: Ids) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
    """Id lists for a file: the type and length of each, and its bytes; of text also where each id ends."""
    types = {ids.column: [str(ids.values.type), len(ids)] for ids in lists}
    return types, {f"{ids.column}.{n}": part for ids in lists for n, part in enumerate(ids.buffers())}


def ids_from_arrays(types: Any, arrays: dict[str, npt.NDArray[Any]], *columns: str) -> list[Ids]:
    """The id lists of these columns, taken out of the arrays of a file."""
    if not isinstance(types, dict) or list(types) != list(columns):
        found = ", ".join(types) if isinstance(types, dict) else "missing"
        raise InputError(f"the lists of ids are {found}, expected {', '.join(columns)}.")
    lists = []
    try:
        for column, (name, length) in types.items():
            is_flag, kind = name == "bool", _type("uint8" if name == "bool" else name)
            n_parts = 2 if pa.types.is_string(kind) or pa.types.is_binary(kind) else 1
            parts = [pa.py_buffer(arrays.pop(f"{column}.{n}")) for n in range(n_parts)]
            values = pa.Array.from_buffers(kind, length, [None, *parts])
            values.validate(full=True)
            lists.append(Ids(values.cast(pa.bool_()) if is_flag else values, column))
    except (pa.ArrowException, KeyError, TypeError, ValueError, OverflowError) as error:
        raise InputError(f"the lists of ids are corrupt ({first_line(error)}); save the file again.") from error
    return lists


def _type(name: str) -> pa.DataType:
    """The Arrow type with this name."""
    if match := re.fullmatch(r"timestamp\[(\w+), tz=(.+)\]", name):
        return pa.timestamp(*match.groups())
    if match := re.fullmatch(r"decimal(128|256)\((\d+), (-?\d+)\)", name):
        bits, digits, scale = map(int, match.groups())
        return pa.decimal128(digits, scale) if bits == 128 else pa.decimal256(digits, scale)
    return pa.type_for_alias(name)


def to_ids(values: Any, column: str) -> pa.Array:
    """Anything list-like as ids in the one type of their kind."""
    return narrow_integers(normalize(to_array(values, column), column))


def to_array(values: Any, column: str) -> pa.Array:
    """Anything list-like (list, range, numpy, pandas, Polars, Arrow) as one Arrow array."""
    if isinstance(values, (str, bytes, int, float)) or values is None:
        raise InputError(f"'{column}' must be a list of ids, got {values!r}.")
    try:
        array = _to_array(values)
        array.validate(full=True)
        return array
    except pa.ArrowInvalid as error:
        raise InputError(f"column '{column}' has ids that cannot be read ({first_line(error)}).") from error
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise InputError(
            f"column '{column}' mixes incompatible id types ({first_line(error)}); make all of them integers, "
            "or all of them strings."
        ) from error


def _to_array(values: Any) -> pa.Array:
    if isinstance(values, pa.ChunkedArray):
        return values.combine_chunks() if values.num_chunks != 1 else values.chunk(0)
    if isinstance(values, pa.Array):
        return values
    if hasattr(values, "to_arrow"):
        return _to_array(values.to_arrow())
    plain = values if hasattr(values, "dtype") else list(values)
    try:
        return _to_array(pa.array(plain))
    except OverflowError:  # Python integers beyond int64
        return _to_array(pa.array(plain, pa.uint64()))


def normalize(array: pa.Array, column: str) -> pa.Array:
    """One type per kind of id, decided by the type alone: text as string, integers as int64 or uint64."""
    kind = array.type
    try:
        if pa.types.is_dictionary(kind):
            return normalize(array.dictionary_decode(), column)
        if pa.types.is_null(kind) or pa.types.is_large_string(kind) or str(kind) == "string_view":
            return array.cast(pa.string())
    except pa.ArrowException as error:
        raise InputError(f"column '{column}' has more than 2 GiB of text; use shorter ids.") from error
    if pa.types.is_integer(kind):
        return array if kind == pa.uint64() else array.cast(pa.int64())
    if pa.types.is_float16(kind):
        array = array.cast(pa.float32())
    if pa.types.is_decimal(kind):
        return array.cast(pa.decimal128(38, kind.scale)) if kind.bit_width < 128 else array
    if isinstance(kind, pa.BaseExtensionType) or not any(is_kind(kind) for is_kind in _PLAIN_KINDS):
        raise InputError(f"column '{column}' has type {kind}; ids must be integers, strings or dates.")
    if pa.types.is_floating(kind) and pc.any(pc.is_nan(array.cast(pa.float64()))).as_py():
        raise InputError(f"column '{column}' has NaN ids; drop these rows or give them an id.")
    if pa.types.is_temporal(kind):
        _check_dates(array, column)
    return array


def _check_dates(array: pa.Array, column: str) -> None:
    """Dates and times that Python cannot represent would fail when they leave taurank."""
    whole = pa.int32() if array.type.bit_width == 32 else pa.int64()
    ends = pc.min_max(array.view(whole)).as_py()
    if ends["min"] is None:
        return
    try:
        first_and_last = pa.array(list(ends.values()), whole).view(array.type)
        first_and_last.to_pylist()
        first_and_last.to_pandas()
    except (ValueError, OverflowError, pa.ArrowException) as error:
        raise InputError(
            f"column '{column}' has a {array.type} out of range ({first_line(error)}); use dates from year 1 to 9999."
        ) from error


def narrow_integers(array: pa.Array) -> pa.Array:
    """Whole ids as int64 wherever all of them fit: decided on a whole list, never on a part of one."""
    kind = array.type
    if kind == pa.uint64() or (pa.types.is_decimal(kind) and kind.scale == 0):
        try:
            return array.cast(pa.int64())
        except pa.ArrowInvalid:  # beyond int64
            return array
    return array


def match_type(array: pa.Array, ids: Ids) -> pa.Array:
    """Cast ids to the catalog's type where that loses nothing, else say that the types differ."""
    if array.type == ids.values.type:
        return array
    if not len(array):
        return array.cast(ids.values.type)
    if not len(ids):
        return array
    alike = (pa.types.is_string, pa.types.is_boolean, pa.types.is_temporal)
    if all(is_kind(array.type) == is_kind(ids.values.type) for is_kind in alike):
        try:
            return array.cast(ids.values.type)
        except pa.ArrowException:
            pass
    raise InputError(
        f"column '{ids.column}' has {array.type} ids such as {show(array[0])}, but the catalog has "
        f"{ids.values.type} ids such as {show(ids.values[0])}; give both the same type."
    )


def sorted_ids(values: pa.Array) -> pa.Array:
    return values.take(pc.array_sort_indices(values))


def typed_ids(values: pa.Array, id_type: Any, column: str) -> pa.Array:
    """Ids of a CSV in the type asked for; by default int64 if every id is written as one."""
    if id_type is None:
        try:
            whole = values.cast(pa.int64())
        except pa.ArrowInvalid:
            return values
        return whole if whole.cast(values.type).equals(values) else values
    try:
        target = pa.type_for_alias(id_type) if isinstance(id_type, str) else id_type
        return narrow_integers(normalize(values.cast(target), column))
    except (pa.ArrowException, ValueError, TypeError) as error:
        raise InputError(
            f"column '{column}' cannot be read as {id_type}: its ids look like {show(values[0])}."
        ) from error
