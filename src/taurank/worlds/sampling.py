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


def draw_cells(rates: tuple[Any, Any, Any], times: int, key: np.uint64, threads: int | None) -> tuple[Any, Any]:
    """The log's columns (user, item, time, treated, outcome) and the truth's (user, item, time, value).

    ``rates`` are μ^T, μ^C and P. Rows are ordered by time, user and item.
    """
    n_users = len(rates[0])
    counts = np.zeros((2, times, n_users), np.int64)
    map_blocks(lambda begin, end: _count(*rates, times, key, counts[0], counts[1], begin, end), n_users, threads)
    row_start, effect_start = ((np.cumsum(count) - count.ravel()).reshape(count.shape) for count in counts)
    n_rows, n_effects = (int(count.sum()) for count in counts)
    log = tuple(np.empty(n_rows, kind) for kind in (np.int32, np.int32, np.int32, np.int8, np.int8))
    truth = tuple(np.empty(n_effects, kind) for kind in (np.int32, np.int32, np.int32, np.float64))
    map_blocks(
        lambda begin, end: _fill(*rates, times, key, row_start, effect_start, log, truth, begin, end),
        n_users,
        threads,
    )
    return log, truth
