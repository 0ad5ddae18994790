"""How many lists and outcomes a second: the service under load, client on the same machine.

    python benchmarks/serve.py [--store ADDRESS] [--workers 1] [--seconds 20] [--rate 800]

10,000 items, 100,000 users, 64 factors, 10 slots. Requests are sent at fixed times whether or not earlier ones
have been answered, and a latency counts from the time at which its request was due.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

sys.path.pop(0)  # this folder: numba would take its coverage.py for the package of that name
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))

from closed_loop import peeking
from closed_loop.over_http import free_port
from closed_loop.simulate import START as FIRST_DAY
from closed_loop.simulate import SURFACE, DirectShop, Scenario, SimulatedClock, shop_one_day, simulate_directly
from closed_loop.simulate import prepare as open_shop
from taurank.data.ids import Ids
from taurank.errors import DivergedError
from taurank.learners import BPR
from taurank.serve import tables
from taurank.serve.api import Service
from taurank.serve.client import Client
from taurank.serve.decisions import Decider
from taurank.serve.gate import run_jobs
from taurank.serve.jobs import draw_pages
from taurank.serve.models import add_model, model_bytes
from taurank.serve.policy import Policy
from taurank.serve.recorder import Recorder
from taurank.serve.retrain import RetrainConfig
from taurank.serve.security import create_token
from taurank.serve.settlement import export, settle
from taurank.serve.store import Store, secret_for
from taurank.serve.surfaces import promote, put_surface

USERS, ITEMS, FACTORS = 100_000, 10_000, 64


@dataclass(frozen=True)
class Load:
    """What one run measured."""

    sent: int
    statuses: dict[int, int]
    seconds: float
    latencies: Any
    cpu: float = 0.0  # seconds that the server computed
    client: float = 0.0  # and the client

    def __str__(self) -> str:
        p50, p90, p99 = np.percentile(self.latencies * 1e3, [50, 90, 99])
        rate = self.sent / self.seconds
        failed = self.sent - self.statuses.get(200, 0)
        server, client = 1e3 * self.cpu / self.sent, 1e3 * self.client / self.sent
        return (
            f"{rate:,.0f} requests/s, p50 {p50:.1f} ms, p90 {p90:.1f} ms, p99 {p99:.1f} ms, "
            f"CPU per request: server {server:.2f} ms, client {client:.2f} ms; {failed} failed"
        )


def say(words: str) -> None:
    print(words, flush=True)


def main() -> None:
    arguments = _arguments()
    if arguments.learners:
        learners()
        return
    if arguments.grid:
        grid(arguments.grid, arguments.runs)
        return
    if arguments.settle:
        settlement(100_000, arguments.settle)
        return
    if arguments.coverage:
        coverage(arguments.coverage)
        return
    with tempfile.TemporaryDirectory() as folder:
        address = arguments.store or str(Path(folder) / "state")
        token = prepare(address)
        port = free_port()
        server = start(address, port, arguments.workers)
        try:
            _measure(arguments, port, token, server.pid)
        finally:
            server.terminate()
            server.wait(20)


def _measure(arguments: argparse.Namespace, port: int, token: str, server: int) -> None:
    kind = "PostgreSQL" if arguments.store else "SQLite"
    say(f"{kind}, {arguments.workers} worker(s), {os.cpu_count()} cores, client on the same machine")
    rate, seconds = arguments.rate, arguments.seconds

    def run(requests: list[bytes], at: float | None) -> Load:
        server_before, client_before = _cpu_seconds(server), time.process_time()
        sender = Sender(port, requests)
        load = asyncio.run(sender.in_turn(32) if at is None else sender.at_rate(at))
        return replace(load, cpu=_cpu_seconds(server) - server_before, client=time.process_time() - client_before)

    run(_recommend(token, 1, 2000), 200)  # compiled code, caches, and the keeper has started
    fresh, asked_again = _recommend(token, 2, int(rate * seconds)), int(rate * min(5, seconds))
    say(f"recommend at {rate:.0f}/s: {run(fresh, rate)}")
    say(f"recommend, repeated: {run(fresh[-asked_again:], rate)}")
    outcomes = run(_outcomes(token, int(50 * seconds)), 50)
    say(f"outcomes, batches of 100: {100 * outcomes.sent / outcomes.seconds:,.0f} events/s; {outcomes}")
    say(f"recommend, 32 at a time: {run(_recommend(token, 3, int(rate * seconds)), None)}")
    for more in arguments.more:
        say(f"recommend at {more:.0f}/s: {run(_recommend(token, int(more), int(more * seconds)), more)}")


LEVELS: dict[str, tuple[Any, ...]] = {
    "items": (50, 300, 2000, 10_000), "ceiling": (0.5, 0.8, 0.9, 0.95, 0.98, 0.99, 0.999), "share": (0.05, 0.2, 0.5),
    "rate": (0.001, 0.01, 0.05), "related": (True, False), "returning": (True, False), "visits": (1000, 5000, 20_000),
    "ratio": (1.0, 1.0, 1.0, 2.0), "same": (True, False), "peek": (0, 100),
}  # fmt: skip


def grid(cells: int, runs: int) -> None:
    """Misses at any look, and false promotions, in trials of random kinds; the seeds are not those of development."""
    random = np.random.default_rng(20_000)
    rows = []
    for number in range(cells):
        chosen = {name: values[random.integers(len(values))] for name, values in LEVELS.items()}
        rows.append((chosen, peeking.Cell(**chosen).frequencies(runs, 30_000 + number) / runs))
        if (number + 1) % 25 == 0:
            say(f"{number + 1} of {cells} kinds")
    say(f"{cells} kinds of trials, {runs} runs each, 28 periods; a run misses if any interval does")
    say(f"{'':24}{'statistic':24} kinds  started  misses: mean  worst   promoted falsely: mean  worst")
    for name, values in LEVELS.items():
        for value in dict.fromkeys(values):
            own = [(cell, each) for cell, each in rows if cell[name] == value]
            for place, statistic in enumerate(peeking.STATISTICS):
                started = [each[place] for _, each in own]
                null = [each[place, peeking.ABOVE] for cell, each in own if cell["ratio"] == 1.0] or [float("nan")]
                missed = [each[peeking.MISSED] for each in started] or [float("nan")]
                share = np.mean([each[peeking.STARTED] for each in started]) if started else float("nan")
                say(
                    f"{name + ' ' + str(value):24}{statistic:24} {len(own):5d}  {share:7.2f}  {np.mean(missed):12.4f}"
                    f"  {max(missed):.4f}   {np.mean(null):22.4f}  {max(null):.4f}"
                )
    for share in (0.05, 0.2):
        cell = peeking.Cell(share=share, same=True, visits=20_000, peek=0)
        promoted = cell.frequencies(max(100, runs // 4), 40_000, trials=20)[1, peeking.ABOVE] / max(100, runs // 4)
        say(f"20 null challengers in a row, share {share}: one is promoted in {promoted:.3f} of the runs")


def settlement(visits: int, past: int) -> None:
    """Seconds to settle a period of ``visits``, a twentieth of which buy, and to draw and to view the dashboard."""
    with tempfile.TemporaryDirectory() as folder:
        address = str(Path(folder) / "state")
        prepare(address)
        store = Store(address)
        decider = Decider(store, secret_for(address), time.time)
        surface = decider.surfaces.get("home")
        last = surface.periods.number(time.time()) - 1
        items = [str(n) for n in range(10)]
        row = {"surface": "home", "arm": "incumbent", "model": surface.incumbent, "policy": surface.policy_id,
               "filter": None, "shown": json.dumps(items), "propensities": json.dumps([0.9] * 10)}  # fmt: skip
        sums = [{"surface": "home", "measure": "life", "arm": "recommended", "user_id": str(n), "visits": 1.0,
                 "purchases": 0.0, "lift": 0.0, "value": 0.0} for n in range(visits)]  # fmt: skip
        with store.write() as connection:
            measures, names = tables.measures, list(tables.decisions.columns.keys())
            connection.execute(measures.update().values(since=0))
            connection.execute(tables.user_sums.insert(), sums)
            for number in range(last - past // visits, last + 1):
                start = surface.periods.start(number)
                rows = [{**row, "id": f"{number}-{n}", "user_id": str(n), "period": number, "time": start}
                        for n in range(visits)]  # fmt: skip
                connection.exec_driver_sql(
                    f"INSERT INTO decisions ({', '.join(names)}) VALUES ({', '.join(f':{name}' for name in names)})",
                    rows,
                )
                settled = {"surface": "home", "period": number, "time": 0.0, "figures": FIGURES}
                if number < last:
                    connection.execute(tables.settled.insert(), settled)
            events = [
                {"event_id": str(n), "user_id": str(n), "item_id": str(n % ITEMS), "time": start + 60.0, "value": 1.0}
                for n in range(0, visits, 20)
            ]
            connection.execute(tables.outcomes.insert(), events)
        decider.models.get(surface.incumbent or "")
        began, cpu = time.perf_counter(), time.process_time()
        settle(decider, surface, surface.periods.end(last) + 1000.0)
        took, cpu = time.perf_counter() - began, time.process_time() - cpu
        say(f"settlement of {visits:,} visits beside {past:,} earlier decisions: {took:.1f} s, CPU {cpu:.1f} s")
        began = time.perf_counter()
        draw_pages(decider)
        say(f"the first drawing of the page: {time.perf_counter() - began:.2f} s")
        service = Service(store, b"")
        times = []
        for _ in range(50):
            began = time.perf_counter()
            size = len(service.page("home"))
            times.append(time.perf_counter() - began)
        middle, most = 1e3 * np.median(times), 1e3 * max(times)
        say(f"a view: {middle:.1f} ms at the median, {most:.1f} at most, {size:,} characters")
        began = time.perf_counter()
        run_jobs(decider)
        say(f"a round of the background job with nothing to do: {1e3 * (time.perf_counter() - began):.0f} ms")
        service.close()


FIGURES = json.dumps({
    "arms": {"incumbent": {"visits": 100.0, "purchases": 5.0, "lift": 1.0, "value": 1.0}}, "lists": 100,
    "outcomes": 5, "intervals": {"life recommended lift": [0.1, 0.05, 0.15]},
    "overlap": {arm: {"purchases": 9.0, "sum": 9.0, "square": 9.0} for arm in ("shown", "not shown")},
})  # fmt: skip


def coverage(runs: int) -> None:
    """How often the intervals of a whole simulated run, all of its periods at once, cover the truth."""
    policy = Policy(k=4, floor=0.04, ceiling=0.8, temperature=0.4)
    retraining = RetrainConfig("countingbayes", {"weight": 3.0})
    covered = holdout = 0
    for seed in range(runs):
        scenario = Scenario(300, 25, 20, 0.9, 0.4, 0.5, seed, policy, retraining)
        with tempfile.TemporaryDirectory() as folder:
            reports = simulate_directly(folder, scenario)
        covered += all(report.covered for report in reports)
        holdout += all(report.holdout_covered for report in reports)
    say(f"{runs} runs of 20 periods: all intervals of the lift cover in {covered}, against the hold-out in {holdout}")


def learners(days: int = 12) -> None:
    """The true lift of lists by models that were fitted to days of Popular's log, in the demonstration's world."""
    scenario, clock = Scenario(periods=days), SimulatedClock()
    world = scenario.world()
    with tempfile.TemporaryDirectory() as folder:
        store = Store(folder, create=True)
        decider, recorder = Decider(store, scenario.seed.to_bytes(32, "little"), clock), Recorder(store)
        open_shop(decider, scenario, world)
        for day in range(days):
            clock.now = FIRST_DAY + day * 86400 + 9 * 3600
            shop_one_day(DirectShop(decider, recorder), world, scenario, day, clock)
            clock.now = FIRST_DAY + (day + 1) * 86400 + 60
            run_jobs(decider, grace=0.0, patience=6)
        recorder.close()
        log = export(decider, decider.surfaces.get(SURFACE), None)
        store.close()
    plain = {"factors": 8, "epochs": 30, "learning_rate": 0.05, "rate_decay": 1.0, "random_state": 0}
    capped = [("dlce", {**plain, "cap": cap}) for cap in (0.1, 0.3)]
    capped += [("dlce", {**plain, "cap": 0.1, "learning_rate": rate}) for rate in (0.01, 0.003)]
    plans = [("popular", {}), ("countingbayes", {"weight": 3.0}), ("empiricalbayes", {}), *capped]
    plans += [(name, plain) for name in ("cause", "ulrmf", "ulbpr", "dlto", "blce", "bpr")]
    for name, settings in plans:
        try:
            lift = true_lift(RetrainConfig(name, settings).fitted(log), world, scenario.policy)
        except DivergedError:
            lift = float("nan")
        say(f"{name} {settings}: true lift {lift:.3f} per visit")
    effect = world.treated_rate.astype(np.float64) - world.control_rate
    best = float(np.mean([scenario.policy.probabilities(row) @ row for row in effect]))
    say(f"known effects: true lift {best:.3f} per visit")


def true_lift(learner: Any, world: Any, policy: Policy) -> float:
    """Σ π (μ^T − μ^C), the mean over the users of the log; all of them visit equally often."""
    effect = world.treated_rate.astype(np.float64) - world.control_rate
    users = learner.users.encode([str(user) for user in range(world.n_users)])
    columns = learner.items.encode([str(item) for item in range(world.n_items)])
    pairs = zip(learner.score_block(users[users >= 0])[:, columns], effect[users >= 0], strict=True)
    return float(np.mean([policy.probabilities(row) @ caused for row, caused in pairs]))


def prepare(address: str) -> str:
    """A store with a surface, a model and a token."""
    store = Store(address, create=True)
    random = np.random.default_rng(0)
    model = BPR(factors=FACTORS, random_state=0)
    model.users_, model.items_ = Ids(np.arange(USERS), "user_id"), Ids(np.arange(ITEMS), "item_id")
    model.popularity_ = random.integers(0, 1000, ITEMS)
    model.user_factors_ = random.standard_normal((USERS, FACTORS), np.float32)
    model.item_factors_ = random.standard_normal((ITEMS, FACTORS), np.float32)
    put_surface(store, "home", {"policy": {"floor": 0.0002}})
    model.log_fingerprint_ = None  # it was not fitted to any log
    promote(store, "home", add_model(store, model_bytes(model), "", time.time())["version"], "", time.time())
    token = create_token(store, "app")[1]
    store.close()
    return token


def start(address: str, port: int, workers: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "taurank", "serve", "--store", address, "--port", str(port)]
    server = subprocess.Popen([*command, "--workers", str(workers)], stdout=subprocess.DEVNULL)
    for _ in range(600):
        if Client(f"http://127.0.0.1:{port}", "").health().ready:
            return server
        time.sleep(0.1)
    raise RuntimeError("the server does not start")


def _recommend(token: str, seed: int, number: int) -> list[bytes]:
    users = np.random.default_rng(seed).permutation(USERS)[:number]
    return [_request(token, "/v1/recommend", {"user_id": int(user), "surface": "home"}) for user in users]


def _outcomes(token: str, number: int) -> list[bytes]:
    return [
        _request(token, "/v1/outcomes", {"events": [
            {"event_id": f"{place}-{n}", "user_id": (place * 37 + n) % USERS, "item_id": n} for n in range(100)
        ]}) for place in range(number)
    ]  # fmt: skip


def _request(token: str, path: str, body: Any) -> bytes:
    content = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content


class Connection(asyncio.Protocol):
    """A kept connection with one request under way; cheap, because the client computes on the server's cores."""

    def __init__(self, done: Callable[[Connection, int], None], lost: Callable[[Connection], None]) -> None:
        self._done, self._lost, self._received = done, lost, b""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def post(self, request: bytes) -> None:
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, found, body = self._received.partition(b"\r\n\r\n")
        if found and len(body) >= int(head.lower().partition(b"content-length:")[2].split(None, 1)[0]):
            self._received = b""
            self._done(self, int(head[9:12]))

    def connection_lost(self, _: Exception | None) -> None:
        self._lost(self)

    def close(self) -> None:
        self._transport.close()


@dataclass
class Sender:
    """Sends requests over kept connections and notes how long each took since the time at which it was due."""

    port: int
    requests: Sequence[bytes]

    def __post_init__(self) -> None:
        self.latencies: list[float] = []
        self.statuses: Counter[int] = Counter()
        self._due: dict[Connection, float] = {}
        self._waiting: deque[tuple[float, bytes]] = deque()
        self._idle: list[Connection] = []
        self._next: Iterator[bytes] = iter(self.requests)

    async def at_rate(self, rate: float) -> Load:
        """Open loop: requests are due at fixed times, whether or not earlier ones have been answered."""
        async with self._connections(64):
            began = time.perf_counter()
            for number, request in enumerate(self._next):
                when = began + number / rate
                if (wait := when - time.perf_counter()) > 0:
                    await asyncio.sleep(wait)
                self._send(when, request)
            return await self._load(began)

    async def in_turn(self, connections: int) -> Load:
        """Closed loop: every connection sends its next request when the last one is answered."""
        async with self._connections(connections):
            began = time.perf_counter()
            for request in islice(self._next, connections):
                self._send(began, request)
            self._refill = True
            return await self._load(began)

    async def _load(self, began: float) -> Load:
        while len(self.latencies) < len(self.requests):
            await asyncio.sleep(0.005)
        return Load(len(self.latencies), self.statuses, time.perf_counter() - began, np.array(self.latencies))

    @asynccontextmanager
    async def _connections(self, number: int) -> AsyncIterator[None]:
        self._refill = False
        loop = asyncio.get_running_loop()
        for _ in range(number):
            made = await loop.create_connection(
                lambda: Connection(self._answered, self._lost), "127.0.0.1", self.port
            )
            self._idle.append(made[1])
        opened = list(self._idle)
        yield
        for connection in opened:
            connection.close()

    def _send(self, when: float, request: bytes) -> None:
        if not self._idle:
            self._waiting.append((when, request))
            return
        connection = self._idle.pop()
        self._due[connection] = when
        connection.post(request)

    def _lost(self, connection: Connection) -> None:
        """The server ends connections that were idle for some seconds."""
        if connection in self._idle:
            self._idle.remove(connection)

    def _answered(self, connection: Connection, status: int) -> None:
        now = time.perf_counter()
        self.statuses[status] += 1
        self.latencies.append(now - self._due[connection])
        self._idle.append(connection)
        if self._waiting:
            self._send(*self._waiting.popleft())
        elif self._refill and (request := next(self._next, None)) is not None:
            self._send(now, request)


def _cpu_seconds(process: int) -> float:
    """What a process and its children have computed so far (Linux)."""
    total = 0.0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(path.parent.name) == process or int(fields[1]) == process:
            total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", default="", help="an address postgresql://…; SQLite in a new folder without it")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--rate", type=float, default=800.0)
    parser.add_argument("--grid", type=int, default=0, help="instead: simulate so many kinds of trials, without HTTP")
    parser.add_argument("--runs", type=int, default=1000, help="of each kind")
    parser.add_argument("--settle", type=int, default=0, help="instead: settle and view beside so many decisions")
    parser.add_argument("--coverage", type=int, default=0, help="instead: simulate this many runs")
    parser.add_argument("--learners", action="store_true", help="instead: true lift of models after 12 days")
    parser.add_argument("--more", type=float, nargs="*", default=(), help="further rates to try")
    return parser.parse_args()


if __name__ == "__main__":
    main()
