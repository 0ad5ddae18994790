"""``read_log``: a log that stays in its files, with the catalog and the counts that learners need."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from taurank.cluster.connection import Cluster, current
from taurank.cluster.pieces import Part, Piece, Summary, find_pieces, merge, summarize
from taurank.data import storage
from taurank.data.columns import ID_COLUMNS, WrongRows
from taurank.data.ids import Catalog, IdColumn, Ids, ids_to_arrays
from taurank.data.reader import recorded_ids
from taurank.data.remote import RemoteLog
from taurank.errors import InputError

if TYPE_CHECKING:
    from taurank.cluster.gains import ClusterGains

MERGED_AT_ONCE = 8
ESTIMATORS = ("outcome", "naive", "ips", "capped_ips")


def read_log(path: str | os.PathLike[str], users: Any = None, items: Any = None, times: Any = None) -> ClusterLog:
    """A log from Parquet (a file, a glob or a folder that all machines reach), for use inside ``connect``.

    The workers read every row once to check it and to build the catalog; the arguments are those of ``Log.read``.
    Afterwards the rows stay in their files until a fit or an evaluation reads what it needs.
    """
    cluster = current()
    pieces, source = find_pieces(path)
    summary = _merged(cluster, cluster.pool.map(summarize, [(piece,) for piece in pieces]))
    lists = _catalog(summary, (users, items, times), recorded_ids(source))
    catalog = Catalog(*lists)
    bought = np.zeros(catalog.n_items, np.int64)
    bought[catalog.items.encode(summary.items)] = summary.bought
    return ClusterLog(cluster, pieces, catalog, summary, bought)


class ClusterLog(RemoteLog):
    """A log in Parquet files, read by the workers of a cluster; ``fit`` and ``taurank.gains`` accept it."""

    def __init__(
        self, cluster: Cluster, pieces: Sequence[Piece], catalog: Catalog, summary: Summary,
        bought: npt.NDArray[np.int64],
    ) -> None:  # fmt: skip
        self.cluster, self.pieces, self.catalog, self.summary = cluster, list(pieces), catalog, summary
        self.popularity = bought
        types, arrays = ids_to_arrays(*catalog.lists)
        ids = storage.checksum("catalog", str(types), arrays)
        self.fingerprint = hashlib.blake2b(f"{summary.digest} {ids}".encode(), digest_size=16).hexdigest()
        self._shared: Any = None

    def __len__(self) -> int:
        return self.summary.rows

    def __repr__(self) -> str:
        recorded = "" if self.summary.has_propensity else ", no propensities"
        return (
            f"ClusterLog({len(self):,} rows, {self.n_users:,} users, {self.n_items:,} items, "
            f"{self.n_times:,} times{recorded})"
        )

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

    def forget_shared(self) -> None:
        """Put the catalog there again when it is next needed: a node that is lost may have held it."""
        self._shared = None

    def part(self, part: Part, counts: npt.NDArray[np.int64], catalog: Catalog) -> ClusterLog:
        """Some rows, of which there are ``counts``: rows, treated, positives."""
        rows, treated, positives = (int(count) for count in counts[:3])
        digest = f"{self.summary.digest} {part}"
        summary = self.summary._replace(rows=rows, treated=treated, positives=positives, digest=digest)
        pieces = [piece._replace(part=part) for piece in self.pieces]
        return ClusterLog(self.cluster, pieces, catalog, summary, self.popularity)

    def fit(self, learner: Any, options: Any) -> list[Any]:
        from taurank.cluster.fitting import fit

        return fit(learner, self, options)

    def estimate(self, estimator: str, options: Mapping[str, Any]) -> ClusterGains:
        from taurank.cluster.gains import ClusterGains

        if estimator not in ESTIMATORS:
            raise InputError(f"gains.{estimator} is not available on a cluster; use one of {', '.join(ESTIMATORS)}.")
        return ClusterGains(self, estimator, dict(options))


def _merged(cluster: Cluster, summaries: list[Summary]) -> Summary:
    """One summary, merged a few at a time, in the order of the pieces."""
    while True:
        groups = [summaries[n : n + MERGED_AT_ONCE] for n in range(0, len(summaries), MERGED_AT_ONCE)]
        summaries = cluster.pool.map(merge, [tuple(group) for group in groups])
        if len(summaries) == 1:
            return summaries[0]


def _catalog(summary: Summary, given: tuple[Any, Any, Any], recorded: Sequence[Any]) -> list[Ids]:
    """The lists that ``Log.read`` would make."""
    lists = []
    for column, values, own, known in zip(ID_COLUMNS, summary[:3], given, recorded, strict=True):
        if column == "time" and not summary.timed:
            own_time = own if own is not None else known if known is not None and len(known) == 1 else [0]
            lists.append(Ids(own_time, "time"))
            continue
        reader = IdColumn(column, WrongRows())
        reader.add(values)
        ids, at = reader.catalog(column, own, known)
        if (at < 0).any():
            raise ids.unknown(int(np.count_nonzero(at < 0)), values[int(np.flatnonzero(at < 0)[0])])
        lists.append(ids)
    return lists
