"""Starting the server: worker processes, and a scheduler that settles periods and judges challengers."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable

import uvicorn

from taurank.serve.auth import create_token
from taurank.serve.deciding import Decider
from taurank.serve.promotion import PATIENCE, judge
from taurank.serve.service import secret_for
from taurank.serve.settling import GRACE_SECONDS, settle
from taurank.serve.store import Store, Unavailable
from taurank.serve.surfaces import put_surface

JOB_SECONDS = 20.0  # between two rounds of the scheduler

Say = Callable[[str], None]


def init(address: str, surface: str) -> str:
    """Create a store with a surface of default settings; returns the token of its administrator."""
    store = Store(address, create=True)
    try:
        secret_for(address)
        put_surface(store, surface, {})
        return create_token(store, "admin", "first")[1]
    finally:
        store.close()


def run(address: str, host: str, port: int, workers: int, rate: float, say: Say) -> None:
    """Serve until interrupted."""
    Store(address).close()  # a missing store is an error of this process, not of its workers
    os.environ.update(TAURANK_STORE=address, TAURANK_RATE=str(rate))
    scheduler = multiprocessing.get_context("spawn").Process(
        target=_schedule, args=(address, os.getpid()), daemon=True
    )
    scheduler.start()
    say(f"serving on http://{host}:{port} (dashboard at /, user name is ignored, password is a token)")
    try:
        uvicorn.run(
            "taurank.serve.api:from_environment", factory=True, host=host, port=port, workers=workers,
            log_level="warning", access_log=False, server_header=False, timeout_graceful_shutdown=10,
        )  # fmt: skip
    finally:
        scheduler.terminate()
        scheduler.join(5)


def run_jobs(decider: Decider, grace: float = GRACE_SECONDS, patience: int = PATIENCE) -> dict[str, str]:
    """Settle the ended periods of every surface and judge its challenger; returns what was done."""
    done = {}
    for surface in decider.surfaces.all():
        now = decider.clock()
        periods = settle(decider, surface, now, grace)
        done[surface.name] = f"{periods} settled, {judge(decider.store, surface, now, patience)}"
    return done


def _schedule(address: str, parent: int) -> None:
    """Run the jobs until the parent ends, also if it is killed; retries if the database is unavailable."""
    decider = Decider(Store(address), secret_for(address), time.time)
    last: dict[str, str] = {}
    while os.getppid() == parent:
        try:
            done = run_jobs(decider)
            lines = [f"{name}: {text}" for name, text in done.items() if text != last.get(name)]
            last = done
        except Unavailable as error:
            lines = [f"the database does not answer: {error}"]
        for line in lines:
            print(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {line}", flush=True)
        time.sleep(JOB_SECONDS)
