"""Confidence sequences cover at all times at once; the sample-ratio test rarely cries wolf and finds a mismatch."""

from __future__ import annotations

import numpy as np
import pytest

from taurank.serve.lift import (
    MIN_ACTIVE,
    MIN_USERS,
    MIN_VALUED,
    Means,
    confidence,
    ratio_evidence,
    running_means,
)


def slow_mean(user: np.ndarray, period: np.ndarray, value: np.ndarray, last: int) -> tuple[float, float]:
    keep = period <= last
    users = np.unique(user[keep])
    sums = np.array([value[keep & (user == u)].sum() for u in users])
    visits = np.array([np.count_nonzero(keep & (user == u)) for u in users])
    mean = sums.sum() / visits.sum()
    variance = ((sums - mean * visits) ** 2).sum() / visits.sum() ** 2 * len(users) / (len(users) - 1)
    return float(mean), float(variance)


def test_running_means_equal_their_slow_twin() -> None:
    random = np.random.default_rng(0)
    user, period = random.integers(0, 30, 400), random.integers(0, 6, 400)
    value = random.poisson(0.4, 400).astype(np.float64)
    means = running_means(user, period, value, 6)
    for last in range(6):
        mean, variance = slow_mean(user, period, value, last)
        assert means.mean[last] == pytest.approx(mean)
        assert means.variance[last] == pytest.approx(variance)
        assert means.users[last] == len(np.unique(user[period <= last]))
        assert means.active[last] == len(np.unique(user[(period <= last) & (value != 0)]))
    assert running_means(user[:0], period[:0], value[:0], 2).users.tolist() == [0, 0]


@pytest.mark.statistical
def test_coverage_under_continuous_peeking() -> None:
    """Skewed outcomes, a look after every single observation: all intervals of a run must cover at once."""
    random = np.random.default_rng(1)
    runs, n, rate = 1500, 3000, 0.3
    x = random.poisson(rate, (runs, n)) * random.exponential(1.0, (runs, n))
    t = np.arange(1, n + 1)
    mean = np.cumsum(x, axis=1) / t
    variance = (np.cumsum(x**2, axis=1) / t - mean**2) / np.maximum(t - 1, 1)
    covered = fixed = 0
    for run in range(runs):
        means = Means(mean[run], np.maximum(variance[run], 0), t, np.cumsum(x[run] != 0))
        enough = (t >= MIN_USERS) & (means.active >= MIN_ACTIVE)
        sequence = confidence(means)
        covered += bool(((sequence.low <= rate) & (rate <= sequence.high)).all())
        naive = 1.96 * np.sqrt(np.maximum(variance[run], 0))[enough]
        fixed += bool((np.abs(mean[run] - rate)[enough] <= naive).all())
    assert covered / runs >= 0.95
    assert fixed / runs < 0.75  # what peeking does to an ordinary interval


@pytest.mark.statistical
@pytest.mark.parametrize("spread", [1.0, 2.0])
def test_coverage_of_values(spread: float) -> None:
    """A twentieth of the visits has a log-normal value, shown (+) or not (−); one arm is small."""
    random, runs, covered = np.random.default_rng(5), 200, 0
    for _ in range(runs):
        small, large = (_valued(random, users, spread) for users in (1000, 4000))
        sequence = confidence(small - large, MIN_VALUED)
        covered += bool(((sequence.low <= 0) & (sequence.high >= 0)).all())
        assert np.isfinite(sequence.high[-1])
    assert covered / runs >= 0.95


def _valued(random: np.random.Generator, users: int, spread: float) -> Means:
    """Running means of 10 periods; the arms do not differ."""
    n = 10 * users
    value = random.lognormal(0.0, spread, n) * (random.random(n) < 0.05)
    shown = random.random(n) < 0.7
    order = np.arange(n)
    return running_means(order % users, order // users, np.where(shown, value, -value * 0.4), 10)


@pytest.mark.statistical
def test_coverage_with_returning_users_and_two_arms() -> None:
    """The same users come back in 25 periods with tastes of their own; a look after every period."""
    random = np.random.default_rng(2)
    runs, users, periods = 1000, 200, 25
    covered = one_covered = 0
    for _ in range(runs):
        rates = random.gamma(0.5, 0.8, 2 * users)  # mean 0.4
        values = random.poisson(rates[:, None], (2 * users, periods)).astype(np.float64)
        first, second = _means(values[:users]), _means(values[users:])
        both, one = confidence(first - second), confidence(first)
        covered += bool(((both.low <= 0) & (both.high >= 0)).all())
        one_covered += bool(((one.low <= 0.4) & (one.high >= 0.4)).all())
    assert covered / runs >= 0.95
    assert one_covered / runs >= 0.95


def _means(values: np.ndarray) -> Means:
    users, periods = values.shape
    user, period = np.repeat(np.arange(users), periods), np.tile(np.arange(periods), users)
    return running_means(user, period, values.ravel(), periods)


def test_intervals_shrink_and_wait_for_enough_users() -> None:
    random = np.random.default_rng(3)
    values = random.poisson(0.3, (400, 12)).astype(np.float64)
    sequence = confidence(_means(values))
    width = sequence.high - sequence.low
    assert (np.diff(width) < 0).all()
    few = confidence(_means(values[:20]))
    assert np.isinf(few.high).all()


def test_a_difference_starts_when_both_arms_have_enough() -> None:
    """The first look needs users, variance and ``min_active`` users with an outcome, in each arm."""

    def means(users: list[int], active: list[int]) -> Means:
        zeros = np.zeros(len(users))
        return Means(zeros, zeros + 1.0, np.array(users), np.array(active))

    plenty = means([1000] * 4, [500] * 4)
    slow = means([1000] * 4, [29, 30, 99, 100])
    for both in (plenty - slow, slow - plenty):
        assert np.isfinite(confidence(both).high).tolist() == [False, True, True, True]
        assert np.isfinite(confidence(both, MIN_VALUED).high).tolist() == [False, False, False, True]
    few = means([98, 99, 100, 101], [98, 99, 100, 101])
    for both in (plenty - few, few - plenty):
        assert np.isfinite(confidence(both).high).tolist() == [False, False, True, True]


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
