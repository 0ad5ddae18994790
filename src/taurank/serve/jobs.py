"""The background job: it settles periods, judges challengers, draws the dashboard and deletes old decisions."""

from __future__ import annotations

import itertools
import json
import os
import time
from http.client import HTTPException
from urllib.request import Request, urlopen

from sqlalchemy import func, select

from taurank.errors import first_line
from taurank.serve import tables
from taurank.serve.decisions import Decider
from taurank.serve.gate import run_jobs
from taurank.serve.logs import log
from taurank.serve.retention import prune
from taurank.serve.store import Store, Unavailable, secret_for, setting, upsert

JOB_SECONDS = 20.0  # between two rounds
STOPPED_SECONDS = 90.0  # without a round, after which the job counts as stopped
DRAW_ROUNDS = 3  # a page is drawn every third round
POST_SECONDS = 5.0  # for a webhook to answer
POSTED = ("promoted", "rolled back", "demoted", "trial ended", "alert")  # of the history, to a webhook


def draw_pages(decider: Decider) -> None:
    """Bring the stored pages of all surfaces up to date."""
    from taurank.serve.dashboard import draw

    surfaces, now = decider.surfaces.all(), decider.clock()
    for surface in surfaces:
        body, alert = draw(decider.store, surface, [each.name for each in surfaces], now)
        with decider.store.write() as connection:
            upsert(connection, tables.pages, [{"surface": surface.name, "time": now, "body": body, "alert": alert}])


def beat(store: Store, now: float) -> None:
    """Say that the job runs."""
    with store.write() as connection:
        upsert(connection, tables.settings, [{"name": "jobs", "value": json.dumps(now)}])


def seconds_since_beat(store: Store, now: float) -> float | None:
    """How long ago the job said that it runs; None if it never did."""
    with store.read() as connection:
        value = setting(connection, "jobs")
    return None if value is None else max(0.0, now - float(json.loads(value)))


def post_events(store: Store, address: str) -> str:
    """Post what has happened since the last time to a webhook; what fails is posted again in the next round.

    Returns the reason of a failure.
    """
    table = tables.history
    with store.read() as connection:
        last = setting(connection, "webhook")
        newest = connection.scalar(select(func.max(table.c.id))) or 0
    rows = store.rows(
        select(table).where((table.c.id > int(last or newest)) & table.c.event.in_(POSTED)).order_by(table.c.id)
    )
    if rows:
        body = json.dumps({"events": rows}).encode()
        try:
            urlopen(Request(address, body, {"Content-Type": "application/json"}), timeout=POST_SECONDS).close()
        except (OSError, ValueError, HTTPException) as error:
            return f"the webhook does not answer: {first_line(error)}"
    if last != str(newest):
        with store.write() as connection:
            upsert(connection, tables.settings, [{"name": "webhook", "value": str(newest)}])
    return ""


def run_forever(address: str, parent: int, webhook: str = "") -> None:
    """Run the jobs until the parent ends, also if it is killed; retries if the database is unavailable."""
    decider, rounds = Decider(Store(address), secret_for(address), time.time), itertools.count()
    last: dict[str, str] = {}
    while os.getppid() == parent:
        try:
            done = run_jobs(decider)
            if next(rounds) % DRAW_ROUNDS == 0 or any(not text.startswith("0 settled") for text in done.values()):
                draw_pages(decider)
            prune(decider.store, time.time())
            beat(decider.store, time.time())
            for name in [name for name, text in done.items() if text != last.get(name)]:
                log("job", surface=name, result=done[name])
            last = done
            if webhook and (failure := post_events(decider.store, webhook)):
                log("webhook failed", reason=failure)
        except Unavailable as error:
            log("job failed", reason=str(error))
        for _ in range(round(JOB_SECONDS)):
            if os.getppid() == parent:
                time.sleep(1.0)
