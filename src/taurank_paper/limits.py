"""Limits to compare methods with: the truth, what can be known from the counts of a log, and population targets.

They need the world that the log was drawn from, so they are not learners. Their scores are arrays users × items
for ``taurank.evaluate``.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt

from taurank import Log, World
from taurank.errors import InputError, plural

Scores = npt.NDArray[np.float64]

TARGETS = ("bpr", "dlto", "blce", "dlce")  # methods whose population target is a formula, since they weigh purchases
IMPOSSIBLE = -1e100  # the logarithm of a probability of 0


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
    base, counts = log.n_times + 1, _counts(log)
    scores = np.empty((world.n_items, world.n_users))

    def score(item: int) -> None:
        treated, control = (rate[:, item].astype(np.float64) for rate in (world.treated_rate, world.control_rate))
        patterns, pattern = np.unique(counts[item], return_inverse=True)
        bought, missed, control_bought = np.unravel_index(patterns, (base, base, base))
        missed_control = log.n_times - bought - missed - control_bought
        times = np.stack([bought, missed, control_bought, missed_control], axis=1).astype(np.float64)
        with np.errstate(divide="ignore"):
            logs = np.stack([np.log(treated), np.log1p(-treated), np.log(control), np.log1p(-control)])
        likelihood = times @ np.maximum(logs, IMPOSSIBLE)  # 0 · log 0 is 0 here
        largest = likelihood.max(axis=1, keepdims=True)
        weights = np.exp(likelihood - largest)
        means = weights @ (treated - control) / weights.sum(axis=1)
        scores[item] = np.where(largest[:, 0] > IMPOSSIBLE / 2, means, np.nan)[pattern]

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(score, range(world.n_items)))
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


def _counts(log: Log) -> npt.NDArray[np.int64]:
    """The counts of every pair as one number, items × users: purchases when treated, none when treated, untreated."""
    base = log.n_times + 1
    worth = np.where(log.treated, np.where(log.outcome, base * base, base), log.outcome)
    counts = np.zeros(log.n_items * log.n_users, np.int64)
    np.add.at(counts, log.item.astype(np.int64) * log.n_users + log.user, worth)
    return counts.reshape(log.n_items, log.n_users)
