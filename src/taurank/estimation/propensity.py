"""Propensity: P(treated = 1) for logs that did not record it, and what a log says about its own.

``estimate`` fits a regularized logistic model of treatment on user, item and time effects over *all* cells
users × items × times; a cell without a row counts as untreated. It is cross-fitted: the propensity of a
cell comes from a model that has not seen whether this cell was treated. ``diagnose`` (in ``overlap``) says
whether effects can be learned from a log with its propensities.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from scipy.special import expit

from taurank._validation import check_instance, check_integer, check_number, generator
from taurank.data.ids import Catalogue
from taurank.data.log import Log
from taurank.errors import InputError
from taurank.estimation.additive import Axis, fit_without_fold
from taurank.estimation.overlap.diagnosis import Diagnosis, diagnose

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Diagnosis", "PropensityModel", "diagnose", "estimate", "fit"]

BOUND = 1e-6  # estimates are clipped to [BOUND, 1 − BOUND]
MAX_FOLDS = 20
MIN_REGULARIZATION = 0.01  # a prior of standard deviation 10 on log-odds: weaker has no meaning
BLOCK_ROWS = 1 << 20

RandomState = int | np.random.Generator | None
Groups = tuple[npt.NDArray[np.int8], npt.NDArray[np.int8], npt.NDArray[np.int8]]


def estimate(log: Log, random_state: RandomState = None, folds: int = 5, regularization: float = 1.0) -> Log:
    """The log with an estimated propensity in every row, each from a model that has not seen its cell.

    The options are those of ``fit``; use ``fit`` to have the propensities of absent cells as well.
    """
    model = fit(log, random_state, folds, regularization)
    return log.with_propensity(model.at(log.user, log.item, log.time))


def fit(log: Log, random_state: RandomState = None, folds: int = 5, regularization: float = 1.0) -> PropensityModel:
    """Fit logit P(Z_uit = 1) = b + a_u + c_i + d_t over all cells, once for every fold left out.

    ``regularization`` λ is the precision of the normal prior of each effect: the objective is
    Σ_cells [Z η − log(1 + e^η)] − λ/2 (Σ a_u² + Σ c_i² + Σ d_t²). The effects of users or items with few
    treated cells are shrunk toward the mean. ``random_state`` decides only how cells fall into folds.
    """
    _check(log, folds, regularization)
    groups = _random_groups(log.catalogue, folds, generator(random_state))
    counts = _treated_by_fold(log, groups, folds)
    fits = []
    for fold in range(folds):
        seen = [table.sum(axis=1) - table[:, fold] for table in counts]
        axes = [Axis.of(group, kept, folds) for group, kept in zip(groups, seen, strict=True)]
        fits.append(fit_without_fold(axes, folds, fold, regularization))
    intercept = np.array([b for b, _ in fits])
    user, item, time = (np.stack([effects[axis] for _, effects in fits]) for axis in range(3))
    return PropensityModel(log.catalogue, groups, intercept, user, item, time)


@dataclass(frozen=True, eq=False)
class PropensityModel:
    """A fitted model: one intercept and one set of effects for every fold that was left out.

    The fold of a cell is (class of its user + of its item + of its time) modulo the number of folds; the
    classes are random and of equal size, so each fold is a random share of the cells, treated or not.
    """

    catalogue: Catalogue
    groups: Groups
    intercept: npt.NDArray[np.float64]  # folds
    user_effect: npt.NDArray[np.float64]  # folds × users
    item_effect: npt.NDArray[np.float64]  # folds × items
    time_effect: npt.NDArray[np.float64]  # folds × times

    def __repr__(self) -> str:
        size = self.catalogue
        return (
            f"PropensityModel({size.n_users:,} users, {size.n_items:,} items, {size.n_times:,} times, "
            f"{len(self.intercept)} folds)"
        )

    def fold(self, user: npt.ArrayLike, item: npt.ArrayLike, time: npt.ArrayLike = 0) -> npt.NDArray[np.int64]:
        """The fold of cells, given as positions in the catalogue."""
        return self._fold(*self._codes(user, item, time))

    def at(self, user: npt.ArrayLike, item: npt.ArrayLike, time: npt.ArrayLike = 0) -> npt.NDArray[np.float64]:
        """The out-of-fold propensity of cells, in the log or not, given as positions in the catalogue."""
        user, item, time = self._codes(user, item, time)
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
        """Random cells of the catalogue with their propensities, for the ``cells=`` of ``diagnose``."""
        import pandas as pd

        size = self.catalogue
        picked = _random_cells(size.n_cells, n_cells, generator(random_state))
        rest, item = np.divmod(picked, size.n_items)
        time, user = np.divmod(rest, size.n_users)
        columns = {"user_id": size.users.decode(user), "item_id": size.items.decode(item)}
        columns["time"] = size.times.decode(time)
        frame = pd.DataFrame({name: column.to_pandas() for name, column in columns.items()})
        return frame.assign(propensity=self.at(user, item, time))

    def _fold(self, user: npt.NDArray[Any], item: npt.NDArray[Any], time: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        return _fold_of(self.groups, len(self.intercept), user, item, time)

    def _codes(self, *codes: npt.ArrayLike) -> list[npt.NDArray[Any]]:
        """Codes of one shape; none of them may point outside the catalogue."""
        try:
            arrays = list(np.broadcast_arrays(*codes))
        except ValueError as error:
            raise InputError("user, item and time positions must have the same length.") from error
        size = self.catalogue
        sizes = {"user": size.n_users, "item": size.n_items, "time": size.n_times}
        for (name, n), array in zip(sizes.items(), arrays, strict=True):
            if not np.issubdtype(array.dtype, np.integer):
                raise InputError(f"{name} positions must be integers, got {array.dtype}.")
            wrong = (array < 0) | (array >= n)
            if wrong.any():
                raise InputError(
                    f"{name} positions must be between 0 and {n - 1}; {np.count_nonzero(wrong):,} are not, "
                    f"for example {array[wrong][0]}."
                )
        return arrays


def _check(log: Log, folds: int, regularization: float) -> None:
    check_instance("log", log, Log, "Log.from_frame or Log.read")
    check_integer("folds", folds, 2, MAX_FOLDS)
    check_number("regularization", regularization, MIN_REGULARIZATION)
    n_treated = int(np.count_nonzero(log.treated))
    if n_treated == 0:
        raise InputError(
            f"column 'treated' is 0 in all {len(log):,} rows; a propensity can be estimated only from a "
            "log in which something was recommended."
        )
    if n_treated == log.catalogue.n_cells:
        raise InputError(
            f"column 'treated' is 1 in all {n_treated:,} cells; without a cell that was not recommended there "
            "is no propensity to estimate (does the catalogue have all users, items and times?)."
        )


def _random_groups(catalogue: Catalogue, folds: int, generator: np.random.Generator) -> Groups:
    """A random class 0 … folds−1 for each user, item and time; the classes differ in size by one at most."""
    sizes = (catalogue.n_users, catalogue.n_items, catalogue.n_times)
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


def _random_cells(n_cells: int, wanted: int, generator: np.random.Generator) -> npt.NDArray[np.int64]:
    """Distinct cell numbers, in order; all of them if as many or more are wanted."""
    check_integer("n_cells", wanted)
    if wanted > n_cells // 2:
        return np.sort(generator.permutation(np.arange(n_cells))[:wanted])
    picked = _distinct(generator.integers(0, n_cells, wanted))
    while len(picked) < wanted:
        more = generator.integers(0, n_cells, wanted - len(picked))
        picked = _distinct(np.concatenate([picked, more]))
    return picked


def _distinct(values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    values.sort()
    first: npt.NDArray[np.bool_] = np.append(True, values[1:] != values[:-1])
    return values[first]
