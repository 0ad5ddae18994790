"""Pair-level calibration: do the propensities know that a pair was shown before?

A model can be right on average for every user, item and time and wrong for every pair. Whoever is shown an item by
taste is shown it again; so cells are told apart by how often their pair was shown *before* their time, which the log
records. Two checks:

- From a log alone. Over the treated cells of a stratum Σ 1/P is, on average, the number of its cells, which the log
  determines. Needs P at treated rows only, so that it serves recorded and estimated propensities alike.
- From a model. Observed against predicted exposures by stratum and tenth of the predicted exposures, the line
  logit P(treated) = a + b logit P̂ over all cells (1 and 0 if calibrated), and a test.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from scipy.special import logit
from scipy.stats import chi2

from taurank._threads import one_blas_thread
from taurank._validation import check_instance, generator
from taurank.data.log import Log
from taurank.errors import InputError
from taurank.estimation.propensities.additive_model import fit_additive
from taurank.estimation.propensities.draws import Cells, TasteDraws, cells_with_past, count_with_past, draw_cells
from taurank.estimation.propensities.folds import Folds
from taurank.estimation.propensities.history import PairHistory
from taurank.estimation.propensities.logistic import fit_logistic
from taurank.estimation.propensities.tastes import Tastes

if TYPE_CHECKING:
    import pandas as pd

Floats = npt.NDArray[np.float64]
Longs = npt.NDArray[np.int64]

PAST = ("not shown before", "shown once before", "shown twice or more before")
SLACK = 0.25  # a ratio of observed to predicted exposures this close to 1 is close enough
Z_LIMIT = 3.0
ENOUGH = 50  # treated cells of a stratum
MAX_CELLS = 1_000_000
MAX_CASES = 500_000
TENTHS = 10
TINY = 1e-100


class Model(Protocol):
    """A model of exposure: the propensity of any cell."""

    def at(self, user: Any, item: Any, time: Any = 0) -> Floats: ...


class PairStratum(NamedTuple):
    """Cells whose pair was shown so often before: Σ 1/P of its treated cells, per cell, is 1 if P fits."""

    past: str
    cells: float
    treated: int
    ratio: float
    error: float
    additive: float | None  # the ratio of an additive model's propensities, where one can be fitted

    @property
    def far(self) -> bool:
        """More than SLACK and Z_LIMIT standard errors away from 1."""
        gap = abs(self.ratio - 1.0)
        return self.treated >= ENOUGH and gap > SLACK and gap > Z_LIMIT * self.error


@dataclass(frozen=True, eq=False)
class PairCalibration:
    """Whether propensities fit pairs; ``table`` and ``slope`` … are None without a model."""

    strata: tuple[PairStratum, ...]
    table: pd.DataFrame | None = None
    slope: float | None = None
    intercept: float | None = None
    p_value: float | None = None

    @property
    def identified(self) -> bool:
        """A log with a single time, or in which no pair could be shown twice, says nothing about pairs."""
        return any(stratum.treated >= ENOUGH for stratum in self.strata[1:])

    @property
    def holds(self) -> bool:
        """Whether no stratum with a past is far off; True where the log cannot say (see ``identified``)."""
        return not any(stratum.far for stratum in self.strata[1:])

    @property
    def sentence(self) -> str:
        """What was found, in one sentence."""
        if not self.identified:
            return "Pair-level calibration cannot be checked: too few pairs were shown at more than one time."
        worst = max(self.strata[1:], key=lambda s: (s.far, abs(np.log(max(s.ratio, TINY)))))
        found = "holds" if self.holds else "fails"
        return (
            f"Pair-level calibration {found}: pairs {worst.past} were shown {worst.ratio:.2f} times as often "
            "as their propensities say."
        )

    def to_frame(self) -> pd.DataFrame:
        """One row per stratum, with the additive model beside it."""
        import pandas as pd

        return pd.DataFrame(self.strata)


def pair_calibration(log: Log, model: Model | None = None, *, additive: bool = True) -> PairCalibration:
    """Check the propensities of a log, or of a model of it, pair by pair.

    With ``model`` its propensities are checked, also at absent cells; else those in the log's rows. ``additive=True``
    puts an additive model beside it.
    """
    check_instance("log", log, Log, "Log.from_frame or Log.read")
    rows = np.flatnonzero(log.treated)
    if model is None:
        strata = pair_strata(log, log.recorded_propensity("pair_calibration")[rows], additive)
        return PairCalibration(strata)
    strata = pair_strata(log, model.at(log.user[rows], log.item[rows], log.time[rows]), additive)
    if log.n_times == 1:
        return PairCalibration(strata)
    return PairCalibration(strata, *_observed_and_predicted(log, model))


def require_pair_calibration(log: Log, purpose: str = "an estimate of effects") -> PairCalibration:
    """Refuse propensities that do not fit pairs, with one sentence that says how far they are off."""
    result = pair_calibration(log)
    if not result.holds:
        raise InputError(
            f"{purpose} needs propensities that fit single pairs. {result.sentence} Record propensities, or "
            'estimate them with taurank.propensity.estimate(log, model="taste"), on the command line '
            "`taurank propensity estimate LOG --model taste --replace --out FILE`."
        )
    return result


def pair_strata(log: Log, propensity: Floats, additive: bool = True) -> tuple[PairStratum, ...]:
    """Σ 1/P by past exposures; ``propensity`` is that of the treated rows. Empty for a log with one time."""
    rows = np.flatnonzero(log.treated)
    if log.n_times == 1 or log.catalog.n_cells >= 2**63:
        return ()
    shown = PairHistory.of(log, log.treated == 1)
    past = _past(shown, log.user[rows], log.item[rows], log.time[rows])
    beside = _additive(log, rows) if additive else None
    cells = _cells_by_past(log, shown)
    return tuple(
        _stratum(name, cells[k], propensity[past == k], None if beside is None else beside[past == k])
        for k, name in enumerate(PAST)
    )


def _stratum(name: str, cells: float, propensity: Floats, additive: Floats | None) -> PairStratum:
    p = np.maximum(propensity, TINY)
    n = max(cells, 1.0)
    error = float(np.sqrt(((1.0 - p) / p**2).sum())) / n
    beside = None if additive is None else float((1.0 / additive).sum()) / n
    return PairStratum(name, cells, len(p), float((1.0 / p).sum()) / n, error, beside)


def _additive(log: Log, rows: Longs) -> Floats | None:
    if not 0 < len(rows) < log.catalog.n_cells:
        return None
    return fit_additive(log, 0).at(log.user[rows], log.item[rows], log.time[rows])


def _past(shown: PairHistory, user: Any, item: Any, time: Any) -> Longs:
    """0, 1 or 2: the stratum of cells; −1 at the first time, which has no past."""
    count = np.minimum(shown.before(user, item, time)[0], len(PAST) - 1)
    return np.where(np.asarray(time) == 0, -1, count)


def _cells_by_past(log: Log, shown: PairHistory) -> Floats:
    """How many eligible cells each stratum has; counted, or estimated from a million of those with a past."""
    with_past = count_with_past(shown)
    number = np.arange(with_past) if with_past <= MAX_CELLS else generator(0).integers(0, with_past, MAX_CELLS)
    user, item, time = cells_with_past(shown, number)
    inside = np.ones(len(user), bool) if log.eligibility.is_everything else log.eligibility.contains(user, item, time)
    counts = np.bincount(_past(shown, user[inside], item[inside], time[inside]), minlength=len(PAST)).astype(
        np.float64
    )
    counts *= with_past / max(len(number), 1)
    counts[0] = _cells_from(log, 1) - counts[1:].sum()
    return counts


def _cells_from(log: Log, time: int) -> float:
    """How many eligible cells there are from this time on."""
    if log.eligibility.is_everything:
        return float(log.n_users * log.n_items * (log.n_times - time))
    return float(log.eligibility.cells_by_time[time:].sum())


def _observed_and_predicted(log: Log, model: Model) -> tuple[pd.DataFrame, float, float, float]:
    """The table by stratum and tenth, slope and intercept of the calibration line, and the table's p-value."""
    shown = PairHistory.of(log, log.treated == 1)
    random = generator(0)
    cells = draw_cells(log, shown, _by_popularity(log), random)
    cells = cells.take(cells.time > 0)
    rows = np.flatnonzero((log.treated == 1) & (log.time > 0))
    n_rows = len(rows)
    if n_rows > MAX_CASES:
        rows = np.sort(random.choice(rows, MAX_CASES, replace=False))
    case_weight = n_rows / max(len(rows), 1)
    user, item, time = (code[rows].astype(np.int64) for code in (log.user, log.item, log.time))
    cases = Cells(user, item, time, np.full(len(rows), case_weight))
    tables = [(part, model.at(*part[:3]), _past(shown, *part[:3])) for part in (cases, cells)]
    table = _tenths(*tables)
    x = [_line_columns(p) for _, p, _ in tables]
    with one_blas_thread():
        a, b = fit_logistic(x[0], case_weight, x[1], cells.weight, 0.0)
    chi_square = float((((table.observed - table.predicted) / table.error) ** 2).sum())
    return table, float(1.0 + b), float(a), float(chi2.sf(chi_square, len(table)))


def _line_columns(p: Floats) -> npt.NDArray[np.float32]:
    log_odds = logit(np.clip(p, 1e-12, 1.0 - 1e-12))
    return np.stack([log_odds, np.ones_like(log_odds), log_odds], axis=1).astype(np.float32)


def _by_popularity(log: Log) -> TasteDraws:
    """Users by activity and items by popularity: draws that favor no model."""
    rows = np.flatnonzero(log.treated)
    users = np.bincount(log.user[rows], minlength=log.n_users) + 0.5
    items = np.bincount(log.item[rows], minlength=log.n_items) + 0.5
    everyone = np.ones((log.n_users, 1), np.float32)
    popularity = items / items.sum()
    folds = Folds(1, *(np.zeros(n, np.int8) for n in (log.n_users, log.n_items, log.n_times)))
    tastes = Tastes(everyone, everyone, popularity[:, None].astype(np.float32), popularity)
    return TasteDraws(folds, [tastes], [users / users.sum()])


def _tenths(cases: tuple[Cells, Floats, Longs], cells: tuple[Cells, Floats, Longs]) -> pd.DataFrame:
    """Observed and predicted exposures by stratum and tenth of its predicted exposures."""
    import pandas as pd

    parts = []
    for k, name in enumerate(PAST):
        (own, p, _), (drawn, q, _) = ((part.take(past == k), p[past == k], past) for part, p, past in (cases, cells))
        if not len(q):
            continue
        mass = drawn.weight * q
        order = np.argsort(q)
        share = np.cumsum(mass[order]) / mass.sum()
        edges = np.unique(q[order][np.searchsorted(share, np.arange(1, TENTHS) / TENTHS)])
        at, of = np.searchsorted(edges, p, side="right"), np.searchsorted(edges, q, side="right")
        n = len(edges) + 1
        observed, predicted = np.bincount(at, own.weight, n), np.bincount(of, mass, n)
        variance = np.bincount(of, mass * (1.0 - q), n) + np.bincount(of, mass * q * (drawn.weight - 1.0), n)
        variance += np.bincount(at, own.weight * (own.weight - 1.0), n)
        columns = {"past": name, "tenth": np.arange(1, n + 1), "observed": observed, "predicted": predicted}
        parts.append(pd.DataFrame({**columns, "error": np.sqrt(np.maximum(variance, 1.0))}))
    return pd.concat(parts, ignore_index=True)
