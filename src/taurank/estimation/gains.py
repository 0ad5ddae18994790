"""Gains: sparse values (user, item, time) that a ranking can be measured by.

The truth τ, the outcome Y and every estimate of τ are all gains; a metric never knows which it was given.
A cell without a row has gain 0. The truth comes from ``World.sample``; ``outcome``, ``naive``, ``ips`` and
``capped_ips`` make gains from a log. An absent row of a log has Y = 0, so its gain is 0 for all of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from taurank.data import sources
from taurank.data.cell_table import CellTable
from taurank.data.ids import Catalogue, Codes
from taurank.data.reader import ColumnRule, Numbers, read_cells
from taurank.errors import InputError

if TYPE_CHECKING:
    from taurank.data.log import Log

EXTREME = 1e-3  # a propensity this near to 0 or 1 leaves one arm without observations


def _not_finite(values: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    return ~np.isfinite(values)


RULES = (ColumnRule("value", np.float64, _not_finite, "finite numbers"),)


def outcome(log: Log) -> Gains:
    """The outcome itself: gain = Y. It makes P@k, DCG, AR and AUC of a metric."""
    bought = np.flatnonzero(log.outcome)
    return _of_rows(log, bought, np.ones(len(bought)), "outcome")


def naive(log: Log) -> Gains:
    """As if all cells had the mean propensity: Z·Y / mean(Z) − (1−Z)·Y / mean(1−Z), Eq. (tau_naive).

    The means go over all users · items · times, absent rows counted as untreated. Biased where
    recommendations follow taste.
    """
    mean = np.count_nonzero(log.treated) / log.catalogue.n_cells
    bought = np.flatnonzero(log.outcome)
    value = np.where(log.treated[bought], mean, mean - 1.0)  # never 0: a row of that arm exists
    overlap = None if log.propensity is None else Overlap.of(log, log.propensity)
    return _of_rows(log, bought, 1.0 / value, "naive", overlap)


def ips(log: Log) -> Gains:
    """Inverse propensity scoring: Z·Y / P − (1−Z)·Y / (1−P), Eq. (tau_IPS).

    Unbiased if P is right and strictly between 0 and 1 wherever something can happen.
    """
    return _weighted(log, log.recorded_propensity("IPS"), 0.0, 0.0, "ips")


def capped_ips(
    log: Log,
    cap: float | None = None,
    *,
    cap_treated: float | None = None,
    cap_control: float | None = None,
) -> Gains:
    """Capped IPS: Z·Y / max(P, χ^T) − (1−Z)·Y / max(1−P, χ^C).

    ``cap`` serves both arms; ``cap_treated`` (χ^T) and ``cap_control`` (χ^C) go before it. An arm without
    any cap is not capped. Less variance than ``ips``, for a bias that ``taurank.bounds.bias`` computes.
    """
    if cap is None and cap_treated is None and cap_control is None:
        raise InputError("capped IPS needs a cap: give cap, or cap_treated and cap_control.")
    caps = {"cap": cap, "cap_treated": cap_treated, "cap_control": cap_control}
    both, treated, control = (checked_cap(name, given) for name, given in caps.items())
    both = 0.0 if both is None else both
    return _weighted(
        log,
        log.recorded_propensity("capped IPS"),
        both if treated is None else treated,
        both if control is None else control,
        "capped_ips",
    )


@dataclass(frozen=True, eq=False)
class Overlap:
    """Which logged pairs had a propensity within 1e-3 of 0 or 1: one entry per row of the log.

    ``user`` and ``item`` are the log's own arrays, not copies. A pair with rows at several times is extreme
    if any of them is.
    """

    user: Codes
    item: Codes
    extreme: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, log: Log, propensity: npt.NDArray[np.float64]) -> Overlap:
        return cls(log.user, log.item, (propensity <= EXTREME) | (propensity >= 1.0 - EXTREME))


@dataclass(frozen=True, eq=False)
class Gains(CellTable):
    """Gains of cells, with the catalogue of the log they belong to.

    ``user, item, time`` are positions in the catalogue; ``name`` says what the values are ("truth",
    "outcome", "ips", …). Gains made by an estimator carry the ``overlap`` of their log.
    """

    catalogue: Catalogue
    user: Codes
    item: Codes
    time: Codes
    value: npt.NDArray[np.float64]
    name: str = "gain"
    timed: bool = True
    overlap: Overlap | None = None

    def __post_init__(self) -> None:
        for array in (self.user, self.item, self.time, self.value):
            array.flags.writeable = False

    @classmethod
    def from_frame(
        cls, frame: Any, users: Any = None, items: Any = None, times: Any = None, *, name: str = "gain"
    ) -> Gains:
        """Gains from a pandas, Polars or PyArrow frame with ``user_id, item_id, value``, optional ``time``.

        ``users``, ``items`` and ``times`` name a larger catalogue, and its order is kept. The research
        format (``idx_user, idx_item, idx_time, causal_effect``) is read too. ``name`` says what the values
        are; "outcome" makes AUC the area under the curve of binary outcomes.
        """
        return cls._from_source(sources.from_frame(frame), (users, items, times), {}, name)

    @classmethod
    def read(
        cls,
        path: str | os.PathLike[str],
        users: Any = None,
        items: Any = None,
        times: Any = None,
        id_types: Mapping[str, Any] | None = None,
        *,
        name: str = "gain",
    ) -> Gains:
        """Gains from Parquet or CSV: one file, a glob or a folder; see ``Log.read``."""
        return cls._from_source(sources.from_files(path), (users, items, times), id_types or {}, name)

    @classmethod
    def _from_source(
        cls, source: sources.Source, given: tuple[Any, Any, Any], id_types: Mapping[str, Any], name: str
    ) -> Gains:
        cells = read_cells(source, given, RULES, {"value": "causal_effect"}, id_types)
        codes = (cells.user, cells.item, cells.time)
        return cls(cells.catalogue, *codes, cells.numbers["value"], name, cells.timed)

    def __repr__(self) -> str:
        return (
            f"Gains({self.name}: {len(self):,} cells, {self.n_users:,} users, {self.n_items:,} items, "
            f"{self.n_times:,} times)"
        )

    def only(self, keep: Callable[[npt.NDArray[np.float64]], npt.NDArray[np.bool_]]) -> Gains:
        """The cells whose value ``keep`` says yes to."""
        rows = np.flatnonzero(keep(self.value))
        cells = (self.user[rows], self.item[rows], self.time[rows], self.value[rows])
        return Gains(self.catalogue, *cells, self.name, self.timed, self.overlap)

    def numbers(self) -> dict[str, Numbers | None]:
        return {"value": self.value}


def _weighted(
    log: Log,
    propensity: npt.NDArray[np.float64],
    cap_treated: float,
    cap_control: float,
    name: str,
) -> Gains:
    """1 / max(P, χ^T) where treated and bought, −1 / max(1−P, χ^C) where untreated and bought."""
    bought = np.flatnonzero(log.outcome)
    control, value = log.treated[bought] == 0, propensity[bought]
    np.subtract(1.0, value, out=value, where=control)  # in place: a log may hold most of the memory
    np.maximum(value, cap_treated, out=value, where=~control)
    np.maximum(value, cap_control, out=value, where=control)
    with np.errstate(over="ignore"):
        np.divide(1.0, value, out=value)
    if not np.isfinite(value).all():
        raise InputError("a propensity is too small to be inverted; give a cap, such as capped_ips(log, cap=0.01).")
    np.negative(value, out=value, where=control)
    return _of_rows(log, bought, value, name, Overlap.of(log, propensity))


def _of_rows(
    log: Log,
    rows: npt.NDArray[np.intp],
    value: npt.NDArray[np.float64],
    name: str,
    overlap: Overlap | None = None,
) -> Gains:
    codes = (log.user[rows], log.item[rows], log.time[rows])
    return Gains(log.catalogue, *codes, value, name, log.timed, overlap)


def checked_cap(name: str, cap: float | None) -> float | None:
    if cap is None:
        return None
    if isinstance(cap, bool) or not isinstance(cap, (int, float, np.integer, np.floating)):
        raise InputError(f"{name} must be a number between 0 and 1, not {cap!r}.")
    if not 0.0 <= cap <= 1.0:  # false for NaN as well
        raise InputError(f"{name} must lie between 0 and 1, not {cap}.")
    return float(cap)
