"""What must survive: kill −9 under load, a lost database, and whatever schemathesis sends."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select
from starlette.testclient import TestClient

from support.postgresql import start_postgresql
from support.shop import SECRET, SetClock, open_shop
from taurank.serve import tables
from taurank.serve.api import Service
from taurank.serve.security import create_token
from taurank.serve.server import create_app
from taurank.serve.store import Store

KILLS = 10


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def server(address: str, port: int) -> AbstractContextManager[subprocess.Popen[bytes]]:
    """A server process; uvicorn without the scheduler, to start fast."""
    options = ["--port", str(port), "--log-level", "error", "--no-access-log"]
    return running(address, port, ["uvicorn", "taurank.serve.server:from_environment", "--factory", *options])


@contextmanager
def running(address: str, port: int, command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    """A module of Python as a process that serves on a port."""
    settings = {**os.environ, "TAURANK_STORE": address, "TAURANK_SECRET": SECRET.hex()}
    process = subprocess.Popen([sys.executable, "-m", *command], env=settings, stdout=subprocess.DEVNULL)
    try:
        for _ in range(2400):
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                time.sleep(0.05)
        yield process
    finally:
        process.kill()
        process.wait()


def call(port: int, method: str, path: str, token: str, body: Any = None, **headers: str) -> tuple[int, str]:
    """Status and text of an answer, over a connection of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        given = {"Authorization": f"Bearer {token}", "Content-Type": "application/json", **headers}
        connection.request(method, path, None if body is None else json.dumps(body), given)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


@pytest.mark.integration
def test_workers_count_together_and_end_with_a_killed_parent(sqlite_store: Store) -> None:
    open_shop(sqlite_store)
    token, port = create_token(sqlite_store, "admin")[1], free_port()
    with running(sqlite_store.address, port, ["taurank", "serve", "--port", str(port), "--workers", "2"]) as process:
        for user in range(40):
            assert call(port, "POST", "/v1/recommend", token, {"user_id": user, "surface": "home"})[0] == 200
        counts = re.findall(r"^taurank_decisions_total{.*} (\d+)", call(port, "GET", "/metrics", token)[1], re.M)
        assert sum(map(int, counts)) == 40
        assert len(spawned(process.pid)) == 3  # two workers and the job
        children = spawned(process.pid)
        process.kill()
        wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in children))
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(("127.0.0.1", port), 1)
    with running(sqlite_store.address, port, ["taurank", "serve", "--port", str(port)]):
        assert call(port, "GET", "/health/live", "")[0] == 200


@pytest.mark.integration
def test_a_killed_job_starts_again_and_slow_clients_are_sent_away(sqlite_store: Store) -> None:
    open_shop(sqlite_store)
    token, port = create_token(sqlite_store, "app")[1], free_port()
    with running(sqlite_store.address, port, ["taurank", "serve", "--port", str(port)]) as process:
        slow = socket.create_connection(("127.0.0.1", port), 30)
        slow.sendall(b"GET /health/live HTTP/1.1\r\nHost: ")
        slower = socket.create_connection(("127.0.0.1", port), 30)
        head = f"POST /v1/outcomes HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {token}\r\nContent-Length: 9000\r\n"
        slower.sendall(head.encode() + b"Content-Type: application/json\r\n\r\n{")
        wait_until(lambda: json.loads(call(port, "GET", "/health/ready", "")[1]).get("job_seconds_ago") is not None)
        (job,) = spawned(process.pid)
        os.kill(job, signal.SIGKILL)
        wait_until(lambda: len(set(spawned(process.pid)) - {job}) == 1)
        assert slow.recv(100) == b""
        assert slower.recv(100) == b""  # it never sent its body
        process.terminate()
        assert process.wait(30) in (0, 143, -signal.SIGTERM)
    slow.close()
    slower.close()


def spawned(parent: int) -> list[int]:
    """The processes that a server has started, whichever thread did."""
    lists = [path.read_text() for path in Path(f"/proc/{parent}/task").glob("*/children")]
    children = [int(pid) for text in lists for pid in text.split()]
    return [pid for pid in children if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def wait_until(done: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end
        time.sleep(0.1)


class Sender(threading.Thread):
    """Sends until it is stopped, repeats what was not acknowledged, and notes what was."""

    def __init__(self, port: int, token: str, name: str) -> None:
        super().__init__(daemon=True)
        self.port, self.token, self.label = port, token, name
        self.stopped = False
        self.events: list[str] = []
        self.lists: dict[str, tuple[str, list[str]]] = {}

    def run(self) -> None:
        number = 0
        while not self.stopped:
            event, user = f"{self.label}-{number}", f"{self.label}-{number // 2}"  # every user asks twice
            events = [{"event_id": event, "user_id": user, "item_id": "1"}]
            if self._acknowledged("/v1/outcomes", {"events": events}) is not None:
                self.events.append(event)
            answer = self._acknowledged("/v1/recommend", {"user_id": user, "surface": "home"})
            if answer is not None:
                items = [item["item_id"] for item in answer["items"]]
                assert self.lists.setdefault(user, (answer["decision_id"], items)) == (answer["decision_id"], items)
            number += 1

    def _acknowledged(self, path: str, body: Any) -> Any:
        """The answer of the first attempt that is acknowledged; None if it was stopped before."""
        while not self.stopped:
            try:
                connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
                headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
                connection.request("POST", path, json.dumps(body), headers)
                answer = connection.getresponse()
                content = answer.read()
                if answer.status == 200:
                    return json.loads(content)
            except (OSError, http.client.HTTPException):
                time.sleep(0.02)
            finally:
                connection.close()
        return None


@pytest.mark.integration
def test_killed_under_load(address: str) -> None:
    """Ten kills: every acknowledged row is there, once, and repeated questions got the same list."""
    store = Store(address, create=True)
    open_shop(store)
    token, port = create_token(store, "app")[1], free_port()
    senders = [Sender(port, token, f"s{n}") for n in range(4)]
    for kill in range(KILLS):
        with server(address, port) as process:
            if kill == 0:
                for sender in senders:
                    sender.start()
            wanted, until = sum(len(sender.events) for sender in senders) + 20, time.monotonic() + 30
            while sum(len(sender.events) for sender in senders) < wanted and time.monotonic() < until:
                time.sleep(0.003)
            process.send_signal(signal.SIGKILL)
            process.wait()
    for sender in senders:
        sender.stopped = True
        sender.join(20)
    events = [row["event_id"] for row in store.rows(select(tables.outcomes))]
    decisions = {row["id"]: row for row in store.rows(select(tables.decisions))}
    store.close()
    acknowledged = [event for sender in senders for event in sender.events]
    assert len(acknowledged) >= 20 * KILLS
    assert set(acknowledged) <= set(events)
    assert len(events) == len(set(events))
    for sender in senders:
        for user, (key, items) in sender.lists.items():
            assert decisions[key]["user_id"] == user
            assert json.loads(decisions[key]["shown"]) == items


@pytest.mark.integration
def test_a_lost_database_is_503_and_comes_back() -> None:
    with tempfile.TemporaryDirectory(prefix="taurank-pg-", ignore_cleanup_errors=True) as folder:
        database = start_postgresql(folder)
        store = Store(str(database.get_uri()), create=True)
        open_shop(store)
        token = create_token(store, "app")[1]
        headers = {"Authorization": f"Bearer {token}"}
        body = {"user_id": "1", "surface": "home"}
        with TestClient(create_app(Service(store, SECRET, SetClock())), raise_server_exceptions=False) as client:
            before = client.post("/v1/recommend", json=body, headers=headers)
            assert before.status_code == 200
            database._stop()
            lost = client.post("/v1/recommend", json={**body, "user_id": "2"}, headers=headers)
            assert lost.status_code == 503
            assert lost.headers["retry-after"] == "1"
            assert client.get("/health/ready").status_code == 503
            assert client.get("/health/live").status_code == 200
            database.start()
            time.sleep(1.1)  # settings are read anew once a second
            again = client.post("/v1/recommend", json=body, headers=headers)
            assert again.status_code == 200
            assert again.json()["items"] == before.json()["items"]
            assert client.get("/health/ready").status_code == 200
        database._stop()


@pytest.mark.integration
def test_schemathesis_finds_nothing(sqlite_store: Store, tmp_path: Path) -> None:
    pytest.importorskip("schemathesis", reason="schemathesis is not installed")
    open_shop(sqlite_store)
    token, port = create_token(sqlite_store, "admin")[1], free_port()
    command = [sys.executable, "-m", "schemathesis.cli", "run", f"http://127.0.0.1:{port}/openapi.json"]
    command += [
        "--header",
        f"Authorization: Bearer {token}",
        "--exclude-checks",
        "positive_data_acceptance",  # no schema can say what a model file is, or that the floor is below the ceiling
    ]
    command += ["--max-examples", "25", "--seed", "1", "--phases", "examples,coverage,fuzzing"]
    command += ["--request-timeout", "60"]  # the first list compiles the policy
    with server(sqlite_store.address, port):
        answer = subprocess.run(command, capture_output=True, text=True, timeout=500, cwd=tmp_path)
    assert answer.returncode == 0, answer.stdout[-3000:]
    assert "Test cases" in answer.stdout or "passed" in answer.stdout
