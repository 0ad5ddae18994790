"""How many lists and outcomes a second: the service under load, client on the same machine.

    python benchmarks/serve.py [--store ADDRESS] [--workers 1] [--seconds 20] [--rate 800]

10,000 items, 100,000 users, 64 factors, 10 slots. Requests are sent at fixed times whether or not earlier ones
have been answered, and a latency counts from the time at which its request was due.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from taurank.data.ids import Ids
from taurank.learners import BPR
from taurank.serve.auth import create_token
from taurank.serve.client import Client
from taurank.serve.demo import free_port
from taurank.serve.gate import promote
from taurank.serve.models import add_model, model_bytes
from taurank.serve.policy import Policy
from taurank.serve.retraining import Plan
from taurank.serve.simulate import Scenario, simulate_directly
from taurank.serve.store import Store
from taurank.serve.surfaces import put_surface

Make = Callable[[int], tuple[str, dict[str, Any]]]

USERS, ITEMS, FACTORS = 100_000, 10_000, 64


@dataclass(frozen=True)
class Load:
    """What one run measured."""

    sent: int
    statuses: dict[int, int]
    seconds: float
    latencies: Any
    cpu: float = 0.0  # seconds that the server computed

    def __str__(self) -> str:
        p50, p90, p99 = np.percentile(self.latencies * 1e3, [50, 90, 99])
        rate = self.sent / self.seconds
        failed = self.sent - self.statuses.get(200, 0)
        return (
            f"{rate:,.0f} requests/s, p50 {p50:.1f} ms, p90 {p90:.1f} ms, p99 {p99:.1f} ms, "
            f"server CPU {1e3 * self.cpu / self.sent:.2f} ms per request, {failed} failed"
        )


def say(words: str) -> None:
    print(words, flush=True)


def main() -> None:
    arguments = _arguments()
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

    def run(make: Make, rate: float, seconds: float) -> Load:
        before = _cpu_seconds(server)
        load = asyncio.run(send(port, token, make, rate, seconds))
        return replace(load, cpu=_cpu_seconds(server) - before)

    run(_recommend(1), 200, 10)  # compiled code, caches, and the keeper has started
    say(f"recommend at {arguments.rate}/s: {run(_recommend(2), arguments.rate, arguments.seconds)}")
    say(f"recommend, repeated:  {run(_recommend(2), arguments.rate, min(5, arguments.seconds))}")
    outcomes = run(_outcomes(), 50, arguments.seconds)
    say(f"outcomes, batches of 100: {100 * outcomes.sent / outcomes.seconds:,.0f} events/s; {outcomes}")
    for rate in arguments.more:
        say(f"recommend at {rate}/s: {run(_recommend(int(rate)), rate, arguments.seconds)}")


def coverage(runs: int) -> None:
    """How often the intervals of a whole simulated run, all of its periods at once, cover the truth."""
    plan, policy = Plan("countingbayes", {"weight": 3.0}), Policy(k=4, floor=0.04, ceiling=0.8, temperature=0.4)
    covered = holdout = 0
    for seed in range(runs):
        scenario = Scenario(300, 25, 20, 0.9, 0.4, 0.5, seed, policy, plan)
        with tempfile.TemporaryDirectory() as folder:
            reports = simulate_directly(folder, scenario)
        covered += all(report.covered for report in reports)
        holdout += all(report.holdout_covered for report in reports)
    say(f"{runs} runs of 20 periods: all intervals of the lift cover in {covered}, against the hold-out in {holdout}")


def prepare(address: str) -> str:
    """A store with a surface, a model and a token."""
    store = Store(address)
    random = np.random.default_rng(0)
    model = BPR(factors=FACTORS, random_state=0)
    model.users_, model.items_ = Ids(np.arange(USERS), "user_id"), Ids(np.arange(ITEMS), "item_id")
    model.popularity_ = random.integers(0, 1000, ITEMS)
    model.user_factors_ = random.standard_normal((USERS, FACTORS), np.float32)
    model.item_factors_ = random.standard_normal((ITEMS, FACTORS), np.float32)
    put_surface(store, "home", Policy(k=10, floor=0.0002, ceiling=0.9, temperature=0.2), "day", 0.05)
    promote(store, "home", add_model(store, model_bytes(model), "", time.time())["version"], "", time.time())
    token = create_token(store, "app")[1]
    store.close()
    return token


def start(address: str, port: int, workers: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "taurank", "serve", "--store", address, "--port", str(port)]
    server = subprocess.Popen([*command, "--workers", str(workers)], stdout=subprocess.DEVNULL)
    for _ in range(600):
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return server
        except OSError:
            time.sleep(0.1)
    raise RuntimeError("the server does not start")


def _recommend(seed: int) -> Make:
    users = np.random.default_rng(seed).permutation(USERS)

    def make(number: int) -> tuple[str, dict[str, Any]]:
        return "/v1/recommend", {"user_id": int(users[number % USERS]), "surface": "home"}

    return make


def _outcomes() -> Make:
    def make(number: int) -> tuple[str, dict[str, Any]]:
        events = [
            {"event_id": f"{number}-{n}", "user_id": (number * 37 + n) % USERS, "item_id": n} for n in range(100)
        ]
        return "/v1/outcomes", {"events": events}

    return make


async def send(port: int, token: str, make: Make, rate: float, seconds: float) -> Load:
    """``rate`` requests a second over 64 kept connections."""
    latencies: list[float] = []
    statuses: Counter[int] = Counter()

    async def one(client: Client, when: float, number: int) -> None:
        status, _ = await client.post(*make(number))
        statuses[status] += 1
        latencies.append(time.perf_counter() - when)

    async with Client(port, token, connections=64) as client:
        began = time.perf_counter()
        tasks = []
        for number in range(int(rate * seconds)):
            when = began + number / rate
            if (wait := when - time.perf_counter()) > 0:
                await asyncio.sleep(wait)
            tasks.append(asyncio.create_task(one(client, when, number)))
        await asyncio.gather(*tasks)
        took = time.perf_counter() - began
    return Load(len(latencies), statuses, took, np.array(latencies))


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
    parser.add_argument("--coverage", type=int, default=0, help="instead: simulate this many runs")
    parser.add_argument("--more", type=float, nargs="*", default=(), help="further rates to try")
    return parser.parse_args()


if __name__ == "__main__":
    main()
