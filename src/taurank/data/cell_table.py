"""What a ``Log`` and ``Gains`` share: rows of cells with a catalog, and their way out as frames and files."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from taurank._types import Codes
from taurank.data import writer
from taurank.data.columns import ID_COLUMNS, Numbers
from taurank.data.eligibility import Eligibility
from taurank.data.ids import WithCatalog
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
        writer.write_batches(path, *self.stream())

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
