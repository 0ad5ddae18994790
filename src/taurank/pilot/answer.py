"""The answer of a pilot in one sentence: what to show, or why the log cannot tell and which experiment would."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from taurank.data.log import Log
from taurank.errors import InputError
from taurank.evaluation.results import Comparison, Difference
from taurank.pilot.categories import Ranking
from taurank.pilot.config import PilotConfig
from taurank.pilot.gate import Gate, visits_of
from taurank.pilot.power import SHARES, ExperimentDesign, power

TODAY = "today"
SHARE_TO_DETECT = 0.1  # of the log's purchases: the effect to detect, if the plan names none
MAX_WEEKS = 8.0  # that a proposed experiment should take

Decision = Literal["show", "keep", "unknown"]
KINDS: dict[Decision, str] = {"show": "good", "keep": "caution", "unknown": "poor"}


@dataclass(frozen=True)
class Answer:
    """``decision`` is "show" (another ranking), "keep" (the baseline) or "unknown"; ``choice`` is the ranker."""

    decision: Decision
    choice: str | None
    sentence: str
    next_step: str
    experiment: ExperimentDesign | None = None

    def __str__(self) -> str:
        return self.sentence


@dataclass(frozen=True, eq=False, repr=False)
class Pilot:
    """The result of a pilot; ``print`` leads with the answer.

    ``estimate`` compares the rankings on the last periods, ``test``; it is None if the gate refused the log, and then
    nothing was trained. ``rankings`` were fitted to the periods before. If a learner was chosen, ``model`` is fitted
    to all of them. ``folder`` has ``report.html``, the plan and the stages, and with a model also ``model`` and
    ``recommendations.parquet``.
    """

    answer: Answer
    estimate: Comparison | None
    gate: Gate
    rankings: Mapping[str, Ranking]
    model: Ranking | None
    config: PilotConfig
    log: Log
    test: Log
    folder: Path

    @property
    def cautions(self) -> list[str]:
        return [] if self.estimate is None else self.estimate.cautions

    def table(self, segment: str = "all") -> pd.DataFrame:
        """The recommended estimate of every ranking and its difference from the baseline, in purchases."""
        k, compared = self.config.pilot.k, self.estimate
        if compared is None:
            return pd.DataFrame()
        metric, compared = self.config.pilot.metric, compared if segment == "all" else compared.segments[segment]
        rows = []
        for name, result in compared.items():
            own, apart = result[metric], compared.differences.get((name, metric))
            rows.append({
                "ranking": name, "purchases": number(k * own.mean), "interval": span(k * own.low, k * own.high),
                f"minus {compared.baseline}": "" if apart is None else number(k * apart.difference),
                "paired interval": "" if apart is None else span(k * apart.low, k * apart.high),
                "believe": "yes" if own.verdict is not None and own.verdict.believe else "no",
            })  # fmt: skip
        return pd.DataFrame(rows)

    def __repr__(self) -> str:
        return f"Pilot({self.answer.sentence!r})"

    def __str__(self) -> str:
        lines = [self.answer.sentence, f"Next: {self.answer.next_step}."]
        if self.answer.experiment is not None:
            lines.append(f"To find out: {self.answer.experiment}")
        lines += self.cautions
        table = [] if self.estimate is None else ["", self.table().to_string(index=False)]
        return "\n".join([*lines, *table, ""])


def decide(config: PilotConfig, estimate: Comparison, log: Log, bought_anyway: Callable[[], float]) -> Answer:
    """The estimate's choice; ``bought_anyway`` is asked for only where an experiment has to be designed."""
    verdict = estimate.verdict
    assert verdict is not None
    if estimate.choice is None:
        return unknown(config, verdict.reason, verdict.next_step, log, bought_anyway())
    pairs = {name: pair for (name, metric), pair in estimate.differences.items() if metric == config.pilot.metric}
    baseline = name_of(estimate.baseline)
    if estimate.choice != estimate.baseline:
        sentence = f"Show {estimate.choice}: {_difference(config, pairs[estimate.choice])} than {baseline}."
        return Answer("show", estimate.choice, sentence, verdict.next_step)
    sentence = f"Keep {baseline}: no other ranking was compared."
    if pairs:
        best = max(pairs, key=lambda name: pairs[name].difference)
        sentence = f"Keep {baseline}: of the others {best} comes closest, and {_difference(config, pairs[best])}."
    return Answer("keep", estimate.choice, sentence, verdict.next_step)


def unknown(config: PilotConfig, reason: str, next_step: str, log: Log, bought_anyway: float) -> Answer:
    """Why the log cannot tell, and the experiment that would."""
    sentence = f"The log cannot tell which ranking is best: {reason.rstrip('.')}."
    return Answer("unknown", None, sentence, next_step, _experiment(config, log, bought_anyway))


def name_of(ranker: str) -> str:
    return "today's ranking" if ranker == TODAY else ranker


def number(value: float) -> str:
    return "" if not np.isfinite(value) else f"{value:.3f}"


def span(low: float, high: float) -> str:
    return f"{low:.3f} to {high:.3f}"


def _difference(config: PilotConfig, pair: Difference) -> str:
    """CP@k is a mean over k items; a shop counts purchases."""
    k = config.pilot.k
    low, middle, high = (k * end for end in (pair.low, pair.difference, pair.high))
    word = "more" if middle >= 0 else "fewer"
    low, high = (low, high) if middle >= 0 else (-high, -low)
    return (
        f"its first {k} items cause {abs(middle):.3g} {word} purchases per {config.per} "
        f"({config.pilot.level:.0%} interval {low:.3g} to {high:.3g})"
    )


def purchases_per_visit(log: Log) -> float:
    return float(np.count_nonzero(log.outcome) / max(1, visits_of(log).sum()))


def _experiment(config: PilotConfig, log: Log, bought_anyway: float) -> ExperimentDesign | None:
    """The smallest share of randomized slots that detects the effect in a few weeks; all slots if none does."""
    k, items = config.pilot.k, int(np.count_nonzero(log.eligibility.cells_by_item))
    effect = config.pilot.effect or SHARE_TO_DETECT * purchases_per_visit(log)
    if items < k or not effect:
        return None
    sizes: dict[str, Any] = {
        "effect": min(effect, float(k)), "users": log.n_users, "items": items, "slots": k,
        "visits": float(visits_of(log).mean() / log.n_times), "bought_anyway": min(bought_anyway, k - effect),
    }  # fmt: skip
    try:
        designs = [power(**sizes, randomized=share) for share in SHARES if share * k < items]
    except InputError:
        return None
    return next((one for one in designs if one.weeks <= MAX_WEEKS), designs[-1])
