"""Bernoulli draws over users × items × times that never exist at once.

Every draw is a hash of the seed and the number of its cell, so that any block of users, on any thread, gives
the same result. Cells are visited twice: once to count what will be stored, once to write it in place.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from taurank._jit import compiled
from taurank._random import uniform
from taurank._threads import map_blocks


def draw_cells(rates: tuple[Any, Any, Any], times: int, key: np.uint64, threads: int | None) -> tuple[Any, Any]:
    """The log's columns (user, item, time, treated, outcome) and the truth's (user, item, time, value).

    ``rates`` are μ^T, μ^C and P. Rows are ordered by time, user and item.
    """
    n_users, codes = len(rates[0]), [np.int32] * 3
    starts = np.zeros((2, times, n_users), np.int64)
    counts = np.empty_like(starts)
    map_blocks(lambda *users: _draw(*rates, key, starts, counts, None, None, *users), n_users, threads)
    starts = np.stack([(np.cumsum(count) - count.ravel()).reshape(count.shape) for count in counts])
    log = tuple(np.empty(counts[0].sum(), kind) for kind in (*codes, np.int8, np.int8))
    truth = tuple(np.empty(counts[1].sum(), kind) for kind in (*codes, np.float64))
    map_blocks(lambda *users: _draw(*rates, key, starts, counts, log, truth, *users), n_users, threads)
    return log, truth


@compiled
def _draw(
    treated_rate: Any, control_rate: Any, propensity: Any, key: Any, starts: Any, counts: Any, log: Any, truth: Any,
    begin: int, end: int,
) -> None:  # fmt: skip
    """Count the rows of the log and of the truth for every time and user, and write them unless they are None."""
    if log is not None:  # known when this is compiled
        log_user, log_item, log_time, log_treated, log_outcome = log
        truth_user, truth_item, truth_time, truth_value = truth
    n_users, n_items = propensity.shape
    for user in range(begin, end):
        for time in range(starts.shape[1]):
            row, effect = starts[0, time, user], starts[1, time, user]
            first = (np.int64(time) * n_users + user) * n_items
            for item in range(n_items):
                counter = np.uint64(3) * np.uint64(first + item)
                y_treated = uniform(key, counter) < treated_rate[user, item]
                y_control = uniform(key, counter + np.uint64(1)) < control_rate[user, item]
                z = uniform(key, counter + np.uint64(2)) < propensity[user, item]
                if z or y_control:
                    if log is not None:
                        log_user[row], log_item[row], log_time[row] = user, item, time
                        log_treated[row], log_outcome[row] = z, y_treated if z else y_control
                    row += 1
                if y_treated != y_control:
                    if log is not None:
                        truth_user[effect], truth_item[effect], truth_time[effect] = user, item, time
                        truth_value[effect] = 1.0 if y_treated else -1.0
                    effect += 1
            counts[0, time, user] = row - starts[0, time, user]
            counts[1, time, user] = effect - starts[1, time, user]
