"""From row groups to the workers that own the users: the positives of a fit, and who gets them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from taurank.cluster.pieces import Piece, read_part
from taurank.cluster.visits import first_blocks
from taurank.cluster.worker_fit import Job
from taurank.data.ids import Catalog, Codes
from taurank.data.shards import Shard, write_shard
from taurank.sgd.strata import Strata

Float32s = npt.NDArray[np.float32]


class Columns(NamedTuple):
    """Positives: users are positions in the catalog, after ``split`` among the users of a worker."""

    user: Codes
    item: Codes
    weight: Float32s
    time: Codes  # empty unless the method needs baskets


class Assignment(NamedTuple):
    """The users of one worker: their codes in order, and the members of its blocks as positions among them."""

    codes: Codes
    members: Codes
    start: npt.NDArray[np.int64]


def read_gains(piece: Piece, catalog: Catalog, share: float, learner: Any) -> tuple[int, Columns]:
    """The gains of a piece that the learner passes over, in the order of the rows."""
    log = read_part(piece, catalog, share)
    cells = learner.gains(log)
    time = cells.time if learner.avoid_bought else np.empty(0, np.int32)
    with np.errstate(over="ignore"):  # by_user refuses what is not finite
        weight = cells.value.astype(np.float32)
    return len(cells), Columns(cells.user, cells.item, weight, time)


def assign_users(job: Job) -> tuple[Any, ...]:
    """The worker of every user, the user's position there, and the ``Assignment`` of every worker."""
    strata = Strata(job.n_users, job.n_items, job.n_positives)
    groups, first = strata.user_groups(job.seed), first_blocks(strata.blocks, job.workers)
    owner, local = np.empty(job.n_users, np.int16), np.empty(job.n_users, np.int32)
    places = []
    for worker in range(job.workers):
        edges = groups.start[first[worker] : first[worker + 1] + 1]
        members = groups.members[edges[0] : edges[-1]]
        codes = np.sort(members)
        owner[codes] = worker
        local[codes] = np.arange(len(codes), dtype=np.int32)
        places.append(Assignment(codes, local[members], edges - edges[0]))
    return owner, local, *places


def split(columns: Columns, owner: npt.NDArray[np.int16], local: Codes, owners: list[int]) -> list[Columns]:
    """The positives of each of these workers."""
    home = owner[columns.user]
    parts = []
    for worker in owners:
        rows = np.flatnonzero(home == worker)
        time = columns.time[rows] if len(columns.time) else columns.time
        parts.append(Columns(local[columns.user[rows]], columns.item[rows], columns.weight[rows], time))
    return parts


def write_users(folder: Path, number: int, low: int, high: int, *slices: tuple[Codes, Float32s]) -> Shard:
    """The factors of the users low … high − 1, put together from what each worker has of them."""
    table = np.empty((high - low, slices[0][1].shape[1]), np.float32)
    for codes, rows in slices:
        table[codes - low] = rows
    return write_shard(folder, "user_factors", number, table)
