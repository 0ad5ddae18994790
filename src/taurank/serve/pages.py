"""Routes for machines and browsers: the dashboard, health, metrics, the log."""

from __future__ import annotations

import shutil
import tempfile
from typing import Annotated, Literal

from fastapi import APIRouter, Query
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.background import BackgroundTask

from taurank.serve.access import Access, router_with_access
from taurank.serve.dashboard import render
from taurank.serve.export import export
from taurank.serve.figures import gather
from taurank.serve.schemas import Name
from taurank.serve.service import Service

_PARQUET = "application/vnd.apache.parquet"
Last = Annotated[int | None, Query(ge=1, le=100_000, description="Only the last so many settled periods.")]


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

    @reading.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
    async def metrics() -> Response:
        """Counters for Prometheus."""
        return PlainTextResponse(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @reading.get("/", response_class=HTMLResponse, include_in_schema=False)
    def page(surface: Name | None = None) -> Response:
        """The dashboard."""
        surfaces = service.decider.surfaces.all()
        chosen = service.decider.surfaces.get(surface) if surface else next(iter(surfaces), None)
        figures = None if chosen is None else gather(service.store, chosen)
        return HTMLResponse(render(figures, surfaces, service.clock()))

    @reading.get("/v1/log", response_class=FileResponse, responses={200: {"content": {_PARQUET: {}}}})
    def log(surface: Name, table: Literal["log", "visits"] = "log", last: Last = None) -> Response:
        """The settled periods as a log in Parquet, or who visited when."""
        service.decider.surfaces.refresh()
        folder = tempfile.mkdtemp(prefix="taurank-")
        try:
            paths = export(service.decider, service.decider.surfaces.get(surface), last).write(folder)
        except BaseException:
            shutil.rmtree(folder)
            raise
        path = paths[0] if table == "log" else paths[1]
        return FileResponse(
            path, media_type=_PARQUET, filename=path.name, background=BackgroundTask(shutil.rmtree, folder)
        )

    router.include_router(reading)
    return router
