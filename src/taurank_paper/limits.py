"""Limits to compare methods with: the truth, what can be known from the counts of a log, and population targets.

They need the world that the log was drawn from, so they are not learners. Their scores are arrays users × items
for ``taurank.evaluate``.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numba
import numpy as np
import numpy.typing as npt

from taurank import Log, World
from taurank.errors import InputError, plural

Scores = npt.NDArray[np.float64]

TARGETS = ("bpr", "dlto", "blce", "dlce")  # methods whose population target is a formula, since they weigh purchases
BLOCK = 64  # items that a thread takes at a time


def scores(name: str, world: World, log: Log, threads: int | None = None) -> Scores:
    """Those of a limit by its name."""
    return truth_scores(world) if name == "truth" else ten_weeks_scores(world, log, threads)


def truth_scores(world: World) -> Scores:
    """μ^T − μ^C of every pair: in expectation no ranking has a larger CP@k or CDCG."""
    return np.subtract(world.treated_rate, world.control_rate, dtype=np.float64)


def ten_weeks_scores(world: World, log: Log, threads: int | None = None) -> Scores:
    """E[μ^T − μ^C | the pair's counts] under the item's own true distribution over users.

    A pair of item i that was treated n_T times with y_T positives, and untreated n_C times with y_C, scores

        Σ_v (μ^T_vi − μ^C_vi) L_vi / Σ_v L_vi,
        L_vi = Binomial(y_T; n_T, μ^T_vi) · Binomial(y_C; n_C, μ^C_vi),

    with both sums over all users v, so that the dependence between μ^T and μ^C is kept. It is the most that a
    method can know which treats the users of an item alike and looks at one pair's counts at a time. It does
    not use the propensities: where recommendations follow taste, how often a pair was recommended tells about
    its μ as well, and a method that uses that, or what users have in common, may pass this limit.
    """
    if world.users != log.users or world.items != log.items:
        raise InputError("the log has other users or items than the world; give a log sampled from this world.")
    scores = np.empty((world.n_items, world.n_users))  # item by item, for a kernel that walks through users
    treated, control = (np.ascontiguousarray(rate.T) for rate in (world.treated_rate, world.control_rate))
    patterns, times = _patterns(log), log.n_times
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(
            lambda begin: _posterior_means(treated, control, patterns, times, scores, begin, begin + BLOCK),
            range(0, world.n_items, BLOCK),
        ))  # fmt: skip
    impossible = int(np.count_nonzero(np.isnan(scores)))
    if impossible:
        raise InputError(
            f"the counts of {plural(impossible, 'pair')} in the log are impossible under the world's rates; "
            "give a log sampled from this world."
        )
    return np.ascontiguousarray(scores.T)


def target_scores(method: str, world: World, cap: float = 0.0) -> Scores:
    """What a method would rank by with unlimited data and a model without limits: its weights in expectation.

        BPR   P μ^T + (1−P) μ^C                                    purchases
        DLTO  P μ^T / max(P, χ)
        DLCE  P μ^T / max(P, χ) − (1−P) μ^C / max(1−P, χ)          μ^T − μ^C where no cap binds
        BLCE  as DLCE without cap, with the mean of all P in the denominators

    How far this stays behind the truth is the method's bias; how far the method stays behind this is variance
    and optimization.
    """
    propensity = np.asarray(world.propensity, np.float64)
    bought_treated, bought_untreated = propensity * world.treated_rate, (1 - propensity) * world.control_rate
    if method == "bpr":
        return np.asarray(bought_treated + bought_untreated)
    assumed = np.full_like(propensity, propensity.mean()) if method == "blce" else propensity
    least = max(0.0 if method == "blce" else cap, np.finfo(np.float64).tiny)  # 0 / 0 is 0: such a cell is never seen
    effect = bought_treated / np.maximum(assumed, least)
    if method != "dlto":
        effect -= bought_untreated / np.maximum(1 - assumed, least)
    return np.asarray(effect)


def _patterns(log: Log) -> npt.NDArray[np.int64]:
    """The counts of every pair as one number, items × users: (n_T · B + y_T) · B + y_C with B = times + 1."""
    base = log.n_times + 1
    treated, positive = log.treated.astype(np.int64), log.outcome.astype(np.int64)
    worth = treated * base**2 + treated * positive * base + (1 - treated) * positive
    patterns = np.zeros(log.n_items * log.n_users, np.int64)
    np.add.at(patterns, log.item.astype(np.int64) * log.n_users + log.user, worth)
    return patterns.reshape(log.n_items, log.n_users)


@numba.njit(cache=True, nogil=True)
def _posterior_means(
    treated_rate: Any, control_rate: Any, patterns: Any, times: Any, scores: Any, begin: int, end: int
) -> None:
    """All pairs of some items; a posterior is computed once for all users of an item with the same counts."""
    base = times + 1
    for item in range(begin, min(end, len(scores))):
        effect, logs = _effects_and_logs(treated_rate[item], control_rate[item])
        order = np.argsort(patterns[item])
        known, mean = np.int64(-1), 0.0
        for user in order:
            pattern = patterns[item, user]
            if pattern != known:
                n_treated, y_treated = pattern // (base * base), pattern // base % base
                y_control = pattern % base
                losses = (n_treated - y_treated, times - n_treated - y_control)
                mean = _posterior_mean(effect, logs, (y_treated, losses[0], y_control, losses[1]))
                known = pattern
            scores[item, user] = mean


@numba.njit(cache=True, nogil=True)
def _effects_and_logs(treated_rate: Any, control_rate: Any) -> Any:
    """μ^T − μ^C and log μ^T, log(1−μ^T), log μ^C, log(1−μ^C) of all users of one item."""
    n = len(treated_rate)
    effect, logs = np.empty(n), np.empty((4, n))
    for user in range(n):
        treated, control = np.float64(treated_rate[user]), np.float64(control_rate[user])
        effect[user] = treated - control
        logs[0, user], logs[1, user] = np.log(treated), np.log1p(-treated)
        logs[2, user], logs[3, user] = np.log(control), np.log1p(-control)
    return effect, logs


@numba.njit(cache=True, nogil=True)
def _posterior_mean(effect: Any, logs: Any, counts: Any) -> Any:
    """Σ effect · L / Σ L with L scaled by its largest; not a number if no user can have these counts."""
    likelihood = np.zeros(len(effect))
    for arm in range(4):
        if counts[arm] > 0:  # 0 · log 0 is 0 here
            likelihood += counts[arm] * logs[arm]
    largest = likelihood.max()
    if largest == -np.inf:
        return np.nan
    weighted, total = 0.0, 0.0
    for user in range(len(effect)):
        share = np.exp(likelihood[user] - largest)
        weighted += share * effect[user]
        total += share
    return weighted / total
