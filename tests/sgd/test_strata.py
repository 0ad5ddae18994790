"""The plan of an epoch: everything has its turn once, and no two units of a round share a row."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.factors import some_pairs, some_points
from taurank.errors import InputError
from taurank.sgd.planning import block_offsets, bucket_pairs, bucket_points, by_user, plan_users
from taurank.sgd.samples import SAMPLE, Positives
from taurank.sgd.strata import MAX_BLOCKS, POSITIVES_PER_VISIT, WORKERS, Strata


def positives(n_users: int, n_items: int, count: int, seed: int = 0) -> Positives:
    random = np.random.default_rng(seed)
    user, item = random.integers(0, n_users, count), random.integers(0, n_items, count)
    return by_user(user, item, np.arange(1, count + 1), n_users, n_items)


def planned(strata: Strata, entries: Positives, epoch: int):  # type: ignore[no-untyped-def]
    cut = strata.cut(7, epoch)
    samples = np.zeros(len(entries.item), SAMPLE)
    begin, end = np.zeros((2, strata.blocks**2), np.int64)
    offsets = block_offsets(cut, entries.start)
    for block in range(strata.blocks):
        plan_users(cut, entries, block, offsets[block], samples, begin, end)
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
    schedule = strata.schedule()
    for unit in range(len(begin)):
        part = samples[begin[unit] : end[unit]]
        assert (cut.user_block[part["user"]] == schedule.blocks[unit, 0]).all()
        assert (cut.item_block[part["item"]] == schedule.blocks[unit, 1] - schedule.width).all()


def test_a_unit_is_visited_user_by_user() -> None:
    entries, strata = positives(40, 60, 9_000), Strata(40, 60, 9_000)
    _, samples, begin, end = planned(strata, entries, 0)
    assert strata.blocks > 1
    for unit in range(len(begin)):
        users = samples["user"][begin[unit] : end[unit]]
        changes = 1 + np.count_nonzero(np.diff(users))
        assert changes == len(np.unique(users))


@pytest.mark.parametrize("count", [0, 5_000, 30_000, 400_000])
def test_units_of_a_round_share_no_block(count: int) -> None:
    strata = Strata(500, 700, count)
    single, pairs = strata.schedule(), strata.schedule_pairs()
    for schedule, blocks in ((single, 2 * strata.blocks), (pairs, 3 * strata.pair_blocks)):
        for begin in range(0, len(schedule.blocks), schedule.width):
            assert sorted(schedule.blocks[begin : begin + schedule.width].ravel()) == list(range(blocks))


def test_every_user_block_meets_every_pair_of_item_blocks_once() -> None:
    schedule = Strata(500, 700, 400_000).schedule_pairs()
    met = [(a, min(b, c), max(b, c)) for a, b, c in schedule.blocks]
    teams = 2 * schedule.width
    assert schedule.width > 2
    assert len(met) == len(set(met)) == schedule.width * teams * (teams - 1) // 2


def test_drawn_pairs_go_to_the_unit_that_holds_them_in_their_order() -> None:
    strata, drawn = Strata(300, 400, 30_000), some_pairs(300, 400, 30_000)
    drawn["value"] = np.arange(30_000)  # their order
    cut, schedule = strata.cut_pairs(1, 2), strata.schedule_pairs()
    dealt, start = bucket_pairs(strata, cut, schedule, drawn)
    assert schedule.width > 1
    assert sorted(dealt.tolist()) == sorted(drawn.tolist())
    for unit in range(len(schedule.blocks)):
        part = dealt[start[unit] : start[unit + 1]]
        assert (np.diff(part["value"]) > 0).all()
        assert (cut.user_block[part["user"]] == schedule.blocks[unit, 0]).all()
        held = schedule.blocks[unit, 1:] - schedule.width
        for column in ("item", "other"):
            assert np.isin(cut.item_block[part[column]], held).all()


def test_rows_of_a_second_item_table_go_with_their_item() -> None:
    strata, drawn = Strata(300, 400, 60_000), some_points(300, 400, 60_000)
    cut, schedule = strata.cut(1, 2), strata.schedule()
    dealt, start = bucket_points(strata, cut, schedule, drawn)
    assert schedule.width > 1
    assert sorted(dealt.tolist()) == sorted(drawn.tolist())
    for unit in range(len(schedule.blocks)):
        part = dealt[start[unit] : start[unit + 1]]
        assert (cut.user_block[part["user"]] == schedule.blocks[unit, 0]).all()
        assert (cut.item_block[part["item"] % 400] == schedule.blocks[unit, 1] - schedule.width).all()


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 3_000), st.integers(1, 3_000), st.integers(0, 10**8))
def test_blocks_are_even_and_hold_two_items_wherever_there_are_two(n_users: int, n_items: int, count: int) -> None:
    strata = Strata(n_users, n_items, count)
    cut = strata.cut(5, 1)
    assert sorted(cut.user_order) == list(range(n_users))
    assert sorted(cut.item_order) == list(range(n_items))
    for start in (cut.user_start, cut.item_start):
        sizes = np.diff(start)
        assert sizes.max() - sizes.min() <= 1
    assert np.diff(cut.user_start).min() >= 1
    assert np.diff(cut.item_start).min() >= min(2, n_items)
    for block in range(strata.blocks):
        members = cut.item_order[cut.item_start[block] : cut.item_start[block + 1]]
        assert (cut.item_block[members] == block).all()


def test_the_number_of_blocks_follows_the_data() -> None:
    sizes = [Strata(10_000, 10_000, 10**power).blocks for power in range(3, 9)]
    assert sizes[0] == 1
    assert sizes == sorted(sizes)
    assert sizes[-1] > sizes[1]


def test_many_blocks_are_for_users_with_many_positives() -> None:
    sparse, dense = Strata(100_000, 10_000, 5_000_000), Strata(10_000, 10_000, 5_000_000)
    assert sparse.blocks == WORKERS
    assert WORKERS < dense.blocks <= MAX_BLOCKS
    assert 5_000_000 / (10_000 * dense.blocks) >= POSITIVES_PER_VISIT


def test_the_memory_of_an_epoch_serves_the_next_one() -> None:
    strata = Strata(10, 10, 100)
    with strata.buffer(100) as first, strata.buffer(100) as inside:
        assert not np.shares_memory(first, inside)
    with strata.buffer(100) as second:
        assert np.shares_memory(first, second)
    with strata.buffer(7) as shorter:
        assert len(shorter) == 7


def test_blocks_are_redrawn_every_epoch_and_come_back_with_the_seed() -> None:
    strata = Strata(200, 300, 100_000)
    first, again, next_, other = (strata.cut(seed, epoch) for seed, epoch in [(1, 0), (1, 0), (1, 1), (2, 0)])
    assert all(np.array_equal(first[n], again[n]) for n in range(len(first)))
    for changed in (next_, other):
        assert (first.item_block != changed.item_block).any()
        assert (first.user_order != changed.user_order).any()


def test_two_items_share_a_block_as_often_as_chance_says() -> None:
    strata = Strata(64, 64, 20_000)
    epochs, size = 2_000, 64 // strata.blocks
    together = np.zeros((64, 64))
    for epoch in range(epochs):
        block = strata.cut(11, epoch).item_block
        together += block[:, None] == block[None, :]
    chance = (size - 1) / 63
    seen = together[~np.eye(64, dtype=bool)] / epochs
    assert strata.blocks > 1
    assert abs(seen.mean() - chance) < 1e-12
    assert abs(seen - chance).max() < 5.5 * np.sqrt(chance * (1 - chance) / epochs)


def test_memory_does_not_grow_with_users_times_items() -> None:
    # 10^12 cells: a dense table of any kind could not be made.
    entries, strata = positives(10**6, 10**6, 5_000), Strata(10**6, 10**6, 5_000)
    _, samples, begin, end = planned(strata, entries, 0)
    assert (end - begin).sum() == len(samples)


def test_sorting_by_user_keeps_the_order_within_a_user() -> None:
    entries = by_user(
        np.array([2, 0, 2, 0]), np.array([5, 6, 7, 8]), np.array([1, -2, 3, -4]), 3, 9,
        basket=np.array([10, 11, 12, 13]),
    )  # fmt: skip
    assert entries.start.tolist() == [0, 2, 2, 4]
    assert entries.item.tolist() == [6, 8, 5, 7]
    assert entries.weight.tolist() == [-2, -4, 1, 3]
    assert entries.basket.tolist() == [11, 13, 10, 12]


@pytest.mark.parametrize(
    ("user", "item", "weight", "word"),
    [
        ([0, 3], [0, 0], [1, 1], "'user' has 1 row "),
        ([0, -1], [0, 0], [1, 1], "'user' has 1 row "),
        ([0, 1], [9, 9], [1, 1], "'item' has 2 rows"),
        ([0, 1], [0, 0], [1, np.nan], "'weight' has 1 value "),
        ([0, 1], [0, 0], [1, 1e300], "'weight' has 1 value "),
        ([0, 1], [0], [1, 1], "differ in length"),
    ],
)
@pytest.mark.filterwarnings("ignore:overflow")
def test_bad_positives_are_refused(user: list[int], item: list[int], weight: list[float], word: str) -> None:
    with pytest.raises(InputError, match=word):
        by_user(np.array(user), np.array(item), np.array(weight), 3, 9)


def test_bad_pairs_are_refused() -> None:
    strata = Strata(30, 40, 1_000)
    cut, schedule = strata.cut_pairs(1, 2), strata.schedule_pairs()
    for column, value in (("user", 30), ("item", -1), ("other", 40), ("value", np.inf)):
        drawn = some_pairs(30, 40, 10)
        drawn[column][4] = value
        with pytest.raises(InputError, match=column):
            bucket_pairs(strata, cut, schedule, drawn)
    drawn = some_pairs(30, 40, 10)
    drawn["other"][4] = drawn["item"][4]
    with pytest.raises(InputError, match="itself"):
        bucket_pairs(strata, cut, schedule, drawn)


def test_nothing_to_plan_is_refused() -> None:
    with pytest.raises(InputError, match="got 0 and 3"):
        Strata(0, 3, 0)
