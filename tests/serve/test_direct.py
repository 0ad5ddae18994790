"""The short way to the routes under load gives the answers of the long way, through FastAPI."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import event
from starlette.testclient import TestClient

from support.shop import SECRET, SetClock, open_shop
from taurank.serve.api import create_app
from taurank.serve.auth import create_token
from taurank.serve.direct import Direct
from taurank.serve.service import Service
from taurank.serve.store import Store

PATHS = ("/v1/recommend", "/v1/outcomes")
EVENT = {"event_id": "e", "user_id": 1, "item_id": "i"}
BODIES: list[Any] = [
    {"user_id": "1", "surface": "home"},
    {"user_id": 2, "surface": "home", "candidates": ["1", 2, "new"], "exclude": [2]},
    {"user_id": 1.5, "surface": "home"},
    {"user_id": "1", "surface": "nowhere"},
    {"user_id": "1", "surface": "mail"},  # without a model
    {"user_id": "1", "surface": "home", "exclude": None},
    {"events": [EVENT, EVENT]},
    {"events": [{**EVENT, "event_id": "f", "time": "2023-11-15T13:00:00+01:00", "value": 2.5}]},
    {"events": [{**EVENT, "time": "2023-11-15T13:00:00"}, {**EVENT, "value": True}, {}, {}, {}]},
    {"events": [{**EVENT, "time": "9999-12-31T23:00:00Z"}]},
    {"events": []},
    [],
]
JSON = "application/json"
RAW = [(b"", JSON), (b"{", JSON), (b"[1,", JSON), (b"{}", "text/plain"), (b"{}", ""), (b'{"user_id": NaN}', JSON)]


@pytest.fixture
def clients(sqlite_store: Store, clock: SetClock) -> Iterator[tuple[TestClient, TestClient, dict[str, str]]]:
    """The application, its twin without the short way, and a token."""
    open_shop(sqlite_store)
    token = {"Authorization": f"Bearer {create_token(sqlite_store, 'app')[1]}"}
    short, long = (create_app(Service(store, SECRET, clock)) for store in (sqlite_store, Store(sqlite_store.address)))
    long.user_middleware = [part for part in long.user_middleware if part.cls != Direct]  # type: ignore[comparison-overlap]
    with TestClient(short) as first, TestClient(long) as second:
        yield first, second, token


def places(answer: Any) -> list[str]:
    """What the sentences are about; pydantic words them differently for JSON ("array") and for Python ("list")."""
    return [part.partition(":")[0] for part in answer.json()["detail"].split("; ")]


def test_same_answers(clients: tuple[TestClient, TestClient, dict[str, str]]) -> None:
    short, long, token = clients
    for path in PATHS:
        for body in BODIES:
            first, second = (client.post(path, json=body, headers=token) for client in (short, long))
            assert first.status_code == second.status_code, body
            if first.status_code != 200:
                assert places(first) == places(second)
            assert set(first.headers) == set(second.headers)
    first, second = (client.post(PATHS[0], json=BODIES[1], headers=token).json() for client in (short, long))
    assert first == second
    assert first["repeated"]


def test_same_refusals(clients: tuple[TestClient, TestClient, dict[str, str]]) -> None:
    short, long, token = clients
    for content, kind in RAW:
        headers = {**token, "Content-Type": kind} if kind else token
        codes = {client.post(PATHS[0], content=content, headers=headers).status_code for client in (short, long)}
        assert codes == {422}
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic " + "x" * 20}):
        first, second = (client.post(PATHS[0], json=BODIES[0], headers=headers) for client in (short, long))
        assert (first.status_code, first.json()) == (second.status_code, second.json())
        assert first.headers["www-authenticate"] == second.headers["www-authenticate"]
    assert {client.get(PATHS[0], headers=token).status_code for client in (short, long)} == {405}


def test_committed_decisions_are_remembered_and_no_others(sqlite_store: Store, clock: SetClock) -> None:
    open_shop(sqlite_store)
    token = {"Authorization": f"Bearer {create_token(sqlite_store, 'app')[1]}"}
    written: list[str] = []

    @event.listens_for(sqlite_store.engine, "before_cursor_execute")
    def see(_: Any, __: Any, statement: str, *rest: Any) -> None:
        if "decisions" in statement:
            if fails:
                raise RuntimeError("no")
            written.append(statement)

    with TestClient(create_app(Service(sqlite_store, SECRET, clock)), raise_server_exceptions=False) as client:
        fails = True
        assert client.post(PATHS[0], json=BODIES[0], headers=token).status_code == 500
        fails = False
        answers = [client.post(PATHS[0], json=BODIES[0], headers=token).json() for _ in range(3)]
    assert [answer["repeated"] for answer in answers] == [False, True, True]
    assert len(written) == 1
