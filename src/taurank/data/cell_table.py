"""What a ``Log`` and ``Gains`` share: rows of cells with a catalog, their way out, and a fingerprint.

A Parquet file or an Arrow table carries the catalog and the eligible cells as text in the metadata of its schema.
"""

from __future__ import annotations

import base64
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import KW_ONLY, dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from taurank._types import Codes
from taurank.data import storage
from taurank.data.eligibility import Eligibility
from taurank.data.ids import ID_COLUMNS, Catalog, WithCatalog, ids_from_arrays, ids_to_arrays
from taurank.data.remote import RemoteGains, RemoteLog
from taurank.data.tables import BATCH_ROWS, write_batches
from taurank.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

CATALOG_KEY = b"taurank.catalog"
ELIGIBILITY_KEY = b"taurank.eligibility"

Numbers = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class CellTable(WithCatalog, ABC):
    """Rows of cells: ``user, item, time`` are positions in the catalog, one of each per row."""

    catalog: Catalog
    user: Codes
    item: Codes
    time: Codes
    _: KW_ONLY
    timed: bool = True  # has a column time; without one all rows belong to one time
    eligibility: Eligibility = None  # type: ignore[assignment]  # everything, see __post_init__

    @abstractmethod
    def numbers(self) -> Mapping[str, Numbers | None]:
        """The number columns by name; None where a column is not recorded."""

    def __len__(self) -> int:
        return len(self.user)

    def __post_init__(self) -> None:
        if self.eligibility is None:
            object.__setattr__(self, "eligibility", Eligibility.everything(self.catalog))
        if self.eligibility.shape != self.catalog.shape:
            raise InputError("the eligibility must have the catalog of its cells; use Log.reindex.")
        self.__setstate__(self.__dict__)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A copy or an unpickled table is as frozen as the one it was made from."""
        self.__dict__.update(state)
        for value in self.__dict__.values():
            if isinstance(value, np.ndarray):
                value.flags.writeable = False

    def to_arrow(self) -> pa.Table:
        """The rows as an Arrow table with the caller's ids; its schema carries the catalog."""
        schema, batches = self.stream()
        return pa.Table.from_batches(batches, schema)

    def to_frame(self) -> pd.DataFrame:
        """The rows as a pandas frame with the caller's ids."""
        return self.to_arrow().to_pandas()  # type: ignore[no-any-return]

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write to ``.parquet`` (exact, catalog included) or ``.csv`` (the rows), atomically."""
        write_batches(path, *self.stream())

    def stream(self) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """The rows as a schema, which has catalog and eligible cells, and Arrow batches with the caller's ids."""
        ids = dict(zip(ID_COLUMNS, self.catalog.lists, strict=True))
        codes = dict(zip(ID_COLUMNS, (self.user, self.item, self.time), strict=True))
        if not self.timed:
            del ids["time"]
        numbers = {name: values for name, values in self.numbers().items() if values is not None}
        fields = [pa.field(name, own.values.type) for name, own in ids.items()]
        fields += [pa.field(name, pa.from_numpy_dtype(values.dtype)) for name, values in numbers.items()]
        schema = pa.schema(fields, metadata=to_metadata(self.catalog, self.eligibility))

        def batches() -> Iterator[pa.RecordBatch]:
            for start in range(0, len(self), BATCH_ROWS):
                rows = slice(start, start + BATCH_ROWS)
                columns = [own.decode(codes[name][rows]) for name, own in ids.items()]
                columns += [pa.array(values[rows], from_pandas=True) for values in numbers.values()]  # NaN: null
                yield pa.record_batch(columns, schema=schema)

        return schema, batches()


def to_metadata(catalog: Catalog, eligibility: Eligibility) -> dict[bytes, bytes]:
    types, arrays = ids_to_arrays(*catalog.lists)
    parts: dict[bytes, tuple[str, Any, Any]] = {CATALOG_KEY: ("catalog", {"ids": types}, arrays)}
    if not eligibility.is_everything or any(eligibility.outside):
        steps = {name: np.diff(codes, prepend=0) for name, codes in eligibility.arrays().items()}  # compress well
        parts[ELIGIBILITY_KEY] = ("eligibility", {"outside": eligibility.outside}, steps)
    return {
        key: base64.b64encode(pa.compress(storage.to_bytes(*part), "zstd", asbytes=True))
        for key, part in parts.items()
    }


def from_metadata(metadata: Mapping[bytes, bytes], name: str) -> tuple[Catalog, Eligibility]:
    """The catalog and the eligible cells that the schema of ``name`` carries."""

    def read(key: bytes, kind: str) -> tuple[dict[str, Any], storage.Arrays]:
        what = f"the {kind} of {name}"
        try:
            packed = pa.BufferReader(base64.b64decode(metadata[key], validate=True))
            data = pa.CompressedInputStream(packed, "zstd").read()
        except (ValueError, OSError) as error:  # OSError: what Arrow raises about damaged bytes
            raise InputError(f"{what} is corrupt; save the file again.") from error
        return storage.from_bytes(what, data, kind)

    facts, arrays = read(CATALOG_KEY, "catalog")
    catalog = Catalog(*ids_from_arrays(facts.get("ids"), arrays, *ID_COLUMNS))
    if ELIGIBILITY_KEY not in metadata:
        return catalog, Eligibility.everything(catalog)
    facts, steps = read(ELIGIBILITY_KEY, "eligibility")
    codes = {name: np.cumsum(values) for name, values in steps.items()}
    return catalog, Eligibility.from_arrays(catalog, codes, facts["outside"])


def fingerprint(*tables: CellTable | RemoteLog | RemoteGains) -> str:
    """A hash of logs and gains that only tables share which agree bit for bit, catalog and absent columns included.

    Checkpoints and caches refuse results of other data by it, and a saved model names the log it was trained on. It
    depends on the data alone: not on the file they came from, nor on the version of a library.
    """
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
        add(f"table of {len(table)} rows, timed {table.timed}, {types}, eligible {table.eligibility.outside}")
        columns = {"user": table.user, "item": table.item, "time": table.time, **table.numbers()}
        for name, array in (ids | columns | table.eligibility.arrays()).items():
            add(name, array)
    return digest.hexdigest()
