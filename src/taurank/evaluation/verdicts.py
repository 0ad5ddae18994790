"""Whether an estimate can be believed: one sentence in front of every number.

The checks, in order: is the model measured on its own training log; do the propensities fit what the list was shown;
was everything on it sometimes shown and sometimes not; is the number possible; do enough purchases and users stand
behind it; do the estimators agree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from taurank.errors import plural
from taurank.evaluation.evidence import Evidence
from taurank.evaluation.tallies import TalliedEvidence
from taurank.evaluation.uncertainty import Uncertainty
from taurank.evaluation.wording import OVERLAP_LIMIT, number, span

FEW_PURCHASES = 10.0
FEW_USERS = 20
MISFIT = 0.1  # propensities may be off by this share on average before the estimate is refused

_SHOW_MORE = "show these items to a random share of the users for a while"


@dataclass(frozen=True)
class Verdict:
    """``believe`` or not, the ``reason``, and the ``next_step``; ``str`` is the sentence that leads an estimate.

    ``caution`` is what a reader must know before the number although it is believed.
    """

    believe: bool
    reason: str
    next_step: str
    caution: str = ""

    def __str__(self) -> str:
        start = "Believe it" if self.believe else "Do not believe it"
        start += f" with caution ({self.caution})" if self.caution else ""
        return f"{start}, because {self.reason}; {self.next_step}."


@dataclass(frozen=True, eq=False)
class Case:
    """What a verdict is about: the recommended estimate, the second opinions, and the evidence for them."""

    answer: Uncertainty
    others: Sequence[tuple[str, Uncertainty]]
    evidence: Evidence | TalliedEvidence
    level: float = 0.95
    trained_here: bool = False


def judge(case: Case) -> Verdict:
    """The verdict on one metric of one ranking."""
    for check in _CHECKS:
        refusal = check(case)
        if refusal is not None:
            return Verdict(False, *refusal)
    return _confirmed(case)


Refusal = tuple[str, str] | None


def _trained(case: Case) -> Refusal:
    if not case.trained_here:
        return None
    return "the model was trained on the log it is measured on", "measure it on another log, for example a later week"


def _misfit(case: Case) -> Refusal:
    ratio, low, high = case.evidence.exposure
    if ratio > 1.0 + MISFIT and low > 1.0:
        return (
            f"the log shows the items on this list {number(ratio)} times as often as its propensities say",
            "record the propensities, or estimate them with what decides who is shown what",
        )
    if ratio < 1.0 - MISFIT and high < 1.0:
        return (
            f"{1.0 - ratio:.0%} of the list lies on pairs that the log never shows, or its propensities are wrong",
            _SHOW_MORE,
        )
    return None


def _overlap(case: Case) -> Refusal:
    share = case.evidence.overlap_share
    if share <= OVERLAP_LIMIT:
        return None
    bounds = span(case.evidence.worst_case(case.level))
    return (
        f"{share:.0%} of its weight falls on pairs that are shown almost always or almost never (propensity within "
        f"0.001 of 1 or 0); all that is certain is {bounds}",
        "withhold or show these pairs at random some of the time",
    )


def _impossible(case: Case) -> Refusal:
    own, (low, high) = case.evidence.own_purchases, case.answer.interval(case.level)
    if low <= own and high >= -own:
        return None
    return (
        f"{number(case.answer.estimate)} is more than all purchases of the log could be worth ({number(own)})",
        "check the propensities, and show these items to more users",
    )


def _few_purchases(case: Case) -> Refusal:
    purchases = case.evidence.purchases
    if purchases >= FEW_PURCHASES:
        return None
    return (
        f"it rests on an effective number of {number(purchases)} purchases of recommended items "
        f"(at least {FEW_PURCHASES:g} needed)",
        f"collect a longer log, or {_SHOW_MORE}",
    )


def _few_users(case: Case) -> Refusal:
    if case.evidence.n_users >= FEW_USERS:
        return None
    return f"it rests on {plural(case.evidence.n_users, 'user')} (at least {FEW_USERS} needed)", "collect more users"


def _disagreement(case: Case) -> Refusal:
    low, high = case.answer.interval(case.level)
    for name, other in case.others:
        other_low, other_high = other.interval(case.level)
        if not low <= other.estimate <= high and not other_low <= case.answer.estimate <= other_high:
            return (
                f"{name} says {number(other.estimate)}, outside its interval, and the other way round",
                "check the propensities with taurank.propensity.diagnose",
            )
    return None


_CHECKS: tuple[Callable[[Case], Refusal], ...] = (
    _trained, _misfit, _overlap, _impossible, _few_purchases, _few_users, _disagreement,
)  # fmt: skip


def _confirmed(case: Case) -> Verdict:
    low, high = case.answer.interval(case.level)
    ground = (
        f"the propensities fit, the estimators agree and an effective number of {number(case.evidence.purchases)} "
        "purchases of recommended items supports it"
    )
    caution = " and ".join(_cautions(case))
    if low <= 0.0 <= high:
        return Verdict(
            True, f"{ground}, but its interval includes 0", "collect a longer log to tell its sign", caution
        )
    return Verdict(True, ground, "confirm it on a random part of the users", caution)


def _cautions(case: Case) -> Iterator[str]:
    own = case.evidence.own_purchases
    if abs(case.answer.estimate) > own:
        yield f"{number(case.answer.estimate)} is more than all purchases of the log are worth, {number(own)}"
    if len(case.answer.per_time) == 2:  # docs/estimates.md
        yield "two times say little about how times differ, so that a 95% interval may cover 88% only"
