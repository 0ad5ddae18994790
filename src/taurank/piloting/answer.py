"""The answer of a pilot in one sentence: what to show, or why the log cannot tell and which experiment would."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from taurank.data.log import Log
from taurank.errors import InputError
from taurank.evaluation.estimates import Estimate
from taurank.piloting import power as planning
from taurank.piloting.gate import Gate, candidates_of, visits_of
from taurank.piloting.plan import Plan

TODAY = "today"
WORTH = 0.1  # of the log's purchases: the effect to detect, if the plan names none
PATIENCE = 8.0  # weeks that an experiment should take at most

Decision = Literal["show", "keep", "unknown"]
KINDS: dict[Decision, str] = {"show": "good", "keep": "caution", "unknown": "poor"}


@dataclass(frozen=True)
class Answer:
    """``decision`` is "show" (another ranking), "keep" (the baseline) or "unknown"; ``choice`` is the ranker."""

    decision: Decision
    choice: str | None
    sentence: str
    next_step: str
    experiment: planning.Plan | None = None

    def __str__(self) -> str:
        return self.sentence


def decide(plan: Plan, estimate: Estimate, gate: Gate, log: Log, bought_anyway: float) -> Answer:
    """The answer: the estimate's choice, unless the propensities do not pass the gate."""
    if gate.refuses:
        return _unknown(plan, gate.sentence, "record the propensities of what is shown", log, bought_anyway)
    if estimate.choice is None:
        return _unknown(plan, estimate.verdict.reason, estimate.verdict.next_step, log, bought_anyway)
    rows = estimate.differences
    if "segment" in rows:
        rows = rows[rows["segment"] == "all"]
    rows = rows[rows["metric"] == plan.metric].set_index("ranker")
    if estimate.choice == estimate.baseline:
        best = rows["difference"].idxmax() if len(rows) else None
        return Answer("keep", estimate.choice, _kept(plan, estimate, rows, best), estimate.verdict.next_step)
    row = rows.loc[estimate.choice]
    sentence = f"Show {estimate.choice}: {_difference(plan, row)} than {name_of(estimate.baseline)}."
    return Answer("show", estimate.choice, sentence, estimate.verdict.next_step)


def name_of(ranker: str) -> str:
    return "today's ranking" if ranker == TODAY else ranker


def _difference(plan: Plan, row: Any) -> str:
    """CP@k is a mean over k items; a shop counts purchases."""
    low, middle, high = (plan.k * float(row[end]) for end in ("low", "difference", "high"))
    word = "more" if middle >= 0 else "fewer"
    low, high = (low, high) if middle >= 0 else (-high, -low)
    return (
        f"its first {plan.k} items cause {abs(middle):.3g} {word} purchases per {plan.per} "
        f"({plan.level:.0%} interval {low:.3g} to {high:.3g})"
    )


def _kept(plan: Plan, estimate: Estimate, rows: Any, best: Any) -> str:
    start = f"Keep {name_of(estimate.baseline)}:"
    if best is None:
        return f"{start} no other ranking was compared."
    return f"{start} of the others {best} comes closest, and {_difference(plan, rows.loc[best])}."


def _unknown(plan: Plan, reason: str, next_step: str, log: Log, bought_anyway: float) -> Answer:
    experiment = _experiment(plan, log, bought_anyway)
    sentence = f"The log cannot tell which ranking is best: {reason.rstrip('.')}."
    return Answer("unknown", None, sentence, next_step, experiment)


def _experiment(plan: Plan, log: Log, bought_anyway: float) -> planning.Plan | None:
    """The smallest share of randomized slots that detects the effect in a few weeks; all slots if none does."""
    visits, items = visits_of(log), candidates_of(log)
    effect = plan.effect or WORTH * np.count_nonzero(log.outcome) / visits
    if items < plan.k or not effect:
        return None
    sizes: dict[str, Any] = {
        "effect": min(effect, float(plan.k)), "users": log.n_users, "items": items, "slots": plan.k,
        "visits": min(1.0, visits / (log.n_users * log.n_times)),
        "bought_anyway": min(bought_anyway, plan.k - effect),
    }  # fmt: skip
    try:
        plans = [planning.power(**sizes, randomized=share) for share in planning.SHARES if share * plan.k < items]
    except InputError:
        return None
    return next((one for one in plans if one.weeks <= PATIENCE), plans[-1])
