"""Item blocks that travel between workers: the bits of an epoch of threads."""

from __future__ import annotations

import numpy as np
import pytest

from taurank.cluster.visits import Residents, first_blocks, recut, total_of, visits
from taurank.sgd.kernels import pair_params
from taurank.sgd.planning import by_user
from taurank.sgd.scheduler import Factors, factor_table, run_pairwise_epoch
from taurank.sgd.strata import Strata, cut_items

N_USERS, N_ITEMS, COUNT, SEED = 90, 120, 40_000, 5
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


def start_factors() -> Factors:
    random = np.random.default_rng(1)
    users, items = factor_table(N_USERS, 12), factor_table(N_ITEMS, 12)
    users[:, :12], items[:, :12] = random.normal(size=(N_USERS, 12)), random.normal(size=(N_ITEMS, 12))
    return Factors(users, items)


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("with_baskets", [False, True])
def test_workers_have_the_bits_of_threads(workers: int, with_baskets: bool) -> None:
    random = np.random.default_rng(0)
    user, item, time = (random.integers(0, n, COUNT).astype(np.int32) for n in (N_USERS, N_ITEMS, 900))
    weight = random.normal(size=COUNT)
    strata, want = Strata(N_USERS, N_ITEMS, COUNT), start_factors()
    assert strata.width >= 3
    positives = by_user(user, item, weight, N_USERS, time if with_baskets else None)
    stats = [run_pairwise_epoch(want, positives, strata, SEED, e, PARAMS, 2) for e in range(2)]

    groups, first = strata.user_groups(SEED), first_blocks(strata.width, workers)
    start = start_factors()
    residents, tables, codes = [], [], []
    for worker in range(workers):
        edges = groups.start[first[worker] : first[worker + 1] + 1]
        members = groups.order[edges[0] : edges[-1]]
        own = np.sort(members)
        rows = np.flatnonzero(np.isin(user, own))
        local = np.searchsorted(own, user[rows]).astype(np.int32)
        mine = by_user(local, item[rows], weight[rows], len(own), time[rows] if with_baskets else None)
        place = np.searchsorted(own, members).astype(np.int32)
        residents.append(Residents(mine, place, edges - edges[0], first[worker], strata.width, N_ITEMS))
        table = factor_table(len(own), 12)
        table[:] = start.users[own]
        tables.append(table)
        codes.append(own)

    cut = cut_items(N_ITEMS, strata.width, SEED, 0)
    blocks = {b: start.items[cut.order[cut.start[b] : cut.start[b + 1]]] for b in range(strata.width)}
    for epoch in range(2):
        new = cut_items(N_ITEMS, strata.width, SEED, epoch)
        blocks = recut(cut, new, range(strata.width), [blocks[b] for b in range(strata.width)])
        cut = new
        for one in residents:
            one.plan(SEED, epoch)
        counts = [one.new_stats() for one in residents]
        for worker, block, high, low, _ in visits(strata.width, workers):
            residents[worker].visit(tables[worker], blocks[block], block, high, low, PARAMS, counts[worker])
        assert total_of(counts) == stats[epoch]
    for table, own in zip(tables, codes, strict=True):
        assert table.tobytes() == want.users[own].tobytes()
    for b in range(strata.width):
        assert blocks[b].tobytes() == want.items[cut.order[cut.start[b] : cut.start[b + 1]]].tobytes()
