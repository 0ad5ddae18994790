"""Updates: the incumbent's model learns from the periods since it was stored, instead of a fit from nothing."""

from __future__ import annotations

import pyarrow as pa
from sqlalchemy import select

from taurank.data.log import Log
from taurank.learners import Learner
from taurank.serve import tables
from taurank.serve.deciding import Decider
from taurank.serve.models import read_model
from taurank.serve.surfaces import Surface


def new_periods(decider: Decider, surface: Surface, periods: list[int], grace: float) -> list[int]:
    """The periods that had not ended when the incumbent was stored, so that it cannot have learned from them."""
    table = tables.models
    stored = decider.store.rows(select(table.c.created).where(table.c.version == surface.incumbent))[0]["created"]
    return [number for number in periods if surface.period.end(number) + grace > stored]


def why_not(decider: Decider, surface: Surface, learner: type[Learner], new: list[int]) -> str:
    """Why the incumbent cannot be updated to this kind of learner; empty if it can."""
    incumbent = decider.models.get(surface.incumbent or "").learner
    if type(incumbent) is not learner:
        return f"the incumbent is a {type(incumbent).__name__}"
    if not all(pa.types.is_string(ids.values.type) for ids in (incumbent.users, incumbent.items)):
        return "the incumbent has ids that are not text"
    if len(new) < 2:  # one to learn from, one to estimate on
        return "fewer than two periods have ended since the incumbent was stored"
    return ""


def updated(decider: Decider, surface: Surface, log: Log, new: int) -> Learner:
    """A copy of the incumbent that has learned from the last ``new`` periods; it may have seen the others."""
    learner = read_model(decider.store, surface.incumbent or "")
    if new == log.n_times:
        return learner.update(log)
    past, since = log.split(times=new)
    return learner.update(since, past)
