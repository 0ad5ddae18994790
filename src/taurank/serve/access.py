"""Who may call what: each router asks for a role, and every token has its rate."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Depends, HTTPException, Request
from fastapi.openapi.models import HTTPBearer as HTTPBearerModel
from fastapi.security.base import SecurityBase

from taurank.serve.auth import Guard
from taurank.serve.limits import RateLimit
from taurank.serve.schemas import Problem

_ALLOWED = {"app": ("app", "admin"), "analyst": ("analyst", "admin"), "admin": ("admin",)}
_PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": Problem} for status in (400, 401, 403, 404, 409, 413, 422, 429, 503)
}


@dataclass
class Access:
    """Checks the token of a request."""

    guard: Guard
    limit: RateLimit
    failures: RateLimit  # by address: guesses are slow

    async def check(self, request: Request, role: str) -> None:
        header = request.headers.get("authorization", "")
        reading = request.method == "GET"
        known, found = self.guard.cached(header, reading)
        if not known:
            if found is None:
                self._slow_down(request)
            found = await asyncio.to_thread(self.guard.look_up, header, reading)
        if found is None:
            raise HTTPException(401, "a valid token is needed.", {"WWW-Authenticate": 'Basic realm="taurank"'})
        key, has = found
        if has not in _ALLOWED[role]:
            raise HTTPException(403, f"a token with the role {role} is needed; this one has {has}.")
        if not self.limit.allow(key):
            raise HTTPException(429, "too many requests; try again in a second.", {"Retry-After": "1"})

    def _slow_down(self, request: Request) -> None:
        address = request.client.host if request.client else ""
        if not self.failures.allow(address):
            raise HTTPException(429, "too many unknown tokens; try again in a second.", {"Retry-After": "1"})


class _Needs(SecurityBase):
    """The dependency of a route: one check that also shows in the OpenAPI description."""

    def __init__(self, access: Access, role: str) -> None:
        self.model = HTTPBearerModel(description="A token created with `taurank serve token create`.")
        self.scheme_name = "token"
        self._access, self._role = access, role

    async def __call__(self, request: Request) -> None:
        await self._access.check(request, self._role)


def router_with_access(access: Access, role: str) -> APIRouter:
    """A router whose requests need a token with this role."""
    return APIRouter(dependencies=[Depends(_Needs(access, role))], responses=_PROBLEMS)
