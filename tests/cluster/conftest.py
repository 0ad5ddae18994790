"""Two real Ray nodes on loopback, with token authentication, shared by all tests of this folder."""

from __future__ import annotations

import os
import secrets
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

os.environ.setdefault("RAY_AUTH_MODE", "token")  # Ray reads it when it is imported
os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
os.environ.setdefault("RAY_DISABLE_IMPORT_WARNING", "1")
os.environ.setdefault("RAY_worker_niceness", "0")

USERS, ITEMS, TIMES = 120, 90, 6


@pytest.fixture(scope="session")
def nodes() -> Iterator[Any]:
    """A head with five cores and a second node with one; ended node by node, never by ``ray stop``."""
    pytest.importorskip("ray")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from ray.cluster_utils import Cluster

        head = {"num_cpus": 5, "include_dashboard": False, "object_store_memory": 200 << 20}
        cluster = Cluster(initialize_head=True, head_node_args=head)
        cluster.add_node(num_cpus=1, object_store_memory=200 << 20)
        yield cluster
        cluster.shutdown()


def write_log(folder: Path, rows: int, seed: int, users: int = USERS) -> Path:
    """A log in four files with several row groups each; users overlap between them."""
    rng = np.random.default_rng(seed)
    cells = rng.choice(users * ITEMS * TIMES, rows, replace=False)
    frame = pd.DataFrame(
        {
            "user_id": cells // (ITEMS * TIMES) * 7,
            "item_id": [f"item {code}" for code in cells // TIMES % ITEMS],
            "time": cells % TIMES,
            "treated": rng.integers(0, 2, rows),
            "outcome": (rng.random(rows) < 0.6).astype(int),
            "propensity": np.where(rng.random(rows) < 0.01, 0.9995, rng.uniform(0.05, 0.95, rows)),
        }
    )
    folder.mkdir()
    for part in range(4):
        low, high = rows * part // 4, rows * (part + 1) // 4
        frame.iloc[low:high].to_parquet(folder / f"part-{part}.parquet", row_group_size=1500)
    return folder


@pytest.fixture(scope="session")
def logs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A training log and a test log, which has users that the first does not have."""
    folder = tmp_path_factory.mktemp("logs")
    return write_log(folder / "train", 16_000, 0), write_log(folder / "test", 6_000, 1, USERS + 15)
