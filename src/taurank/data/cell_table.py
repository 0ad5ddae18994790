"""What a ``Log`` and ``Gains`` share: rows of cells with a catalog, and their way out as frames and files."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from taurank.data import writer
from taurank.data.columns import ID_COLUMNS, Numbers
from taurank.data.eligibility import Eligibility
from taurank.data.ids import Catalog, Codes, WithCatalog
from taurank.data.metadata import to_metadata
from taurank.data.sources import BATCH_ROWS

if TYPE_CHECKING:
    import pandas as pd


class CellTable(WithCatalog, ABC):
    """Rows of cells: ``user, item, time`` are positions in the catalog, one of each per row."""

    user: Codes
    item: Codes
    time: Codes
    timed: bool
    eligibility: Eligibility | None = None  # only a log has it

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
        """Write to ``.parquet`` (exact, catalog included) or ``.csv`` (the rows); never half a file."""
        writer.write_batches(path, *self.stream())

    def stream(self) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """The rows as a schema and Arrow batches."""
        codes = (self.user, self.item, self.time)
        return to_batches(self.catalog, codes, self.timed, self.numbers(), self.eligibility)


def to_batches(
    catalog: Catalog,
    codes: tuple[Codes, Codes, Codes],
    timed: bool,
    numbers: Mapping[str, Numbers | None],
    eligibility: Eligibility | None = None,
) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Rows as a stream of Arrow batches with the caller's ids; the schema has catalog and eligible cells."""
    ids = dict(zip(ID_COLUMNS, (catalog.users, catalog.items, catalog.times), strict=True))
    coded = dict(zip(ID_COLUMNS, codes, strict=True))
    if not timed:
        del ids["time"], coded["time"]
    plain = {name: values for name, values in numbers.items() if values is not None}
    fields = [pa.field(name, ids[name].values.type) for name in ids]
    fields += [pa.field(name, pa.from_numpy_dtype(values.dtype)) for name, values in plain.items()]
    schema = pa.schema(fields, metadata=to_metadata(catalog, eligibility))

    def batches() -> Iterator[pa.RecordBatch]:
        for start in range(0, len(codes[0]), BATCH_ROWS):
            rows = slice(start, start + BATCH_ROWS)
            columns = [ids[name].decode(coded[name][rows]) for name in ids]
            columns += [pa.array(values[rows], from_pandas=True) for values in plain.values()]  # NaN: null
            yield pa.record_batch(columns, schema=schema)

    return schema, batches()
