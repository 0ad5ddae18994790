"""Rows that stay in Parquet files: what fits and evaluations on a cluster read."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from taurank._types import Longs
from taurank.cluster.connection import Cluster
from taurank.cluster.pieces import Part, Piece, Summary
from taurank.data import storage
from taurank.data.ids import Catalog, WithCatalog, ids_to_arrays


class ClusterRows(WithCatalog):
    """Pieces of Parquet files with the catalog, and what was counted when the workers read them."""

    def __init__(
        self, cluster: Cluster, pieces: Sequence[Piece], catalog: Catalog, summary: Summary, popularity: Longs
    ) -> None:
        self.cluster, self.pieces, self.catalog, self.summary = cluster, list(pieces), catalog, summary
        self.popularity = popularity
        types, arrays = ids_to_arrays(*catalog.lists)
        ids = storage.checksum("catalog", str(types), arrays)
        self.fingerprint = hashlib.blake2b(f"{summary.digest} {ids}".encode(), digest_size=16).hexdigest()
        self._shared: Any = None

    def __len__(self) -> int:
        return self.summary.rows

    @property
    def treated_share(self) -> float:
        """The share of all cells that was treated."""
        return self.summary.treated / self.catalog.n_cells

    @property
    def shared(self) -> Any:
        """The catalog in the object store, put there once."""
        if self._shared is None:
            self._shared = self.cluster.pool.put(self.catalog)
        return self._shared

    def repair(self) -> None:
        """Replace lost workers; a node that was lost may have held the catalog."""
        self.cluster.pool.repair()
        self._shared = None

    def part(self, part: Part, counts: Longs, catalog: Catalog) -> ClusterRows:
        """Some rows, of which there are ``counts``: rows, treated, positives."""
        rows, treated, positives = (int(count) for count in counts[:3])
        digest = f"{self.summary.digest} {part}"
        summary = self.summary._replace(rows=rows, treated=treated, positives=positives, digest=digest)
        pieces = [piece._replace(part=part) for piece in self.pieces]
        return ClusterRows(self.cluster, pieces, catalog, summary, self.popularity)
