"""The policy: π solves its equation, and lists are drawn with exactly these probabilities."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from scipy.optimize import brentq
from scipy.special import expit

from taurank._jit import compiled
from taurank.errors import InputError
from taurank.serve import policy
from taurank.serve.policy import Policy

SECRET = bytes(range(32))
SCORES = st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=60)


def twin_probabilities(chosen: Policy, scores: np.ndarray) -> np.ndarray:
    """The equation itself, solved by a general root finder in θ."""
    n, slots, floor = len(scores), chosen.slots(len(scores)), chosen.floor_for(len(scores))
    z = scores / scores.std() / chosen.temperature

    def pi(theta: float) -> np.ndarray:
        return np.asarray(floor + (chosen.ceiling - floor) * expit(z - theta))

    theta = brentq(lambda value: pi(value).sum() - slots, z.min() - 60, z.max() + 60, xtol=1e-14, rtol=1e-15)
    assert n > slots
    return pi(theta)


def test_probabilities_solve_the_equation() -> None:
    random = np.random.default_rng(0)
    for n, k, temperature in [(20, 5, 0.5), (300, 10, 0.1), (5000, 10, 0.3), (12, 10, 2.0)]:
        chosen = Policy(k=k, floor=0.0005, ceiling=0.95, temperature=temperature)
        scores = random.standard_normal(n)
        np.testing.assert_allclose(chosen.probabilities(scores), twin_probabilities(chosen, scores), rtol=1e-9)


@settings(max_examples=300, deadline=None)
@given(SCORES, st.integers(1, 12), st.floats(1e-4, 0.3), st.floats(0.5, 0.7), st.floats(1e-3, 1e3))
def test_invariants(values: list[float], k: int, floor: float, ceiling: float, temperature: float) -> None:
    chosen = Policy(k=k, floor=floor, ceiling=ceiling, temperature=temperature)
    scores = np.array(values)
    pi = chosen.probabilities(scores)
    assert pi.sum() == pytest.approx(chosen.slots(len(scores)), abs=1e-10)
    assert pi.min() >= chosen.floor_for(len(scores)) - 1e-15
    assert pi.max() <= ceiling
    order = np.argsort(scores, kind="stable")
    assert (np.diff(pi[order]) >= -1e-15).all()
    key = policy.stream_key(SECRET, "home", "u", k)
    shown = chosen.draw(pi, key)
    assert len(set(shown.tolist())) == chosen.slots(len(scores))
    assert np.array_equal(shown, chosen.draw(pi, key))


def test_temperature_moves_between_greedy_and_uniform() -> None:
    scores = np.arange(20.0)
    cold = Policy(k=3, floor=0.01, ceiling=0.9, temperature=1e-3).probabilities(scores)
    hot = Policy(k=3, floor=0.01, ceiling=0.9, temperature=1e6).probabilities(scores)
    assert cold[-1] > 0.89
    np.testing.assert_allclose(hot, 3 / 20, rtol=1e-4)
    np.testing.assert_allclose(Policy(k=3).probabilities(np.zeros(20)), 3 / 20, rtol=1e-12)


@pytest.mark.parametrize(("n", "slots"), [(0, 0), (1, 0), (2, 1), (5, 4), (100, 10)])
def test_few_items(n: int, slots: int) -> None:
    chosen = Policy(k=10, floor=0.001, ceiling=0.9)
    pi = chosen.probabilities(np.arange(float(n)))
    assert pi.sum() == pytest.approx(slots)
    assert len(chosen.draw(pi, np.uint64(3))) == slots


@compiled
def _counts(pi: Any, slots: Any, keys: Any, single: Any, pairs: Any) -> None:
    for key in keys:
        shown = policy.draw(pi, slots, key)
        for a in range(slots):
            single[shown[a]] += 1
            for b in range(a):
                pairs[shown[b], shown[a]] += 1


@pytest.mark.statistical
def test_a_million_replayed_decisions_have_the_promised_frequencies() -> None:
    chosen = Policy(k=4, floor=0.02, ceiling=0.95, temperature=0.4)
    pi = chosen.probabilities(np.random.default_rng(1).standard_normal(14))
    users, periods = 100_000, 10
    keys = np.array(
        [policy.stream_key(SECRET, "home", str(u), p) for u in range(users) for p in range(periods)], np.uint64
    )
    single, pairs = np.zeros(14, np.int64), np.zeros((14, 14), np.int64)
    _counts(pi, 4, keys, single, pairs)
    z = (single - len(keys) * pi) / np.sqrt(len(keys) * pi * (1 - pi))
    assert np.abs(z).max() < 4.5
    assert single.sum() == 4 * len(keys)
    for a, b in itertools.combinations(range(14), 2):  # every pair is seen together
        assert pairs[a, b] > 0
    again = np.zeros(14, np.int64)
    _counts(pi, 4, keys, again, np.zeros((14, 14), np.int64))
    assert np.array_equal(single, again)


def test_streams_do_not_collide() -> None:
    keys = {
        int(policy.stream_key(secret, surface, user, period))
        for secret in (SECRET, SECRET[::-1])
        for surface, user in (("a", "bc"), ("ab", "c"), ("", "abc"))
        for period in (1, 11)
    }
    assert len(keys) == 12
    places = np.array([policy.position(SECRET, "holdout", str(u)) for u in range(20_000)])
    assert np.abs(np.histogram(places, 10, (0, 1))[0] - 2000).max() < 4.5 * np.sqrt(1800)


def test_bad_policies_are_refused() -> None:
    for wrong in ({"k": 0}, {"floor": 0.0}, {"floor": 0.2, "ceiling": 0.9}, {"temperature": 0.0}, {"ceiling": 1.5}):
        with pytest.raises(ValidationError):
            Policy(**wrong)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="finite"):
        Policy().probabilities([1.0, np.nan])
