"""Who may call what: each router asks for a role, and every token has its rate."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Depends, HTTPException, Request
from fastapi.security import HTTPBearer

from taurank.serve.auth import Guard
from taurank.serve.limits import RateLimit
from taurank.serve.schemas import Problem

_ALLOWED = {"app": ("app", "admin"), "analyst": ("analyst", "admin"), "admin": ("admin",)}
_PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": Problem} for status in (400, 401, 403, 404, 409, 413, 422, 429, 503)
}
# for the OpenAPI description only: ``Access`` looks at the header, and takes a browser's password, too
_described = HTTPBearer(
    scheme_name="token", description="A token created with `taurank serve token create`.", auto_error=False
)


@dataclass
class Access:
    """Checks the token of a request."""

    guard: Guard
    limit: RateLimit
    failures: RateLimit  # by address: guesses are slow

    async def check(self, header: str, reading: bool, address: str, role: str) -> None:
        """Refuse a request whose Authorization header does not give it this role; ``reading`` is GET."""
        known, found = self.guard.cached(header, reading)
        if not known:
            if found is None:
                self._slow_down(address)
            found = await asyncio.to_thread(self.guard.look_up, header, reading)
        if found is None:
            raise HTTPException(401, "a valid token is needed.", {"WWW-Authenticate": 'Basic realm="taurank"'})
        key, has = found
        if has not in _ALLOWED[role]:
            raise HTTPException(403, f"a token with the role {role} is needed; this one has {has}.")
        if not self.limit.allow(key):
            raise HTTPException(429, "too many requests; try again in a second.", {"Retry-After": "1"})

    def _slow_down(self, address: str) -> None:
        if not self.failures.allow(address):
            raise HTTPException(429, "too many unknown tokens; try again in a second.", {"Retry-After": "1"})


def router_with_access(access: Access, role: str) -> APIRouter:
    """A router whose requests need a token with this role."""

    async def check(request: Request) -> None:
        header, reading = request.headers.get("authorization", ""), request.method == "GET"
        await access.check(header, reading, request.client.host if request.client else "", role)

    return APIRouter(dependencies=[Depends(_described), Depends(check)], responses=_PROBLEMS)
