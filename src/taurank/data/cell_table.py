"""What a ``Log`` and ``Gains`` share: rows of cells with a catalog, and their way out as frames and files."""

from __future__ import annotations

import base64
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from taurank._types import Codes, Longs
from taurank.data import storage
from taurank.data.eligibility import Eligibility, Members
from taurank.data.ids import ID_COLUMNS, Catalog, WithCatalog, ids_from_arrays, ids_to_arrays
from taurank.data.remote import RemoteGains, RemoteLog
from taurank.data.tables import BATCH_ROWS, write_batches
from taurank.errors import InputError

if TYPE_CHECKING:
    import pandas as pd


Numbers = npt.NDArray[Any]


class CellTable(WithCatalog, ABC):
    """Rows of cells: ``user, item, time`` are positions in the catalog, one of each per row."""

    user: Codes
    item: Codes
    time: Codes
    timed: bool
    eligibility: Eligibility

    @abstractmethod
    def numbers(self) -> Mapping[str, Numbers | None]:
        """The number columns by name; None where a column is not recorded."""

    def __len__(self) -> int:
        return len(self.user)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A copy or an unpickled table is as frozen as the one it was made from."""
        self.__dict__.update(state)
        self._freeze()

    def _freeze(self) -> None:
        for value in self.__dict__.values():
            if isinstance(value, np.ndarray):
                value.flags.writeable = False

    def to_arrow(self) -> pa.Table:
        """The rows as an Arrow table with the caller's ids; its schema carries the catalog."""
        schema, batches = self.stream()
        return pa.Table.from_batches(batches, schema)

    def to_frame(self) -> pd.DataFrame:
        """The rows as a pandas frame with the caller's ids."""
        frame: pd.DataFrame = self.to_arrow().to_pandas()
        return frame

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


CATALOG_KEY = b"taurank.catalog"
ELIGIBILITY_KEY = b"taurank.eligibility"
_UNSIGNED = (np.uint8, np.uint16, np.uint32, np.uint64)


def to_metadata(catalog: Catalog, eligibility: Eligibility | None = None) -> dict[bytes, bytes]:
    """The catalog, and the eligible cells if they are limited, as metadata of a schema."""
    types, arrays = ids_to_arrays(*catalog.lists)
    metadata = {CATALOG_KEY: _to_text("catalog", {"ids": types}, arrays)}
    if eligibility is not None and not (eligibility.is_everything and eligibility.numbers() == (0, 0)):
        steps = {name: _differences(codes) for name, codes in eligibility.arrays().items()}
        metadata[ELIGIBILITY_KEY] = _to_text("eligibility", {"outside": eligibility.numbers()}, steps)
    return metadata


def from_metadata(metadata: Mapping[bytes, bytes]) -> Catalog | None:
    """The catalog that a schema carries, if it carries one."""
    text = metadata.get(CATALOG_KEY)
    if text is None:
        return None
    facts, arrays = _from_text("catalog", text)
    return Catalog(*ids_from_arrays(facts.get("ids"), arrays, "user_id", "item_id", "time"))


def eligibility_from_metadata(metadata: Mapping[bytes, bytes], catalog: Catalog) -> Eligibility:
    """The eligible cells that a schema carries beside its catalog; everything, if it has none."""
    text = metadata.get(ELIGIBILITY_KEY)
    if text is None:
        return Eligibility.everything(catalog)
    facts, steps = _from_text("eligibility", text)
    limits = {"visitors": catalog.n_users, "candidates": catalog.n_items}
    members = {name: Members(size, catalog.n_times) for name, size in limits.items()}
    try:
        listed = _sums(steps.pop("listed"), catalog.n_cells) if "listed" in steps else None
        for key, values in steps.items():
            name, _, form = key.partition("_")
            codes = _sums(values, limits[name] * (catalog.n_times if form == "timed" else 1))
            members[name] = Members(limits[name], catalog.n_times, codes, form == "timed")
        treated, outcomes = facts["outside"]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError("the eligible cells are not those of the catalog; save the file again.") from error
    return Eligibility(members["visitors"], members["candidates"], listed, treated, outcomes)


def _to_text(kind: str, metadata: Mapping[str, Any], arrays: storage.Arrays) -> bytes:
    return base64.b64encode(pa.compress(storage.to_bytes(kind, metadata, arrays), "zstd", asbytes=True))


def _from_text(kind: str, text: bytes) -> tuple[dict[str, Any], storage.Arrays]:
    try:
        packed = pa.BufferReader(base64.b64decode(text, validate=True))
        data = pa.CompressedInputStream(packed, "zstd").read()
    except (ValueError, OSError) as error:  # OSError: what Arrow raises about damaged bytes
        raise InputError(f"the {kind} is corrupt; save the file again.") from error
    return storage.from_bytes(f"the {kind}", data, kind)


def _differences(codes: Longs) -> np.ndarray[tuple[int], np.dtype[np.unsignedinteger]]:
    """Sorted codes as steps from one to the next, from −1 on, in the smallest type: they compress well."""
    steps = np.diff(codes, prepend=-1)
    largest = int(steps.max(initial=0))
    return steps.astype(next(kind for kind in _UNSIGNED if largest <= np.iinfo(kind).max))


def _sums(steps: Any, limit: int) -> Longs:
    """The codes behind the steps, which must be sorted and below the limit."""
    codes: Longs = np.cumsum(steps, dtype=np.int64) - 1
    if len(codes) and not (codes[0] >= 0 and codes[-1] < limit and (codes[1:] > codes[:-1]).all()):
        raise ValueError("the codes are not sorted or out of range")
    return codes


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
