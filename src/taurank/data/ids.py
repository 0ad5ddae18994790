"""The catalogue: every user, item and time that counts, in order, whether or not it has rows.

Inside taurank a user is a dense integer; outside it is whatever the caller calls it. ``Ids`` is the one
place where the two meet. Integer ids are kept as int64 and text as Arrow strings, so that pandas, Polars
and PyArrow frames of the same ids give the same catalogue.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

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
    """An ordered list of distinct ids: ``encode`` gives their positions, ``decode`` the ids back."""

    def __init__(self, values: Any, column: str = "id") -> None:
        array = normalize(to_array(values, column), column)
        self.column = column
        self.values: pa.Array = array
        if array.null_count:
            raise InputError(f"the catalogue of '{column}' holds {plural(array.null_count, 'null id')}.")
        if len(pc.unique(array)) != len(array):
            counts = pc.value_counts(array)
            twice = counts.filter(pc.greater(counts.field("counts"), 1))
            raise InputError(
                f"the catalogue of '{column}' names {plural(len(twice), 'id')} more than once, "
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
        """Positions of ``ids`` in the catalogue; −1 where an id is not in it."""
        array = match_type(normalize(to_array(ids, self.column), self.column), self)
        codes = pc.index_in(array, value_set=self.values).fill_null(-1)
        return np.asarray(codes, dtype=np.int32)

    def encode_known(self, ids: Any) -> Codes:
        """Like ``encode``, but an id outside the catalogue is an error that names it."""
        codes = self.encode(ids)
        unknown = np.flatnonzero(codes < 0)
        if len(unknown):
            raise self.unknown(len(unknown), to_array(ids, self.column)[int(unknown[0])])
        return codes

    def unknown(self, rows: int, example: Any) -> InputError:
        """The error that says how many rows name something outside the catalogue."""
        return InputError(
            f"column '{self.column}': an id in {plural(rows, 'row')} is not in the given catalogue of "
            f"{len(self):,}, for example {show(example)}; add it to the catalogue or drop these rows."
        )

    def decode(self, codes: npt.NDArray[Any]) -> pa.Array:
        """The ids at these positions."""
        return self.values.take(pa.array(codes))

    def name(self, code: int) -> str:
        """One id as it is written in a message."""
        return show(self.values[int(code)])


@dataclass(frozen=True)
class Catalogue:
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

    def to_text(self) -> str:
        """The catalogue as text for the metadata of a Parquet file."""
        return base64.b64encode(ids_to_bytes(self.users, self.items, self.times)).decode()

    @classmethod
    def from_text(cls, text: bytes | str) -> Catalogue:
        return cls(*ids_from_bytes(base64.b64decode(text)))


def ids_to_bytes(*lists: Ids) -> bytes:
    """Several id lists as one Arrow stream (they differ in length and type: one list column each)."""
    columns = [pa.array([ids.values.to_pylist()], pa.list_(ids.values.type)) for ids in lists]
    batch = pa.record_batch(columns, names=[ids.column for ids in lists])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as out:
        out.write_batch(batch)
    return bytes(sink.getvalue())


def ids_from_bytes(data: bytes) -> list[Ids]:
    table = pa.ipc.open_stream(data).read_all()
    return [Ids(table[name].chunk(0).flatten(), name) for name in table.column_names]


def to_array(values: Any, column: str) -> pa.Array:
    """Anything list-like (list, range, numpy, pandas, Polars, Arrow) as one Arrow array."""
    if isinstance(values, pa.ChunkedArray):
        return values.combine_chunks() if values.num_chunks != 1 else values.chunk(0)
    if isinstance(values, pa.Array):
        return values
    if isinstance(values, (str, bytes, int, float)) or values is None:
        raise InputError(f"'{column}' must be a list of ids, not {values!r}.")
    try:
        if hasattr(values, "to_arrow"):
            return to_array(values.to_arrow(), column)
        return to_array(pa.array(values if hasattr(values, "dtype") else list(values)), column)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise InputError(
            f"column '{column}' mixes kinds of ids that do not go together ({first_line(error)}); "
            "make them all integers or all text."
        ) from error


def normalize(array: pa.Array, column: str) -> pa.Array:
    """One type per kind of id: int64 for integers, string for text, the plain type of a dictionary."""
    kind = array.type
    if pa.types.is_dictionary(kind):
        return normalize(array.dictionary_decode(), column)
    if pa.types.is_null(kind):
        return array.cast(pa.string())
    if pa.types.is_large_string(kind) or str(kind) == "string_view":
        return array.cast(pa.string())
    if pa.types.is_integer(kind):
        return _widen(array)
    if pa.types.is_float16(kind):
        return normalize(array.cast(pa.float32()), column)
    if isinstance(kind, pa.BaseExtensionType) or not any(is_kind(kind) for is_kind in _PLAIN_KINDS):
        raise InputError(
            f"column '{column}' has the type {kind}, which cannot name anything; ids are integers, text or dates."
        )
    if pa.types.is_floating(kind) and pc.any(pc.is_nan(array.cast(pa.float64()))).as_py():
        raise InputError(f"column '{column}' has NaN among its ids; drop or name these rows.")
    return array


def _widen(array: pa.Array) -> pa.Array:
    try:
        return array.cast(pa.int64())
    except pa.ArrowInvalid:  # uint64 beyond int64
        return array


def match_type(array: pa.Array, ids: Ids) -> pa.Array:
    """Cast ids to the catalogue's type where that loses nothing, else say that the kinds differ."""
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
        f"column '{ids.column}' holds {array.type} ids such as {show(array[0])}, but the catalogue "
        f"holds {ids.values.type} ids such as {show(ids.values[0])}; make both the same kind."
    )
