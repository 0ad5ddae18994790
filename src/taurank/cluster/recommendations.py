"""``write_recommendations`` by all workers: each writes Parquet files for some users."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from taurank._types import Codes
from taurank.cluster.pool import WorkerPool
from taurank.data.files import atomic_folder
from taurank.learners.recommend import Request

USERS_PER_FILE = 1 << 16


def write_recommendations(pool: WorkerPool, request: Request, folder: str | os.PathLike[str], users: Any) -> int:
    """Write a folder of Parquet files; the number of rows. The folder is there in full or not at all."""
    codes, ids = request.locate(users)
    with atomic_folder(folder) as temporary:
        shared = pool.put(replace(request, threads=1))  # a worker is one core
        tasks = []
        for number, low in enumerate(range(0, max(len(codes), 1), USERS_PER_FILE)):
            high = min(low + USERS_PER_FILE, len(codes))
            some: Any = range(low, high) if users is None else (codes[low:high], ids.slice(low, high - low))
            tasks.append((temporary / f"part-{number:05d}.parquet", some, shared))
        return sum(pool.map(_write_file, tasks))


def _write_file(path: Path, users: range | tuple[Codes, pa.Array], request: Request) -> int:
    """One file, for a range of the model's users or for those given; the number of rows."""
    if isinstance(users, range):
        codes = np.arange(users.start, users.stop, dtype=np.int32)
        return request.write_batches(path, request.batches_of(codes, request.learner.users.decode(codes)))
    codes, ids = users
    return request.write_batches(path, request.batches_of(np.array(codes), ids))
