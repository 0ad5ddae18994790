"""Intervals hold at all times at once; the sample-ratio test rarely cries wolf and finds a mismatch."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest

from closed_loop.peeking import ABOVE, MISSED, STARTED, Cell
from taurank.serve.lift import (
    ALPHA,
    COLUMNS,
    EXTRA_EVENTS,
    MIN_EVENTS,
    MIN_USERS,
    Estimate,
    Measure,
    Totals,
    against_holdout,
    chance_moments,
    interval,
    ratio_evidence,
    spent_alpha,
)


def test_totals_equal_their_slow_twin() -> None:
    """Users come back in six periods; sums change with each of them, means are those of all rows so far."""
    random = np.random.default_rng(0)
    totals, state = Totals(), np.zeros((30, len(COLUMNS)))
    rows: list[tuple[int, float]] = []
    for _ in range(6):
        visiting = np.flatnonzero(random.random(30) < 0.5)
        before = state[visiting].copy()
        for user in visiting:
            lift = float(random.poisson(0.4) - 0.3)
            state[user] += [1.0, 1.0, lift, 2 * lift]
            rows.append((int(user), lift))
        totals.change(before, state[visiting])
        users = sorted({user for user, _ in rows})
        sums = np.array([sum(lift for user, lift in rows if user == each) for each in users])
        visits = np.array([sum(user == each for user, _ in rows) for each in users])
        mean = sums.sum() / visits.sum()
        spread = ((sums - mean * visits) ** 2).sum() / visits.sum() ** 2
        made = totals.mean("lift")
        assert made.value == pytest.approx(mean)
        assert (made.users, totals.visits) == (len(users), int(visits.sum()))
        assert made.variance == pytest.approx(spread * len(users) / (len(users) - 1))
        assert totals.mean("value").value == pytest.approx(2 * mean)
    assert Totals().mean("lift").users == 0


def test_chance_moments_are_those_of_a_draw() -> None:
    pi, value = np.array([0.001, 0.3, 0.98]), np.array([1.0, 2.0, 5.0])
    slow = np.zeros((2, 2))
    for p, worth in zip(pi, value, strict=True):
        outcomes = [(p, 1.0), (1 - p, -p / (1 - p))]
        assert sum(chance * weight for chance, weight in outcomes) == pytest.approx(0)
        for row, scale in enumerate((1.0, worth)):
            slow[row] += [sum(chance * (scale * weight) ** power for chance, weight in outcomes) for power in (2, 4)]
    np.testing.assert_allclose(chance_moments(pi, value), slow)


def test_a_sequence_starts_with_enough_users_and_events() -> None:
    estimate = Estimate(0.1, 1e-4, 1e-4, 1e-8 / MIN_EVENTS, MIN_USERS)
    assert np.isfinite(interval(estimate, 0.0)[0].low)
    for change in ({"users": MIN_USERS - 1}, {"fourth": 1.01e-8 / MIN_EVENTS}, {"fourth": 0.0}, {"variance": np.inf}):
        assert interval(estimate._replace(**change), 0.0) == ((0.1, -np.inf, np.inf), 0.0)
    smaller = estimate._replace(users=MIN_USERS - 1)
    for difference in (estimate - smaller, smaller - estimate):
        assert not np.isfinite(interval(difference, 0.0)[0].low)


def test_data_that_have_not_seen_rare_events_do_not_narrow_an_interval() -> None:
    quiet = Estimate(0.0, 1e-9, 1e-4, 1e-9, 1000)  # ten deciding events are expected, none has happened
    wide, first = interval(quiet, 0.0)
    assert first == pytest.approx(1e-9 + EXTRA_EVENTS * 1e-9 / 1e-4)
    later, same = interval(quiet._replace(variance=1e-5, chance=1e-5, fourth=1e-12), first)
    assert same == first
    assert later.high - later.low < wide.high - wide.low
    assert interval(quiet, 0.0, 0.01)[0].high > wide.high


def test_the_holdout_borrows_the_purchases_of_all() -> None:
    lists, holdout = Totals(), Totals()
    users = np.zeros((1000, len(COLUMNS)))
    users[:, 0] = 1.0
    lists.change(np.zeros_like(users), users + np.array([0, 0.5, 0, 0]))
    holdout.change(np.zeros_like(users[:100]), users[:100])  # nobody in it has bought anything yet
    made = against_holdout(lists, holdout)
    assert made.value == 0.5
    assert made.chance == pytest.approx(1000 * 0.25 / 1100 * (1 / 1000 + 1 / 100))
    assert made.users == 100


def test_a_measure_survives_its_text() -> None:
    measure = Measure(since=7)
    for arm in ("challenger", "incumbent"):
        measure.arm(arm).change(np.zeros((3, 4)), np.arange(12.0).reshape(3, 4) + 1)
    measure.look(0.01)
    again = Measure.load(7, measure.dump())
    assert json.dumps(asdict(again), default=np.ndarray.tolist) == measure.dump()
    assert set(again.last) >= {"challenger lift", "difference lift", "difference value"}
    assert again.interval("nothing").high == np.inf
    assert Measure.load(3, "").since == 3


def test_all_challengers_together_spend_alpha() -> None:
    spent = [spent_alpha(number) for number in range(1, 2000)]
    assert spent == sorted(spent, reverse=True)
    assert 0.99 * ALPHA < sum(spent) < ALPHA


CELLS: list[Any] = [
    Cell(300, 0.9, 0.2, 0.05, visits=10_000),  # the variance of the data alone covered much less than 95%
    Cell(300, 0.9, 0.05, 0.05, same=True, returning=True),
    Cell(300, 0.98, 0.2, 0.05, visits=10_000),
    Cell(300, 0.9, 0.2, 0.05, ratio=4.0, visits=5000),
]


@pytest.mark.statistical
@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_coverage_with_a_look_every_hundred_visits(cell: Cell) -> None:
    """All intervals of a run must cover at once: of an arm, of two arms, and against the hold-out."""
    seen = cell.frequencies(runs=400, seed=77) / 400
    assert seen[0, STARTED] > 0.9
    assert (seen[:, MISSED] <= 0.05).all()
    if cell.ratio == 1.0:
        assert (seen[:, ABOVE] <= 0.05).all()


@pytest.mark.statistical
def test_twenty_challengers_in_a_row_promote_rarely() -> None:
    cell = Cell(50, ceiling=0.8, share=0.2, same=True, visits=5000, peek=0)
    seen = cell.frequencies(runs=150, seed=5, trials=20) / 150
    assert seen[1, STARTED] > 0.9
    assert seen[1, ABOVE] <= 0.05


@pytest.mark.statistical
@pytest.mark.parametrize(("spread", "cap"), [(1.0, np.inf), (2.0, 20.0)])
def test_coverage_of_values(spread: float, cap: float) -> None:
    """A twentieth of the visits has a log-normal value; users come back in 20 periods; one arm is small."""
    random, runs, missed, started = np.random.default_rng(5), 100, 0, 0
    for _ in range(runs):
        arms = [_Valued(random, users, spread, cap) for users in (1000, 4000)]
        first, covered = 0.0, True
        for _ in range(20):
            small, large = (arm.next() for arm in arms)
            ends, first = interval(small - large, first)
            covered &= ends.low <= 0 <= ends.high
        missed += not covered
        started += np.isfinite(ends.low)
    assert missed / runs <= 0.05
    assert started > 0.9 * runs


class _Valued:
    """An arm; what is shown causes nothing."""

    def __init__(self, random: np.random.Generator, users: int, spread: float, cap: float) -> None:
        self.random, self.spread, self.cap, self.totals = random, spread, cap, Totals()
        self.state = np.zeros((users, len(COLUMNS)))

    def next(self) -> Estimate:
        """The mean after one more period."""
        n, pi = len(self.state), 0.7
        bought, shown = self.random.random(n) < 0.05, self.random.random(n) < pi
        value = np.minimum(self.random.lognormal(0.0, self.spread, n), self.cap) * bought
        before = self.state.copy()
        self.state[:, 0] += 1
        self.state[:, 3] += np.where(shown, value, -value * pi / (1 - pi))
        self.totals.change(before, self.state)
        self.totals.chance += chance_moments(np.full(bought.sum(), pi), value[bought])
        return self.totals.mean("value")


@pytest.mark.statistical
def test_sample_ratio() -> None:
    random = np.random.default_rng(4)
    shares = np.array([0.1, 0.6, 0.3])
    alarms = 0
    for _ in range(500):
        counts = np.cumsum(random.multinomial(50, shares, 60), axis=0)
        alarms += any(ratio_evidence(row, shares) > np.log(1 / 0.05) for row in counts)
    assert alarms / 500 <= 0.05
    wrong = random.multinomial(20_000, [0.1, 0.57, 0.33])
    assert ratio_evidence(wrong, shares) > np.log(1000)
    assert ratio_evidence([0, 0, 0], shares) == pytest.approx(0)
