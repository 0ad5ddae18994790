"""The diagnosis of a log as text for a terminal and as a table."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import NamedTuple

import pandas as pd

from taurank.estimation.overlap.figures import ENOUGH_TREATED, Z_LIMIT, Arm, Figures, Total
from taurank.estimation.overlap.findings import CHANCE_FAR, NOISY_ERROR, Finding, is_far
from taurank.estimation.overlap.wording import number, percent
from taurank.estimation.propensities.calibration import ENOUGH, PairStratum
from taurank.estimation.thresholds import NEAR

NAN = float("nan")
NOT_IDENTIFIABLE = "not identifiable from this log"
COLUMNS = ("check", "value", "expected", "reading")


def text(figures: Figures, findings: Sequence[Finding], width: int = 80) -> str:
    """Findings, what to do, and the table, in lines of at most ``width`` characters."""
    lines = textwrap.wrap(f"{findings[0].level.upper()}: {verdict(findings)}", width)
    lines += ["", "What to do now:"]
    for advice in advices(findings):
        lines += textwrap.wrap(advice, width, initial_indent="- ", subsequent_indent="  ", break_on_hyphens=False)
    lines += ["", *textwrap.wrap(size(figures), width), ""]
    return "\n".join(lines + _table(figures, width))


def verdict(findings: Sequence[Finding]) -> str:
    """The findings as one paragraph, the worst first."""
    return " ".join(finding.sentence for finding in findings)


def advices(findings: Sequence[Finding]) -> list[str]:
    """What to do now, each thing once."""
    return list(dict.fromkeys(finding.advice for finding in findings))


def size(figures: Figures) -> str:
    """How large the log is."""
    f = figures
    which = "cells" if f.n_cells == f.n_users * f.n_items * f.n_times else "eligible cells"
    return (
        f"{f.n_rows:,} rows of {f.n_cells:,} {which} ({f.n_users:,} users × {f.n_items:,} items × "
        f"{f.n_times:,} times); {f.n_treated:,} treated, {f.n_purchases:,} purchases."
    )


def _table(figures: Figures, width: int) -> list[str]:
    """The checks; a reading that does not fit beside its check goes below it."""
    rows = [COLUMNS, *(check.formatted() for check in checks(figures))]
    widths = [max(len(row[k]) for row in rows) for k in range(3)]
    left = [f"{c:<{widths[0]}}  {v:>{widths[1]}}  {e:>{widths[2]}}".rstrip() for c, v, e, _ in rows]
    start = sum(widths) + 6
    if start + max(len(row[3]) for row in rows) <= width:
        return [f"{line:<{start}}{row[3]}".rstrip() for line, row in zip(left, rows, strict=True)]
    lines = [left[0]]
    for line, row in zip(left[1:], rows[1:], strict=True):
        lines += [line, *textwrap.wrap(row[3], width, initial_indent="    ", subsequent_indent="    ")]
    return lines


def frame(figures: Figures) -> pd.DataFrame:
    """One row per check: ``check, value, expected, reading``."""
    rows = [(check.check, check.value, check.expected, check.reading) for check in checks(figures)]
    table = pd.DataFrame(rows, columns=list(COLUMNS))
    return table.astype({"value": "float64", "expected": "float64"})


class Check(NamedTuple):
    """A row of the table; NaN marks a value that is not identifiable, or not expected."""

    check: str
    value: float
    expected: float
    reading: str
    is_share: bool = False

    def formatted(self) -> tuple[str, str, str, str]:
        write = percent if self.is_share else number
        value, expected = ("" if v != v else write(v) for v in (self.value, self.expected))
        return self.check, value, expected, self.reading


def checks(figures: Figures) -> list[Check]:
    """All checks, in the order of the table."""
    total = figures.treated_total
    rows = [Check("Σ 1/P over treated cells, per cell", total.ratio, 1.0, _total_reading(total))]
    for margin in (figures.users, figures.items):
        reading = f"by {Z_LIMIT:g} errors, of {margin.checked:,} with {ENOUGH_TREATED} treated or more"
        rows.append(Check(f"Σ 1/P far off, {margin.name}", margin.far_share, CHANCE_FAR, reading, True))
    rows += [_pair_check(stratum) for stratum in figures.pairs]
    rows += _control_checks(figures)
    for arm in (figures.treated, figures.control):
        rows += _arm_checks(arm)
    always, never = figures.always_share, figures.never_share
    rows.append(Check("purchases of items always shown", always, NAN, f"P {1 - NEAR} or more", True))
    rows.append(Check("purchases of items almost never shown", never, NAN, f"P {NEAR} or less", True))
    reading = f"chance of it below {figures.smallest_chance:.2g}" if figures.smallest_chance < CHANCE_FAR else ""
    rows.append(Check("smallest P of a treated cell", figures.smallest_treated, NAN, reading))
    return rows


def _pair_check(stratum: PairStratum) -> Check:
    reading = "does not fit" if stratum.far else "fits" if stratum.treated >= ENOUGH else "too few treated cells"
    return Check(f"Σ 1/P, {stratum.past}", stratum.ratio, 1.0, f"{reading} (± {stratum.error:.2g})")


def _control_checks(figures: Figures) -> list[Check]:
    names = ("Σ 1/(1−P) over control cells, per cell", "largest gap of a bin of P")
    if figures.control_total is None or figures.bins is None:
        return [Check(name, NAN, e, NOT_IDENTIFIABLE) for name, e in zip(names, (1.0, 0.0), strict=True)]
    worst = max(figures.bins, key=lambda b: abs(b.treated - b.propensity))
    reading = f"mean P {worst.propensity:.3f}, share treated {worst.treated:.3f} (z = {worst.z:+.1f})"
    return [
        Check(names[0], figures.control_total.ratio, 1.0, _total_reading(figures.control_total)),
        Check(names[1], worst.treated - worst.propensity, 0.0, reading),
    ]


def _arm_checks(arm: Arm) -> list[Check]:
    each = arm.effective / arm.purchases if arm.purchases else 0.0
    who = f"{arm.name} purchases"
    near = f"P within {NEAR} of 0 or 1"
    return [
        Check(who, arm.purchases, NAN, f"largest weight {number(arm.largest_weight)}"),
        Check(f"{who}, effective", arm.effective, arm.purchases, f"{percent(each)} of them (Kish)"),
        Check(f"{who}, near 0 or 1", arm.near_share, NAN, near, True),
        Check(f"{who}, weight near 0 or 1", arm.near_weight, NAN, near, True),
    ]


def _total_reading(total: Total) -> str:
    spread = f"± {total.error:.2g}, z = {total.z:+.1f}"
    if is_far(total):
        return f"does not fit ({spread})"
    if total.error > NOISY_ERROR:
        return f"inconclusive, too noisy ({spread})"
    return f"{'fits' if abs(total.z) <= Z_LIMIT else 'close enough'} ({spread})"
