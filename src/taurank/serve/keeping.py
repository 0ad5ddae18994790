"""The keeper: a loop beside the server that settles periods, runs the gate and retrains on a schedule."""

from __future__ import annotations

import time
from collections.abc import Callable

from taurank.errors import InputError
from taurank.serve.deciding import Decider
from taurank.serve.gate import PATIENCE, judge
from taurank.serve.retraining import Plan, retrain
from taurank.serve.settling import GRACE_SECONDS, settle
from taurank.serve.store import Unavailable

Say = Callable[[str], None]


def keep_once(decider: Decider, grace: float = GRACE_SECONDS, patience: int = PATIENCE) -> dict[str, str]:
    """Settle and judge every surface; returns what was done."""
    done = {}
    for surface in decider.surfaces.all():
        now = decider.clock()
        periods = settle(decider, surface, now, grace)
        done[surface.name] = f"{periods} settled, {judge(decider.store, surface, now, patience)}"
    return done


def keep(
    decider: Decider,
    every: float,
    say: Say,
    plan: Plan | None = None,
    retrain_every: float = 0.0,
    while_true: Callable[[], bool] = lambda: True,
) -> None:
    """Do so again and again; a lost database is waited for."""
    last: dict[str, str] = {}
    retrained = time.monotonic()
    while while_true():
        try:
            done = keep_once(decider)
            for name, words in done.items():
                if words != last.get(name):
                    say(f"{name}: {words}")
            last = done
            if plan is not None and time.monotonic() - retrained >= retrain_every:
                retrained = time.monotonic()
                _retrain_all(decider, plan, say)
        except Unavailable as error:
            say(f"the database does not answer: {error}")
        time.sleep(every)


def _retrain_all(decider: Decider, plan: Plan, say: Say) -> None:
    for surface in decider.surfaces.all():
        try:
            say(f"{surface.name}: {retrain(decider, surface.name, plan).words}")
        except InputError as error:
            say(f"{surface.name}: {error}")
