"""The best columns of each row, against sorting the row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from taurank.evaluation import topk

SCORES = st.sampled_from([-np.inf, -1.0, -0.0, 0.0, 0.5, 0.5, 1.0, 3.0, np.nan])


def slow_best(row: Any, k: int) -> list[int]:
    columns = [j for j in range(len(row)) if row[j] > -np.inf]  # neither NaN nor −∞
    return sorted(columns, key=lambda j: (-row[j], j))[:k]


def slow_best_first(row: Any, depth: int) -> list[int]:
    ordered = sorted(range(len(row)), key=lambda j: (-row[j], j))
    return [j for j in ordered if row[j] >= row[ordered[min(depth, len(row)) - 1]]]


@settings(deadline=None, max_examples=60)
@given(arrays.arrays(np.float64, (3, 150), elements=SCORES), st.integers(1, 150), st.sampled_from(["f4", "f8"]))
def test_the_best_are_the_first_of_the_sorted_row(scores: Any, k: int, kind: str) -> None:
    top = topk.best(scores.astype(kind), k)
    for row, columns, values, length in zip(scores, *top, strict=True):
        assert columns[:length].tolist() == slow_best(row, k)
        assert values[:length].tolist() == row[columns[:length]].tolist()


@settings(deadline=None, max_examples=60)
@given(arrays.arrays(np.float32, (3, 130), elements=SCORES), st.integers(1, 130))
def test_a_listing_includes_every_tie_at_its_end(scores: Any, depth: int) -> None:
    scores = np.where(np.isnan(scores), np.float32(0.25), scores)  # scores are checked before they are ranked
    listing = topk.best_first(scores, depth)
    for row, columns, length in zip(scores, *listing, strict=True):
        expected = slow_best_first(row, depth)
        assert columns[:length].tolist()[: len(expected)] == expected
        assert length in (len(expected), len(row))


@pytest.mark.parametrize("depth", [1, 10, topk._SORT_PAYS, topk._SORT_PAYS + 1, 900, 2000])
def test_listings_of_any_depth_start_with_the_sorted_row(depth: int) -> None:
    random = np.random.default_rng(3)
    scores = np.round(random.normal(size=(4, 900)), 2).astype(np.float32)
    scores[0] = 0.0  # one tie of everything
    for row, columns, length in zip(scores, *topk.best_first(scores, depth), strict=True):
        expected = slow_best_first(row, depth)
        assert columns[: len(expected)].tolist() == expected
        assert length in (len(expected), 900)


def test_rows_without_columns_have_empty_listings() -> None:
    listing = topk.best_first(np.empty((2, 0), np.float32), 10)
    assert listing.columns.shape == (2, 0)
    assert listing.length.tolist() == [0, 0]
