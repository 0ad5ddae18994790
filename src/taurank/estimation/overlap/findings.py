"""The diagnosis of a log in words, as a table, on the terminal and as a page.

Every sentence of the verdict follows from a figure and a threshold below; nothing is said that the log does
not show.
"""

from __future__ import annotations

import os
from typing import NamedTuple

import pandas as pd

from taurank.estimation.overlap.diagnosis import ENOUGH_TREATED, NEAR, Z_LIMIT, Arm, Diagnosis, Margin, Total

NAMED_SHARE = 0.05  # purchases without overlap are named from this share on …
POOR_SHARE = 0.2  # … and those of items always shown make the overlap poor from this one on
FEW_EFFECTIVE, SCARCE_EFFECTIVE = (
    30,
    100,
)  # effective purchases of an arm: poor below the first, caution below the second
LOW_EFFICIENCY = 0.1  # effective purchases per purchase
RATIO_SLACK = 0.05  # a sum of weights this close to the number of cells is near enough
NOISY_ERROR = 0.1  # a sum of weights with a larger standard error checks nothing
FAR_SHARE = 0.05  # users or items whose own sum of weights is far off …
CHANCE_FAR = 0.0027  # … and how many are by chance: the normal law beyond Z_LIMIT
BIN_SLACK = 0.02  # a bin's share treated this close to its mean propensity is near enough

NAN = float("nan")
NOT_IDENTIFIABLE = "not identifiable from this log"
_FRACTIONS = (
    (0.25, "a quarter"),
    (1 / 3, "a third"),
    (0.5, "half"),
    (2 / 3, "two thirds"),
    (0.75, "three quarters"),
)
_RANK = {"good": 0, "caution": 1, "poor": 2}


def level(diagnosis: Diagnosis) -> str:
    """The worst of the findings: "good", "caution" or "poor"."""
    return max((rank for rank, _ in _findings(diagnosis)), key=lambda rank: _RANK[rank], default="good")


def verdict(diagnosis: Diagnosis) -> str:
    """The findings as sentences, the worst first."""
    found = sorted(_findings(diagnosis), key=lambda finding: -_RANK[finding[0]])
    if not found:
        return _good(diagnosis)
    return " ".join(_sentence(words) for _, words in found)


def text(diagnosis: Diagnosis) -> str:
    """The verdict and the table for the terminal."""
    d = diagnosis
    head = (
        f"{d.n_rows:,} rows of {d.n_cells:,} cells ({d.n_users:,} users × {d.n_items:,} items × "
        f"{d.n_times:,} times); {d.n_treated:,} treated, {d.n_purchases:,} purchases."
    )
    lines = [f"{level(d).upper()}: {verdict(d)}", "", head, ""]
    rows = [("check", "value", "expected", "reading"), *(check.shown() for check in _checks(d))]
    widths = [max(len(row[k]) for row in rows) for k in range(3)]
    lines += [f"{c:<{widths[0]}}  {v:>{widths[1]}}  {e:>{widths[2]}}  {r}".rstrip() for c, v, e, r in rows]
    return "\n".join(lines)


def frame(diagnosis: Diagnosis) -> pd.DataFrame:
    """One row per check: ``check, value, expected, reading``."""
    rows = [(check.check, check.value, check.expected, check.reading) for check in _checks(diagnosis)]
    table = pd.DataFrame(rows, columns=["check", "value", "expected", "reading"])
    return table.astype({"value": "float64", "expected": "float64"})


def _findings(d: Diagnosis) -> list[tuple[str, str]]:
    """What is wrong, each with how bad it is."""
    found = []
    if d.always_share >= NAMED_SHARE:
        words = (
            f"{_fraction(d.always_share)} of the purchases were of items this user is always shown "
            f"(propensity above {1 - NEAR}): effects there cannot be estimated from this log."
        )
        found.append(("poor" if d.always_share >= POOR_SHARE else "caution", words))
    if d.never_share >= NAMED_SHARE:
        words = (
            f"{_fraction(d.never_share)} of the purchases were of items this user is almost never shown "
            f"(propensity below {NEAR}): what showing them does rests on few rows with weights above {1 / NEAR:,.0f}."
        )
        found.append(("caution", words))
    for arm in (d.treated, d.control):
        found += _arm_findings(arm)
    found += _total_findings("treated", "P", d.treated_total)
    for margin in (d.users, d.items):
        found += _margin_findings(margin)
    if d.control_total is not None:
        found += _total_findings("control", "(1 − P)", d.control_total)
    return found + _bin_findings(d)


def _arm_findings(arm: Arm) -> list[tuple[str, str]]:
    if not arm.purchases:
        return [("poor", f"there is no {arm.name} purchase: nothing can be compared.")]
    rank = "poor" if arm.effective < FEW_EFFECTIVE else "caution"
    who = f"the {arm.purchases:,} {arm.name} purchases"
    if arm.effective < LOW_EFFICIENCY * arm.purchases:
        worth = f"carry the information of only {_number(arm.effective)}"
        return [(rank, f"{who} {worth}: a few heavy weights decide every estimate; use a cap.")]
    if arm.effective < SCARCE_EFFECTIVE:
        return [(rank, f"{who} are few (effective: {_number(arm.effective)}).")]
    return []


def _total_findings(arm: str, weight: str, total: Total) -> list[tuple[str, str]]:
    sum_of = f"the sum of 1/{weight} over the {arm} cells is {total.ratio:.3g} times the number of cells"
    if _far(total):
        too = "small" if total.ratio > 1 else "large"
        words = f"{sum_of} and should be 1: the propensities do not fit, those of {arm} cells seem too {too}"
        rare = arm == "treated" and total.ratio < 1
        words += ", or many cells are shown so rarely that no treated row stands for them." if rare else "."
        return [("poor", words)]
    if total.error > NOISY_ERROR:
        return [("caution", f"{sum_of} with a standard error of {total.error:.2g}: too noisy a check.")]
    return []


def _margin_findings(margin: Margin) -> list[tuple[str, str]]:
    if not margin.far_share > FAR_SHARE:
        return []
    words = (
        f"for {_fraction(margin.far_share)} of the {margin.name} the sum of 1/P over the treated cells is "
        "far from the number of cells: the propensities do not fit."
    )
    return [("poor", words)]


def _bin_findings(d: Diagnosis) -> list[tuple[str, str]]:
    wrong = [b for b in d.bins or () if abs(b.z) > Z_LIMIT and abs(b.treated - b.propensity) > BIN_SLACK]
    if not wrong or d.bins is None:
        return []
    worst = max(wrong, key=lambda b: abs(b.treated - b.propensity))
    words = (
        f"in {len(wrong)} of {len(d.bins)} bins the propensity is off by more than {BIN_SLACK}; at worst "
        f"it says {worst.propensity:.3f} where {worst.treated:.3f} were treated."
    )
    return [("poor", words)]


def _good(d: Diagnosis) -> str:
    inside = 1 - d.always_share - d.never_share
    return (
        f"Overlap is good: {_percent(inside)} of the purchases are of items this user is sometimes shown and "
        f"sometimes not; weighted, the {d.treated.purchases:,} treated purchases carry the "
        f"information of {d.treated.effective:,.0f}, the {d.control.purchases:,} control purchases that of "
        f"{d.control.effective:,.0f}."
    )


def _far(total: Total) -> bool:
    return abs(total.z) > Z_LIMIT and abs(total.ratio - 1) > RATIO_SLACK


class Check(NamedTuple):
    """A row of the table; NaN stands for what is not identifiable, or not expected."""

    check: str
    value: float
    expected: float
    reading: str
    percent: bool = False

    def shown(self) -> tuple[str, str, str, str]:
        write = _percent if self.percent else _number
        value, expected = ("" if v != v else write(v) for v in (self.value, self.expected))
        return self.check, value, expected, self.reading


def _checks(d: Diagnosis) -> list[Check]:
    total = d.treated_total
    rows = [Check("Σ 1/P over treated cells, per cell", total.ratio, 1.0, _total_reading(total))]
    for margin in (d.users, d.items):
        reading = f"by {Z_LIMIT:g} errors, of {margin.checked:,} with {ENOUGH_TREATED} treated or more"
        rows.append(Check(f"Σ 1/P far off, {margin.name}", margin.far_share, CHANCE_FAR, reading, True))
    rows += _control_checks(d)
    for arm in (d.treated, d.control):
        rows += _arm_checks(arm)
    always, never = d.always_share, d.never_share
    rows.append(Check("purchases of items always shown", always, NAN, f"P above {1 - NEAR}", True))
    rows.append(Check("purchases of items almost never shown", never, NAN, f"P below {NEAR}", True))
    return rows


def _control_checks(d: Diagnosis) -> list[Check]:
    names = ("Σ 1/(1−P) over control cells, per cell", "largest gap of a bin of P")
    if d.control_total is None or d.bins is None:
        return [Check(name, NAN, e, NOT_IDENTIFIABLE) for name, e in zip(names, (1.0, 0.0), strict=True)]
    worst = max(d.bins, key=lambda b: abs(b.treated - b.propensity))
    reading = f"mean P {worst.propensity:.3f}, share treated {worst.treated:.3f} (z = {worst.z:+.1f})"
    return [
        Check(names[0], d.control_total.ratio, 1.0, _total_reading(d.control_total)),
        Check(names[1], worst.treated - worst.propensity, 0.0, reading),
    ]


def _arm_checks(arm: Arm) -> list[Check]:
    each = arm.effective / arm.purchases if arm.purchases else 0.0
    who = f"{arm.name} purchases"
    near = f"P within {NEAR} of 0 or 1"
    return [
        Check(who, arm.purchases, NAN, f"largest weight {_number(arm.largest_weight)}"),
        Check(f"{who}, effective", arm.effective, arm.purchases, f"{_percent(each)} of them (Kish)"),
        Check(f"{who}, near 0 or 1", arm.near_share, NAN, near, True),
        Check(f"{who}, weight near 0 or 1", arm.near_weight, NAN, near, True),
    ]


def _total_reading(total: Total) -> str:
    spread = f"± {total.error:.2g}, z = {total.z:+.1f}"
    if _far(total):
        return f"does not fit ({spread})"
    if total.error > NOISY_ERROR:
        return f"too noisy to tell ({spread})"
    return f"{'fits' if abs(total.z) <= Z_LIMIT else 'near enough'} ({spread})"


def _fraction(share: float) -> str:
    """A share in words where there is a word for it."""
    for value, words in _FRACTIONS:
        if abs(share - value) < 0.02:
            return words
    return _percent(share)


def _percent(share: float) -> str:
    if 0.0 < share < 0.001:
        return "< 0.1 %"
    return f"{100 * share:.{0 if 0.1 <= share < 0.995 or share in (0, 1) else 1}f} %"


def _sentence(words: str) -> str:
    return words[0].upper() + words[1:]


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.4g}"


def write_html(diagnosis: Diagnosis, path: str | os.PathLike[str]) -> None:
    """The page: verdict, figures, charts, and what each of them means."""
    from taurank.estimation.overlap import charts
    from taurank.html import page

    d = diagnosis
    checks = [check.shown() for check in _checks(d)]
    figures = pd.DataFrame(checks, columns=["check", "value", "expected", "reading"])
    top = page.verdict(level(d), level(d).capitalize(), verdict(d))
    page.write(path, "Overlap and propensities", [top, *charts.blocks(d, figures)])
