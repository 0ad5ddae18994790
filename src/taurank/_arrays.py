"""Array helpers that several rooms use: grouping by user, and finding scores that are not finite."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from taurank._jit import cached_njit, compiled
from taurank._types import Codes, Longs


def group(user: Codes, n_users: int, *columns: npt.NDArray[Any]) -> tuple[Longs, list[npt.NDArray[Any]]]:
    """Where each user's rows start, and the columns grouped by user, each user's rows in their order.

    Columns that are grouped already are shared, not copied.
    """
    if _is_grouped(user):
        start, grouped = _starts(user, n_users), [column.view() for column in columns]
    else:
        start, order = row_order(user, n_users)
        grouped = [column[order] for column in columns]
    for column in grouped:
        column.flags.writeable = False  # one kind of array, so that kernels are compiled once
    return start, grouped


def row_order(user: Codes, n_users: int) -> tuple[Longs, npt.NDArray[Any]]:
    """Where each user's rows start, and the numbers of the rows grouped by user, each user's in their order."""
    start = _starts(user, n_users)
    order = np.empty(len(user), index_type(len(user)))
    _order(user, start[:-1].copy(), order)
    return start, order


def index_type(n: int) -> type[np.int32] | type[np.int64]:
    """The smaller integers that can number ``n`` things."""
    return np.int32 if n < 2**31 else np.int64


def _starts(user: Codes, n_users: int) -> Longs:
    start = np.zeros(n_users + 1, np.int64)
    _tally(user, start)  # np.bincount would copy the column to larger integers
    return np.cumsum(start)


@compiled
def _is_grouped(user: Any) -> Any:
    falls = False
    for row in range(1, len(user)):
        falls |= user[row] < user[row - 1]
    return not falls


@compiled
def _tally(user: Any, start: Any) -> None:
    for row in range(len(user)):
        start[user[row] + 1] += 1


@compiled
def _order(user: Any, following: Any, order: Any) -> None:
    """A stable counting sort; ``following[u]`` is where user u's following row goes."""
    for row in range(len(user)):
        order[following[user[row]]] = row
        following[user[row]] += 1


@partial(cached_njit, fastmath={"reassoc"})
def first_bad(scores: Any) -> Any:
    """Row and column of the first NaN or infinite score, or (−1, −1)."""
    for row in range(scores.shape[0]):
        one = scores[row]
        total = one.dtype.type(0)
        for j in range(len(one)):  # 0 times a score is 0 unless it is NaN or infinite
            total += one[j] * one.dtype.type(0)
        if total != 0:
            for j in range(len(one)):
                if not np.isfinite(one[j]):
                    return row, j
    return -1, -1
