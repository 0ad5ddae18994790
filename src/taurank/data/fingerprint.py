"""One fingerprint for data: two tables share it only if they agree bit for bit, catalog included.

Checkpoints, journals and caches use it to refuse results of other data, and a saved model to name the log it
was trained on. It depends on the data alone: not on the file they came from, nor on the version of a library.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from taurank.data.cell_table import CellTable
from taurank.data.ids import Ids
from taurank.data.remote import RemoteGains, RemoteLog


def fingerprint(*tables: CellTable | RemoteLog | RemoteGains) -> str:
    """A hash of logs and gains: catalog, every row, every number column, and which columns are absent."""
    digest = blake2b(digest_size=16)
    for table in tables:
        if isinstance(table, CellTable):
            _add_table(digest, table)
        else:
            _add_label(digest, f"remote {table.fingerprint}")
    return digest.hexdigest()


def _add_table(digest: blake2b, table: CellTable) -> None:
    _add_label(digest, f"table of {len(table)} rows, timed {table.timed}")
    for ids in (table.users, table.items, table.times):
        _add_ids(digest, ids)
    for name, codes in (("user", table.user), ("item", table.item), ("time", table.time)):
        _add_array(digest, name, codes)
    for name, values in table.numbers().items():
        _add_array(digest, name, values)
    if table.eligibility is not None and not table.eligibility.is_everything:
        _add_label(digest, f"eligibility: {table.eligibility.numbers()}")
        for name, cells in table.eligibility.arrays().items():
            _add_array(digest, f"{name} of {len(cells)}", cells)


def _add_ids(digest: blake2b, ids: Ids) -> None:
    _add_label(digest, f"{ids.column}: {len(ids)} of {ids.values.type}")
    for part in _content(ids.values):
        digest.update(part)


def _content(array: pa.Array) -> list[bytes | memoryview]:
    """The bytes that hold the values, without what lies around them in a slice of a larger array."""
    if pa.types.is_boolean(array.type):
        array = array.cast(pa.int8())
    if pa.types.is_string(array.type) or pa.types.is_binary(array.type):
        _, offsets, data = array.buffers()
        ends = np.frombuffer(offsets, np.int32)[array.offset : array.offset + len(array) + 1]
        text = memoryview(data or b"")[int(ends[0]) : int(ends[-1])] if len(array) else memoryview(b"")
        return [np.diff(ends).tobytes(), text]
    width = array.type.bit_width // 8
    return [memoryview(array.buffers()[1] or b"")[array.offset * width : (array.offset + len(array)) * width]]


def _add_array(digest: blake2b, name: str, array: npt.NDArray[Any] | None) -> None:
    _add_label(digest, f"{name}: {'absent' if array is None else array.dtype.str}")
    if array is not None:
        digest.update(np.ascontiguousarray(array).view(np.uint8).data)


def _add_label(digest: blake2b, label: str) -> None:
    """A label with its length in front, so that no two sequences of parts read alike."""
    digest.update(len(label).to_bytes(8, "little") + label.encode())
