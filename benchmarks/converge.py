"""How many updates training needs: a constant learning rate against one that falls.

The constant rate, regularization and cap are the authors' of the paper for CDCG. One long fit at the constant rate is
measured at 15, 30, 60, … million updates, by the truth of ten other weeks. A falling rate starts ``FASTER`` times
higher and falls to ``DECAY`` of that; it needs one fit for each number of updates. Printed is the first number of
updates with 99 % of the best CDCG of the constant rate, for both.

Results are added to a JSON file in the folder ``out``, point by point, and the long fits have checkpoints there: the
same command continues where it was interrupted.
"""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import taurank as tr
from taurank.errors import DivergedError

METHODS = ("dlce", "dlto", "bpr", "ulbpr")
SETTINGS = tuple((items, how) for items in ("category", "product") for how in ("original", "personalized"))
FASTER, DECAY = 10.0, 0.01
SHARE = 0.99
FIRST, MAX_SCHEDULED = 15_000_000, 240_000_000  # updates
TRIES = 4  # of a rate that diverges, each with a third of the one before

Point = dict[str, float]  # updates, CDCG, and the seconds of the training alone: seconds, cpu


@dataclass(frozen=True)
class Sizes:
    """How much is trained: ``updates`` limits every fit, None is the authors' number."""

    out: Path
    updates: int | None
    threads: int
    factors: int = 400
    first: int = FIRST


def run(settings: list[tuple[str, str]], methods: list[str], sizes: Sizes) -> None:
    sizes.out.mkdir(parents=True, exist_ok=True)
    print(f"converge: d = {sizes.factors}, {sizes.threads} threads; updates in millions until 99 % of the best CDCG")
    print("                                  best at a constant rate        constant           falling")
    print("  items    assignment    method   CDCG  updates  (authors')  updates  CPU s    updates  CPU s   CDCG")
    for items, assignment in settings:
        for method in methods:
            print_race(items, assignment, method, Race(items, assignment, method, sizes))


def print_race(items: str, assignment: str, method: str, race: Race) -> None:
    constant, falling = race.constant(), race.falling()
    best = max(constant, key=lambda point: point["CDCG"])
    goal = SHARE * best["CDCG"]
    end = max(falling, key=lambda point: point["CDCG"])["CDCG"]
    print(
        f"  {items:8} {assignment:13} {method:6} {best['CDCG']:6.3f} {best['updates'] / 1e6:8.0f} "
        f"{race.authors['updates'] / 1e6:10.0f}  {reached(constant, goal)}    {reached(falling, goal)}  {end:.3f}",
        flush=True,
    )


def reached(points: list[Point], goal: float) -> str:
    for point in points:
        if point["CDCG"] >= goal:
            return f"{point['updates'] / 1e6:8.1f} {point['cpu']:6.0f}"
    return "   never      -"


class Race:
    """One method on one dataset; its points are in ``<name>.json``."""

    def __init__(self, items: str, assignment: str, method: str, sizes: Sizes) -> None:
        self.key, self.method, self.sizes = (items, assignment), method, sizes
        self.authors = authors()[items][assignment][method]
        name = f"{items}_{assignment}_{method}_{sizes.factors}_{sizes.threads}"
        self.file = sizes.out / f"{name}.json"
        self.most = min(self.authors["updates"], sizes.updates or self.authors["updates"])
        self.checkpoint = sizes.out / f"{name}_{self.most}.checkpoint"

    def constant(self) -> list[Point]:
        """One fit, measured at every number of updates of the grid."""
        learner, per_epoch = self.learner(), self.per_epoch()
        step, wanted = self.grid(self.most)
        points, began = self.known("constant"), Clock()
        if any(epoch * per_epoch not in {point["updates"] for point in points} for epoch in wanted):
            learner.set_params(epochs=wanted[-1], rate_decay=1.0)
            last = points[-1] if points else {"updates": 0, "seconds": 0.0, "cpu": 0.0}

            def measure(fitted: Any, record: Any) -> None:
                updates = record.epoch * per_epoch
                if record.epoch in wanted and updates > last["updates"]:
                    self.add("constant", {"updates": updates, **began.since(last), "CDCG": self.cdcg(fitted)})
                    began.skip()

            learner.fit(
                data(*self.key)[0], None, checkpoint=self.checkpoint, checkpoint_minutes=2, validate_every=step,
                callback=measure, show_progress=False,
            )  # fmt: skip
            self.checkpoint.unlink()
        return [point for point in self.known("constant") if point["updates"] <= wanted[-1] * per_epoch]

    def falling(self) -> list[Point]:
        """One fit for each number of updates."""
        per_epoch, (_, wanted) = self.per_epoch(), self.grid(min(self.most, MAX_SCHEDULED))
        for epochs in wanted:
            if epochs * per_epoch not in {point["updates"] for point in self.known("falling")}:
                self.add("falling", self.fall(epochs, epochs * per_epoch))
        return [point for point in self.known("falling") if point["updates"] <= wanted[-1] * per_epoch]

    def fall(self, epochs: int, updates: int) -> Point:
        rate = FASTER * self.authors["learning_rate"]
        for left in reversed(range(TRIES)):
            learner, began = self.learner(), Clock()
            learner.set_params(epochs=epochs, learning_rate=rate, rate_decay=DECAY)
            try:
                learner.fit(data(*self.key)[0], None, show_progress=False)
                break
            except DivergedError:
                if not left:
                    raise
                rate /= 3
        spent = began.since({"seconds": 0.0, "cpu": 0.0})
        return {"updates": updates, **spent, "rate": rate, "CDCG": self.cdcg(learner)}

    def grid(self, most: int) -> tuple[int, list[int]]:
        """The epochs of the first point, and those of all points: doubled each time, and the last one."""
        step = max(1, round(self.sizes.first / self.per_epoch()))
        last = max(1, round(most / self.per_epoch() / step))
        return step, sorted({step * 2**n for n in range(64) if 2**n <= last} | {step * last})

    def learner(self) -> Any:
        options = {name: value for name, value in self.authors.items() if not isinstance(value, dict)}
        options.pop("updates")
        sizes = {"factors": self.sizes.factors, "threads": self.sizes.threads}
        return tr.learners.LEARNERS[self.method](**options, **sizes, random_state=0)

    def per_epoch(self) -> int:
        return int(self.learner().updates_per_epoch(data(*self.key)[0]))

    def cdcg(self, learner: Any) -> float:
        return float(tr.evaluate(learner, data(*self.key)[1], ["CDCG"], threads=self.sizes.threads)["CDCG"].mean)

    def known(self, which: str) -> list[Point]:
        found = json.loads(self.file.read_text("utf-8")) if self.file.exists() else {}
        return sorted(found.get(which, []), key=lambda point: point["updates"])

    def add(self, which: str, point: Point) -> None:
        both = {name: self.known(name) for name in ("constant", "falling")}
        both[which].append(point)
        new = self.file.with_suffix(".new")
        new.write_text(json.dumps(both, indent=1), "utf-8")
        new.replace(self.file)


class Clock:
    """Seconds of wall and CPU, without what was skipped."""

    def __init__(self) -> None:
        self.spent = {"seconds": 0.0, "cpu": 0.0}
        self.skip()

    def skip(self) -> None:
        self.began = {"seconds": perf_counter(), "cpu": process_time()}

    def since(self, before: Point) -> Point:
        """The time before and since the start."""
        now = {"seconds": perf_counter(), "cpu": process_time()}
        self.spent = {name: self.spent[name] + now[name] - self.began[name] for name in now}
        return {name: before[name] + self.spent[name] for name in now}


@cache
def authors() -> Any:
    return tomllib.loads((resources.files("taurank_paper") / "experiments" / "authors.toml").read_text("utf-8"))


@cache
def data(items: str, assignment: str) -> tuple[Any, Any]:
    """Ten weeks to learn from, and the truth of ten others."""
    world = tr.dunnhumby.world(items)  # type: ignore[arg-type]
    if assignment == "personalized":
        world = world.personalized(2.0)
    return world.sample(10, random_state=0).log, world.sample(10, random_state=2).truth
