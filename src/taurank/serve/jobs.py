"""The background job: it settles periods, judges challengers, draws the dashboard and deletes old decisions."""

from __future__ import annotations

import json
import math
import os
import time

from sqlalchemy import func, select

from taurank.serve import tables
from taurank.serve.decisions import Decider
from taurank.serve.gate import run_jobs
from taurank.serve.retention import prune
from taurank.serve.store import Store, Unavailable, secret_for, setting, upsert

JOB_SECONDS = 20.0  # between two rounds
STOPPED_SECONDS = 90.0  # without a round, after which the job counts as stopped
DRAW_SECONDS = 60.0  # a page is drawn at least this often


class Painter:
    """Draws the dashboard of every surface when something has changed, and once a minute."""

    def __init__(self) -> None:
        self._drawn: dict[str, tuple[object, float]] = {}  # what a page showed, and when it was drawn

    def draw(self, decider: Decider) -> None:
        """Bring the stored pages up to date."""
        from taurank.serve.dashboard import draw

        surfaces, now = decider.surfaces.all(), decider.clock()
        with decider.store.read() as connection:
            latest = connection.scalar(select(func.max(tables.history.c.id)))
        for surface in surfaces:
            with decider.store.read() as connection:
                own = tables.settled.c.surface == surface.name
                settled = connection.scalar(select(func.max(tables.settled.c.time)).where(own))
            state = (surface.model_dump_json(), latest, settled, len(surfaces))
            before, drawn = self._drawn.get(surface.name, (None, -math.inf))
            if state != before or not 0 <= now - drawn < DRAW_SECONDS:
                body, alert = draw(decider.store, surface, [each.name for each in surfaces], now)
                row = {"surface": surface.name, "time": now, "body": body, "alert": alert}
                with decider.store.write() as connection:
                    upsert(connection, tables.pages, [row])
                self._drawn[surface.name] = state, now


def beat(store: Store, now: float) -> None:
    """Say that the job runs."""
    with store.write() as connection:
        upsert(connection, tables.settings, [{"name": "jobs", "value": json.dumps(now)}])


def seconds_since_beat(store: Store, now: float) -> float | None:
    """How long ago the job said that it runs; None if it never did."""
    with store.read() as connection:
        value = setting(connection, "jobs")
    return None if value is None else max(0.0, now - float(json.loads(value)))


def run_forever(address: str, parent: int) -> None:
    """Run the jobs until the parent ends, also if it is killed; retries if the database is unavailable."""
    decider, painter = Decider(Store(address), secret_for(address), time.time), Painter()
    last: dict[str, str] = {}
    while os.getppid() == parent:
        try:
            done = run_jobs(decider)
            painter.draw(decider)
            prune(decider.store, time.time())
            beat(decider.store, time.time())
            lines = [f"{name}: {text}" for name, text in done.items() if text != last.get(name)]
            last = done
        except Unavailable as error:
            lines = [str(error)]
        for line in lines:
            print(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {line}", flush=True)
        for _ in range(round(JOB_SECONDS)):
            if os.getppid() == parent:
                time.sleep(1.0)
