"""``ClusterLog``: a log that stays in its files, with the catalog and the counts that learners need."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from taurank._types import Longs
from taurank.cluster import fit, gains
from taurank.cluster.pieces import Part, Summary, Whole, count_rows, find_pieces, merge, summarize
from taurank.cluster.pool import WorkerPool
from taurank.cluster.rows import ClusterRows
from taurank.data.ids import ID_COLUMNS, Catalog, Ids
from taurank.data.reader import IdColumn, WrongRows, recorded_ids, single_time
from taurank.data.remote import RemoteLog
from taurank.errors import InputError
from taurank.learners import GainsPass, Learner, Record, holdout
from taurank.learners.options import FitOptions
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
    catalog = Catalog(*_catalog(summary, given, recorded_ids(source)))
    bought = np.zeros(catalog.n_items, np.int64)
    bought[catalog.items.encode(summary.items)] = summary.bought
    whole = Whole(catalog, summary.timed, summary.treated / catalog.n_cells)
    return ClusterLog(pool, pieces, whole, summary, bought)


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


class ClusterLog(ClusterRows, RemoteLog):
    """A log in Parquet files, read by the workers of a cluster; ``fit`` and ``taurank.gains`` accept it."""

    def __repr__(self) -> str:
        recorded = "" if self.summary.has_propensity else ", no propensities"
        return (
            f"ClusterLog({len(self):,} rows, {self.n_users:,} users, {self.n_items:,} items, "
            f"{self.n_times:,} times{recorded})"
        )

    def fit(self, learner: Learner, options: FitOptions) -> list[Record]:
        return fit.fit(learner, self, options)

    def prepare(self, learner: GainsPass) -> Epoch:
        return fit.DistributedFit(self, learner).epoch()

    def estimate(self, estimator: str, options: Mapping[str, Any]) -> gains.ClusterGains:
        if estimator not in ESTIMATORS:
            raise InputError(f"gains.{estimator} is not available on a cluster; use one of {', '.join(ESTIMATORS)}.")
        return gains.ClusterGains(self, estimator, options)

    def hold_out(self, by_outcome: bool) -> tuple[ClusterLog, gains.ClusterGains] | None:
        counts: Any = sum(self.each_piece(count_rows))
        last = holdout.last_times(np.flatnonzero(counts[:, :, 2].sum(0)).astype(np.int32))
        held = (counts[:, last] if len(last) else counts[1:]).sum((0, 1))
        rest = counts.sum((0, 1)) - held
        _, treated, positives, unrecorded = held
        if not positives or not rest[2]:
            return None
        times = tuple(int(time) for time in last)
        kept = self._part(Part(False, times), rest, holdout.without_times(self.catalog, last))
        measured = self._part(Part(True, times), held, self.catalog)
        has_both = 0 < treated < self.catalog.n_cells
        name = holdout.estimator_for(unrecorded == 0, has_both, by_outcome)
        return kept, measured.estimate(name, {"cap": holdout.CAP} if name == "capped_ips" else {})

    def _part(self, part: Part, counts: Longs, catalog: Catalog) -> ClusterLog:
        """Some rows, of which there are ``counts``: rows, treated, positives."""
        rows, treated, positives = (int(count) for count in counts[:3])
        digest = f"{self.summary.digest} {part}"
        summary = self.summary._replace(rows=rows, treated=treated, positives=positives, digest=digest)
        whole = Whole(catalog, self.whole.timed, treated / catalog.n_cells, part)
        return ClusterLog(self.pool, self.pieces, whole, summary, self.popularity)
