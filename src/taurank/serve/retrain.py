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
import pyarrow as pa
from sqlalchemy import select

from taurank.data.log import Log
from taurank.errors import InputError
from taurank.learners import Learner, learner_class
from taurank.report.diagnosis import diagnose
from taurank.serve import tables
from taurank.serve.decisions import Decider
from taurank.serve.models import ServedModel, add_model, model_bytes, read_model
from taurank.serve.settlement import GRACE_SECONDS, drawn_decisions, effect, export, settle, settled_periods
from taurank.serve.surfaces import DEFAULT_SHARE, Surface, note, start_challenger

MIN_EFFECTIVE = 50.0  # purchases in each arm, after weighting (Kish)


@dataclass(frozen=True)
class RetrainConfig:
    """How to retrain: a learner by name with its settings, on the ``last`` periods, for a ``share`` of users.

    With ``update`` the incumbent learns from the periods since it was stored, where it is such a learner.
    """

    learner: str = "empiricalbayes"
    settings: dict[str, Any] = field(default_factory=dict)
    share: float = DEFAULT_SHARE
    last: int | None = None
    update: bool = False

    def make(self) -> Learner:
        try:
            return learner_class(self.learner)(**self.settings)
        except TypeError as error:
            raise InputError(f"{self.learner} does not take the settings {', '.join(self.settings)}.") from error

    def fitted(self, log: Log) -> Learner:
        """The learner, fitted; it chooses its own length unless ``epochs`` are set."""
        return self.make().fit(log, None if "epochs" in self.settings else "auto")


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
    kind = type(config.make())  # a mistake in the settings shows before the work
    now, store = decider.clock(), decider.store
    decider.surfaces.refresh()
    surface = decider.surfaces.get(name)
    if surface.incumbent is None:
        raise InputError(f"surface '{name}' has no incumbent; promote a first model, for example popular.")
    settle(decider, surface, now, grace)
    periods = settled_periods(decider, surface, config.last)
    log = export(decider, surface, config.last).log
    new = _new_periods(decider, surface, periods, grace)
    doubt = cannot_tell(log)
    if not doubt and periods[-1] not in new:
        doubt = "no period has ended since the incumbent was stored: its own training periods would favor it"
    if doubt:
        return _refused(decider, surface, doubt, now)
    obstacle = _obstacle(decider, surface, kind, new) if config.update else ""
    updating = config.update and not obstacle

    def train(part: Log, n_new: int) -> Learner:
        return _updated(decider, surface, part, n_new) if updating else config.fitted(part)

    estimate = compare_offline(decider, surface, train(log.split(times=1)[0], len(new) - 1), periods[-1])
    how = f"update of '{surface.incumbent}' with {len(new)} periods" if updating else ""
    if obstacle:
        how = f"fitted from nothing, because {obstacle}"
    suffix = f"; {how}" if how else ""
    difference = estimate.text(surface.unit)
    if estimate.high < 0:
        text = f"it looks worse than the incumbent in the last period ({difference}){suffix}"
        return _refused(decider, surface, text, now, estimate)
    about = f"{config.learner}, {how or f'{log.n_times} periods'}"
    version = add_model(store, model_bytes(train(log, len(new))), about, now)["version"]
    reason = f"estimated against the incumbent: {difference}"
    if surface.challenger is not None:
        reason = f"stored, but '{surface.challenger}' is still the challenger; {reason}"
    elif version == surface.incumbent:
        reason = "the same model as the incumbent"
    else:
        start_challenger(store, name, version, config.share, reason, now)
        reason = f"challenger with {config.share:.0%} of the users; {reason}"
    return Retrained(version, reason + suffix, estimate)


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


def _new_periods(decider: Decider, surface: Surface, periods: list[int], grace: float) -> list[int]:
    """The periods that had not ended when the incumbent was stored, so that it cannot have learned from them."""
    table = tables.models
    stored = decider.store.rows(select(table.c.created).where(table.c.version == surface.incumbent))[0]["created"]
    return [number for number in periods if surface.periods.end(number) + grace > stored]


def _obstacle(decider: Decider, surface: Surface, learner: type[Learner], new: list[int]) -> str:
    """Why the incumbent cannot be updated to this kind of learner; empty if it can."""
    incumbent = decider.models.get(surface.incumbent or "").learner
    if type(incumbent) is not learner:
        return f"the incumbent is a {type(incumbent).__name__}"
    if not all(pa.types.is_string(ids.values.type) for ids in (incumbent.users, incumbent.items)):
        return "the incumbent has ids that are not text"
    if len(new) < 2:  # one to learn from, one to estimate on
        return "fewer than two periods have ended since the incumbent was stored"
    return ""


def _updated(decider: Decider, surface: Surface, log: Log, n_new: int) -> Learner:
    """A copy of the incumbent that has learned from the last ``n_new`` periods; it may have seen the others."""
    learner = read_model(decider.store, surface.incumbent or "")
    if n_new == log.n_times:
        return learner.update(log)
    past, since = log.split(times=n_new)
    return learner.update(since, past)


def compare_offline(decider: Decider, surface: Surface, learner: Learner, period: int) -> OfflineDifference:
    """The new model against the incumbent, on the decisions of one period."""
    model, incumbent = ServedModel("new", learner), decider.models.get(surface.incumbent or "")
    differences = []
    for decision, positives in drawn_decisions(decider, surface, [period]):
        value = 0.0
        if positives:
            new, old = (decider.propensities_of(decision, each, surface.policy) for each in (model, incumbent))
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
