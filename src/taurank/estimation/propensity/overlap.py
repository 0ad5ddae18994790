"""Overlap: can effects be learned from this log with these propensities?

A sparse log records the propensity only where something was shown or bought, so some checks need no more
than the log and others need the propensities of the absent cells. The first are always made; the second are
made where those propensities are known, and are otherwise called not identifiable instead of being guessed.

Every sentence of a diagnosis follows from a figure and a threshold below; none claims more than the log shows.
"""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from taurank._checks import check_instance
from taurank._types import Bits, Codes, Floats, Longs
from taurank.data import tables
from taurank.data.log import Log
from taurank.data.reader import PROPENSITY, read_cells
from taurank.errors import InputError, plural
from taurank.estimation.estimators import NEAR, almost_always, almost_never, lacks_overlap
from taurank.estimation.propensity.calibration import ENOUGH, PairCalibration, PairStratum, pair_strata

if TYPE_CHECKING:
    import pandas as pd

N_BINS = 10  # calibration bins, of equal numbers of cells
CURVE_POINTS = 101
HISTOGRAM_EDGES = tuple(np.linspace(-6.0, 6.0, 49).tolist())  # log10 of the odds of P
AGREE = 1e-6  # largest difference between the log's propensity of a cell and that in ``cells``
TINY = 1e-100  # smaller propensities count as this one in sums, whose squares stay finite then

Z_LIMIT = 3.0  # z-score above which a difference counts
ENOUGH_TREATED = 50  # treated cells a user or item needs for a check of its own
NAMED_SHARE = 0.05  # purchases without overlap are reported from this share on …
POOR_SHARE = 0.2  # … and those of items always shown make the overlap poor from this one on
POOR_EFFECTIVE = 30  # effective purchases of an arm: poor below this …
FEW_EFFECTIVE = 100  # … and a caution below this
LOW_EFFICIENCY = 0.1  # effective purchases per purchase
RATIO_SLACK = 0.05  # a sum of weights this close to the number of cells is close enough
NOISY_ERROR = 0.1  # a sum of weights with a larger standard error checks nothing
FAR_SHARE = 0.05  # users or items whose own sum of weights is far off …
CHANCE_FAR = 0.0027  # … and how many are by chance: the normal distribution beyond Z_LIMIT
BIN_SLACK = 0.02  # a bin's share treated this close to its mean propensity is close enough

LEVELS = ("good", "caution", "poor")
COLUMNS = ("check", "value", "expected", "reading")

_RANDOMIZE = "Recommend at random to a small share of users, so that every item is sometimes shown and sometimes not."
_RECORD = (
    "Record the propensities when recommending, or estimate them with the exposure model: "
    "taurank propensity estimate LOG --replace --out FILE."
)
_CAP = "Cap the weights: gains.doubly_robust(log, cap=0.01), and DLCE with a cap."
_COLLECT = "Collect more data before comparing methods: more users, more times, or more recommendations."
_OK = "Overlap looks fine: fit a causal learner such as DLCE and measure it with evaluate(model, log)."


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
    propensity = log.recorded_propensity("diagnose")
    rows = np.flatnonzero(log.treated)
    treated = propensity[rows]
    by_user, by_item = _sums(log.user[rows], log.n_users, treated), _sums(log.item[rows], log.n_items, treated)
    known = _known_cells(log, propensity, cells)
    return Diagnosis(
        n_rows=len(log),
        n_users=log.n_users,
        n_items=log.n_items,
        n_times=log.n_times,
        n_treated=len(rows),
        treated=_arm("treated", log, propensity, 1),
        control=_arm("control", log, propensity, 0),
        smallest_treated=float(treated.min(initial=1.0)),
        treated_total=Total.of(log.cells, float(by_user[1].sum()), float(by_user[2].sum())),
        users=_margin("users", by_user, log.eligibility.cells_by_user),
        items=_margin("items", by_item, log.eligibility.cells_by_item),
        control_total=None if known is None else _control_total(*known),
        bins=None if known is None else _bins(*known),
        pairs=pair_strata(log, treated),
    )


@dataclass(frozen=True)
class Arm:
    """The purchases (outcome = 1) of one arm, weighted by w = 1/P if treated, 1/(1−P) if not."""

    name: str
    purchases: int
    effective: float  # Kish: (Σw)² / Σw²
    always: int  # purchases with P ≥ 1 − NEAR
    never: int  # purchases with P ≤ NEAR
    near_weight: float  # share of the weight of the purchases with P within NEAR of 0 or 1
    largest_weight: float
    histogram: tuple[int, ...]  # purchases between the HISTOGRAM_EDGES
    curve: tuple[float, ...]  # share of the weight that the heaviest 0%, 1%, … 100% carry

    @property
    def near_share(self) -> float:
        """Share of the purchases with P within NEAR of 0 or 1."""
        return (self.always + self.never) / self.purchases if self.purchases else 0.0


@dataclass(frozen=True)
class Total:
    """A sum of weights divided by the number of cells: 1 up to its standard error if P is right."""

    cells: int
    ratio: float
    error: float

    @classmethod
    def of(cls, cells: int, total: float, variance: float) -> Total:
        return cls(cells, total / cells, float(np.sqrt(variance)) / cells)

    @property
    def z(self) -> float:
        """How many standard errors the ratio is away from 1."""
        return (self.ratio - 1.0) / self.error if self.error > 0 else 0.0

    @property
    def far(self) -> bool:
        return abs(self.z) > Z_LIMIT and abs(self.ratio - 1) > RATIO_SLACK

    @property
    def reading(self) -> str:
        spread = f"± {self.error:.2g}, z = {self.z:+.1f}"
        if self.far:
            return f"does not fit ({spread})"
        if self.error > NOISY_ERROR:
            return f"inconclusive, too noisy ({spread})"
        return f"{'fits' if abs(self.z) <= Z_LIMIT else 'close enough'} ({spread})"


@dataclass(frozen=True)
class Margin:
    """The same sum for each user, or each item, with enough treated cells: how many are far from 1."""

    name: str
    checked: int
    far: int  # more than Z_LIMIT standard errors away

    @property
    def far_share(self) -> float:
        return self.far / self.checked if self.checked else float("nan")


@dataclass(frozen=True)
class Bin:
    """Cells with like propensities: their mean propensity against the share of them that was treated."""

    low: float
    high: float
    cells: int
    propensity: float
    treated: float
    error: float

    @property
    def gap(self) -> float:
        return self.treated - self.propensity

    @property
    def z(self) -> float:
        """How many standard errors the share treated is away from the mean propensity."""
        return self.gap / self.error if self.error > 0 else 0.0


class Finding(NamedTuple):
    """One statement about a log: "good", "caution" or "poor", a sentence, and what to do now."""

    level: str
    sentence: str
    advice: str


class Check(NamedTuple):
    """A row of the table; NaN marks a value that is not identifiable, or not expected."""

    check: str
    value: float
    expected: float
    reading: str
    is_share: bool = False

    def formatted(self) -> tuple[str, str, str, str]:
        write = _percent if self.is_share else _number
        value, expected = ("" if v != v else write(v) for v in (self.value, self.expected))
        return self.check, value, expected, self.reading


@dataclass(frozen=True)
class Diagnosis:
    """What a log says about its propensities: figures, and the findings that follow from them.

    ``control_total`` and ``bins`` are None where the log does not identify them.
    """

    n_rows: int
    n_users: int
    n_items: int
    n_times: int
    n_treated: int
    treated: Arm
    control: Arm
    smallest_treated: float  # the smallest propensity of a treated cell; 1 if there is none
    treated_total: Total
    users: Margin
    items: Margin
    control_total: Total | None
    bins: tuple[Bin, ...] | None
    pairs: tuple[PairStratum, ...]  # by past exposures of the pair; none for a log with a single time

    @property
    def n_cells(self) -> int:
        """The cells that could have been recommended."""
        return self.treated_total.cells

    @property
    def n_purchases(self) -> int:
        return self.treated.purchases + self.control.purchases

    @property
    def always_share(self) -> float:
        """Share of all purchases that were of items this user is always shown (P ≥ 1 − NEAR)."""
        return (self.treated.always + self.control.always) / max(self.n_purchases, 1)

    @property
    def never_share(self) -> float:
        """Share of all purchases that were of items this user is almost never shown (P ≤ NEAR)."""
        return (self.treated.never + self.control.never) / max(self.n_purchases, 1)

    @property
    def smallest_chance(self) -> float:
        """At most so likely is a treated cell with a propensity as small as the smallest one (union bound)."""
        return min(self.smallest_treated * self.n_cells, 1.0)

    @cached_property
    def findings(self) -> tuple[Finding, ...]:
        """All findings, the worst first; a log without problems has one good finding."""
        return tuple(sorted(_problems(self), key=lambda one: -LEVELS.index(one.level))) or (_good(self),)

    @property
    def level(self) -> str:
        """The level of the worst finding: "good", "caution" or "poor"."""
        return self.findings[0].level

    @property
    def verdict(self) -> str:
        """The findings as sentences, the worst first."""
        return " ".join(finding.sentence for finding in self.findings)

    @property
    def advice(self) -> list[str]:
        """What to do now, each thing once."""
        return list(dict.fromkeys(finding.advice for finding in self.findings))

    @property
    def checks(self) -> list[Check]:
        """The rows of the table."""
        return list(_checks(self))

    @property
    def size(self) -> str:
        """How large the log is, in one sentence."""
        which = "cells" if self.n_cells == self.n_users * self.n_items * self.n_times else "eligible cells"
        return (
            f"{self.n_rows:,} rows of {self.n_cells:,} {which} ({self.n_users:,} users × {self.n_items:,} items × "
            f"{self.n_times:,} times); {self.n_treated:,} treated, {self.n_purchases:,} purchases."
        )

    def to_frame(self) -> pd.DataFrame:
        """One row per check: ``check, value, expected, reading`` (NaN: not identifiable, or none)."""
        import pandas as pd

        frame = pd.DataFrame([check[:4] for check in self.checks], columns=list(COLUMNS))
        return frame.astype({"value": "float64", "expected": "float64"})

    def to_dict(self) -> dict[str, Any]:
        """Everything, fit for JSON."""
        return {
            "level": self.level,
            "verdict": self.verdict,
            "n_cells": self.n_cells,
            "always_share": self.always_share,
            "never_share": self.never_share,
            **asdict(self),
            "findings": [finding._asdict() for finding in self.findings],
            "pairs": [stratum._asdict() for stratum in self.pairs],
            "histogram_edges": list(HISTOGRAM_EDGES),
        }

    def __str__(self) -> str:
        width = min(max(shutil.get_terminal_size().columns, 60), 120)
        lines = [*textwrap.wrap(f"{self.level.upper()}: {self.verdict}", width), "", "What to do now:"]
        for one in self.advice:
            lines += textwrap.wrap(one, width, initial_indent="- ", subsequent_indent="  ", break_on_hyphens=False)
        return "\n".join([*lines, "", *textwrap.wrap(self.size, width), "", *_table(self.checks, width)])


# ---- what is measured ----------------------------------------------------------------------------------------------


def _arm(name: str, log: Log, propensity: Floats, arm: int) -> Arm:
    p = np.maximum(propensity[(log.outcome == 1) & (log.treated == arm)], TINY)
    if not len(p):
        return Arm(name, 0, 0.0, 0, 0, 0.0, 0.0, (0,) * (len(HISTOGRAM_EDGES) - 1), ())
    weight = 1.0 / p if arm else 1.0 / (1.0 - p)
    share = weight / weight.max()  # so that no square overflows
    log_odds = np.clip(np.log10(p) - np.log10(1.0 - p), HISTOGRAM_EDGES[0], HISTOGRAM_EDGES[-1])
    heaviest = np.concatenate([[0.0], np.cumsum(np.sort(weight)[::-1])])
    curve = np.interp(np.linspace(0, len(p), CURVE_POINTS), np.arange(len(heaviest)), heaviest) / heaviest[-1]
    return Arm(
        name=name,
        purchases=len(p),
        effective=float(share.sum() ** 2 / (share**2).sum()),
        always=int(np.count_nonzero(almost_always(p))),
        never=int(np.count_nonzero(almost_never(p))),
        near_weight=float(weight[lacks_overlap(p)].sum() / weight.sum()),
        largest_weight=float(weight.max()),
        histogram=tuple(np.histogram(log_odds, HISTOGRAM_EDGES)[0].tolist()),
        curve=tuple(curve.tolist()),
    )


def _sums(code: Codes, n: int, propensity: Floats) -> Floats:
    """By user or item over treated rows: their number, Σ 1/P and its variance Σ (1−P)/P²."""
    p = np.maximum(propensity, TINY)
    return np.stack([np.bincount(code, values, n) for values in (np.ones_like(p), 1.0 / p, (1.0 - p) / p**2)])


def _margin(name: str, sums: Floats, cells: Longs) -> Margin:
    """For how many users or items Σ 1/P over their treated cells is far from the number of their cells."""
    enough = sums[0] >= ENOUGH_TREATED
    _, total, variance = sums[:, enough]
    far = np.abs(total - cells[enough]) > Z_LIMIT * np.sqrt(variance)
    return Margin(name, int(np.count_nonzero(enough)), int(np.count_nonzero(far)))


def _control_total(p: Floats, treated: Bits) -> Total:
    """Σ_control 1/(1−P) per cell; all propensities are known, and so is its variance Σ_cells P/(1−P)."""
    return Total.of(len(p), float((1.0 / (1.0 - p[treated == 0])).sum()), float((p / (1.0 - p)).sum()))


def _bins(p: Floats, treated: Bits) -> tuple[Bin, ...]:
    edges = np.unique(np.quantile(p, np.linspace(0.0, 1.0, N_BINS + 1)))
    bin_of = np.searchsorted(edges[1:-1], p, side="right")
    count, *sums = (np.bincount(bin_of, values) for values in (np.ones_like(p), p, treated, p * (1.0 - p)))
    low, high = (edges[:-1], edges[1:]) if len(edges) > 1 else (edges, edges)
    return tuple(
        Bin(float(a), float(b), int(n), float(q / n), float(z / n), float(np.sqrt(v) / n))
        for a, b, n, q, z, v in zip(low, high, count, *sums, strict=True)
        if n
    )


def _known_cells(log: Log, propensity: Floats, cells: Any) -> tuple[Floats, Bits] | None:
    """Propensity and treatment of cells that were not chosen by what happened there, if there are such."""
    if cells is None:
        return (propensity, log.treated) if len(log) == log.cells else None
    source = tables.open_table(cells)
    ids = (log.users.values, log.items.values, log.times.values)
    given = read_cells(source, ids, [replace(PROPENSITY, required=True)])
    key = log.catalog.cell_index(given.user, given.item, given.time)
    order = np.argsort(key)
    key, p, treated = key[order], given.numbers["propensity"][order], np.zeros(len(key), np.int8)
    own = log.catalog.cell_index(log.user, log.item, log.time)
    at = np.minimum(np.searchsorted(key, own), len(key) - 1)
    both = key[at] == own
    treated[at[both]] = log.treated[both]
    different = int(np.count_nonzero(np.abs(p[at[both]] - propensity[both]) > AGREE))
    if different:
        raise InputError(
            f"column 'propensity': {plural(different, 'given cell')} {'differs' if different == 1 else 'differ'} "
            "from the propensity in the log; both must come from the same model or record."
        )
    return p, treated


# ---- what it means -------------------------------------------------------------------------------------------------


def _problems(d: Diagnosis) -> Iterator[Finding]:
    always, never = d.always_share, d.never_share
    if always >= NAMED_SHARE:
        yield Finding(
            "poor" if always >= POOR_SHARE else "caution",
            f"{_percent(always)} of the purchases were of items this user is always shown (propensity {1 - NEAR} or "
            "more): effects there cannot be estimated from this log.",
            _RANDOMIZE,
        )
    if never >= NAMED_SHARE:
        yield Finding(
            "caution",
            f"{_percent(never)} of the purchases were of items this user is almost never shown (propensity {NEAR} or "
            f"less): the effect of showing them is estimated from few rows with weights of {1 / NEAR:,.0f} or more.",
            _CAP,
        )
    for arm in (d.treated, d.control):
        level = "poor" if arm.effective < POOR_EFFECTIVE else "caution"
        who = f"The {arm.purchases:,} {arm.name} purchases"
        if not arm.purchases:
            yield Finding("poor", f"There is no {arm.name} purchase: nothing can be compared.", _COLLECT)
        elif arm.effective < LOW_EFFICIENCY * arm.purchases:
            worth = f"carry the information of only {_number(arm.effective)}"
            yield Finding(level, f"{who} {worth}: a few heavy weights decide every estimate.", _CAP)
        elif arm.effective < FEW_EFFECTIVE:
            yield Finding(level, f"{who} are few (effective: {_number(arm.effective)}).", _COLLECT)
    if d.smallest_chance < CHANCE_FAR:  # one tiny propensity makes every standard error huge, but says enough
        yield Finding(
            "poor",
            f"A cell with propensity {d.smallest_treated:.2g} was treated; among {d.n_cells:,} cells the "
            f"chance of that is below {d.smallest_chance:.2g}: the propensities do not fit.",
            _RECORD,
        )
    yield from _total("treated", "P", d.treated_total)
    for margin in (d.users, d.items):
        if margin.far_share > FAR_SHARE:
            yield Finding(
                "poor",
                f"For {_percent(margin.far_share)} of the {margin.name} the sum of 1/P over the treated cells is "
                "far from the number of cells: the propensities do not fit.",
                _RECORD,
            )
    pairs = PairCalibration(d.pairs)
    if not pairs.holds:
        yield Finding("poor", f"{pairs.sentence} Estimates of effects with them are wrong.", _RECORD)
    if d.control_total is not None:
        yield from _total("control", "(1 − P)", d.control_total)
    wrong = [b for b in d.bins or () if abs(b.z) > Z_LIMIT and abs(b.gap) > BIN_SLACK]
    if wrong:
        worst = max(wrong, key=lambda b: abs(b.gap))
        yield Finding(
            "poor",
            f"In {len(wrong)} of {len(d.bins or ())} bins the propensity is off by more than {BIN_SLACK}; the worst "
            f"bin has a mean propensity of {worst.propensity:.3f} and a share treated of {worst.treated:.3f}.",
            _RECORD,
        )


def _total(arm: str, weight: str, total: Total) -> Iterator[Finding]:
    sum_of = f"The sum of 1/{weight} over the {arm} cells is {total.ratio:.3g} times the number of cells"
    if total.far:
        too = "small" if total.ratio > 1 else "large"
        rare = ", or many cells are shown so rarely that no treated row represents them"
        sentence = f"{sum_of} and should be 1: the propensities do not fit, those of {arm} cells seem too {too}"
        yield Finding("poor", f"{sentence}{rare if arm == 'treated' and total.ratio < 1 else ''}.", _RECORD)
    elif total.error > NOISY_ERROR:
        yield Finding("caution", f"{sum_of} with a standard error of {total.error:.2g}: too noisy a check.", _COLLECT)


def _good(d: Diagnosis) -> Finding:
    inside, treated, control = 1 - d.always_share - d.never_share, d.treated, d.control
    sentence = (
        f"Overlap is good: {_percent(inside)} of the purchases are of items this user is sometimes shown and "
        f"sometimes not; weighted, the {treated.purchases:,} treated purchases carry the information of "
        f"{treated.effective:,.0f}, the {control.purchases:,} control purchases that of {control.effective:,.0f}."
    )
    return Finding("good", sentence, _OK)


def _checks(d: Diagnosis) -> Iterator[Check]:
    nan = float("nan")
    yield Check("Σ 1/P over treated cells, per cell", d.treated_total.ratio, 1.0, d.treated_total.reading)
    for margin in (d.users, d.items):
        reading = f"by {Z_LIMIT:g} errors, of {margin.checked:,} with {ENOUGH_TREATED} treated or more"
        yield Check(f"Σ 1/P far off, {margin.name}", margin.far_share, CHANCE_FAR, reading, True)
    for one in d.pairs:
        reading = "does not fit" if one.far else "fits" if one.treated >= ENOUGH else "too few treated cells"
        yield Check(f"Σ 1/P, {one.past}", one.ratio, 1.0, f"{reading} (± {one.error:.2g})")
    sum_check, gap_check = "Σ 1/(1−P) over control cells, per cell", "largest gap of a bin of P"
    if d.control_total is None or d.bins is None:
        yield Check(sum_check, nan, 1.0, "not identifiable from this log")
        yield Check(gap_check, nan, 0.0, "not identifiable from this log")
    else:
        worst = max(d.bins, key=lambda b: abs(b.gap))
        reading = f"mean P {worst.propensity:.3f}, share treated {worst.treated:.3f} (z = {worst.z:+.1f})"
        yield Check(sum_check, d.control_total.ratio, 1.0, d.control_total.reading)
        yield Check(gap_check, worst.gap, 0.0, reading)
    for arm in (d.treated, d.control):
        who, near = f"{arm.name} purchases", f"P within {NEAR} of 0 or 1"
        each = arm.effective / arm.purchases if arm.purchases else 0.0
        yield Check(who, arm.purchases, nan, f"largest weight {_number(arm.largest_weight)}")
        yield Check(f"{who}, effective", arm.effective, arm.purchases, f"{_percent(each)} of them (Kish)")
        yield Check(f"{who}, near 0 or 1", arm.near_share, nan, near, True)
        yield Check(f"{who}, weight near 0 or 1", arm.near_weight, nan, near, True)
    yield Check("purchases of items always shown", d.always_share, nan, f"P {1 - NEAR} or more", True)
    yield Check("purchases of items almost never shown", d.never_share, nan, f"P {NEAR} or less", True)
    reading = f"chance of it below {d.smallest_chance:.2g}" if d.smallest_chance < CHANCE_FAR else ""
    yield Check("smallest P of a treated cell", d.smallest_treated, nan, reading)


def _table(checks: list[Check], width: int) -> list[str]:
    """The checks as lines; a reading that does not fit beside its check goes below it."""
    rows = [COLUMNS, *(check.formatted() for check in checks)]
    a, b, c = (max(len(row[k]) for row in rows) for k in range(3))
    beside = a + b + c + 6 + max(len(row[3]) for row in rows) <= width
    lines = []
    for k, (check, value, expected, reading) in enumerate(rows):
        left = f"{check:<{a}}  {value:>{b}}  {expected:>{c}}"
        lines.append(f"{left}  {reading}".rstrip() if beside else left.rstrip())
        if k and not beside:
            lines += textwrap.wrap(reading, width, initial_indent="    ", subsequent_indent="    ")
    return lines


def _percent(share: float) -> str:
    if 0.0 < share < 0.001:
        return "< 0.1%"
    return f"{100 * share:.{0 if 0.1 <= share < 0.995 or share in (0, 1) else 1}f}%"


def _number(value: float) -> str:
    if abs(value) >= 1e9:
        return f"{value:.3g}"
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.4g}"
