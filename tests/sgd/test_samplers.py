"""Samplers: the frequencies of what is drawn equal the probabilities the definition gives, cell by cell."""

from __future__ import annotations

import tracemalloc
from collections import defaultdict
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from taurank import ULBPR, ULRMF, CausE, Log
from taurank.sgd import samplers
from taurank.sgd.strata import shuffle

N_USERS, N_ITEMS, N_TIMES, DRAWS = 3, 6, 2, 400_000
KEY = np.uint64(12345)


@pytest.fixture(scope="module")
def log() -> Log:
    rng = np.random.default_rng(4)
    rows = [
        {
            "user_id": u,
            "item_id": i,
            "time": t,
            "treated": int(rng.random() < 0.5),
            "outcome": int(rng.random() < 0.4),
        }
        for u in range(N_USERS)
        for i in range(N_ITEMS)
        for t in range(N_TIMES)
    ]
    frame = pd.DataFrame(rows)
    frame = frame[(frame["treated"] == 1) | (frame["outcome"] == 1) | (frame["item_id"] == 0)]  # some explicit CN
    return Log.from_frame(frame, users=range(N_USERS), items=range(N_ITEMS), times=range(N_TIMES))


def draw_pairs(slots: samplers.Slots, alpha: float, n: int = DRAWS, threads: int = 1) -> Any:
    kinds = samplers.pair_kinds(slots, alpha)
    assert kinds is not None
    choose, fill = partial(samplers.choose_pairs, slots, kinds), partial(samplers.fill_pairs, slots, kinds)
    return samplers.draw(samplers.Sampler(choose, fill), n, len(slots.user_start) - 1, KEY, threads)


def draw_by_class(log: Log, positives: float, alpha: float, n: int = DRAWS) -> Any:
    sampler = ULRMF(positives=positives, positive_share=alpha).sampler(log)
    return samplers.draw(sampler, n, log.n_users, KEY, 1)


def draw_by_arm(log: Any, n: int = DRAWS) -> Any:
    return samplers.draw(CausE().sampler(log), n, log.n_users, KEY, 1)


def cells_by_class(log: Log) -> dict[tuple[int, int], dict[int, list[int]]]:
    """(user, time) -> class -> items, straight from the definition: a cell without a row is a control negative."""
    rows = {
        (u, i, t): (z, y)
        for u, i, t, z, y in zip(log.user, log.item, log.time, log.treated, log.outcome, strict=True)
    }
    found: dict[tuple[int, int], dict[int, list[int]]] = {}
    for t in range(N_TIMES):
        for u in range(N_USERS):
            classes: dict[int, list[int]] = {c: [] for c in range(4)}
            for i in range(N_ITEMS):
                z, y = rows.get((u, i, t), (0, 0))
                classes[{(1, 1): 0, (1, 0): 1, (0, 1): 2, (0, 0): 3}[(int(z), int(y))]].append(i)
            found[(u, t)] = classes
    return found


def assert_frequencies(drawn: list[Any], expected: dict[Any, float]) -> None:
    counts = pd.Series(drawn).value_counts(normalize=True)
    assert sum(expected.values()) == pytest.approx(1.0)
    assert set(counts.index) <= {key for key, p in expected.items() if p > 0}
    for key, probability in expected.items():
        spread = 5 * np.sqrt(max(probability, 1e-6) / DRAWS)
        assert counts.get(key, 0.0) == pytest.approx(probability, abs=spread), key


@pytest.mark.parametrize("alpha", [0.0, 0.6])
def test_pairs(log: Log, alpha: float) -> None:
    cells = cells_by_class(log)
    expected: dict[Any, float] = defaultdict(float)
    for share, kinds in ((1 - alpha, [(0, 3), (0, 1), (0, 2)]), (alpha, [(0, 1), (0, 2), (3, 1), (3, 2)])):
        served = [k for k in kinds if any(c[k[0]] and c[k[1]] for c in cells.values())]
        for one, two in served:
            users = {
                t: [u for u in range(N_USERS) if cells[(u, t)][one] and cells[(u, t)][two]] for t in range(N_TIMES)
            }
            times = [t for t in users if users[t]]
            for t in times:
                for u in users[t]:
                    for i in cells[(u, t)][one]:
                        for j in cells[(u, t)][two]:
                            size = len(cells[(u, t)][one]) * len(cells[(u, t)][two])
                            expected[(u, i, j)] += share / len(served) / len(times) / len(users[t]) / size
    slots = samplers.slots_of(log)
    samples = draw_pairs(slots, alpha)
    assert (samples["value"] == 1).all()
    assert_frequencies([(u, i, j) for u, i, j, _ in samples.tolist()], expected)


def test_cells_by_class(log: Log) -> None:
    cells = cells_by_class(log)
    totals = {c: sum(len(classes[c]) for classes in cells.values()) for c in range(4)}
    share = {0: 0.5 * 0.2, 1: 0.5 * 0.8, 2: 0.5 * 0.2, 3: 0.5 * 0.8}
    expected: dict[Any, float] = defaultdict(float)
    for (u, _), by_class in cells.items():
        for c, items in by_class.items():
            for i in items:
                one = 1.0 if c == 0 else 0.3 if c == 3 else 0.0
                expected[(u, i, 1.0)] += one * share[c] / totals[c]
                expected[(u, i, 0.0)] += (1 - one) * share[c] / totals[c]
    samples = draw_by_class(log, 0.2, 0.3)
    assert_frequencies([(u, i, y) for u, i, _, y in samples.tolist()], expected)


def test_cells_by_arm(log: Log) -> None:
    cells = cells_by_class(log)
    expected: dict[Any, float] = defaultdict(float)
    for treated, kinds in ((True, (0, 1)), (False, (2, 3))):
        having = {slot: c for slot, c in cells.items() if c[kinds[0]] or c[kinds[1]]}
        for (u, _), c in having.items():
            size = len(c[kinds[0]]) + len(c[kinds[1]])
            for kind, label in zip(kinds, (1.0, 0.0), strict=True):
                for i in c[kind]:
                    expected[(u, i, label, treated)] += 0.5 / len(having) / size
    samples = draw_by_arm(log)
    assert ((samples["item"] - samples["other"]) % (2 * N_ITEMS) == N_ITEMS).all()
    drawn = [(u, i % N_ITEMS, y, i < N_ITEMS) for u, i, _, y in samples.tolist()]
    assert_frequencies(drawn, expected)


def test_threads_do_not_change_the_draws(log: Log) -> None:
    slots = samplers.slots_of(log)
    want = draw_pairs(slots, 0.5, n=1000)
    for threads in (2, 7):
        assert (draw_pairs(slots, 0.5, n=1000, threads=threads) == want).all()


def test_samples_come_user_by_user_in_a_random_order(log: Log) -> None:
    users = draw_pairs(samplers.slots_of(log), 0.5)["user"]
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
    samples = draw_by_class(full_log(60, free), 0.0, 1.0, n=20_000)
    drawn = samples[samples["value"] == 1]  # TP are not drawn, and all control negatives have target 1
    counts = pd.Series(list(zip(drawn["user"].tolist(), drawn["item"].tolist(), strict=True))).value_counts()
    assert set(counts.index) == set(free)
    assert abs(counts / len(drawn) - 1 / 3).max() < 0.03


def test_the_last_untreated_items_are_drawn_exactly() -> None:
    """All slots but two have nothing but treated items; the draw must find those two."""
    frame = pd.DataFrame([(u, i) for u in range(200) for i in range(3)], columns=["user_id", "item_id"])
    frame = frame[~((frame["user_id"] == 5) & (frame["item_id"] == 1)) & (frame["user_id"] != 9)]
    log = Log.from_frame(frame.assign(treated=1, outcome=1), users=range(200), items=range(3))
    samples = draw_by_arm(log, n=20_000)
    drawn = samples[samples["item"] >= 3]
    counts = pd.Series(list(zip(drawn["user"].tolist(), (drawn["item"] - 3).tolist(), strict=True))).value_counts()
    expected = {(5, 1): 1 / 2, (9, 0): 1 / 6, (9, 1): 1 / 6, (9, 2): 1 / 6}
    assert set(counts.index) == set(expected)
    assert all(abs(counts[cell] / len(drawn) - share) < 0.03 for cell, share in expected.items())


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
    slots = samplers.slots_of(log)
    samples = draw_pairs(slots, 0.0, n=5000)
    assert set(samples["item"].tolist()) == {0}
    assert (samples["other"] != 0).all()
    assert np.mean(samples["other"] == 399) == pytest.approx(0.5, abs=0.03)  # TP against CN, or against TN
