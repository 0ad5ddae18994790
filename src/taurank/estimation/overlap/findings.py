"""What the figures of a log mean: findings, each with its level, its sentence and what to do about it.

Every sentence follows from a figure and a threshold below; no sentence claims more than the log shows.
"""

from __future__ import annotations

from typing import NamedTuple

from taurank.estimation.overlap.figures import Z_LIMIT, Arm, Figures, Margin, Total
from taurank.estimation.overlap.wording import fraction, number, percent
from taurank.estimation.propensities.calibration import PairCalibration
from taurank.estimation.thresholds import NEAR

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

_RANDOMIZE = "Recommend at random to a small share of users, so that every item is sometimes shown and sometimes not."
_RECORD = "Record the propensities when recommending, or estimate them: taurank propensity estimate LOG --out FILE."
_RECORD_PAIRS = (
    "Record the propensities when recommending, or estimate them with a model that knows pairs: "
    "taurank propensity estimate LOG --replace --out FILE."
)
_CAP = "Limit the weights: gains.capped_ips(log, cap=0.01), and DLCE with a cap."
_COLLECT = "Collect more data before comparing methods: more users, more times, or more recommendations."
_GO_ON = "No obstacle was found: fit a causal learner (DLCE) and evaluate it with gains.capped_ips."


class Finding(NamedTuple):
    """One statement about a log: "good", "caution" or "poor", a sentence, and what to do now."""

    level: str
    sentence: str
    advice: str


def find(figures: Figures) -> tuple[Finding, ...]:
    """All findings, the worst first; a log without problems has one good finding."""
    findings = [*_overlap(figures), *_arm(figures.treated), *_arm(figures.control)]
    findings += _smallest(figures)
    findings += _total("treated", "P", figures.treated_total)
    findings += [*_margin(figures.users), *_margin(figures.items), *_pairs(figures)]
    if figures.control_total is not None:
        findings += _total("control", "(1 − P)", figures.control_total)
    findings += _bins(figures)
    return tuple(sorted(findings or [_good(figures)], key=lambda finding: -LEVELS.index(finding.level)))


def _overlap(figures: Figures) -> list[Finding]:
    findings = []
    always, never = figures.always_share, figures.never_share
    if always >= NAMED_SHARE:
        sentence = (
            f"{fraction(always)} of the purchases were of items this user is always shown "
            f"(propensity {1 - NEAR} or more): effects there cannot be estimated from this log."
        )
        findings.append(Finding("poor" if always >= POOR_SHARE else "caution", _capital(sentence), _RANDOMIZE))
    if never >= NAMED_SHARE:
        sentence = (
            f"{fraction(never)} of the purchases were of items this user is almost never shown "
            f"(propensity {NEAR} or less): the effect of showing them is estimated from few rows with weights of "
            f"{1 / NEAR:,.0f} or more."
        )
        findings.append(Finding("caution", _capital(sentence), _CAP))
    return findings


def _arm(arm: Arm) -> list[Finding]:
    if not arm.purchases:
        return [Finding("poor", f"There is no {arm.name} purchase: nothing can be compared.", _COLLECT)]
    level = "poor" if arm.effective < POOR_EFFECTIVE else "caution"
    who = f"The {arm.purchases:,} {arm.name} purchases"
    if arm.effective < LOW_EFFICIENCY * arm.purchases:
        worth = f"carry the information of only {number(arm.effective)}"
        return [Finding(level, f"{who} {worth}: a few heavy weights decide every estimate.", _CAP)]
    if arm.effective < FEW_EFFECTIVE:
        return [Finding(level, f"{who} are few (effective: {number(arm.effective)}).", _COLLECT)]
    return []


def _smallest(figures: Figures) -> list[Finding]:
    """One tiny propensity makes the standard error of every sum of weights huge, but it says enough by itself."""
    if figures.smallest_chance >= CHANCE_FAR:
        return []
    sentence = (
        f"A cell with propensity {figures.smallest_treated:.2g} was treated; among {figures.n_cells:,} cells the "
        f"chance of that is below {figures.smallest_chance:.2g}: the propensities do not fit."
    )
    return [Finding("poor", sentence, _RECORD)]


def _total(arm: str, weight: str, total: Total) -> list[Finding]:
    sum_of = f"The sum of 1/{weight} over the {arm} cells is {total.ratio:.3g} times the number of cells"
    if is_far(total):
        too = "small" if total.ratio > 1 else "large"
        sentence = f"{sum_of} and should be 1: the propensities do not fit, those of {arm} cells seem too {too}"
        rare = arm == "treated" and total.ratio < 1
        sentence += ", or many cells are shown so rarely that no treated row represents them." if rare else "."
        return [Finding("poor", sentence, _RECORD)]
    if total.error > NOISY_ERROR:
        sentence = f"{sum_of} with a standard error of {total.error:.2g}: too noisy a check."
        return [Finding("caution", sentence, _COLLECT)]
    return []


def is_far(total: Total) -> bool:
    return abs(total.z) > Z_LIMIT and abs(total.ratio - 1) > RATIO_SLACK


def _margin(margin: Margin) -> list[Finding]:
    if not margin.far_share > FAR_SHARE:
        return []
    sentence = (
        f"For {fraction(margin.far_share)} of the {margin.name} the sum of 1/P over the treated cells is "
        "far from the number of cells: the propensities do not fit."
    )
    return [Finding("poor", sentence, _RECORD)]


def _pairs(figures: Figures) -> list[Finding]:
    calibration = PairCalibration(figures.pairs)
    if calibration.holds:
        return []
    return [Finding("poor", f"{calibration.sentence} Estimates of effects with them are wrong.", _RECORD_PAIRS)]


def _bins(figures: Figures) -> list[Finding]:
    bins = figures.bins or ()
    wrong = [b for b in bins if abs(b.z) > Z_LIMIT and abs(b.treated - b.propensity) > BIN_SLACK]
    if not wrong:
        return []
    worst = max(wrong, key=lambda b: abs(b.treated - b.propensity))
    sentence = (
        f"In {len(wrong)} of {len(bins)} bins the propensity is off by more than {BIN_SLACK}; the worst bin has "
        f"a mean propensity of {worst.propensity:.3f} and a share treated of {worst.treated:.3f}."
    )
    return [Finding("poor", sentence, _RECORD)]


def _good(figures: Figures) -> Finding:
    inside = 1 - figures.always_share - figures.never_share
    treated, control = figures.treated, figures.control
    sentence = (
        f"Overlap is good: {percent(inside)} of the purchases are of items this user is sometimes shown and "
        f"sometimes not; weighted, the {treated.purchases:,} treated purchases carry the information of "
        f"{treated.effective:,.0f}, the {control.purchases:,} control purchases that of {control.effective:,.0f}."
    )
    return Finding("good", sentence, _GO_ON)


def _capital(sentence: str) -> str:
    return sentence[0].upper() + sentence[1:]
