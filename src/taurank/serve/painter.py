"""Where the dashboard is drawn: the libraries that draw would stop the threads of a server meanwhile."""

from __future__ import annotations

import multiprocessing
import os
import threading
from concurrent.futures import Executor, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import cache

from taurank.serve.store import Store, Unavailable
from taurank.serve.surfaces import Surfaces


class Painter:
    """Draws pages in a process of its own, started by the first page and ended with the server."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._lock = threading.Lock()
        self._pool: Executor | None = None

    def page(self, surface: str | None, now: float) -> str:
        """The page of a surface, or of the first one."""
        with self._lock:
            if self._pool is None:
                context = multiprocessing.get_context("spawn")
                self._pool = ProcessPoolExecutor(1, context, initializer=_end_with_parent)
            future = self._pool.submit(_page, self._address, surface, now)
        try:
            return future.result()
        except BrokenProcessPool as error:  # killed, for example because memory ran out
            self.close()
            raise Unavailable("the process that draws the dashboard has ended") from error

    def close(self) -> None:
        with self._lock:
            if self._pool is not None:
                self._pool.shutdown(cancel_futures=True)
                self._pool = None


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None

    def wait() -> None:
        parent.join()
        os._exit(0)

    threading.Thread(target=wait, daemon=True).start()


def _page(address: str, name: str | None, now: float) -> str:
    from taurank.serve.dashboard import gather, render

    store = _opened(address)
    surfaces = Surfaces(store)
    every = surfaces.all()
    if name is None and not every:
        return render(None, [], now)
    return render(gather(store, surfaces.get(name or every[0].name)), every, now)


_opened = cache(Store)
