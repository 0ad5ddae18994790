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

from taurank._checks import check_instance, check_number, generator
from taurank._threads import one_blas_thread
from taurank._types import Floats, Floats32, Longs
from taurank.data.features import Features
from taurank.data.ids import Catalog
from taurank.data.log import Log
from taurank.estimation.folds import Folds
from taurank.estimation.newton import fit_intercepts, fit_logistic
from taurank.estimation.propensity.categories import Categories, CategoryShares, fit_category_shares
from taurank.estimation.propensity.cells import (
    BOUND,
    Model,
    PairHistory,
    Proposal,
    RandomState,
    WeightedCells,
    check_log,
    draw_cells,
)
from taurank.estimation.propensity.mixture import Exposures, Mixture, fit_mixture

MAX_CASES = 500_000  # treated rows the second stage uses
MAX_COMPONENTS = 64
PSEUDO = 2.0  # exposures that say: as often as the average user or item
LIFT_PRIOR = 5.0  # pseudo-exposures that say: as often as by chance
KNOTS = (-8.0, -6.0, -4.0, -2.5, -1.0)  # of the broken line, on the log rate
MAX_RATE = 3.0


def fit_exposure(
    log: Log,
    random_state: RandomState = None,
    folds: int = 5,
    regularization: float = 1.0,
    features: Features | None = None,
    threads: int | None = None,
) -> ExposureModel:
    """Fit the exposure model, with the classes of ``features`` and the categories that each user can be shown.

    ``regularization`` is the precision of the normal prior of each coefficient of the second stage. ``random_state``
    decides the start of the mixture and which cells represent all of them.
    """
    check_log(log, folds)
    check_number("regularization", regularization, 0.0)
    if features is not None:
        check_instance("features", features, Features, "taurank.Features(items=…)")
    random = generator(random_state)
    first = FirstStage.from_log(log, folds, features, random, threads)
    cells = draw_cells(log, first.shown, first.proposal, random)
    treated = np.flatnonzero(log.treated)
    rows = treated if len(treated) <= MAX_CASES else np.sort(random.choice(treated, MAX_CASES, replace=False))
    cases, table = (first.columns(*codes) for codes in ((log.user[rows], log.item[rows], log.time[rows]), cells[:3]))
    case_fold = first.folds.at(log.user[rows], log.item[rows], log.time[rows])
    fold = first.folds.at(*cells[:3])
    ridge = np.where(np.array(table.names) == "intercept", 1e-6, regularization)
    beta = []
    with one_blas_thread():
        for f in range(first.folds.count):
            observed = len(treated) / len(rows) * cases.values[case_fold != f].sum(axis=0, dtype=np.float64)
            out = fold != f
            beta.append(fit_logistic(observed, table.offset[out], table.values[out], cells.weight[out], ridge))
    coefficients = np.array(beta)
    exposures = np.asarray(np.bincount(log.time[treated], minlength=log.n_times) + BOUND, np.float64)
    by_time = fit_intercepts(table.log_odds(coefficients[fold]), cells.weight, cells.time, exposures)
    return ExposureModel(log, first, table.names, coefficients, by_time)


@dataclass(frozen=True, eq=False)
class ExposureModel(Model):
    """A fitted model: the first stage, named coefficients for every fold, and the intercept of every time."""

    log: Log
    first: FirstStage
    names: tuple[str, ...]
    coefficients: Floats  # folds × names
    time_effect: Floats

    @property
    def catalog(self) -> Catalog:  # type: ignore[override]
        return self.log.catalog

    def __repr__(self) -> str:
        size = self.catalog
        return (
            f"ExposureModel({size.n_users:,} users, {size.n_items:,} items, {size.n_times:,} times, "
            f"{self.first.folds.count} folds, {self.first.shares[0].size})"
        )

    def _log_odds(self, user: Longs, item: Longs, time: Longs) -> Floats:
        beta = self.coefficients[self.first.folds.at(user, item, time)]
        return np.asarray(self.first.columns(user, item, time).log_odds(beta) + self.time_effect[time])

    def draw_cells(self, random_state: RandomState = None) -> WeightedCells:
        """Weighted cells that stand for all of them; those that matter are drawn more often."""
        return draw_cells(self.log, self.first.shown, self.first.proposal, generator(random_state))


class Columns(NamedTuple):
    """What the second stage knows of cells: the log rate as offset, and named columns that correct it."""

    names: tuple[str, ...]
    offset: Floats32
    values: Floats32  # cells × names

    def log_odds(self, beta: Floats) -> Floats:
        """With a row of coefficients for every cell."""
        return np.asarray(self.offset + np.einsum("nk,nk->n", self.values, beta))


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

    @classmethod
    def from_log(
        cls, log: Log, n_folds: int, features: Features | None, random: np.random.Generator, threads: int | None
    ) -> FirstStage:
        folds = Folds.from_times(log.catalog, n_folds, random)
        shown, bought = (
            (log.user[rows], log.item[rows], folds.at(log.user[rows], log.item[rows], log.time[rows]))
            for rows in (np.flatnonzero(log.treated), np.flatnonzero(log.outcome))
        )
        exposures, purchases = (Exposures.from_rows(log.n_users, log.n_items, *rows) for rows in (shown, bought))
        rates = [_rates(log, folds, f, *shown) for f in range(folds.count)]
        own = None if features is None else features.user_categories(log.users, log.items)
        shares: Sequence[Mixture | CategoryShares]
        if own is None:
            components = _components(len(exposures.item), log.n_items)
            seed = int(random.integers(2**63))
            shares = [
                fit_mixture(exposures, purchases, f, components, np.random.default_rng([seed, f]), threads)
                for f in range(folds.count)
            ]
        else:
            categories = Categories.from_features(log.n_users, own)
            popularity = [np.exp(rate) / np.exp(rate).sum() for _, rate in rates]
            shares = [
                fit_category_shares(categories, exposures, purchases, f, popularity[f]) for f in range(folds.count)
            ]
        user_rate, item_rate = (np.stack(rate) for rate in zip(*rates, strict=True))
        histories = [PairHistory.from_rows(log, flags == 1) for flags in (log.treated, log.outcome)]
        lifts = {} if features is None else _lifts(log, features, folds.count, shown, bought)
        return cls(folds, shares, user_rate, item_rate, histories[0], histories[1], lifts)

    @property
    def proposal(self) -> Proposal:
        """Cells by the activity of users and the shares of items."""
        activity = np.exp(self.user_rate - self.user_rate.max(axis=1, keepdims=True))
        return Proposal(self.folds, self.shares, list(activity / activity.sum(axis=1, keepdims=True)))

    def columns(self, user: Any, item: Any, time: Any) -> Columns:
        """Offset and columns of cells."""
        fold = self.folds.at(user, item, time)
        shown, bought = np.empty(len(user)), np.empty(len(user))
        for f in range(self.folds.count):
            rows = np.flatnonzero(fold == f)
            shown[rows] = self.shares[f].lift(user[rows], item[rows])
            bought[rows] = self.shares[f].lift(user[rows], item[rows], bought=True)
        activity = self.user_rate[fold, user]
        rate = np.minimum(activity + self.item_rate[fold, item] + shown, MAX_RATE)
        columns = {
            "intercept": np.ones(len(user)),
            "rate": rate + 5.0,
            "user rate": activity - self.user_rate.mean(),
            "lift": shown,
            **{f"rate above {knot:g}": np.maximum(rate - knot, 0.0) for knot in KNOTS},
            **self._past(user, item, time, rate),
            "bought lift": bought,
            "lift above 0": np.maximum(shown, 0.0),
            "bought lift above 0": np.maximum(bought, 0.0),
        }
        for name, lift in self.lifts.items():
            columns[name] = lift.at(user, item, fold)
            columns[f"{name} above 0"] = np.maximum(columns[name], 0.0)
        values = np.stack(list(columns.values()), axis=1).astype(np.float32)
        return Columns(tuple(columns), rate.astype(np.float32), values)

    def _past(self, user: Any, item: Any, time: Any, rate: Floats) -> dict[str, Floats]:
        count, ago = self.shown.before(user, item, time)
        bought, _ = self.bought.before(user, item, time)
        some = (count > 0).astype(np.float64)
        repeats, earlier = np.log(np.maximum(count, 1)), np.log1p(np.asarray(time, np.float64))
        return {
            "shown before": some,
            "shown twice before": (count > 1).astype(np.float64),
            "log times shown": repeats,
            "shown recently": some / np.maximum(ago, 1),
            "shown before × time": some * earlier,
            "shown before × rate": some * (rate + 5.0),
            "log times shown × time": repeats * earlier,
            "bought before": (bought > 0).astype(np.float64),
            "log times bought": np.log1p(bought),
        }


def _components(n_exposures: int, n_items: int) -> int:
    """More exposures support more components."""
    return int(np.clip(np.sqrt(n_exposures) / 8.0, 2, min(MAX_COMPONENTS, max(2, n_items // 4))))


def _rates(log: Log, folds: Folds, fold: int, user: Any, item: Any, row_fold: Any) -> tuple[Floats, Floats]:
    """log exposures per eligible cell of users, and of items over that of all, shrunk toward the average."""
    seen = row_fold != fold
    user_cells, item_cells = folds.cells_outside(log.eligibility, fold)
    mean = max(np.count_nonzero(seen), 1) / max(user_cells.sum(), 1.0)
    shown_to = np.bincount(user[seen], minlength=log.n_users)
    shown = np.bincount(item[seen], minlength=log.n_items)
    user_rate = np.log((shown_to + PSEUDO) / (user_cells + PSEUDO / mean))
    item_rate = np.log((shown + PSEUDO) / (item_cells + PSEUDO / mean) / mean)
    return user_rate, item_rate


def _lifts(log: Log, features: Features, folds: int, shown: Any, bought: Any) -> dict[str, Lift]:
    """User × class of the item, class of the user × item, and class × class; user × item is the shares' part."""
    users = [np.arange(log.n_users), *features.classes(log.users)]
    items = [np.arange(log.n_items), *features.classes(log.items)]
    return {
        f"{event} lift of {_name('user', a)} × {_name('item', b)}": Lift.from_rows(mine, theirs, folds, *rows)
        for event, rows in (("shown", shown), ("bought", bought))
        for a, mine in enumerate(users)
        for b, theirs in enumerate(items)
        if (a, b) != (0, 0)
    }


def _name(unit: str, number: int) -> str:
    return f"{unit} feature {number}" if number else unit


@dataclass(frozen=True, eq=False)
class Lift:
    """How much likelier a class of users and one of items meet in an event than by chance, outside a fold.

    With the classes of items (a category, say) the lift of a user and a class says how much the user is shown of it;
    with the classes of users the lift of an item says to whom it is shown; with both, which classes go together.
    """

    user_class: Longs
    item_class: Longs
    events: Longs  # sorted numbers of (class of the user, class of the item, fold)
    user_total: Longs  # classes × folds
    item_total: Longs

    @classmethod
    def from_rows(cls, user_class: Longs, item_class: Longs, folds: int, user: Any, item: Any, fold: Any) -> Lift:
        """From the user, the item and the fold of every event."""
        left, right = user_class[user].astype(np.int64), item_class[item].astype(np.int64)
        n_left, n_right = int(user_class.max()) + 1, int(item_class.max()) + 1
        totals = [
            np.bincount(side * folds + fold, minlength=n * folds).reshape(n, folds)
            for side, n in ((left, n_left), (right, n_right))
        ]
        return cls(user_class, item_class, np.sort((left * n_right + right) * folds + fold), *totals)

    def at(self, user: Any, item: Any, fold: Any) -> Floats:
        """log [(n_lr + α s_r) / (n_l + α) / s_r], counts outside the fold, s_r the share of the item's class."""
        left, right = self.user_class[user], self.item_class[item]
        n_right, folds = self.item_total.shape
        first = (left.astype(np.int64) * n_right + right) * folds
        total, own = (
            np.searchsorted(self.events, first + high) - np.searchsorted(self.events, first + low)
            for low, high in ((0, folds), (fold, fold + 1))
        )
        left_count = self.user_total.sum(axis=1)[left] - self.user_total[left, fold]
        right_count = self.item_total.sum(axis=1)[right] - self.item_total[right, fold]
        everything = (len(self.events) - self.item_total.sum(axis=0))[fold]
        share = (right_count + 0.5) / (everything + 0.5 * n_right)
        return np.asarray(np.log((total - own + LIFT_PRIOR * share) / (left_count + LIFT_PRIOR) / share))
