"""What is written under load: decisions and outcomes, many requests in one transaction.

A commit waits for the disk, so a single thread collects the requests that arrive meanwhile and commits them
together. A caller gets its answer after the commit and never before it.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, select

from taurank.serve import tables
from taurank.serve.store import Store, Unavailable, insert_new

LARGEST_GROUP = 400
LONGEST_QUEUE = 5000

Row = dict[str, Any]


@dataclass
class Recorded:
    """What became of a request: the stored decision, or how many of its events were new."""

    decision: Row | None = None
    repeated: bool = False
    new_events: int = 0


@dataclass
class Request:
    """Rows that belong together: a decision with its filter, or a batch of outcomes."""

    decision: Row | None = None
    filter: Row | None = None
    events: Sequence[Row] = ()
    future: Future[Recorded] = field(default_factory=Future)


class Recorder:
    """Groups requests into transactions on a thread of its own."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._queue: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="recorder", daemon=True)
        self._thread.start()

    def submit(self, request: Request) -> Future[Recorded]:
        if self._queue.qsize() >= LONGEST_QUEUE:
            raise Unavailable("too many requests wait to be written")
        self._queue.put(request)
        return request.future

    def close(self) -> None:
        """Write what waits, and stop."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (first := self._queue.get()) is not None:
            group = [first]
            ended = False
            while len(group) < LARGEST_GROUP and not self._queue.empty():
                following = self._queue.get()
                ended = following is None
                if following is None:
                    break
                group.append(following)
            self._commit(group)
            if ended:
                return

    def _commit(self, group: list[Request]) -> None:
        try:
            with self._store.write() as connection:
                answers = record(connection, group)
        except Exception as error:
            if len(group) == 1:
                group[0].future.set_exception(error)
            else:  # one request must not fail the others
                for request in group:
                    self._commit([request])
        else:
            for request, answer in zip(group, answers, strict=True):
                request.future.set_result(answer)


def record(connection: Connection, group: Sequence[Request]) -> list[Recorded]:
    """Write a group inside a transaction; what is there already stays as it is."""
    stored, repeated = _record_decisions(connection, group)
    fresh = _record_events(connection, group)
    answers = []
    for request in group:
        if request.decision is not None:
            key = request.decision["id"]
            answers.append(
                Recorded(decision=stored[key], repeated=key in repeated or stored[key] is not request.decision)
            )
        else:
            answers.append(Recorded(new_events=sum(fresh.pop(row["event_id"], 0) for row in request.events)))
    return answers


def _record_decisions(connection: Connection, group: Sequence[Request]) -> tuple[dict[str, Row], set[str]]:
    """The decision that counts for each id, and the ids that were there before."""
    asked: dict[str, Row] = {}
    for request in group:
        if request.decision is not None:
            asked.setdefault(request.decision["id"], request.decision)
    if not asked:
        return {}, set()
    stored = _stored(connection, list(asked))
    fresh = sorted((row for key, row in asked.items() if key not in stored), key=lambda row: str(row["id"]))
    used = {row["filter"] for row in fresh}
    filters = {r.filter["id"]: r.filter for r in group if r.filter is not None and r.filter["id"] in used}
    insert_new(connection, tables.filters, sorted(filters.values(), key=lambda row: str(row["id"])))
    insert_new(connection, tables.decisions, fresh)
    repeated = set(stored)
    if connection.dialect.name == "postgresql":  # another process may have been first
        for key, row in _stored(connection, [row["id"] for row in fresh]).items():
            if row != asked[key]:
                stored[key] = row
                repeated.add(key)
    return {**asked, **stored}, repeated


def _stored(connection: Connection, ids: list[str]) -> dict[str, Row]:
    if not ids:
        return {}
    found = connection.execute(select(tables.decisions).where(tables.decisions.c.id.in_(ids))).mappings()
    return {row["id"]: dict(row) for row in found}


def _record_events(connection: Connection, group: Sequence[Request]) -> dict[str, int]:
    """1 for every event id that is new."""
    events = {row["event_id"]: row for request in reversed(group) for row in reversed(request.events)}
    ids = sorted(events)
    known: set[str] = set()
    for first in range(0, len(ids), 5000):
        part = ids[first : first + 5000]
        known.update(
            connection.scalars(select(tables.outcomes.c.event_id).where(tables.outcomes.c.event_id.in_(part)))
        )
    insert_new(connection, tables.outcomes, [events[key] for key in ids if key not in known])
    return {key: 1 for key in ids if key not in known}
