"""Item blocks that travel between workers: the bits of an epoch of threads."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from taurank import DLCE
from taurank.cluster.fit import _assign_users, _split, first_blocks, total_of, visits
from taurank.cluster.worker import Gained, Job, WorkerFit
from taurank.sgd.kernels import pair_params
from taurank.sgd.scheduler import run_pairwise_epoch
from taurank.sgd.strata import Strata, by_user

N_USERS, N_ITEMS, COUNT, SEED, FACTORS = 90, 120, 40_000, 5, 12
PARAMS = pair_params(0.05, 0.01, 2.0)


@pytest.mark.parametrize("blocks", [1, 2, 5, 16])
@pytest.mark.parametrize("workers", [1, 2, 3, 5])
def test_visits_are_the_units_of_the_schedule_in_its_order(blocks: int, workers: int) -> None:
    """Every user block and every item block meets its partners in the order of the rounds."""
    if workers > blocks:
        return
    by_user_block: dict[int, list[int]] = {a: [] for a in range(blocks)}
    by_item_block: dict[int, list[int]] = {b: [] for b in range(blocks)}
    for _, block, high, low, starts in visits(blocks, workers):
        assert starts == (not by_item_block[block])
        for a in range(high, low - 1, -1):
            by_user_block[a].append(block)
            by_item_block[block].append(a)
    for n in range(blocks):
        assert by_user_block[n] == [(n + s) % blocks for s in range(blocks)]
        assert by_item_block[n] == [(n - s) % blocks for s in range(blocks)]


@pytest.mark.parametrize("workers", [1, 2, 3, 30])
@pytest.mark.parametrize("with_baskets", [False, True])
def test_workers_have_the_bits_of_threads(workers: int, with_baskets: bool) -> None:
    random = np.random.default_rng(0)
    user, item, time = (random.integers(0, n, COUNT).astype(np.int32) for n in (N_USERS, N_ITEMS, 900))
    weight = random.normal(size=COUNT).astype(np.float32)
    shape: Any = SimpleNamespace(n_users=N_USERS, n_items=N_ITEMS)
    strata, want = Strata(N_USERS, N_ITEMS, COUNT), DLCE(factors=FACTORS)._initial(shape, SEED)
    assert strata.width >= 3
    positives = by_user(user, item, weight, N_USERS, time if with_baskets else None)
    stats = [run_pairwise_epoch(want, positives, strata, SEED, e, PARAMS, 2) for e in range(2)]

    job = Job(SEED, N_USERS, N_ITEMS, strata.width, first_blocks(strata.width, workers), FACTORS, with_baskets)
    owner, local, places = _assign_users(job, COUNT)
    parts = [WorkerFit(job, number, place) for number, place in enumerate(places)]
    for piece in np.array_split(np.arange(COUNT), 3):
        gained = Gained(user[piece], item[piece], weight[piece], time[piece])
        for part, own in zip(parts, _split(gained, (owner, local), workers), strict=True):
            part.add_piece(own)
    for part in parts:
        part.build()
        part.start(None, None)
    blocks: list[np.ndarray] = []
    for epoch in range(2):
        for part in parts:
            part.begin(epoch, *blocks)
        rows: list[np.ndarray | None] = [None] * strata.width
        for worker, block, high, low, starts in visits(strata.width, workers):
            rows[block] = parts[worker].visit(block, high, low, PARAMS, None if starts else rows[block])
        blocks = [np.array(table) for table in rows]
        assert total_of([part.end() for part in parts]) == stats[epoch]
    for place, part in zip(places, parts, strict=True):
        assert part.users.tobytes() == want.users[place.codes].tobytes()
    for b, table in enumerate(blocks):
        assert table.tobytes() == want.items[parts[0].items.members(b)].tobytes()
