"""Tokens: who may do what. A token is shown once and stored as its SHA-256.

A token has 256 random bits, so a fast hash is as safe as a slow one. ``app`` asks for lists and reports
outcomes, ``analyst`` reads, ``admin`` does everything.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import secrets
import time
from typing import Any

from sqlalchemy import insert, select, update

from taurank.errors import InputError
from taurank.serve import tables
from taurank.serve.store import Store

ROLES = ("app", "analyst", "admin")
_CACHE_SECONDS = 5.0
_CACHE_SIZE = 10_000


def create_token(store: Store, role: str, label: str = "") -> tuple[str, str]:
    """The id of a new token, and the token itself, which cannot be shown again."""
    if role not in ROLES:
        raise InputError(f"a role is one of {', '.join(ROLES)}, got '{role}'.")
    token, key = f"taurank_{secrets.token_urlsafe(32)}", secrets.token_hex(4)
    row = {"id": key, "digest": _digest(token), "role": role, "label": label, "created": time.time(), "revoked": None}
    with store.write() as connection:
        connection.execute(insert(tables.tokens), row)
    return key, token


def revoke_token(store: Store, key: str) -> None:
    """End a token; a running server notices within a few seconds."""
    open_token = (tables.tokens.c.id == key) & tables.tokens.c.revoked.is_(None)
    with store.write() as connection:
        done = connection.execute(update(tables.tokens).where(open_token).values(revoked=time.time()))
    if done.rowcount == 0:
        raise InputError(f"there is no valid token '{key}'.")


def list_tokens(store: Store) -> list[dict[str, Any]]:
    columns = [tables.tokens.c[name] for name in ("id", "role", "label", "created", "revoked")]
    return store.rows(select(*columns).order_by(tables.tokens.c.created))


class Guard:
    """Looks tokens up, and caches what it found for a few seconds."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._cache: dict[str, tuple[float, tuple[str, str] | None]] = {}

    def identify(self, header: str, allow_basic: bool = False) -> tuple[str, str] | None:
        """Id and role behind an Authorization header, or None.

        A browser can only send a user name and a password; the password is then the token. It repeats them
        on requests that foreign pages cause, so they are accepted for reading only.
        """
        known, found = self.cached(header, allow_basic)
        return found if known else self.look_up(header, allow_basic)

    def cached(self, header: str, allow_basic: bool = False) -> tuple[bool, tuple[str, str] | None]:
        """Whether the answer needs no look into the database, and the answer as far as it is known."""
        token = _token_in(header, allow_basic)
        if not token:
            return True, None
        digest, now = _digest(token), time.monotonic()
        entry = self._cache.get(digest)
        if entry is None:
            return False, None
        if entry[0] <= now:  # this request looks it up again, the others go on meanwhile
            self._cache[digest] = (now + 1.0, entry[1])
            return False, entry[1]
        return True, entry[1]

    def look_up(self, header: str, allow_basic: bool = False) -> tuple[str, str] | None:
        digest = _digest(_token_in(header, allow_basic))
        found = self._find(digest)
        if len(self._cache) >= _CACHE_SIZE:
            self._cache.clear()
        self._cache[digest] = (time.monotonic() + _CACHE_SECONDS, found)
        return found

    def _find(self, digest: str) -> tuple[str, str] | None:
        valid = (tables.tokens.c.digest == digest) & tables.tokens.c.revoked.is_(None)
        rows = self._store.rows(select(tables.tokens.c.id, tables.tokens.c.role).where(valid))
        return (rows[0]["id"], rows[0]["role"]) if rows else None


def _token_in(header: str, allow_basic: bool) -> str:
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
