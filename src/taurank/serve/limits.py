"""The shield around the application: body and rate limits, security headers, counters.

A plain ASGI wrapper, because it runs on every request.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from taurank.serve.metrics import Metrics

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

HEADERS = [
    (b"content-security-policy", b"default-src 'none'; style-src 'unsafe-inline'; img-src data:; "
     b"form-action 'none'; frame-ancestors 'none'; base-uri 'none'"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
]  # fmt: skip


class Shield:
    """Refuses large bodies, adds headers and counts."""

    def __init__(self, app: Any, metrics: Metrics, body_limit: int, upload_limit: int) -> None:
        self._app, self._metrics = app, metrics
        self._limits = {"/v1/models": upload_limit}
        self._body_limit = body_limit

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        limit = self._limits.get(scope["path"], self._body_limit)
        began = time.perf_counter()
        status = 500

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", []), *HEADERS]
            await send(message)

        try:
            if _declared_length(scope) > limit:
                refused = JSONResponse({"detail": _too_large(limit)}, 413)
                await refused(scope, receive, sending)
            else:
                await self._app(scope, _counted(receive, limit), sending)
        finally:
            route = getattr(scope.get("route"), "path", "other")
            self._metrics.request(route, status, time.perf_counter() - began)


def _declared_length(scope: Any) -> int:
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit():
            return int(value[:18])
    return 0


def _counted(receive: Receive, limit: int) -> Receive:
    """Bodies without a declared length are cut off while they arrive."""
    seen = 0

    async def counting() -> Message:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        if seen > limit:
            raise HTTPException(413, _too_large(limit))
        return message

    return counting


def _too_large(limit: int) -> str:
    return f"the body must not exceed {limit:,} bytes."


class RateLimit:
    """A bucket of ``burst`` requests per caller, filled with ``rate`` per second."""

    def __init__(self, rate: float, burst: float) -> None:
        self._rate, self._burst = rate, burst
        self._buckets: dict[str, tuple[float, float]] = {}

    def allow(self, caller: str) -> bool:
        now = time.monotonic()
        filled, at = self._buckets.get(caller, (self._burst, now))
        filled = min(self._burst, filled + (now - at) * self._rate)
        if len(self._buckets) > 10_000:
            self._buckets.clear()
        self._buckets[caller] = (filled - 1 if filled >= 1 else filled, now)
        return filled >= 1
