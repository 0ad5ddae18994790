"""Overlap: can effects be learned from this log with these propensities?

A sparse log records the propensity only where something was shown or bought, so some checks need no more
than the log and others need the propensities of the absent cells. The first are always made; the second are
made where those propensities are known, and are otherwise called not identifiable instead of being guessed.

Propensities can be right on average for every user, item and time and wrong for every pair. Exposure is
autocorrelated within a pair, so cells are told apart by how often their pair was shown *before* their time: over the
treated cells of such a stratum Σ 1/P is, on average, the number of its cells, which the log determines.

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

from taurank._checks import check_instance, generator
from taurank._types import Bits, Codes, Floats, Longs
from taurank.data import tables
from taurank.data.log import Log
from taurank.data.reader import PROPENSITY, read_cells
from taurank.errors import InputError, plural
from taurank.estimation.estimators import NEAR, almost_always, almost_never, lacks_overlap
from taurank.estimation.propensity.cells import MAX_CELLS, PairHistory

if TYPE_CHECKING:
    import pandas as pd

N_BINS = 10  # calibration bins, of equal numbers of cells
CURVE_POINTS = 101
HISTOGRAM_EDGES = tuple(np.linspace(-6.0, 6.0, 49).tolist())  # log10 of the odds of P
AGREE = 1e-6  # largest difference between the log's propensity of a cell and that in ``cells``
TINY = 1e-100  # smaller propensities count as this one in sums, whose squares stay finite then

Z_LIMIT = 3.0  # z-score above which a difference counts
ENOUGH = 50  # treated cells a user, an item or a stratum needs for a check of its own
NAMED_SHARE = 0.05  # purchases without overlap are reported from this share on …
POOR_SHARE = 0.2  # … and those of items always shown make the overlap poor from this one on
POOR_EFFECTIVE = 30  # effective purchases of an arm: poor below this …
FEW_EFFECTIVE = 100  # … and a caution below this
LOW_EFFICIENCY = 0.1  # effective purchases per purchase
RATIO_SLACK = 0.05  # a sum of weights this close to the number of cells is close enough
PAIR_SLACK = 0.25  # the same within a stratum of pairs
NOISY_ERROR = 0.1  # a sum of weights with a larger standard error checks nothing
FAR_SHARE = 0.05  # users or items whose own sum of weights is far off …
CHANCE_FAR = 0.0027  # … and how many are by chance: the normal distribution beyond Z_LIMIT
BIN_SLACK = 0.02  # a bin's share treated this close to its mean propensity is close enough

PAST = ("not shown before", "shown once before", "shown twice or more before")
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


@dataclass(frozen=True)
class Total:
    """Σ 1/P over the treated rows of some cells, per cell: 1 up to its standard error if P is right."""

    name: str
    cells: float
    rows: int
    ratio: float
    error: float

    @classmethod
    def of(cls, name: str, cells: float, propensity: Floats) -> Total:
        """The variance Σ_cells (1−P)/P is estimated by Σ_treated (1−P)/P²."""
        p, n = np.maximum(propensity, TINY), max(cells, 1)
        error = float(np.sqrt(((1.0 - p) / p**2).sum())) / n
        return cls(name, cells, len(p), float((1.0 / p).sum()) / n, error)

    @property
    def z(self) -> float:
        """How many standard errors the ratio is away from 1."""
        return (self.ratio - 1.0) / self.error if self.error > 0 else 0.0

    def is_far(self, slack: float = RATIO_SLACK) -> bool:
        """More than ``slack`` and Z_LIMIT standard errors away from 1."""
        return abs(self.z) > Z_LIMIT and abs(self.ratio - 1) > slack


@dataclass(frozen=True)
class PairCalibration:
    """Whether propensities fit pairs: the cells by how often their pair was shown before; none for a single time."""

    strata: tuple[Total, ...]

    @property
    def identified(self) -> bool:
        """A log with a single time, or in which no pair could be shown twice, says nothing about pairs."""
        return any(stratum.rows >= ENOUGH for stratum in self.strata[1:])

    @property
    def failing(self) -> tuple[Total, ...]:
        """The strata with a past that are far off."""
        return tuple(one for one in self.strata[1:] if one.rows >= ENOUGH and one.is_far(PAIR_SLACK))

    @property
    def holds(self) -> bool:
        """Whether no stratum with a past is far off; True where the log cannot say (see ``identified``)."""
        return not self.failing

    @property
    def sentence(self) -> str:
        """What was found, in one sentence."""
        if not self.identified:
            return "Pair-level calibration cannot be checked: too few pairs were shown at more than one time."
        worst = max(self.failing or self.strata[1:], key=lambda one: abs(np.log(max(one.ratio, TINY))))
        return (
            f"Pair-level calibration {'holds' if self.holds else 'fails'}: pairs {worst.name} were shown "
            f"{worst.ratio:.2f} times as often as their propensities say."
        )

    def to_frame(self) -> pd.DataFrame:
        """One row per stratum."""
        import pandas as pd

        return pd.DataFrame(self.strata)


def pair_calibration(log: Log) -> PairCalibration:
    """Check the propensities of a log pair by pair."""
    check_instance("log", log, Log, "Log.from_frame or Log.read")
    treated, catalog = log.treated == 1, log.catalog
    p = log.recorded_propensity("pair_calibration")[treated]
    if log.n_times == 1 or catalog.n_cells >= 2**63:
        return PairCalibration(())
    shown = PairHistory.from_rows(log, treated)

    def stratum(user: Any, item: Any, time: Any) -> Longs:
        """0, 1 or 2; −1 at the first time, which has no past."""
        return np.where(time == 0, -1, np.minimum(shown.before(user, item, time)[0], len(PAST) - 1))

    # the cells with a past are counted, or estimated from a million of them
    later = shown.n_later_cells
    number = np.arange(later) if later <= MAX_CELLS else generator(0).integers(0, later, MAX_CELLS)
    codes = shown.later_cells(number)
    past = stratum(*codes)[log.eligibility.contains(*codes)]
    cells = np.bincount(past, minlength=len(PAST)) * (later / max(len(number), 1))
    cells[0] = float(log.eligibility.cells_by_time[1:].sum()) - cells[1:].sum()
    own = stratum(log.user[treated], log.item[treated], log.time[treated])
    return PairCalibration(tuple(Total.of(name, float(cells[k]), p[own == k]) for k, name in enumerate(PAST)))


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


def diagnose(log: Log, cells: Any = None) -> Diagnosis:
    """What the log says about overlap and about its propensities.

    Always: Σ_treated 1/P against users · items · times, and the same for each user and each item; Kish's effective
    number (Σw)²/Σw² of the purchases of each arm; the share of purchases, and of their weight, with P within 1e-3 of
    0 or 1. In a log with several times also the pair calibration.

    Where the propensities of absent cells are known: Σ_control 1/(1−P) against the number of cells, and the
    share treated per bin of P. They are known if the log has a row for every cell, or from ``cells``: a
    frame or a file with ``user_id, item_id, propensity`` and the log's ``time``, for all cells or for some
    that were chosen without regard to treatment (see ``sample_cells`` of a model from ``taurank.propensity.fit``).
    """
    check_instance("log", log, Log, "Log.from_frame or Log.read")
    propensity = log.recorded_propensity("diagnose")
    rows = np.flatnonzero(log.treated)
    treated, eligible = propensity[rows], log.eligibility
    known, control = _known_cells(log, propensity, cells), None
    if known is not None:  # all propensities are known, and so is the variance of Σ_control 1/(1−P)
        p, z = known
        ratio, error = float((1.0 / (1.0 - p[z == 0])).sum()), float(np.sqrt((p / (1.0 - p)).sum()))
        control = Total("control", len(p), int(np.count_nonzero(z == 0)), ratio / len(p), error / len(p))
    return Diagnosis(
        n_rows=len(log),
        n_users=log.n_users,
        n_items=log.n_items,
        n_times=log.n_times,
        n_treated=len(rows),
        treated=_arm("treated", log, propensity, 1),
        control=_arm("control", log, propensity, 0),
        smallest_treated=float(treated.min(initial=1.0)),
        treated_total=Total.of("treated", log.cells, treated),
        users=_margin(log.user[rows], eligible.cells_by_user, treated),
        items=_margin(log.item[rows], eligible.cells_by_item, treated),
        control_total=control,
        bins=None if known is None else _bins(*known),
        pairs=pair_calibration(log),
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
class Margin:
    """The same sum for each user, or each item, with enough treated cells: how many are far from 1."""

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
    pairs: PairCalibration

    @property
    def n_cells(self) -> int:
        """The cells that could have been recommended."""
        return int(self.treated_total.cells)

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
        names = ("level", "verdict", "n_cells", "always_share", "never_share")
        return {
            **{name: getattr(self, name) for name in names},
            **asdict(self),
            "findings": [finding._asdict() for finding in self.findings],
            "histogram_edges": list(HISTOGRAM_EDGES),
        }

    def __str__(self) -> str:
        width = min(max(shutil.get_terminal_size().columns, 60), 120)
        lines = [*textwrap.wrap(f"{self.level.upper()}: {self.verdict}", width), "", "What to do now:"]
        for one in self.advice:
            lines += textwrap.wrap(one, width, initial_indent="- ", subsequent_indent="  ", break_on_hyphens=False)
        lines += ["", *textwrap.wrap(self.size, width), ""]
        rows = [COLUMNS, *(check.formatted() for check in self.checks)]
        a, b, c, d = (max(len(row[k]) for row in rows) for k in range(4))
        beside = a + b + c + d + 6 <= width  # else a reading goes below its check
        for k, (check, value, expected, reading) in enumerate(rows):
            left = f"{check:<{a}}  {value:>{b}}  {expected:>{c}}"
            lines.append(f"{left}  {reading}".rstrip() if beside else left.rstrip())
            if k and not beside:
                lines += textwrap.wrap(reading, width, initial_indent="    ", subsequent_indent="    ")
        return "\n".join(lines)


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


def _margin(code: Codes, cells: Longs, propensity: Floats) -> Margin:
    """For how many users or items Σ 1/P over their treated cells is far from the number of their cells."""
    p = np.maximum(propensity, TINY)
    count, total, variance = (np.bincount(code, x, len(cells)) for x in (np.ones_like(p), 1.0 / p, (1.0 - p) / p**2))
    enough = count >= ENOUGH
    far = enough & (np.abs(total - cells) > Z_LIMIT * np.sqrt(variance))
    return Margin(int(np.count_nonzero(enough)), int(np.count_nonzero(far)))


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
    """Propensity and treatment of eligible cells that were not chosen by what happened there, if there are such."""
    if cells is None:
        return (propensity, log.treated) if len(log) == log.cells else None
    ids = (log.users.values, log.items.values, log.times.values)
    given = read_cells(tables.open_table(cells), ids, [replace(PROPENSITY, required=True)])
    codes = (given.user, given.item, given.time)
    eligible = log.eligibility.contains(*codes)
    key = log.catalog.cell_index(*codes)[eligible]
    order = np.argsort(key)
    key, p, treated = key[order], given.numbers["propensity"][eligible][order], np.zeros(len(key), np.int8)
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
    if d.always_share >= NAMED_SHARE:
        yield Finding(
            "poor" if d.always_share >= POOR_SHARE else "caution",
            f"{_percent(d.always_share)} of the purchases were of items this user is always shown (propensity "
            f"{1 - NEAR} or more): effects there cannot be estimated from this log.",
            _RANDOMIZE,
        )
    if d.never_share >= NAMED_SHARE:
        yield Finding(
            "caution",
            f"{_percent(d.never_share)} of the purchases were of items this user is almost never shown (propensity "
            f"{NEAR} or less): the effect of showing them is estimated from few rows with weights of {1 / NEAR:,.0f} "
            "or more.",
            _CAP,
        )
    for arm in (d.treated, d.control):
        level = "poor" if arm.effective < POOR_EFFECTIVE else "caution"
        who, effective = f"The {arm.purchases:,} {arm.name} purchases", _number(arm.effective)
        if not arm.purchases:
            yield Finding("poor", f"There is no {arm.name} purchase: nothing can be compared.", _COLLECT)
        elif arm.effective < LOW_EFFICIENCY * arm.purchases:
            worth = f"carry the information of only {effective}: a few heavy weights decide every estimate"
            yield Finding(level, f"{who} {worth}.", _CAP)
        elif arm.effective < FEW_EFFECTIVE:
            yield Finding(level, f"{who} are few (effective: {effective}).", _COLLECT)
    if d.smallest_chance < CHANCE_FAR:  # one tiny propensity makes every standard error huge, but says enough
        yield Finding(
            "poor",
            f"A cell with propensity {d.smallest_treated:.2g} was treated; among {d.n_cells:,} cells the "
            f"chance of that is below {d.smallest_chance:.2g}: the propensities do not fit.",
            _RECORD,
        )
    yield from _of_total("1/P", d.treated_total)
    for name, margin in (("users", d.users), ("items", d.items)):
        if margin.far_share > FAR_SHARE:
            yield Finding(
                "poor",
                f"For {_percent(margin.far_share)} of the {name} the sum of 1/P over the treated cells is "
                "far from the number of cells: the propensities do not fit.",
                _RECORD,
            )
    if not d.pairs.holds:
        yield Finding("poor", f"{d.pairs.sentence} Estimates of effects with them are wrong.", _RECORD)
    if d.control_total is not None:
        yield from _of_total("1/(1 − P)", d.control_total)
    wrong = [b for b in d.bins or () if abs(b.z) > Z_LIMIT and abs(b.gap) > BIN_SLACK]
    if wrong:
        worst = max(wrong, key=lambda b: abs(b.gap))
        yield Finding(
            "poor",
            f"In {len(wrong)} of {len(d.bins or ())} bins the propensity is off by more than {BIN_SLACK}; the worst "
            f"bin has a mean propensity of {worst.propensity:.3f} and a share treated of {worst.treated:.3f}.",
            _RECORD,
        )


def _of_total(weight: str, total: Total) -> Iterator[Finding]:
    sum_of = f"The sum of {weight} over the {total.name} cells is {total.ratio:.3g} times the number of cells"
    if total.is_far():
        too = "small" if total.ratio > 1 else "large"
        rare = ", or many cells are shown so rarely that no treated row represents them"
        sentence = (
            f"{sum_of} and should be 1: the propensities do not fit, those of {total.name} cells seem too {too}"
        )
        no_row = total.name == "treated" and total.ratio < 1
        yield Finding("poor", f"{sentence}{rare if no_row else ''}.", _RECORD)
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
    yield Check("Σ 1/P over treated cells, per cell", d.treated_total.ratio, 1.0, _reading(d.treated_total))
    for name, margin in (("users", d.users), ("items", d.items)):
        reading = f"by {Z_LIMIT:g} errors, of {margin.checked:,} with {ENOUGH} treated or more"
        yield Check(f"Σ 1/P far off, {name}", margin.far_share, CHANCE_FAR, reading, True)
    for one in d.pairs.strata:
        far = one.is_far(PAIR_SLACK)
        reading = "too few treated cells" if one.rows < ENOUGH else "does not fit" if far else "fits"
        yield Check(f"Σ 1/P, {one.name}", one.ratio, 1.0, f"{reading} (± {one.error:.2g})")
    ratio, gap, readings = nan, nan, ["not identifiable from this log"] * 2
    if d.control_total is not None and d.bins is not None:
        worst = max(d.bins, key=lambda b: abs(b.gap))
        ratio, gap = d.control_total.ratio, worst.gap
        share = f"mean P {worst.propensity:.3f}, share treated {worst.treated:.3f} (z = {worst.z:+.1f})"
        readings = [_reading(d.control_total), share]
    yield Check("Σ 1/(1−P) over control cells, per cell", ratio, 1.0, readings[0])
    yield Check("largest gap of a bin of P", gap, 0.0, readings[1])
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


def _reading(total: Total) -> str:
    fits = "fits" if abs(total.z) <= Z_LIMIT else "close enough"
    fits = "does not fit" if total.is_far() else "inconclusive, too noisy" if total.error > NOISY_ERROR else fits
    return f"{fits} (± {total.error:.2g}, z = {total.z:+.1f})"


def _percent(share: float) -> str:
    if 0.0 < share < 0.001:
        return "< 0.1%"
    return f"{100 * share:.{0 if 0.1 <= share < 0.995 or share in (0, 1) else 1}f}%"


def _number(value: float) -> str:
    if abs(value) >= 1e9:
        return f"{value:.3g}"
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.4g}"
