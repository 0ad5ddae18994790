"""A world shops at the service, so that everything it says can be compared with the truth.

The service starts with Popular. Every period users visit, get lists, and buy with the world's probabilities;
then the period is settled, the challenger is judged, and now and then a model is retrained. The truth of a visit is
Σ_i π_i (μ^T_i − μ^C_i): what its list was expected to cause.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pandas as pd
from sqlalchemy import select, update

from taurank.data.log import Log
from taurank.learners import Popular
from taurank.serve import tables
from taurank.serve.decisions import Decider
from taurank.serve.gate import run_jobs
from taurank.serve.models import add_model, model_bytes
from taurank.serve.policy import Policy
from taurank.serve.recorder import Recorder, Row, Write
from taurank.serve.retrain import RetrainConfig, retrain
from taurank.serve.settlement import read_measures
from taurank.serve.store import Store
from taurank.serve.surfaces import promote, put_surface
from taurank.worlds.world import World

SURFACE = "home"
START = 1_767_571_200.0  # Monday, 2026-01-05

Floats = npt.NDArray[np.float64]
Event = dict[str, Any]


class Shop(Protocol):
    """How the world reaches the service: over HTTP, or within the process."""

    def recommend(self, users: list[str]) -> list[list[str]]: ...

    def report(self, events: list[Event]) -> None: ...


class SimulatedClock:
    """The time of the simulated world."""

    def __init__(self, now: float = START) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


@dataclass(frozen=True)
class Scenario:
    """What is simulated; the defaults are the demonstration.

    Its learner was chosen by this world's truth: it shows that the loop works, not which learner is best.
    """

    users: int = 1500
    items: int = 60
    periods: int = 20
    visiting: float = 0.8  # share of users who visit in a period
    holdout: float = 0.15
    share: float = 0.5  # of a challenger
    seed: int = 0
    policy: Policy = field(default_factory=lambda: Policy(k=5, floor=0.02, ceiling=0.8, temperature=0.3))
    retraining: RetrainConfig = field(
        default_factory=lambda: RetrainConfig(
            "cause", {"factors": 8, "epochs": 30, "learning_rate": 0.05, "rate_decay": 1.0, "random_state": 0}
        )
    )
    prices: tuple[float, ...] = ()  # of the items; 1 unless given
    outcome: str = "purchases"  # what challengers are compared by

    def price(self, item: int) -> float:
        return self.prices[item] if self.prices else 1.0

    def world(self) -> World:
        """Popular items sell anyway; what a list causes is another taste."""
        return World.synthetic(
            self.users, self.items, self.seed, rank=3, purchase_rate=0.04, effect=0.6, effect_spread=1.2
        )


@dataclass(frozen=True)
class Report:
    """One period: who served, what was true, and what the service said by then."""

    period: int
    incumbent: str
    challenger: str | None
    truth: float  # caused purchases per visit with a list, this period
    value: float  # what they are worth
    running_truth: float  # the same over all periods so far
    estimate: float
    low: float
    high: float
    holdout_low: float
    holdout_high: float
    action: str

    @property
    def covered(self) -> bool:
        return self.low <= self.running_truth <= self.high

    @property
    def holdout_covered(self) -> bool:
        return self.holdout_low <= self.running_truth <= self.holdout_high


def prepare(decider: Decider, scenario: Scenario, world: World) -> None:
    """A surface, and Popular fitted to a week of purchases without recommendations."""
    settings = {"policy": scenario.policy.model_dump(), "holdout": scenario.holdout, "outcome": scenario.outcome}
    put_surface(decider.store, SURFACE, settings, decider.clock())
    random = np.random.default_rng([scenario.seed, 1])
    bought = np.argwhere(random.random(world.control_rate.shape) < world.control_rate)
    rows = {"user_id": bought[:, 0].astype(str), "item_id": bought[:, 1].astype(str)}
    constant = {"treated": np.zeros(len(bought), np.int8), "outcome": np.ones(len(bought), np.int8)}
    users, items = (list(map(str, range(n))) for n in (world.n_users, world.n_items))
    log = Log.from_frame(pd.DataFrame({**rows, **constant}), users=users, items=items)
    version = add_model(decider.store, model_bytes(Popular().fit(log)), "popular before the start", decider.clock())
    promote(decider.store, SURFACE, version["version"], "the first model", decider.clock())


def run(
    decider: Decider, clock: SimulatedClock, shop: Shop, scenario: Scenario, say: Callable[[Report], None]
) -> list[Report]:
    """Simulate all periods; ``say`` gets each one's report."""
    world = scenario.world()
    prepare(decider, scenario, world)
    truth = Truth(decider, world, np.array([scenario.price(item) for item in range(world.n_items)]))
    reports = []
    for number in range(scenario.periods):
        clock.now = START + number * 86400 + 9 * 3600
        decider.surfaces.refresh()
        surface = decider.surfaces.get(SURFACE)
        shop_one_day(shop, world, scenario, number, clock)
        clock.now = START + (number + 1) * 86400 + 60
        action = run_jobs(decider, grace=0.0, patience=6)[SURFACE].partition(", ")[2]
        truth.add(surface.periods.number(clock.now) - 1)
        if number >= 2:
            action = _retrain(decider, scenario, action)
        reports.append(_report(decider, number, surface.incumbent or "", surface.challenger, truth, action))
        say(reports[-1])
    return reports


def shop_one_day(shop: Shop, world: World, scenario: Scenario, number: int, clock: SimulatedClock) -> None:
    """Some users visit, see their lists and buy."""
    random = np.random.default_rng([scenario.seed, 2, number])
    visiting = np.flatnonzero(random.random(world.n_users) < scenario.visiting)
    lists = shop.recommend([str(user) for user in visiting])
    clock.now += 3600
    events: list[Event] = []
    for user, items in zip(visiting, lists, strict=True):
        shown = np.zeros(world.n_items, np.bool_)
        shown[[int(item) for item in items]] = True
        rate = np.where(shown, world.treated_rate[user], world.control_rate[user])
        events += [
            {"event_id": f"{number}-{user}-{item}", "user_id": str(user), "item_id": str(item),
             "value": scenario.price(int(item))}
            for item in np.flatnonzero(random.random(world.n_items) < rate)
        ]  # fmt: skip
    shop.report(events)


class Truth:
    """What the lists were expected to cause, per visit with a list."""

    def __init__(self, decider: Decider, world: World, prices: Floats) -> None:
        self._decider, self._prices = decider, prices
        self._effect = world.treated_rate.astype(np.float64) - world.control_rate
        self.by_period: list[tuple[float, float, int]] = []  # purchases, their value, visits

    def add(self, period: int) -> None:
        """Replay the decisions of a period."""
        table = tables.decisions
        drawn = (table.c.period == period) & (table.c.shown != "[]")
        rows = self._decider.store.rows(select(table).where(drawn).order_by(table.c.id))
        caused = [self._of(row) for row in rows]
        self.by_period.append((sum(count for count, _ in caused), sum(value for _, value in caused), len(rows)))

    def _of(self, decision: Row) -> tuple[float, float]:
        items, pi = self._decider.propensities(decision)
        codes = np.array([int(item) for item in items], np.int64)
        caused = pi * self._effect[int(decision["user_id"]), codes]
        return float(caused.sum()), float((caused * self._prices[codes]).sum())

    @property
    def last(self) -> tuple[float, float]:
        """Purchases and their value in the last period."""
        count, value, visits = self.by_period[-1]
        return count / max(1, visits), value / max(1, visits)

    @property
    def running(self) -> float:
        return sum(total for total, _, _ in self.by_period) / max(1, sum(visits for _, _, visits in self.by_period))


def _retrain(decider: Decider, scenario: Scenario, action: str) -> str:
    decider.surfaces.refresh()
    if decider.surfaces.get(SURFACE).challenger is not None:
        return action
    result = retrain(decider, SURFACE, replace(scenario.retraining, share=scenario.share), grace=0.0)
    return f"{action}; new challenger" if result.version else f"{action}; not retrained: {result.reason}"


def _report(
    decider: Decider, number: int, incumbent: str, challenger: str | None, truth: Truth, action: str
) -> Report:
    with decider.store.read() as connection:
        life = read_measures(connection, SURFACE)["life"]
    lift, holdout = life.interval("recommended lift"), life.interval("holdout")
    return Report(
        number + 1, incumbent, challenger, *truth.last, truth.running, *lift, holdout.low, holdout.high, action
    )


class DirectShop:
    """The service without HTTP: for many runs."""

    def __init__(self, decider: Decider, recorder: Recorder) -> None:
        self._decider, self._recorder = decider, recorder

    def recommend(self, users: list[str]) -> list[list[str]]:
        futures = [self._recorder.submit(self._decider.decide(SURFACE, user)) for user in users]
        decisions: list[Any] = [future.result().decision for future in futures]
        return [json.loads(decision["shown"]) for decision in decisions]

    def report(self, events: list[Event]) -> None:
        now = self._decider.clock()
        futures = [
            self._recorder.submit(Write(events=[{**event, "time": now} for event in part]))
            for part in batches(events, 500)
        ]
        for future in futures:
            future.result()


def simulate_directly(folder: str, scenario: Scenario) -> list[Report]:
    """A simulation within the process."""
    store, clock = Store(folder, create=True), SimulatedClock()
    fix_arms(store, scenario.seed)
    decider, recorder = Decider(store, secret_of(scenario), clock), Recorder(store)
    try:
        return run(decider, clock, DirectShop(decider, recorder), scenario, lambda _: None)
    finally:
        recorder.close()
        store.close()


def secret_of(scenario: Scenario) -> bytes:
    """The same seed draws the same lists, over HTTP or not."""
    return scenario.seed.to_bytes(32, "big")


def fix_arms(store: Store, seed: int) -> None:
    """A simulation or a test with the same seed splits its users alike."""
    salt = seed.to_bytes(32, "big").hex()
    with store.write() as connection:
        connection.execute(update(tables.settings).where(tables.settings.c.name == "salt").values(value=salt))


def batches(events: list[Event], size: int) -> Iterator[list[Event]]:
    for first in range(0, len(events), size):
        yield events[first : first + size]
