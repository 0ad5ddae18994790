"""The client: it repeats what got no answer, nothing counts twice, and a fallback is never a recommendation."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from closed_loop.over_http import serving
from support.shop import SECRET, SetClock, open_shop
from taurank.serve import client
from taurank.serve.api import Service
from taurank.serve.client import Client, Event, Health, Item, ServiceError
from taurank.serve.security import create_token
from taurank.serve.store import Store

LIST = {
    "decision_id": "d", "period": "p", "arm": "incumbent", "model": "m", "repeated": False,
    "items": [{"item_id": "tea", "rank": 1, "propensity": 0.5, "new": "ignored"}],
}  # fmt: skip


@contextmanager
def answering(*answers: tuple[int, Any, dict[str, str]]) -> Iterator[tuple[str, list[Any]]]:
    """A server that gives these answers, one per connection (None: it hangs up), and what it was sent."""
    waiting, seen = iter(answers), []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            seen.append((self.path, json.loads(self.rfile.read(int(self.headers["Content-Length"])))))
            status, body, headers = next(waiting)
            if status:
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write((body if isinstance(body, str) else json.dumps(body)).encode())

        log_message: Callable[..., None] = lambda *_: None

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.handle_error = lambda *_: None  # type: ignore[method-assign]  # a client that hung up
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/shop/", seen
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses that would have been made."""
    made: list[float] = []
    monkeypatch.setattr("taurank.serve.client.time.sleep", made.append)
    return made


def test_what_got_no_answer_is_sent_again(pauses: list[float]) -> None:
    locked = (503, {"detail": "locked."}, {"Retry-After": "7"})
    with answering((0, None, {}), (502, "<html>", {}), locked, (200, LIST, {})) as (address, seen):
        asked = Client(address, "t", attempts=4, jitter=random.Random(3)).recommend("ann", exclude=["jam"])
    assert (asked.items, asked.decision_id) == ((Item("tea", 1, 0.5),), "d")
    assert seen == [("/shop/v1/recommend", {"user_id": "ann", "surface": "home", "exclude": ["jam"]})] * 4
    drawn = random.Random(3)
    assert pauses == [drawn.uniform(0, 0.2), drawn.uniform(0, 0.4), 7.0]


def test_a_fallback_is_for_silence_and_not_for_refusals(pauses: list[float]) -> None:
    with answering((0, None, {}), (429, {"detail": "slow down."}, {})) as (address, seen):
        given = Client(address, "t", attempts=2).recommend("ann", fallback=["tea", 7])
    assert given == client.Recommendation((Item("tea", 1), Item("7", 2)))
    assert len(seen) == 2
    with answering((404, {"detail": "there is no surface."}, {})) as (address, seen):
        with pytest.raises(ServiceError, match=r"404: there is no surface\.") as error:
            Client(address, "t").recommend("ann", fallback=["tea"])
        assert error.value.status == 404
    assert len(seen) == 1
    with pytest.raises(ServiceError, match="does not answer: ConnectionRefusedError") as error:
        Client(address, "t").recommend("ann")  # nobody listens there any more
    assert error.value.status is None
    assert Client(address, "t").health().ready is False


def test_a_slow_answer_is_none(pauses: list[float]) -> None:
    asked = threading.Event()
    with answering((200, "", {})) as (address, _):
        late = Client(address, "t", timeout=0.05, attempts=1)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(BaseHTTPRequestHandler, "send_response", lambda *_: asked.wait(10))
            with pytest.raises(ServiceError, match="TimeoutError"):
                late.report([Event("ann", "tea")])
            asked.set()


def test_against_the_service(sqlite_store: Store) -> None:
    """Events count once however often they are reported, in batches as large as the service accepts."""
    open_shop(sqlite_store, holdout=0.0)
    token, clock = create_token(sqlite_store, "app")[1], SetClock()
    with serving(Service(sqlite_store, SECRET, clock)) as port:
        shop = Client(f"http://127.0.0.1:{port}", token, timeout=60)
        first, again = shop.recommend(3, candidates=[1, 2, 3, 4, 5, 6], exclude=["2"]), shop.recommend(3)
        assert (first.repeated, again.repeated) == (False, True)
        assert first.items == again.items
        assert {item.item_id for item in first.items} < set("13456")
        time = datetime.fromtimestamp(clock.now, UTC)
        events = [Event(3, n, "order-1", 2.5, time) for n in range(1500)] + [Event(3, 7), Event(3, 7)]
        assert [shop.report(events), shop.report(events), shop.report([])] == [1502, 0, 0]
        assert shop.health() == Health(True, "ok", None)
        with pytest.raises(ServiceError, match="401: a valid token"):
            Client(f"http://127.0.0.1:{port}", "guess").recommend(3, fallback=[1])


def test_an_address_is_checked() -> None:
    for address in ("127.0.0.1:8000", "ftp://shop", "http://"):
        with pytest.raises(ValueError, match="not an address"):
            Client(address, "t")


def test_only_pythons_own_library_is_needed() -> None:
    script = f"import sys, runpy; runpy.run_path({client.__file__!r}); print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-I", "-S", "-c", script], capture_output=True, text=True, check=True)
    assert "taurank" not in modules.stdout
