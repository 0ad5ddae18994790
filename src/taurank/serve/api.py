"""The HTTP API: every route is declared here, once. An answer of 2xx to a change means: committed."""

from __future__ import annotations

import asyncio
import io
import json
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import cache
from shutil import disk_usage
from typing import Annotated, Any, get_type_hints

import numpy as np
import pyarrow.parquet
from fastapi import APIRouter, Depends, HTTPException, Path, Query, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response
from fastapi.routing import APIRoute
from sqlalchemy import select

from taurank.errors import InputError
from taurank.serve import items, retention, schemas, surfaces, tables
from taurank.serve.decisions import Clock, Decider
from taurank.serve.gate import run_jobs
from taurank.serve.jobs import STOPPED_SECONDS, seconds_since_beat
from taurank.serve.middleware import Metrics
from taurank.serve.models import add_model, list_models
from taurank.serve.policy import Policy
from taurank.serve.recorder import Recorder, Row, Write
from taurank.serve.schemas import Name
from taurank.serve.security import Access, bearer, list_tokens, needs, revoke_token
from taurank.serve.settlement import export, settle_again
from taurank.serve.store import Store, Unavailable, upsert
from taurank.serve.surfaces import Settings, Surface, Version

MIN_FREE = 20 << 20  # bytes on the disk of a SQLite store
COMMITTED = 20_000  # decisions in memory, about 1.5 kB each

NOTHING_DRAWN = """<!DOCTYPE html><title>taurank</title><h1>taurank</h1>
<p>The background job has not drawn this page yet; it does so within a minute of its start and of the first surface
(<code>taurank server surface set home</code>).</p>"""

_dumps = json.JSONEncoder(separators=(",", ":")).encode


@dataclass
class Service:
    """What a server process works with."""

    store: Store
    secret: bytes
    clock: Clock = time.time
    rate: float = 5000.0
    body_limit: int = 1 << 20
    upload_limit: int = 1 << 29
    log_requests: bool = False
    metrics: Metrics = field(default_factory=Metrics)
    missing: str = "the models are not loaded yet"  # why it is not ready, until it is
    closing: bool = False
    check: asyncio.Task[float | None] | None = None  # of the database

    def __post_init__(self) -> None:
        self.decider = Decider(self.store, self.secret, self.clock)
        self.access = Access(self.store, self.rate)
        self.recorder = Recorder(self.store)
        self.committed: OrderedDict[tuple[str, str, int], Row] = OrderedDict()  # by surface, user and period

    async def surface(self, name: str) -> Surface:
        """A surface; settings, models and items are read on another thread, so that nobody waits for them."""
        if self.decider.surfaces.stale:
            await asyncio.to_thread(self.decider.refresh)
        surface = self.decider.surfaces.get(name)
        for version in (surface.incumbent, surface.challenger, surface.holdout_model):
            if version is not None and version not in self.decider.models:
                await asyncio.to_thread(self.decider.models.get, version)
        return surface

    def warm_up(self) -> None:
        """Load compiled code and models, again and again if they cannot be read; the service is ready afterwards."""
        policy = Policy(k=1)
        policy.draw(policy.probabilities([0.0, 1.0]), np.uint64(0))
        while self.missing and not self.closing:
            try:
                for surface in self.decider.surfaces.all():
                    for version in {surface.incumbent, surface.challenger, surface.holdout_model} - {None}:
                        self.decider.models.get(str(version))
                self.decider.refresh()
                self.missing = ""
            except InputError as error:
                self.missing = getattr(error, "public", str(error))
                time.sleep(1.0)

    def check_database(self) -> float | None:
        """How long ago the background job ran; raises `Unavailable` if it cannot write or lacks its models."""
        if "://" not in self.store.address and disk_usage(self.store.address).free < MIN_FREE:
            raise Unavailable("the disk is full")  # writing a known row might go well
        with self.store.write() as connection:
            upsert(connection, tables.settings, [{"name": "ready", "value": str(time.time())}])
        if self.missing:
            raise Unavailable(self.missing)
        return seconds_since_beat(self.store, self.clock())

    def changed(self, name: str) -> dict[str, Any]:
        """A surface after a change."""
        self.decider.surfaces.refresh()
        return self.decider.surfaces.get(name).model_dump()

    def page(self, name: str | None) -> str:
        """The dashboard of a surface, or of the first one, as the background job has drawn it."""
        surface = self.decider.surfaces.get(name).name if name is not None else None
        pages, age = tables.pages.c, seconds_since_beat(self.store, self.clock())
        query = select(pages.body, pages.alert).order_by(pages.surface).limit(1)
        rows = self.store.rows(query if surface is None else query.where(pages.surface == surface))
        if not rows:
            return NOTHING_DRAWN
        body: str = rows[0]["body"]
        if age is None or age > STOPPED_SECONDS:
            return body.replace("</h1>", f"</h1>{rows[0]['alert']}", 1)
        return body

    def close(self) -> None:
        self.recorder.close()
        self.store.close()


class HotRoute(APIRoute):
    """A route under load: FastAPI describes it, but its layers, which take longer than a known list, are left out.

    The handler gets the parsed body and the service, and returns what becomes JSON.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        return self.answer

    async def answer(self, request: Request) -> Response:
        service: Service = request.app.state.service
        await service.access.check(request, "app")
        if not _is_json(request.headers.get("content-type", "")):
            raise HTTPException(422, "the body must be JSON, with the header 'Content-Type: application/json'.")
        answer = await self.endpoint(_body_type(self.endpoint).model_validate_json(await request.body()), service)
        return Response(_dumps(answer), media_type="application/json")


@cache
def _body_type(endpoint: Callable[..., Any]) -> Any:
    return get_type_hints(endpoint)["body"]


def _is_json(content_type: str) -> bool:
    kind = content_type.partition(";")[0].strip().lower()
    return kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))


def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


_PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": schemas.Problem} for status in (400, 401, 403, 404, 409, 413, 422, 429, 503)
}
Serving = Annotated[Service, Depends(_service)]
SurfaceName = Annotated[Name, Path(description="The name of a surface.")]
Last = Annotated[int | None, Query(ge=1, le=100_000, description="Only the last N settled periods.")]
_PARQUET = "application/vnd.apache.parquet"
_FILE = {"requestBody": {"required": True, "content": {"application/octet-stream": {
    "schema": {"type": "string", "format": "binary", "minLength": 1}}}}}  # fmt: skip

hot = APIRouter(route_class=HotRoute, dependencies=[bearer], responses=_PROBLEMS)
machines = APIRouter()
analyst = APIRouter(dependencies=[bearer, needs("analyst")], responses=_PROBLEMS)
admin = APIRouter(dependencies=[bearer, needs("admin")], responses=_PROBLEMS)
ROUTERS = (hot, machines, analyst, admin)


@hot.post("/v1/recommend", response_model=schemas.Recommendation)
async def recommend(body: schemas.RecommendRequest, service: Serving) -> dict[str, Any]:
    """A list for a user; asked again within the period, the same list without what is excluded or gone by then."""
    surface = await service.surface(body.surface)
    row = service.committed.get((body.surface, body.user_id, surface.periods.number(service.clock())))
    repeated = row is not None
    if row is None:
        asked = body.surface, body.user_id, body.candidates, body.exclude
        if not surface.policy.max_shown:
            made = service.decider.decide(*asked)
        else:  # it reads earlier lists
            made = await asyncio.to_thread(service.decider.decide, *asked)
        recorded = await service.recorder.record(made)
        row, repeated = recorded.decision, recorded.repeated
        assert row is not None
        service.committed[row["surface"], row["user_id"], row["period"]] = row
        if len(service.committed) > COMMITTED:
            service.committed.popitem(last=False)
    if repeated:
        service.metrics.repeated.labels(surface.name).inc()
    else:
        service.metrics.decisions.labels(surface.name, row["arm"]).inc()
    shown = service.decider.listed(row, surface, body.exclude) if surface.enabled else ()
    return {
        "decision_id": row["id"], "surface": surface.name, "user_id": row["user_id"],
        "period": surface.periods.name(row["period"]), "arm": row["arm"] if surface.enabled else "off",
        "model": row["model"], "repeated": repeated,
        "items": [{"item_id": item, "rank": rank, "propensity": pi} for rank, (item, pi) in enumerate(shown, 1)],
    }  # fmt: skip


@hot.post("/v1/outcomes", response_model=schemas.OutcomesAnswer)
async def outcomes(body: schemas.OutcomesRequest, service: Serving) -> dict[str, int]:
    """Report what was bought; an event that is known already is not counted again."""
    now = service.clock()
    rows = [event.row(now) for event in body.events]
    accepted = (await service.recorder.record(Write(events=rows))).new_events
    service.metrics.outcomes.labels("new").inc(accepted)
    service.metrics.outcomes.labels("duplicate").inc(len(rows) - accepted)
    return {"accepted": accepted, "duplicates": len(rows) - accepted}


@machines.get("/health/live")
async def live() -> dict[str, str]:
    """The process runs."""
    return {"status": "ok"}


@machines.get(
    "/health/ready",
    responses={503: {"description": "It cannot write, or is still loading its models."}},
)
async def ready(service: Serving) -> Response:
    """The models are loaded and the database can be written; and how long ago the background job ran, in seconds."""
    if service.check is None or service.check.done():  # those who ask meanwhile share the answer
        service.check = asyncio.create_task(asyncio.to_thread(service.check_database))
    try:
        age = await asyncio.shield(service.check)
    except Unavailable as error:
        return JSONResponse({"status": error.public}, 503)
    return JSONResponse({"status": "ok", "job_seconds_ago": age})


@analyst.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
def metrics(service: Serving) -> Response:
    """Counters for Prometheus, of all workers together."""
    age = seconds_since_beat(service.store, service.clock())
    service.metrics.job_age.set(math.inf if age is None else age)
    return Response(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


@analyst.get("/", response_class=HTMLResponse, include_in_schema=False)
def page(service: Serving, surface: Name | None = None) -> Response:
    """The dashboard; a browser asks for it again every minute."""
    return HTMLResponse(service.page(surface), headers={"Refresh": "60"})


@analyst.get("/v1/log", response_class=Response, responses={200: {"content": {_PARQUET: {}}}})
def log(service: Serving, surface: Name, last: Last = None) -> Response:
    """The settled periods as a log in Parquet, which knows who visited when."""
    service.decider.surfaces.refresh()
    made = export(service.decider, service.decider.surfaces.get(surface), last)
    content = io.BytesIO()
    pyarrow.parquet.write_table(made.to_arrow(), content, compression="zstd", write_page_checksum=True)
    headers = {"Content-Disposition": 'attachment; filename="log.parquet"'}
    return Response(content.getvalue(), media_type=_PARQUET, headers=headers)


@analyst.get("/v1/surfaces")
def list_surfaces(service: Serving) -> list[dict[str, Any]]:
    return [surface.model_dump() for surface in service.decider.surfaces.all()]


@analyst.get("/v1/items")
def list_items(service: Serving) -> list[dict[str, Any]]:
    """The item table as it is now; ``until`` in seconds since 1970."""
    return [{"item_id": item, **state._asdict()} for item, state in items.list_items(service.store).items()]


@analyst.get("/v1/models")
def models(service: Serving) -> list[dict[str, Any]]:
    return list_models(service.store)


@analyst.get("/v1/history")
def history(service: Serving, limit: Annotated[int, Query(ge=1, le=1000)] = 100) -> list[dict[str, Any]]:
    return surfaces.read_history(service.store, limit)


@analyst.get("/v1/decisions/{decision_id}")
def decision(
    service: Serving,
    decision_id: Annotated[str, Path(pattern="^[0-9a-f]{32}$")],
    item_id: Annotated[Sequence[str], Query(max_length=100)] = (),
) -> dict[str, Any]:
    """A stored decision, and π of any eligible item, shown or not."""
    return service.decider.describe(decision_id, item_id)


@admin.put("/v1/surfaces/{name}")
def put_surface(service: Serving, name: SurfaceName, body: Settings) -> dict[str, Any]:
    """Create a surface, or change what is named."""
    surfaces.put_surface(service.store, name, body.model_dump(exclude_unset=True), service.clock())
    return service.changed(name)


@admin.put("/v1/items")
def put_items(service: Serving, body: schemas.ItemsBody) -> dict[str, int]:
    """Add items to the table, or change what is named of them; workers notice within a second or two."""
    return {"changed": items.put_items(service.store, body.items)}


@admin.delete("/v1/surfaces/{name}")
def delete_surface(service: Serving, name: SurfaceName) -> dict[str, str]:
    """Delete a surface that is switched off, with its decisions and figures."""
    retention.delete_surface(service.store, name, service.clock())
    return {"deleted": name}


@admin.delete("/v1/models/{version}")
def delete_model(service: Serving, version: Annotated[Version, Path()]) -> dict[str, str]:
    """Delete a model that no surface and no stored decision needs."""
    retention.delete_model(service.store, version, service.clock())
    return {"deleted": version}


@admin.delete("/v1/users/{user_id}")
def delete_user(service: Serving, user_id: Annotated[schemas.PathId, Path()]) -> dict[str, int]:
    """Delete everything about a user; returns how many rows by table."""
    for key in [key for key in service.committed if key[1] == user_id]:
        service.committed.pop(key, None)
    return retention.forget_user(service.store, user_id, service.clock())


@admin.post("/v1/models", status_code=201, openapi_extra=_FILE)
async def upload(
    request: Request, service: Serving, note: Annotated[str, Query(max_length=500, pattern=r"^[^\x00]*$")] = ""
) -> dict[str, Any]:
    """Upload the file of a fitted model; the same file again is the same model."""
    return await asyncio.to_thread(add_model, service.store, await request.body(), note, service.clock())


def _add_change(path: str, body_type: type[schemas.ReasonBody], change: Callable[..., Any]) -> None:
    """A route that changes a surface: the fields of its body are the arguments of the change."""

    def route(service: Serving, name: SurfaceName, body: Any) -> dict[str, Any]:
        change(service.store, name, **body.model_dump(), now=service.clock())
        return service.changed(name)

    route.__annotations__["body"] = body_type
    admin.post(f"/v1/surfaces/{{name}}/{path}", name=path, description=change.__doc__)(route)


_add_change("challenger", schemas.ChallengerBody, surfaces.start_challenger)
_add_change("promote", schemas.PromoteBody, surfaces.promote)
_add_change("demote", schemas.ReasonBody, surfaces.demote)
_add_change("rollback", schemas.ReasonBody, surfaces.roll_back)
_add_change("switch", schemas.SwitchBody, surfaces.switch)


@admin.post("/v1/surfaces/{name}/settle")
def settle(service: Serving, name: SurfaceName, body: schemas.SettleBody) -> dict[str, str]:
    """Settle the period of a time again, to count outcomes that arrived late."""
    service.decider.surfaces.refresh()
    return {"settled": settle_again(service.decider, name, body.time.timestamp(), service.clock())}


@admin.post("/v1/jobs")
def jobs(service: Serving) -> dict[str, str]:
    """Settle ended periods and judge challengers now; the server does so by itself every few seconds."""
    return run_jobs(service.decider)


@admin.get("/v1/tokens")
def tokens(service: Serving) -> list[dict[str, Any]]:
    """The tokens, without the tokens themselves. Only the command line creates one: a stolen token cannot breed."""
    return list_tokens(service.store)


@admin.delete("/v1/tokens/{token_id}")
def revoke(service: Serving, token_id: Annotated[str, Path(pattern="^[0-9a-f]{8}$")]) -> dict[str, str]:
    """Revoke a token; all workers notice within seconds."""
    revoke_token(service.store, token_id)
    return {"revoked": token_id}
