"""Rules keep π exact: draws have the promised frequencies, decisions replay to the bit, nothing forbidden comes."""

from __future__ import annotations

import json
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sqlalchemy import create_engine, select, text

from support.shop import DAY, NOON, SECRET, SetClock, decider, open_shop, small_world, stored, visit, write
from taurank.errors import InputError
from taurank.serve import policy as kernels
from taurank.serve import tables
from taurank.serve.decisions import Decider
from taurank.serve.imports import import_outcomes, parsed, put_features, query_rows, read_features, rows_of
from taurank.serve.items import list_items, put_items
from taurank.serve.policy import Policy
from taurank.serve.retrain import RetrainConfig
from taurank.serve.schemas import Item
from taurank.serve.settlement import export, settle
from taurank.serve.store import Store
from taurank.serve.surfaces import put_surface, start_challenger

LIMITED = Policy(k=4, floor=0.01, temperature=0.3, per_category=1)


def category_of(items: int, categories: int) -> np.ndarray:
    """Three items in four belong to a category; each of the others is one of its own."""
    return np.where(np.arange(items) % 4 == 3, np.arange(items), items + np.arange(items) % categories)


@pytest.mark.parametrize(("k", "per_category"), [(4, 1), (5, 2), (9, 1), (30, 3)])
def test_capped_probabilities(k: int, per_category: int) -> None:
    """Sums stay within the caps, and within a category the better item has the larger π."""
    random = np.random.default_rng(k)
    for items, categories in ((20, 3), (300, 7), (12, 1), (1, 1), (0, 1)):
        scores, category = random.standard_normal(items), category_of(items, categories)
        chosen = Policy(k=k, floor=0.01, ceiling=0.9, temperature=0.3, per_category=per_category)
        pi = chosen.probabilities(scores, category)
        sums = np.bincount(category, pi)
        room = np.minimum(np.bincount(category) * 0.9, per_category).sum()
        assert pi.sum() == pytest.approx(min(k, np.floor(room)))
        assert (sums <= per_category + 1e-9).all()
        assert ((pi > 0) & (pi <= 0.9)).all() or not pi.any()
        for each in np.unique(category):
            order = np.argsort(scores[category == each])
            assert (np.diff(pi[category == each][order]) >= -1e-12).all()


def test_a_cap_that_does_not_bind_changes_no_bit() -> None:
    scores, category = np.random.default_rng(0).standard_normal(40), category_of(40, 5)
    plain, capped = (Policy(k=4, per_category=most) for most in (0, 4))
    assert np.array_equal(plain.probabilities(scores), capped.probabilities(scores, category))


@pytest.mark.statistical
@pytest.mark.parametrize("most", [1, 2])
def test_draws_by_category_have_the_promised_frequencies(most: int) -> None:
    items, draws, k = 22, 200_000, 6
    category = category_of(items, 5)
    chosen = LIMITED.model_copy(update={"per_category": most, "k": k})
    pi = chosen.probabilities(np.random.default_rng(1).standard_normal(items), category)
    counts = np.zeros(items)
    for n in range(draws):
        shown = chosen.draw(pi, kernels.stream_key(SECRET, "home", str(n), 0), category)
        counts[shown] += 1
        assert len(shown) == k
        assert np.bincount(category[shown]).max() <= most
    z = (counts - draws * pi) / np.sqrt(draws * pi * (1 - pi))
    assert np.abs(z).max() < 4.5


def test_decisions_under_all_rules_are_replayed(sqlite_store: Store) -> None:
    """While the item table changes: sold-out, ended, blocked and pinned items are never drawn, and π is exact."""
    open_shop(sqlite_store, holdout=0.1)
    rules = {"k": 4, "per_category": 1, "blocked": ["3"], "pins": ["5"], "max_shown": 2, "within": 4}
    put_surface(sqlite_store, "home", {"policy": rules})
    table = [Item(item_id=str(n), category=f"c{n % 6}") for n in range(30) if n % 3]
    put_items(sqlite_store, [*table, Item(item_id="new", category="c1")])
    clock = SetClock()
    made, rows = decider(sqlite_store, clock), []
    lists: dict[int, list[set[str]]] = {}
    for day in range(6):
        clock.now = NOON + day * DAY
        put_items(
            sqlite_store,
            [Item(item_id="7", available=day % 2 == 0), Item(item_id="8", until=datetime(2023, 11, 17, tzinfo=UTC))],
        )
        made.refresh()
        for user in range(40):
            candidates = [str(n) for n in range(12)] if user % 5 == 0 else None
            row: Any = write(sqlite_store, made.decide("home", str(user), candidates, ["9"] if user % 4 else []))[
                0
            ].decision
            shown = json.loads(row["shown"])
            assert not {"3", "5"} & set(shown)
            assert ("7" not in shown) or day % 2 == 0
            assert ("8" not in shown) or clock.now < 1_700_179_200
            categories = [int(item) % 6 for item in shown if item != "new" and int(item) % 3]
            assert len(categories) == len(set(categories))
            lists.setdefault(user, []).append(set(shown))
            rows.append(row)
    for mine in lists.values():
        for first in range(3):
            window = [item for shown in mine[first : first + 4] for item in shown]
            assert max(map(window.count, window), default=0) <= 2
    other = Decider(sqlite_store, SECRET, SetClock(NOON + 100 * DAY))
    for row in rows:
        items, pi = other.propensities(row)
        shown, stored = json.loads(row["shown"]), json.loads(row["propensities"])
        assert other.replay(row) == (shown, stored)
        assert stored == [pi[list(items).index(item)] for item in shown]
        assert other.propensities_for(row, ["3", "5", "nothing"]) == {}
    assert any("new" in other.propensities(row)[0] for row in rows)


def test_what_an_answer_shows(sqlite_store: Store) -> None:
    """Pins first; exclusions, sold-out and blocked items also go from a list that was drawn earlier."""
    open_shop(sqlite_store, holdout=0.0)
    put_surface(sqlite_store, "home", {"policy": {"pins": ["29"]}})
    made = decider(sqlite_store)
    row: Any = write(sqlite_store, made.decide("home", "1"))[0].decision
    drawn = json.loads(row["shown"])

    def listed(*exclude: str) -> list[str]:
        made.refresh()
        return [item for item, _ in made.listed(row, made.surfaces.get("home"), exclude)]

    assert listed() == ["29", *drawn]
    assert made.listed(row, made.surfaces.get("home"), ())[0] == ("29", None)
    assert listed(drawn[0], "29") == drawn[1:]
    put_items(sqlite_store, [Item(item_id=drawn[1], available=False)])
    put_surface(sqlite_store, "home", {"policy": {"blocked": [drawn[2]]}})
    assert listed() == ["29", drawn[0], drawn[3]]


def test_a_rule_does_not_end_a_trial_but_a_cap_does(sqlite_store: Store) -> None:
    open_shop(sqlite_store)
    start_challenger(sqlite_store, "home", stored(sqlite_store), 0.5, "", NOON)
    assert put_surface(sqlite_store, "home", {"policy": {"blocked": ["1"], "pins": ["2"]}}) == ""
    assert "policy changed" in put_surface(sqlite_store, "home", {"policy": {"per_category": 1}})


def test_the_item_table_changes_what_is_named(store: Store) -> None:
    assert (
        put_items(
            store, [Item(item_id="a", category="x"), Item(item_id="b", until=datetime(2023, 11, 17, tzinfo=UTC))]
        )
        == 2
    )
    assert put_items(store, [Item(item_id="a", category="x")]) == 0
    assert put_items(store, [Item(item_id="a", available=False)]) == 1
    assert list_items(store) == {"a": (False, None, "x"), "b": (True, 1_700_179_200.0, None)}
    table = decider(store).items
    assert table.at(1)["a"] == (True, None, "x")
    assert table.at(2)["a"] == (False, None, "x")
    assert table.at(1)["a"].available
    changes = [[Item(item_id=f"{n}"), Item(item_id="a", category=f"{n}")] for n in range(6)]
    writers = [threading.Thread(target=put_items, args=(store, change)) for change in changes]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    rows = store.rows(select(tables.items).where(tables.items.c.item_id == "a"))
    assert sorted(row["version"] for row in rows) == list(range(1, 9))  # each change has a version of its own


def test_outcomes_are_imported_once_and_settled(store: Store, tmp_path: Path) -> None:
    """From a file and from a query; a period that was settled without them is settled again."""
    open_shop(store, holdout=0.0)
    clock = SetClock()
    made = decider(store, clock)
    row: Any = write(store, made.decide("home", "1"))[0].decision
    clock.now += 2 * DAY
    settle(made, made.surfaces.get("home"), clock.now)
    item = json.loads(row["shown"])[0]
    orders = pd.DataFrame({
        "event_id": ["o1", "o1", "o2"], "user_id": [1, 1, 2], "item_id": [item, "x", item],
        "time": ["2023-11-15 13:00:00"] * 3, "value": [2, 1, 5], "shop": "north",
    })  # fmt: skip
    orders.to_csv(tmp_path / "orders.csv", index=False)
    orders.assign(time=pd.to_datetime(orders["time"])).to_parquet(tmp_path / "orders.parquet")
    engine = create_engine(f"sqlite:///{tmp_path}/shop.db")
    with engine.begin() as connection:
        connection.execute(
            text("CREATE TABLE orders (event_id TEXT, user_id INT, item_id TEXT, time TEXT, value REAL)")
        )
        fields = ":event_id, :user_id, :item_id, :time, :value"
        connection.execute(text(f"INSERT INTO orders VALUES ({fields})"), [dict(row) for _, row in orders.iterrows()])
    sources = [rows_of(tmp_path / "orders.csv", ["time"]), rows_of(tmp_path / "orders.parquet", ["time"]),
               query_rows(f"sqlite:///{tmp_path}/shop.db", "SELECT * FROM orders")]  # fmt: skip
    assert [import_outcomes(made, each) for each in sources] == [
        (3, 0, ["home 2023-11-15T00:00:00Z"]), (0, 3, []), (0, 3, []),
    ]  # fmt: skip
    result = store.rows(select(tables.results))[0]
    assert (result["purchases"], result["lift"], result["value"]) == (2.0, 1.0, 2.0)
    for bad, words in (
        ({"time": "soon"}, "'soon' is not a valid time"),
        ({"event_id": None}, "row 1: 'event_id' is missing"),
    ):
        with pytest.raises(InputError, match=words):
            import_outcomes(made, [{**orders.iloc[0].to_dict(), **bad}])
    with pytest.raises(InputError, match="needs a column 'event_id'"):
        list(rows_of(pd.DataFrame({"a": [1]}), ["event_id"]))
    with pytest.raises(InputError, match="the query failed"):
        list(query_rows("sqlite://", "SELECT nothing"))


def test_items_come_from_a_file(sqlite_store: Store, tmp_path: Path) -> None:
    (tmp_path / "items.csv").write_text("item_id,available,until,name\na,false,,Tea\nb,true,2026-12-31,Jam\n")
    (rows,) = parsed(rows_of(tmp_path / "items.csv", ["item_id"]), Item)
    put_items(sqlite_store, rows)
    assert list_items(sqlite_store) == {"a": (False, None, None), "b": (True, 1_798_675_200.0, None)}


def test_features_reach_users_and_items_without_rows(sqlite_store: Store) -> None:
    """A model of the service's own log scores users who never came and items that nobody bought."""
    open_shop(sqlite_store, Policy(k=4, floor=0.05, temperature=0.5), holdout=0.0)
    world, clock = small_world(), SetClock()
    made = decider(sqlite_store, clock)
    for day in range(3):
        visit(made, clock, np.random.default_rng(day), copies=2)
    settle(made, made.surfaces.get("home"), clock.now)
    users = [f"{user}/{copy}" for user in range(40) for copy in range(2)]
    group = [int(user.partition("/")[0]) % 2 for user in users]
    put_features(sqlite_store, "users", pd.DataFrame({"user_id": [*users, "cold"], "group": [*group, 1]}))
    put_features(
        sqlite_store, "items", pd.DataFrame({"item_id": [*map(str, range(30)), "fresh"], "price": range(31)})
    )
    features, about = read_features(sqlite_store)
    log = export(made, made.surfaces.get("home"), users=about["users"], items=about["items"])
    assert log.n_users == 81
    assert log.n_items == 31 == world.n_items + 1
    learner = RetrainConfig("bpr", {"factors": 4, "epochs": 2, "random_state": 0}).fitted(log, features)
    assert {"cold", "fresh"} <= {*learner.users.values.to_pylist(), *learner.items.values.to_pylist()}
    codes = learner.users.encode(["cold", users[0]])
    assert np.abs(np.diff(learner.score_block(codes), axis=0)).max() > 0
    RetrainConfig("countingbayes").fitted(log, features)  # which does not use them
