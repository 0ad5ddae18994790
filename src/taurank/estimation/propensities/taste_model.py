"""The taste model: a propensity for pairs, from other times and from the pair's own past.

Two stages. First, for every fold (a block of times) and from the exposures outside it: the rate at which each user is
shown something, the rate of each item, exposure tastes (``tastes``), and the lifts of features (``lifts``). Second, a
logistic model of all cells whose offset is the logarithm of the rate these imply, with a broken line in it, the
parts by themselves, and the past exposures and purchases of the pair, from earlier times only. Its coefficients for a
fold come from the cells of the other folds. At last the level of each time is set so that the propensities of all its
cells add up to its exposures.

So a cell's own treatment reaches its propensity only through what millions of cells determine together: some thirty
coefficients and the number of exposures at its time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from scipy.special import expit

from taurank._threads import one_blas_thread
from taurank._validation import check_instance, check_integer, check_number, generator
from taurank.data.log import Log
from taurank.estimation.propensities.cells import (
    BOUND,
    RandomState,
    cells_frame,
    positions,
    random_cells,
    refuse_one_sided,
)
from taurank.estimation.propensities.draws import Cells, TasteDraws, draw_cells
from taurank.estimation.propensities.features import Classes, read_classes
from taurank.estimation.propensities.folds import Folds
from taurank.estimation.propensities.history import PairHistory
from taurank.estimation.propensities.lifts import Lift
from taurank.estimation.propensities.logistic import fit_logistic, level
from taurank.estimation.propensities.shelf_tastes import ShelfTastes, fit_shelf_tastes
from taurank.estimation.propensities.tastes import Exposures, Tastes, fit_tastes

if TYPE_CHECKING:
    import pandas as pd

Longs = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Floats32 = npt.NDArray[np.float32]

MAX_FOLDS = 20
MAX_CASES = 500_000  # treated rows the second stage uses
MAX_COMPONENTS = 64
PSEUDO = 2.0  # exposures that say: as often as the average user or item
KNOTS = (-8.0, -6.0, -4.0, -2.5, -1.0)  # of the broken line, on the log rate
BLOCK = 1 << 17


def fit_taste(
    log: Log,
    random_state: RandomState = None,
    folds: int = 5,
    regularization: float = 1.0,
    features: Any = None,
    threads: int | None = None,
) -> TasteModel:
    """Fit the taste model; ``features`` maps "user" and "item" to tables with an id column and one per feature.

    ``features["shelves"]`` has ``user_id`` and a column of the items' table, such as category: what each user can be
    shown, and ``score`` if the shop has one. The shares of a user's shelves then take the place of learned tastes.
    ``regularization`` is the precision of the normal prior of each coefficient of the second stage. ``random_state``
    decides the start of the tastes and which cells represent all of them.
    """
    check_instance("log", log, Log, "Log.from_frame or Log.read")
    check_integer("folds", folds, 2, MAX_FOLDS)
    check_number("regularization", regularization, 0.0)
    refuse_one_sided(log)
    random = generator(random_state)
    first = FirstStage.of(log, folds, read_classes(log, features), random, threads)
    cells = draw_cells(log, first.shown, first.draws(), random)
    rows = _cases(log, random)
    cases = first.columns(log.user[rows], log.item[rows], log.time[rows])
    table = first.columns(cells.user, cells.item, cells.time)
    case_weight = np.count_nonzero(log.treated) / len(rows)
    case_fold = first.folds.at(log.user[rows], log.item[rows], log.time[rows])
    fold = first.folds.at(cells.user, cells.item, cells.time)
    with one_blas_thread():
        beta = [
            fit_logistic(
                cases[case_fold != f], case_weight, table[fold != f], cells.weight[fold != f], regularization
            )
            for f in range(first.folds.count)
        ]
    log_odds = table[:, 0] + np.einsum("nk,nk->n", table[:, 1:], np.array(beta)[fold])
    exposures = np.bincount(log.time[log.treated == 1], minlength=log.n_times)
    by_time = level(log_odds, cells.weight, cells.time, np.asarray(exposures + BOUND, np.float64))
    return TasteModel(log, first, np.array(beta), by_time)


def _cases(log: Log, random: np.random.Generator) -> Longs:
    treated = np.flatnonzero(log.treated)
    return treated if len(treated) <= MAX_CASES else np.sort(random.choice(treated, MAX_CASES, replace=False))


@dataclass(frozen=True, eq=False)
class TasteModel:
    """A fitted model: the first stage, a row of coefficients for every fold, and the level of every time."""

    log: Log
    first: FirstStage
    coefficients: Floats  # folds × columns
    time_effect: Floats

    def __repr__(self) -> str:
        size, one = self.log.catalog, self.first.tastes[0]
        tastes = f"{one.user.shape[1]} tastes" if isinstance(one, Tastes) else f"{one.shelves.n_classes} shelves"
        return (
            f"TasteModel({size.n_users:,} users, {size.n_items:,} items, {size.n_times:,} times, "
            f"{self.first.folds.count} folds, {tastes})"
        )

    def at(self, user: npt.ArrayLike, item: npt.ArrayLike, time: npt.ArrayLike = 0) -> Floats:
        """The cross-fitted propensity of cells, in the log or not, given as positions in the catalog."""
        codes = positions(self.log.catalog, user, item, time)
        shape = codes[0].shape
        user, item, time = (code.reshape(-1) for code in codes)
        result = np.empty(len(user))
        for start in range(0, len(result), BLOCK):
            rows = slice(start, start + BLOCK)
            result[rows] = self._block(user[rows], item[rows], time[rows])
        return result.reshape(shape)

    def _block(self, user: Any, item: Any, time: Any) -> Floats:
        table = self.first.columns(user, item, time)
        beta = self.coefficients[self.first.folds.at(user, item, time)]
        log_odds = table[:, 0] + np.einsum("nk,nk->n", table[:, 1:], beta) + self.time_effect[time]
        return np.asarray(np.clip(expit(log_odds), BOUND, 1.0 - BOUND))

    def sample_cells(self, n_cells: int, random_state: RandomState = None) -> pd.DataFrame:
        """Random cells of the catalog with their propensities, for the ``cells=`` of ``diagnose``."""
        picked = random_cells(self.log.catalog.n_cells, n_cells, generator(random_state))
        return cells_frame(self.log.catalog, picked, self.at)

    def draw_cells(self, random_state: RandomState = None) -> Cells:
        """Weighted cells that stand for all of them; those that matter are drawn more often."""
        return draw_cells(self.log, self.first.shown, self.first.draws(), generator(random_state))


@dataclass(frozen=True, eq=False)
class FirstStage:
    """What the exposures outside each fold say about users, items and tastes, and the past of the pairs."""

    folds: Folds
    tastes: Sequence[Tastes | ShelfTastes]
    user_rate: Floats  # folds × users: log of exposures per eligible cell, outside the fold
    item_rate: Floats  # folds × items: the same over the rate of all
    shown: PairHistory
    bought: PairHistory
    classes: Classes
    lifts: list[tuple[int, int, Lift]]  # of exposures
    bought_lifts: list[tuple[int, int, Lift]]

    @classmethod
    def of(
        cls, log: Log, n_folds: int, classes: Classes, random: np.random.Generator, threads: int | None
    ) -> FirstStage:
        folds = Folds.of(log, n_folds, random)
        treated = np.flatnonzero(log.treated)
        user, item = log.user[treated], log.item[treated]
        fold = folds.at(user, item, log.time[treated])
        exposures = Exposures.of(log.n_users, log.n_items, user, item, fold)
        bought = np.flatnonzero(log.outcome)
        buyer, purchase = log.user[bought], log.item[bought]
        bought_fold = folds.at(buyer, purchase, log.time[bought])
        purchases = Exposures.of(log.n_users, log.n_items, buyer, purchase, bought_fold)
        rates = [_rates(log, folds, f, user, item, fold) for f in range(folds.count)]
        tastes: Sequence[Tastes | ShelfTastes]
        if classes.shelves is None:
            tastes = _learned_tastes(exposures, purchases, folds, random, threads)
        else:
            popularity = [np.exp(rate) / np.exp(rate).sum() for _, rate in rates]
            tastes = [
                fit_shelf_tastes(classes.shelves, exposures, purchases, f, popularity[f]) for f in range(folds.count)
            ]
        return cls(
            folds, tastes, np.stack([u for u, _ in rates]), np.stack([i for _, i in rates]),
            PairHistory.of(log, log.treated == 1), PairHistory.of(log, log.outcome == 1),
            classes, classes.lifts(user, item, fold, folds.count),
            classes.lifts(buyer, purchase, bought_fold, folds.count),
        )  # fmt: skip

    def draws(self) -> TasteDraws:
        """Users by activity and items by taste."""
        activity = np.exp(self.user_rate - self.user_rate.max(axis=1, keepdims=True))
        return TasteDraws(self.folds, self.tastes, list(activity / activity.sum(axis=1, keepdims=True)))

    def columns(self, user: Any, item: Any, time: Any) -> Floats32:
        """The offset (log of the expected exposures), the intercept, and what corrects the offset."""
        fold = self.folds.at(user, item, time)
        who, what = self.user_rate[fold, user], self.item_rate[fold, item]
        taste, bought = self._taste(user, item, fold)
        rate = np.minimum(who + what + taste, 3.0)
        level = self.user_rate.mean()
        columns = [rate, np.ones(len(user)), rate + 5.0, who - level, taste]
        columns += [np.maximum(rate - knot, 0.0) for knot in KNOTS]
        columns += self._past(user, item, time, rate)
        columns += [bought, np.maximum(taste, 0.0), np.maximum(bought, 0.0)]
        for lifts in (self.lifts, self.bought_lifts):
            columns += self.classes.columns(lifts, user, item, fold)
        return np.stack(columns, axis=1).astype(np.float32)

    def _taste(self, user: Any, item: Any, fold: Any) -> tuple[Floats, Floats]:
        """The lifts of what is shown and of what is bought."""
        shown, bought = np.empty(len(user)), np.empty(len(user))
        for f in range(self.folds.count):
            rows = np.flatnonzero(fold == f)
            shown[rows] = self.tastes[f].lift(user[rows], item[rows])
            bought[rows] = self.tastes[f].bought_lift(user[rows], item[rows])
        return shown, bought

    def _past(self, user: Any, item: Any, time: Any, rate: Floats) -> list[Floats]:
        shown, ago = self.shown.before(user, item, time)
        bought, _ = self.bought.before(user, item, time)
        some = (shown > 0).astype(np.float64)
        earlier = np.log1p(np.asarray(time, np.float64))
        repeats = np.log(np.maximum(shown, 1))
        recent = some / np.maximum(ago, 1)
        ever = (bought > 0).astype(np.float64)
        again = (shown > 1).astype(np.float64)
        return [
            some,
            again,
            repeats,
            recent,
            some * earlier,
            some * (rate + 5.0),
            repeats * earlier,
            ever,
            np.log1p(bought),
        ]


def _learned_tastes(
    exposures: Exposures, purchases: Exposures, folds: Folds, random: np.random.Generator, threads: int | None
) -> list[Tastes]:
    components, seed = _components(len(exposures.item), exposures.n_items), int(random.integers(2**63))
    return [
        fit_tastes(exposures, purchases, f, components, np.random.default_rng([seed, f]), threads)
        for f in range(folds.count)
    ]


def _components(n_exposures: int, n_items: int) -> int:
    """More exposures tell more tastes apart."""
    return int(np.clip(np.sqrt(n_exposures) / 8.0, 2, min(MAX_COMPONENTS, max(2, n_items // 4))))


def _rates(log: Log, folds: Folds, fold: int, user: Any, item: Any, row_fold: Any) -> tuple[Floats, Floats]:
    """log exposures per eligible cell of users, and of items over that of all, drawn to the average by PSEUDO."""
    seen = row_fold != fold
    user_cells, item_cells = folds.cells_outside(log, fold)
    mean = max(np.count_nonzero(seen), 1) / max(user_cells.sum(), 1.0)
    shown_to = np.bincount(user[seen], minlength=log.n_users)
    shown = np.bincount(item[seen], minlength=log.n_items)
    user_rate = np.log((shown_to + PSEUDO) / (user_cells + PSEUDO / mean))
    item_rate = np.log((shown + PSEUDO) / (item_cells + PSEUDO / mean) / mean)
    return user_rate, item_rate
