"""``read_log``: a log that stays in its files, with the catalog and the counts that learners need."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from taurank.cluster.connection import Cluster, current
from taurank.cluster.fitting import fit
from taurank.cluster.gains import ClusterGains, Estimate
from taurank.cluster.pieces import Summary, find_pieces, merge, summarize
from taurank.cluster.rows import ClusterRows
from taurank.data.ids import ID_COLUMNS, Catalog, Ids
from taurank.data.reader import IdColumn, WrongRows, recorded_ids, single_time
from taurank.data.remote import RemoteLog
from taurank.errors import InputError
from taurank.learners import Learner, Record
from taurank.learners.options import FitOptions

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
    catalog = Catalog(*_catalog(summary, (users, items, times), recorded_ids(source)))
    bought = np.zeros(catalog.n_items, np.int64)
    bought[catalog.items.encode(summary.items)] = summary.bought
    return ClusterLog(cluster, pieces, catalog, summary, bought)


class ClusterLog(ClusterRows, RemoteLog):
    """A log in Parquet files, read by the workers of a cluster; ``fit`` and ``taurank.gains`` accept it."""

    def __repr__(self) -> str:
        recorded = "" if self.summary.has_propensity else ", no propensities"
        return (
            f"ClusterLog({len(self):,} rows, {self.n_users:,} users, {self.n_items:,} items, "
            f"{self.n_times:,} times{recorded})"
        )

    def fit(self, learner: Learner, options: FitOptions) -> list[Record]:
        return fit(learner, self, options)

    def estimate(self, estimator: str, options: Mapping[str, Any]) -> ClusterGains:
        if estimator not in ESTIMATORS:
            raise InputError(f"gains.{estimator} is not available on a cluster; use one of {', '.join(ESTIMATORS)}.")
        return ClusterGains(self, Estimate(estimator, dict(options)))


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
            lists.append(single_time(own, known))
            continue
        reader = IdColumn(column, WrongRows())
        lists.append(reader.encode(reader.add(values), column, own, known)[0])
    return lists
