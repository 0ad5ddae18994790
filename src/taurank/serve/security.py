"""Who may do what: tokens, roles and rates.

``app`` asks for lists and reports outcomes, ``analyst`` reads, ``admin`` does everything. A token is shown once and
stored as its SHA-256: it has 256 random bits, so a fast hash is as safe as a slow one.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import math
import secrets
import time
from typing import Any

from fastapi import Depends, HTTPException, Request
from fastapi.security import HTTPBearer
from sqlalchemy import insert, select, update

from taurank._checks import check_choice
from taurank.serve import tables
from taurank.serve.store import NotFound, Store, Unavailable

ROLES = ("app", "analyst", "admin")
CACHE_SECONDS = 5.0  # a revoked token works for so long
READ_SECONDS = 0.2  # between two readings because of unknown tokens

# describes the header in OpenAPI; `Access` reads it, because it accepts a browser's password, too
bearer = Depends(
    HTTPBearer(
        scheme_name="token", description="A token created with `taurank server token create`.", auto_error=False
    )
)


def create_token(store: Store, role: str, label: str = "") -> tuple[str, str]:
    """The id of a new token, and the token itself, which cannot be shown again."""
    check_choice("role", role, ROLES)
    token, key = f"taurank_{secrets.token_urlsafe(32)}", secrets.token_hex(4)
    row = {"id": key, "digest": _digest(token), "role": role, "label": label, "created": time.time(), "revoked": None}
    with store.write() as connection:
        connection.execute(insert(tables.tokens), row)
    return key, token


def revoke_token(store: Store, key: str) -> None:
    """End a token; a running server notices within a few seconds."""
    valid = (tables.tokens.c.id == key) & tables.tokens.c.revoked.is_(None)
    with store.write() as connection:
        done = connection.execute(update(tables.tokens).where(valid).values(revoked=time.time()))
    if done.rowcount == 0:
        raise NotFound(f"there is no valid token '{key}'.")


def list_tokens(store: Store) -> list[dict[str, Any]]:
    """All tokens, without their digests."""
    columns = [tables.tokens.c[name] for name in ("id", "role", "label", "created", "revoked")]
    return store.rows(select(*columns).order_by(tables.tokens.c.created))


class RateLimit:
    """A bucket of ``burst`` requests per caller, filled with ``rate`` per second."""

    def __init__(self, rate: float, burst: float) -> None:
        self._rate, self._burst = rate, burst
        self._buckets: dict[str, tuple[float, float]] = {}

    def allow(self, caller: str) -> bool:
        """Whether there is room for a request, which then takes its place."""
        now = time.monotonic()
        filled, at = self._buckets.get(caller, (self._burst, now))
        filled = min(self._burst, filled + (now - at) * self._rate)
        self._buckets[caller] = (filled - 1 if filled >= 1 else filled, now)
        return filled >= 1


class Access:
    """Checks the token of a request against all valid tokens, which are read again every few seconds."""

    def __init__(self, store: Store, rate: float) -> None:
        self._store = store
        self._limit = RateLimit(rate, 2 * rate)
        self._known: dict[str, tuple[str, str]] = {}  # digest → id, role
        self._began = -math.inf  # when they were read last
        self._failure: Unavailable | None = None  # of this reading
        self._reading = asyncio.Lock()

    async def check(self, request: Request, role: str) -> None:
        """Refuse a request whose token does not have this role."""
        # a browser repeats a password on requests that foreign pages cause: it may only read
        token = _token_in(request.headers.get("authorization", ""), allow_basic=request.method == "GET")
        known = await self._look_up(_digest(token)) if token else None
        if known is None:
            raise HTTPException(401, "a valid token is needed.", {"WWW-Authenticate": 'Basic realm="taurank"'})
        key, has = known
        if has not in (role, "admin"):
            raise HTTPException(403, f"a token with the role {role} is needed; this one has {has}.")
        if not self._limit.allow(key):
            raise HTTPException(429, "too many requests; try again in a second.", {"Retry-After": "1"})

    async def _look_up(self, digest: str) -> tuple[str, str] | None:
        """A token that is not known may be new: it waits for the next reading, however many guesses there are."""
        asked = time.monotonic()
        if digest not in self._known:
            async with self._reading:
                if self._began < asked:
                    await asyncio.sleep(max(0.0, self._began + READ_SECONDS - time.monotonic()))
                    await self._read()
                elif self._failure is not None:  # whoever waited for this reading knows as little of its token
                    raise Unavailable(self._failure.public)
        elif asked - self._began > CACHE_SECONDS and not self._reading.locked():
            async with self._reading:
                await self._read()
        return self._known.get(digest)

    async def _read(self) -> None:
        self._began, self._failure, table = time.monotonic(), None, tables.tokens.c
        query = select(table.digest, table.id, table.role).where(table.revoked.is_(None))
        try:
            rows = await asyncio.to_thread(self._store.rows, query)
        except Unavailable as error:
            self._failure = error
            raise
        self._known = {row["digest"]: (row["id"], row["role"]) for row in rows}


def needs(role: str) -> Any:
    """The dependency of routes that need a token with this role."""

    async def check(request: Request) -> None:
        await request.app.state.service.access.check(request, role)

    return Depends(check)


def _token_in(header: str, allow_basic: bool) -> str:
    """The token in an Authorization header: after "Bearer", or as the password of a browser."""
    kind, _, rest = header.partition(" ")
    if kind.lower() == "bearer":
        return rest.strip()
    if kind.lower() == "basic" and allow_basic:
        try:
            return base64.b64decode(rest, validate=True).decode().partition(":")[2]
        except (binascii.Error, UnicodeDecodeError):
            return ""
    return ""


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()
