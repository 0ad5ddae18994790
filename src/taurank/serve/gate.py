"""The gate: it promotes or demotes a challenger by what the lists of both arms have caused."""

from __future__ import annotations

import math

from sqlalchemy import select

from taurank.serve import tables
from taurank.serve.decisions import Decider
from taurank.serve.lift import Interval, Measure, ratio_evidence
from taurank.serve.settlement import GRACE_SECONDS, read_measures, settle
from taurank.serve.store import Store
from taurank.serve.surfaces import Surface, demote, note, promote

RATIO_ALPHA = 0.001
PATIENCE = 28  # settled periods after which an undecided challenger is retired


def run_jobs(decider: Decider, grace: float = GRACE_SECONDS, patience: int = PATIENCE) -> dict[str, str]:
    """Settle the ended periods of every surface and judge its challenger; returns what was done."""
    done = {}
    for surface in decider.surfaces.all():
        now = decider.clock()
        periods = settle(decider, surface, now, grace)
        done[surface.name] = f"{periods} settled, {judge(decider.store, surface, now, patience)}"
    return done


def judge(store: Store, surface: Surface, now: float, patience: int = PATIENCE) -> str:
    """Promote or demote the challenger if the evidence suffices; returns what was done and why."""
    challenger = surface.challenger
    if challenger is None:
        return "no challenger"
    with store.read() as connection:
        trial = read_measures(connection, surface.name)["trial"]
    _, low, high = difference(surface, trial)
    reason = f"{surface.unit} per visit, challenger − incumbent: between {low:.4g} and {high:.4g}"
    if found := mismatch(surface, trial):
        _alert(store, surface, f"{found}; nothing is promoted", now)
        return "sample-ratio mismatch"
    if low > 0 and promote(store, surface.name, challenger, reason, now, expected=challenger):
        return "promoted"
    if high < 0 and demote(store, surface.name, reason, now, expected=challenger):
        return "demoted"
    if trial.periods >= patience:
        undecided = f"undecided after {trial.periods} periods; {reason}"
        demote(store, surface.name, undecided, now, expected=challenger)
        return "undecided"
    return reason


def difference(surface: Surface, trial: Measure) -> Interval:
    """Challenger − incumbent, caused purchases (or their value) per visit."""
    return trial.interval(f"difference {surface.compared}")


def mismatch(surface: Surface, trial: Measure) -> str:
    """Why the arms cannot be compared: they do not have their planned shares of users; empty if they can."""
    shares = surface.shares()
    users = {arm: trial.arm(arm).users for arm in shares}
    if ratio_evidence(list(users.values()), list(shares.values())) <= -math.log(RATIO_ALPHA):
        return ""
    counts = ", ".join(f"{arm} {number:,}" for arm, number in users.items())
    return f"the arms do not have their planned shares of users ({counts})"


def _alert(store: Store, surface: Surface, text: str, now: float) -> None:
    """One alert per challenger."""
    table = tables.history
    same = (table.c.surface == surface.name) & (table.c.event == "alert") & (table.c.model == surface.challenger)
    since = surface.periods.start(surface.since or 0) - 2 * surface.periods.seconds
    with store.write() as connection:
        if connection.scalar(select(table.c.id).where(same & (table.c.time >= since))) is None:
            note(connection, surface.name, "alert", surface.challenger, text, now)
