"""The catalog: every user, item and time that counts, in order, whether or not it has rows.

Inside taurank a user is a dense integer; outside it is whatever the caller calls it. ``Ids`` is the one
place where the two meet. Integer ids are stored as int64 and text as Arrow strings, so that pandas, Polars
and PyArrow frames of the same ids have the same catalog.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from taurank.data.packing import pack, unpack
from taurank.errors import InputError, first_line, plural, show

Codes = npt.NDArray[np.int32]


_PLAIN_KINDS = (
    pa.types.is_boolean,
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_decimal,
    pa.types.is_date,
    pa.types.is_time,
    pa.types.is_timestamp,
    pa.types.is_duration,
    pa.types.is_string,
    pa.types.is_binary,
)


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

    def encode(self, ids: Any) -> Codes:
        """Positions of ``ids`` in the catalog; −1 where an id is not in it."""
        array = match_type(to_ids(ids, self.column), self)
        codes = pc.index_in(array, value_set=self.values).fill_null(-1)
        return np.asarray(codes, dtype=np.int32)

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

    def unknown(self, rows: int, example: Any) -> InputError:
        """The error that says how many rows name something outside the catalog."""
        source = {"user_id": "users=", "item_id": "items=", "time": "times="}.get(self.column, "the catalog")
        return InputError(
            f"{plural(rows, 'row')} {'has' if rows == 1 else 'have'} {_article(self.column)} that is not in {source} "
            f"({plural(len(self), 'id')}), for example {show(example)}; add it there or drop these rows."
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

    def name(self, code: int) -> str:
        """One id as it is written in a message."""
        return show(self.values[int(code)])


def _article(noun: str) -> str:
    return f"an {noun}" if noun[:1] in "aeio" else f"a {noun}"


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
    def lists(self) -> tuple[Ids, Ids, Ids]:
        return self.users, self.items, self.times

    def positions_in(self, other: Catalog) -> list[npt.NDArray[np.int32]]:
        """The position of each user, item and time in another catalog; −1 where it is not in it."""
        both = zip(self.lists, other.lists, strict=True)
        return [np.arange(len(old), dtype=np.int32) if old is new else new.encode(old.values) for old, new in both]

    @property
    def n_cells(self) -> int:
        """users · items · times: every cell at which something could have been recommended."""
        return self.n_users * self.n_items * self.n_times

    def to_text(self) -> str:
        """The catalog as text for the metadata of a Parquet file."""
        return base64.b64encode(ids_to_bytes(self.users, self.items, self.times)).decode()

    @classmethod
    def from_text(cls, text: bytes | str) -> Catalog:
        """The catalog that ``to_text`` wrote."""
        try:
            data = base64.b64decode(text, validate=True)
        except ValueError as error:
            raise InputError("the lists of ids are corrupt; save the file again.") from error
        return cls(*ids_from_bytes(data, ("user_id", "item_id", "time")))


class WithCatalog:
    """What has a catalog has its lists and sizes."""

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


def ids_to_bytes(*lists: Ids) -> bytes:
    """Several id lists as bytes, for a saved file."""
    return pack({ids.column: ids.values for ids in lists})


def ids_from_bytes(data: bytes, columns: tuple[str, ...] = ("user_id", "item_id")) -> list[Ids]:
    """The id lists that ``ids_to_bytes`` wrote, which must be those of these columns."""
    lists = unpack(data)
    if tuple(lists) != columns:
        raise InputError(f"the lists of ids are {', '.join(lists) or 'missing'}, expected {', '.join(columns)}.")
    return [Ids(values, column) for column, values in lists.items()]


def to_ids(values: Any, column: str) -> pa.Array:
    """Anything list-like as ids in the one type of their kind."""
    return narrow_integers(normalize(to_array(values, column), column))


def to_array(values: Any, column: str) -> pa.Array:
    """Anything list-like (list, range, numpy, pandas, Polars, Arrow) as one Arrow array."""
    try:
        if isinstance(values, (str, bytes, int, float)) or values is None:
            raise InputError(f"'{column}' must be a list of ids, got {values!r}.")
        array = _to_array(values)
        array.validate(full=True)
        return array
    except pa.ArrowInvalid as error:
        raise InputError(f"column '{column}' has ids that cannot be read ({first_line(error)}).") from error
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        if isinstance(error, InputError):
            raise
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
        return normalize(array.cast(pa.float32()), column)
    if pa.types.is_decimal(kind):
        return array.cast(pa.decimal128(38, kind.scale)) if kind.bit_width < 128 else array
    if isinstance(kind, pa.BaseExtensionType) or not any(is_kind(kind) for is_kind in _PLAIN_KINDS):
        raise InputError(f"column '{column}' has type {kind}; ids must be integers, strings or dates.")
    if pa.types.is_floating(kind) and pc.any(pc.is_nan(array.cast(pa.float64()))).as_py():
        raise InputError(f"column '{column}' has NaN ids; drop these rows or give them an id.")
    if pa.types.is_temporal(kind):
        _refuse_out_of_range(array, column)
    return array


def _refuse_out_of_range(array: pa.Array, column: str) -> None:
    """Dates and times that Python cannot represent would fail when they leave taurank."""
    whole = pa.int32() if array.type.bit_width == 32 else pa.int64()
    ends = pc.min_max(array.view(whole)).as_py()
    if ends["min"] is None:
        return
    try:
        ends = pa.array(list(ends.values()), whole).view(array.type)
        ends.to_pylist()
        ends.to_pandas()
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
    if not len(ids) or not len(array):
        return array.slice(0, 0).cast(ids.values.type) if not len(array) else array
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
