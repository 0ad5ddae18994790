"""Pair-level calibration: do the propensities know that a pair was shown before?

A model can be right on average for every user, item and time and wrong for every pair. Exposure is autocorrelated
within a pair, so cells are told apart by how often their pair was shown *before* their time, which the log records.
Two checks:

- From a log alone. Over the treated cells of a stratum Σ 1/P is, on average, the number of its cells, which the log
  determines. Needs P at treated rows only, so that it serves recorded and estimated propensities alike.
- From a model. Observed against predicted exposures by stratum and tenth of the predicted exposures, the line
  logit P(treated) = a + b logit P̂ over all cells (slope 1 and intercept 0 if calibrated), and a test.

``fill_in`` puts estimates on the scale of propensities that some rows record.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy.special import expit, logit
from scipy.stats import chi2

from taurank._checks import check_instance, generator
from taurank._threads import one_blas_thread
from taurank._types import Floats, Longs
from taurank.data.log import Log
from taurank.errors import InputError
from taurank.estimation.newton import fit_logistic
from taurank.estimation.propensity.cells import (
    BOUND,
    MAX_CELLS,
    Model,
    PairHistory,
    Proposal,
    WeightedCells,
    draw_cells,
)

if TYPE_CHECKING:
    import pandas as pd

PAST = ("not shown before", "shown once before", "shown twice or more before")
SLACK = 0.25  # a ratio of observed to predicted exposures this close to 1 is close enough
Z_LIMIT = 3.0
ENOUGH = 50  # treated cells of a stratum, or recorded rows of an arm, that represent it
MAX_CASES = 500_000
TENTHS = 10
TINY = 1e-100
MAX_WEIGHT = 1000.0  # of a row that represents the other arm


class PairStratum(NamedTuple):
    """Cells whose pair was shown so often before: Σ 1/P of its treated cells, per cell, is 1 if P fits."""

    past: str
    cells: float
    treated: int
    ratio: float
    error: float

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
        """One row per stratum."""
        import pandas as pd

        return pd.DataFrame(self.strata)


def pair_calibration(log: Log, model: Model | None = None) -> PairCalibration:
    """Check the propensities of a log, or of a model of it, pair by pair.

    With ``model`` its propensities are checked, also at absent cells; else those in the log's rows.
    """
    check_instance("log", log, Log, "Log.from_frame or Log.read")
    rows = np.flatnonzero(log.treated)
    if model is None:
        return PairCalibration(pair_strata(log, log.recorded_propensity("pair_calibration")[rows]))
    strata = pair_strata(log, model.at(log.user[rows], log.item[rows], log.time[rows]))
    if log.n_times == 1:
        return PairCalibration(strata)
    return PairCalibration(strata, *_observed_and_predicted(log, model))


def require_pair_calibration(log: Log, purpose: str = "an estimate of effects") -> PairCalibration:
    """Refuse propensities that do not fit pairs, with one sentence that says how far they are off."""
    result = pair_calibration(log)
    if not result.holds:
        raise InputError(
            f"{purpose} needs propensities that fit single pairs. {result.sentence} Record propensities, or "
            "estimate them with taurank.propensity.estimate(log, replace=True), on the command line "
            "`taurank propensity estimate LOG --replace --out FILE`."
        )
    return result


def pair_strata(log: Log, propensity: Floats) -> tuple[PairStratum, ...]:
    """Σ 1/P by past exposures; ``propensity`` is that of the treated rows. Empty for a log with one time."""
    if log.n_times == 1 or log.catalog.n_cells >= 2**63:
        return ()
    rows = np.flatnonzero(log.treated)
    shown = PairHistory.from_rows(log, log.treated == 1)
    past = _past(shown, log.user[rows], log.item[rows], log.time[rows])
    strata = []
    for k, (name, cells) in enumerate(zip(PAST, _cells_by_past(log, shown), strict=True)):
        p = np.maximum(propensity[past == k], TINY)
        n = max(cells, 1.0)
        error = float(np.sqrt(((1.0 - p) / p**2).sum())) / n
        strata.append(PairStratum(name, float(cells), len(p), float((1.0 / p).sum()) / n, error))
    return tuple(strata)


def _past(shown: PairHistory, user: Any, item: Any, time: Any) -> Longs:
    """0, 1 or 2: the stratum of cells; −1 at the first time, which has no past."""
    count = np.minimum(shown.before(user, item, time)[0], len(PAST) - 1)
    return np.where(np.asarray(time) == 0, -1, count)


def _cells_by_past(log: Log, shown: PairHistory) -> Floats:
    """How many eligible cells each stratum has; counted, or estimated from a million of those with a past."""
    later = shown.n_later_cells
    number = np.arange(later) if later <= MAX_CELLS else generator(0).integers(0, later, MAX_CELLS)
    codes = shown.later_cells(number)
    past = _past(shown, *codes)[log.eligibility.contains(*codes)]
    counts = np.bincount(past, minlength=len(PAST)) * (later / max(len(number), 1))
    counts[0] = float(log.eligibility.cells_by_time[1:].sum()) - counts[1:].sum()
    return np.asarray(counts, np.float64)


def _observed_and_predicted(log: Log, model: Model) -> tuple[pd.DataFrame, float, float, float]:
    """The table by stratum and tenth, slope and intercept of the calibration line, and the table's p-value."""
    shown = PairHistory.from_rows(log, log.treated == 1)
    random = generator(0)
    cells = draw_cells(log, shown, Proposal.by_popularity(log), random)
    cells = cells.take(cells.time > 0)
    rows = np.flatnonzero((log.treated == 1) & (log.time > 0))
    n_rows = len(rows)
    if n_rows > MAX_CASES:
        rows = np.sort(random.choice(rows, MAX_CASES, replace=False))
    case_weight = n_rows / max(len(rows), 1)
    user, item, time = (code[rows].astype(np.int64) for code in (log.user, log.item, log.time))
    cases = WeightedCells(user, item, time, np.full(len(rows), case_weight))
    tables = [(part, model.at(*part[:3]), _past(shown, *part[:3])) for part in (cases, cells)]
    table = _tenths(*tables)
    log_odds = [logit(np.clip(p, 1e-12, 1.0 - 1e-12)) for _, p, _ in tables]
    x = [np.stack([np.ones_like(one), one], axis=1) for one in log_odds]
    with one_blas_thread():
        a, b = fit_logistic(case_weight * x[0].sum(axis=0), log_odds[1], x[1], cells.weight, np.array([1e-6, 0.0]))
    chi_square = float((((table.observed - table.predicted) / table.error) ** 2).sum())
    return table, float(1.0 + b), float(a), float(chi2.sf(chi_square, len(table)))


def _tenths(cases: tuple[WeightedCells, Floats, Longs], cells: tuple[WeightedCells, Floats, Longs]) -> pd.DataFrame:
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


def fill_in(log: Log, estimates: Floats) -> Floats:
    """The recorded propensities, and calibrated estimates in the rows that have none.

    Among rows that record the true P the line logit P = a + b logit p̂ is fitted, with a ridge toward slope 1 and
    intercept 0 (Platt scaling), and applied to the estimates p̂ of the rows without a record. The fit must represent
    the rows it is used for. Missing rows of an arm are represented by recorded rows of the same arm; where an arm has
    too few (purchases of items that were not shown, say), by those of the other arm, weighted from one arm to the
    other: a treated row stands for (1 − P)/P untreated cells like it, an untreated one for P/(1 − P) treated ones.
    """
    if log.propensity is None:
        return estimates
    result, log_odds = log.propensity.copy(), logit(estimates)
    recorded = ~np.isnan(result)
    for arm in (0, 1):
        missing = ~recorded & (log.treated == arm)
        if not missing.any():
            continue
        rows, other = (np.flatnonzero(recorded & here) for here in (log.treated == arm, log.treated != arm))
        weight = np.ones(len(rows))
        if len(rows) < ENOUGH and len(other):
            rows, p = other, result[other]
            weight = np.minimum((1.0 - p) / p if arm == 0 else p / (1.0 - p), MAX_WEIGHT)
            weight /= weight.mean()
        x = np.stack([np.ones(len(rows)), log_odds[rows]], axis=1)
        a, b = fit_logistic((weight * result[rows]) @ x, log_odds[rows], x, weight, 1.0)
        result[missing] = np.clip(expit(a + (1.0 + b) * log_odds[missing]), BOUND, 1.0 - BOUND)
    return result
