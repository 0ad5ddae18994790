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
from taurank.serve.gate import promote
from taurank.serve.models import add_model, model_bytes
from taurank.serve.policy import Policy
from taurank.serve.store import Store
from taurank.serve.surfaces import put_surface

Make = Callable[[int], tuple[str, bytes]]

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


def main() -> None:
    arguments = _arguments()
    with tempfile.TemporaryDirectory() as folder:
        address = arguments.store or str(Path(folder) / "state")
        token = prepare(address)
        port = _free_port()
        server = start(address, port, arguments.workers)
        try:
            _measure(arguments, port, token, server.pid)
        finally:
            server.terminate()
            server.wait(20)


def _measure(arguments: argparse.Namespace, port: int, token: str, server: int) -> None:
    kind = "PostgreSQL" if arguments.store else "SQLite"
    print(f"{kind}, {arguments.workers} worker(s), {os.cpu_count()} cores, client on the same machine")

    def run(make: Make, rate: float, seconds: float) -> Load:
        before = _cpu_seconds(server)
        load = asyncio.run(send(port, token, make, rate, seconds))
        return replace(load, cpu=_cpu_seconds(server) - before)

    run(_recommend(1), 100, 3)  # compiled code and caches
    print(f"recommend at {arguments.rate}/s: {run(_recommend(2), arguments.rate, arguments.seconds)}")
    print(f"recommend, repeated:  {run(_recommend(2), arguments.rate, min(5, arguments.seconds))}")
    outcomes = run(_outcomes(), 50, arguments.seconds)
    print(f"outcomes, batches of 100: {100 * outcomes.sent / outcomes.seconds:,.0f} events/s; {outcomes}")
    for rate in (1200, 1600, 2000):
        load = run(_recommend(rate), rate, 6)
        print(f"recommend at {rate}/s: {load}")
        if np.percentile(load.latencies, 99) > 0.1:
            break


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

    def make(number: int) -> tuple[str, bytes]:
        return "/v1/recommend", json.dumps({"user_id": int(users[number % USERS]), "surface": "home"}).encode()

    return make


def _outcomes() -> Make:
    def make(number: int) -> tuple[str, bytes]:
        events = [
            {"event_id": f"{number}-{n}", "user_id": (number * 37 + n) % USERS, "item_id": n} for n in range(100)
        ]
        return "/v1/outcomes", json.dumps({"events": events}).encode()

    return make


async def send(port: int, token: str, make: Make, rate: float, seconds: float) -> Load:
    """``rate`` requests a second over 64 kept connections."""
    due: asyncio.Queue[tuple[float, int]] = asyncio.Queue()
    latencies: list[float] = []
    statuses: Counter[int] = Counter()

    async def worker() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while True:
            when, number = await due.get()
            path, body = make(number)
            head = f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n"
            head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            writer.write(head.encode() + body)
            statuses[await _answer(reader)] += 1
            latencies.append(time.perf_counter() - when)
            due.task_done()

    workers = [asyncio.create_task(worker()) for _ in range(64)]
    began = time.perf_counter()
    for number in range(int(rate * seconds)):
        when = began + number / rate
        if (wait := when - time.perf_counter()) > 0:
            await asyncio.sleep(wait)
        due.put_nowait((when, number))
    await due.join()
    took = time.perf_counter() - began
    for task in workers:
        task.cancel()
    return Load(len(latencies), statuses, took, np.array(latencies))


async def _answer(reader: asyncio.StreamReader) -> int:
    head = await reader.readuntil(b"\r\n\r\n")
    lines = head.decode().lower().split("\r\n")
    length = next(int(line.split(":")[1]) for line in lines if line.startswith("content-length:"))
    await reader.readexactly(length)
    return int(lines[0].split()[1])


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


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", default="", help="an address postgresql://…; SQLite in a new folder without it")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--rate", type=float, default=800.0)
    return parser.parse_args()


if __name__ == "__main__":
    main()
