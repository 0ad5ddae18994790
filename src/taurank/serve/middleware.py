"""Around the application: limits of bodies, security headers, metrics, and errors as answers."""

from __future__ import annotations

import os
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from pathlib import Path
from typing import Any

import prometheus_client as prometheus
from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from fastapi.routing import APIRoute
from prometheus_client.multiprocess import MultiProcessCollector
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import compile_path

from taurank.errors import InputError
from taurank.serve.logs import log
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
FOLDER = "PROMETHEUS_MULTIPROC_DIR"  # where workers count, each into files of its own,
FILE_BYTES = 1 << 18  # so large: about 1,500 series of a kind
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
_STATUS: dict[type[Exception], int] = {NotFound: 404, Conflict: 409, InputError: 422}  # first match
EXPECTED: tuple[type[Exception], ...] = (
    HTTPException,
    RequestValidationError,
    ValidationError,
    Unavailable,
    *_STATUS,
)
_MOST_REASONS = 5
_ID = re.compile(rb"[\w.-]{1,64}", re.ASCII)


class Metrics:
    """What the workers of a server have counted."""

    def __init__(self) -> None:
        if FOLDER in os.environ:
            _reserve_files(Path(os.environ[FOLDER]))
        registry = self._registry = prometheus.CollectorRegistry()

        def counter(name: str, about: str, *labels: str) -> prometheus.Counter:
            return prometheus.Counter(f"taurank_{name}", about, labels, registry=registry)

        self.requests = counter("requests", "Requests by route and status.", "route", "status")
        self.decisions = counter("decisions", "Decisions recorded, by surface and arm.", "surface", "arm")
        self.repeated = counter("repeated", "Requests answered with an earlier decision of the period.", "surface")
        self.outcomes = counter("outcomes", "Outcome events, new or duplicate.", "kind")
        self.job_age = prometheus.Gauge(
            "taurank_job_age_seconds", "Time since the last round of the background job.", registry=registry,
            multiprocess_mode="mostrecent",
        )  # fmt: skip
        self.seconds = prometheus.Histogram(
            "taurank_request_seconds",
            "Time to answer, by route.",
            ["route"],
            registry=registry,
            buckets=SECONDS,
        )

    def text(self) -> bytes:
        """Prometheus' text format; of all workers if there are several."""
        registry = self._registry
        if FOLDER in os.environ:
            registry = prometheus.CollectorRegistry()
            MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        return prometheus.generate_latest(registry)


def _reserve_files(folder: Path) -> None:
    """Make the files of this worker, whole: Prometheus would make them, with holes, when the disk may be full."""
    for kind in ("counter", "histogram", "gauge_mostrecent"):
        path = folder / f"{kind}_{os.getpid()}.db"
        if not path.exists():
            new = path.with_suffix(".new")
            new.write_bytes(bytes(FILE_BYTES))
            new.rename(path)


class OuterMiddleware:
    """Refuses large bodies, adds headers, counts and logs. A plain ASGI wrapper, because it runs on every request.

    Requests to the routes under load are answered at once: ``hot`` has the handlers, by path.
    """

    def __init__(
        self, app: Any, metrics: Metrics, hot: Mapping[str, APIRoute], body_limit: int, upload_limit: int,
        log_requests: bool = False,
    ) -> None:  # fmt: skip
        self._app, self._metrics, self._hot = app, metrics, hot
        self._limits = {"/v1/models": upload_limit}
        self._body_limit = body_limit
        self._log_requests = log_requests

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        limit = self._limits.get(scope["path"], self._body_limit)
        began, status, key = time.perf_counter(), 500, _request_id(scope)

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", []), *HEADERS, (b"x-request-id", key)]
            await send(message)

        try:
            if scope["method"] == "POST" and scope["path"] in self._hot:
                await self._answer(self._hot[scope["path"]], scope, _counted(receive, limit), sending)
            else:
                await self._app(scope, _counted(receive, limit), sending)
        except ClientDisconnect:
            status = 499  # nobody waits for an answer
        finally:
            route = getattr(scope.get("route"), "path", "other")
            self._metrics.requests.labels(route, str(status)).inc()
            seconds = time.perf_counter() - began
            self._metrics.seconds.labels(route).observe(seconds)
            if self._log_requests or status >= 500:
                log(
                    "request", id=key.decode(), method=scope["method"], route=route, status=status,
                    seconds=round(seconds, 4),
                )  # fmt: skip

    async def _answer(self, route: APIRoute, scope: Any, receive: Receive, send: Send) -> None:
        scope["route"] = route
        request = Request(scope, receive)
        try:
            response = await route.get_route_handler()(request)
        except EXPECTED as error:
            response = problem(request, error)
        await response(scope, receive, send)


def _request_id(scope: Any) -> bytes:
    """The id that the client has given to its request, or a new one."""
    given: bytes = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"")
    return given if _ID.fullmatch(given) else secrets.token_hex(8).encode()


def _counted(receive: Receive, limit: int) -> Receive:
    """Refuse a body that is too large while it arrives."""
    seen = 0

    async def counting() -> Message:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        if seen > limit:
            raise HTTPException(413, f"the body must not exceed {limit:,} bytes.")
        return message

    return counting


def problem(request: Request, error: Exception) -> Response:
    """The answer to an expected error: one sentence of JSON, and the status that says whose fault it was."""
    if isinstance(error, HTTPException):
        if error.status_code == 405:  # Starlette would name the methods of one route; a path can have several
            paths = request.app.openapi()["paths"].items()
            here = [operations for path, operations in paths if compile_path(path)[0].match(request.url.path)]
            error.headers = {"Allow": ", ".join(sorted({method.upper() for each in here for method in each}))}
        return JSONResponse({"detail": error.detail}, error.status_code, error.headers)
    if isinstance(error, (RequestValidationError, ValidationError)):
        skipped = int(isinstance(error, RequestValidationError))  # it begins with where: body, query, path
        reasons = [
            f"{'.'.join(map(str, item['loc'][skipped:])) or 'body'}: {item['msg']}"
            for item in error.errors()[:_MOST_REASONS]
        ]
        return JSONResponse({"detail": "; ".join(reasons).encode("utf-8", "replace").decode()}, 422)
    if isinstance(error, Unavailable):
        return JSONResponse({"detail": f"{error.public}."}, 503, {"Retry-After": "1"})
    status = next(code for kind, code in _STATUS.items() if isinstance(error, kind))
    return JSONResponse({"detail": str(error)}, status)
