"""Overlap: can effects be learned from this log with these propensities?

A sparse log records the propensity only where something was shown or bought, so some checks need no more
than the log and others need the propensities of the absent cells. The first are always made; the second are
made where those propensities are known, and are otherwise called not identifiable instead of being guessed.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from taurank._validation import check_instance
from taurank.data import sources
from taurank.data.columns import PROPENSITY
from taurank.data.log import Log
from taurank.data.reader import read_cells
from taurank.errors import InputError, plural
from taurank.estimation.overlap import text
from taurank.estimation.overlap.figures import (
    ENOUGH_TREATED,
    HISTOGRAM_EDGES,
    Z_LIMIT,
    Arm,
    Bin,
    Figures,
    Margin,
    Total,
)
from taurank.estimation.overlap.findings import Finding, find
from taurank.estimation.propensities.calibration import pair_strata
from taurank.estimation.thresholds import almost_always, almost_never, lacks_overlap

if TYPE_CHECKING:
    import pandas as pd

Floats = npt.NDArray[np.float64]

AGREE = 1e-6  # largest difference between the log's propensity of a cell and that in ``cells``
TINY = 1e-100  # smaller propensities count as this one in sums, whose squares stay finite then
N_BINS = 10  # calibration bins, of equal numbers of cells
CURVE_POINTS = 101
BLOCK_ROWS = 1 << 20


@dataclass(frozen=True)
class Diagnosis(Figures):
    """What a log says about its propensities: figures, and the findings that follow from them.

    ``level`` is "good", "caution" or "poor", ``verdict`` the findings as sentences. ``control_total`` and
    ``bins`` are None where the log does not identify them.
    """

    findings: tuple[Finding, ...]

    @property
    def level(self) -> str:
        """The level of the worst finding: "good", "caution" or "poor"."""
        return self.findings[0].level

    @property
    def verdict(self) -> str:
        """The findings as sentences, the worst first."""
        return text.verdict(self.findings)

    def to_frame(self) -> pd.DataFrame:
        """One row per check: ``check, value, expected, reading`` (NaN: not identifiable, or none)."""
        return text.frame(self)

    def to_dict(self) -> dict[str, Any]:
        """Everything as numbers, texts and lists, fit for JSON."""
        numbers: dict[str, Any] = _listed(asdict(self))
        numbers["findings"] = [finding._asdict() for finding in self.findings]
        numbers["pairs"] = [stratum._asdict() for stratum in self.pairs]
        shares = {"always_share": self.always_share, "never_share": self.never_share}
        stated = {"level": self.level, "verdict": self.verdict, "n_cells": self.n_cells}
        return {**stated, **shares, **numbers, "histogram_edges": list(HISTOGRAM_EDGES)}

    def write_html(self, path: str | os.PathLike[str]) -> None:
        """One page: the verdict, what to do now, charts, figures and what they mean; works offline."""
        from taurank import report

        report.require()
        from taurank.estimation.overlap.page import write_html

        write_html(self, self.findings, path)

    def __str__(self) -> str:
        columns = shutil.get_terminal_size().columns
        return text.text(self, self.findings, width=min(max(columns, 60), 120))


def diagnose(log: Log, cells: Any = None) -> Diagnosis:
    """What the log says about overlap and about its propensities.

    Always: Σ_treated 1/P against users · items · times (its variance Σ_cells (1−P)/P is estimated by
    Σ_treated (1−P)/P²), and the same for each user and each item; Kish's effective number (Σw)²/Σw² of the
    purchases of each arm; the share of purchases, and of their weight, with P within 1e-3 of 0 or 1. In a log with
    several times also Σ_treated 1/P over the cells whose pair was shown before.

    Where the propensities of absent cells are known: Σ_control 1/(1−P) against the number of cells, and the
    share treated per bin of P. They are known if the log has a row for every cell, or from ``cells``: a
    frame or a file with ``user_id, item_id, propensity`` and the log's ``time``, for all cells or for some
    that were chosen without regard to treatment (see ``sample_cells`` of a model from ``taurank.propensity.fit``).
    """
    check_instance("log", log, Log, "Log.from_frame or Log.read")
    figures = _measure(log, log.recorded_propensity("diagnose"), cells)
    measured = {field.name: getattr(figures, field.name) for field in fields(figures)}
    return Diagnosis(**measured, findings=find(figures))


def _measure(log: Log, propensity: Floats, cells: Any) -> Figures:
    known = _known_cells(log, propensity, cells)
    treated = propensity[log.treated == 1]
    return Figures(
        n_rows=len(log),
        n_users=log.n_users,
        n_items=log.n_items,
        n_times=log.n_times,
        n_treated=len(treated),
        treated=_arm("treated", log, propensity, 1),
        control=_arm("control", log, propensity, 0),
        smallest_treated=float(treated.min(initial=1.0)),
        treated_total=_treated_total(log, propensity),
        users=_margin("users", log, propensity, log.user, _cells_by_user(log)),
        items=_margin("items", log, propensity, log.item, _cells_by_item(log)),
        control_total=None if known is None else _control_total(*known),
        bins=None if known is None else _bins(*known),
        pairs=pair_strata(log, treated),
    )


def _arm(name: str, log: Log, propensity: Floats, arm: int) -> Arm:
    rows = np.flatnonzero((log.outcome == 1) & (log.treated == arm))
    p = np.maximum(propensity[rows], TINY)
    weight = 1.0 / p if arm else 1.0 / (1.0 - p)
    near = lacks_overlap(p)
    total = float(weight.sum())
    log_odds = np.clip(np.log10(p) - np.log10(1.0 - p), HISTOGRAM_EDGES[0], HISTOGRAM_EDGES[-1])
    return Arm(
        name=name,
        purchases=len(rows),
        effective=_kish(weight),
        always=int(np.count_nonzero(almost_always(p))),
        never=int(np.count_nonzero(almost_never(p))),
        near_weight=float(weight[near].sum()) / total if len(rows) else 0.0,
        largest_weight=float(weight.max()) if len(rows) else 0.0,
        histogram=tuple(np.histogram(log_odds, HISTOGRAM_EDGES)[0].tolist()),
        curve=_concentration(weight),
    )


def _kish(weight: Floats) -> float:
    """(Σw)² / Σw², over the largest weight so that nothing overflows."""
    if not len(weight):
        return 0.0
    share = weight / weight.max()
    return float(share.sum() ** 2 / (share**2).sum())


def _concentration(weight: Floats) -> tuple[float, ...]:
    """Which share of the weight the heaviest 0 %, 1 %, … 100 % carry."""
    if not len(weight):
        return ()
    heaviest = np.concatenate([[0.0], np.cumsum(np.sort(weight)[::-1])])
    at = np.linspace(0, len(weight), CURVE_POINTS)
    shares = np.interp(at, np.arange(len(heaviest)), heaviest) / heaviest[-1]
    return tuple(shares.tolist())


def _treated_total(log: Log, propensity: Floats) -> Total:
    total = variance = 0.0
    for start in range(0, len(log), BLOCK_ROWS):
        rows = slice(start, start + BLOCK_ROWS)
        p = np.maximum(propensity[rows][log.treated[rows] == 1], TINY)
        total += float((1.0 / p).sum())
        variance += float(((1.0 - p) / p**2).sum())
    n_cells = log.cells
    return Total(n_cells, total / n_cells, float(np.sqrt(variance)) / n_cells)


def _cells_by_user(log: Log) -> npt.NDArray[Any]:
    return log.eligibility.cells_by_user


def _cells_by_item(log: Log) -> npt.NDArray[Any]:
    return log.eligibility.cells_by_item


def _margin(name: str, log: Log, propensity: Floats, code: npt.NDArray[np.int32], cells: npt.NDArray[Any]) -> Margin:
    """For how many users or items Σ 1/P over their treated cells is far from the number of their cells."""
    n = len(cells)
    sums = np.zeros((3, n))  # treated cells, Σ 1/P, Σ (1−P)/P²
    for start in range(0, len(log), BLOCK_ROWS):
        rows = start + np.flatnonzero(log.treated[start : start + BLOCK_ROWS])
        p = np.maximum(propensity[rows], TINY)
        for row, values in enumerate((np.ones_like(p), 1.0 / p, (1.0 - p) / p**2)):
            sums[row] += np.bincount(code[rows], values, n)
    enough = sums[0] >= ENOUGH_TREATED
    treated, total, variance = sums[:, enough]
    far = np.abs(total - cells[enough]) > Z_LIMIT * np.sqrt(variance)
    return Margin(name, len(treated), int(np.count_nonzero(far)))


def _control_total(propensity: Floats, treated: npt.NDArray[np.int8]) -> Total:
    """Σ_control 1/(1−P) per cell; all propensities are known, and so is its variance Σ_cells P/(1−P)."""
    total = variance = 0.0
    for start in range(0, len(propensity), BLOCK_ROWS):
        p, z = propensity[start : start + BLOCK_ROWS], treated[start : start + BLOCK_ROWS]
        total += float((1.0 / (1.0 - p[z == 0])).sum())
        variance += float((p / (1.0 - p)).sum())
    return Total(len(propensity), total / len(propensity), float(np.sqrt(variance)) / len(propensity))


def _bins(propensity: Floats, treated: npt.NDArray[np.int8]) -> tuple[Bin, ...]:
    edges = np.unique(np.quantile(propensity, np.linspace(0.0, 1.0, N_BINS + 1)))
    inner = edges[1:-1]
    sums = np.zeros((4, max(len(edges) - 1, 1)))
    for start in range(0, len(propensity), BLOCK_ROWS):
        p, z = propensity[start : start + BLOCK_ROWS], treated[start : start + BLOCK_ROWS]
        bin_of = np.searchsorted(inner, p, side="right")
        for row, values in enumerate((np.ones_like(p), p, z.astype(np.float64), p * (1.0 - p))):
            sums[row] += np.bincount(bin_of, values, sums.shape[1])
    low, high = (edges[:-1], edges[1:]) if len(edges) > 1 else (edges, edges)
    return tuple(
        Bin(float(a), float(b), int(n), float(p / n), float(z / n), float(np.sqrt(v)) / float(n))
        for a, b, (n, p, z, v) in zip(low, high, sums.T, strict=True)
        if n
    )


def _known_cells(log: Log, propensity: Floats, cells: Any) -> tuple[Floats, npt.NDArray[np.int8]] | None:
    """Propensity and treatment of cells that were not chosen by what happened there, if there are such."""
    if cells is not None:
        return _given_cells(log, propensity, cells)
    return (propensity, log.treated) if len(log) == log.cells else None


def _given_cells(log: Log, propensity: Floats, cells: Any) -> tuple[Floats, npt.NDArray[np.int8]]:
    is_path = isinstance(cells, (str, os.PathLike))
    source = sources.from_files(cells) if is_path else sources.from_frame(cells)
    ids = (log.users.values, log.items.values, log.times.values)
    given = read_cells(source, ids, [replace(PROPENSITY, required=True)])
    key = log.catalog.cell_index(given.user, given.item, given.time)
    order = np.argsort(key)
    key, p = key[order], given.numbers["propensity"][order]
    treated = np.zeros(len(key), np.int8)
    different = 0
    for start in range(0, len(log), BLOCK_ROWS):
        rows = slice(start, start + BLOCK_ROWS)
        own = log.catalog.cell_index(log.user[rows], log.item[rows], log.time[rows])
        nearest = np.minimum(np.searchsorted(key, own), len(key) - 1)
        given_too = key[nearest] == own
        treated[nearest[given_too]] = log.treated[rows][given_too]
        gap = np.abs(p[nearest[given_too]] - propensity[rows][given_too])
        different += int(np.count_nonzero(gap > AGREE))
    if different:
        raise InputError(
            f"column 'propensity': {plural(different, 'given cell')} {'differs' if different == 1 else 'differ'} "
            "from the propensity in the log; both must come from the same model or record."
        )
    return p, treated


def _listed(value: Any) -> Any:
    """Tuples as lists, all the way down."""
    if isinstance(value, dict):
        return {key: _listed(part) for key, part in value.items()}
    return [_listed(part) for part in value] if isinstance(value, (list, tuple)) else value
