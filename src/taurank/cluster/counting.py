"""CountingBayes on a cluster: pairs are counted where their users are, items are added up, pairs are scored there."""

from __future__ import annotations

from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np

from taurank._types import Floats, Longs
from taurank.cluster.groups import by_group
from taurank.cluster.rows import ClusterRows
from taurank.data.log import Log
from taurank.data.shards import Shard, ShardedArray, write_shard
from taurank.learners.counting import CountingBayes
from taurank.learners.pairs import COUNTS, Pairs, item_means
from taurank.learners.pairs import count as count_pairs

ROWS_PER_GROUP = 1 << 22
PER_PAIR = ("pair_item", *(f"pair_{name}" for name in COUNTS))


def fit(learner: CountingBayes, log: ClusterRows) -> None:
    """The arrays of ``CountingBayes.learn``; those of the pairs stay in files."""
    folder = log.cluster.new_folder("fit")
    number = max(log.cluster.workers, -(-len(log) // ROWS_PER_GROUP))
    groups = np.array_split(np.arange(log.n_users, dtype=np.int32), number)
    files = [folder / f"counts-{n}.npz" for n in range(number)]
    sums = reduce(np.add, by_group(log, groups, count, [(file,) for file in files]))
    means = item_means(sums, float(log.n_users * log.n_times), type(learner).__name__)
    plain = type(learner)(**learner.get_params())
    scored = log.cluster.pool.map(score, [(file, n, plain, means) for n, file in enumerate(files)])
    lengths, shards = zip(*scored, strict=True)
    learner.unseen_ = learner.unseen_scores(means, log.n_times)
    start = np.concatenate(([0], np.cumsum(np.concatenate(lengths)))).astype(np.int64)
    columns: dict[str, Any] = {name: ShardedArray(folder, [part[name] for part in shards]) for name in shards[0]}
    learner.pair_score_ = columns.pop("pair_score")
    cells = {"pair_item_cells": np.full(log.n_items, float(log.n_users * log.n_times)),
             "pair_user_cells": np.full(log.n_users, float(log.n_items * log.n_times))}  # fmt: skip
    times = np.array([log.n_times], np.int64)
    learner.counts_ = Pairs.from_arrays({"pair_start": start, **columns, **cells, "times": times})


def count(log: Log, file: Path) -> Floats:
    """Count the pairs of some users into a file; the sums of every item."""
    pairs = count_pairs(log)
    np.savez(file, **pairs.arrays())
    return pairs.item_sums()


def score(file: Path, number: int, learner: CountingBayes, means: Floats) -> tuple[Longs, dict[str, Shard]]:
    """Score the pairs of a file: how many each user has, and the files of items, scores and counts."""
    with np.load(file) as stored:
        pairs = Pairs.from_arrays(stored)
    arrays = learner.typed_arrays(pairs)
    columns = {"pair_score": learner.pair_scores(pairs, means), **{name: arrays[name] for name in PER_PAIR}}
    shards = {name: write_shard(file.parent, name, number, column) for name, column in columns.items()}
    return np.diff(pairs.start), shards
