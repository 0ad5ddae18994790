"""The two routes under load: ask for a list, report outcomes. An answer of 2xx means: committed."""

from __future__ import annotations

import json
from collections import OrderedDict
from typing import Any

from fastapi import APIRouter
from fastapi.responses import Response

from taurank.serve.access import Access, router_with_access
from taurank.serve.direct import DirectRoute
from taurank.serve.recording import Request, Row
from taurank.serve.schemas import OutcomesAnswer, OutcomesRequest, Recommendation, RecommendRequest
from taurank.serve.service import Service
from taurank.serve.surfaces import Surface

_REMEMBERED = 20_000  # decisions, about 1.5 kB each

_dumps = json.JSONEncoder(separators=(",", ":")).encode


class Lists:
    """Answers both routes, and remembers committed decisions of late for users who ask again."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._committed: OrderedDict[tuple[str, str, int], Row] = OrderedDict()

    async def recommend(self, body: RecommendRequest) -> bytes:
        service = self._service
        await service.prepare(body.surface)
        surface = service.decider.surfaces.get(body.surface)
        known = self._committed.get((body.surface, body.user_id, surface.period.number(service.clock())))
        if known is not None:
            return self._answer(surface, known, repeated=True)
        made = service.decider.decide(body.surface, body.user_id, body.candidates, body.exclude)
        recorded = await service.recorder.record(made)
        assert recorded.decision is not None
        self._remember(recorded.decision)
        return self._answer(surface, recorded.decision, recorded.repeated)

    def _remember(self, row: Row) -> None:
        self._committed[row["surface"], row["user_id"], row["period"]] = row
        if len(self._committed) > _REMEMBERED:
            self._committed.popitem(last=False)

    def _answer(self, surface: Surface, row: Row, repeated: bool) -> bytes:
        if repeated:
            self._service.metrics.add("taurank_repeated_total", surface=row["surface"])
        else:
            self._service.metrics.add("taurank_decisions_total", surface=row["surface"], arm=row["arm"])
        shown = zip(json.loads(row["shown"]), json.loads(row["propensities"]), strict=True) if surface.enabled else ()
        items = [{"item_id": item, "rank": rank, "propensity": pi} for rank, (item, pi) in enumerate(shown, 1)]
        answer = {
            "decision_id": row["id"], "surface": row["surface"], "user_id": row["user_id"],
            "period": surface.period.name(row["period"]), "arm": row["arm"] if surface.enabled else "off",
            "model": row["model"], "repeated": repeated, "items": items,
        }  # fmt: skip
        return _dumps(answer).encode()

    async def outcomes(self, body: OutcomesRequest) -> bytes:
        service = self._service
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
        return _dumps({"accepted": recorded.new_events, "duplicates": duplicates}).encode()


def direct_routes(lists: Lists) -> list[DirectRoute]:
    return [
        DirectRoute("/v1/recommend", "app", RecommendRequest, lists.recommend),
        DirectRoute("/v1/outcomes", "app", OutcomesRequest, lists.outcomes),
    ]


def routes(lists: Lists, access: Access) -> APIRouter:
    """The same routes for FastAPI, which describes them."""
    router = router_with_access(access, "app")

    @router.post("/v1/recommend", response_model=Recommendation)
    async def recommend(body: RecommendRequest) -> Response:
        """A list for a user; asked again within the period, the same list."""
        return _json(await lists.recommend(body))

    @router.post("/v1/outcomes", response_model=OutcomesAnswer)
    async def outcomes(body: OutcomesRequest) -> Response:
        """Report what was bought; an event that is known already is not counted again."""
        return _json(await lists.outcomes(body))

    return router


def _json(content: Any) -> Response:
    return Response(content, media_type="application/json")
