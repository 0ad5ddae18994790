"""Samplers: rare cells, orders and memory; tests/learners/test_eligible_draws.py has the frequencies of all cells."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from taurank import ULBPR, ULRMF, CausE, Log
from taurank.sgd import samplers
from taurank.sgd.strata import shuffle

KEY = np.uint64(12345)


def drawn(learner: Any, log: Log, n: int) -> Any:
    return samplers.draw(learner.sampler(log), n, log.n_users, KEY, 1)


def test_samples_come_user_by_user_in_a_random_order() -> None:
    rows = pd.DataFrame({"user_id": range(9), "item_id": 0, "treated": 1, "outcome": 1})
    users = drawn(ULBPR(positive_share=0.5), Log.from_frame(rows, items=range(3)), 1000)["user"]
    visited = users[np.flatnonzero(np.diff(users, prepend=-1))]
    assert sorted(visited) == sorted(set(users))
    orders = {tuple(shuffle(3, np.uint64(key))) for key in range(100)}
    assert len(orders) == 6


@given(st.sets(st.integers(0, 30)), st.integers(31, 40))
def test_absent_items_are_found_by_their_rank(listed: set[int], n_items: int) -> None:
    padded = np.array([99, *sorted(listed), 0], np.int32)  # neighbors of the slot's own items
    absent = [item for item in range(n_items) if item not in listed]
    assert [samplers.absent_item(padded, 1, 1 + len(listed), rank) for rank in range(len(absent))] == absent


@given(st.lists(st.sets(st.integers(0, 4)), min_size=1, max_size=4))
def test_slots_are_found_by_user_and_time(times_of_users: list[set[int]]) -> None:
    """Users with all times, with some, with none."""
    stored = [(user, time) for user, times in enumerate(times_of_users) for time in sorted(times)]
    user_start = np.cumsum([0, *(len(times) for times in times_of_users)])
    times = np.array([time for _, time in stored], np.int32)
    for user in range(len(times_of_users)):
        for time in range(5):
            want = stored.index((user, time)) if (user, time) in stored else -1
            assert samplers._find_slot(user_start, times, 5, user, time) == want


def full_log(n_users: int, free: list[tuple[int, int]]) -> Log:
    """Every cell is listed, but for those that are free."""
    cells = [(u, i) for u in range(n_users) for i in range(40) if (u, i) not in free]
    frame = pd.DataFrame(cells, columns=["user_id", "item_id"])
    frame["treated"], frame["outcome"] = (frame["item_id"] > 0).astype(int), (frame["item_id"] < 2).astype(int)
    return Log.from_frame(frame, users=range(n_users), items=range(40))


def test_the_last_control_negatives_are_drawn_exactly() -> None:
    """Rejection gives up after a few tries; the control negative is then found by counting."""
    free = [(3, 7), (3, 8), (59, 39)]
    samples = drawn(ULRMF(positives=0.0, positive_share=1.0), full_log(60, free), 20_000)
    found = samples[samples["value"] == 1]  # TP are not drawn, and all control negatives have target 1
    counts = pd.Series(list(zip(found["user"].tolist(), found["item"].tolist(), strict=True))).value_counts()
    assert set(counts.index) == set(free)
    assert abs(counts / len(found) - 1 / 3).max() < 0.03


def test_the_last_untreated_items_are_drawn_exactly() -> None:
    """All slots but two have nothing but treated items; the draw must find those two."""
    frame = pd.DataFrame([(u, i) for u in range(200) for i in range(3)], columns=["user_id", "item_id"])
    frame = frame[~((frame["user_id"] == 5) & (frame["item_id"] == 1)) & (frame["user_id"] != 9)]
    log = Log.from_frame(frame.assign(treated=1, outcome=1), users=range(200), items=range(3))
    samples = drawn(CausE(), log, 20_000)
    found = samples[samples["item"] >= 3]
    counts = pd.Series(list(zip(found["user"].tolist(), (found["item"] - 3).tolist(), strict=True))).value_counts()
    expected = {(5, 1): 1 / 2, (9, 0): 1 / 6, (9, 1): 1 / 6, (9, 2): 1 / 6}
    assert set(counts.index) == set(expected)
    assert all(abs(counts[cell] / len(found) - share) < 0.03 for cell, share in expected.items())


def test_memory_grows_with_the_rows_not_with_users_and_times() -> None:
    """A million users and a thousand times, ten rows: nothing has a place for every user at every time."""
    n_users, n_times, rows = 10**6, 10**3, np.arange(10, dtype=np.int32)
    frame = pd.DataFrame({"user_id": rows * 1000, "item_id": rows, "time": rows * 90, "treated": rows % 2})
    frame["outcome"] = (rows < 5).astype(int)
    log = Log.from_frame(frame, users=range(n_users), items=range(20), times=range(n_times))
    tracemalloc.start()
    kept = [learner.sampler(log) for learner in (ULBPR(positive_share=0.3), ULRMF(), CausE())]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100 * (n_users + n_times)  # users × times would be 10⁹
    assert (samplers.draw(kept[2], 1000, n_users, KEY, 1)["user"] < n_users).all()


def test_a_slot_that_is_nearly_full_still_has_its_control_negative() -> None:
    rows = pd.DataFrame({"user_id": 0, "item_id": np.arange(399), "treated": 1, "outcome": np.arange(399) == 0})
    log = Log.from_frame(rows.astype({"outcome": int}), items=range(400))
    samples = drawn(ULBPR(), log, 5000)
    assert set(samples["item"].tolist()) == {0}
    assert (samples["other"] != 0).all()
    assert np.mean(samples["other"] == 399) == pytest.approx(0.5, abs=0.03)  # TP against CN, or against TN
