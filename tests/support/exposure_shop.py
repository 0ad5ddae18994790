"""A small shop whose slates follow each user's own categories; every propensity is known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import expit

import taurank as tr
from support.builders import dense_log
from taurank import propensity

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class ExposureShop:
    """A log and the truth behind it; all arrays are users × items (× times)."""

    log: tr.Log
    propensity: Floats  # of a visit's slate, times the chance of a visit
    visits: npt.NDArray[np.bool_]  # users × times
    category: npt.NDArray[np.int64]
    effect: Floats
    bought: Floats  # purchase rate without a recommendation


def exposure_shop(
    users: int = 600, items: int = 120, times: int = 6, categories: int = 8, size: int = 10, seed: int = 0,
    visit: float = 0.6, sharpness: float = 2.5,
) -> ExposureShop:  # fmt: skip
    """Slates of ``size`` by a softmax over three categories of each user's own; at most one visit per time."""
    rng = np.random.default_rng(seed)
    category = rng.integers(0, categories, items)
    own = np.array([rng.permutation(categories)[:3] for _ in range(users)])
    likes = np.zeros((users, categories))
    np.put_along_axis(likes, own, sharpness, axis=1)
    scores = likes[:, category] + rng.normal(0.0, 0.7, items)
    slate = propensity.slate_softmax(scores, size)
    activity = np.clip(visit * rng.gamma(4.0, 0.25, users), 0.05, 0.95)
    visits = rng.random((users, times)) < activity[:, None]
    treated = np.zeros((users, items, times), bool)
    for time in range(times):
        top = np.argpartition(-(scores + rng.gumbel(size=scores.shape)), size - 1, axis=1)[:, :size]
        np.put_along_axis(treated[:, :, time], top, visits[:, time, None], axis=1)
    bought = expit(-4.0 + 0.8 * likes[:, category] + rng.normal(0.0, 0.5, items))
    effect = 0.25 * expit(-1.5 - 0.6 * likes[:, category] + rng.normal(0.0, 1.0, items))
    outcome = rng.random(treated.shape) < bought[:, :, None] + effect[:, :, None] * treated
    log = dense_log(treated, outcome)
    return ExposureShop(log, slate * activity[:, None], visits, category, effect, bought)


def shop_item_features(shop: ExposureShop) -> Any:
    """The category of each item, as a table."""
    import pandas as pd

    return pd.DataFrame({"item_id": np.arange(len(shop.category)), "category": shop.category.astype(str)})
