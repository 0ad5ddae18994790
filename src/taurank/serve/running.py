"""Starting the server: worker processes, and the keeper beside them."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable

import uvicorn

from taurank.serve.auth import create_token, list_tokens
from taurank.serve.deciding import Decider
from taurank.serve.keeping import keep
from taurank.serve.service import secret_for
from taurank.serve.store import Store

KEEPER_SECONDS = 20.0


def run(address: str, host: str, port: int, workers: int, rate: float, say: Callable[[str], None]) -> None:
    """Serve until interrupted. A store without tokens gets one for the administrator, shown once."""
    first_token(address, say)
    os.environ.update(TAURANK_STORE=address, TAURANK_RATE=str(rate))
    keeper = multiprocessing.get_context("spawn").Process(target=_keep, args=(address, os.getpid()), daemon=True)
    keeper.start()
    say(f"serving on http://{host}:{port} (dashboard at /, user name is ignored, password is a token)")
    try:
        uvicorn.run(
            "taurank.serve.api:from_environment", factory=True, host=host, port=port, workers=workers,
            log_level="warning", access_log=False, server_header=False, timeout_graceful_shutdown=10,
        )  # fmt: skip
    finally:
        keeper.terminate()
        keeper.join(5)


def first_token(address: str, say: Callable[[str], None]) -> None:
    store = Store(address)
    secret_for(address)
    if not list_tokens(store):
        say(f"admin token, shown once: {create_token(store, 'admin', 'first')[1]}")
    store.close()


def _keep(address: str, parent: int) -> None:
    """The keeper ends with its parent, also if that is killed."""

    def say(words: str) -> None:
        print(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {words}", flush=True)

    decider = Decider(Store(address), secret_for(address), time.time)
    keep(decider, KEEPER_SECONDS, say, while_true=lambda: os.getppid() == parent)
