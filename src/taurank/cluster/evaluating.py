"""The workers' part of an evaluation: rows by group of users, and the sums of the blocks of a group."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from taurank.cluster.pieces import PartOfLog, Piece, read_part
from taurank.data.ids import Catalog, Codes, Ids
from taurank.data.log import Log
from taurank.estimation import gains as estimators
from taurank.estimation.gains import Gains
from taurank.evaluation.measurement import Measurement
from taurank.evaluation.rankers import ranking_of

Floats = npt.NDArray[np.float64]


class Rows(NamedTuple):
    """Rows of a log, without its catalog."""

    user: Codes
    item: Codes
    time: Codes
    treated: npt.NDArray[np.int8]
    outcome: npt.NDArray[np.int8]
    propensity: Floats | None


class Estimate(NamedTuple):
    """A function of ``taurank.gains`` and its options."""

    name: str
    options: Mapping[str, Any]

    def of(self, log: Log) -> Gains:
        gains: Gains = getattr(estimators, self.name)(log, **self.options)
        return gains


class MeasureTask(NamedTuple):
    """A group of users to measure."""

    users: Codes  # positions in the catalog, in order
    timed: bool
    share: float
    estimate: Estimate
    lacks_overlap: bool  # some row of the whole log
    metrics: Any
    unlisted: Any


def rows_by_group(part: PartOfLog, group_of: npt.NDArray[np.int32], groups: list[int]) -> list[Rows]:
    """The rows of each group of users, in order; users in no group have −1."""
    home = group_of[part.user]
    return [_take(part, np.flatnonzero(home == group)) for group in groups]


def _take(log: Log, rows: npt.NDArray[np.intp]) -> Rows:
    propensity = None if log.propensity is None else log.propensity[rows]
    return Rows(
        log.user[rows], log.item[rows], log.time[rows], log.treated[rows], log.outcome[rows], propensity
    )  # fmt: skip


def group_log(users: Codes, catalog: Catalog, timed: bool, share: float, rows: tuple[Rows, ...]) -> PartOfLog:
    """The log of some users: its catalog has these users and everything else."""
    columns: list[Any] = [np.concatenate([part[n] for part in rows]) for n in range(5)]
    propensity = None if rows[0].propensity is None else np.concatenate([part.propensity for part in rows])  # type: ignore[misc]
    columns[0] = np.searchsorted(users, columns[0]).astype(np.int32)
    own = Catalog(Ids(catalog.users.decode(users), "user_id"), catalog.items, catalog.times)
    user, item, time, treated, outcome = columns
    return PartOfLog(own, user, item, time, treated, outcome, propensity, timed, share=share)


def needed_users(piece: Piece, catalog: Catalog, share: float, estimate: Estimate, whole_log: bool) -> Codes:
    """Users of a piece with a gain or, with ``whole_log``, with any row."""
    part = read_part(piece, catalog, share)
    if whole_log:
        return np.unique(part.user)
    gains = estimate.of(part)
    return np.unique(gains.user[gains.value != 0])


def measure_group(task: MeasureTask, catalog: Catalog, ranker: Any, *rows: Rows) -> tuple[Floats, list[Floats]]:
    """The sums of every user of the group, and those over time of each of its blocks."""
    log = group_log(task.users, catalog, task.timed, task.share, rows)
    gains = task.estimate.of(log)
    measurement = Measurement.prepare(gains, task.metrics, unlisted=task.unlisted)
    measurement = replace(measurement, with_pairs=task.lacks_overlap)  # decided for the whole log, not for this group
    return measurement.sums(ranking_of(ranker, gains.users, gains.items), 1)
