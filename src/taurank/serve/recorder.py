"""What is written under load: decisions and outcomes, many requests in one transaction.

A commit waits for the disk, so a single thread collects the requests that arrive meanwhile and commits them
together. A caller gets its answer after the commit and never before it.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, select

from taurank.serve import tables
from taurank.serve.store import Store, Unavailable, insert_new

LARGEST_GROUP = 400
LONGEST_QUEUE = 5000
LINGER_SECONDS = 0.004
_IDS_AT_ONCE = 5000

Row = dict[str, Any]


@dataclass
class Recorded:
    """What became of a write: the stored decision, or how many of its events were new."""

    decision: Row | None = None
    repeated: bool = False
    new_events: int = 0


@dataclass
class Write:
    """Rows that belong together: a decision with its filter, or a batch of outcomes."""

    decision: Row | None = None
    filter: Row | None = None
    events: Sequence[Row] = ()
    future: Future[Recorded] = field(default_factory=Future)
    waiter: asyncio.Future[Recorded] | None = None  # used instead of ``future`` by an event loop


class Recorder:
    """Groups writes into transactions on a thread of its own."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._queue: queue.SimpleQueue[Write | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="recorder", daemon=True)
        self._thread.start()

    def submit(self, write: Write) -> Future[Recorded]:
        if self._queue.qsize() >= LONGEST_QUEUE:
            raise Unavailable("too many requests wait to be written")
        self._queue.put(write)
        return write.future

    async def record(self, write: Write) -> Recorded:
        """Write a write from an event loop."""
        write.waiter = asyncio.get_running_loop().create_future()
        self.submit(write)
        return await write.waiter

    def close(self) -> None:
        """Write what waits, and stop."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        busy = ended = False
        while not ended and (first := self._queue.get()) is not None:
            if busy:  # more are on their way, and a transaction costs as much for ten as for one
                time.sleep(LINGER_SECONDS)
            group = [first]
            while len(group) < LARGEST_GROUP and not self._queue.empty() and not ended:
                if (following := self._queue.get()) is None:
                    ended = True
                else:
                    group.append(following)
            busy = len(group) > 1
            self._commit(group)

    def _commit(self, group: list[Write]) -> None:
        try:
            with self._store.write() as connection:
                answers = record(connection, group)
        except Exception as error:
            if len(group) > 1:  # one of them must not fail the others
                for write in group:
                    self._commit([write])
            else:
                _deliver(group, [error])
        else:
            _deliver(group, answers)


def _deliver(group: list[Write], answers: Sequence[Recorded | Exception]) -> None:
    """Answer the group; each event loop is woken up once, not once per write."""
    loops: dict[asyncio.AbstractEventLoop, list[tuple[Any, Any]]] = {}
    for write, answer in zip(group, answers, strict=True):
        if write.waiter is None:
            _resolve([(write.future, answer)])
        else:
            loops.setdefault(write.waiter.get_loop(), []).append((write.waiter, answer))
    for loop, pairs in loops.items():
        loop.call_soon_threadsafe(_resolve, pairs)


def _resolve(pairs: list[tuple[Any, Any]]) -> None:
    for future, answer in pairs:
        if future.done():  # the client has gone
            continue
        if isinstance(answer, Exception):
            future.set_exception(answer)
        else:
            future.set_result(answer)


def record(connection: Connection, group: Sequence[Write]) -> list[Recorded]:
    """Write a group inside a transaction; what is there already stays as it is."""
    decisions = _record_decisions(connection, group)
    fresh = _record_events(connection, group)
    answers = []
    for write in group:
        if write.decision is not None:
            stored = decisions[write.decision["id"]]
            answers.append(Recorded(decision=stored, repeated=stored is not write.decision))
        else:
            answers.append(Recorded(new_events=sum(fresh.pop(row["event_id"], 0) for row in write.events)))
    return answers


def _record_decisions(connection: Connection, group: Sequence[Write]) -> dict[str, Row]:
    """The decision that counts for each id: the first of the group, or an earlier one."""
    first: dict[str, Row] = {}
    filters: dict[str, Row] = {}
    for write in group:
        if write.decision is not None:
            first.setdefault(write.decision["id"], write.decision)
        if write.filter is not None:
            filters[write.filter["id"]] = write.filter
    insert_new(connection, tables.filters, _by_key(filters))
    if insert_new(connection, tables.decisions, _by_key(first)) == len(first):
        return first
    table = tables.decisions
    stored = connection.execute(select(table).where(table.c.id.in_(first))).mappings()
    asked = {row["id"]: (first[row["id"]], dict(row)) for row in stored}
    return {key: new if new == old else old for key, (new, old) in asked.items()}


def _by_key(rows: dict[str, Row]) -> list[Row]:
    """In one order for all processes: two transactions that insert the same keys do not deadlock."""
    return [rows[key] for key in sorted(rows)]


def _record_events(connection: Connection, group: Sequence[Write]) -> dict[str, int]:
    """1 for every event id that is new."""
    events = {row["event_id"]: row for write in reversed(group) for row in reversed(write.events)}
    ids, key = sorted(events), tables.outcomes.c.event_id
    for start in range(0, len(ids), _IDS_AT_ONCE):
        for known in connection.scalars(select(key).where(key.in_(ids[start : start + _IDS_AT_ONCE]))):
            del events[known]
    insert_new(connection, tables.outcomes, _by_key(events))
    return dict.fromkeys(events, 1)
