"""The HTTP API: roles, limits, errors, and that the same question gets the same list."""

from __future__ import annotations

import base64
import json
import sqlite3
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import event, select
from sqlalchemy.exc import OperationalError
from starlette.testclient import TestClient

from support.shop import NOON, SECRET, SetClock, fitted, loaded, open_shop
from taurank.serve import tables
from taurank.serve.api import Service
from taurank.serve.models import model_bytes
from taurank.serve.security import create_token
from taurank.serve.server import create_app
from taurank.serve.store import Store

DAY = 86400.0


class Shop:
    """A running application and a client for each role."""

    def __init__(self, store: Store, client: TestClient, clock: SetClock, version: str) -> None:
        self.store, self.client, self.clock, self.version = store, client, clock, version
        self.tokens = {role: create_token(store, role)[1] for role in ("app", "analyst", "admin")}

    def call(self, role: str, method: str, path: str, **rest: Any) -> Any:
        headers = {"Authorization": f"Bearer {self.tokens[role]}", **rest.pop("headers", {})}
        return self.client.request(method, path, headers=headers, **rest)

    def ask(self, user: Any, **rest: Any) -> Any:
        return self.call("app", "POST", "/v1/recommend", json={"user_id": user, "surface": "home", **rest})


@pytest.fixture
def shop(sqlite_store: Store, clock: SetClock) -> Iterator[Shop]:
    version = open_shop(sqlite_store)
    service = Service(sqlite_store, SECRET, clock, body_limit=20_000)
    with TestClient(create_app(service), raise_server_exceptions=False) as client:
        loaded(service)
        yield Shop(sqlite_store, client, clock, version)


def test_the_same_question_gets_the_same_list(shop: Shop) -> None:
    users = [str(n) for n in range(30)]
    first = {user: shop.ask(user).json() for user in users}
    shop.clock.now += 3600
    for user in users:
        again = shop.ask(int(user)).json()
        assert again == {**first[user], "repeated": True}
        assert not first[user]["repeated"]
    shop.clock.now += DAY
    following = {user: shop.ask(user).json() for user in users}
    assert any(following[user]["items"] != first[user]["items"] for user in users)
    arms = {answer["arm"] for answer in first.values()}
    assert arms <= {"incumbent", "holdout"}
    for answer in first.values():
        assert [item["rank"] for item in answer["items"]] == list(range(1, len(answer["items"]) + 1))
        assert len(answer["items"]) == (0 if answer["arm"] == "holdout" else 4)
    stored = {row["id"] for row in shop.store.rows(select(tables.decisions.c.id))}
    assert {answer["decision_id"] for answer in [*first.values(), *following.values()]} == stored


def test_outcomes(shop: Shop) -> None:
    event = {"event_id": "e1", "user_id": 5, "item_id": "7", "time": "2023-11-15T13:00:00+01:00", "value": 2.5}
    body = {"events": [event, {"event_id": "e2", "user_id": "5", "item_id": 8}]}
    assert shop.call("app", "POST", "/v1/outcomes", json=body).json() == {"accepted": 2, "duplicates": 0}
    assert shop.call("app", "POST", "/v1/outcomes", json=body).json() == {"accepted": 0, "duplicates": 2}
    rows = {row["event_id"]: row for row in shop.store.rows(select(tables.outcomes))}
    assert rows["e1"] == {"event_id": "e1", "user_id": "5", "item_id": "7", "time": NOON, "value": 2.5}
    assert rows["e2"]["time"] == shop.clock.now


EVENT = {"event_id": "e", "user_id": 1, "item_id": "i"}
ASKED = {"user_id": "u", "surface": "home"}
BAD_REQUESTS: list[Any] = [
    [], {"user_id": "u"}, *({**ASKED, "user_id": user} for user in ("", "a\x00b", True, "x" * 300)),
    {**ASKED, "candidates": "abc"}, {**ASKED, "other": 1},
]  # fmt: skip
BAD_EVENTS: list[Any] = [
    [], [{**EVENT, "time": "2023-11-15T13:00:00"}], [{**EVENT, "time": "9999-12-31T23:00:00Z"}],
    [{**EVENT, "value": True}], [{}] * 9,
]  # fmt: skip


@pytest.mark.parametrize(
    ("path", "body"),
    [("/v1/recommend", body) for body in BAD_REQUESTS] + [("/v1/outcomes", {"events": rows}) for rows in BAD_EVENTS],
)
def test_bad_bodies_are_422(shop: Shop, path: str, body: Any) -> None:
    answer = shop.call("app", "POST", path, json=body)
    assert answer.status_code == 422
    assert answer.json()["detail"].count(";") < 5


JSON = "application/json"


@pytest.mark.parametrize("path", ["/v1/recommend", "/v1/outcomes"])
@pytest.mark.parametrize(
    ("content", "kind"),
    [(b"", JSON), (b"[1,", JSON), (b'{"user_id": NaN}', JSON), (b'{"user_id": "\\ud800", "surface": "home"}', JSON),
     (b"{}", "text/plain"), (b"{}", "")],
)  # fmt: skip
def test_what_is_not_json_is_422(shop: Shop, path: str, content: bytes, kind: str) -> None:
    answer = shop.call("app", "POST", path, content=content, headers={"Content-Type": kind} if kind else {})
    assert answer.status_code == 422
    assert answer.json()["detail"]


def test_every_route_is_declared_once_and_described(shop: Shop) -> None:
    paths = shop.client.get("/openapi.json").json()["paths"]
    for path, answer in (("/v1/recommend", "Recommendation"), ("/v1/outcomes", "OutcomesAnswer")):
        operation = paths[path]["post"]
        assert operation["security"] == [{"token": []}]
        assert operation["responses"]["200"]["content"]["application/json"]["schema"]["$ref"].endswith(answer)
        assert operation["requestBody"]["required"]
        assert shop.call("app", "GET", path).status_code == 405
    assert shop.call("app", "DELETE", "/v1/models").headers["allow"] == "GET, POST"


def test_committed_decisions_are_remembered_and_no_others(sqlite_store: Store, clock: SetClock) -> None:
    open_shop(sqlite_store)
    token = {"Authorization": f"Bearer {create_token(sqlite_store, 'app')[1]}"}
    body = {"user_id": "1", "surface": "home"}
    written: list[str] = []

    @event.listens_for(sqlite_store.engine, "before_cursor_execute")
    def see(_: Any, __: Any, statement: str, *rest: Any) -> None:
        if "decisions" in statement:
            if fails:
                raise RuntimeError("no")
            written.append(statement)

    with TestClient(create_app(Service(sqlite_store, SECRET, clock)), raise_server_exceptions=False) as client:
        fails = True
        assert client.post("/v1/recommend", json=body, headers=token).status_code == 500
        fails = False
        answers = [client.post("/v1/recommend", json=body, headers=token).json() for _ in range(3)]
    assert [answer["repeated"] for answer in answers] == [False, True, True]
    assert len(written) == 1


def test_what_the_command_line_does_an_admin_can_do_over_http(shop: Shop) -> None:
    shop.ask("1")
    assert shop.call("analyst", "POST", "/v1/jobs").status_code == 403
    assert shop.call("admin", "POST", "/v1/jobs").json() == {"home": "0 settled, no challenger"}
    again = shop.call("admin", "POST", "/v1/surfaces/home/settle", json={"time": "2023-11-15T00:30:00Z"})
    assert (again.status_code, "not ended yet" in again.json()["detail"]) == (422, True)
    shop.clock.now += DAY
    again = shop.call("admin", "POST", "/v1/surfaces/home/settle", json={"time": "2023-11-15T00:30:00Z"})
    assert again.json() == {"settled": "2023-11-15T00:00:00Z"}
    listed = shop.call("admin", "GET", "/v1/tokens")
    assert [row["role"] for row in listed.json()] == ["app", "analyst", "admin"]
    assert "digest" not in listed.text
    first = listed.json()[0]["id"]
    assert shop.call("admin", "DELETE", f"/v1/tokens/{first}").json() == {"revoked": first}
    assert shop.call("admin", "DELETE", f"/v1/tokens/{first}").status_code == 404
    assert shop.call("admin", "POST", "/v1/tokens", json={"role": "admin"}).status_code == 405


def test_unknown_surface_and_missing_model(shop: Shop) -> None:
    answer = shop.call("app", "POST", "/v1/recommend", json={"user_id": "u", "surface": "nowhere"})
    assert (answer.status_code, answer.json()["detail"]) == (404, "there is no surface 'nowhere'.")
    shop.call("admin", "PUT", "/v1/surfaces/mail", json={"period": "week", "holdout": 0.0})
    answer = shop.call("app", "POST", "/v1/recommend", json={"user_id": "u", "surface": "mail"})
    assert answer.status_code == 409


def test_roles(shop: Shop) -> None:
    assert shop.client.get("/v1/surfaces").status_code == 401
    assert shop.call("app", "GET", "/v1/surfaces").status_code == 403
    assert shop.call("analyst", "GET", "/v1/surfaces").status_code == 200
    assert shop.call("analyst", "POST", "/v1/surfaces/home/switch", json={"enabled": False}).status_code == 403
    assert shop.call("analyst", "POST", "/v1/recommend", json={}).status_code == 403
    password = base64.b64encode(f"me:{shop.tokens['admin']}".encode()).decode()
    basic = {"Authorization": f"Basic {password}"}
    assert shop.client.get("/v1/surfaces", headers=basic).status_code == 200
    # a browser repeats a password on requests of foreign pages, so it must not change anything
    switched = shop.client.post("/v1/surfaces/home/switch", headers=basic, json={"enabled": False})
    assert switched.status_code == 401


def test_models_and_arms(shop: Shop) -> None:
    content = model_bytes(fitted("popular"))
    row = shop.call("admin", "POST", "/v1/models?note=popular", content=content).json()
    assert row["learner"] == "Popular"
    assert shop.call("admin", "POST", "/v1/models", content=b"junk").status_code == 422
    assert len(shop.call("analyst", "GET", "/v1/models").json()) == 2
    started = shop.call("admin", "POST", "/v1/surfaces/home/challenger", json={"model": row["version"], "share": 0.5})
    assert started.json()["challenger"] == row["version"]
    arms = [shop.ask(str(user)).json()["arm"] for user in range(60)]
    assert set(arms) == {"challenger", "incumbent", "holdout"}
    promoted = shop.call("admin", "POST", "/v1/surfaces/home/promote", json={"model": row["version"]}).json()
    assert (promoted["incumbent"], promoted["challenger"]) == (row["version"], None)
    back = shop.call("admin", "POST", "/v1/surfaces/home/rollback", json={}).json()
    assert back["incumbent"] == shop.version
    events = [line["event"] for line in shop.call("analyst", "GET", "/v1/history").json()]
    assert events[:3] == ["rolled back", "promoted", "challenger"]


def test_the_switch(shop: Shop) -> None:
    users = [str(n) for n in range(10)]
    before = {user: shop.ask(user).json() for user in users}
    shop.call("admin", "POST", "/v1/surfaces/home/switch", json={"enabled": False, "reason": "complaints"})
    for user in [*users, "late"]:
        answer = shop.ask(user).json()
        assert (answer["arm"], answer["items"]) == ("off", [])
    shop.call("admin", "POST", "/v1/surfaces/home/switch", json={"enabled": True})
    assert shop.ask("1").json()["items"] == before["1"]["items"]
    assert shop.ask("late").json()["items"] == []  # decided while it was off


def test_any_propensity_can_be_asked_for(shop: Shop) -> None:
    answer = next(a for a in (shop.ask(str(u)).json() for u in range(10)) if a["items"])
    path = f"/v1/decisions/{answer['decision_id']}"
    items = [str(n) for n in range(30)]
    row = shop.call("analyst", "GET", path, params={"item_id": [*items, "unknown"]}).json()
    shown = {item["item_id"]: item["propensity"] for item in answer["items"]}
    assert {item: row["propensity_of"][item] for item in shown} == shown
    assert sum(row["propensity_of"].values()) == pytest.approx(4)
    assert row["propensity_of"]["unknown"] == 0
    assert shop.call("analyst", "GET", "/v1/decisions/" + "0" * 32).status_code == 404


def test_body_limit(shop: Shop) -> None:
    large = {"user_id": "u", "surface": "home", "exclude": ["x" * 100] * 300}
    assert shop.call("app", "POST", "/v1/recommend", json=large).status_code == 413

    def pieces() -> Iterator[bytes]:
        for _ in range(30):
            yield b" " * 1000

    headers = {"Content-Type": "application/json"}
    assert shop.call("app", "POST", "/v1/recommend", content=pieces(), headers=headers).status_code == 413


def test_rate_limit(sqlite_store: Store, clock: SetClock) -> None:
    open_shop(sqlite_store)
    token = create_token(sqlite_store, "app")[1]
    service = Service(sqlite_store, SECRET, clock, rate=2.0)
    with TestClient(create_app(service)) as client:
        body = {"user_id": "u", "surface": "home"}
        headers = {"Authorization": f"Bearer {token}"}
        codes = [client.post("/v1/recommend", json=body, headers=headers).status_code for _ in range(8)]
        assert codes[0] == 200
        assert 429 in codes


def test_a_database_that_cannot_be_written_is_not_ready(
    sqlite_store: Store, clock: SetClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Locked, with a full disk, or before the models are loaded."""
    open_shop(sqlite_store)
    monkeypatch.setattr("taurank.serve.store.BUSY_SECONDS", 0.2)
    other = Store(sqlite_store.address)
    full: list[Exception] = []

    @event.listens_for(sqlite_store.engine, "before_cursor_execute")
    def fail(_: Any, __: Any, statement: str, *rest: Any) -> None:
        if full and statement.startswith("INSERT"):
            raise full[0]

    service, loads = Service(sqlite_store, SECRET, clock), threading.Event()
    read = service.decider.models.get
    monkeypatch.setattr(service.decider.models, "get", lambda version: loads.wait(60) and read(version))
    with TestClient(create_app(service)) as client:
        early = client.get("/health/ready")
        assert (early.status_code, early.json()) == (503, {"status": "the models are not loaded yet"})
        loads.set()
        loaded(service)
        assert client.get("/health/ready").status_code == 200
        with other.write():
            assert client.get("/health/ready").status_code == 503
        full.append(OperationalError("INSERT", {}, sqlite3.OperationalError("database or disk is full")))
        answer = client.get("/health/ready")
        assert (answer.status_code, answer.json()) == (503, {"status": "the database does not answer"})
        full.clear()
        monkeypatch.setattr("taurank.serve.api.MIN_FREE", 1 << 60)
        assert client.get("/health/ready").json() == {"status": "the disk is full"}
        monkeypatch.undo()
        assert client.get("/health/ready").status_code == 200
    other.close()


def test_headers_health_and_metrics(shop: Shop) -> None:
    shop.ask("1")
    answer = shop.client.get("/health/live")
    assert answer.headers["content-security-policy"].startswith("default-src 'none'")
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert shop.client.get("/health/ready").json() == {"status": "ok", "job_seconds_ago": None}
    assert shop.client.get("/nowhere").headers["x-frame-options"] == "DENY"
    text = shop.call("analyst", "GET", "/metrics").text
    assert 'taurank_requests_total{route="/v1/recommend",status="200"} 1.0' in text
    assert 'taurank_request_seconds_bucket{le="+Inf",route="/v1/recommend"}' in text
    assert shop.client.get("/openapi.json").json()["info"]["title"] == "taurank"


def test_items_and_rules_over_http(shop: Shop) -> None:
    """A sold-out item and an excluded one leave a list that was drawn before; a pin has no propensity."""
    first = next(answer for answer in (shop.ask(str(user)).json() for user in range(20)) if answer["items"])
    user, (gone, other, *rest) = first["user_id"], [item["item_id"] for item in first["items"]]
    body = {"items": [{"item_id": gone, "available": False}, {"item_id": "later", "until": "2999-01-01T00:00:00Z"}]}
    assert shop.call("app", "PUT", "/v1/items", json=body).status_code == 403
    assert shop.call("admin", "PUT", "/v1/items", json=body).json() == {"changed": 2}
    assert {row["item_id"]: row["available"] for row in shop.call("analyst", "GET", "/v1/items").json()} == {
        gone: False, "later": True,
    }  # fmt: skip
    rules = {"pins": ["pin"], "max_shown": 1, "within": 2}
    assert shop.call("admin", "PUT", "/v1/surfaces/home", json={"policy": rules}).status_code == 200
    again = shop.ask(user, exclude=[other]).json()
    assert [item["item_id"] for item in again["items"]] == ["pin", *rest]
    assert [item["rank"] for item in again["items"]] == [1, 2, 3]
    assert again["items"][0]["propensity"] is None
    shop.clock.now += DAY
    following = {item["item_id"] for item in shop.ask(user).json()["items"]}
    assert len(following) == 5
    assert not following & {gone, other, *rest}  # each of them was shown yesterday
    wrong: list[list[dict[str, Any]]] = [[], [{"item_id": "a", "until": 5}], [{"item_id": "a", "x": 1}]]
    for rows in wrong:
        assert shop.call("admin", "PUT", "/v1/items", json={"items": rows}).status_code == 422


def test_requests_have_ids_and_log_lines(
    sqlite_store: Store, clock: SetClock, capsys: pytest.CaptureFixture[str]
) -> None:
    with TestClient(create_app(Service(sqlite_store, SECRET, clock, log_requests=True))) as client:
        assert client.get("/health/live", headers={"X-Request-ID": "order-17"}).headers["x-request-id"] == "order-17"
        forged = client.get("/health/live", headers={"X-Request-ID": "a b"}).headers["x-request-id"]
    line = json.loads(capsys.readouterr().err.splitlines()[0])
    assert {name: line[name] for name in ("event", "id", "route", "status")} == {
        "event": "request", "id": "order-17", "route": "/health/live", "status": 200,
    }  # fmt: skip
    assert len(forged) == 16
