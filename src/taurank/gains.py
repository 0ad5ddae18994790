"""Gains: sparse values (user, item, time) that a ranking can be measured by.

The truth τ, the outcome Y and every estimate of τ are all gains; a metric never knows which it was given.
A cell without a row has gain 0.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from taurank import tables
from taurank.catalogue import Catalogue, Codes, Ids
from taurank.cells import Rule, read_cells, to_batches

if TYPE_CHECKING:
    import pandas as pd


def _not_finite(values: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    return ~np.isfinite(values)


RULES = (Rule("value", np.float64, _not_finite, "finite numbers"),)


@dataclass(frozen=True, eq=False)
class Gains:
    """Gains of cells, with the catalogue of the log they belong to.

    ``user, item, time`` are positions in the catalogue; ``name`` says what the values are ("truth",
    "outcome", "ips", …).
    """

    catalogue: Catalogue
    user: Codes
    item: Codes
    time: Codes
    value: npt.NDArray[np.float64]
    name: str = "gain"
    timed: bool = True

    def __post_init__(self) -> None:
        for array in (self.user, self.item, self.time, self.value):
            array.flags.writeable = False

    @classmethod
    def from_frame(cls, frame: Any, users: Any = None, items: Any = None, times: Any = None) -> Gains:
        """Gains from a pandas, Polars or PyArrow frame with ``user_id, item_id, value``, optional ``time``.

        ``users``, ``items`` and ``times`` name a larger catalogue, and its order is kept. The research
        format (``idx_user, idx_item, idx_time, causal_effect``) is read too.
        """
        return cls._from_source(tables.from_frame(frame), (users, items, times), {})

    @classmethod
    def read(
        cls,
        path: str | os.PathLike[str],
        users: Any = None,
        items: Any = None,
        times: Any = None,
        id_types: Mapping[str, Any] | None = None,
    ) -> Gains:
        """Gains from Parquet or CSV: one file, a glob or a folder; see ``Log.read``."""
        return cls._from_source(tables.from_files(path), (users, items, times), id_types or {})

    @classmethod
    def _from_source(
        cls, source: tables.Source, given: tuple[Any, Any, Any], id_types: Mapping[str, Any]
    ) -> Gains:
        cells = read_cells(source, given, RULES, {"value": "causal_effect"}, id_types)
        return cls(
            cells.catalogue, cells.user, cells.item, cells.time, cells.numbers["value"], timed=cells.timed
        )

    def __len__(self) -> int:
        return len(self.user)

    def __repr__(self) -> str:
        return (
            f"Gains({self.name}: {len(self):,} cells, {self.n_users:,} users, {self.n_items:,} items, "
            f"{self.n_times:,} times)"
        )

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
        """The cells as an Arrow table with the caller's ids; its schema carries the catalogue."""
        schema, batches = self._batches()
        return pa.Table.from_batches(batches, schema)

    def to_frame(self) -> pd.DataFrame:
        """The cells as a pandas frame ``user_id, item_id, time, value`` with the caller's ids."""
        return self.to_arrow().to_pandas()

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write to ``.parquet`` (exact, catalogue included) or ``.csv`` (the rows); never half a file."""
        tables.write_batches(path, *self._batches())

    def _batches(self) -> Any:
        codes = (self.user, self.item, self.time)
        return to_batches(self.catalogue, codes, self.timed, {"value": self.value})
