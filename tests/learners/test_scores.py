"""Scores of factors against sums made one product at a time, and the best of them against sorting."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from taurank._threads import one_blas_thread
from taurank.learners import scores
from taurank.learners.scores import ProductSearch, dot_products


def slow_scores(users: Any, items: Any) -> Any:
    """The definition: products in float64, added column by column, rounded once."""
    total = np.zeros((len(users), len(items)))
    for column in range(users.shape[1]):
        total += users[:, column, None].astype(np.float64) * items[:, column].astype(np.float64)
    return total.astype(np.float32)


def slow_best(row: Any, k: int) -> list[int]:
    return sorted(np.flatnonzero(row > -np.inf).tolist(), key=lambda item: (-row[item], item))[:k]


def show_all(first: int, tile: Any) -> None:
    pass


def check_best(users: Any, items: Any, k: int) -> None:
    expected = slow_scores(users, items)
    top = ProductSearch(items, k).best(users, show_all)
    for row, columns, values, length in zip(expected, *top, strict=True):
        assert columns[:length].tolist() == slow_best(row, k)
        assert values[:length].tolist() == row[columns[:length]].tolist()


def normal(rng: np.random.Generator, rows: int, factors: int) -> Any:
    return rng.standard_normal((rows, factors), np.float32)


@pytest.mark.parametrize("factors", [1, 5, 64, 200, 401])
@pytest.mark.parametrize("n_items", [1, 7, 512, 1100])
def test_scores_are_those_of_the_definition_in_any_company(factors: int, n_items: int) -> None:
    rng = np.random.default_rng(factors)
    users, items = normal(rng, 100, factors), normal(rng, n_items, factors)
    expected = slow_scores(users, items)
    for size in (1, 2, scores.FEW_USERS - 1, scores.FEW_USERS, 100):
        some = rng.choice(100, size, replace=False)
        assert np.array_equal(dot_products(users[some], items), expected[some])
        with one_blas_thread():
            assert np.array_equal(dot_products(users[some], items), expected[some])
    assert dot_products(users[:0], items).shape == (0, n_items)


# Sums that end between two float32 numbers or cancel: there the order of summation decides, or would.
HARD = st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.0**-24, -(2.0**-24), 1 + 2.0**-23, 3e-9, 1e-30, 1e18, -1e18])


@settings(deadline=None, max_examples=100)
@given(arrays.arrays(np.float32, (40, 6), elements=HARD), arrays.arrays(np.float32, (9, 6), elements=HARD))
def test_sums_that_cancel_or_end_between_two_numbers(users: Any, items: Any) -> None:
    expected = slow_scores(users, items)
    for some in (users, users[:3]):
        found = dot_products(some, items)
        assert np.array_equal(found, expected[: len(some)])
        assert not np.signbit(found[found == 0]).any()  # one zero, whatever the company
    check_best(users, items, 4)


def test_the_order_of_summation_is_that_of_the_columns() -> None:
    """Sums that float64 cannot hold: any other order gives another score."""
    users = np.array([[1e18, 1.0, -1e18, 1.0], [1e18, -1e18, 1.0, 1.0]], np.float32)
    items = np.ones((40, 4), np.float32)
    for company in (users, np.repeat(users, 50, axis=0)[::-1]):
        found = dot_products(company, items)
        assert set(found[company[:, 1] == 1.0].ravel()) == {1.0}
        assert set(found[company[:, 1] != 1.0].ravel()) == {2.0}


@pytest.mark.parametrize("factors", [1, 16, 200])
@pytest.mark.parametrize("k", [1, 10, 700])
def test_the_best_are_those_of_a_full_sort(factors: int, k: int) -> None:
    rng = np.random.default_rng(0)
    check_best(normal(rng, 60, factors), normal(rng, 1300, factors), k)


@pytest.mark.parametrize("scale", [1e-25, 1e-12, 1.0, 1e10, 1e18])
def test_scores_that_float32_products_cannot_tell_apart(scale: float) -> None:
    """Nearly equal items, equal ones and zeros, up to products that float32 cannot hold."""
    rng = np.random.default_rng(1)
    users = np.concatenate((normal(rng, 20, 64), np.zeros((2, 64), np.float32))) * np.float32(scale)
    items = np.repeat(normal(rng, 5, 64), 240, axis=0)
    items[::3] *= np.float32(1 + 2.0**-23)
    items[::7, 5] += np.float32(1e-6)
    check_best(users, items * np.float32(scale), 12)


@pytest.mark.parametrize("n_items", [511, 2100])
def test_more_items_than_there_is_room_for_may_be_the_best(n_items: int) -> None:
    """All products are equal as float32 sees them, and every tile is full of items that survive."""
    rng = np.random.default_rng(3)
    items = np.repeat(normal(rng, 1, 32), n_items, axis=0)
    items[:, 3] += np.float32(1e-7) * rng.permutation(n_items).astype(np.float32) / n_items
    check_best(normal(rng, 9, 32), items, 10)


def test_products_that_overflow_in_float32_and_cancel() -> None:
    users, items = np.array([[1e20, 1e20, 1.0]], np.float32), np.zeros((30, 3), np.float32)
    items[:, :2], items[:, 2] = (1e20, -1e20), np.arange(30)
    check_best(users, items, 3)


def test_what_is_hidden_is_not_found() -> None:
    rng = np.random.default_rng(2)
    users, items = normal(rng, 30, 20), normal(rng, 1200, 20)
    hidden = rng.random((30, 1200)) < 0.99

    def hide(first: int, tile: Any) -> None:
        tile[hidden[:, first : first + tile.shape[1]]] = -np.inf

    expected = np.where(hidden, -np.inf, slow_scores(users, items))
    top = ProductSearch(items, 15).best(users, hide)
    for row, columns, length in zip(expected, top.columns, top.length, strict=True):
        assert columns[:length].tolist() == slow_best(row, 15)
