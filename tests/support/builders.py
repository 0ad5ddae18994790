"""Logs for tests, each kind built in one place."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

import taurank as tr
from taurank.data.eligibility import Eligibility
from taurank.data.ids import Catalog, Ids


def cells_frame(
    users: int = 60, items: int = 40, times: int = 3, seed: int = 0, low: float = 0.1, high: float = 0.8
) -> pd.DataFrame:
    """Every cell of a small grid with its propensity, treatment and outcome."""
    rng = np.random.default_rng(seed)
    user, item, time = (axis.ravel() for axis in np.indices((users, items, times)))
    propensity = rng.uniform(low, high, (users, items))[user, item]
    treated = (rng.random(len(user)) < propensity).astype(int)
    outcome = (rng.random(len(user)) < 0.1 + 0.2 * treated).astype(int)
    columns = {"user_id": user, "item_id": item, "time": time, "treated": treated, "outcome": outcome}
    return pd.DataFrame({**columns, "propensity": propensity})


def sparse_log(frame: pd.DataFrame) -> tr.Log:
    """The log of a frame of all cells: rows where something was recommended or happened, the whole catalog."""
    rows = frame[(frame["treated"] == 1) | (frame["outcome"] == 1)]
    ids = {column: sorted(set(frame[column])) for column in ("user_id", "item_id", "time")}
    return tr.Log.from_frame(rows, ids["user_id"], ids["item_id"], ids["time"])


def dense_log(
    treated: npt.NDArray[Any],
    outcome: npt.NDArray[Any] | None = None,
    propensity: npt.NDArray[Any] | None = None,
    rows: npt.NDArray[Any] | None = None,
) -> tr.Log:
    """The log of arrays users × items × times, with the cells in ``rows``, else with those that are not all zero."""
    outcome = np.zeros_like(treated) if outcome is None else outcome
    rows = treated.astype(bool) | outcome.astype(bool) if rows is None else rows
    user, item, time = (axis.astype(np.int32) for axis in np.nonzero(rows))
    ids = (Ids(np.arange(n), name) for n, name in zip(treated.shape, ("user_id", "item_id", "time"), strict=True))
    catalog, cells = Catalog(*ids), (user, item, time)
    chances = None if propensity is None else propensity[cells].astype(np.float64)
    return tr.Log(catalog, user, item, time, treated[cells].astype(np.int8), outcome[cells].astype(np.int8), chances)


def purchases_log(propensities: list[float], treated: list[int]) -> tr.Log:
    """A log of nothing but purchases, one of each user."""
    frame = pd.DataFrame({"user_id": range(len(treated)), "item_id": 0, "treated": treated, "outcome": 1})
    return tr.Log.from_frame(frame.assign(propensity=propensities))


def synthetic_log(users: int = 30, items: int = 20, times: int = 3, seed: int = 0) -> tr.Log:
    """A log drawn from a synthetic world."""
    return tr.World.synthetic(users, items, random_state=seed).sample(times, random_state=seed + 1).log


def limited_log(log: tr.Log, visits: Any = None, candidates: Any = None) -> tr.Log:
    """The rows of a log within these visits and candidates, which are positions; see ``Eligibility``."""
    eligibility = Eligibility.from_positions(log.catalog, visits, candidates)
    inside = eligibility.contains(log.user, log.item, log.time)
    names = ("user", "item", "time", "treated", "outcome", "propensity")
    return replace(log, **{name: getattr(log, name)[inside] for name in names}, eligibility=eligibility)


def eligible_log(log: tr.Log, listed: bool = False) -> tr.Log:
    """A fifth of visits and of candidates is taken away, and so are their rows."""
    rng = np.random.default_rng(0)
    visits = rng.random((log.n_users, log.n_times)) < 0.8
    candidates = rng.random((log.n_items, log.n_times)) < 0.8
    if listed:
        cells = np.argwhere(visits[:, None, :] & candidates[None])
        table = Eligibility.from_positions(log.catalog, None, (cells[:, 0], cells[:, 1], cells[:, 2]))
    else:
        (users, at), (items, when) = np.nonzero(visits), np.nonzero(candidates)
        table = Eligibility.from_positions(log.catalog, (users, at), (None, items, when))
    keep = table.contains(log.user, log.item, log.time)
    return replace(log.take(keep), eligibility=table)


def logs_of_every_eligibility(log: tr.Log) -> dict[str, tr.Log]:
    """The rows of a log, and of its like with one time, that are eligible in each of the forms there are."""
    rng, (users, items, times) = np.random.default_rng(3), log.eligibility.shape
    return {
        "all cells": log,
        "one time": sparse_log(cells_frame(users, items, 1, 0)),
        "visits": limited_log(log, visits=np.nonzero(rng.random((users, times)) < 0.6)),
        "items by time": limited_log(log, candidates=(None, *np.nonzero(rng.random((items, times)) < 0.7))),
        "listed": limited_log(log, candidates=np.nonzero(rng.random((users, items, times)) < 0.7)),
    }
