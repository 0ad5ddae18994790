"""Learning from the service's own log: export, ask whether the log can tell, fit, estimate, register.

A new model becomes a challenger, never the incumbent: traffic is earned at the gate. Before that it must not
look worse than the incumbent by the estimate

    v(π′) = mean over decisions of Σ_i π′_i [Z_i Y_i / π_i − (1 − Z_i) Y_i / (1 − π_i)],

the purchases that lists drawn with π′ would have caused in the last period, which the model has not seen.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from taurank.data.log import Log
from taurank.errors import InputError
from taurank.estimation.overlap import diagnose
from taurank.learners import LEARNERS, Learner
from taurank.serve.deciding import Decider
from taurank.serve.export import drawn_decisions, export, settled_periods
from taurank.serve.models import ServedModel, add_model, model_bytes
from taurank.serve.promotion import DEFAULT_SHARE, start_challenger
from taurank.serve.settling import GRACE_SECONDS, settle
from taurank.serve.surfaces import Surface, note
from taurank.serve.updates import new_periods, updated, why_not

UNFAIR = "no period has ended since the incumbent was stored: on those that it has learned from it looks too good"
MIN_EFFECTIVE = 50.0  # purchases in each arm, after weighting (Kish)


@dataclass(frozen=True)
class RetrainConfig:
    """How to retrain: a learner by name with its settings, on the ``last`` periods, for a ``share`` of users.

    With ``update`` the incumbent learns from the periods since it was stored, where it is such a learner.
    """

    learner: str = "dlce"
    settings: dict[str, Any] = field(default_factory=dict)
    share: float = DEFAULT_SHARE
    last: int | None = None
    update: bool = False

    def make(self) -> Learner:
        if self.learner.lower() not in LEARNERS:
            raise InputError(f"there is no learner '{self.learner}'; known are {', '.join(LEARNERS)}.")
        try:
            return LEARNERS[self.learner.lower()](**self.settings)
        except TypeError as error:
            raise InputError(f"{self.learner} does not take the settings {', '.join(self.settings)}.") from error

    def fitted(self, log: Log) -> Learner:
        """The learner, fitted; a part of the log is held out to end the training unless ``epochs`` are set."""
        return self.make().fit(log, None if "epochs" in self.settings else "auto")


@dataclass(frozen=True)
class Estimate:
    """Caused purchases (or value) per decision, new model minus incumbent, with a 95 % interval."""

    difference: float
    low: float
    high: float
    decisions: int


@dataclass(frozen=True)
class Retrained:
    """What came of it: a challenger, or the reason why not."""

    version: str | None
    words: str
    estimate: Estimate | None = None


def retrain(decider: Decider, name: str, config: RetrainConfig, grace: float = GRACE_SECONDS) -> Retrained:
    """One round of learning for a surface."""
    config.make()  # a mistake in the plan shows before the work
    now = decider.clock()
    decider.surfaces.refresh()
    surface = decider.surfaces.get(name)
    if surface.incumbent is None:
        raise InputError(f"surface '{name}' has no incumbent; promote a first model, for example popular.")
    settle(decider, surface, now, grace)
    periods = settled_periods(decider, surface, config.last)
    log = export(decider, surface, config.last).log
    new = new_periods(decider, surface, periods, grace)
    doubt = cannot_tell(log) or ("" if periods[-1] in new else UNFAIR)
    if doubt:
        return _refused(decider, surface, doubt, now)
    training = _training(decider, surface, config, new)
    earlier = training.learner(log.split(times=1)[0], 1)
    estimate = compare_offline(decider, surface, earlier, periods[-1])
    if estimate.high < 0:
        words = f"it looks worse than the incumbent in the last period ({_interval(surface, estimate)})"
        return _refused(decider, surface, training.added_to(words), now, estimate)
    about = f"{config.learner}, {training.words or f'{log.n_times} periods'}"
    row = add_model(decider.store, model_bytes(training.learner(log)), about, now)
    result = _register(decider, surface, row["version"], config.share, estimate, now)
    return replace(result, words=training.added_to(result.words))


@dataclass(frozen=True)
class _Training:
    """A fit from nothing, or an update with the last ``new`` periods."""

    decider: Decider
    surface: Surface
    config: RetrainConfig
    new: int = 0
    words: str = ""

    def learner(self, log: Log, without: int = 0) -> Learner:
        """Trained on a log that lacks so many of the last periods."""
        if not self.new:
            return self.config.fitted(log)
        return updated(self.decider, self.surface, log, self.new - without)

    def added_to(self, words: str) -> str:
        return f"{words}; {self.words}" if self.words else words


def _training(decider: Decider, surface: Surface, config: RetrainConfig, new: list[int]) -> _Training:
    if not config.update:
        return _Training(decider, surface, config)
    reason = why_not(decider, surface, type(config.make()), new)
    if reason:
        return _Training(decider, surface, config, words=f"fitted from nothing, because {reason}")
    words = f"update of '{surface.incumbent}' with {len(new)} periods"
    return _Training(decider, surface, config, len(new), words)


def cannot_tell(log: Log) -> str:
    """Why effects cannot be learned from this log; empty if they can."""
    if log.n_times < 2:
        return "the log has fewer than two settled periods"
    diagnosis = diagnose(log)
    for arm in (diagnosis.treated, diagnosis.control):
        if arm.effective < MIN_EFFECTIVE:
            effective = f"{arm.effective:.0f} after weighting, {MIN_EFFECTIVE:.0f} are needed"
            return f"the {arm.name} arm has too few purchases: {effective}"
    return ""


def compare_offline(decider: Decider, surface: Surface, learner: Learner, period: int) -> Estimate:
    """The new model against the incumbent, on the decisions of one period."""
    model = ServedModel("new", learner)
    incumbent = decider.models.get(surface.incumbent or "")
    differences = []
    for decision, positives in drawn_decisions(decider, surface, [period]):
        value = 0.0
        if positives:
            new = decider.propensities_of(decision, model, surface.policy)
            old = decider.propensities_of(decision, incumbent, surface.policy)
            for row in positives:
                weight = 1 / row["propensity"] if row["treated"] else -1 / (1 - row["propensity"])
                value += (
                    surface.worth(row["value"])
                    * weight
                    * (new.get(row["item_id"], 0.0) - old.get(row["item_id"], 0.0))
                )
        differences.append(value)
    values = np.array(differences)
    error = 1.96 * float(values.std(ddof=1)) / np.sqrt(len(values)) if len(values) > 1 else np.inf
    mean = float(values.mean()) if len(values) else 0.0
    return Estimate(mean, mean - error, mean + error, len(values))


def _register(
    decider: Decider, surface: Surface, version: str, share: float, estimate: Estimate, now: float
) -> Retrained:
    words = f"estimated against the incumbent: {_interval(surface, estimate)}"
    if surface.challenger is not None:
        return Retrained(version, f"stored, but '{surface.challenger}' is still the challenger; {words}", estimate)
    if version == surface.incumbent:
        return Retrained(version, "the same model as the incumbent", estimate)
    start_challenger(decider.store, surface.name, version, share, words, now)
    return Retrained(version, f"challenger with {share:.0%} of the users; {words}", estimate)


def _refused(
    decider: Decider, surface: Surface, words: str, now: float, estimate: Estimate | None = None
) -> Retrained:
    with decider.store.write() as connection:
        note(connection, surface.name, "not retrained", None, words, now)
    return Retrained(None, words, estimate)


def _interval(surface: Surface, estimate: Estimate) -> str:
    between = f"{estimate.low:+.4f} to {estimate.high:+.4f}"
    return f"{estimate.difference:+.4f} {surface.unit} per decision, 95 % {between}"
