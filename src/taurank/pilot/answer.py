"""The answer of a pilot in one sentence: what to show, or why the log cannot tell and which experiment would."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from taurank._types import Longs
from taurank.data.log import Log
from taurank.errors import InputError
from taurank.evaluation.curves import Curve
from taurank.evaluation.results import Comparison, Difference
from taurank.pilot.categories import Categories, Ranking
from taurank.pilot.config import PilotConfig
from taurank.pilot.power import SHARES, ExperimentDesign, power
from taurank.report.diagnosis import Diagnosis

TODAY = "today"
SHARE_TO_DETECT = 0.1  # of the log's purchases: the effect to detect, if the plan names none
MANY_SHOWS = 1.2  # of an item in a period, from which on they are counted in the answer
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


@dataclass(frozen=True, eq=False)
class Setting:
    """What an answer is about: the log, its last periods, and what users can be shown.

    ``shows`` is how often an item that is shown to a user in a period is shown in it, None if the log does not say;
    ``notes`` say which tables were derived.
    """

    config: PilotConfig
    log: Log
    test: Log
    categories: Categories | None
    shows: float | None
    notes: tuple[str, ...]

    @property
    def period(self) -> str:
        period = self.config.log.period
        return period if self.config.tables.log is None and period in ("day", "week", "month") else "period"

    @property
    def per(self) -> str:
        """What an effect is a mean over: with visits, users count in the periods in which they came."""
        return f"{'visiting ' if self.log.eligibility.has_visits else ''}user and {self.period}"

    @property
    def shown(self) -> str:
        """How the items are shown, in the log as in what is estimated from it."""
        if self.shows is None:
            return f"shown in a {self.period}"
        often = "once" if self.shows < MANY_SHOWS else f"{self.shows:.1f} times"
        return f"shown {often} in a {self.period}"

    @property
    def visits(self) -> Longs:
        """At how many times each user could be shown something."""
        return self.log.eligibility.visits(np.ones(self.log.n_users, np.bool_))[0]

    @property
    def purchases_per_visit(self) -> float:
        return float(np.count_nonzero(self.log.outcome) / max(1, self.visits.sum()))

    @property
    def items_per_user(self) -> int:
        """The items that a user can be shown: those of the user's categories."""
        known = self.log.eligibility.cells_by_item > 0
        if self.categories is None:
            return int(np.count_nonzero(known))
        own, category = self.categories.own, self.categories.category
        sizes = own @ np.bincount(category[known], minlength=own.shape[1])
        return int(sizes[sizes > 0].mean()) if sizes.any() else 0


@dataclass(frozen=True, eq=False, repr=False)
class Pilot:
    """The result of a pilot; ``print`` leads with the answer.

    ``estimate`` compares the rankings on the last periods, ``setting.test``; it is None if ``gate``, the diagnosis,
    refused the log, and then nothing was trained. ``rankings`` were fitted to the periods before. If a learner was
    chosen, ``model`` is fitted to all of them. ``folder`` has ``report.html``, the plan and the stages, and with a
    model also ``model`` and ``recommendations.parquet``. ``curve`` is the effect of the choice by the number of
    items, ``by_items`` splits lists by segments of items, if the plan names a column of the candidates.
    """

    answer: Answer
    estimate: Comparison | None
    gate: Diagnosis
    rankings: Mapping[str, Ranking]
    model: Ranking | None
    setting: Setting
    folder: Path
    curve: Curve | None = None
    by_items: Comparison | None = None

    @property
    def cautions(self) -> list[str]:
        later = [] if self.gate.later is None else self.gate.later.sentences
        return [] if self.estimate is None else [*later, *self.estimate.cautions]

    def table(self, segment: str = "all", compared: Comparison | None = None) -> pd.DataFrame:
        """The recommended estimate of every ranking and its difference from the baseline, in purchases."""
        options, compared = self.setting.config.pilot, compared or self.estimate
        if compared is None:
            return pd.DataFrame()
        k, metric, rows = options.k, options.metric, []
        compared = compared if segment == "all" else compared.segments[segment]
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
            within = "" if self.setting.categories is None else " The items are those of a user's own categories."
            lines.append(f"To find out: {self.answer.experiment}{within}")
        lines += [*self.cautions, *self.setting.notes]
        table = [] if self.estimate is None else ["", self.table().to_string(index=False)]
        return "\n".join([*lines, *table, ""])


def decide(setting: Setting, estimate: Comparison, bought_anyway: Callable[[], float]) -> Answer:
    """The estimate's choice; ``bought_anyway`` is asked for only where an experiment has to be designed."""
    verdict = estimate.verdict
    assert verdict is not None
    if estimate.choice is None:
        return unknown(setting, verdict.reason, verdict.next_step, bought_anyway())
    metric = setting.config.pilot.metric
    pairs = {name: pair for (name, each), pair in estimate.differences.items() if each == metric}
    baseline = name_of(estimate.baseline)
    if estimate.choice != estimate.baseline:
        sentence = f"Show {estimate.choice}: {_difference(setting, pairs[estimate.choice])} than {baseline}."
        return Answer("show", estimate.choice, sentence, verdict.next_step)
    sentence = f"Keep {baseline}: no other ranking was compared."
    if pairs:
        best = max(pairs, key=lambda name: pairs[name].difference)
        sentence = f"Keep {baseline}: of the others {best} comes closest, and {_difference(setting, pairs[best])}."
    return Answer("keep", estimate.choice, sentence, verdict.next_step)


def unknown(setting: Setting, reason: str, next_step: str, bought_anyway: float) -> Answer:
    """Why the log cannot tell, and the experiment that would."""
    sentence = f"The log cannot tell which ranking is best: {reason.rstrip('.')}."
    return Answer("unknown", None, sentence, next_step, _experiment(setting, bought_anyway))


def name_of(ranker: str) -> str:
    return "today's ranking" if ranker == TODAY else ranker


def number(value: float) -> str:
    return "" if not np.isfinite(value) else f"{value:.3f}"


def span(low: float, high: float) -> str:
    return f"{low:.3f} to {high:.3f}"


def _difference(setting: Setting, pair: Difference) -> str:
    """CP@k is a mean over k items; a shop counts purchases."""
    options = setting.config.pilot
    low, middle, high = (options.k * end for end in (pair.low, pair.difference, pair.high))
    word = "more" if middle >= 0 else "fewer"
    low, high = (low, high) if middle >= 0 else (-high, -low)
    return (
        f"its first {options.k} items, {setting.shown}, cause {abs(middle):.3g} {word} purchases per {setting.per} "
        f"({options.level:.0%} interval {low:.3g} to {high:.3g})"
    )


def _experiment(setting: Setting, bought_anyway: float) -> ExperimentDesign | None:
    """The smallest share of randomized slots that detects the effect in a few weeks; all slots if none does."""
    k, items = setting.config.pilot.k, setting.items_per_user
    effect = setting.config.pilot.effect or SHARE_TO_DETECT * setting.purchases_per_visit
    if items < k or not effect:
        return None
    sizes: dict[str, Any] = {
        "effect": min(effect, float(k)), "users": setting.log.n_users, "items": items, "slots": k,
        "visits": float(setting.visits.mean() / setting.log.n_times), "bought_anyway": min(bought_anyway, k - effect),
    }  # fmt: skip
    try:
        designs = [power(**sizes, randomized=share) for share in SHARES if share * k < items]
    except InputError:
        return None
    return next((one for one in designs if one.weeks <= MAX_WEEKS), designs[-1])
