"""A client of the service for a shop written in Python. This file needs nothing but Python's own library.

Every request can be repeated: a user has one list per surface and period, and an event is known by its ``event_id``.
So what got no answer is sent again, after a pause that doubles and is drawn at random.
"""

from __future__ import annotations

import http.client
import json
import random
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

EVENTS = 1000  # per request, as many as the service accepts
_LATER = (None, 429, 502, 503, 504)  # the same request may succeed later; None is no answer
Id = str | int


class ServiceError(Exception):
    """No answer (``status`` is None), or one that is an error."""

    def __init__(self, status: int | None, reason: str) -> None:
        super().__init__(f"the service does not answer: {reason}" if status is None else f"{status}: {reason}")
        self.status = status


@dataclass(frozen=True)
class Item:
    """An item of a list; in a fallback its propensity is unknown."""

    item_id: str
    rank: int
    propensity: float | None = None


@dataclass(frozen=True)
class Recommendation:
    """A list. A fallback has no ``decision_id``: the service did not draw it and does not know of it."""

    items: tuple[Item, ...]
    decision_id: str | None = None
    period: str | None = None
    arm: str | None = None
    model: str | None = None
    repeated: bool = False


@dataclass(frozen=True)
class Event:
    """Something bought, in the order ``event_id``; without one it gets its own, so that it counts once.

    ``time`` has a time zone. Without a time the event happens when the service receives it.
    """

    user_id: Id
    item_id: Id
    event_id: Id = field(default_factory=lambda: uuid.uuid4().hex)
    value: float = 1.0
    time: datetime | None = None


@dataclass(frozen=True)
class Health:
    """Whether the service works, what it says, and how long ago its background job ran."""

    ready: bool
    status: str
    job_seconds_ago: float | None = None


class Client:
    """Asks a service; may be shared by threads.

    ``address`` is like ``http://127.0.0.1:8000``, ``token`` has the role ``app``. A request is sent up to
    ``attempts`` times and waits ``timeout`` seconds for each answer. The n-th pause is drawn by ``jitter`` from 0 to
    ``pause`` · 2ⁿ seconds, and is no shorter than what the service asks for.
    """

    def __init__(
        self,
        address: str,
        token: str,
        timeout: float = 2.0,
        attempts: int = 3,
        pause: float = 0.1,
        jitter: random.Random | None = None,
    ) -> None:
        parts = urlsplit(address)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"'{address}' is not an address such as http://127.0.0.1:8000.")
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        host, port = parts.hostname, parts.port
        self._connect: Callable[[], http.client.HTTPConnection] = lambda: kind(host, port, timeout=timeout)
        self._folder = parts.path.rstrip("/")
        self._headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
        self._attempts, self._pause, self._jitter = attempts, pause, jitter or random.Random()

    def recommend(
        self,
        user_id: Id,
        surface: str = "home",
        candidates: Sequence[Id] | None = None,
        exclude: Sequence[Id] = (),
        fallback: Sequence[Id] | None = None,
    ) -> Recommendation:
        """The user's list of this period; the ``fallback``, if there is one, while the service does not answer."""
        allowed = {} if candidates is None else {"candidates": list(candidates)}
        try:
            body = {"user_id": user_id, "surface": surface, "exclude": list(exclude)} | allowed
            answer = self._ask("/v1/recommend", body)
        except ServiceError as error:
            if fallback is None or error.status not in _LATER:
                raise
            return Recommendation(tuple(Item(str(item), rank) for rank, item in enumerate(fallback, 1)))
        items = tuple(Item(item["item_id"], item["rank"], item["propensity"]) for item in answer["items"])
        names = ("decision_id", "period", "arm", "model", "repeated")
        return Recommendation(items, **{name: answer[name] for name in names})

    def report(self, events: Iterable[Event]) -> int:
        """Report what was bought; returns how many of the events are new to the service."""
        lines, new = [_line(event) for event in events], 0
        for first in range(0, len(lines), EVENTS):
            new += self._ask("/v1/outcomes", {"events": lines[first : first + EVENTS]})["accepted"]
        return new

    def health(self) -> Health:
        """How the service is; sent once, and no error."""
        status, answer, _ = self._send("GET", "/health/ready", None)
        if not isinstance(answer, dict):
            answer = {"status": str(answer)}
        return Health(status == 200, answer.get("status", ""), answer.get("job_seconds_ago"))

    def _ask(self, path: str, body: dict[str, Any]) -> Any:
        for attempt in range(1, self._attempts + 1):
            status, answer, wait = self._send("POST", path, json.dumps(body))
            if status == 200:
                return answer
            if status not in _LATER or attempt == self._attempts:
                break
            time.sleep(max(wait, self._jitter.uniform(0, self._pause * 2**attempt)))
        raise ServiceError(status, str(answer.get("detail", answer) if isinstance(answer, dict) else answer))

    def _send(self, method: str, path: str, content: str | None) -> tuple[int | None, Any, float]:
        """Status and JSON of the answer (or its text, or why there is none), and the pause that it asks for."""
        try:
            with closing(self._connect()) as connection:
                connection.request(method, self._folder + path, content, self._headers)
                response = connection.getresponse()
                text = response.read().decode("utf-8", "replace")
        except (OSError, http.client.HTTPException) as error:
            return None, f"{type(error).__name__} {error}".rstrip(), 0.0
        wait = response.headers.get("Retry-After", "")
        try:
            answer = json.loads(text)
        except ValueError:  # from a proxy
            answer = text[:200]
        return response.status, answer, float(wait) if wait.isdigit() else 0.0


def _line(event: Event) -> dict[str, Any]:
    time = {} if event.time is None else {"time": event.time.isoformat()}
    ids = {"user_id": event.user_id, "item_id": event.item_id, "event_id": event.event_id}
    return ids | {"value": event.value} | time
