"""Rows that stay in Parquet files; they go to the workers that need them, piece by piece or regrouped by users."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from taurank._types import Codes, Longs
from taurank.cluster.pieces import PartOfLog, Piece, Summary, Whole, read_part
from taurank.cluster.pool import WorkerPool
from taurank.data import storage
from taurank.data.ids import Catalog, Ids, WithCatalog, ids_to_arrays

GROUPS_AT_ONCE = 64
T = TypeVar("T")


class ClusterRows(WithCatalog):
    """Pieces of a log, and what was counted when the workers read them."""

    def __init__(
        self, pool: WorkerPool, pieces: Sequence[Piece], whole: Whole, summary: Summary, popularity: Longs
    ) -> None:
        self.pool, self.pieces, self.catalog, self.whole = pool, list(pieces), whole.catalog, whole
        self.summary, self.popularity = summary, popularity
        self.shared = pool.put(whole)
        types, arrays = ids_to_arrays(*whole.catalog.lists)
        ids = storage.checksum("catalog", str(types), arrays)
        self.fingerprint = hashlib.blake2b(f"{summary.digest} {ids}".encode(), digest_size=16).hexdigest()

    def __len__(self) -> int:
        return self.summary.rows

    def each_piece(self, function: Callable[..., T], *arguments: Any) -> list[T]:
        """``function(piece, whole, *arguments)`` for every piece, in order."""
        return self.pool.map(function, [(piece, self.shared, *arguments) for piece in self.pieces])

    def each_group(self, groups: Sequence[Codes], function: Callable[..., T], *arguments: Any) -> list[T]:
        """``function(log of the group, *arguments)`` for every group of users, in order.

        A group has positions in the catalog, in order; its log has the catalog of its users and everything else.
        """
        pool, results = self.pool, list[T]()
        for first in range(0, len(groups), GROUPS_AT_ONCE):
            some = groups[first : first + GROUPS_AT_ONCE]
            group_of = np.full(self.n_users, -1, np.int32)
            for number, users in enumerate(some):
                group_of[users] = number
            shared = pool.put(group_of)
            rows = [
                pool.run(n % len(pool), _rows_by_group, piece, self.shared, shared, len(some), parts=len(some))
                for n, piece in enumerate(self.pieces)
            ]
            tasks = [
                (function, users, self.shared, len(rows), *(parts[n] for parts in rows), *arguments)
                for n, users in enumerate(some)
            ]
            results += pool.map(_run, tasks)
        return results


def _rows_by_group(piece: Piece, whole: Whole, group_of: Codes, groups: int) -> list[dict[str, Any]]:
    """The columns of the rows of a piece that belong to each group, in order."""
    part = read_part(piece, whole)
    home = group_of[part.user]
    return [part.take(np.flatnonzero(home == group)).row_columns() for group in range(groups)]


def _run(function: Callable[..., T], users: Codes, whole: Whole, pieces: int, *more: Any) -> T:
    """On a worker: put the log of a group together, and call the function."""
    rows, arguments = more[:pieces], more[pieces:]
    columns: Any = {name: np.concatenate([part[name] for part in rows]) for name in rows[0]}
    columns["user"] = np.searchsorted(users, columns["user"]).astype(np.int32)
    catalog = Catalog(Ids(whole.catalog.users.decode(users), "user_id"), whole.catalog.items, whole.catalog.times)
    facts: Any = {"propensity": None, "timed": whole.timed, "share": whole.treated_share}
    return function(PartOfLog(catalog, **(facts | columns)), *arguments)
