"""``write_recommendations`` by all workers: each writes Parquet files for some users."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from taurank.data.files import atomic_folder
from taurank.learners.recommend import Request

USERS_PER_FILE = 1 << 16


class RecommendTask(NamedTuple):
    """Users for one file: the positions low … high − 1 of the model, or those given."""

    path: Path
    low: int
    high: int
    codes: Any
    ids: Any


def write_recommendations(cluster: Any, request: Request, folder: str | os.PathLike[str], users: Any) -> int:
    """Write a folder of Parquet files; the number of rows. The folder is there in full or not at all."""
    codes, ids = request.locate(users)
    with atomic_folder(folder) as temporary:
        shared = cluster.pool.put(replace(request, threads=1))  # a worker is one core
        tasks = []
        for number, low in enumerate(range(0, max(len(codes), 1), USERS_PER_FILE)):
            high = min(low + USERS_PER_FILE, len(codes))
            part = (None, None) if users is None else (codes[low:high], ids.slice(low, high - low))
            tasks.append((RecommendTask(temporary / f"part-{number:05d}.parquet", low, high, *part), shared))
        return int(sum(cluster.pool.map(write_part, tasks)))


def write_part(task: RecommendTask, request: Request) -> int:
    """One file."""
    if task.codes is None:
        codes = np.arange(task.low, task.high, dtype=np.int32)
        ids = request.learner.users.values.slice(task.low, task.high - task.low)
    else:
        codes, ids = np.array(task.codes), task.ids
    return request.write_batches(task.path, request.batches_of(codes, ids))
