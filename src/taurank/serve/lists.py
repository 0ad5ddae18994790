"""The two routes under load: ask for a list, report outcomes. An answer of 2xx means: committed."""

from __future__ import annotations

import json
from typing import Any

from fastapi import APIRouter
from fastapi.responses import Response

from taurank.serve.access import Access, router_with_access
from taurank.serve.recording import Recorded, Request
from taurank.serve.schemas import OutcomesAnswer, OutcomesRequest, Recommendation, RecommendRequest
from taurank.serve.service import Service


def routes(service: Service, access: Access) -> APIRouter:
    router = router_with_access(access, "app")

    @router.post("/v1/recommend", response_model=Recommendation)
    async def recommend(body: RecommendRequest) -> Response:
        """A list for a user; asked again within the period, the same list."""
        await service.prepare(body.surface)
        made = service.decider.decide(body.surface, body.user_id, body.candidates, body.exclude)
        recorded = await service.recorder.record(made)
        assert recorded.decision is not None
        return _recommendation(service, recorded)

    @router.post("/v1/outcomes", response_model=OutcomesAnswer)
    async def outcomes(body: OutcomesRequest) -> Response:
        """Report what was bought; an event that is known already is not counted again."""
        now = service.clock()
        rows = [
            {"event_id": event.event_id, "user_id": event.user_id, "item_id": event.item_id, "value": event.value,
             "time": now if event.time is None else event.time.timestamp()}
            for event in body.events
        ]  # fmt: skip
        recorded = await service.recorder.record(Request(events=rows))
        duplicates = len(rows) - recorded.new_events
        service.metrics.add("taurank_outcomes_total", recorded.new_events, kind="new")
        service.metrics.add("taurank_outcomes_total", duplicates, kind="duplicate")
        return _json({"accepted": recorded.new_events, "duplicates": duplicates})

    return router


def _recommendation(service: Service, recorded: Recorded) -> Response:
    row: Any = recorded.decision
    surface = service.decider.surfaces.get(row["surface"])
    if recorded.repeated:
        service.metrics.add("taurank_repeated_total", surface=row["surface"])
    else:
        service.metrics.add("taurank_decisions_total", surface=row["surface"], arm=row["arm"])
    shown = zip(json.loads(row["shown"]), json.loads(row["propensities"]), strict=True) if surface.enabled else ()
    items = [{"item_id": item, "rank": rank, "propensity": pi} for rank, (item, pi) in enumerate(shown, 1)]
    return _json(
        {
            "decision_id": row["id"], "surface": row["surface"], "user_id": row["user_id"],
            "period": surface.period.name(row["period"]), "arm": row["arm"] if surface.enabled else "off",
            "model": row["model"], "repeated": recorded.repeated, "items": items,
        }
    )  # fmt: skip


def _json(body: Any) -> Response:
    return Response(json.dumps(body), media_type="application/json")
