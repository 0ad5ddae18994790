"""One fingerprint for data: two tables share it only if they agree bit for bit, catalog included.

Checkpoints, journals and caches use it to refuse results of other data, and a saved model to name the log it
was trained on. It depends on the data alone: not on the file they came from, nor on the version of a library.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt

from taurank.data.cell_table import CellTable
from taurank.data.ids import ids_to_arrays
from taurank.data.remote import RemoteGains, RemoteLog


def fingerprint(*tables: CellTable | RemoteLog | RemoteGains) -> str:
    """A hash of logs and gains: catalog, every row, every number column, and which columns are absent."""
    digest = blake2b(digest_size=16)

    def add(label: str, array: npt.NDArray[Any] | None = None) -> None:
        """A part with the length of its label and its own, so that no two sequences of parts read alike."""
        label += " absent" if array is None else f" {array.dtype.str} {array.shape}"
        digest.update(len(label).to_bytes(8, "little") + label.encode())
        if array is not None:
            digest.update(np.ascontiguousarray(array).view(np.uint8).data)

    for table in tables:
        if not isinstance(table, CellTable):
            add(f"remote {table.fingerprint}")
            continue
        types, ids = ids_to_arrays(*table.catalog.lists)
        add(f"table of {len(table)} rows, timed {table.timed}, {types}, eligible {table.eligibility.numbers()}")
        columns = {"user": table.user, "item": table.item, "time": table.time, **table.numbers()}
        for name, array in (ids | columns | table.eligibility.arrays()).items():
            add(name, array)
    return digest.hexdigest()
