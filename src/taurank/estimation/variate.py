"""The control variate c of the doubly robust estimator: what a cell is expected to add, fitted without its row.

For any c that does not depend on the cell's own Z and Y, adding c·(1 − Z/P) to the IPS estimate leaves its mean as
it is, because E[Z] = P. The variance is smallest for c = μ^T + μ^C·P/(1−P), and with this c the sum is the doubly
robust estimate (docs/theory.md). c must be known at *every* cell, so it is made of factors: a user's readiness to
buy times an item's rates, fitted in folds of times (of users, if there is one time), each without its own rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from taurank._checks import check_integer
from taurank._types import Codes, Floats, Longs
from taurank.data.log import Log

_ITEM_PRIOR = 20.0  # treated rows of the mean item that every item's rate is shrunk toward
_USER_PRIOR = 3.0  # expected purchases that every user's readiness is shrunk toward 1 with
_MOST = 0.9  # an item's share of treated cells, at most: P/(1−P) stays below 9


@dataclass(frozen=True, eq=False)
class Variate:
    """c of a cell in fold f: Σ_r user_factor[f, user, r] · item_factor[f, item, r].

    The fold is that of the cell's time, or of its user where ``fold_of_user`` is given.
    """

    user_factor: Floats  # folds × users × terms
    item_factor: Floats  # folds × items × terms
    fold_of_time: Longs
    fold_of_user: Longs | None = None

    @property
    def folds(self) -> int:
        return len(self.user_factor)

    def at(self, user: Codes, item: Codes, time: Codes) -> Floats:
        """c at these cells."""
        fold = self.fold_of_time[time] if self.fold_of_user is None else self.fold_of_user[user]
        product = self.user_factor[fold, user] * self.item_factor[fold, item]
        return np.asarray(product.sum(axis=1), dtype=np.float64)


def fit_variate(log: Log, folds: int = 5) -> Variate:
    """Fit c in folds: each fold's c has seen the rows of the other folds only."""
    check_integer("folds", folds, 2)
    if log.n_times > 1:
        folds = min(folds, log.n_times)
        fold_of_time = np.arange(log.n_times) * folds // log.n_times
        return _fit(log, folds, fold_of_time[log.time], fold_of_time, None)
    folds = min(folds, max(log.n_users, 2))
    fold_of_user = np.arange(log.n_users) % folds
    return _fit(log, folds, fold_of_user[log.user], np.zeros(1, np.intp), fold_of_user)


def outcomes_of(log: Log, rows: Any = slice(None)) -> Floats:
    """Y, or what it is worth where the log has values."""
    outcome: Floats = log.outcome[rows].astype(np.float64)
    return outcome if log.value is None else np.asarray(outcome * log.value[rows], dtype=np.float64)


def _fit(log: Log, folds: int, fold: Any, fold_of_time: Any, fold_of_user: Any) -> Variate:
    outcome, treated = outcomes_of(log), log.treated == 1
    cells = _cells_by_item(log) * (1.0 - 1.0 / folds)
    users, items = np.empty((folds, log.n_users, 2)), np.empty((folds, log.n_items, 2))
    for f in range(folds):
        other = fold != f
        rates, control = _item_rates(log, outcome, treated, other, cells)
        items[f] = np.stack([rates, control], axis=1)
        users[f] = 1.0
        if fold_of_user is None:
            ready, exposure = _user_factors(log, outcome, treated, other, rates)
            users[f] = np.stack([ready, ready * exposure], axis=1)
    return Variate(users, items, fold_of_time, fold_of_user)


def _cells_by_item(log: Log) -> Floats:
    if log.eligibility.is_everything:
        return np.full(log.n_items, float(log.n_users * log.n_times))
    return log.eligibility.cells_by_item.astype(np.float64)


def _item_rates(log: Log, outcome: Floats, treated: Any, other: Any, cells: Floats) -> tuple[Floats, Floats]:
    """μ^T and μ^C·p/(1−p) of each item."""
    shown = _count(log.item, log.n_items, other & treated)
    sold = _count(log.item, log.n_items, other & treated, outcome)
    anyway = _count(log.item, log.n_items, other & ~treated, outcome)
    rate = _shrunk(sold, shown, _ITEM_PRIOR)
    unshown = np.maximum(cells - shown, 0.0)
    share = np.minimum(shown / np.maximum(cells, 1.0), _MOST)
    return rate, _shrunk(anyway, unshown, _ITEM_PRIOR) * share / (1.0 - share)


def _user_factors(log: Log, outcome: Floats, treated: Any, other: Any, rates: Floats) -> tuple[Floats, Floats]:
    """How much more than expected a user buys, and how much more than the mean one is shown."""
    bought = _count(log.user, log.n_users, other, outcome)
    shown = _count(log.user, log.n_users, other & treated)
    expected = _count(log.user, log.n_users, other & treated, rates[log.item])
    anyway = float(outcome[other & ~treated].sum()) / log.n_users
    unit = max(float(bought.sum()), 1e-300) / max(float(np.count_nonzero(log.outcome[other])), 1.0)
    ready = (bought + _USER_PRIOR * unit) / (expected + anyway + _USER_PRIOR * unit)
    return ready, (shown + _ITEM_PRIOR) / (shown.mean() + _ITEM_PRIOR)


def _shrunk(total: Floats, count: Floats, prior: float) -> Floats:
    """Rates, shrunk toward the common one."""
    common = float(total.sum()) / max(float(count.sum()), 1.0)
    return (total + prior * common) / (count + prior)


def _count(codes: Codes, n: int, where: Any, weight: Floats | None = None) -> Floats:
    return np.bincount(codes[where], None if weight is None else weight[where], minlength=n).astype(np.float64)
