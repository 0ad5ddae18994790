"""Means over visits: how often each user could have been shown a list, and how many users at each time.

Without eligibility every user counts at every time. With it a user counts at the times of a visit only, so the mean
of a metric is Σ_u S_u / Σ_u V_u, S_u being the sum over a user's visits and V_u their number. Both are sums over
users, which makes the mean a ratio; its spread is that of the contributions below.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from taurank.data.eligibility import Eligibility
from taurank.data.ids import Catalog

Floats = npt.NDArray[np.float64]
Longs = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Visits:
    """The number of visits ``by_user`` and ``by_time``."""

    by_user: Longs
    by_time: Longs

    @classmethod
    def of(cls, catalog: Catalog, eligibility: Eligibility, users: Mask | None = None) -> Visits:
        """Those of all users, or of some: the others have none."""
        everyone = np.ones(catalog.n_users, np.bool_) if users is None else users
        if eligibility.is_everything:
            here = np.full(catalog.n_times, np.count_nonzero(everyone))
            return cls(np.where(everyone, catalog.n_times, 0), here)
        by_user, by_time = eligibility.visits(everyone)
        return cls(by_user, by_time)

    @property
    def total(self) -> int:
        return int(self.by_user.sum())

    @property
    def n_users(self) -> int:
        """How many users visit at all."""
        return int(np.count_nonzero(self.by_user))

    def per_user(self, sums: Floats) -> Floats:
        """Each user's mean over their visits, nan without one; users are the last axis."""
        return _divided(sums, self.by_user)

    def per_time(self, sums: Floats) -> Floats:
        """The mean over the visits of each time, nan without one; times are the last axis."""
        return _divided(sums, self.by_time)


def mean_of(per_time: Floats, by_time: Longs | None) -> float:
    """The mean over all visits of means over the visits of each time."""
    if by_time is None or _equal(by_time):
        return float(per_time.mean())
    seen = by_time > 0
    if not seen.any():
        return float("nan")
    return float(np.average(per_time[seen], weights=by_time[seen]))


def contributions(means: Floats, counts: Longs | None, mean: float) -> Floats:
    """Values with the mean Σ counts · means / Σ counts, and with the spread between clusters that it has.

    A ratio R = ΣS / ΣV of sums over n clusters varies as the mean of R + (S − R·V) · n / ΣV does, S = V · means.
    Clusters without a visit are left out.
    """
    if counts is None or _equal(counts):
        return means
    seen = counts > 0
    share = counts[seen] * (np.count_nonzero(seen) / max(counts.sum(), 1))
    return np.asarray(mean + (means[seen] - mean) * share)


def _equal(counts: Longs) -> bool:
    return len(counts) > 0 and bool(counts[0] > 0) and bool((counts == counts[0]).all())


def _divided(sums: Floats, counts: Longs) -> Floats:
    means = np.full(sums.shape, np.nan)
    np.divide(sums, counts, out=means, where=np.broadcast_to(counts > 0, sums.shape))
    return means
