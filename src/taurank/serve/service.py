"""What a server process has in its hands: store, decider, recorder, limits."""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass, field

from sqlalchemy import select

from taurank.errors import InputError
from taurank.serve import tables
from taurank.serve.auth import Guard
from taurank.serve.deciding import Clock, Decider
from taurank.serve.limits import RateLimit
from taurank.serve.metrics import Metrics
from taurank.serve.recording import Recorder
from taurank.serve.store import Store, Unavailable
from taurank.serve.streams import parse_secret, read_secret


@dataclass
class Service:
    """Everything a request needs; one per process."""

    store: Store
    secret: bytes
    clock: Clock = time.time
    rate: float = 5000.0
    body_limit: int = 1 << 20
    upload_limit: int = 1 << 29
    metrics: Metrics = field(default_factory=Metrics)

    def __post_init__(self) -> None:
        self.decider = Decider(self.store, self.secret, self.clock)
        self.guard = Guard(self.store)
        self.limit = RateLimit(self.rate, 2 * self.rate)
        self.failures = RateLimit(5.0, 20.0)
        self.recorder = Recorder(self.store)

    async def prepare(self, surface: str) -> None:
        """Read settings and load models on another thread, so that nobody waits for them."""
        surfaces, models = self.decider.surfaces, self.decider.models
        if surfaces.stale:
            await asyncio.to_thread(surfaces.refresh)
        current = surfaces.get(surface)
        for version in (current.incumbent, current.challenger, current.holdout_model):
            if version is not None and not models.has(version):
                await asyncio.to_thread(models.get, version)

    async def ready(self) -> bool:
        """Whether the database answers."""
        try:
            await asyncio.to_thread(self.store.rows, select(tables.settings.c.name))
        except Unavailable:
            return False
        return True

    def close(self) -> None:
        self.recorder.close()
        self.store.close()


def secret_for(address: str) -> bytes:
    """The secret in TAURANK_SECRET, or in the file ``secret`` of the store's folder."""
    text = os.environ.get("TAURANK_SECRET")
    if text is not None:
        return parse_secret(text, "TAURANK_SECRET")
    if "://" in address:
        raise InputError("set TAURANK_SECRET to 64 hexadecimal digits: a PostgreSQL store has no folder for it.")
    return read_secret(address)
