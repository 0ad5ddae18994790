"""What a ``Log`` and ``Gains`` share: rows of cells with a catalogue, and their way out as frames and files."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import pyarrow as pa

from taurank import tables
from taurank.catalogue import Catalogue, Codes, Ids
from taurank.cells import Numbers, to_batches

if TYPE_CHECKING:
    import pandas as pd


class Rows(ABC):
    """Rows of cells: ``user, item, time`` are positions in the catalogue, one of each per row."""

    catalogue: Catalogue
    user: Codes
    item: Codes
    time: Codes
    timed: bool

    @abstractmethod
    def numbers(self) -> Mapping[str, Numbers | None]:
        """The number columns by name; None where a column is not recorded."""

    def __len__(self) -> int:
        return len(self.user)

    @property
    def n_users(self) -> int:
        return self.catalogue.n_users

    @property
    def n_items(self) -> int:
        return self.catalogue.n_items

    @property
    def n_times(self) -> int:
        return self.catalogue.n_times

    @property
    def users(self) -> Ids:
        return self.catalogue.users

    @property
    def items(self) -> Ids:
        return self.catalogue.items

    @property
    def times(self) -> Ids:
        return self.catalogue.times

    def to_arrow(self) -> pa.Table:
        """The rows as an Arrow table with the caller's ids; its schema carries the catalogue."""
        schema, batches = self._batches()
        return pa.Table.from_batches(batches, schema)

    def to_frame(self) -> pd.DataFrame:
        """The rows as a pandas frame with the caller's ids."""
        frame: pd.DataFrame = self.to_arrow().to_pandas()
        return frame

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write to ``.parquet`` (exact, catalogue included) or ``.csv`` (the rows); never half a file."""
        tables.write_batches(path, *self._batches())

    def _batches(self) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        return to_batches(self.catalogue, (self.user, self.item, self.time), self.timed, self.numbers())
