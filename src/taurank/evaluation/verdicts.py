"""Whether an estimate can be believed: one sentence in front of every number.

The checks, in order: is the model measured on its own training log; do the propensities fit what the list was shown;
was everything on it sometimes shown and sometimes not; is the number possible; do enough purchases and users stand
behind it; do the estimators agree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from taurank.errors import plural
from taurank.evaluation.evidence import IPS, SNIPS, Evidence
from taurank.evaluation.wording import OVERLAP_LIMIT, number, span

if TYPE_CHECKING:
    from taurank.evaluation.results import Difference, MetricResult

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


def judge(evidence: Evidence, level: float = 0.95, trained_here: bool = False) -> Verdict:
    """The verdict on one metric of one ranking."""
    if trained_here:
        reason = "the model was trained on the log it is measured on"
        return Verdict(False, reason, "measure it on another log, for example a later week")
    for check in _CHECKS:
        refusal = check(evidence, level)
        if refusal is not None:
            return Verdict(False, *refusal)
    return _confirmed(evidence, level)


Refusal = tuple[str, str] | None


def _misfit(evidence: Evidence, level: float) -> Refusal:
    ratio, low, high = evidence.exposure
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


def _overlap(evidence: Evidence, level: float) -> Refusal:
    share = evidence.overlap_share
    if share <= OVERLAP_LIMIT:
        return None
    bounds = span(evidence.worst_case(level))
    return (
        f"{share:.0%} of its weight falls on pairs that are shown almost always or almost never (propensity within "
        f"0.001 of 1 or 0); all that is certain is {bounds}",
        "withhold or show these pairs at random some of the time",
    )


def _impossible(evidence: Evidence, level: float) -> Refusal:
    own, (low, high) = evidence.own_purchases, evidence.own.interval(level)
    if low <= own and high >= -own:
        return None
    return (
        f"{number(evidence.own.mean)} is more than all purchases of the log could be worth ({number(own)})",
        "check the propensities, and show these items to more users",
    )


def _few_purchases(evidence: Evidence, level: float) -> Refusal:
    purchases = evidence.purchases
    if purchases >= FEW_PURCHASES:
        return None
    return (
        f"it rests on an effective number of {number(purchases)} purchases of recommended items "
        f"(at least {FEW_PURCHASES:g} needed)",
        f"collect a longer log, or {_SHOW_MORE}",
    )


def _few_users(evidence: Evidence, level: float) -> Refusal:
    if evidence.n_users >= FEW_USERS:
        return None
    return f"it rests on {plural(evidence.n_users, 'user')} (at least {FEW_USERS} needed)", "collect more users"


def _disagreement(evidence: Evidence, level: float) -> Refusal:
    low, high = evidence.own.interval(level)
    for name, other in ((SNIPS.name, evidence.snips), (IPS.name, evidence.ips)):
        other_low, other_high = other.interval(level)
        if not low <= other.mean <= high and not other_low <= evidence.own.mean <= other_high:
            return (
                f"{name} says {number(other.mean)}, outside its interval, and the other way round",
                "check the propensities with taurank.propensity.diagnose",
            )
    return None


_CHECKS: tuple[Callable[[Evidence, float], Refusal], ...] = (
    _misfit, _overlap, _impossible, _few_purchases, _few_users, _disagreement,
)  # fmt: skip


def _confirmed(evidence: Evidence, level: float) -> Verdict:
    low, high = evidence.own.interval(level)
    ground = (
        f"the propensities fit, the estimators agree and an effective number of {number(evidence.purchases)} "
        "purchases of recommended items supports it"
    )
    caution = " and ".join(_cautions(evidence))
    if low <= 0.0 <= high:
        return Verdict(
            True, f"{ground}, but its interval includes 0", "collect a longer log to tell its sign", caution
        )
    return Verdict(True, ground, "confirm it on a random part of the users", caution)


def _cautions(evidence: Evidence) -> Iterator[str]:
    own = evidence.own_purchases
    if abs(evidence.own.mean) > own:
        yield f"{number(evidence.own.mean)} is more than all purchases of the log are worth, {number(own)}"
    if len(evidence.own.per_time) == 2:  # docs/estimates.md
        yield "two times say little about how times differ, so that a 95% interval may cover 88% only"


Choice = tuple[str | None, Verdict | None]


def choose(metrics: Mapping[str, MetricResult], baseline: str, differences: Mapping[str, Difference]) -> Choice:
    """The best of several rankings by one metric, and why to believe it; None if the log cannot tell."""
    own = metrics[baseline].verdict
    if own is None:
        return None, None
    if not own.believe:
        return None, _about(baseline, own)
    refused = {name: one.verdict for name, one in metrics.items() if one.verdict and not one.verdict.believe}
    believed = {name: one for name, one in differences.items() if name not in refused}
    if not believed:
        return (baseline, own) if not refused else (None, _about(*next(iter(refused.items()))))
    metric = metrics[baseline].metric
    sign = 1.0 if metric.larger_is_better else -1.0
    name, best = max(believed.items(), key=lambda one: sign * one[1].difference)
    figure = f"{metric.name} {number(best.difference)}, {span((best.low, best.high))}"
    n_all = len(differences)
    others = f" ({len(refused)} of {n_all} rankings are not believable)" if refused else ""
    if best.winner == "first":
        reason = f"{name} is clearly better than {baseline} ({figure}){others}"
        return name, Verdict(True, reason, "confirm it on a random part of the users")
    if all(one.winner == "second" for one in believed.values()):
        reason = f"{baseline} is clearly better than the others (best of them: {figure}){others}"
        return baseline, Verdict(True, reason, f"stay with {baseline}")
    reason = f"no ranking is clearly better than {baseline} (best: {name}, {figure}){others}"
    return None, Verdict(False, reason, "collect a longer log, or show more at random")


def _about(name: str, verdict: Verdict) -> Verdict:
    return replace(verdict, reason=f"for {name} {verdict.reason}", caution="")
