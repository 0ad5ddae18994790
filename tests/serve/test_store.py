"""The store on SQLite and PostgreSQL: first write wins, nothing is lost, errors become Unavailable."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, event, func, select, text
from sqlalchemy.exc import IntegrityError, OperationalError, ProgrammingError
from starlette.exceptions import HTTPException
from starlette.requests import Request

from support.shop import NOON
from taurank.errors import InputError
from taurank.serve import tables
from taurank.serve.middleware import problem
from taurank.serve.recorder import Recorder, Write
from taurank.serve.security import Access, create_token, list_tokens, revoke_token
from taurank.serve.store import Store, Unavailable, secret_for


def decision(key: str, items: str = "[]", chosen: str | None = None) -> dict[str, Any]:
    return {
        "id": key, "surface": "home", "user_id": key, "period": 1, "time": NOON, "arm": "incumbent", "model": "m",
        "policy": "p", "filter": chosen, "shown": items, "propensities": "[]",
    }  # fmt: skip


def outcome(key: str, value: float = 1.0) -> dict[str, Any]:
    return {"event_id": key, "user_id": "u", "item_id": "i", "time": NOON, "value": value}


def count(store: Store, table: Any) -> int:
    return int(store.rows(select(func.count().label("n")).select_from(table))[0]["n"])


def test_the_first_decision_prevails(store: Store) -> None:
    recorder = Recorder(store)
    first = recorder.submit(Write(decision("a", "[1]"), {"id": "f", "body": "{}"})).result()
    again = recorder.submit(Write(decision("a", "[2]"))).result()
    recorder.close()
    assert (first.repeated, again.repeated) == (False, True)
    assert again.decision is not None
    assert again.decision["shown"] == "[1]"
    assert again.decision == {**decision("a", "[1]")}
    assert count(store, tables.decisions) == 1


def test_two_processes_agree_on_one_decision(store: Store) -> None:
    """Two recorders stand for two processes: each has its own thread and connection."""
    other = Store(store.address)
    recorders = [Recorder(store), Recorder(other)]
    futures = [
        [recorder.submit(Write(decision(f"u{n}", f"[{place}]"))) for n in range(300)]
        for place, recorder in enumerate(recorders)
    ]
    answers = [[future.result().decision for future in part] for part in futures]
    for recorder in recorders:
        recorder.close()
    other.close()
    assert answers[0] == answers[1]
    assert count(store, tables.decisions) == 300


def test_events_are_idempotent(store: Store) -> None:
    recorder = Recorder(store)
    first = recorder.submit(Write(events=[outcome("a", 1.0), outcome("b"), outcome("a", 9.0)])).result()
    again = recorder.submit(Write(events=[outcome("a", 5.0), outcome("c")])).result()
    recorder.close()
    assert (first.new_events, again.new_events) == (2, 1)
    values = {row["event_id"]: row["value"] for row in store.rows(select(tables.outcomes))}
    assert values == {"a": 1.0, "b": 1.0, "c": 1.0}


def test_an_order_with_several_items_is_several_events(store: Store) -> None:
    recorder = Recorder(store)
    order = [{**outcome("order"), "item_id": item} for item in ("a", "b", "a")]
    answers = [recorder.submit(Write(events=order)).result().new_events for _ in range(2)]
    recorder.close()
    assert answers == [2, 0]
    assert {row["item_id"] for row in store.rows(select(tables.outcomes))} == {"a", "b"}


def test_one_bad_request_does_not_fail_its_neighbors(store: Store) -> None:
    recorder = Recorder(store)
    gate = threading.Event()
    original = recorder._commit

    def waiting(group: list[Write]) -> None:
        gate.wait(5)
        original(group)

    recorder._commit = waiting  # type: ignore[method-assign]
    requests = [
        Write(events=[outcome("a")]),
        Write(events=[{"event_id": "b", "item_id": "i"}]),
        Write(events=[outcome("c")]),
    ]
    futures = [recorder.submit(request) for request in requests]
    gate.set()
    assert futures[0].result().new_events == 1
    assert futures[2].result().new_events == 1
    with pytest.raises(Exception, match=r"user_id|NOT NULL|null value|required"):
        futures[1].result()
    recorder.close()


def test_full_disk_is_unavailable_and_recovers(sqlite_store: Store) -> None:
    pages = {"limit": 1 << 30}

    @event.listens_for(sqlite_store.engine, "begin")
    def limit(connection: Any) -> None:
        connection.exec_driver_sql(f"PRAGMA max_page_count={pages['limit']}")

    recorder = Recorder(sqlite_store)
    recorder.submit(Write(decision("a"))).result()
    pages["limit"] = 1  # SQLite takes the present size: no further page can be had
    large = [Write(decision(f"x{n}", "[" + "1," * 2000 + "1]")) for n in range(100)]
    answers = [recorder.submit(request).exception() for request in large]
    assert isinstance(answers[-1], Unavailable)
    assert "full" in str(answers[-1])
    stored = count(sqlite_store, tables.decisions)
    pages["limit"] = 1 << 30
    recorder.submit(Write(decision("b"))).result()
    recorder.close()
    assert count(sqlite_store, tables.decisions) == stored + 1


def test_a_locked_database_fails_all_that_wait_at_once(sqlite_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taurank.serve.store.BUSY_SECONDS", 0.3)
    other = Store(sqlite_store.address)
    recorder = Recorder(other)
    with sqlite_store.write():
        began = time.monotonic()
        futures = [recorder.submit(Write(decision(f"a{n}"))) for n in range(20)]
        assert all(isinstance(future.exception(), Unavailable) for future in futures)
        assert time.monotonic() - began < 2
    assert not recorder.submit(Write(decision("a1"))).result().repeated
    recorder.close()
    other.close()


def test_writers_of_sqlite_take_the_lock_at_once(sqlite_store: Store) -> None:
    begun: list[str] = []

    @event.listens_for(sqlite_store.engine, "before_cursor_execute")
    def see(_: Any, __: Any, statement: str, *rest: Any) -> None:
        begun.append(statement)

    with sqlite_store.write() as connection:
        connection.execute(text("SELECT 1"))
    assert begun[0] == "BEGIN IMMEDIATE"
    rows = sqlite_store.rows(text("PRAGMA journal_mode"))
    assert rows[0]["journal_mode"] == "wal"


def test_a_waiting_writer_tries_often(sqlite_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite's own waiting would try a dozen times within its 0.3 seconds, and then every 0.1 seconds."""
    other, tries = Store(sqlite_store.address), iter(range(1000))
    reached = threading.Event()

    @event.listens_for(other.engine, "before_cursor_execute")
    def see(_: Any, __: Any, statement: str, *rest: Any) -> None:
        if statement == "BEGIN IMMEDIATE" and next(tries) == 30:
            reached.set()

    recorder = Recorder(other)
    with sqlite_store.write():
        waiting = recorder.submit(Write(decision("a")))
        assert reached.wait(4)
    assert not waiting.result().repeated
    monkeypatch.setattr("taurank.serve.store.BUSY_SECONDS", 0.02)
    with sqlite_store.write():
        assert isinstance(recorder.submit(Write(decision("b"))).exception(), Unavailable)
    recorder.close()
    other.close()


def asking(header: str, method: str = "POST", address: str = "1.2.3.4") -> Any:
    """A request with this Authorization header."""
    headers = [(b"authorization", header.encode())]
    return Request({"type": "http", "method": method, "path": "/", "headers": headers, "client": (address, 1)})


def refused(access: Access, header: str, role: str = "analyst", **rest: Any) -> int:
    """The status of the refusal; 0 if there is none."""
    try:
        asyncio.run(access.check(asking(header, **rest), role))
    except HTTPException as error:
        return error.status_code
    return 0


def test_tokens(store: Store) -> None:
    key, token = create_token(store, "analyst", "Ann")
    access = Access(store, 100.0)
    assert refused(access, f"Bearer {token}") == 0
    assert refused(access, f"Bearer {token}", "admin") == 403
    assert [refused(access, header) for header in ("Bearer wrong", token, "")] == [401, 401, 401]
    assert token not in str(store.rows(select(tables.tokens)))
    revoke_token(store, key)
    assert refused(Access(store, 100.0), f"Bearer {token}") == 401
    assert list_tokens(store)[0]["revoked"] is not None
    with pytest.raises(InputError, match="no valid token"):
        revoke_token(store, key)
    with pytest.raises(InputError, match="role"):
        create_token(store, "king")


def test_a_token_is_known_until_it_is_read_again(sqlite_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """While one request reads the tokens again, others go on with what is known."""
    token = create_token(sqlite_store, "app")[1]
    access, now, looked_up = Access(sqlite_store, 1e6), [100.0], []
    monkeypatch.setattr("taurank.serve.security.time.monotonic", lambda: now[0])
    rows = sqlite_store.rows

    def slow(statement: Any) -> Any:
        looked_up.append(now[0])
        if len(looked_up) == 2:
            assert refused(access, f"Bearer {token}", "app") == 0
        return rows(statement)

    monkeypatch.setattr(sqlite_store, "rows", slow)
    for seconds in (0, 1, 6, 0):
        now[0] += seconds
        assert refused(access, f"Bearer {token}", "app") == 0
    assert looked_up == [100.0, 107.0]


def test_guesses_do_not_lock_out_valid_tokens(sqlite_store: Store) -> None:
    """Tokens are read a few times a second, however many are guessed; a new one is found among the guesses."""
    access, read = Access(sqlite_store, 1e6), []
    rows = sqlite_store.rows
    sqlite_store.rows = lambda statement: read.append(1) or rows(statement)  # type: ignore[method-assign, func-returns-value]
    token = create_token(sqlite_store, "app")[1]

    async def burst() -> list[Any]:
        guesses = [access.check(asking(f"Bearer {n}"), "app") for n in range(60)]
        valid = [access.check(asking(f"Bearer {token}"), "app") for _ in range(60)]
        return await asyncio.gather(*guesses, *valid, return_exceptions=True)

    answers = asyncio.run(burst())
    assert [getattr(answer, "status_code", 0) for answer in answers] == [401] * 60 + [0] * 60
    assert len(read) <= 2


def test_no_token_is_called_invalid_while_the_tokens_cannot_be_read(sqlite_store: Store) -> None:
    """Requests that wait for one reading of a lost database share its failure; the next reading finds the token."""
    access, token, read = Access(sqlite_store, 1e6), create_token(sqlite_store, "app")[1], []
    rows = sqlite_store.rows

    def lost(statement: Any) -> Any:
        read.append(1)
        raise Unavailable("the database does not answer")

    async def bursts() -> list[list[Any]]:
        answers = []
        for read_rows in (lost, rows):
            sqlite_store.rows = read_rows  # type: ignore[method-assign]
            valid = [access.check(asking(f"Bearer {token}"), "app") for _ in range(20)]
            answers.append(await asyncio.gather(*valid, return_exceptions=True))
        return answers

    without, again = asyncio.run(bursts())
    assert all(isinstance(answer, Unavailable) for answer in without)
    assert len(read) <= 2
    assert again == [None] * 20


def test_bad_addresses(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not a folder or an address"):
        Store("mysql://x")
    with pytest.raises(InputError, match=r"taurank server --store .*nowhere init"):
        Store(str(tmp_path / "nowhere"))
    assert not (tmp_path / "nowhere").exists()


def test_a_store_is_created_once(store: Store) -> None:
    salt = store.rows(select(tables.settings))
    with pytest.raises(InputError, match="already"):
        Store(store.address, create=True)
    assert store.rows(select(tables.settings)) == salt


def test_an_error_of_ours_is_not_a_busy_database(store: Store) -> None:
    with pytest.raises((OperationalError, ProgrammingError)):
        store.rows(text("SELECT nothing FROM nowhere"))
    with pytest.raises(IntegrityError), store.write() as connection:
        connection.execute(tables.settings.insert(), {"name": "schema", "value": "1"})


def test_secret_file(sqlite_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TAURANK_SECRET", raising=False)
    folder = Path(sqlite_store.address)
    secret = secret_for(sqlite_store.address)
    assert secret == secret_for(sqlite_store.address)
    assert len(list(folder.iterdir())) >= 2
    assert not any(path.stat().st_mode & 0o077 for path in folder.iterdir())  # the database is its owner's, too
    (folder / "secret").write_text("abc")
    with pytest.raises(InputError, match="hexadecimal"):
        secret_for(sqlite_store.address)


def test_an_error_shows_no_address() -> None:
    store = Store.__new__(Store)
    store.engine = create_engine("postgresql+psycopg://ann:password@127.0.0.1:9/none")
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1") as error:
        store.rows(text("SELECT 1"))
    request = Request({"type": "http", "method": "GET", "path": "/", "headers": []})
    assert bytes(problem(request, error.value).body) == b'{"detail":"the database does not answer."}'
