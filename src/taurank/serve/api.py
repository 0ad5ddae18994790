"""The HTTP application: routes, errors, limits."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from taurank import __version__
from taurank.serve import admin, lists, pages
from taurank.serve.access import Access
from taurank.serve.direct import Direct
from taurank.serve.limits import Shield
from taurank.serve.problems import add_handlers
from taurank.serve.service import Service, secret_for
from taurank.serve.store import Store


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
    add_handlers(app)
    access, asked = Access(service.guard, service.limit, service.failures), lists.Lists(service)
    app.include_router(lists.routes(asked, access))
    app.include_router(admin.routes(service, access))
    app.include_router(pages.routes(service, access))
    app.add_middleware(Direct, access=access, routes=lists.direct_routes(asked))  # type: ignore[arg-type]
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
