"""Samplers: the frequencies of what is drawn equal the probabilities the definition gives, cell by cell."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import pandas as pd
import pytest

from taurank import Log
from taurank._threads import using_threads
from taurank.sgd import samplers

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
    user, better, worse = (np.zeros(DRAWS, np.int32) for _ in range(3))
    classes = samplers.classes_of(log)
    pairs = samplers.pairs_of(classes, alpha)
    samplers.draw_pairs(classes, pairs, KEY, user, better, worse)
    assert_frequencies(list(zip(user.tolist(), better.tolist(), worse.tolist(), strict=True)), expected)


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
    classes = samplers.classes_of(log)
    user, item, target = np.zeros(DRAWS, np.int32), np.zeros(DRAWS, np.int32), np.zeros(DRAWS, np.float32)
    samplers.draw_by_class(classes, samplers.rows_by_class(classes), 0.2, 0.3, KEY, user, item, target)
    assert_frequencies(list(zip(user.tolist(), item.tolist(), target.tolist(), strict=True)), expected)


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
    classes = samplers.classes_of(log)
    user, item, target = np.zeros(DRAWS, np.int32), np.zeros(DRAWS, np.int32), np.zeros(DRAWS, np.float32)
    treated_flags = np.zeros(DRAWS, np.bool_)
    samplers.draw_by_arm(classes, *samplers.slots_by_arm(classes), KEY, user, item, target, treated_flags)
    drawn = zip(user.tolist(), item.tolist(), target.tolist(), treated_flags.tolist(), strict=True)
    assert_frequencies(list(drawn), expected)


def test_threads_do_not_change_the_draws(log: Log) -> None:
    classes = samplers.classes_of(log)
    pairs = samplers.pairs_of(classes, 0.5)
    drawn = []
    for threads in (1, 2):
        columns = [np.zeros(1000, np.int32) for _ in range(3)]
        with using_threads(threads):
            samplers.draw_pairs(classes, pairs, KEY, *columns)
        drawn.append(np.stack(columns))
    assert np.array_equal(drawn[0], drawn[1])


def test_a_slot_that_is_nearly_full_still_gives_its_control_negative() -> None:
    """Rejection gives up after a few tries; then the absent item is found by counting."""
    rows = pd.DataFrame({"user_id": 0, "item_id": np.arange(399), "treated": 1, "outcome": np.arange(399) == 0})
    log = Log.from_frame(rows.astype({"outcome": int}), items=range(400))
    classes = samplers.classes_of(log)
    pairs = samplers.pairs_of(classes, 0.0)
    user, better, worse = (np.zeros(5000, np.int32) for _ in range(3))
    samplers.draw_pairs(classes, pairs, KEY, user, better, worse)
    assert set(better.tolist()) == {0}
    assert (worse != 0).all()
    assert np.mean(worse == 399) == pytest.approx(0.5, abs=0.03)  # TP against CN, or against TN
