"""A small shop for the tests of the service: a fitted model, a surface, a clock."""

from __future__ import annotations

from taurank.learners import CountingBayes, Learner, Popular
from taurank.serve.deciding import Decider
from taurank.serve.gate import promote
from taurank.serve.models import add_model, model_bytes
from taurank.serve.policy import Policy
from taurank.serve.store import Store
from taurank.serve.surfaces import put_surface
from taurank.worlds.world import World

SECRET = bytes(range(32))
NOON = 1_700_049_600.0  # in the middle of a day


def small_world(users: int = 40, items: int = 30) -> World:
    return World.synthetic(users, items, random_state=3)


def fitted(name: str = "popular", users: int = 40, items: int = 30) -> Learner:
    log = small_world(users, items).sample(3, random_state=5).log
    return (Popular() if name == "popular" else CountingBayes(weight=1.0)).fit(log)


def open_shop(store: Store, policy: Policy | None = None, holdout: float = 0.1, period: str = "day") -> str:
    """A surface "home" with a model; returns the model's version."""
    put_surface(store, "home", policy or Policy(k=4, floor=0.01, temperature=0.5), period, holdout)
    version: str = add_model(store, model_bytes(fitted("counting")), "first", NOON)["version"]
    promote(store, "home", version, "first model", NOON)
    return version


class SetClock:
    """A clock that stands still until a test moves it."""

    def __init__(self, now: float = NOON) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def decider(store: Store, clock: SetClock | None = None) -> Decider:
    return Decider(store, SECRET, clock or SetClock())
