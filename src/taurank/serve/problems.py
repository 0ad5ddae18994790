"""Errors as answers: one sentence of JSON and the status that says whose fault it was."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.routing import compile_path

from taurank.errors import InputError
from taurank.serve.store import Conflict, NotFound, Unavailable

# the first that fits
_STATUS: dict[type[Exception], int] = {NotFound: 404, Conflict: 409, InputError: 422, Unavailable: 503}
_SHOWN = 5
EXPECTED: tuple[type[Exception], ...] = (HTTPException, RequestValidationError, ValidationError, *_STATUS)


def problem(error: Exception) -> Response:
    """The answer to one of the ``EXPECTED`` errors."""
    if isinstance(error, HTTPException):
        return JSONResponse({"detail": error.detail}, error.status_code, error.headers)
    if isinstance(error, RequestValidationError):
        return _invalid((item["loc"][1:], item["msg"]) for item in error.errors()[:_SHOWN])
    if isinstance(error, ValidationError):
        return _invalid((item["loc"], item["msg"]) for item in error.errors()[:_SHOWN])
    status = next(code for kind, code in _STATUS.items() if isinstance(error, kind))
    return JSONResponse({"detail": str(error)}, status, {"Retry-After": "1"} if status == 503 else None)


def add_handlers(app: FastAPI) -> None:
    def handler(request: Request, error: Exception) -> Response:
        if isinstance(error, HTTPException) and error.status_code == 405:
            error.headers = {"Allow": _methods(app, request.url.path)}
        return problem(error)

    for kind in EXPECTED:
        app.add_exception_handler(kind, handler)


def _methods(app: FastAPI, path: str) -> str:
    """The methods of a path; Starlette itself would name those of one of its routes."""
    found = {
        method.upper()
        for template, operations in app.openapi()["paths"].items()
        if compile_path(template)[0].match(path)
        for method in operations
    }
    return ", ".join(sorted(found))


def _invalid(parts: Iterable[tuple[Any, str]]) -> Response:
    words = "; ".join(f"{'.'.join(map(str, place)) or 'body'}: {message}" for place, message in parts)
    return JSONResponse({"detail": words.encode("utf-8", "replace").decode()}, 422)
