"""Deletion: a user, a surface, a model, and old decisions; settled sums stay."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from sqlalchemy import func, select

from support.shop import DAY, NOON, SetClock, decider, open_shop, stored, visit
from taurank.serve import tables
from taurank.serve.imports import put_features, read_features
from taurank.serve.retention import delete_model, delete_surface, forget_user, prune
from taurank.serve.settlement import export, read_measures, settle, settle_again
from taurank.serve.store import Conflict, NotFound, Store
from taurank.serve.surfaces import promote, put_surface, switch

ABOUT_USERS = (tables.decisions, tables.outcomes, tables.results, tables.user_sums)


def count(store: Store, table: object) -> int:
    return int(store.rows(select(func.count().label("n")).select_from(table))[0]["n"])  # type: ignore[arg-type]


def test_a_user_is_forgotten(store: Store) -> None:
    """No table, export or further figure has her; nobody else loses a row; the sums stay."""
    open_shop(store)
    clock = SetClock()
    made = decider(store, clock)
    for _ in range(2):
        visit(made, clock, np.random.default_rng(0))
    settle(made, made.surfaces.get("home"), clock.now)
    put_features(store, "users", pd.DataFrame({"user_id": ["7", "8"], "age": [30, 40]}))
    before = {table.name: count(store, table) for table in ABOUT_USERS}
    gone = forget_user(store, "7", clock.now)
    for table in ABOUT_USERS:
        assert not store.rows(select(table).where(table.c.user_id == "7"))
        assert count(store, table) == before[table.name] - gone[table.name]
    assert read_features(store)[1] == {"users": ["8"]}
    decisions = {row["id"] for row in store.rows(select(tables.decisions.c.id))}
    assert {row["decision"] for row in store.rows(select(tables.positives))} <= decisions
    made_log = export(made, made.surfaces.get("home"))
    assert "7" not in made_log.to_frame()["user_id"].tolist()
    assert "7" not in made_log.users.values.to_pylist()
    with store.read() as connection:
        life = read_measures(connection, "home")["life"]
    assert life.arm("recommended").visits + life.arm("holdout").visits == 80
    with pytest.raises(NotFound, match="nothing about this user"):
        forget_user(store, "7", clock.now)
    visit(made, clock, np.random.default_rng(1))  # she comes back
    assert settle(made, made.surfaces.get("home"), clock.now) == 1


def test_old_decisions_are_pruned_and_sums_stay(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taurank.serve.retention.CHUNK", 7)
    open_shop(store)
    clock = SetClock()
    made = decider(store, clock)
    for _ in range(6):
        visit(made, clock, np.random.default_rng(0))
    surface = made.surfaces.get("home")
    assert prune(store, clock.now) == 0  # everything is kept unless a surface says otherwise
    put_surface(store, "home", {"retention": 2}, clock.now)
    made.surfaces.refresh()
    assert prune(store, clock.now + 100 * DAY) == 0  # what has not been settled has not been counted
    settle(made, surface, clock.now)
    figures = store.rows(select(tables.settled)), store.rows(select(tables.measures))
    assert prune(store, clock.now) > 0
    numbers = {row["period"] for row in store.rows(select(tables.decisions.c.period))}
    assert numbers == {surface.periods.number(clock.now) - day for day in (1, 2)}
    assert count(store, tables.results) == count(store, tables.decisions) == 80
    assert min(row["time"] for row in store.rows(select(tables.outcomes.c.time))) >= clock.now - 3 * DAY
    assert figures == (store.rows(select(tables.settled)), store.rows(select(tables.measures)))
    assert export(made, surface).n_times == 2
    with pytest.raises(Conflict, match="no decision of the period"):
        settle_again(made, "home", NOON, clock.now)
    assert json.loads(figures[0][0]["figures"])["lists"] > 0


def test_surfaces_and_models_are_deleted_when_nothing_needs_them(sqlite_store: Store) -> None:
    first = open_shop(sqlite_store)
    second, clock = stored(sqlite_store), SetClock()
    visit(decider(sqlite_store, clock), clock, np.random.default_rng(0))
    promote(sqlite_store, "home", second, "", clock.now)
    with pytest.raises(Conflict, match="surface 'home' uses"):
        delete_model(sqlite_store, first, clock.now)  # a roll-back would need it
    with pytest.raises(Conflict, match="switch it off"):
        delete_surface(sqlite_store, "home", clock.now)
    switch(sqlite_store, "home", False, "", clock.now)
    put_surface(sqlite_store, "mail", {})
    delete_surface(sqlite_store, "home", clock.now)
    assert [row["name"] for row in sqlite_store.rows(select(tables.surfaces.c.name))] == ["mail"]
    assert count(sqlite_store, tables.decisions) == count(sqlite_store, tables.user_sums) == 0
    delete_model(sqlite_store, first, clock.now)
    with pytest.raises(NotFound):
        delete_model(sqlite_store, first, clock.now)
    assert count(sqlite_store, tables.models) == count(sqlite_store, tables.model_files) == 1
