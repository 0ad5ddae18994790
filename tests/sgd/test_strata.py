"""The plan of an epoch: everything has its turn once, and no two units of a round share a row."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.factors import some_pairs, some_points
from taurank.errors import InputError
from taurank.sgd.strata import (
    MAX_BLOCKS,
    POSITIVES_PER_VISIT,
    SAMPLE,
    WORKERS,
    Positives,
    Strata,
    by_user,
    deal,
    plan_users,
)


def positives(n_users: int, n_items: int, count: int, seed: int = 0) -> Positives:
    random = np.random.default_rng(seed)
    user, item = random.integers(0, n_users, count), random.integers(0, n_items, count)
    return by_user(user, item, np.arange(1, count + 1), n_users)


def planned(strata: Strata, entries: Positives, epoch: int):  # type: ignore[no-untyped-def]
    cut = strata.cut(7, epoch)
    samples = np.zeros(len(entries.item), SAMPLE)
    begin, end = np.zeros((2, len(strata.units)), np.int64)
    plan_users(cut, entries, 0, strata.width, samples, begin, end)
    return cut, samples, begin, end


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 90), st.integers(1, 200), st.integers(0, 20_000), st.integers(0, 5))
def test_each_positive_has_its_turn_exactly_once(n_users: int, n_items: int, count: int, epoch: int) -> None:
    entries, strata = positives(n_users, n_items, count), Strata(n_users, n_items, count)
    cut, samples, begin, end = planned(strata, entries, epoch)
    owner = np.repeat(np.arange(n_users), np.diff(entries.start))
    want = sorted(zip(owner, entries.item, entries.weight, strict=True))
    got = sorted(zip(samples["user"], samples["item"], samples["value"], strict=True))
    assert got == want
    assert (end - begin).sum() == count
    for unit in range(len(begin)):
        part = samples[begin[unit] : end[unit]]
        assert (cut.users.of[part["user"]] == strata.units[unit, 0]).all()
        assert (cut.items.of[part["item"]] == strata.units[unit, 1] - strata.width).all()


def test_a_unit_is_visited_user_by_user() -> None:
    entries, strata = positives(40, 60, 9_000), Strata(40, 60, 9_000)
    _, samples, begin, end = planned(strata, entries, 0)
    assert strata.width > 1
    for unit in range(len(begin)):
        users = samples["user"][begin[unit] : end[unit]]
        changes = 1 + np.count_nonzero(np.diff(users))
        assert changes == len(np.unique(users))


@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.parametrize("count", [0, 5_000, 30_000, 400_000])
def test_units_of_a_round_share_no_block(count: int, pairs: bool) -> None:
    strata = Strata(500, 700, count, pairs)
    for begin in range(0, len(strata.units), strata.width):
        blocks = strata.units[begin : begin + strata.width].ravel()
        assert sorted(blocks) == list(range(strata.width + strata.item_blocks))


def test_every_user_block_meets_every_pair_of_item_blocks_once() -> None:
    strata = Strata(500, 700, 400_000, pairs=True)
    met = [(a, min(b, c), max(b, c)) for a, b, c in strata.units]
    teams = 2 * strata.width
    assert strata.width > 2
    assert len(met) == len(set(met)) == strata.width * teams * (teams - 1) // 2


@pytest.mark.parametrize("pairs", [False, True])
def test_drawn_samples_go_to_the_unit_that_holds_them_in_their_order(pairs: bool) -> None:
    """Rows of a second item table go with their item."""
    strata, drawn = Strata(300, 400, 60_000, pairs), (some_pairs if pairs else some_points)(300, 400, 60_000)
    drawn["value"] = np.arange(60_000)  # their order
    cut, dealt = strata.cut(1, 2), np.empty_like(drawn)
    start = deal(drawn, dealt, cut, strata.owners, len(strata.units))
    assert strata.width > 1
    assert sorted(dealt.tolist()) == sorted(drawn.tolist())
    for unit, blocks in enumerate(strata.units):
        part = dealt[start[unit] : start[unit + 1]]
        assert (np.diff(part["value"]) > 0).all()
        assert (cut.users.of[part["user"]] == blocks[0]).all()
        for column in ("item", "other"):
            assert np.isin(cut.items.of[part[column] % 400], blocks[1:] - strata.width).all()


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 3_000), st.integers(1, 3_000), st.integers(0, 10**8))
def test_blocks_are_even_and_hold_two_items_wherever_there_are_two(n_users: int, n_items: int, count: int) -> None:
    strata = Strata(n_users, n_items, count)
    cut = strata.cut(5, 1)
    assert sorted(cut.users.order) == list(range(n_users))
    assert sorted(cut.items.order) == list(range(n_items))
    for start in (cut.users.start, cut.items.start):
        sizes = np.diff(start)
        assert sizes.max() - sizes.min() <= 1
    assert np.diff(cut.users.start).min() >= 1
    assert np.diff(cut.items.start).min() >= min(2, n_items)
    for block in range(strata.width):
        assert (cut.items.of[cut.items.members(block)] == block).all()


def test_the_number_of_blocks_follows_the_data() -> None:
    sizes = [Strata(10_000, 10_000, 10**power).width for power in range(3, 9)]
    assert sizes[0] == 1
    assert sizes == sorted(sizes)
    assert sizes[-1] > sizes[1]


def test_many_blocks_are_for_users_with_many_positives() -> None:
    sparse, dense = Strata(100_000, 10_000, 5_000_000), Strata(10_000, 10_000, 5_000_000)
    assert sparse.width == WORKERS
    assert WORKERS < dense.width <= MAX_BLOCKS
    assert 5_000_000 / (10_000 * dense.width) >= POSITIVES_PER_VISIT


def test_blocks_are_redrawn_every_epoch_and_come_back_with_the_seed() -> None:
    strata = Strata(200, 300, 100_000)
    first, again, next_, other = (strata.cut(seed, epoch) for seed, epoch in [(1, 0), (1, 0), (1, 1), (2, 0)])
    assert all(np.array_equal(first.users[n], again.users[n]) for n in range(3))
    assert all(np.array_equal(first.items[n], again.items[n]) for n in range(3))
    for changed in (next_, other):
        assert (first.items.of != changed.items.of).any()
        assert (first.users.order != changed.users.order).any()


def test_two_items_share_a_block_as_often_as_chance_says() -> None:
    strata = Strata(64, 64, 20_000)
    epochs, size = 2_000, 64 // strata.width
    together = np.zeros((64, 64))
    for epoch in range(epochs):
        block = strata.cut(11, epoch).items.of
        together += block[:, None] == block[None, :]
    chance = (size - 1) / 63
    seen = together[~np.eye(64, dtype=bool)] / epochs
    assert strata.width > 1
    assert abs(seen.mean() - chance) < 1e-12
    assert abs(seen - chance).max() < 5.5 * np.sqrt(chance * (1 - chance) / epochs)


def test_memory_does_not_grow_with_users_times_items() -> None:
    # 10^12 cells: a dense table of any kind could not be made.
    entries, strata = positives(10**6, 10**6, 5_000), Strata(10**6, 10**6, 5_000)
    _, samples, begin, end = planned(strata, entries, 0)
    assert (end - begin).sum() == len(samples)


def test_sorting_by_user_keeps_the_order_within_a_user() -> None:
    user, item, time = np.array([2, 0, 2, 0]), np.array([5, 6, 7, 8]), np.array([1, 0, 1, 1])
    entries = by_user(user, item, np.array([1, -2, 3, -4]), 3, time)
    assert entries.start.tolist() == [0, 2, 2, 4]
    assert entries.item.tolist() == [6, 8, 5, 7]
    assert entries.weight.tolist() == [-2, -4, 1, 3]
    assert entries.baskets is not None
    bought = np.split(entries.baskets.item, entries.baskets.start[1:-1])
    assert [bought[basket].tolist() for basket in entries.baskets.of] == [[6], [8], [5, 7], [5, 7]]


@pytest.mark.parametrize("weight", [np.nan, 1e300])
def test_weights_that_are_not_finite_are_refused(weight: float) -> None:
    with pytest.raises(InputError, match="'weight' has 1 value "):
        by_user(np.array([0, 1]), np.array([0, 0]), np.array([1, weight]), 3)


def test_nothing_to_plan_is_refused() -> None:
    with pytest.raises(InputError, match="got 0 and 3"):
        Strata(0, 3, 0)
