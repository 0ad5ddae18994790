"""Bernoulli draws over users × items × times that never exist at once.

Every draw is a hash of the seed and the number of its cell, so that any block of users, on any thread, gives
the same result. Cells are visited twice: once to count what will be stored, once to write it in place.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from taurank._jit import compiled, inlined
from taurank._random import uniform
from taurank._threads import map_blocks
from taurank._types import Longs


@inlined
def _draw(treated_rate: Any, control_rate: Any, propensity: Any, key: Any, cell: Any) -> Any:
    """Y^T, Y^C and Z of one cell."""
    counter = np.uint64(3) * np.uint64(cell)
    y_treated = uniform(key, counter) < treated_rate
    y_control = uniform(key, counter + np.uint64(1)) < control_rate
    z = uniform(key, counter + np.uint64(2)) < propensity
    return y_treated, y_control, z


@compiled
def _count(
    treated_rate: Any, control_rate: Any, propensity: Any, times: Any, key: Any, rows: Any, effects: Any,
    begin: int, end: int,
) -> None:  # fmt: skip
    n_users, n_items = propensity.shape
    for user in range(begin, end):
        for time in range(times):
            n_rows, n_effects = 0, 0
            first = (np.int64(time) * n_users + user) * n_items
            for item in range(n_items):
                y_treated, y_control, z = _draw(
                    treated_rate[user, item], control_rate[user, item], propensity[user, item],
                    key, first + item,
                )  # fmt: skip
                n_rows += z or y_control
                n_effects += y_treated != y_control
            rows[time, user] = n_rows
            effects[time, user] = n_effects


@compiled
def _fill(
    treated_rate: Any, control_rate: Any, propensity: Any, times: Any, key: Any,
    row_start: Any, effect_start: Any, log: Any, truth: Any, begin: int, end: int,
) -> None:  # fmt: skip
    log_user, log_item, log_time, log_treated, log_outcome = log
    truth_user, truth_item, truth_time, truth_value = truth
    n_users, n_items = propensity.shape
    for user in range(begin, end):
        for time in range(times):
            row, effect = row_start[time, user], effect_start[time, user]
            first = (np.int64(time) * n_users + user) * n_items
            for item in range(n_items):
                y_treated, y_control, z = _draw(
                    treated_rate[user, item], control_rate[user, item], propensity[user, item],
                    key, first + item,
                )  # fmt: skip
                if z or y_control:
                    log_user[row], log_item[row], log_time[row] = user, item, time
                    log_treated[row] = z
                    log_outcome[row] = y_treated if z else y_control
                    row += 1
                if y_treated != y_control:
                    truth_user[effect], truth_item[effect], truth_time[effect] = user, item, time
                    truth_value[effect] = 1.0 if y_treated else -1.0
                    effect += 1


def count_cells(
    treated_rate: Any, control_rate: Any, propensity: Any, times: int, key: np.uint64, threads: int | None
) -> tuple[Longs, Longs]:
    """How many log rows and how many effects each (time, user) will have."""
    shape = (times, propensity.shape[0])
    rows, effects = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    work = (treated_rate, control_rate, propensity, times, key, rows, effects)
    map_blocks(lambda begin, end: _count(*work, begin, end), len(propensity), threads)
    return rows, effects


def fill_cells(
    treated_rate: Any, control_rate: Any, propensity: Any, times: int, key: np.uint64,
    row_counts: Longs, effect_counts: Longs, threads: int | None,
) -> tuple[Any, Any]:  # fmt: skip
    """The log's columns (user, item, time, treated, outcome) and the truth's (user, item, time, value)."""
    n_rows, n_effects = int(row_counts.sum()), int(effect_counts.sum())
    log = (*_codes(n_rows), np.empty(n_rows, np.int8), np.empty(n_rows, np.int8))
    truth = (*_codes(n_effects), np.empty(n_effects, np.float64))
    starts = (_starts(row_counts), _starts(effect_counts))
    work = (treated_rate, control_rate, propensity, times, key, *starts, log, truth)
    map_blocks(lambda begin, end: _fill(*work, begin, end), len(propensity), threads)
    return log, truth


def _codes(n: int) -> tuple[Any, Any, Any]:
    return np.empty(n, np.int32), np.empty(n, np.int32), np.empty(n, np.int32)


def _starts(counts: Longs) -> Longs:
    """Where each (time, user) begins when rows are ordered by time, user, item."""
    return (np.cumsum(counts) - counts.ravel()).reshape(counts.shape)
