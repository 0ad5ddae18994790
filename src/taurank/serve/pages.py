"""Routes for machines and browsers: health and metrics."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import JSONResponse, PlainTextResponse, Response

from taurank.serve.access import Access, router_with_access
from taurank.serve.service import Service


def routes(service: Service, access: Access) -> APIRouter:
    router = APIRouter()

    @router.get("/health/live")
    async def live() -> dict[str, str]:
        """The process runs."""
        return {"status": "ok"}

    @router.get("/health/ready", responses={503: {"description": "The database does not answer."}})
    async def is_ready() -> Response:
        """The database answers, too."""
        if await service.ready():
            return JSONResponse({"status": "ok"})
        return JSONResponse({"status": "the database does not answer"}, 503)

    reading = router_with_access(access, "analyst")

    @reading.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Counters for Prometheus."""
        return PlainTextResponse(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    router.include_router(reading)
    return router
