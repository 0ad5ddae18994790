"""Counts of pairs: row by row, with values, of two logs together, and from a file."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from taurank import Log, World
from taurank.learners.pairs import Pairs, added, beside, count


@pytest.fixture(scope="module")
def log() -> Log:
    return World.synthetic(30, 12, 0, rank=2).sample(6, random_state=1).log


@pytest.fixture(scope="module")
def valued(log: Log) -> Log:
    return replace(log, value=np.random.default_rng(0).gamma(1.0, 9.0, len(log)))


def parts(log: Log) -> tuple[Log, Log]:
    """Rows of four times and of two later ones, which bring users and items."""
    frame = log.to_frame()
    early = (frame["time"] < 4) & (frame["user_id"] < 25) & (frame["item_id"] < 10)
    return Log.from_frame(frame[early]), Log.from_frame(frame[frame["time"] >= 4])


def slow_counts(log: Log) -> dict[tuple[int, int], list[float]]:
    """Rows, treated rows and what was bought in each arm, row by row."""
    value = np.ones(len(log)) if log.value is None else log.value
    expected: dict[tuple[int, int], list[float]] = {}
    for u, i, z, y, v in zip(log.user, log.item, log.treated, log.outcome, value, strict=True):
        entry = expected.setdefault((u, i), [0, 0, 0, 0])
        for k, more in enumerate((1, z, z * y * v, (1 - z) * y * v)):
            entry[k] += more
    return expected


@pytest.mark.parametrize("kind", ["log", "valued"])
def test_counts_and_values_of_every_pair_row_by_row(kind: str, request: Any) -> None:
    rows: Log = request.getfixturevalue(kind)
    pairs, expected = count(rows), slow_counts(rows)
    keys = list(zip(pairs.user, pairs.item, strict=True))
    assert keys == sorted(expected)
    columns = pairs.rows, pairs.treated, pairs.treated_positives, pairs.control_positives
    for k, column in enumerate(columns):
        assert column == pytest.approx([expected[key][k] for key in keys])


@pytest.mark.parametrize("kind", ["log", "valued"])
def test_counts_of_two_logs_add_up(log: Log, kind: str, request: Any) -> None:
    """Those of one log, in which the new items had no chances before."""
    past, news = parts(request.getfixturevalue(kind))
    users, items = past.users.extended(news.users), past.items.extended(news.items)
    earlier = past.reindex(users, items)
    earlier = replace(earlier, eligibility=earlier.eligibility.with_items(len(past.items)))
    both = earlier.concat(news.reindex(users, items))
    sums, whole = added(count(past, propensity=True), news.reindex(users, items)), count(both, propensity=True)
    for name in ("start", "item", "rows", "treated", "chances", "item_cells", "user_cells"):
        assert np.array_equal(getattr(sums, name), getattr(whole, name))
    assert sums.treated_positives == pytest.approx(whole.treated_positives)
    assert sums.control_positives == pytest.approx(whole.control_positives)
    assert sums.propensity == pytest.approx(whole.propensity, rel=1e-5)
    assert (sums.times, sums.limited) == (6, True)


def test_pairs_beside_others_are_limited_only_by_tables(log: Log) -> None:
    """What limits the chances is said, not read off the memory of an array."""
    pairs = count(log)
    assert not pairs.limited
    together = beside(pairs, count(log))
    assert not together.limited
    assert together.users == pairs.users
    assert together.by_item(together.treated) == pytest.approx(pairs.by_item(pairs.treated))
    copied = replace(pairs, chances=np.array(pairs.chances))
    assert not copied.limited
    assert Pairs.from_arrays(copied.arrays()).chances.tolist() == pairs.chances.tolist()
