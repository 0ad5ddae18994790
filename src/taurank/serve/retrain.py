"""Learning from the service's own log: export, ask whether the log can tell, fit, estimate, register.

A new model becomes a challenger, never the incumbent: traffic is earned at the gate. Before that it must not
look worse than the incumbent by the estimate

    v(π′) = mean over decisions of Σ_i π′_i [Z_i Y_i / π_i − (1 − Z_i) Y_i / (1 − π_i)],

the purchases that lists drawn with π′ would have caused in the last period, which the model has not seen.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from sqlalchemy import select

from taurank.data.features import Features
from taurank.data.log import Log
from taurank.errors import InputError
from taurank.learners import Learner, learner_class
from taurank.report.diagnosis import diagnose
from taurank.serve import tables
from taurank.serve.decisions import Decider
from taurank.serve.imports import read_features
from taurank.serve.models import ServedModel, add_model, model_bytes
from taurank.serve.settlement import GRACE_SECONDS, drawn_decisions, effect, export, settle, settled_periods
from taurank.serve.surfaces import DEFAULT_SHARE, Surface, note, start_challenger

MIN_EFFECTIVE = 50.0  # purchases in each arm, after weighting (Kish)


@dataclass(frozen=True)
class RetrainConfig:
    """How to retrain: a learner by name with its settings, on the ``last`` periods, for a ``share`` of users."""

    learner: str = "empiricalbayes"
    settings: dict[str, Any] = field(default_factory=dict)
    share: float = DEFAULT_SHARE
    last: int | None = None

    def make(self) -> Learner:
        try:
            return learner_class(self.learner)(**self.settings)
        except TypeError as error:
            raise InputError(f"{self.learner} does not take the settings {', '.join(self.settings)}.") from error

    def fitted(self, log: Log, features: Features | None = None) -> Learner:
        """The learner, fitted; it chooses its own length unless ``epochs`` are set."""
        learner = self.make()
        used: dict[str, Any] = {"features": features} if features is not None and learner.uses_features else {}
        return learner.fit(log, None if "epochs" in self.settings else "auto", **used)


@dataclass(frozen=True)
class OfflineDifference:
    """Caused purchases (or value) per decision, new model minus incumbent, with a 95% interval."""

    difference: float
    low: float
    high: float

    def text(self, unit: str) -> str:
        return f"{self.difference:+.4f} {unit} per decision, 95% {self.low:+.4f} to {self.high:+.4f}"


@dataclass(frozen=True)
class Retrained:
    """What came of it: the version of the new model, or the reason why there is none."""

    version: str | None
    reason: str
    estimate: OfflineDifference | None = None


def retrain(decider: Decider, name: str, config: RetrainConfig, grace: float = GRACE_SECONDS) -> Retrained:
    """One round of learning for a surface."""
    config.make()  # a mistake in the settings shows before the work
    now, store = decider.clock(), decider.store
    decider.surfaces.refresh()
    surface = decider.surfaces.get(name)
    if surface.incumbent is None:
        raise InputError(f"surface '{name}' has no incumbent; promote a first model, for example popular.")
    settle(decider, surface, now, grace)
    periods = settled_periods(decider, surface, config.last)
    features, catalog = read_features(store)
    log = export(decider, surface, config.last, **catalog)
    stored = select(tables.models.c.created).where(tables.models.c.version == surface.incumbent)
    doubt = cannot_tell(log)
    if not doubt and surface.periods.end(periods[-1]) + grace <= store.rows(stored)[0]["created"]:
        doubt = "no period has ended since the incumbent was stored: its own training periods would favor it"
    if doubt:
        return _refused(decider, surface, doubt, now)
    estimate = compare_offline(decider, surface, config.fitted(log.split(times=1)[0], features), periods[-1])
    difference = estimate.text(surface.unit)
    if estimate.high < 0:
        text = f"it looks worse than the incumbent in the last period ({difference})"
        return _refused(decider, surface, text, now, estimate)
    content = model_bytes(config.fitted(log, features))
    version = add_model(store, content, f"{config.learner}, {len(periods)} periods", now)["version"]
    reason = f"estimated against the incumbent: {difference}"
    if surface.challenger is not None:
        reason = f"stored, but '{surface.challenger}' is still the challenger; {reason}"
    elif version == surface.incumbent:
        reason = "the same model as the incumbent"
    else:
        start_challenger(store, name, version, config.share, reason, now)
        reason = f"challenger with {config.share:.0%} of the users; {reason}"
    return Retrained(version, reason, estimate)


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


def compare_offline(decider: Decider, surface: Surface, learner: Learner, period: int) -> OfflineDifference:
    """The new model against the incumbent, on the decisions of one period."""
    model, incumbent = ServedModel("new", learner), decider.models.get(surface.incumbent or "")
    differences = []
    for decision, positives in drawn_decisions(decider, surface, [period]):
        value = 0.0
        if positives:
            bought = [row["item_id"] for row in positives]
            new, old = (
                decider.propensities_of(decision, each, surface.policy, bought) for each in (model, incumbent)
            )
            for row in positives:
                change = new.get(row["item_id"], 0.0) - old.get(row["item_id"], 0.0)
                value += surface.worth(row["value"]) * effect(row) * change
        differences.append(value)
    values = np.array(differences)
    error = 1.96 * float(values.std(ddof=1)) / np.sqrt(len(values)) if len(values) > 1 else np.inf
    mean = float(values.mean()) if len(values) else 0.0
    return OfflineDifference(mean, mean - error, mean + error)


def _refused(
    decider: Decider, surface: Surface, reason: str, now: float, estimate: OfflineDifference | None = None
) -> Retrained:
    with decider.store.write() as connection:
        note(connection, surface.name, "not retrained", None, reason, now)
    return Retrained(None, reason, estimate)
