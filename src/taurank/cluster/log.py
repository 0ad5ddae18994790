"""``ClusterLog``: a log that stays in its files, with the catalog and the counts that learners need."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from taurank._types import Codes
from taurank.cluster import fit, gains
from taurank.cluster.pieces import ClusterRows, Summary, Whole, find_pieces, merge, summarize
from taurank.cluster.pool import WorkerPool
from taurank.data.ids import ID_COLUMNS, Catalog
from taurank.data.log import Log
from taurank.data.reader import IdColumn, WrongRows, recorded_ids, single_time
from taurank.data.remote import RemoteLog
from taurank.errors import InputError
from taurank.learners import GainsPass, Learner, Record
from taurank.learners.options import TrainingOptions
from taurank.learners.training import Epoch

MERGED_AT_ONCE = 8
ESTIMATORS = ("outcome", "naive", "ips", "capped_ips")


def read_log(pool: WorkerPool, path: str | os.PathLike[str], given: tuple[Any, Any, Any]) -> ClusterLog:
    """Read every row once to check it, to build the catalog, and to count; ``given`` are lists of the caller."""
    pieces, source = find_pieces(path)
    summaries = pool.map(summarize, [(piece,) for piece in pieces])
    while len(summaries) > 1:  # in the order of the pieces
        groups = range(0, len(summaries), MERGED_AT_ONCE)
        summaries = pool.map(merge, [tuple(summaries[n : n + MERGED_AT_ONCE]) for n in groups])
    summary: Summary = summaries[0]
    lists = []  # those that ``Log.read`` would make
    for column, values, own, known in zip(ID_COLUMNS, summary[:3], given, recorded_ids(source), strict=True):
        if column == "time" and not summary.timed:
            lists.append(single_time(own, known))
            continue
        reader = IdColumn(column)
        reader.add(values, WrongRows())
        lists.append(reader.encode(own, known)[0])
    catalog = Catalog(*lists)
    bought = np.zeros(catalog.n_items, np.int64)
    bought[catalog.items.encode(summary.items)] = summary.bought
    whole = Whole(catalog, summary.timed, summary.treated / catalog.n_cells)
    return ClusterLog(pool, pieces, whole, summary, bought)


class ClusterLog(ClusterRows, RemoteLog):
    """A log in Parquet files, read by the workers of a cluster; ``fit`` and ``taurank.gains`` accept it."""

    def __repr__(self) -> str:
        recorded = "" if self.summary.has_propensity else ", no propensities"
        return (
            f"ClusterLog({len(self):,} rows, {self.n_users:,} users, {self.n_items:,} items, "
            f"{self.n_times:,} times{recorded})"
        )

    def fit(self, learner: Learner, options: TrainingOptions) -> list[Record]:
        return fit.fit(learner, self, options)

    def prepare(self, learner: GainsPass) -> Epoch:
        return fit.DistributedFit(self, learner).epoch()

    def estimate(self, estimator: str, options: Mapping[str, Any]) -> gains.ClusterGains:
        if estimator not in ESTIMATORS:
            raise InputError(f"gains.{estimator} is not available on a cluster; use one of {', '.join(ESTIMATORS)}.")
        return gains.ClusterGains(self, estimator, options)

    def rows_of(self, users: Codes) -> Log:
        logs: list[Log] = self.each_group([users], lambda log: log)
        return logs[0]
