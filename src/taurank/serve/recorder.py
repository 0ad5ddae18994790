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

from sqlalchemy import Connection, false, or_, select

from taurank.serve import tables
from taurank.serve.store import Conflict, Store, Unavailable, insert_new

LARGEST_GROUP = 400
LONGEST_QUEUE = 5000
LINGER_SECONDS = 0.004

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
        """Write from an event loop."""
        return await asyncio.wrap_future(self.submit(write))

    def close(self) -> None:
        """Write what waits, and stop."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        busy = ended = False
        while not ended and (write := self._queue.get()) is not None:
            if busy:  # more are on their way, and a transaction costs as much for ten as for one
                time.sleep(LINGER_SECONDS)
            group = [write]
            while len(group) < LARGEST_GROUP and not self._queue.empty() and not ended:
                if (following := self._queue.get()) is None:
                    ended = True
                else:
                    group.append(following)
            busy = len(group) > 1
            self._commit([write for write in group if write.future.set_running_or_notify_cancel()])  # or gone

    def _commit(self, group: list[Write]) -> None:
        try:
            with self._store.write() as connection:
                answers = record(connection, group)
        except Unavailable as error:  # those that came meanwhile have waited as long
            for _ in range(self._queue.qsize()):
                if (write := self._queue.get()) is None:
                    self._queue.put(None)
                elif write.future.set_running_or_notify_cancel():
                    group.append(write)
            for write in group:
                write.future.set_exception(error)
        except Exception as error:  # whatever it is, the caller gets it
            if len(group) == 1:
                group[0].future.set_exception(error)
                return
            for write in group:  # one of them must not fail the others
                self._commit([write])
        else:
            for write, answer in zip(group, answers, strict=True):
                write.future.set_result(answer)


def record(connection: Connection, group: Sequence[Write]) -> list[Recorded]:
    """Write a group inside a transaction; the first of equal ids counts, and what is there already stays as it is."""
    decisions = {row["id"]: row for write in reversed(group) if (row := write.decision) is not None}
    filters = {row["id"]: row for write in group if (row := write.filter) is not None}
    events = {(row["event_id"], row["item_id"]): row for write in reversed(group) for row in reversed(write.events)}
    insert_new(connection, tables.filters, filters)
    new = insert_new(connection, tables.decisions, decisions)
    settled, periods = tables.settled, {(decisions[key]["surface"], decisions[key]["period"]) for key in new}
    late = or_(
        false(), *((settled.c.surface == surface) & (settled.c.period >= period) for surface, period in periods)
    )
    if periods and connection.execute(select(settled.c.period).where(late).limit(1)).first() is not None:
        # a visit more would lack its purchases
        raise Conflict("the period of this decision has been settled; is the clock right?")
    if earlier := decisions.keys() - new:
        found = connection.execute(select(tables.decisions).where(tables.decisions.c.id.in_(earlier))).mappings()
        stored = [dict(row) for row in found]  # a decision that its own repetition stored is not repeated
        decisions |= {row["id"]: row for row in stored if row != decisions[row["id"]]}
    fresh = insert_new(connection, tables.outcomes, events)
    answers = []
    for write in group:
        if write.decision is not None:
            counts = decisions[write.decision["id"]]
            answers.append(Recorded(decision=counts, repeated=counts is not write.decision))
        else:
            lines = fresh & {(row["event_id"], row["item_id"]) for row in write.events}
            fresh -= lines
            answers.append(Recorded(new_events=len(lines)))
    return answers
