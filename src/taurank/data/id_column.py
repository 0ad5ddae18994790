"""A column of ids, read batch by batch, in time proportional to its rows.

Each batch is encoded on its own: its distinct ids get provisional codes, which go on counting from batch to
batch. The distinct ids of the batches are merged whenever as many have come together as are known already, so
that every id is hashed a bounded number of times; a table of provisional codes leads to the merged ones.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from taurank.data.columns import WrongRows
from taurank.data.ids import Codes, Ids, match_type, narrow_integers, normalize
from taurank.errors import InputError, show

MERGE_AT = 1 << 16  # ids of batches that wait to be merged, at least


class IdColumn:
    """The ids of a column in order of first occurrence, and the provisional code of every row.

    ``label`` is what messages call the column.
    """

    def __init__(self, label: str, wrong_rows: WrongRows) -> None:
        self.label, self.wrong_rows = label, wrong_rows
        self.n_rows = 0
        self._ids: Any = None  # merged so far, an Arrow array from the first batch on
        self._waiting: list[pa.Array] = []
        self._n_waiting = 0
        self._merged: list[Codes] = []  # position in _ids of each provisional code
        self._n_codes = 0

    def add(self, array: pa.Array) -> Codes:
        """The provisional codes of one batch; rows with a null, which are counted, have code 0."""
        ids, codes = _distinct(array, self.label)
        null = np.asarray(ids.is_null(), dtype=bool)
        if null.any():
            rows = pa.array(codes, mask=null[codes])
            self.wrong_rows.add_nulls(self.label, rows, self.n_rows)
            codes = np.where(null[codes], 0, codes)
        self.n_rows += len(array)
        self._waiting.append(ids)
        self._n_waiting += len(ids)
        first, self._n_codes = self._n_codes, self._n_codes + len(ids)
        if self._n_waiting >= max(MERGE_AT, 0 if self._ids is None else len(self._ids)):
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
        self._waiting, self._n_waiting = [], 0


def _distinct(array: pa.Array, label: str) -> tuple[pa.Array, npt.NDArray[np.int64]]:
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


def catalog_of(
    column: IdColumn, name: str, given: Any, recorded: pa.Array | None, text: bool, id_type: Any
) -> tuple[Ids, Codes]:
    """The catalog of a column, and the position in it of every provisional code (−1: not in it).

    ``given`` is the caller's own list, and complete. ``recorded`` is what the files carry; ids that occur
    beyond it follow it. Without either: the ids that occur, sorted. ``text`` says that the ids come from a CSV
    and have no type yet; ``id_type`` is the one the caller asks for.
    """
    values, merged = column.finish()
    known = given if given is not None else recorded
    if known is not None:
        ids = Ids(known, name)
        values = typed_ids(values, ids.values.type, name) if text else match_type(values, ids)
        if given is None:
            ids = _extended(ids, values)
    else:
        values = typed_ids(values, id_type, name) if text or id_type else values
        ids = Ids(sorted_ids(pc.unique(values)), name)
    return ids, ids.encode(values)[merged]


def _extended(ids: Ids, values: pa.Array) -> Ids:
    fresh = values.filter(pa.array(ids.encode(values) < 0))
    return Ids(pa.concat_arrays([ids.values, sorted_ids(fresh)]), ids.column) if len(fresh) else ids


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
        return narrow_integers(normalize(values.cast(target), column))
    except (pa.ArrowException, ValueError, TypeError) as error:
        raise InputError(
            f"column '{column}' cannot be read as {id_type}: its ids look like {show(values[0])}."
        ) from error
