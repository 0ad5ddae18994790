"""Around the application: limits of bodies, security headers, metrics, and errors as answers."""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from typing import Any

import prometheus_client as prometheus
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from fastapi.routing import APIRoute
from prometheus_client.multiprocess import MultiProcessCollector
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.routing import compile_path

from taurank.errors import InputError
from taurank.serve.store import Conflict, NotFound, Unavailable

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
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
_STATUS: dict[type[Exception], int] = {NotFound: 404, Conflict: 409, InputError: 422, Unavailable: 503}  # first match
EXPECTED: tuple[type[Exception], ...] = (HTTPException, RequestValidationError, ValidationError, *_STATUS)
_MOST_REASONS = 5


class Metrics:
    """What the workers of a server have counted."""

    def __init__(self) -> None:
        self._registry = registry = prometheus.CollectorRegistry()
        self.requests = prometheus.Counter(
            "taurank_requests", "Requests by route and status.", ["route", "status"], registry=registry
        )
        self.seconds = prometheus.Histogram(
            "taurank_request_seconds", "Time to answer, by route.", ["route"], registry=registry, buckets=SECONDS
        )
        self.decisions = prometheus.Counter(
            "taurank_decisions", "Decisions recorded, by surface and arm.", ["surface", "arm"], registry=registry
        )
        self.repeated = prometheus.Counter(
            "taurank_repeated", "Requests answered with an earlier decision of the period.", ["surface"],
            registry=registry,
        )  # fmt: skip
        self.outcomes = prometheus.Counter(
            "taurank_outcomes", "Outcome events, new or duplicate.", ["kind"], registry=registry
        )

    def text(self) -> bytes:
        """Prometheus' text format; of all workers if there are several."""
        registry = self._registry
        if "PROMETHEUS_MULTIPROC_DIR" in os.environ:
            registry = prometheus.CollectorRegistry()
            MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        return prometheus.generate_latest(registry)


class OuterMiddleware:
    """Refuses large bodies, adds headers and counts. A plain ASGI wrapper, because it runs on every request.

    Requests to the routes under load are answered at once: ``hot`` has the handlers, by path.
    """

    def __init__(
        self, app: Any, metrics: Metrics, hot: Mapping[str, APIRoute], body_limit: int, upload_limit: int
    ) -> None:
        self._app, self._metrics, self._hot = app, metrics, hot
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
                await JSONResponse({"detail": _too_large(limit)}, 413)(scope, receive, sending)
            elif scope["method"] == "POST" and scope["path"] in self._hot:
                await self._answer(self._hot[scope["path"]], scope, _counted(receive, limit), sending)
            else:
                await self._app(scope, _counted(receive, limit), sending)
        finally:
            route = getattr(scope.get("route"), "path", "other")
            self._metrics.requests.labels(route, str(status)).inc()
            self._metrics.seconds.labels(route).observe(time.perf_counter() - began)

    async def _answer(self, route: APIRoute, scope: Any, receive: Receive, send: Send) -> None:
        scope["route"] = route
        request = Request(scope, receive)
        try:
            response = await route.get_route_handler()(request)
        except EXPECTED as error:
            response = _problem(request, error)
        await response(scope, receive, send)


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


def add_error_handlers(app: FastAPI) -> None:
    """Answer the expected errors with one sentence of JSON, and the status that says whose fault it was."""
    for kind in EXPECTED:
        app.add_exception_handler(kind, _problem)


def _problem(request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        if error.status_code == 405:  # Starlette would name the methods of one route; a path can have several
            paths = request.app.openapi()["paths"].items()
            here = [operations for path, operations in paths if compile_path(path)[0].match(request.url.path)]
            error.headers = {"Allow": ", ".join(sorted({method.upper() for each in here for method in each}))}
        return JSONResponse({"detail": error.detail}, error.status_code, error.headers)
    if isinstance(error, RequestValidationError):
        return _invalid((item["loc"][1:], item["msg"]) for item in error.errors()[:_MOST_REASONS])
    if isinstance(error, ValidationError):
        return _invalid((item["loc"], item["msg"]) for item in error.errors()[:_MOST_REASONS])
    status = next(code for kind, code in _STATUS.items() if isinstance(error, kind))
    return JSONResponse({"detail": str(error)}, status, {"Retry-After": "1"} if status == 503 else None)


def _invalid(reasons: Iterable[tuple[Any, str]]) -> Response:
    text = "; ".join(f"{'.'.join(map(str, place)) or 'body'}: {message}" for place, message in reasons)
    return JSONResponse({"detail": text.encode("utf-8", "replace").decode()}, 422)
