"""Faults of a running service, in an order drawn from the seed: clocks, disks, locks, kills, a lost database.

A real server on the loopback interface answers two shoppers all the while. Afterwards the store is audited: what was
acknowledged is there, once; every π is what a replay computes; settled periods have just the decisions they had when
they were settled, and the running sums are those of the results. Nothing here depends on how fast the machine is: a
state is waited for, and when the time is over the remaining faults are left out.
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
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import select, text

from support.postgresql import start_postgresql
from support.shop import SECRET, open_shop
from taurank.serve import tables
from taurank.serve.client import Client, Event, ServiceError
from taurank.serve.decisions import Decider
from taurank.serve.security import create_token
from taurank.serve.store import Store
from torture.processes import gone
from torture.tally import HERE, PATIENCE, Tally, environment

LIMIT = 40.0  # seconds for an answer out of order: five, and the machine may be very busy
LEAST = 30.0  # seconds in which the faults of a round begin
HOUR = 3600.0  # the period


def faults(folder: Path, seed: int, seconds: float) -> Tally:
    """Rounds on SQLite and PostgreSQL in turn; the seed says which one is first."""
    tally = Tally()
    if sys.platform != "linux":
        tally.notes.append("skipped: the faults are those of processes on Linux")
        return tally
    for number in tally.rounds(seconds):
        with ExitStack() as stack:
            database = None
            if (seed + number) % 2:
                place = tempfile.TemporaryDirectory(prefix="taurank-pg-", ignore_cleanup_errors=True)
                try:
                    database = start_postgresql(stack.enter_context(place))
                    stack.callback(database._stop)
                except pytest.skip.Exception as error:
                    tally.notes.append(str(error))
            service = Service(folder / str(number), database, tally, np.random.default_rng([seed, 5, number]))
            stack.callback(service.end)
            end = time.monotonic() + max(LEAST, seconds - tally.seconds)
            try:
                service.start()
                service.round(end)
            except GaveUp as error:
                tally.violations.append(str(error))
    return tally


class GaveUp(Exception):
    """A state that did not come; the rest of the round would only say the same."""


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
        self.client = Client(f"http://127.0.0.1:{self.port}", self.token, timeout=60, attempts=1)
        self.lists: dict[str, tuple[str, list[str], list[float]]] = {}
        self.sent: set[str] = set()
        self.stored: set[str] = set()
        self.stopped = threading.Event()

    def round(self, end: float) -> None:
        """Every fault once, in the order of the seed, under load, as long as there is time; then the audit."""
        script: list[Callable[[], None]] = [
            self.clock_ahead, self.clock_back, self.locked, self.killed_job, self.killed_worker, self.killed_parent,
            self.full_disk if self.database is None else self.lost_database,
        ]  # fmt: skip
        seeds = self.rng.integers(2**31, size=2)
        shoppers = [threading.Thread(target=self.shop, args=(f"s{n}", int(seed))) for n, seed in enumerate(seeds)]
        for shopper in shoppers:
            shopper.start()
        names: list[str] = []
        for place in self.rng.permutation(len(script)):
            if names and time.monotonic() > end:
                break
            names.append(script[place].__name__.replace("_", " "))
            script[place]()
            self.wait(lambda: self.client.health().ready, f"ready after: {names[-1]}")
            self.shopped(f"after: {names[-1]}")
        self.stopped.set()
        for shopper in shoppers:
            shopper.join()
        self.clock_ahead()
        self.audit()
        kind = "SQLite" if self.database is None else "PostgreSQL"
        counts = f"{len(names)} of {len(script)} faults, {len(self.lists):,} lists, {len(self.stored):,} events"
        self.tally.notes.append(f"{kind}: {counts} ({', '.join(names)})")

    # ---- the faults ----------------------------------------------------------------------------------

    def clock_ahead(self) -> None:
        """One to three periods: those before are settled."""
        self.move_clock(int(self.rng.integers(1, 4)) * HOUR)
        self.settle()

    def clock_back(self) -> None:
        """Into a settled period, which must not get another visit."""
        self.shopped("before the clock goes back")
        self.move_clock(2 * HOUR)
        self.settle()
        self.move_clock(-2 * HOUR)
        self.wait(lambda: self.status(lambda: self.visit("late")) in (200, 409), "an answer in a settled period")
        self.expect(self.status(lambda: self.visit("late")) != 200, "a visit was written into a settled period")
        self.move_clock(2 * HOUR)

    def full_disk(self) -> None:
        """No file of the server may grow; it says so, and lives."""
        self.limit_files(0)
        self.out_of_order("full disk")
        self.limit_files(resource.RLIM_INFINITY)

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
        self.wait(lambda: self.client.health().job_seconds_ago is not None, "a first round of the job")
        self.move_clock(100.0)
        self.wait(self.noticed, "that health notices the killed job")
        self.wait(lambda: (self.client.health().job_seconds_ago or 100) < 99, "the job after it was killed")

    def noticed(self) -> bool:
        """Kill the job, also one that has started again meanwhile, and ask how long it has been silent."""
        for job in self.children(main=False):
            os.kill(job, signal.SIGKILL)
        return (self.client.health().job_seconds_ago or 0) >= 99

    def killed_worker(self) -> None:
        self.wait(lambda: len(self.children()) == 2, "two workers")
        killed = self.children()[int(self.rng.integers(2))]
        os.kill(killed, signal.SIGKILL)
        self.wait(lambda: len({*self.children()} - {killed}) == 2, "another worker for the killed one")

    def killed_parent(self) -> None:
        """Its workers and its job end by themselves, so that the port is free for the next one."""
        children = [*self.children(), *self.children(main=False)]
        self.server.kill()
        self.server.wait()
        self.wait(lambda: all(gone(pid) for pid in children), "the end of the children of a killed parent")
        self.start()

    def out_of_order(self, what: str) -> None:
        """Requests that write are 503 within the limit, health is not ready, and the process lives."""
        answers: dict[str, Any] = {}
        asked: dict[str, Callable[[], Any]] = {
            "list": lambda: self.status(lambda: self.visit(f"{what}-{self.clock.read_text()}")),
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
        self.wait(lambda: self.client.health().ready, "the start of the server")

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

    def status(self, ask: Callable[[], Any]) -> int | None:
        try:
            ask()
            return 200
        except ServiceError as error:
            return error.status

    def settle(self) -> None:
        self.wait(lambda: self.status(lambda: self.client._ask("/v1/jobs", {})) == 200, "settlement")

    def shopped(self, when: str) -> None:
        """Wait until the shoppers get answers."""
        before = len(self.lists) + len(self.stored)
        self.wait(lambda: len(self.lists) + len(self.stored) > before, f"answers {when}")

    def wait(self, holds: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + PATIENCE
        while not holds():
            if time.monotonic() > end:
                raise GaveUp(f"waited {PATIENCE:.0f} s in vain for {what}")
            time.sleep(0.1)

    def move_clock(self, seconds: float) -> None:
        new = self.clock.with_name("new")
        new.write_text(str(float(self.clock.read_text()) + seconds))
        new.replace(self.clock)

    def children(self, main: bool = True) -> list[int]:
        """The workers, which the main thread of the server has started; or the job, which another one has."""
        tasks = list(Path(f"/proc/{self.server.pid}/task").iterdir())
        lists = [task / "children" for task in tasks if (task.name == str(self.server.pid)) == main]
        pids = [int(pid) for path in lists for pid in _read(path).split()]
        return [pid for pid in pids if b"spawn_main" in _read(Path(f"/proc/{pid}/cmdline"))]

    def limit_files(self, size: int) -> None:
        """Let no file of the server grow beyond this; the parent first, from which new children inherit it."""
        for main in (None, True, False):
            for pid in [self.server.pid] if main is None else self.children(main):
                with suppress(ProcessLookupError):
                    resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

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


def _read(path: Path) -> bytes:
    """A file about a process, which may have ended meanwhile."""
    try:
        return path.read_bytes()
    except OSError:
        return b""
