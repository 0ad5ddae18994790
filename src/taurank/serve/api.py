"""The HTTP application: routes, errors, limits."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response

from taurank import __version__
from taurank.errors import InputError
from taurank.serve import admin, lists, pages
from taurank.serve.access import Access
from taurank.serve.deciding import NoModel
from taurank.serve.limits import Shield
from taurank.serve.service import Service, secret_for
from taurank.serve.store import NotFound, Store, Unavailable


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
    _add_errors(app)
    access = Access(service.guard, service.limit, service.failures)
    app.include_router(lists.routes(service, access))
    app.include_router(admin.routes(service, access))
    app.include_router(pages.routes(service, access))
    limits = {"body_limit": service.body_limit, "upload_limit": service.upload_limit}
    app.add_middleware(Shield, metrics=service.metrics, **limits)  # type: ignore[arg-type]
    return app


def from_environment() -> FastAPI:
    """The application of a worker process: settings come from environment variables."""
    # the recorder needs the GIL a few times per transaction, and would wait 5 ms for it each time
    sys.setswitchinterval(0.0005)
    store = Store(os.environ["TAURANK_STORE"])
    rate = float(os.environ.get("TAURANK_RATE", "5000"))
    return create_app(Service(store, secret_for(store.address), rate=rate))


def _add_errors(app: FastAPI) -> None:
    def answer(status: int, headers: dict[str, str] | None = None) -> Callable[[Request, Exception], Response]:
        def handler(_: Request, error: Exception) -> Response:
            return JSONResponse({"detail": str(error)}, status, headers)

        return handler

    def invalid(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        parts = [f"{'.'.join(map(str, item['loc'][1:])) or 'body'}: {item['msg']}" for item in error.errors()[:5]]
        return JSONResponse({"detail": "; ".join(parts).encode("utf-8", "replace").decode()}, 422)

    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(NotFound, answer(404))
    app.add_exception_handler(NoModel, answer(409))
    app.add_exception_handler(InputError, answer(422))
    app.add_exception_handler(Unavailable, answer(503, {"Retry-After": "1"}))
