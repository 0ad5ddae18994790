"""The simulated world shops over HTTP, at a real server on this machine."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import uvicorn

from closed_loop.simulate import SURFACE, Report, Scenario, SimulatedClock, fix_arms, run, secret_of
from taurank.serve.api import Service
from taurank.serve.client import Client, Event
from taurank.serve.decisions import Decider
from taurank.serve.jobs import beat, draw_pages
from taurank.serve.security import create_token
from taurank.serve.server import create_app
from taurank.serve.store import Store

HEADING = "day  incumbent  challenger  true lift  so far   estimate (95 %)          against the hold-out"
_REQUESTS = 32  # under way at a time


class HttpShop:
    """The service over HTTP, with many requests under way."""

    def __init__(self, port: int, token: str) -> None:
        self._client = Client(f"http://127.0.0.1:{port}", token, timeout=60)

    def recommend(self, users: list[str]) -> list[list[str]]:
        with ThreadPoolExecutor(_REQUESTS) as threads:
            lists = threads.map(lambda user: self._client.recommend(user, SURFACE), users)
            return [[item.item_id for item in each.items] for each in lists]

    def report(self, events: list[dict[str, Any]]) -> None:
        self._client.report(Event(**event) for event in events)


def simulate(
    folder: str,
    scenario: Scenario,
    port: int,
    say: Callable[[Report], None],
    ready: Callable[[str], None],
    stay: bool,
) -> list[Report]:
    """Run a server and a simulation against it; ``ready`` gets the address of the dashboard."""
    store, clock = Store(folder, create=True), SimulatedClock()
    fix_arms(store, scenario.seed)
    secret = secret_of(scenario)
    app, analyst = create_token(store, "app")[1], create_token(store, "analyst")[1]
    decider = Decider(store, secret, clock)

    def show(report: Report) -> None:
        draw_pages(decider)
        beat(store, clock())
        say(report)

    with serving(Service(store, secret, clock), port) as port:
        ready(f"http://me:{analyst}@127.0.0.1:{port}/")
        reports = run(decider, clock, HttpShop(port, app), scenario, show)
        while stay:
            time.sleep(1)
    return reports


@contextmanager
def serving(service: Service, port: int = 0) -> Iterator[int]:
    """The service on a thread, closed at the end; the port is a free one if none is given."""
    port = port or free_port()
    server = uvicorn.Server(uvicorn.Config(create_app(service), port=port, log_level="error", access_log=False))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started or service.missing:
        time.sleep(0.02)
    try:
        yield port
    finally:
        server.should_exit = True
        thread.join(20)


def line(report: Report) -> str:
    """A period as a line under ``HEADING``."""
    done = "" if report.action.startswith("caused") else report.action.partition(";")[0]
    return (
        f"{report.period:3d}  {report.incumbent[:8]:9s}  {(report.challenger or '–')[:8]:10s}  {report.truth:9.3f}"
        f"  {report.running_truth:6.3f}   {report.estimate:.3f} ({report.low:.3f} to {report.high:.3f})"
        f"  {report.holdout_low:6.2f} to {report.holdout_high:.2f}  {done}"
    )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
