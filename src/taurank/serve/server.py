"""The server: worker processes with the application, and a scheduler that settles periods and judges challengers."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing

import uvicorn
from fastapi import FastAPI

from taurank import __version__
from taurank.serve.api import ROUTERS, HotRoute, Service, hot
from taurank.serve.decisions import Decider
from taurank.serve.lift import run_jobs
from taurank.serve.middleware import EXPECTED, OuterMiddleware, problem
from taurank.serve.security import create_token
from taurank.serve.store import Store, Unavailable, secret_for
from taurank.serve.surfaces import put_surface

JOB_SECONDS = 20.0  # between two rounds of the scheduler


def init(address: str, surface: str) -> str:
    """Create a store with a surface of default settings; returns the token of its administrator."""
    if "://" in address:
        secret_for(address)  # its absence shows before anything is created
    with closing(Store(address, create=True)) as store:
        secret_for(address)
        put_surface(store, surface, {})
        return create_token(store, "admin", "first")[1]


def run(
    address: str,
    host: str,
    port: int,
    workers: int,
    rate: float,
    proxy: str | None,
    say: Callable[[str], None],
) -> None:
    """Serve until interrupted. Only a ``proxy`` at this address is believed who the client is (X-Forwarded-For)."""
    Store(address).close()  # a missing store is an error of this process, not of its workers
    os.environ.update(TAURANK_STORE=address, TAURANK_RATE=str(rate))
    spawn = multiprocessing.get_context("spawn")
    scheduler = spawn.Process(target=_schedule, args=(address, os.getpid()), daemon=True)
    scheduler.start()
    say(f"serving on http://{host}:{port} (dashboard at /, user name is ignored, password is a token)")
    with tempfile.TemporaryDirectory(prefix="taurank-metrics-", ignore_cleanup_errors=True) as folder:
        if workers > 1:
            os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder  # the workers count into files, for whoever is asked
        try:
            uvicorn.run(
                "taurank.serve.server:from_environment", factory=True, host=host, port=port, workers=workers,
                log_level="warning", access_log=False, server_header=False, timeout_graceful_shutdown=10,
                proxy_headers=proxy is not None, forwarded_allow_ips=proxy,
            )  # fmt: skip
        finally:
            scheduler.terminate()
            scheduler.join(5)


def from_environment() -> FastAPI:
    """The application of a worker process: settings come from environment variables."""
    # the recorder needs the GIL a few times per transaction, and would wait 5 ms for it each time
    sys.setswitchinterval(0.0005)
    store = Store(os.environ["TAURANK_STORE"])
    rate = float(os.environ.get("TAURANK_RATE", "5000"))
    return create_app(Service(store, secret_for(store.address), rate=rate))


def create_app(service: Service) -> FastAPI:
    """The application; the service is closed when the server stops."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(service.close)

    app = FastAPI(
        title="taurank", version=__version__, docs_url=None, redoc_url=None, lifespan=lifespan,
        description="Recommendations with exact propensities.",
    )  # fmt: skip
    app.state.service = service
    for kind in EXPECTED:
        app.add_exception_handler(kind, problem)
    for router in ROUTERS:
        app.include_router(router)
    app.add_middleware(
        OuterMiddleware,  # type: ignore[arg-type]
        metrics=service.metrics,
        hot={route.path: route for route in hot.routes if isinstance(route, HotRoute)},
        body_limit=service.body_limit,
        upload_limit=service.upload_limit,
    )
    return app


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
            lines = [str(error)]
        for line in lines:
            print(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {line}", flush=True)
        time.sleep(JOB_SECONDS)
