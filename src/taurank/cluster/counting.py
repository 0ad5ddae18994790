"""CountingBayes on a cluster: pairs are counted where their users are, items are added up, pairs are scored there."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from taurank.cluster.evaluating import Rows, group_log
from taurank.cluster.grouping import send_rows
from taurank.data.ids import Catalog, Codes
from taurank.data.shards import Shard, ShardedArray, write_shard
from taurank.learners.counting import ItemMeans, item_means, item_sums
from taurank.learners.pairs import COUNTS, Pairs
from taurank.learners.pairs import count as count_pairs

ROWS_PER_GROUP = 1 << 22
PER_PAIR = ("pair_item", *(f"pair_{name}" for name in COUNTS))


class CountTask(NamedTuple):
    """The users low … high − 1."""

    folder: Path
    number: int
    users: Codes
    timed: bool


class ScoreTask(NamedTuple):
    folder: Path
    number: int
    learner: Any
    means: ItemMeans


def fit(learner: Any, log: Any) -> None:
    """The arrays of ``CountingBayes.learn``; those of the pairs stay in files."""
    folder = log.cluster.new_folder("fit")
    number = max(log.cluster.workers, -(-len(log) // ROWS_PER_GROUP))
    edges = [log.n_users * n // number for n in range(number + 1)]
    groups = [np.arange(low, high, dtype=np.int32) for low, high in pairwise(edges)]
    tasks = [(CountTask(folder, n, users, log.summary.timed), log.shared) for n, users in enumerate(groups)]
    sums = sum(send_rows(log, groups, count, tasks))
    means = item_means(sums, float(log.n_users * log.n_times), type(learner).__name__)
    plain = type(learner)(**learner.get_params())
    scoring = [(ScoreTask(folder, n, plain, means),) for n in range(number)]
    lengths, shards = zip(*log.cluster.pool.map(score, scoring), strict=True)
    learner.unseen_ = learner.unseen_scores(means, log.n_times)
    start = np.concatenate(([0], np.cumsum(np.concatenate(lengths)))).astype(np.int64)
    columns = {name: ShardedArray(folder, [part[name] for part in shards]) for name in shards[0]}
    learner.pair_score_ = columns.pop("pair_score")
    cells = {"pair_item_cells": np.full(log.n_items, float(log.n_users * log.n_times)),
             "pair_user_cells": np.full(log.n_users, float(log.n_items * log.n_times))}  # fmt: skip
    times = np.array([log.n_times], np.int64)
    learner.counts_ = Pairs.from_arrays({"pair_start": start, **columns, **cells, "times": times})


def count(task: CountTask, catalog: Catalog, *rows: Rows) -> npt.NDArray[np.float64]:
    """Count the pairs of some users into a file; the sums of every item."""
    pairs = count_pairs(group_log(task.users, catalog, task.timed, 0.0, rows))
    np.savez(_file(task), **pairs.arrays())
    return item_sums(pairs)


def score(task: ScoreTask) -> tuple[npt.NDArray[np.int64], dict[str, Shard]]:
    """Score the pairs of a file: how many each user has, and the files of items, scores and counts."""
    with np.load(_file(task)) as stored:
        pairs = Pairs.from_arrays(stored)
    arrays = task.learner.typed_arrays(pairs)
    columns = {"pair_score": task.learner.pair_scores(pairs, task.means), **{name: arrays[name] for name in PER_PAIR}}
    shards = {name: write_shard(task.folder, name, task.number, column) for name, column in columns.items()}
    return np.diff(pairs.start), shards


def _file(task: CountTask | ScoreTask) -> Path:
    return task.folder / f"counts-{task.number}.npz"
