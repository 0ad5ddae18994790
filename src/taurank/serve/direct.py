"""The shortest way to the two routes under load.

FastAPI describes these routes and can answer them, but it takes longer for its own layers than the service for
the list. So their requests are answered here, ahead of it: the same token, the same checks, the same answer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from starlette.exceptions import HTTPException

from taurank.serve.access import Access
from taurank.serve.limits import Receive, Send
from taurank.serve.problems import EXPECTED, problem
from taurank.serve.schemas import Body

_JSON = (b"content-type", b"application/json")


@dataclass(frozen=True)
class DirectRoute:
    """A route that takes a JSON body and answers with JSON."""

    path: str
    role: str
    body: type[Body]
    answer: Callable[[Any], Awaitable[bytes]]


class Direct:
    """Answers POST requests to ``routes`` and passes everything else on."""

    def __init__(self, app: Any, access: Access, routes: list[DirectRoute]) -> None:
        self._app, self._access = app, access
        self._routes = {route.path: route for route in routes}

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        route = self._routes.get(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        if route is None:
            await self._app(scope, receive, send)
            return
        scope["route"] = route  # what the counters are labeled with
        try:
            content = await self._answer(route, scope, receive)
        except EXPECTED as error:
            await problem(error)(scope, receive, send)
            return
        headers = [_JSON, (b"content-length", str(len(content)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": content})

    async def _answer(self, route: DirectRoute, scope: Any, receive: Receive) -> bytes:
        headers = dict(reversed(scope["headers"]))  # of repeated headers the first counts
        token = headers.get(b"authorization", b"").decode("latin-1")
        client = scope.get("client")
        await self._access.check(token, False, client[0] if client else "", route.role)
        if not _is_json(headers.get(b"content-type", b"")):
            raise HTTPException(422, "the body must be JSON, with the header 'Content-Type: application/json'.")
        return await route.answer(route.body.model_validate_json(await _body(receive)))


def _is_json(content_type: bytes) -> bool:
    kind = content_type.partition(b";")[0].strip().lower()
    return kind == b"application/json" or (kind.startswith(b"application/") and kind.endswith(b"+json"))


async def _body(receive: Receive) -> bytes:
    parts = []
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise HTTPException(400, "the body ended early.")
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(parts)
