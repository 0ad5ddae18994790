"""Slate propensities against enumeration of all slates, simulation, and what must always be true."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from taurank import propensity
from taurank.errors import InputError


def drawn_without_replacement(weights: Any, size: int) -> Any:
    """P(on the slate) by adding up the probabilities of all ordered slates."""
    result = np.zeros(len(weights))
    for slate in permutations(range(len(weights)), size):
        chance, left = 1.0, list(range(len(weights)))
        for item in slate:
            chance *= weights[item] / sum(weights[j] for j in left)
            left.remove(item)
        result[list(slate)] += chance
    return result


def greedy_slot_by_slot(scores: Any, size: int, epsilon: float) -> Any:
    """The same for an ε-greedy draw in every slot; scores without ties."""
    result = np.zeros(len(scores))
    for slate in permutations(range(len(scores)), size):
        chance, left = 1.0, set(range(len(scores)))
        for item in slate:
            best = max(left, key=lambda i: scores[i])
            chance *= epsilon / len(left) + (1.0 - epsilon) * (item == best)
            left.remove(item)
        result[list(slate)] += chance
    return result


@settings(max_examples=40, deadline=None)
@example([0.3, -3.33203125], 1, 0.3)  # the first sums are above 1
@given(st.lists(st.floats(-12.0, 12.0), min_size=2, max_size=7), st.integers(1, 4), st.floats(0.3, 3.0))
def test_softmax_slates_agree_with_enumeration(scores: list[float], size: int, temperature: float) -> None:
    size = min(size, len(scores))
    result = propensity.slate_softmax(scores, size, temperature)
    expected = drawn_without_replacement(np.exp(np.array(scores) / temperature), size)
    np.testing.assert_allclose(result, expected, atol=2e-8, rtol=1e-6)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(-700.0, 700.0), min_size=1, max_size=40), st.integers(1, 30))
def test_probabilities_add_up_and_follow_the_scores(scores: list[float], size: int) -> None:
    result = propensity.slate_softmax(scores, size)
    assert result.sum() == pytest.approx(min(size, len(scores)), abs=1e-6)
    assert np.all((result >= 0.0) & (result <= 1.0))
    assert np.all(np.diff(result[np.argsort(scores, kind="stable")]) >= -1e-7)


def test_large_slates_agree_with_simulation() -> None:
    """10 of 2,000 by Gumbel noise; also 150 of 400, where the k-th item finishes at almost a fixed time."""
    rng = np.random.default_rng(1)
    for n, size, draws in ((2000, 10, 4000), (400, 150, 4000)):
        scores = rng.normal(0.0, 2.0, n)
        noise = rng.gumbel(size=(draws, n))
        top = np.argpartition(-(scores + noise), size - 1, axis=1)[:, :size]
        share = np.bincount(top.ravel(), minlength=n) / draws
        result = propensity.slate_softmax(scores, size)
        assert result.sum() == pytest.approx(size, abs=1e-7)
        z = (share - result) / np.sqrt(result * (1 - result) / draws + 1e-12)
        assert abs(z[result > 0.01]).max() < 4.5
        assert (z[result > 0.01] ** 2).mean() == pytest.approx(1.0, abs=0.35)


def test_scores_weights_rows_and_threads_agree() -> None:
    scores = np.random.default_rng(3).normal(size=(7, 25))
    scores[2, :20] = -np.inf
    by_rows = np.array([propensity.slate_softmax(row, 6, 0.5) for row in scores])
    at_once = propensity.slate_softmax(scores, 6, 0.5, threads=2)
    np.testing.assert_array_equal(at_once, by_rows)
    np.testing.assert_allclose(propensity.slate_weighted(np.exp(2.0 * scores), 6), at_once, atol=1e-8)
    np.testing.assert_array_equal(at_once[2], np.append(np.zeros(20), np.ones(5)))  # not one more than it takes
    weights = np.exp(4.0 * np.random.default_rng(2).normal(size=(5, 300)))
    one = propensity.slate_weighted(weights, 1)
    np.testing.assert_allclose(one, weights / weights.sum(axis=1, keepdims=True), atol=1e-9)


@settings(max_examples=40, deadline=None)
@given(st.permutations(range(6)), st.integers(1, 6), st.floats(0.0, 1.0))
def test_epsilon_greedy_slots_agree_with_enumeration(scores: list[int], size: int, epsilon: float) -> None:
    result = propensity.slate_epsilon_greedy(scores, size, epsilon)
    np.testing.assert_allclose(result, greedy_slot_by_slot(scores, size, epsilon), atol=1e-12)


def test_epsilon_greedy_whole_slates_and_ties() -> None:
    result = propensity.slate_epsilon_greedy([[3.0, 1.0, 1.0, -np.inf, 0.0]], 2, 0.2, per="slate")
    np.testing.assert_allclose(result, [[0.9, 0.5, 0.5, 0.0, 0.1]])
    slots = propensity.slate_epsilon_greedy([3.0, 1.0, 1.0, 0.0], 2, 0.2)
    broken = np.mean([greedy_slot_by_slot(s, 2, 0.2) for s in ([3.0, 1.0, 1.1, 0.0], [3.0, 1.1, 1.0, 0.0])], axis=0)
    np.testing.assert_allclose(slots, broken)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: propensity.slate_softmax([1.0, np.nan], 1), "scores must be finite .* 1 are not, for example nan"),
        (lambda: propensity.slate_softmax([1.0, 2.0], 0), "size must be an integer ≥ 1"),
        (lambda: propensity.slate_softmax([1.0, 2.0], 1, 0.0), "temperature must be > 0"),
        (lambda: propensity.slate_softmax(np.ones((2, 2, 2)), 1), "one row per slate"),
        (lambda: propensity.slate_softmax([["a"]], 1), "scores must be numbers"),
        (lambda: propensity.slate_weighted([1.0, -2.0], 1), "weights must be ≥ 0; 1 are negative"),
        (lambda: propensity.slate_epsilon_greedy([1.0, 2.0], 1, 1.5), "epsilon"),
        (lambda: propensity.slate_epsilon_greedy([1.0, 2.0], 1, 0.5, per="row"), "per"),
    ],
)
def test_refusals(call: Any, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        call()
