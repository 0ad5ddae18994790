"""Slow, obvious twins of the metrics: data frames, full sorts, and all orders of tied items.

The first two are also what ``benchmarks/measure.py`` measures against. ``dense`` makes gains from an array.
"""

from __future__ import annotations

from itertools import pairwise, permutations
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd

from taurank import Gains, Log
from taurank.data.ids import Catalog, Ids
from taurank.estimation.estimators import Estimator
from taurank.evaluation.metrics import position_weights

Floats = npt.NDArray[np.float64]


def worth(metric: str, rank: Any, n_items: int) -> Any:
    """λ(r) / I straight from the equations, by the plain spelling of the metric ("AUC" is the linear CAUC)."""
    if metric.startswith("P@"):
        k = int(metric[2:])
        return (rank <= k) / k
    if metric == "DCG":
        return 1.0 / np.log2(1.0 + rank)
    if metric == "AR":
        return rank / n_items
    assert metric == "AUC"
    return (n_items - rank) / (n_items * (n_items - 1))


def by_pandas(scores: npt.NDArray[Any], gains: Gains, metrics: tuple[str, ...]) -> pd.DataFrame:
    """Sort a frame of all pairs by user and score, number the rows, join the gains, sum by user and time.

    One row per user and time that has gains; one column per metric. Correct only without ties.
    """
    n_users, n_items = scores.shape
    pairs = pd.DataFrame(
        {
            "user": np.repeat(np.arange(n_users, dtype=np.int32), n_items),
            "item": np.tile(np.arange(n_items, dtype=np.int32), n_users),
            "score": scores.ravel(),
        }
    )
    pairs = pairs.sort_values(["user", "score"], ascending=[True, False])
    pairs["rank"] = pairs.groupby("user").cumcount() + 1
    cells = pd.DataFrame({"user": gains.user, "item": gains.item, "time": gains.time, "value": gains.value})
    joined = cells.merge(pairs, on=["user", "item"], how="left")
    for metric in metrics:
        joined[metric] = worth(metric, joined["rank"], n_items) * joined["value"]
    return joined.groupby(["user", "time"])[list(metrics)].sum()


def by_argsort(scores: npt.NDArray[Any], gains: Gains, metrics: tuple[str, ...]) -> Floats:
    """Rank everything with one vectorized argsort; metric × user, summed over times. Correct only without ties."""
    n_users, n_items = scores.shape
    order = np.argsort(-scores, axis=1)
    ranks = np.empty((n_users, n_items), np.int32)
    np.put_along_axis(ranks, order, np.arange(1, n_items + 1, dtype=np.int32)[None, :], axis=1)
    rank = ranks[gains.user, gains.item]
    return np.stack(
        [np.bincount(gains.user, worth(metric, rank, n_items) * gains.value, minlength=n_users) for metric in metrics]
    )


def by_all_orders(scores: list[float], values: list[float], metric: str) -> float:
    """The mean of the metric over every order of the items that the scores allow."""
    n_items = len(scores)
    totals = []
    for order in permutations(range(n_items)):
        if all(scores[a] >= scores[b] for a, b in pairwise(order)):
            parts = [worth(metric, r, n_items) * values[i] for r, i in enumerate(order, 1)]
            totals.append(sum(parts))
    return float(np.mean(totals))


def pairwise_auc(scores: Floats, bought: npt.NDArray[np.bool_]) -> float:
    """The share of (bought, not bought) pairs in the right order, a tie counting one half."""
    wins = [(scores[i] > scores[j]) + 0.5 * (scores[i] == scores[j])
            for i in np.flatnonzero(bought) for j in np.flatnonzero(~bought)]  # fmt: skip
    return float(np.mean(wins))


def dense(values: Any, kind: Literal["effect", "outcome"] | None = "effect") -> Gains:
    """Gains from an array users × items, or times × users × items; zeros are left out."""
    cube = np.asarray(values, float)
    cube = cube if cube.ndim == 3 else cube[None]
    time, user, item = (codes.astype(np.int32) for codes in np.nonzero(cube))
    n_times, n_users, n_items = cube.shape
    lists = (range(n_users), "user_id"), (range(n_items), "item_id"), (range(n_times), "time")
    catalog = Catalog(*(Ids(ids, column) for ids, column in lists))
    return Gains(catalog, user, item, time, cube[time, user, item], "made up", kind=kind)


def sparse_gains(rng: np.random.Generator, shape: tuple[int, ...], share: float = 0.1) -> Gains:
    return dense(rng.standard_normal(shape) * (rng.random(shape) < share))


def cube(log: Log, rows: npt.NDArray[Any]) -> Floats:
    """Numbers of a log's rows as users × items × times."""
    whole = np.zeros((log.n_users, log.n_items, log.n_times))
    whole[log.user, log.item, log.time] = rows
    return whole


def eligible_cells(log: Log) -> npt.NDArray[np.bool_]:
    return np.asarray(log.eligibility.contains(*np.indices((log.n_users, log.n_items, log.n_times))))


def list_weights(scores: npt.NDArray[Any], eligible: npt.NDArray[np.bool_], metric: str) -> Floats:
    """Every list by itself: the weights of a visit's eligible items, ranked as if there were no others."""
    weight = np.zeros(eligible.shape)
    for user, time in zip(*np.nonzero(eligible.any(axis=1)), strict=True):
        here = eligible[user, :, time]
        weight[user, here, time] = position_weights(scores[user : user + 1, here], metric)[0]
    return weight


def cell_effects(log: Log, estimator: Estimator, weight: Any = 1.0) -> Floats:
    """τ̃ of every cell, 0 where it is not eligible; ``weight`` is that of the cells, which SNIPS depends on."""
    cells = np.indices((log.n_users, log.n_items, log.n_times)).reshape(3, -1).astype(np.int32)
    treated, outcome = cube(log, log.treated), cube(log, log.outcome)
    chance = np.where(cube(log, np.ones(len(log))) > 0, cube(log, log.recorded_propensity("a test")), 0.5)
    c: Any = 0.0
    if estimator.variate is not None:
        c = estimator.variate.at(cells[0], cells[1], cells[2]).reshape(treated.shape)
    if estimator.normalized:
        c = (weight * treated * outcome / chance).sum() / (weight * treated / chance).sum()
    tau = treated * outcome / chance - (1 - treated) * outcome / (1 - chance) + c * (1 - treated / chance)
    return np.where(eligible_cells(log), tau, 0.0)


def by_cells(log: Log, estimator: Estimator, weight: Floats) -> float:
    """Eq. of the estimator cell by cell, per visit."""
    total = (weight * cell_effects(log, estimator, weight)).sum()
    return float(total / eligible_cells(log).any(axis=1).sum())
