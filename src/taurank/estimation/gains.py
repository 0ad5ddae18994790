"""Gains: sparse values (user, item, time) that a ranking can be measured by.

The truth τ, the outcome Y and every estimate of τ are all gains; a metric does not know which it was given.
A cell without a row has gain 0. The truth comes from ``World.sample``; ``outcome``, ``naive``, ``ips`` and
``capped_ips`` make gains from a log. An absent row of a log has Y = 0, so its gain is 0 for all of them. In a log
with values, Y is the value of the outcome: quantity, revenue or margin instead of 1.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, wraps
from inspect import signature
from typing import Any, Literal, ParamSpec

import numpy as np

from taurank._checks import check_choice, check_instance, check_positions
from taurank._types import Floats, Longs, Mask
from taurank.data import tables
from taurank.data.cell_table import CellTable, Numbers, fingerprint
from taurank.data.ids import Catalog
from taurank.data.log import Log
from taurank.data.reader import VALUE, read_cells
from taurank.data.remote import RemoteLog
from taurank.errors import InputError, first_line, plural
from taurank.estimation.estimators import Caps, Estimator, fit_variate, lacks_overlap, outcomes_of

LOG = "Log.from_frame(frame) or Log.read(path)"
Kind = Literal["effect", "outcome"]
P = ParamSpec("P")


def _also_remote(estimator: Callable[P, Gains]) -> Callable[P, Gains]:
    """For a log that no single machine holds, the estimate is made where its rows are."""

    @wraps(estimator)
    def estimate(*arguments: P.args, **options: P.kwargs) -> Any:
        given = signature(estimator).bind(*arguments, **options).arguments
        if isinstance(given["log"], RemoteLog):
            return given.pop("log").estimate(estimator.__name__, given)
        check_instance("log", given["log"], Log, LOG)
        return estimator(*arguments, **options)

    return estimate


@_also_remote
def outcome(log: Log) -> Gains:
    """The outcome itself: gain = Y. It makes P@k, DCG, AR and AUC of a metric."""
    bought = np.flatnonzero(log.outcome)
    return _of_rows(log, bought, outcomes_of(log, bought), "outcome", kind="outcome")


@_also_remote
def naive(log: Log) -> Gains:
    """As if all cells had the mean propensity: Z·Y / mean(Z) − (1−Z)·Y / mean(1−Z), Eq. (tau_naive).

    The means are over all eligible cells (users · items · times), absent rows counted as untreated. Biased where
    recommendations follow what users like.
    """
    mean, bought = log.treated_share, np.flatnonzero(log.outcome)
    value = np.where(log.treated[bought], mean, mean - 1.0)  # never 0: a row of that arm exists
    return _of_rows(log, bought, outcomes_of(log, bought) / value, "naive")


@_also_remote
def ips(log: Log) -> Gains:
    """Inverse propensity scoring: Z·Y / P − (1−Z)·Y / (1−P), Eq. (tau_IPS).

    Unbiased if P is right and strictly between 0 and 1 wherever something can happen.

    >>> import pandas as pd
    >>> row = {"user_id": [1], "item_id": [2], "treated": [1], "outcome": [1], "propensity": [0.25]}
    >>> ips(Log.from_frame(pd.DataFrame(row))).value  # bought, and shown with P = 1/4
    array([4.])
    """
    return _estimated(log, "ips", Estimator("IPS"))


@_also_remote
def capped_ips(
    log: Log, cap: float | None = None, *, cap_treated: float | None = None, cap_control: float | None = None
) -> Gains:
    """Capped IPS: Z·Y / max(P, χ^T) − (1−Z)·Y / max(1−P, χ^C).

    Less variance than ``ips``, for a bias that ``taurank.bounds.bias`` computes.

    Parameters
    ----------
    cap : χ of both arms, from 0 to 1; an arm without any cap is not capped
    cap_treated, cap_control : χ^T and χ^C, which override it
    """
    if cap is None and cap_treated is None and cap_control is None:
        raise InputError("capped IPS needs a cap: give cap, or cap_treated and cap_control.")
    return _estimated(log, "capped_ips", Estimator("capped IPS", Caps.of(cap, cap_treated, cap_control)))


@_also_remote
def snips(log: Log) -> Gains:
    """Self-normalized IPS: the treated arm is divided by the sum of its own weights, metric by metric.

    The doubly robust formula with one constant, c = Σ λ·Z·Y/P ÷ Σ λ·Z/P over the rows that a metric weighs by λ. The
    gains hold the values of ``ips``; ``evaluate`` knows λ and adds c.
    """
    return _estimated(log, "snips", Estimator("SNIPS", normalized=True))


@_also_remote
def doubly_robust(log: Log, *, cap: float | None = None, folds: int = 5) -> Gains:
    """The doubly robust estimate Z·Y / P − (1−Z)·Y / (1−P) + c·(1 − Z / P), with a cross-fitted c.

    c is fitted on other times than the row's (on other users if the log has one time), so it is unbiased for any c if
    P is right. Cells with a propensity within 0.001 of 0 or 1 are set aside by ``evaluate``, which counts them. The
    gains hold the logged rows; ``evaluate`` adds the c of the cells without a row.

    Parameters
    ----------
    cap : χ, applied to the weights of both arms
    folds : the number of folds
    """
    log.recorded_propensity("the doubly robust estimator")
    estimator = Estimator("doubly robust", Caps.of(cap), fit_variate(log, folds), overlap_only=True)
    return _estimated(log, "doubly_robust", estimator)


recommended = doubly_robust  # what ``evaluate`` and ``tune`` make of a log


@dataclass(frozen=True, eq=False)
class Gains(CellTable):
    """Gains of cells, with the catalog of the log they belong to.

    Attributes
    ----------
    user, item, time : positions in the catalog
    value : the gain of each cell, finite; a cell without a row has gain 0
    name : what the values are called in print ("truth", "ips", …)
    kind : "effect" or "outcome" (None: not declared); chooses default metrics and words, never a formula
    log : the log they were made from
    estimator : how they were made from it (None: not by an estimator with propensities)
    eligibility : limits metrics to eligible cells and means to visits: that of the log, or of another one by
        ``within``
    """

    value: Floats
    name: str = "gain"
    kind: Kind | None = None
    log: Log | None = None
    estimator: Estimator | None = None

    def __post_init__(self) -> None:
        check_instance("catalog", self.catalog, Catalog, "log.catalog")
        if self.kind is not None:
            check_choice("kind", self.kind, ("effect", "outcome"))
        for name, ids in zip(("user", "item", "time"), self.catalog.lists, strict=True):
            codes = check_positions(ids.column, getattr(self, name), len(ids))
            object.__setattr__(self, name, np.ascontiguousarray(codes, dtype=np.int32))
        object.__setattr__(self, "value", _finite(self.value))
        if {self.user.shape, self.item.shape, self.time.shape, self.value.shape} != {(self.value.size,)}:
            raise InputError("the user, item, time and value of gains must be arrays of the same length.")
        if self.log is not None and self.log.catalog != self.catalog:
            raise InputError("the log of gains must have the catalog of the gains.")
        super().__post_init__()

    @classmethod
    def from_frame(
        cls, frame: Any, users: Any = None, items: Any = None, times: Any = None, *, name: str = "gain",
        kind: Kind | None = None,
    ) -> Gains:  # fmt: skip
        """Gains from a pandas, Polars or PyArrow frame.

        Parameters
        ----------
        frame : ``user_id, item_id, value``, optionally ``time``, or the research format (``idx_user, idx_item,
            idx_time, causal_effect``)
        users, items, times : a larger catalog in its order
        name : what the values are called in print
        kind : "effect" or "outcome", which the values are declared to be
        """
        rows = read_cells(tables.open_table(frame), (users, items, times), [VALUE], {"value": "causal_effect"})
        return cls(
            rows.catalog, rows.user, rows.item, rows.time, rows.numbers["value"], name, kind, timed=rows.timed,
            eligibility=rows.eligibility,
        )  # fmt: skip

    @classmethod
    def read(
        cls, path: str | os.PathLike[str], users: Any = None, items: Any = None, times: Any = None, *,
        name: str = "gain", kind: Kind | None = None,
    ) -> Gains:  # fmt: skip
        """Gains from Parquet or CSV: one file, a glob or a folder; see ``Log.read``."""
        return cls.from_frame(path, users, items, times, name=name, kind=kind)

    def __repr__(self) -> str:
        return (
            f"Gains({self.name}: {len(self):,} cells, {self.n_users:,} users, {self.n_items:,} items, "
            f"{self.n_times:,} times)"
        )

    @property
    def extreme(self) -> Mask | None:
        """Which rows of ``log`` lack overlap (P within 1e-3 of 0 or 1); None if that is not in question."""
        if self.log is None or self.log.propensity is None or self.kind == "outcome":
            return None
        return lacks_overlap(self.log.propensity)

    @cached_property
    def log_fingerprint(self) -> str | None:
        """The fingerprint of ``log``, computed when first asked for; None without a log."""
        return None if self.log is None else fingerprint(self.log)

    def where(self, keep: Callable[[Floats], Mask]) -> Gains:
        """The cells for whose values ``keep`` is true: ``gains.where(lambda value: value > 0)``."""
        try:
            mask = np.asarray(keep(self.value))
        except (TypeError, ValueError) as error:
            raise InputError(f"where needs a function of the values: {first_line(error)}.") from error
        if mask.dtype != np.bool_ or mask.shape != self.value.shape:
            raise InputError("where needs a function of the values that returns True or False for each of them.")
        return self._at(np.flatnonzero(mask))

    def within(self, log: Log) -> Gains:
        """The gains of the cells that are eligible in a log, measured over its visits; for a truth beside it."""
        check_instance("log", log, Log, LOG)
        if log.catalog != self.catalog:
            raise InputError("the log must have the catalog of the gains.")
        if log is self.log:
            return self
        rows = np.flatnonzero(log.eligibility.contains(self.user, self.item, self.time))
        return replace(self._at(rows), eligibility=log.eligibility)

    def _at(self, rows: Longs) -> Gains:
        """Some of the cells; without the estimator, whose sample they no longer are."""
        cells = {column: getattr(self, column)[rows] for column in ("user", "item", "time", "value")}
        return replace(self, **cells, estimator=None)

    def numbers(self) -> dict[str, Numbers | None]:
        return {"value": self.value}


def _estimated(log: Log, name: str, estimator: Estimator) -> Gains:
    """The rows that an estimator gives a value: with a control variate the treated ones, too."""
    rows = np.flatnonzero(log.outcome if estimator.variate is None else log.treated | log.outcome)
    return _of_rows(log, rows, estimator.values(log, rows), name, estimator)


def _of_rows(
    log: Log, rows: Longs, value: Floats, name: str, estimator: Estimator | None = None, kind: Kind = "effect"
) -> Gains:
    codes = (log.user[rows], log.item[rows], log.time[rows])
    return Gains(log.catalog, *codes, value, name, kind, log, estimator, timed=log.timed, eligibility=log.eligibility)


def _finite(values: Any) -> Floats:
    try:
        array = np.ascontiguousarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError("the values of gains must be numbers.") from error
    if not np.isfinite(array).all():
        wrong = array[~np.isfinite(array)]
        raise InputError(f"gains must be finite; wrong in {plural(len(wrong), 'cell')}, for example {wrong[0]}.")
    return array
