"""What the ranks of chosen items are worth: a block of users in, sums out.

A metric is a table of weights by rank. An item with ``above`` items over it and ``tied`` at its score (itself
included) weighs the mean over the ranks above + 1 … above + tied, its expectation when ties are broken at
random. Only items with a gain, and logged ones where overlap is in question, get a place at all.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np
import numpy.typing as npt

from taurank.places import new_bins, place

Floats = npt.NDArray[np.float64]
Starts = npt.NDArray[np.int64]


class Rows(NamedTuple):
    """Rows grouped by user: those of user u are ``start[u] : start[u + 1]``."""

    start: Starts
    item: npt.NDArray[np.int32]
    time: npt.NDArray[np.int32]
    value: Floats


class Logged(NamedTuple):
    """Logged pairs grouped by user, and whether their propensity was extreme."""

    start: Starts
    item: npt.NDArray[np.int32]
    extreme: npt.NDArray[np.bool_]


class Tables(NamedTuple):
    """Metrics as tables: row m of ``weight`` holds the weight of rank 1, 2, …; ``summed`` its running sums.

    ``true_auc`` marks the one metric that is not linear in the gains.
    """

    weight: Floats
    summed: Floats
    true_auc: npt.NDArray[np.bool_]


class Sums(NamedTuple):
    """What a block of users adds up to: metric × time, and metric × (logged, logged and extreme)."""

    per_time: Floats
    exposure: Floats


def measure(
    scores: npt.NDArray[Any], users: npt.NDArray[np.int32], column: npt.NDArray[np.int32],
    rows: Rows, logged: Logged, tables: Tables, n_times: int, per_user: Floats,
) -> Sums:  # fmt: skip
    """Measure a block: ``scores[b]`` are the scores of user ``users[b]``, ``column[i]`` the column of item i.

    Items without a column (−1) stand below all others, tied. Sums over times are written to
    ``per_user[:, users]``, the rest is returned.
    """
    n_metrics = len(tables.weight)
    sums = Sums(np.zeros((n_metrics, n_times)), np.zeros((n_metrics, 2)))
    wanted = _row_counts(rows.start, users) + _row_counts(logged.start, users)
    most = min(int(wanted.max(initial=0)), len(column))
    _measure(scores, users, column, rows, logged, tables, most, per_user, sums)
    return sums


def _row_counts(start: Starts, users: npt.NDArray[np.int32]) -> Starts:
    return start[users + 1] - start[users]


def group(
    user: npt.NDArray[np.int32], n_users: int, *columns: npt.NDArray[Any]
) -> tuple[Starts, list[npt.NDArray[Any]]]:
    """Where each user's rows start, and the columns grouped by user, each user's rows in their order.

    Columns that are grouped already are shared, not copied.
    """
    start = np.zeros(n_users + 1, np.int64)
    np.cumsum(np.bincount(user, minlength=n_users), out=start[1:])
    if _is_grouped(user):
        grouped = [column.view() for column in columns]
    else:
        order = np.empty(len(user), np.int64)
        _order(user, start[:-1].copy(), order)
        grouped = [column[order] for column in columns]
    for column in grouped:
        column.flags.writeable = False  # one kind of array, so that kernels are compiled once
    return start, grouped


@numba.njit(nogil=True, cache=True)
def _is_grouped(user: Any) -> Any:
    falls = False
    for row in range(1, len(user)):
        falls |= user[row] < user[row - 1]
    return not falls


@numba.njit(nogil=True, cache=True)
def _order(user: Any, following: Any, order: Any) -> None:
    """A stable counting sort; ``following[u]`` is where user u's following row goes."""
    for row in range(len(user)):
        order[following[user[row]]] = row
        following[user[row]] += 1


@numba.njit(nogil=True, cache=True)
def _measure(
    scores: Any, users: Any, column: Any,
    rows: Any, logged: Any, tables: Any, most: Any, per_user: Any, sums: Any,
) -> None:  # fmt: skip
    n_known, n_items = scores.shape[1], len(column)
    bins = new_bins(scores)
    slot = np.full(n_items, -1, np.int32)
    wanted = np.empty(most, np.int32)
    shown = np.empty(most, np.int8)
    above, tied = np.empty(most, np.int64), np.empty(most, np.int64)
    auc_sum, auc_count = np.zeros(sums.per_time.shape[1]), np.zeros(sums.per_time.shape[1], np.int64)
    for b in range(len(users)):
        user = users[b]
        n = _collect(user, rows, logged, slot, wanted, shown)
        if n == 0:
            continue
        place(scores[b], column[wanted[:n]], n_items - n_known, above, tied, bins)
        _add_gains(user, rows, slot, above, tied, tables, per_user, sums.per_time)
        for m in range(len(tables.true_auc)):
            if tables.true_auc[m]:
                _add_auc(m, user, rows, slot, above, tied, n_items, auc_sum, auc_count,
                         per_user, sums.per_time)  # fmt: skip
        if len(logged.item):
            _add_exposure(shown[:n], above, tied, tables, sums.exposure)
        for a in range(n):
            slot[wanted[a]] = -1


@numba.njit(nogil=True, cache=True)
def _collect(user: Any, rows: Any, logged: Any, slot: Any, wanted: Any, shown: Any) -> Any:
    """The distinct items of a user's rows; ``shown`` is 1 where logged, 2 where logged and extreme."""
    n = 0
    for row in range(rows.start[user], rows.start[user + 1]):
        item = rows.item[row]
        if slot[item] < 0:
            slot[item], wanted[n], shown[n] = n, item, 0
            n += 1
    for row in range(logged.start[user], logged.start[user + 1]):
        item = logged.item[row]
        if slot[item] < 0:
            slot[item], wanted[n], shown[n] = n, item, 0
            n += 1
        shown[slot[item]] = max(shown[slot[item]], 2 if logged.extreme[row] else 1)
    return n


@numba.njit(nogil=True, cache=True)
def _weight(tables: Any, metric: Any, above: Any, tied: Any) -> Any:
    """The mean weight over the ranks above + 1 … above + tied."""
    if tied == 1:
        return tables.weight[metric, above]
    return (tables.summed[metric, above + tied] - tables.summed[metric, above]) / tied


@numba.njit(nogil=True, cache=True)
def _add_gains(
    user: Any, rows: Any, slot: Any, above: Any, tied: Any, tables: Any, per_user: Any, per_time: Any
) -> None:
    """Δ_u = Σ_i weight · gain, Eq. (delta_u_tau)."""
    for m in range(len(tables.true_auc)):
        if tables.true_auc[m]:
            continue
        total = 0.0
        for row in range(rows.start[user], rows.start[user + 1]):
            a = slot[rows.item[row]]
            part = _weight(tables, m, above[a], tied[a]) * rows.value[row]
            total += part
            per_time[m, rows.time[row]] += part
        per_user[m, user] = total


@numba.njit(nogil=True, cache=True)
def _add_auc(
    metric: Any, user: Any, rows: Any, slot: Any, above: Any, tied: Any, n_items: Any,
    total: Any, count: Any, per_user: Any, per_time: Any,
) -> None:  # fmt: skip
    """AUC = [Σ (I − r) / n₊ − (n₊ − 1) / 2] / n₋ for each time with positives; ½ without negatives."""
    summed = 0.0
    for row in range(rows.start[user], rows.start[user + 1]):
        a, time = slot[rows.item[row]], rows.time[row]
        total[time] += n_items - above[a] - 0.5 * (tied[a] + 1)
        count[time] += 1
    for row in range(rows.start[user], rows.start[user + 1]):
        time = rows.time[row]
        if count[time] > 0:
            positives, negatives = count[time], n_items - count[time]
            area = 0.5
            if negatives > 0:
                area = (total[time] / positives - 0.5 * (positives - 1)) / negatives
            summed += area
            per_time[metric, time] += area
            total[time], count[time] = 0.0, 0
    per_user[metric, user] = summed


@numba.njit(nogil=True, cache=True)
def _add_exposure(shown: Any, above: Any, tied: Any, tables: Any, exposure: Any) -> None:
    """Σ|λ| over the logged pairs, and over the extreme ones among them."""
    for m in range(len(tables.true_auc)):
        for a in range(len(shown)):
            if shown[a] > 0:
                weight = abs(_weight(tables, m, above[a], tied[a]))
                exposure[m, 0] += weight
                if shown[a] == 2:
                    exposure[m, 1] += weight
