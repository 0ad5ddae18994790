"""The simulated world shops over HTTP, at a real server on this machine."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable

import uvicorn

from closed_loop.client import Client
from closed_loop.simulate import (
    SURFACE,
    Event,
    Report,
    Scenario,
    SimulatedClock,
    batches,
    fix_arms,
    run,
    secret_of,
)
from taurank.serve.api import Service
from taurank.serve.decisions import Decider
from taurank.serve.jobs import beat, draw_pages
from taurank.serve.security import create_token
from taurank.serve.server import create_app
from taurank.serve.store import Store

HEADING = "day  incumbent  challenger  true lift  so far   estimate (95 %)          against the hold-out"
_EVENTS = 100  # per request


class HttpShop:
    """The service over HTTP, with many requests under way."""

    def __init__(self, port: int, token: str) -> None:
        self._port, self._token = port, token

    def recommend(self, users: list[str]) -> list[list[str]]:
        answers = asyncio.run(self._post("/v1/recommend", [{"user_id": u, "surface": SURFACE} for u in users]))
        return [[item["item_id"] for item in answer["items"]] for answer in answers]

    def report(self, events: list[Event]) -> None:
        asyncio.run(self._post("/v1/outcomes", [{"events": part} for part in batches(events, _EVENTS)]))

    async def _post(self, path: str, bodies: list[Event]) -> list[Event]:
        async with Client(self._port, self._token) as client:
            return await client.post_all(path, bodies)


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
    port = port or free_port()
    server = uvicorn.Server(
        uvicorn.Config(create_app(Service(store, secret, clock)), port=port, log_level="error", access_log=False)
    )
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.02)
    app, analyst = create_token(store, "app")[1], create_token(store, "analyst")[1]
    ready(f"http://me:{analyst}@127.0.0.1:{port}/")
    try:
        decider = Decider(store, secret, clock)

        def show(report: Report) -> None:
            draw_pages(decider)
            beat(store, clock())
            say(report)

        reports = run(decider, clock, HttpShop(port, app), scenario, show)
        while stay:
            time.sleep(1)
    finally:
        server.should_exit = True
        thread.join(20)
    return reports


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
