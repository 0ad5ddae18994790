"""Epochs: the same bits on any number of threads, fair negatives, honest statistics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from support.factors import copied, some_pairs, some_points, some_positives, start_tables
from taurank.sgd.kernels import CACHED_FACTORS, pair_params, point_params
from taurank.sgd.losses import SURROGATES
from taurank.sgd.scheduler import Factors, Stats, factor_table, run_pairwise_epoch, run_samples
from taurank.sgd.strata import Baskets, Positives, Strata, by_user

Run = Callable[[Factors, int], Stats]


def runs() -> dict[str, Run]:
    strata, positives = Strata(200, 150, 40_000), some_positives(200, 150, 40_000)
    of_pairs = Strata(200, 150, 40_000, pairs=True)
    pairs, points = (make(200, 150, 40_000) for make in (some_pairs, some_points))
    pairwise, pointwise = pair_params(0.02, 0.01), point_params(0.02, 0.01, 0.1)
    return {
        "pass": lambda t, n: run_pairwise_epoch(t, positives, strata, 3, 1, pairwise, n),
        "pairs": lambda t, n: run_samples(t, pairs, of_pairs, 3, 1, pairwise, n),
        "points": lambda t, n: run_samples(t, points, strata, 3, 1, pointwise, n),
    }


@pytest.mark.parametrize("kind", ["pass", "pairs", "points"])
def test_bits_do_not_depend_on_threads(kind: str) -> None:
    run, start = runs()[kind], start_tables(200, 300, 20)
    want = copied(start)
    stats = run(want, 1)
    assert (want.items != start.items).any()
    for threads in (2, 3, 2, 3, 8):
        tables = copied(start)
        assert run(tables, threads) == stats
        assert all((a == b).all() for a, b in zip(tables, want, strict=True))


@pytest.mark.parametrize("kind", ["pass", "points"])
def test_rows_fetched_ahead_leave_no_trace(kind: str) -> None:
    run, near = runs()[kind], start_tables(200, 300, 8)
    far = Factors(near.users, factor_table(CACHED_FACTORS // 8 + 1, 8))
    far.items[:300] = near.items
    far = far._replace(users=copied(near).users)
    assert run(near, 1) == run(far, 1)
    assert (near.users == far.users).all()
    assert (near.items == far.items[:300]).all()


def test_an_epoch_leaves_nothing_behind_for_the_next() -> None:
    positives, params = some_positives(50, 60, 4_000), pair_params(0.02, 0.01)
    kept, ends = Strata(50, 60, 4_000), []
    for again in (True, False):
        tables = start_tables(50, 60, 8)
        for epoch in range(3):
            strata = kept if again else Strata(50, 60, 4_000)
            run_pairwise_epoch(tables, positives, strata, 1, epoch, params)
        ends.append(tables.items.tobytes())
    assert ends[0] == ends[1]


def test_another_epoch_or_seed_is_another_path() -> None:
    strata, entries = Strata(50, 60, 4_000), some_positives(50, 60, 4_000)
    ends = []
    for seed, epoch in ((1, 0), (1, 1), (2, 0), (2**64 - 1, 0)):
        tables = start_tables(50, 60, 8)
        run_pairwise_epoch(tables, entries, strata, seed, epoch, pair_params(0.02, 0.01))
        ends.append(tables.items.tobytes())
    assert len(set(ends)) == len(ends)


def test_negatives_are_uniform_over_the_other_items() -> None:
    # j is seen by the row it moves: nothing else moves rows other than i.
    strata, n_items, epochs = Strata(1, 6, 1), 6, 3_000
    entries, hits = by_user(np.array([0]), np.array([2]), np.array([1.0]), 1), np.zeros(6)
    for epoch in range(epochs):
        tables = start_tables(1, n_items, 8)
        before = tables.items.copy()
        run_pairwise_epoch(tables, entries, strata, 0, epoch, pair_params(0.1, 0.0))
        hits += (tables.items != before).any(axis=1)
    assert hits[2] == epochs
    others = np.delete(hits, 2)
    assert others.sum() == epochs
    assert abs(others - epochs / 5).max() < 4.5 * np.sqrt(epochs * 0.2 * 0.8)


def in_a_basket(items: list[int], bought: Any) -> Positives:
    """Positives of one user, whose only basket is what was ``bought``."""
    positives = by_user(np.zeros(len(items), np.int32), np.array(items, np.int32), np.ones(len(items)), 1)
    basket = Baskets(np.zeros(len(items), np.int32), np.array([0, len(bought)]), np.asarray(bought, np.int32))
    return positives._replace(baskets=basket)


@pytest.mark.parametrize(("bought", "outside"), [([1, 2, 4, 5, 7], [0, 2, 3, 4, 6]), (range(8), [])])
def test_negatives_avoid_the_basket(bought: Any, outside: list[int]) -> None:
    strata, moved, skipped = Strata(1, 8, 2), np.zeros(8, bool), 0 if outside else 2
    for epoch in range(60):
        tables = start_tables(1, 8, 8)
        before = tables.items.copy()
        stats = run_pairwise_epoch(tables, in_a_basket([2, 4], bought), strata, 0, epoch, pair_params(0.1, 0.0))
        assert (stats.updates, stats.skipped) == (2 - skipped, skipped)
        moved |= (tables.items != before).any(axis=1)
    assert np.flatnonzero(moved).tolist() == outside


@pytest.mark.parametrize(("n_users", "n_items", "count"), [(1, 1, 3), (1, 2, 1), (3, 2, 0), (1, 2, 7)])
def test_tiny_data(n_users: int, n_items: int, count: int) -> None:
    strata, entries = Strata(n_users, n_items, count), some_positives(n_users, n_items, count)
    tables = start_tables(n_users, n_items, 5)
    before = tables.items.copy()
    stats = run_pairwise_epoch(tables, entries, strata, 0, 0, pair_params(0.1, 0.1), 3)
    assert stats.updates == (count if n_items > 1 else 0)
    assert (tables.items != before).any() == (stats.updates > 0)
    assert stats.finite


def test_padding_stays_zero() -> None:
    tables = start_tables(50, 60, 5)
    entries, strata = some_positives(50, 60, 4_000), Strata(50, 60, 4_000)
    run_pairwise_epoch(tables, entries, strata, 1, 0, pair_params(0.05, 0.01))
    assert all(table.shape[1] == 8 and not table[:, 5:].any() for table in tables)
    assert all(table.ctypes.data % 64 == 0 for table in tables)


@pytest.mark.parametrize("rate", [1.0, 1e4])
def test_divergence_is_seen_in_the_loss(rate: float) -> None:
    """Long before scores overflow, the loss is far above that of a model whose scores are all 0."""
    tables = start_tables(50, 60, 8, scale=0.1)
    entries, strata = some_positives(50, 60, 4_000), Strata(50, 60, 4_000)
    calm = run_pairwise_epoch(tables, entries, strata, 1, 0, pair_params(0.01, 0.01))
    assert not calm.diverged
    assert calm.zero_loss == pytest.approx(np.log(2) * abs(entries.weight).mean(), rel=0.1)
    assert run_pairwise_epoch(tables, entries, strata, 1, 1, pair_params(rate, 0.01)).diverged


@pytest.mark.parametrize("surrogate", SURROGATES.values())
def test_no_loss_of_an_untrained_model_counts_as_divergence(surrogate: int) -> None:
    tables, params = start_tables(50, 60, 8, scale=0.1), pair_params(0.01, 0.01, 1.0, surrogate)
    entries, strata = some_positives(50, 60, 4_000), Strata(50, 60, 4_000)
    assert not any(run_pairwise_epoch(tables, entries, strata, 1, n, params).diverged for n in range(5))


def test_negatives_of_a_nearly_full_basket_are_uniform() -> None:
    strata, n_items, free, hits = Strata(1, 400, 2), 400, [7, 50, 399], np.zeros(400)
    entries = in_a_basket([5], np.delete(np.arange(n_items), free))
    for epoch in range(1500):
        tables = start_tables(1, n_items, 8)
        before = tables.items.copy()
        run_pairwise_epoch(tables, entries, strata, 0, epoch, pair_params(0.1, 0.0))
        hits += (tables.items != before).any(axis=1)
    assert np.flatnonzero(hits).tolist() == [5, *free]
    assert abs(hits[free] - 500).max() < 4.5 * np.sqrt(1500 * 2 / 9)
