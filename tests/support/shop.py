"""A small shop for the tests of the service: a fitted model, a surface, a clock."""

from __future__ import annotations

import json
import time
from typing import Any

import numpy as np

from taurank.learners import CountingBayes, Learner, Popular
from taurank.serve.decisions import Decider
from taurank.serve.models import add_model, model_bytes
from taurank.serve.policy import Policy
from taurank.serve.recorder import Recorded, Recorder, Write
from taurank.serve.store import Store
from taurank.serve.surfaces import promote, put_surface
from taurank.worlds.world import World

SECRET = bytes(range(32))
DAY = 86400.0
NOON = 1_700_049_600.0  # in the middle of a day


def small_world(users: int = 40, items: int = 30) -> World:
    return World.synthetic(users, items, random_state=3)


def fitted(name: str = "popular", users: int = 40, items: int = 30) -> Learner:
    log = small_world(users, items).sample(3, random_state=5).log
    return (Popular() if name == "popular" else CountingBayes(weight=1.0)).fit(log)


def open_shop(store: Store, policy: Policy | None = None, holdout: float = 0.1, period: str = "day") -> str:
    """A surface "home" with a model; returns the model's version."""
    chosen = policy or Policy(k=4, floor=0.01, temperature=0.5)
    put_surface(store, "home", {"policy": chosen.model_dump(), "period": period, "holdout": holdout}, NOON)
    version = stored(store, "counting")
    promote(store, "home", version, "first model", NOON)
    return version


def stored(store: Store, model: str | Learner = "popular") -> str:
    """The version of a model that is now in the store."""
    version: str = add_model(store, model_bytes(fitted(model) if isinstance(model, str) else model), "", NOON)[
        "version"
    ]
    return version


def write(store: Store, *writes: Write) -> list[Recorded]:
    """Record, one after the other."""
    recorder = Recorder(store)
    try:
        return [recorder.submit(each).result() for each in writes]
    finally:
        recorder.close()


def loaded(service: Any) -> Any:
    """The service, once it has loaded its models."""
    while service.missing:
        time.sleep(0.01)
    return service


class SetClock:
    """A clock that stands still until a test moves it."""

    def __init__(self, now: float = NOON) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def decider(store: Store, clock: SetClock | None = None) -> Decider:
    return Decider(store, SECRET, clock or SetClock())


def visit(made: Decider, clock: SetClock, random: Any, copies: int = 1) -> float:
    """One day on which every user visits and shops; returns the caused purchases that the policy expects."""
    world, truth, recorder, waiting = small_world(), 0.0, Recorder(made.store), []
    for number in range(world.n_users * copies):
        code = number % world.n_users
        request = made.decide("home", f"{code}" if copies == 1 else f"{code}/{number // world.n_users}")
        waiting.append(recorder.submit(request))
        row: Any = request.decision
        shown = np.isin(np.arange(world.n_items), [int(item) for item in json.loads(row["shown"])])
        rate = np.where(shown, world.treated_rate[code], world.control_rate[code])
        events = [
            {"event_id": f"{row['id']}/{item}", "user_id": row["user_id"], "item_id": str(item),
             "time": clock.now + 60, "value": 1.0}
            for item in np.flatnonzero(random.random(world.n_items) < rate)
        ]  # fmt: skip
        waiting.append(recorder.submit(Write(events=events)))
        items, pi = made.propensities(row)
        codes = np.array([int(item) for item in items], np.int64)
        truth += float((pi * (world.treated_rate[code] - world.control_rate[code])[codes]).sum())
    for future in waiting:
        future.result()
    recorder.close()
    clock.now += DAY
    return truth
