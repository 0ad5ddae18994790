"""The workers during one fit: who owns which users, one epoch after the other, and snapshots of the factors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from taurank.cluster import routing
from taurank.cluster.pool import WorkerPool
from taurank.cluster.visits import first_blocks, total_of, visits
from taurank.cluster.worker_fit import SNAPSHOT, EpochReport, Job, WorkerFit
from taurank.data.shards import write_index
from taurank.errors import TooLittleData
from taurank.sgd.losses import SURROGATES
from taurank.sgd.scheduler import Pairwise, Stats
from taurank.sgd.strata import Strata

PIECES_AT_ONCE = 4  # per worker, on their way through the object store


class DistributedFit:
    """One fit of a learner that passes over gains, on all workers of a pool."""

    def __init__(self, pool: WorkerPool, log: Any, learner: Any, seed: int) -> None:
        self.pool, self.log, self.seed = pool, log, seed
        self.learner = type(learner)(**learner.get_params())  # without what an earlier fit left in it
        self.job: Job | None = None
        self.generation: list[int] = []
        self.blocks: list[Any] = []  # references to the item blocks after the last epoch
        self.reports: list[EpochReport] = []

    # loading

    def load(self) -> None:
        """Bring the positives to their owners; only to those that do not have them yet."""
        if self.job is not None and self.generation == self.pool.generation:
            return
        pool = self.pool
        shared, learner = self.log.shared, pool.put(self.learner)
        staged = self._stage(shared, learner)
        count = sum(pool.get([number for number, _ in staged]))
        self.job = job = self._job(count)
        missing = [w for w in range(job.workers) if not self.generation or self.generation[w] != pool.generation[w]]
        owner, local, *places = pool.split(0, 2 + job.workers, routing.assign_users, job)
        for worker in missing:
            pool.hold(worker, WorkerFit, job, worker, places[worker])
        waiting: list[Any] = []
        for number, (_, columns) in enumerate(staged):
            parts = pool.split(number % job.workers, len(missing), routing.split, columns, owner, local, missing)
            for worker, part in zip(missing, parts, strict=True):
                waiting.append(pool.call(worker, WorkerFit.add_piece, number, part, held=True))
            while len(waiting) > PIECES_AT_ONCE * job.workers:
                pool.get(waiting.pop(0))
        pool.get(waiting)
        pool.get([pool.call(worker, WorkerFit.build, held=True) for worker in missing])
        self.generation = list(pool.generation)

    def _stage(self, shared: Any, learner: Any) -> list[Any]:
        """For each piece, references to the number of its positives and to their columns."""
        pool, pieces, staged = self.pool, self.log.pieces, []
        for number, piece in enumerate(pieces):
            task = (piece, shared, self.log.treated_share, learner)
            staged.append(pool.split(number % len(pool), 2, routing.read_gains, *task))
            if number >= PIECES_AT_ONCE * len(pool):
                pool.get(staged[number - PIECES_AT_ONCE * len(pool)][0])
        return staged

    def _job(self, count: int) -> Job:
        learner, log = self.learner, self.log
        if not count:
            raise TooLittleData(f"{type(learner).__name__} found no usable positive outcome in this log.")
        blocks = Strata(log.n_users, log.n_items, count).blocks
        workers = len(self.pool)
        params = Pairwise(learner.learning_rate, learner.regularization, learner.steepness, SURROGATES[learner.loss])
        return Job(
            self.seed, workers, log.n_users, log.n_items, count, blocks, learner.factors,
            tuple(first_blocks(blocks, workers)), params, learner.avoid_bought,
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
        assert job is not None
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
        assert job is not None
        edges = [job.n_users * n // job.workers for n in range(job.workers + 1)]
        numbers = range(job.workers)
        slices = [pool.split(n, job.workers, WorkerFit.slices, edges, held=True) for n in numbers]
        users = [
            pool.call(n, routing.write_users, folder, n, edges[n], edges[n + 1], *(parts[n] for parts in slices))
            for n in numbers
        ]
        items = [pool.call(n, WorkerFit.write_items, folder, *self.blocks, held=True) for n in numbers]
        shards = {"user_factors": pool.get(users), "item_factors": pool.get(items)}
        write_index(folder, SNAPSHOT, {}, {}, shards)
        return folder
