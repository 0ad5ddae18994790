"""The exposure model: a propensity for pairs, from other times and from the pair's own past.

Two stages. First, for every fold (a block of times) and from the exposures outside it: the rate at which each user is
shown something, the rate of each item, the shares of items for each user (a learned ``Mixture``, or
``CategoryShares`` where the categories of users are known), and the lifts of features. Second, a logistic model of
all cells whose offset is the logarithm of the rate these imply, with a broken line in it, the parts by themselves,
and the past exposures and purchases of the pair, from earlier times only. Its coefficients for a fold come from the
cells of the other folds. Finally, an intercept per time is calibrated: the propensities of its cells add up to its
exposures.

So a cell's own treatment reaches its propensity only through what millions of cells determine together: some thirty
coefficients and the number of exposures at its time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from taurank._threads import one_blas_thread
from taurank._types import Floats, Floats32, Longs
from taurank.data.features import Features
from taurank.data.log import Log
from taurank.estimation.folds import Folds
from taurank.estimation.propensity.cells import BOUND, Model, PairHistory, Proposal, draw_cells
from taurank.estimation.propensity.logistic import fit_intercepts, fit_logistic
from taurank.estimation.propensity.shares import (
    Categories,
    CategoryShares,
    Exposures,
    Mixture,
    fit_category_shares,
    fit_mixture,
)

MAX_CASES = 500_000  # treated rows the second stage uses
MAX_COMPONENTS = 64
PSEUDO = 2.0  # exposures that say: as often as the average user or item
LIFT_PRIOR = 5.0  # pseudo-exposures that say: as often as by chance
KNOTS = (-8.0, -6.0, -4.0, -2.5, -1.0)  # of the broken line, on the log rate
MAX_RATE = 3.0


def fit_exposure(
    log: Log, generator: np.random.Generator, folds: int, regularization: float, features: Features | None,
    threads: int | None,
) -> ExposureModel:  # fmt: skip
    """Fit the exposure model, with the classes of ``features`` and the categories that each user can be shown.

    ``generator`` decides the start of the mixture and which cells represent all of them.
    """
    first = _first_stage(log, folds, features, generator, threads)
    cells = draw_cells(log, first.shown, first.proposal, generator)
    treated = np.flatnonzero(log.treated)
    rows = treated if len(treated) <= MAX_CASES else np.sort(generator.choice(treated, MAX_CASES, replace=False))
    case = (log.user[rows], log.item[rows], log.time[rows])
    cases, table = first.columns(*case), first.columns(*cells[:3])
    case_fold, fold = first.folds.at(*case), first.folds.at(*cells[:3])
    ridge = np.where(np.array(table.names) == "intercept", 1e-6, regularization)
    coefficients = np.empty((first.folds.count, len(table.names)))
    with one_blas_thread():
        for f in range(first.folds.count):
            observed = len(treated) / len(rows) * cases.values[case_fold != f].sum(axis=0, dtype=np.float64)
            out = fold != f
            coefficients[f] = fit_logistic(observed, table.offset[out], table.values[out], cells.weight[out], ridge)
    exposures = np.asarray(np.bincount(log.time[treated], minlength=log.n_times) + BOUND, np.float64)
    log_odds = table.offset + np.einsum("nk,nk->n", table.values, coefficients[fold])
    by_time = fit_intercepts(log_odds, cells.weight, cells.time, exposures)
    return ExposureModel(log, first.folds, first, table.names, coefficients, by_time)


@dataclass(frozen=True, eq=False, repr=False)
class ExposureModel(Model):
    """A fitted model: the first stage, named coefficients for every fold, and the intercept of every time."""

    first: FirstStage
    names: tuple[str, ...]
    coefficients: Floats  # folds × names
    time_effect: Floats

    def _log_odds(self, user: Longs, item: Longs, time: Longs) -> Floats:
        _, offset, values = self.first.columns(user, item, time)
        beta = self.coefficients[self.folds.at(user, item, time)]
        return np.asarray(offset + np.einsum("nk,nk->n", values, beta) + self.time_effect[time])


class Columns(NamedTuple):
    """What the second stage knows of cells: the log rate as offset, and named columns that correct it."""

    names: tuple[str, ...]
    offset: Floats32
    values: Floats32  # cells × names


@dataclass(frozen=True, eq=False)
class FirstStage:
    """What the exposures outside each fold say about users, items and pairs, and the past of the pairs."""

    folds: Folds
    shares: Sequence[Mixture | CategoryShares]
    user_rate: Floats  # folds × users: log of exposures per eligible cell, outside the fold
    item_rate: Floats  # folds × items: the same over the rate of all
    shown: PairHistory
    bought: PairHistory
    lifts: dict[str, Lift]

    @property
    def proposal(self) -> Proposal:
        """Cells by the activity of users and the shares of items."""
        activity = np.exp(self.user_rate - self.user_rate.max(axis=1, keepdims=True))
        return Proposal(self.folds, self.shares, list(activity / activity.sum(axis=1, keepdims=True)))

    def columns(self, user: Any, item: Any, time: Any) -> Columns:
        """Offset and columns of cells."""
        fold, lift = self.folds.at(user, item, time), np.empty((2, len(user)))
        for f, shares in enumerate(self.shares):  # log of how much likelier the item is than for an average user
            rows = np.flatnonzero(fold == f)
            for bought in (False, True):
                chance = shares.chance(user[rows], item[rows], bought)
                lift[int(bought), rows] = np.log(chance) - np.log(shares.popularity[item[rows]])
        activity = self.user_rate[fold, user]
        rate = np.minimum(activity + self.item_rate[fold, item] + lift[0], MAX_RATE)
        count, ago = self.shown.before(user, item, time)
        bought_before, _ = self.bought.before(user, item, time)
        some = (count > 0).astype(np.float64)
        repeats, earlier = np.log(np.maximum(count, 1)), np.log1p(np.asarray(time, np.float64))
        columns = {
            "intercept": np.ones(len(user)),
            "rate": rate + 5.0,
            "user rate": activity - self.user_rate.mean(),
            "lift": lift[0],
            **{f"rate above {knot:g}": np.maximum(rate - knot, 0.0) for knot in KNOTS},
            "shown before": some,
            "shown twice before": (count > 1).astype(np.float64),
            "log times shown": repeats,
            "shown recently": some / np.maximum(ago, 1),
            "shown before × time": some * earlier,
            "shown before × rate": some * (rate + 5.0),
            "log times shown × time": repeats * earlier,
            "bought before": (bought_before > 0).astype(np.float64),
            "log times bought": np.log1p(bought_before),
            "bought lift": lift[1],
            "lift above 0": np.maximum(lift[0], 0.0),
            "bought lift above 0": np.maximum(lift[1], 0.0),
        }
        for name, of_classes in self.lifts.items():
            columns[name] = of_classes.at(user, item, fold)
            columns[f"{name} above 0"] = np.maximum(columns[name], 0.0)
        values = np.stack(list(columns.values()), axis=1).astype(np.float32)
        return Columns(tuple(columns), rate.astype(np.float32), values)


def _first_stage(
    log: Log, n_folds: int, features: Features | None, generator: np.random.Generator, threads: int | None
) -> FirstStage:
    n_users, n_items, n_times = shape = log.eligibility.shape
    folds = Folds.from_times(shape, n_folds) if n_times > 1 else Folds.from_random(shape, n_folds, generator)
    shown, bought = (
        (log.user[rows], log.item[rows], folds.at(log.user[rows], log.item[rows], log.time[rows]))
        for rows in (log.treated == 1, log.outcome == 1)
    )
    exposures, purchases = (Exposures.from_rows(n_users, n_items, *rows) for rows in (shown, bought))
    user_rate, item_rate = np.empty((folds.count, n_users)), np.empty((folds.count, n_items))
    for f in range(folds.count):
        # log exposures per eligible cell of users, and of items over that of all, shrunk toward the average
        seen = shown[2] != f
        user_cells, item_cells = folds.cells_outside(log.eligibility, f)
        mean = max(np.count_nonzero(seen), 1) / max(user_cells.sum(), 1.0)
        of_users, of_items = (np.bincount(c[seen], minlength=n) for c, n in zip(shown[:2], shape, strict=False))
        user_rate[f] = np.log((of_users + PSEUDO) / (user_cells + PSEUDO / mean))
        item_rate[f] = np.log((of_items + PSEUDO) / (item_cells + PSEUDO / mean) / mean)
    given = None if features is None else features.user_categories(log.users, log.items)
    shares: Sequence[Mixture | CategoryShares]
    if given is None:  # more exposures support more components
        most, seed = min(MAX_COMPONENTS, max(2, n_items // 4)), int(generator.integers(2**63))
        components = int(np.clip(np.sqrt(len(exposures.item)) / 8.0, 2, most))
        starts = [np.random.default_rng([seed, f]) for f in range(folds.count)]
        shares = [fit_mixture(exposures, purchases, f, components, start, threads) for f, start in enumerate(starts)]
    else:
        own, rates = Categories(n_users, given), np.exp(item_rate)
        popularity = rates / rates.sum(axis=1, keepdims=True)
        shares = [fit_category_shares(own, exposures, purchases, f, of_f) for f, of_f in enumerate(popularity)]
    history, purchased = (PairHistory.from_rows(log, flags == 1) for flags in (log.treated, log.outcome))
    lifts = {} if features is None else _lifts(log, features, folds.count, shown, bought)
    return FirstStage(folds, shares, user_rate, item_rate, history, purchased, lifts)


def _lifts(log: Log, features: Features, folds: int, shown: Any, bought: Any) -> dict[str, Lift]:
    """User × class of the item, class of the user × item, and class × class; user × item is the shares' part."""
    users, items = (
        {unit: np.arange(len(ids)), **{f"{unit} feature {n}": c for n, c in enumerate(features.classes(ids), 1)}}
        for unit, ids in (("user", log.users), ("item", log.items))
    )
    return {
        f"{event} lift of {a} × {b}": Lift.from_rows(users[a], items[b], folds, *rows)
        for event, rows in (("shown", shown), ("bought", bought))
        for a in users
        for b in items
        if (a, b) != ("user", "item")
    }


@dataclass(frozen=True, eq=False)
class Lift:
    """How much likelier a class of users and one of items meet in an event than by chance, outside a fold."""

    user_class: Longs
    item_class: Longs
    events: Longs  # sorted numbers of (class of the user, class of the item, fold)
    of_user: Longs  # classes × folds: events outside
    of_item: Longs

    @classmethod
    def from_rows(cls, user_class: Longs, item_class: Longs, folds: int, user: Any, item: Any, fold: Any) -> Lift:
        """From the user, the item and the fold of every event."""
        left, right, outside = user_class[user].astype(np.int64), item_class[item].astype(np.int64), []
        sizes = int(user_class.max()) + 1, int(item_class.max()) + 1
        for side, n in zip((left, right), sizes, strict=True):
            inside = np.bincount(side * folds + fold, minlength=n * folds).reshape(n, folds)
            outside.append(inside.sum(axis=1, keepdims=True) - inside)
        return cls(user_class, item_class, np.sort((left * sizes[1] + right) * folds + fold), *outside)

    def at(self, user: Any, item: Any, fold: Any) -> Floats:
        """log [(n_lr + α s_r) / (n_l + α) / s_r], counts outside the fold, s_r the share of the item's class."""
        left, right = self.user_class[user], self.item_class[item]
        n_right, folds = self.of_item.shape
        first = (left.astype(np.int64) * n_right + right) * folds
        total, own = (
            np.searchsorted(self.events, first + high) - np.searchsorted(self.events, first + low)
            for low, high in ((0, folds), (fold, fold + 1))
        )
        share = (self.of_item[right, fold] + 0.5) / (self.of_item.sum(axis=0)[fold] + 0.5 * n_right)
        mean = (total - own + LIFT_PRIOR * share) / (self.of_user[left, fold] + LIFT_PRIOR)
        return np.asarray(np.log(mean / share))
