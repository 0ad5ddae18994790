"""The hold-out run of ``learners/holdout.py`` on a cluster: which rows are held out, and what measures it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from taurank.cluster.pieces import Part, count_rows
from taurank.learners.holdout import CAP, estimator_for, last_times, without_times

ROWS, TREATED, POSITIVES, WITHOUT_PROPENSITY = range(4)


class HeldOut(NamedTuple):
    """A log without some of its rows, and the gains of those rows."""

    rest: Any  # ClusterLog
    gains: Any  # ClusterGains


def hold_out(log: Any, by_outcome: bool) -> HeldOut | None:
    """The rows that ``taurank.learners.holdout.hold_out`` holds out; None if either part has no positive outcome."""
    counts = sum(log.cluster.pool.map(count_rows, [(piece, log.shared) for piece in log.pieces]))
    last = last_times(np.flatnonzero(counts[:, :, POSITIVES].sum(0)).astype(np.int32))
    held = (counts[:, last] if len(last) else counts[1:]).sum((0, 1))
    rest = counts.sum((0, 1)) - held
    if not held[POSITIVES] or not rest[POSITIVES]:
        return None
    times = tuple(int(time) for time in last)
    kept = log.part(Part(False, times), rest, without_times(log.catalog, last))
    measured = log.part(Part(True, times), held, log.catalog)
    has_both = 0 < held[TREATED] < log.catalog.n_cells
    name = estimator_for(held[WITHOUT_PROPENSITY] == 0, has_both, by_outcome)
    return HeldOut(kept, measured.estimate(name, {"cap": CAP} if name == "capped_ips" else {}))
