"""Routes for people: surfaces, models, decisions, the switch."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Path, Query, Request
from sqlalchemy import select

from taurank.serve import promotion, tables
from taurank.serve.access import Access, router_with_access
from taurank.serve.models import add_model, list_models
from taurank.serve.schemas import (
    ChallengerBody,
    Name,
    PromoteBody,
    ReasonBody,
    SurfaceBody,
    SwitchBody,
)
from taurank.serve.service import Service
from taurank.serve.surfaces import put_surface, read_history

SurfaceName = Annotated[Name, Path(description="The name of a surface.")]
Note = Annotated[str, Query(max_length=500, pattern=r"^[^\x00]*$")]
_FILE = {"requestBody": {"required": True, "content": {"application/octet-stream": {
    "schema": {"type": "string", "format": "binary", "minLength": 1}}}}}  # fmt: skip
ItemIds = Annotated[Sequence[str], Query(max_length=100)]


def routes(service: Service, access: Access) -> APIRouter:
    router = APIRouter()
    router.include_router(_reading(service, access))
    router.include_router(_changing(service, access))
    return router


def _reading(service: Service, access: Access) -> APIRouter:
    router = router_with_access(access, "analyst")
    store = service.store

    @router.get("/v1/surfaces")
    def surfaces() -> list[dict[str, Any]]:
        return [surface.to_dict() for surface in service.decider.surfaces.all()]

    @router.get("/v1/models")
    def models() -> list[dict[str, Any]]:
        return list_models(store)

    @router.get("/v1/history")
    def history(limit: Annotated[int, Query(ge=1, le=1000)] = 100) -> list[dict[str, Any]]:
        return read_history(store, limit)

    @router.get("/v1/decisions/{decision_id}")
    def decision(
        decision_id: Annotated[str, Path(pattern="^[0-9a-f]{32}$")], item_id: ItemIds = ()
    ) -> dict[str, Any]:
        """A stored decision, and π of any eligible item, shown or not."""
        rows = store.rows(select(tables.decisions).where(tables.decisions.c.id == decision_id))
        if not rows:
            raise HTTPException(404, "there is no such decision.")
        items, pi = service.decider.propensities(rows[0])
        place = {item: number for number, item in enumerate(items)}
        asked = {item: float(pi[place[item]]) if item in place else 0.0 for item in item_id}
        shown = {name: json.loads(rows[0][name]) for name in ("shown", "propensities")}
        return {**rows[0], **shown, "eligible": len(items), "propensity_of": asked}

    return router


def _changing(service: Service, access: Access) -> APIRouter:
    router = router_with_access(access, "admin")
    store, clock, surfaces = service.store, service.clock, service.decider.surfaces

    def current(name: str) -> dict[str, Any]:
        surfaces.refresh()
        return surfaces.get(name).to_dict()

    @router.put("/v1/surfaces/{name}")
    def put(name: SurfaceName, body: SurfaceBody) -> dict[str, Any]:
        """Create a surface, or change what is named."""
        if body.holdout_model is not None:
            service.decider.models.get(body.holdout_model)
        put_surface(store, name, body.changes(), clock())
        return current(name)

    @router.post("/v1/models", status_code=201, openapi_extra=_FILE)
    async def upload(request: Request, note: Note = "") -> dict[str, Any]:
        """Upload the file of a fitted model; the same file again is the same model."""
        return await asyncio.to_thread(add_model, store, await request.body(), note, clock())

    @router.post("/v1/surfaces/{name}/challenger")
    def challenger(name: SurfaceName, body: ChallengerBody) -> dict[str, Any]:
        """Let a model compete for a share of the users."""
        promotion.start_challenger(store, name, body.model, body.share, body.reason, clock())
        return current(name)

    @router.post("/v1/surfaces/{name}/promote")
    def promote(name: SurfaceName, body: PromoteBody) -> dict[str, Any]:
        """Make a model the incumbent by hand."""
        promotion.promote(store, name, body.model, body.reason, clock())
        return current(name)

    @router.post("/v1/surfaces/{name}/demote")
    def demote(name: SurfaceName, body: ReasonBody) -> dict[str, Any]:
        """End the challenger's share."""
        promotion.demote(store, name, body.reason, clock())
        return current(name)

    @router.post("/v1/surfaces/{name}/rollback")
    def rollback(name: SurfaceName, body: ReasonBody) -> dict[str, Any]:
        """Return to the incumbent before."""
        promotion.roll_back(store, name, body.reason, clock())
        return current(name)

    @router.post("/v1/surfaces/{name}/switch")
    def switch(name: SurfaceName, body: SwitchBody) -> dict[str, Any]:
        """Turn recommendations off or on."""
        promotion.switch(store, name, body.enabled, body.reason, clock())
        return current(name)

    return router
