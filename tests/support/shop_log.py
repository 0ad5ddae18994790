"""The log of a made-up shop, without the detour through its tables."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

import taurank as tr
from taurank.data.eligibility import Eligibility
from taurank.worlds.shop import SLOTS, Shop
from taurank.worlds.shop_visits import draw_weeks


def log_of(shop: Shop) -> tuple[tr.Log, tr.Features]:
    """Its log with the chances that it records and with its visits, and the categories of users and items."""
    p, n_slates = shop.parameters, np.ones(int(shop.visited.sum()), np.int64)
    visitor, week = np.nonzero(shop.visited)
    slates, visit, bought, shown, _ = draw_weeks(p, shop.violations, shop.seed, shop.visited, n_slates, 0, None)
    visits = np.r_[np.repeat(np.arange(len(visitor)), SLOTS), visit[~shown]]
    cells = pd.DataFrame({"user_id": visitor[visits], "item_id": np.r_[slates.ravel(), bought[~shown]]})
    cells["time"], cells["treated"] = week[visits], (np.arange(len(visits)) < slates.size).astype(int)
    chosen = pd.MultiIndex.from_arrays([visit, bought])
    cells["outcome"] = pd.MultiIndex.from_arrays([visits, cells["item_id"]]).isin(chosen).astype(int)
    user, item = (cells[name].to_numpy(np.int32) for name in ("user_id", "item_id"))
    cells["propensity"] = shop.inclusion(user, item, np.full(len(cells), -1))
    catalog: list[Any] = [np.arange(shop.n_users), np.arange(shop.n_items), np.arange(shop.weeks)]
    log = tr.Log.from_frame(cells, *catalog)
    features = tr.Features(
        items=pd.DataFrame({"item_id": catalog[1], "category": p.category}),
        categories=pd.DataFrame({"user_id": np.repeat(catalog[0], 3), "category": p.categories.ravel()}),
    )
    return replace(log, eligibility=Eligibility.from_positions(log.catalog, (visitor, week))), features
