"""The additive model: who the user is, which item it is and when, each by itself.

A regularized logistic model of treatment on user, item and time effects over *all* cells users × items × times; a
cell without a row counts as untreated. It is cross-fitted: the propensity of a cell comes from a model that has
not seen whether this cell was treated. It knows nothing of pairs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from scipy.special import expit

from taurank._validation import check_integer, check_number, generator
from taurank.data.ids import Catalog
from taurank.data.log import Log
from taurank.estimation.additive import Axis, fit_without_fold
from taurank.estimation.additive_cells import eligible_cells, fit_cells
from taurank.estimation.propensities.cells import (
    BOUND,
    RandomState,
    cells_frame,
    positions,
    random_cells,
    refuse_one_sided,
)

if TYPE_CHECKING:
    import pandas as pd

MAX_FOLDS = 20
MIN_REGULARIZATION = 0.01  # a prior of standard deviation 10 on log-odds: weaker has no meaning
BLOCK_ROWS = 1 << 20

Groups = tuple[npt.NDArray[np.int8], npt.NDArray[np.int8], npt.NDArray[np.int8]]


def fit_additive(
    log: Log, random_state: RandomState = None, folds: int = 5, regularization: float = 1.0
) -> PropensityModel:
    """Fit logit P(Z_uit = 1) = b + a_u + c_i + d_t over all eligible cells, once for every fold left out.

    ``regularization`` λ is the precision of the normal prior of each effect: the objective is
    Σ_cells [Z η − log(1 + e^η)] − λ/2 (Σ a_u² + Σ c_i² + Σ d_t²). The effects of users or items with few
    treated cells are shrunk toward the mean. ``random_state`` decides only how cells fall into folds.
    """
    _check(log, folds, regularization)
    random = generator(random_state)
    groups = _random_groups(log.catalog, folds, random)
    if log.eligibility.is_everything:
        fits = _fit_grid(log, groups, folds, regularization)
    else:
        cells = eligible_cells(log, log.eligibility, random)
        own, sizes = _fold_of(groups, folds, *cells.codes), (log.n_users, log.n_items, log.n_times)
        fits = [fit_cells(cells.where(own != fold), sizes, regularization) for fold in range(folds)]
    intercept = np.array([b for b, _ in fits])
    user, item, time = (np.stack([effects[axis] for _, effects in fits]) for axis in range(3))
    return PropensityModel(log.catalog, groups, intercept, user, item, time)


def _fit_grid(log: Log, groups: Groups, folds: int, regularization: float) -> list[Any]:
    """All users × items × times are eligible: the cells need not be visited."""
    counts = _treated_by_fold(log, groups, folds)
    fits = []
    for fold in range(folds):
        seen = [table.sum(axis=1) - table[:, fold] for table in counts]
        axes = [Axis.of(group, kept, folds) for group, kept in zip(groups, seen, strict=True)]
        fits.append(fit_without_fold(axes, folds, fold, regularization))
    return fits


@dataclass(frozen=True, eq=False)
class PropensityModel:
    """A fitted model: one intercept and one set of effects for every fold that was left out.

    The fold of a cell is (class of its user + of its item + of its time) modulo the number of folds; the
    classes are random and of equal size, so each fold is a random share of the cells, treated or not.
    """

    catalog: Catalog
    groups: Groups
    intercept: npt.NDArray[np.float64]  # folds
    user_effect: npt.NDArray[np.float64]  # folds × users
    item_effect: npt.NDArray[np.float64]  # folds × items
    time_effect: npt.NDArray[np.float64]  # folds × times

    def __repr__(self) -> str:
        size = self.catalog
        return (
            f"PropensityModel({size.n_users:,} users, {size.n_items:,} items, {size.n_times:,} times, "
            f"{len(self.intercept)} folds)"
        )

    def fold(self, user: npt.ArrayLike, item: npt.ArrayLike, time: npt.ArrayLike = 0) -> npt.NDArray[np.int64]:
        """The fold of cells, given as positions in the catalog."""
        return self._fold(*positions(self.catalog, user, item, time))

    def at(self, user: npt.ArrayLike, item: npt.ArrayLike, time: npt.ArrayLike = 0) -> npt.NDArray[np.float64]:
        """The out-of-fold propensity of cells, in the log or not, given as positions in the catalog."""
        user, item, time = positions(self.catalog, user, item, time)
        result = np.empty(user.shape)
        flat = result.reshape(-1)
        codes = [code.reshape(-1) for code in (user, item, time)]
        for start in range(0, len(flat), BLOCK_ROWS):
            rows = slice(start, start + BLOCK_ROWS)
            u, i, t = (code[rows] for code in codes)
            fold = self._fold(u, i, t)
            log_odds = self.intercept[fold] + self.user_effect[fold, u]
            log_odds += self.item_effect[fold, i]
            log_odds += self.time_effect[fold, t]
            flat[rows] = np.clip(expit(log_odds), BOUND, 1.0 - BOUND)
        return result

    def sample_cells(self, n_cells: int, random_state: RandomState = None) -> pd.DataFrame:
        """Random cells of the catalog with their propensities, for the ``cells=`` of ``diagnose``."""
        picked = random_cells(self.catalog.n_cells, n_cells, generator(random_state))
        return cells_frame(self.catalog, picked, self.at)

    def _fold(self, user: npt.NDArray[Any], item: npt.NDArray[Any], time: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        return _fold_of(self.groups, len(self.intercept), user, item, time)


def _check(log: Log, folds: int, regularization: float) -> None:
    check_integer("folds", folds, 2, MAX_FOLDS)
    check_number("regularization", regularization, MIN_REGULARIZATION)
    refuse_one_sided(log)


def _random_groups(catalog: Catalog, folds: int, generator: np.random.Generator) -> Groups:
    """A random class 0 … folds−1 for each user, item and time; the classes differ in size by one at most."""
    sizes = (catalog.n_users, catalog.n_items, catalog.n_times)
    user, item, time = ((generator.permutation(n) % folds).astype(np.int8) for n in sizes)
    return user, item, time


def _fold_of(
    groups: Groups,
    folds: int,
    user: npt.NDArray[Any],
    item: npt.NDArray[Any],
    time: npt.NDArray[Any],
) -> npt.NDArray[np.int64]:
    total: npt.NDArray[np.int64] = groups[0][user].astype(np.int64)
    total += groups[1][item]
    total += groups[2][time]
    total %= folds
    return total


def _treated_by_fold(log: Log, groups: Groups, folds: int) -> list[npt.NDArray[np.int64]]:
    """How many treated cells each user, item and time has in each fold."""
    sizes = (log.n_users, log.n_items, log.n_times)
    tables = [np.zeros(n * folds, np.int64) for n in sizes]
    for start in range(0, len(log), BLOCK_ROWS):
        rows = start + np.flatnonzero(log.treated[start : start + BLOCK_ROWS])
        codes = (log.user[rows], log.item[rows], log.time[rows])
        fold = _fold_of(groups, folds, *codes)
        for table, code in zip(tables, codes, strict=True):
            table += np.bincount(code * np.int64(folds) + fold, minlength=len(table))
    return [table.reshape(-1, folds) for table in tables]
