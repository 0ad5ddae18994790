"""Faults of a running service, in an order drawn from the seed: clocks, disks, locks, kills, a lost database.

A real server on the loopback interface answers two shoppers all the while. Afterwards the store is audited: what was
acknowledged is there, once; every π is what a replay computes; settled periods have just the decisions they had when
they were settled, and the running sums are those of the results.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from sqlalchemy import select, text

from support.postgresql import start_postgresql
from support.shop import SECRET, open_shop
from taurank.serve import tables
from taurank.serve.client import Client, Event, ServiceError
from taurank.serve.decisions import Decider
from taurank.serve.security import create_token
from taurank.serve.store import Store
from torture.tally import HERE, Tally, environment

PATIENCE = 120.0  # seconds until the service must be well again
LIMIT = 8.0  # seconds for an answer while the database is locked: five, and the machine is busy
HOUR = 3600.0  # the period


def faults(folder: Path, seed: int, seconds: float) -> Tally:
    """Rounds on SQLite and PostgreSQL in turn; the seed says which one is first."""
    tally = Tally()
    for number in tally.rounds(seconds):
        rng = np.random.default_rng([seed, 5, number])
        with ExitStack() as stack:
            database = None
            if (seed + number) % 2:
                place = stack.enter_context(
                    tempfile.TemporaryDirectory(prefix="taurank-pg-", ignore_cleanup_errors=True)
                )
                database = start_postgresql(place)
                stack.callback(database._stop)
            service = Service(folder / str(number), database, tally, rng)
            stack.callback(service.end)
            try:
                service.start()
                service.round()
            except ServiceError as error:
                tally.violations.append(f"the round was given up: {error}")
    return tally


class Service:
    """A server process, what its answers have promised, and the faults that happen to it."""

    def __init__(self, folder: Path, database: Any, tally: Tally, rng: np.random.Generator) -> None:
        folder.mkdir()
        self.database, self.tally, self.rng = database, tally, rng
        self.address = str(folder / "state") if database is None else str(database.get_uri())
        self.clock = folder / "clock"
        self.clock.write_text("0")
        store = Store(self.address, create=True)
        open_shop(store, period="hour")
        self.token = create_token(store, "admin")[1]
        store.close()
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self.client = Client(f"http://127.0.0.1:{self.port}", self.token, timeout=30, attempts=1)
        self.lists: dict[str, tuple[str, list[str], list[float]]] = {}
        self.sent: set[str] = set()
        self.stored: set[str] = set()
        self.stopped = threading.Event()

    def round(self) -> None:
        """Every fault once, in the order of the seed, under load; then the audit."""
        own = [self.full_disk] if self.database is None else [self.lost_database]
        every = [
            self.clock_ahead,
            self.clock_back,
            self.locked,
            self.killed_job,
            self.killed_worker,
            self.killed_parent,
        ]
        script: list[Callable[[], None]] = [*every, *own]
        seeds = self.rng.integers(2**31, size=2)
        shoppers = [threading.Thread(target=self.shop, args=(f"s{n}", int(seed))) for n, seed in enumerate(seeds)]
        for shopper in shoppers:
            shopper.start()
        names = []
        for place in self.rng.permutation(len(script)):
            fault = script[place]
            names.append(fault.__name__.replace("_", " "))
            fault()
            self.expect(self.ready(), f"not ready {PATIENCE:.0f} s after: {names[-1]}")
            self.expect(self.busy(), f"no answers after: {names[-1]}")
        self.stopped.set()
        for shopper in shoppers:
            shopper.join()
        self.clock_ahead()
        self.audit()
        kind = "SQLite" if self.database is None else "PostgreSQL"
        self.tally.notes.append(f"{kind}: {', '.join(names)}; {len(self.lists):,} lists, {len(self.stored):,} events")

    # ---- the faults ----------------------------------------------------------------------------------

    def clock_ahead(self) -> None:
        """One to three periods: those before are settled."""
        self.move_clock(int(self.rng.integers(1, 4)) * HOUR)
        self.post("/v1/jobs")

    def clock_back(self) -> None:
        """Into a settled period, which must not get another visit."""
        self.expect(self.busy(), "no answers before the clock goes back")
        self.move_clock(2 * HOUR)
        self.post("/v1/jobs")
        self.move_clock(-2 * HOUR)
        self.expect(self.status(f"back-{self.clock.read_text()}") == 409, "a visit was written into a settled period")
        self.move_clock(2 * HOUR)

    def full_disk(self) -> None:
        """No file of the server may grow; it says so, and lives."""
        for _ in range(30):  # so that both workers have opened the files of their counters
            self.client.health()
        for pid in self.processes():
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
        self.out_of_order("full disk")
        for pid in self.processes():
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

    def lost_database(self) -> None:
        self.database._stop()
        self.out_of_order("lost database")
        self.database.start()

    def locked(self) -> None:
        store = Store(self.address)
        with store.write() as connection:
            if self.database is not None:
                connection.execute(text("LOCK TABLE settings, decisions, outcomes IN ACCESS EXCLUSIVE MODE"))
            self.out_of_order("locked database")
        store.close()

    def killed_job(self) -> None:
        """It starts again; meanwhile health tells how long it has been silent."""
        self.expect(_until(lambda: self.client.health().job_seconds_ago is not None), "the job never ran")
        (job,) = self.children(main=False)
        os.kill(job, signal.SIGKILL)
        self.move_clock(100.0)
        self.expect(_until(lambda: (self.client.health().job_seconds_ago or 0) >= 99), "a killed job is not noticed")
        self.expect(_until(lambda: (self.client.health().job_seconds_ago or 100) < 99), "a killed job stays away")

    def killed_worker(self) -> None:
        os.kill(self.children()[int(self.rng.integers(2))], signal.SIGKILL)
        self.expect(_until(lambda: len(self.children()) == 2), "a killed worker stays away")

    def killed_parent(self) -> None:
        """Its workers and its job end by themselves, so that the port is free for the next one."""
        children = self.processes()[1:]
        self.server.kill()
        self.server.wait()
        self.expect(_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in children)), "children live on")
        self.start()

    def out_of_order(self, what: str) -> None:
        """Requests that write are 503 within the limit, health is not ready, and the process lives."""
        answers: dict[str, Any] = {}
        asked = {
            "list": lambda: self.status(f"{what}-{self.clock.read_text()}"),
            "ready": lambda: 200 if self.client.health().ready else 503,
        }
        threads = [threading.Thread(target=lambda n=n: answers.update({n: _timed(asked[n])})) for n in asked]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        wrong = {name: answer for name, answer in answers.items() if answer[0] != 503 or answer[1] > LIMIT}
        self.expect(not wrong, f"{what}: {wrong}")
        self.expect(self.server.poll() is None, f"{what}: the server ended")

    # ---- the server and its shoppers -----------------------------------------------------------------

    def start(self) -> None:
        paths = os.pathsep.join([str(HERE / "clock"), *sys.path])
        changes = {"TORTURE_CLOCK": str(self.clock), "PYTHONPATH": paths, "TAURANK_SECRET": SECRET.hex()}
        command = [sys.executable, "-m", "taurank", "serve", "--store", self.address, "--port", str(self.port)]
        self.server = subprocess.Popen(
            [*command, "--workers", "2"],
            env=environment(**changes),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        if not self.ready():
            raise ServiceError(None, "it does not start")

    def end(self) -> None:
        self.stopped.set()
        self.server.terminate()
        try:
            self.server.wait(20)
        except subprocess.TimeoutExpired:
            self.server.kill()

    def shop(self, name: str, seed: int) -> None:
        """Visit and buy; every second visit is that of a user who was there before."""
        rng, number = np.random.default_rng(seed), 0
        while not self.stopped.wait(0.02):
            user, number = f"{name}-{number // 2 if number % 2 else number}", number + 1
            event = Event(user, int(rng.integers(30)))
            try:
                self.visit(user)
                self.sent.add(str(event.event_id))
                self.client.report([event])
                self.stored.add(str(event.event_id))
            except ServiceError as error:
                self.tally.refused += 1
                if error.status not in (None, 409, 503):
                    self.tally.violations.append(f"a shopper got {error}")
            self.tally.tried += 1

    def visit(self, user: str) -> None:
        made = self.client.recommend(user)
        items = [item.item_id for item in made.items], [float(item.propensity or 0) for item in made.items]
        known = self.lists.setdefault(str(made.decision_id), (user, *items))
        if known != (user, *items):
            self.tally.violations.append(f"{user} got two lists in one period")
        self.tally.accepted += 1

    def status(self, user: str) -> int | None:
        try:
            self.visit(user)
            return 200
        except ServiceError as error:
            return error.status

    def post(self, path: str) -> Any:
        return self.client._ask(path, {})

    def ready(self) -> bool:
        return _until(lambda: self.client.health().ready)

    def busy(self) -> bool:
        """Whether the shoppers get answers."""
        before = len(self.lists) + len(self.stored)
        return _until(lambda: len(self.lists) + len(self.stored) > before)

    def move_clock(self, seconds: float) -> None:
        new = self.clock.with_name("new")
        new.write_text(str(float(self.clock.read_text()) + seconds))
        new.replace(self.clock)

    def children(self, main: bool = True) -> list[int]:
        """The workers, which the main thread of the server has started; or the job, which another one has."""
        tasks = list(Path(f"/proc/{self.server.pid}/task").iterdir())
        lists = [task / "children" for task in tasks if (task.name == str(self.server.pid)) == main]
        pids = [int(pid) for path in lists for pid in path.read_text().split()]
        return [pid for pid in pids if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]

    def processes(self) -> list[int]:
        return [self.server.pid, *self.children(), *self.children(main=False)]

    def expect(self, holds: bool, problem: str) -> None:
        if not holds:
            self.tally.violations.append(problem)

    # ---- the audit -----------------------------------------------------------------------------------

    def audit(self) -> None:
        store = Store(self.address)
        decider = Decider(store, SECRET, time.time)
        events = Counter(row["event_id"] for row in store.rows(select(tables.outcomes)))
        decisions = {row["id"]: row for row in store.rows(select(tables.decisions))}
        results = {row["decision"]: row for row in store.rows(select(tables.results))}
        settled = {row["period"] for row in store.rows(select(tables.settled))}
        self.expect(self.stored <= events.keys() <= self.sent, "acknowledged events are lost, or others are there")
        for key, (user, *promised) in self.lists.items():
            row = decisions.get(key, {"user_id": "lost", "shown": "0", "propensities": "0"})
            kept = [row["user_id"], json.loads(row["shown"]), json.loads(row["propensities"])]
            self.expect(kept == [user, *promised], f"the list of {user} is lost or another one")
        for row in decisions.values():
            drawn = [json.loads(row["shown"]), json.loads(row["propensities"])]
            self.expect(list(decider.replay(row)) == drawn, f"{row['id']} is not what a replay draws")
        due = {key for key, row in decisions.items() if row["period"] in settled}
        self.expect(due == results.keys(), f"{len(due ^ results.keys())} decisions of settled periods are wrong")
        for row in store.rows(select(tables.positives)):
            pi = decider.propensities_for(decisions[row["decision"]], [row["item_id"]])
            self.expect(pi == {row["item_id"]: row["propensity"]}, f"wrong π in {row['decision']}")
        sums = store.rows(select(tables.user_sums))
        for column in ("purchases", "lift"):
            difference = sum(row[column] for row in sums) - sum(row[column] for row in results.values())
            self.expect(abs(difference) < 1e-6, f"the sums of {column} are wrong by {difference}")
        self.expect(sum(row["visits"] for row in sums) == len(results), "visits were counted twice or not at all")
        store.close()


def _timed(ask: Callable[[], Any]) -> tuple[Any, float]:
    began = time.monotonic()
    return ask(), time.monotonic() - began


def _until(holds: Callable[[], bool]) -> bool:
    end = time.monotonic() + PATIENCE
    while not (held := holds()) and time.monotonic() < end:
        time.sleep(0.1)
    return held
