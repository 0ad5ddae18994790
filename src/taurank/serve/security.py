"""Who may do what: tokens, roles and rates.

``app`` asks for lists and reports outcomes, ``analyst`` reads, ``admin`` does everything. A token is shown once and
stored as its SHA-256: it has 256 random bits, so a fast hash is as safe as a slow one.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import secrets
import time
from typing import Any

from fastapi import Depends, HTTPException, Request
from fastapi.security import HTTPBearer
from sqlalchemy import insert, select, update

from taurank._checks import check_choice
from taurank.serve import tables
from taurank.serve.store import NotFound, Store

ROLES = ("app", "analyst", "admin")
CACHE_SECONDS = 5.0
_CACHE_SIZE = 10_000

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

    def allow(self, caller: str, cost: int = 1) -> bool:
        """Whether there is room for a request, which then takes ``cost`` from the bucket."""
        now = time.monotonic()
        filled, at = self._buckets.get(caller, (self._burst, now))
        filled = min(self._burst, filled + (now - at) * self._rate)
        if len(self._buckets) > _CACHE_SIZE:
            self._buckets.clear()
        self._buckets[caller] = (filled - cost if filled >= 1 else filled, now)
        return filled >= 1


class Access:
    """Checks the token of a request; what the database says about a token is cached for a few seconds."""

    def __init__(self, store: Store, rate: float) -> None:
        self._store = store
        self._limit = RateLimit(rate, 2 * rate)
        self._guesses = RateLimit(5.0, 20.0)  # unknown tokens, by address
        self._cache: dict[str, tuple[float, tuple[str, str] | None]] = {}  # digest → expiry, (id, role)

    async def check(self, request: Request, role: str) -> None:
        """Refuse a request whose token does not have this role."""
        # a browser repeats a password on requests that foreign pages cause: it may only read
        token = _token_in(request.headers.get("authorization", ""), allow_basic=request.method == "GET")
        known = await self._look_up(token, request.client.host if request.client else "") if token else None
        if known is None:
            raise HTTPException(401, "a valid token is needed.", {"WWW-Authenticate": 'Basic realm="taurank"'})
        key, has = known
        if has not in (role, "admin"):
            raise HTTPException(403, f"a token with the role {role} is needed; this one has {has}.")
        if not self._limit.allow(key):
            raise HTTPException(429, "too many requests; try again in a second.", {"Retry-After": "1"})

    async def _look_up(self, token: str, address: str) -> tuple[str, str] | None:
        digest, now = _digest(token), time.monotonic()
        until, known = self._cache.get(digest, (0.0, None))
        if until > now:
            return known
        if known is not None:  # this request looks it up again, the others go on meanwhile
            self._cache[digest] = now + 1.0, known
        # only wrong tokens count: a new client sends many requests before its token is known
        elif not self._guesses.allow(address, 0):
            raise HTTPException(429, "too many unknown tokens; try again in a second.", {"Retry-After": "1"})
        valid = (tables.tokens.c.digest == digest) & tables.tokens.c.revoked.is_(None)
        query = select(tables.tokens.c.id, tables.tokens.c.role).where(valid)
        rows = await asyncio.to_thread(self._store.rows, query)
        known = (rows[0]["id"], rows[0]["role"]) if rows else None
        if known is None:
            self._guesses.allow(address)
        if len(self._cache) >= _CACHE_SIZE:
            self._cache.clear()
        self._cache[digest] = time.monotonic() + CACHE_SECONDS, known
        return known


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
