"""The workers during one fit: who owns which users, one epoch after the other, and snapshots of the factors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from taurank._types import Codes, Floats32
from taurank.cluster.pieces import Piece, read_part
from taurank.cluster.pool import Lost
from taurank.cluster.rows import ClusterRows
from taurank.cluster.visits import first_blocks, total_of, visits
from taurank.cluster.worker_fit import SNAPSHOT, EpochReport, Job, Place, Positives, WorkerFit
from taurank.data.ids import Catalog
from taurank.data.shards import Shard, write_index, write_shard
from taurank.errors import TooLittleData
from taurank.learners import GainsPass
from taurank.sgd.losses import SURROGATES
from taurank.sgd.scheduler import Stats
from taurank.sgd.strata import Strata

PIECES_AT_ONCE = 4  # per worker, on their way through the object store


class DistributedFit:
    """One fit of a learner that passes over gains, on all workers of a pool. Call ``load`` first."""

    job: Job

    def __init__(self, log: ClusterRows, learner: GainsPass, seed: int) -> None:
        self.pool, self.log, self.seed = log.cluster.pool, log, seed
        self.learner = type(learner)(**learner.get_params())  # without what an earlier fit left in it
        self.generation: list[int] = []  # of the pool's workers when they were loaded
        self.blocks: list[Any] = []  # references to the item blocks after the last epoch
        self.reports: list[EpochReport] = []

    # loading

    def load(self) -> int:
        """Bring the positives to their owners, those that do not have them yet; how many positives there are."""
        while self.generation != self.pool.generation:
            try:
                self._load()
            except Lost:
                self.log.repair()
        return self.job.n_positives

    def _load(self) -> None:
        pool, staged = self.pool, self._stage()
        self.job = job = self._job(sum(pool.get([number for number, _ in staged])))
        missing = [w for w in range(job.workers) if not self.generation or self.generation[w] != pool.generation[w]]
        owner, local, *places = pool.split(0, 2 + job.workers, assign_users, job)
        for worker in missing:
            pool.hold(worker, WorkerFit, job, worker, places[worker])
        waiting: list[Any] = []
        for number, (_, positives) in enumerate(staged):
            parts = pool.split(number % job.workers, len(missing), split, positives, owner, local, missing)
            for worker, part in zip(missing, parts, strict=True):
                waiting.append(pool.call(worker, WorkerFit.add_piece, number, part, held=True))
            while len(waiting) > PIECES_AT_ONCE * job.workers:
                pool.get(waiting.pop(0))
        pool.get(waiting)
        pool.get([pool.call(worker, WorkerFit.build, held=True) for worker in missing])
        self.generation = list(pool.generation)

    def _stage(self) -> list[list[Any]]:
        """For each piece, references to the number of its positives and to their columns."""
        pool, log, staged = self.pool, self.log, []
        learner = pool.put(self.learner)
        for number, piece in enumerate(log.pieces):
            task = (piece, log.shared, log.treated_share, learner)
            staged.append(pool.split(number % len(pool), 2, read_positives, *task))
            if number >= PIECES_AT_ONCE * len(pool):
                pool.get(staged[number - PIECES_AT_ONCE * len(pool)][0])
        return staged

    def _job(self, count: int) -> Job:
        learner, log, workers = self.learner, self.log, len(self.pool)
        if not count:
            raise TooLittleData(f"{type(learner).__name__} found no usable positive outcome in this log.")
        blocks = Strata(log.n_users, log.n_items, count).width
        return Job(
            self.seed, workers, log.n_users, log.n_items, count, blocks, learner.factors,
            tuple(first_blocks(blocks, workers)), learner.regularization, learner.steepness, SURROGATES[learner.loss],
            learner.avoid_bought,
        )  # fmt: skip

    # epochs

    def start(self) -> None:
        """The factors before the first epoch."""
        self.blocks = []
        self.pool.each(WorkerFit.start)

    def restore(self, folder: Path) -> None:
        """The factors of a snapshot."""
        self.blocks = []
        self.pool.each(WorkerFit.restore, folder)

    def run_epoch(self, epoch: int, rate: float) -> Stats:
        """All visits of an epoch; every worker gets them in order, and Ray brings the item blocks."""
        pool, job = self.pool, self.job
        for worker in range(job.workers):
            pool.call(worker, WorkerFit.plan, epoch, held=True)
        for worker in range(job.workers):
            pool.call(worker, WorkerFit.begin, *self.blocks, held=True)
        rows: list[Any] = [None] * job.blocks
        for worker, block, high, low, starts in visits(job.blocks, job.workers):
            incoming = None if starts else rows[block]
            rows[block] = pool.call(worker, WorkerFit.visit, block, high, low, rate, incoming, held=True)
        self.reports = pool.each(WorkerFit.end)
        self.blocks = rows
        pool.losses = 0
        return total_of([report.stats for report in self.reports])

    # snapshots

    def snapshot(self, folder: Path) -> Path:
        """Write the factors as a folder."""
        pool, job = self.pool, self.job
        edges = [job.n_users * n // job.workers for n in range(job.workers + 1)]
        numbers = range(job.workers)
        slices = [pool.split(n, job.workers, WorkerFit.slices, edges, held=True) for n in numbers]
        users = [
            pool.call(n, write_users, folder, n, edges[n], edges[n + 1], *(parts[n] for parts in slices))
            for n in numbers
        ]
        items = [pool.call(n, WorkerFit.write_items, folder, *self.blocks, held=True) for n in numbers]
        shards = {"user_factors": pool.get(users), "item_factors": pool.get(items)}
        write_index(folder, SNAPSHOT, {}, {}, shards)
        return folder


# what the workers run for it


def read_positives(piece: Piece, catalog: Catalog, share: float, learner: GainsPass) -> tuple[int, Positives]:
    """The gains of a piece that the learner passes over, in the order of the rows."""
    log = read_part(piece, catalog, share)
    cells = learner.gains(log)
    time = cells.time if learner.avoid_bought else np.empty(0, np.int32)
    with np.errstate(over="ignore"):  # by_user refuses what is not finite
        weight = cells.value.astype(np.float32)
    return len(cells), Positives(cells.user, cells.item, weight, time)


def assign_users(job: Job) -> tuple[Any, ...]:
    """The worker of every user, the user's position there, and the ``Place`` of every worker."""
    strata = Strata(job.n_users, job.n_items, job.n_positives)
    groups, first = strata.user_groups(job.seed), job.first
    owner, local = np.empty(job.n_users, np.int16), np.empty(job.n_users, np.int32)
    places = []
    for worker in range(job.workers):
        edges = groups.start[first[worker] : first[worker + 1] + 1]
        members = groups.order[edges[0] : edges[-1]]
        codes = np.sort(members)
        owner[codes] = worker
        local[codes] = np.arange(len(codes), dtype=np.int32)
        places.append(Place(codes, local[members], edges - edges[0]))
    return owner, local, *places


def split(positives: Positives, owner: npt.NDArray[np.int16], local: Codes, owners: list[int]) -> list[Positives]:
    """The positives of each of these workers."""
    home = owner[positives.user]
    parts = []
    for worker in owners:
        rows = np.flatnonzero(home == worker)
        time = positives.time[rows] if len(positives.time) else positives.time
        parts.append(Positives(local[positives.user[rows]], positives.item[rows], positives.weight[rows], time))
    return parts


def write_users(folder: Path, number: int, low: int, high: int, *slices: tuple[Codes, Floats32]) -> Shard:
    """The factors of the users low … high − 1, put together from what each worker has of them."""
    table = np.empty((high - low, slices[0][1].shape[1]), np.float32)
    for codes, rows in slices:
        table[codes - low] = rows
    return write_shard(folder, "user_factors", number, table)
