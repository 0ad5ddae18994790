"""The server: worker processes with the application, and the background job, which is kept running."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from taurank import __version__
from taurank.errors import InputError
from taurank.serve.api import ROUTERS, HotRoute, Service, hot
from taurank.serve.jobs import run_forever
from taurank.serve.logs import CONFIG, log
from taurank.serve.middleware import EXPECTED, FOLDER, OuterMiddleware, problem
from taurank.serve.security import create_token
from taurank.serve.store import Store, secret_for
from taurank.serve.surfaces import put_surface

RESTART_SECONDS = 5.0  # before an ended background job starts again
REQUEST_SECONDS = 10.0  # in which a client must have sent its request, and
BODY_RATE = 10_000.0  # a second more for so many bytes of its body


def init(address: str, surface: str) -> str:
    """Create a store with a surface of default settings; returns the token of its administrator."""
    if "://" in address:
        secret_for(address)  # its absence shows before anything is created
    with closing(Store(address, create=True)) as store:
        secret_for(address)
        put_surface(store, surface, {})
        return create_token(store, "admin", "first")[1]


def run(
    address: str, host: str, port: int, workers: int, rate: float, webhook: str, log_requests: bool,
    say: Callable[[str], None],
) -> None:  # fmt: skip
    """Serve until interrupted; promotions, demotions and alerts are posted to a ``webhook``, if there is one."""
    if webhook and not webhook.startswith(("http://", "https://")):
        raise InputError(f"a webhook is an address such as https://…, got '{webhook}'.")
    Store(address).close()  # a missing store is an error of this process, not of its workers
    os.environ.update(TAURANK_STORE=address, TAURANK_RATE=str(rate), TAURANK_PARENT=str(os.getpid()))
    os.environ["TAURANK_LOG_REQUESTS"] = str(int(log_requests))
    threading.Thread(target=_keep_job, args=(address, webhook), daemon=True).start()
    say(f"serving on http://{host}:{port} (dashboard at /, user name is ignored, password is a token)")
    with tempfile.TemporaryDirectory(prefix="taurank-metrics-", ignore_cleanup_errors=True) as folder:
        if workers > 1:
            os.environ[FOLDER] = folder  # the workers count into files, for whoever is asked
        uvicorn.run(
            "taurank.serve.server:from_environment", factory=True, host=host, port=port, workers=workers,
            log_config=CONFIG, access_log=False, server_header=False, timeout_graceful_shutdown=10,
            timeout_worker_healthcheck=60,  # a worker that loads or compiles can be silent for long
            http=Protocol, proxy_headers=False,
        )  # fmt: skip


def _keep_job(address: str, webhook: str) -> None:
    """Start the background job, and again whenever it ends; it ends with this process."""
    spawn = multiprocessing.get_context("spawn")
    while True:
        job = spawn.Process(target=run_forever, args=(address, os.getpid(), webhook), daemon=True)
        job.start()
        job.join()
        log("job ended", exit_code=job.exitcode, restart_seconds=RESTART_SECONDS)
        time.sleep(RESTART_SECONDS)


class Protocol(HttpToolsProtocol):
    """HTTP with a time limit for requests: connections that send next to nothing must not use up a process."""

    _limit: asyncio.TimerHandle | None = None
    _until = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_limit()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._start_limit()

    def on_body(self, body: bytes) -> None:
        self._until += len(body) / BODY_RATE
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._end_limit()
        super().on_message_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_limit()
        super().connection_lost(exc)

    def _start_limit(self) -> None:
        if self._limit is None:
            self._until = self.loop.time() + REQUEST_SECONDS
            self._limit = self.loop.call_at(self._until, self._check_limit)

    def _check_limit(self) -> None:
        """Close, unless enough of a body has come meanwhile."""
        if self.loop.time() >= self._until:
            self.transport.close()
        else:
            self._limit = self.loop.call_at(self._until, self._check_limit)

    def _end_limit(self) -> None:
        if self._limit is not None:
            self._limit.cancel()
            self._limit = None


def from_environment() -> FastAPI:
    """The application of a worker process: settings come from environment variables."""
    # the recorder needs the GIL a few times per transaction, and would wait 5 ms for it each time
    sys.setswitchinterval(0.0005)
    if "TAURANK_PARENT" in os.environ:
        threading.Thread(target=_end_with_parent, args=(int(os.environ["TAURANK_PARENT"]),), daemon=True).start()
    store = Store(os.environ["TAURANK_STORE"])
    rate = float(os.environ.get("TAURANK_RATE", "5000"))
    log_requests = os.environ.get("TAURANK_LOG_REQUESTS") == "1"
    return create_app(Service(store, secret_for(store.address), rate=rate, log_requests=log_requests))


def _end_with_parent(parent: int) -> None:
    """Workers of a parent that was killed would keep its port."""
    while parent in (os.getpid(), os.getppid()):
        time.sleep(1.0)
    os.kill(os.getpid(), signal.SIGTERM)


def create_app(service: Service) -> FastAPI:
    """The application; the service is closed when the server stops."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        loading = asyncio.create_task(asyncio.to_thread(service.warm_up))
        yield
        service.closing = True
        await loading
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
        log_requests=service.log_requests,
    )
    return app
