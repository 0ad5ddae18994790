"""``fit`` on a cluster: users stay at their workers, item blocks travel."""

from __future__ import annotations

import shutil
import weakref
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from taurank._types import Codes, Floats32
from taurank.cluster.pieces import ClusterRows, Piece, Whole, read_part
from taurank.cluster.pool import Lost
from taurank.cluster.worker import Gained, Job, Place, WorkerFit
from taurank.data import storage
from taurank.data.storage import ShardedArray, write_shard
from taurank.errors import InputError, TooLittleData
from taurank.learners import FactorLearner, GainsPass, Learner, Popular, Random, Record
from taurank.learners.options import TrainingOptions
from taurank.learners.training import Epoch
from taurank.sgd.scheduler import Factors, Stats, UnitStats, total
from taurank.sgd.strata import Strata, cut_items


def fit(learner: Learner, log: ClusterRows, options: TrainingOptions) -> list[Record]:
    """Fit a learner to a ``ClusterLog``; returns the records of its epochs.

    The factors of users are in files afterwards, opened memory-mapped.
    """
    log.pool.check_open()
    if options.features is not None:
        raise InputError("features are not used on a cluster; leave them out, or fit on one machine (Log.read).")
    if isinstance(learner, GainsPass):
        return _train(learner, log, options)
    if not isinstance(learner, (Popular, Random)):
        why = "draws its samples from all cells" if isinstance(learner, FactorLearner) else "needs the whole log"
        raise InputError(
            f"{type(learner).__name__} {why} and cannot be fitted on a cluster; fit it on one machine (Log.read), or "
            "use BPR, DLCE, DLTO, BLCE, Popular or Random."
        )
    learner.learn(log)  # type: ignore[arg-type]  # they count purchases alone
    return learner._checked_once(options)


def _train(learner: GainsPass, log: ClusterRows, options: TrainingOptions) -> list[Record]:
    """Train to the end, however many workers are lost on the way: each takes it back to the last checkpoint."""
    pool, source = log.pool, learner.random_state
    before = source.bit_generator.state if isinstance(source, np.random.Generator) else None
    own = None
    if options.checkpoint is not None:  # refuse what cannot be written to before the training, not after it
        folder = Path(options.checkpoint)
        with suppress(OSError):
            folder.rmdir()  # an empty one is as good as none
        if folder.suffix or (folder.exists() and not (folder.is_dir() and storage.is_stored(folder))):
            raise InputError(
                f"the checkpoint '{folder}' must be a new folder or that of a killed fit, whose name has no ending."
            )
    elif before is None:  # a checkpoint needs a seed
        own = pool.new_folder()
        options = replace(options, checkpoint=own / "checkpoint")
    while True:
        try:
            history = learner._train(log, options)  # type: ignore[arg-type]  # see ``prepare`` of logs
            break
        except Lost:
            pool.pids()  # wait until all are there again, or one was lost too often
            if before is not None:
                source.bit_generator.state = before  # type: ignore[union-attr]  # it is a Generator
    if own is not None:
        weakref.finalize(learner.user_factors_, shutil.rmtree, own, ignore_errors=True)
    return history


class Visit(NamedTuple):
    """An item block at a worker: it meets the user blocks from ``high`` down to ``low``.

    ``starts`` says that the worker has the block already: it is the first visit of the epoch."""

    worker: int
    block: int
    high: int
    low: int
    starts: bool


def first_blocks(blocks: int, workers: int) -> tuple[int, ...]:
    """Where the user blocks of each worker begin; the last number is that of all blocks."""
    return tuple(blocks * worker // workers for worker in range(workers + 1))


def visits(blocks: int, workers: int) -> Iterator[Visit]:
    """All visits of an epoch, in an order in which each follows those it needs.

    A worker works on the blocks it starts with while those of its neighbor arrive.
    """
    first = first_blocks(blocks, workers)
    for turn in range(2 * blocks):
        for worker in reversed(range(workers)):
            high, low = min(first[worker + 1] - 1, turn), max(first[worker], turn - blocks + 1)
            if high >= low:
                yield Visit(worker, turn % blocks, high, low, turn < first[worker + 1])


class DistributedFit:
    """One fit of a learner that passes over gains, on all workers.

    ``users`` and ``items`` are the factors of the moment: those of users in files, those of items in memory.
    """

    job: Job

    def __init__(self, log: ClusterRows, learner: GainsPass) -> None:
        self.log, self.pool = log, log.pool
        self.learner = type(learner)(**learner.get_params())  # without what an earlier fit left in it
        self.learner._choose(getattr(learner, "choice_", {}))
        pool, of, pieces = self.pool, (log.shared, self.pool.put(self.learner)), enumerate(log.pieces)
        staged = [pool.run(n % len(pool), _read_gained, piece, *of, parts=2) for n, piece in pieces]
        self._pieces = [positives for _, positives in staged]  # references, until the workers have them
        self.updates = sum(pool.get([count for count, _ in staged]))
        if not self.updates:
            raise TooLittleData(f"{type(learner).__name__} found no usable positive outcome in this log.")
        self._blocks: list[Any] = []  # references to the item blocks after the last epoch
        self._epoch = 0
        self._model: Factors | None = None

    def epoch(self) -> Epoch:
        return Epoch(self.run, self.updates, begin=self.begin)

    def begin(self, seed: int, start: Factors | None) -> Any:
        """The factors before the first epoch; the first time, the positives go to the owners of their users."""
        if self._pieces:
            self._deal(seed)
        self._blocks, self._epoch, self._model = [], 0, start
        items = None if start is None else self.pool.put(start.items)
        self.pool.use_all(WorkerFit.start, start and start.users, items)
        return self

    def _deal(self, seed: int) -> None:
        pool, log, learner = self.pool, self.log, self.learner
        blocks = Strata(log.n_users, log.n_items, self.updates).width
        first = first_blocks(blocks, len(pool))
        self.job = Job(seed, log.n_users, log.n_items, blocks, first, learner.factors, learner.avoid_bought)
        owner, local, places = _assign_users(self.job, self.updates)
        homes = pool.put((owner, local))
        for worker, place in enumerate(places):
            pool.hold(worker, WorkerFit, self.job, worker, place)
        for number, positives in enumerate(self._pieces):
            parts = pool.run(number % len(pool), _split, positives, homes, len(pool), parts=len(pool))
            for worker, part in enumerate(parts):
                pool.use(worker, WorkerFit.add_piece, part)
        pool.use_all(WorkerFit.build)
        self._pieces = []

    def run(self, factors: Any, seed: int, number: int, rate: float, threads: int) -> Stats:
        """All visits of an epoch; every worker gets them in order, and Ray brings the item blocks."""
        pool, job, learner = self.pool, self.job, self.learner
        params = learner.step_params(rate)
        for worker in range(len(pool)):
            pool.use(worker, WorkerFit.begin, number, *self._blocks)
        rows: list[Any] = [None] * job.blocks
        for worker, block, high, low, starts in visits(job.blocks, len(pool)):
            incoming = None if starts else rows[block]
            rows[block] = pool.use(worker, WorkerFit.visit, block, high, low, params, incoming)
        stats = pool.use_all(WorkerFit.end)
        self._blocks, self._epoch, self._model = rows, number, None
        return total_of(stats)

    @property
    def users(self) -> Floats32:
        return self._factors().users

    @property
    def items(self) -> Floats32:
        return self._factors().items

    def _factors(self) -> Factors:
        """The model of this moment, made once per epoch; its files are there for as long as it is used."""
        if self._model is None:
            pool, job, folder = self.pool, self.job, self.log.pool.new_folder()
            workers = range(len(pool))
            edges = [job.n_users * n // len(pool) for n in (*workers, len(pool))]
            slices = [pool.use(n, WorkerFit.slices, edges, parts=len(pool)) for n in workers]
            own = [(edges[n], edges[n + 1], *(parts[n] for parts in slices)) for n in workers]
            users: Any = ShardedArray(pool.get([pool.run(n, _write_users, folder, *own[n]) for n in workers]))
            weakref.finalize(users, shutil.rmtree, folder, ignore_errors=True)
            items = np.empty((job.n_items, job.factors), np.float32)
            cut = cut_items(job.n_items, job.blocks, job.seed, self._epoch)
            for block, rows in enumerate(pool.get(self._blocks)):
                items[cut.members(block)] = rows[:, : job.factors]
            self._model = Factors(users, items)
        return self._model


def total_of(stats: list[UnitStats]) -> Stats:
    """The statistics of an epoch from those of its workers: every unit is zero at all of them but one."""
    whole = np.zeros_like(stats[0])
    for name in whole.dtype.names or ():
        whole[name] = np.sum([part[name] for part in stats], axis=0)
    return total(whole)


def _read_gained(piece: Piece, whole: Whole, learner: GainsPass) -> tuple[int, Gained]:
    """The gains of a piece that the learner passes over, in the order of the rows, and how many they are."""
    cells = learner.gains(read_part(piece, whole))
    time = cells.time if learner.avoid_bought else np.empty(0, np.int32)
    with np.errstate(over="ignore"):  # by_user refuses what is not finite
        weight = cells.value.astype(np.float32)
    return len(cells), Gained(cells.user, cells.item, weight, time)


def _assign_users(job: Job, positives: int) -> tuple[npt.NDArray[np.int16], Codes, list[Place]]:
    """The worker of every user, the user's position there, and the ``Place`` of every worker."""
    groups = Strata(job.n_users, job.n_items, positives).user_groups(job.seed)
    owner, local = np.empty(job.n_users, np.int16), np.empty(job.n_users, np.int32)
    places = []
    for worker, (first, last) in enumerate(pairwise(job.first)):
        edges = groups.start[first : last + 1]
        members = groups.order[edges[0] : edges[-1]]
        codes = np.sort(members)
        owner[codes], local[codes] = worker, np.arange(len(codes), dtype=np.int32)
        places.append(Place(codes, local[members], edges - edges[0]))
    return owner, local, places


def _split(positives: Gained, homes: tuple[npt.NDArray[np.int16], Codes], workers: int) -> list[Gained]:
    """The positives of each worker."""
    owner, local = homes
    home = owner[positives.user]
    own: Any = positives._replace(user=local[positives.user])
    each = [np.flatnonzero(home == worker) for worker in range(workers)]
    return [Gained(*(column[rows] if len(column) else column for column in own)) for rows in each]


def _write_users(folder: Path, low: int, high: int, *slices: tuple[Codes, Floats32]) -> Path:
    """The factors of the users low … high − 1, put together from what each worker has of them."""
    table = np.empty((high - low, slices[0][1].shape[1]), np.float32)
    for codes, rows in slices:
        table[codes - low] = rows
    return write_shard(folder, "user_factors", table)
