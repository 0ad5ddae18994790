"""Overlap: can effects be learned from this log with these propensities?

A sparse log records the propensity only where something was shown or bought; no check needs those of other cells.

Every sentence of a diagnosis follows from a figure and a threshold below; none claims more than the log shows.
"""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from taurank._checks import check_instance
from taurank._types import Floats
from taurank.data.features import Features
from taurank.data.log import Log
from taurank.estimation.estimators import NEAR, almost_always, almost_never
from taurank.estimation.later import LaterEffects, later_effects
from taurank.estimation.propensity.calibration import (
    ENOUGH,
    PAIR_SLACK,
    TINY,
    Z_LIMIT,
    Margin,
    PairCalibration,
    Scope,
    Total,
    margin,
    pair_calibration,
)

if TYPE_CHECKING:
    import pandas as pd

HISTOGRAM_EDGES = tuple(np.linspace(-6.0, 6.0, 49).tolist())  # log10 of the odds of P

NAMED_SHARE = 0.05  # purchases without overlap are reported from this share on …
POOR_SHARE = 0.2  # … and those of items always shown make the overlap poor from this one on
POOR_EFFECTIVE = 30  # effective purchases of an arm: poor below this …
FEW_EFFECTIVE = 100  # … and a caution below this
LOW_EFFICIENCY = 0.1  # effective purchases per purchase
NOISY_ERROR = 0.1  # a sum of weights with a larger standard error checks nothing
FAR_SHARE = 0.05  # users or items whose own sum of weights is far off …
CHANCE_FAR = 0.0027  # … and how many are by chance: the normal distribution beyond Z_LIMIT

LEVELS = ("good", "caution", "poor")
COLUMNS = ("check", "value", "expected", "reading")

_RANDOMIZE = "Recommend at random to a small share of users, so that every item is sometimes shown and sometimes not."
_RECORD = (
    "Record the propensities when recommending, or estimate them with the exposure model: "
    "taurank propensity estimate LOG --replace --out FILE."
)
_CAP = "Cap the weights: gains.doubly_robust(log, cap=0.01), and DLCE with a cap."
_COLLECT = "Collect more data before comparing methods: more users, more times, or more recommendations."
_ALL_BOUGHT = "Check that the log has all purchases, also of items that were not shown."
_LATER = (
    "Read docs/violations.md: measure longer periods, or whole categories, before counting these effects as gained."
)
_OK = "Overlap looks fine: fit a causal learner such as DLCE and measure it with evaluate(model, log)."


def diagnose(log: Log, *, categories: Features | None = None) -> Diagnosis:
    """What the log says about overlap and about its propensities.

    Always: Σ_treated 1/P against users · items · times, and the same for each user and each item; Kish's effective
    number (Σw)²/Σw² of the purchases of each arm; the share of purchases with P within 1e-3 of 0, and of 1. In a log
    with several times also the pair calibration.

    ``categories``, with the tables ``items`` and ``categories``, says what each user can be shown: cells outside are
    left out of every sum.

    Returns
    -------
    Diagnosis : ``level`` is "good", "caution" or "poor", ``verdict`` says why, ``print`` shows all checks

    Examples
    --------
    >>> import taurank as tr
    >>> log = tr.World.synthetic(300, 30, random_state=0).sample(4, random_state=1).log
    >>> diagnose(log).level
    'good'
    """
    check_instance("log", log, Log, "Log.from_frame or Log.read")
    propensity = log.recorded_propensity("diagnose")
    scope, rows = Scope(log, categories), np.flatnonzero(log.treated)
    rows = rows[scope.contains(log.user[rows], log.item[rows], log.time[rows])]
    treated = propensity[rows]
    by_user, by_item, by_time = scope.cells_by
    return Diagnosis(
        n_rows=len(log),
        n_users=log.n_users,
        n_items=log.n_items,
        n_times=log.n_times,
        n_treated=len(rows),
        treated=_arm("treated", log, propensity, 1),
        control=_arm("control", log, propensity, 0),
        smallest_treated=float(treated.min(initial=1.0)),
        treated_total=Total.of("treated", float(by_time.sum()), treated),
        users=margin(log.user[rows], by_user, treated),
        items=margin(log.item[rows], by_item, treated),
        pairs=pair_calibration(log, categories),
        later=later_effects(log, categories),
    )


@dataclass(frozen=True)
class Arm:
    """The purchases (outcome = 1) of one arm, weighted by w = 1/P if treated, 1/(1−P) if not."""

    name: str
    purchases: int
    effective: float  # Kish: (Σw)² / Σw²
    always: int  # purchases with P ≥ 1 − NEAR
    never: int  # purchases with P ≤ NEAR
    largest_weight: float
    histogram: tuple[int, ...]  # purchases between the HISTOGRAM_EDGES


class Finding(NamedTuple):
    """One statement about a log: "good", "caution" or "poor", a sentence, and what to do now."""

    level: str
    sentence: str
    advice: str


class Check(NamedTuple):
    """A row of the table, and what follows from it; NaN marks a value not identifiable, or not expected."""

    check: str
    value: float
    expected: float
    reading: str
    finding: Finding | None = None
    is_share: bool = False

    def formatted(self) -> tuple[str, str, str, str]:
        write = _percent if self.is_share else _number
        value, expected = ("" if v != v else write(v) for v in (self.value, self.expected))
        return self.check, value, expected, self.reading


@dataclass(frozen=True)
class Diagnosis:
    """What a log says about its propensities: figures, and the findings that follow from them."""

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
    pairs: PairCalibration
    later: LaterEffects | None  # of a showing on other purchases; None where the log has too few to tell

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
    def checks(self) -> tuple[Check, ...]:
        """The rows of the table."""
        return tuple(_checks(self))

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All findings, the worst first; a log without problems has one good finding."""
        problems = [check.finding for check in self.checks if check.finding is not None]
        if problems:
            return tuple(sorted(problems, key=lambda one: -LEVELS.index(one.level)))
        inside, (treated, control) = 1 - self.always_share - self.never_share, (self.treated, self.control)
        sentence = (
            f"Overlap is good: {_percent(inside)} of the purchases are of items this user is sometimes shown and "
            f"sometimes not; weighted, the {treated.purchases:,} treated purchases carry the information of "
            f"{treated.effective:,.0f}, the {control.purchases:,} control purchases that of {control.effective:,.0f}."
        )
        return (Finding("good", sentence, _OK),)

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
        findings = [finding._asdict() for finding in self.findings]
        known = {name: getattr(self, name) for name in names}
        return {**known, **asdict(self), "findings": findings, "histogram_edges": list(HISTOGRAM_EDGES)}

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
        return Arm(name, 0, 0.0, 0, 0, 0.0, (0,) * (len(HISTOGRAM_EDGES) - 1))
    weight = 1.0 / p if arm else 1.0 / (1.0 - p)
    share = weight / weight.max()  # so that no square overflows
    log_odds = np.clip(np.log10(p) - np.log10(1.0 - p), HISTOGRAM_EDGES[0], HISTOGRAM_EDGES[-1])
    return Arm(
        name=name,
        purchases=len(p),
        effective=float(share.sum() ** 2 / (share**2).sum()),
        always=int(np.count_nonzero(almost_always(p))),
        never=int(np.count_nonzero(almost_never(p))),
        largest_weight=float(weight.max()),
        histogram=tuple(np.histogram(log_odds, HISTOGRAM_EDGES)[0].tolist()),
    )


# ---- what it means -------------------------------------------------------------------------------------------------


def _checks(d: Diagnosis) -> Iterator[Check]:
    nan = float("nan")
    yield _of_total(d.treated_total)
    for name, own in (("users", d.users), ("items", d.items)):
        wrong = (
            f"For {_percent(own.far_share)} of the {name} the sum of 1/P over the treated cells is far from the "
            "number of cells: the propensities do not fit."
        )
        reading = f"by {Z_LIMIT:g} errors, of {own.checked:,} with {ENOUGH} treated or more"
        finding = _poor_if(own.far_share > FAR_SHARE, wrong)
        yield Check(f"Σ 1/P far off, {name}", own.far_share, CHANCE_FAR, reading, finding, True)
    wrong = f"{d.pairs.sentence} Estimates of effects with them are wrong."
    for one in d.pairs.strata:
        fits = "does not fit" if one.is_far(PAIR_SLACK) else "fits"
        reading = f"{'too few treated cells' if one.rows < ENOUGH else fits} (± {one.error:.2g})"
        yield Check(f"Σ 1/P, {one.name}", one.ratio, 1.0, reading, _poor_if(one in d.pairs.failing[:1], wrong))
    yield from _of_later(d)
    for arm in (d.treated, d.control):
        yield from _of_arm(arm)
    wrong = (
        f"{_percent(d.always_share)} of the purchases were of items this user is always shown (propensity "
        f"{1 - NEAR} or more): effects there cannot be estimated from this log."
    )
    level = "poor" if d.always_share >= POOR_SHARE else "caution"
    finding = Finding(level, wrong, _RANDOMIZE) if d.always_share >= NAMED_SHARE else None
    yield Check("purchases of items always shown", d.always_share, nan, f"P {1 - NEAR} or more", finding, True)
    wrong = (
        f"{_percent(d.never_share)} of the purchases were of items this user is almost never shown (propensity "
        f"{NEAR} or less): the effect of showing them is estimated from few rows with weights of {1 / NEAR:,.0f} or "
        "more."
    )
    finding = Finding("caution", wrong, _CAP) if d.never_share >= NAMED_SHARE else None
    yield Check("purchases of items almost never shown", d.never_share, nan, f"P {NEAR} or less", finding, True)
    chance = f"below {d.smallest_chance:.2g}"
    wrong = (
        f"A cell with propensity {d.smallest_treated:.2g} was treated; among {d.n_cells:,} cells the chance of that "
        f"is {chance}: the propensities do not fit."
    )
    unlikely = d.smallest_chance < CHANCE_FAR  # one tiny propensity makes every standard error huge, but says enough
    reading = f"chance of it {chance}" if unlikely else ""
    yield Check("smallest P of a treated cell", d.smallest_treated, nan, reading, _poor_if(unlikely, wrong))


def _poor_if(wrong: bool, sentence: str) -> Finding | None:
    return Finding("poor", sentence, _RECORD) if wrong else None


def _of_later(d: Diagnosis) -> Iterator[Check]:
    """What a showing does to later purchases, and to others of the category; per showing."""
    if d.later is None:
        return
    sentences = iter(d.later.sentences)
    for name, effect in (
        ("later purchases, per showing", d.later.later),
        ("others of the category", d.later.category),
    ):
        if effect is not None:
            finding = Finding("caution", next(sentences), _LATER) if effect.is_clear else None
            low, high = effect.interval
            reading = f"{low:+.2g} to {high:+.2g}, beside {d.later.by_lag[0].mean:.2g} in its period"
            yield Check(name, effect.mean, 0.0, reading, finding)


def _of_total(total: Total) -> Check:
    sum_of = f"The sum of 1/P over the treated cells is {total.ratio:.3g} times the number of cells"
    reading, finding = "fits" if abs(total.z) <= Z_LIMIT else "close enough", None
    if total.is_far():
        too, reading = "small" if total.ratio > 1 else "large", "does not fit"
        wrong = f"{sum_of} and should be 1: the propensities do not fit, those of treated cells seem too {too}"
        if total.ratio < 1:
            wrong += ", or many cells are shown so rarely that no treated row represents them"
        finding = Finding("poor", f"{wrong}.", _RECORD)
    elif total.error > NOISY_ERROR:
        reading = "inconclusive, too noisy"
        wrong = f"{sum_of} with a standard error of {total.error:.2g}: too noisy a check."
        finding = Finding("caution", wrong, _COLLECT)
    name = "Σ 1/P over treated cells, per cell"
    return Check(name, total.ratio, 1.0, f"{reading} (± {total.error:.2g}, z = {total.z:+.1f})", finding)


def _of_arm(arm: Arm) -> Iterator[Check]:
    who, effective = f"{arm.name} purchases", _number(arm.effective)
    level, finding = "poor" if arm.effective < POOR_EFFECTIVE else "caution", None
    the = f"The {arm.purchases:,} {who}"
    if not arm.purchases and arm.name == "control":  # what is never bought unless shown is known well, too
        finding = Finding("caution", "There is no control purchase: nothing was bought unshown.", _ALL_BOUGHT)
    elif not arm.purchases:
        finding = Finding("poor", "There is no treated purchase: nothing can be compared.", _COLLECT)
    elif arm.effective < LOW_EFFICIENCY * arm.purchases:
        worth = f"carry the information of only {effective}: a few heavy weights decide every estimate"
        finding = Finding(level, f"{the} {worth}.", _CAP)
    elif arm.effective < FEW_EFFECTIVE and arm.name == "treated":
        finding = Finding(level, f"{the} are few (effective: {effective}).", _COLLECT)
    each = _percent(arm.effective / max(arm.purchases, 1))
    yield Check(who, arm.purchases, float("nan"), f"largest weight {_number(arm.largest_weight)}")
    yield Check(f"{who}, effective", arm.effective, arm.purchases, f"{each} of them (Kish)", finding)


def _percent(share: float) -> str:
    if 0.0 < share < 0.001:
        return "< 0.1%"
    return f"{100 * share:.{0 if 0.1 <= share < 0.995 or share in (0, 1) else 1}f}%"


def _number(value: float) -> str:
    if abs(value) >= 1e9:
        return f"{value:.3g}"
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.4g}"
