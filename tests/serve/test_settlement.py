"""Settled periods: the lift is unbiased for what the lists cause, and the gate acts on it."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import numpy as np
import pytest
from sqlalchemy import func, select, update

from support.shop import NOON, SetClock, decider, fitted, open_shop, small_world, stored, visit, write
from taurank.errors import InputError
from taurank.learners.pairs import Pairs
from taurank.serve import tables
from taurank.serve.gate import difference, judge, mismatch
from taurank.serve.jobs import post_events
from taurank.serve.lift import ALPHA, COLUMNS, RECOMMENDED, Measure, chance_moments
from taurank.serve.policy import Policy
from taurank.serve.recorder import Write
from taurank.serve.settlement import export, read_measures, settle, settle_again
from taurank.serve.store import Conflict, Store
from taurank.serve.surfaces import promote, put_surface, start_challenger

DAY = 86400.0


def test_lift_of_a_decision_by_hand(store: Store) -> None:
    open_shop(store, holdout=0.0)
    clock = SetClock()
    made = decider(store, clock)
    row: Any = write(store, made.decide("home", "3"))[0].decision
    shown = json.loads(row["shown"])
    items, pi = made.propensities(row)
    other = next(item for item in items if item not in shown)
    events = [(NOON - 1, shown[1]), (NOON + 1, shown[0]), (NOON + 2, shown[0]), (NOON + 3, other), (NOON + 4, "x")]
    rows = [
        {"event_id": str(n), "user_id": "3", "item_id": item, "time": when, "value": 2.0}
        for n, (when, item) in enumerate(events)
    ]
    write(store, Write(events=rows))
    surface = made.surfaces.get("home")
    assert settle(made, surface, clock.now) == 0  # the day has not ended
    assert settle(made, surface, clock.now + DAY) == 1
    assert settle(made, surface, clock.now + DAY) == 0
    result = store.rows(select(tables.results))[0]
    p = pi[list(items).index(other)]
    assert result["purchases"] == 3  # the purchase before the decision does not count
    assert result["lift"] == pytest.approx(1 - p / (1 - p))
    assert result["value"] == pytest.approx(4 - 2 * p / (1 - p))
    figures = json.loads(store.rows(select(tables.settled))[0]["figures"])
    assert figures["arms"] == {"incumbent": {name: result.get(name, 1.0) for name in COLUMNS}}
    values = {(r["item_id"], r["treated"]): r["value"] for r in store.rows(select(tables.positives))}
    assert values == {(shown[0], 1): 4.0, (other, 0): 2.0}
    late = {"event_id": "late", "user_id": "3", "item_id": shown[2], "time": NOON + 5, "value": 1.0}
    write(store, Write(events=[late]))
    settle_again(made, "home", NOON, clock.now + DAY)
    assert store.rows(select(tables.results))[0]["lift"] == pytest.approx(2 - p / (1 - p))
    clock.now -= 3600  # another machine is slow
    with pytest.raises(Conflict, match="has been settled"):
        write(store, made.decide("home", "4"))
    assert write(store, made.decide("home", "3"))[0].repeated  # what is there can be asked for
    assert [len(store.rows(select(table))) for table in (tables.decisions, tables.results)] == [1, 1]


def test_lift_is_unbiased(sqlite_store: Store) -> None:
    open_shop(sqlite_store, Policy(k=4, floor=0.02, temperature=0.5), holdout=0.0)
    clock, random = SetClock(), np.random.default_rng(0)
    made = decider(sqlite_store, clock)
    truth = np.mean([visit(made, clock, random) for _ in range(40)]) / small_world().n_users
    settle(made, made.surfaces.get("home"), clock.now + DAY)
    lift = np.array([row["lift"] for row in sqlite_store.rows(select(tables.results))])
    assert len(lift) == 40 * 40
    assert abs(lift.mean() - truth) < 4 * lift.std() / np.sqrt(len(lift))
    assert truth > 3 * lift.std() / np.sqrt(len(lift))  # the test could see a difference
    naive = np.array([row["treated"] for row in sqlite_store.rows(select(tables.positives))]).sum() / len(lift)
    assert naive > truth + 4 * lift.std() / np.sqrt(len(lift))  # shown purchases alone say too much


@pytest.mark.parametrize("better", [True, False])
def test_the_gate_promotes_and_demotes(sqlite_store: Store, better: bool) -> None:
    world = small_world()
    effect = world.treated_rate - world.control_rate
    good, bad = (_by_effect(sign * effect) for sign in (1, -1))
    first = stored(sqlite_store, bad if better else good)
    second = stored(sqlite_store, good if better else bad)
    open_shop(sqlite_store, Policy(k=4, floor=0.02, temperature=0.3), holdout=0.3)
    promote(sqlite_store, "home", first, "", NOON)
    start_challenger(sqlite_store, "home", second, 0.5, "", NOON)
    clock, random = SetClock(NOON + DAY), np.random.default_rng(1)
    made = decider(sqlite_store, clock)
    acts = []
    for _ in range(15):
        visit(made, clock, random, copies=20)
        made.surfaces.refresh()
        surface = made.surfaces.get("home")
        settle(made, surface, clock.now)
        acts.append(judge(sqlite_store, surface, clock.now))
        if acts[-1] in ("promoted", "demoted"):
            break
    assert acts[-1] == ("promoted" if better else "demoted")
    made.surfaces.refresh()
    after = made.surfaces.get("home")
    assert (after.incumbent, after.challenger) == (second if better else first, None)
    measures = measures_of(sqlite_store)
    assert list(measures) == ["life"]  # the trial is over
    assert np.isfinite(measures["life"].interval("holdout").low)


def test_the_gate_weighs_values(store: Store) -> None:
    """The lift in value equals its slow twin, with and without a cap; a challenger keeps the outcome as it is."""
    open_shop(store, Policy(k=4, floor=0.02, temperature=0.3), holdout=0.0)
    second = stored(store)
    clock, random = SetClock(), np.random.default_rng(1)
    made = decider(store, clock)
    start = clock.now
    for cap in (None, 3.0):
        put_surface(store, "home", {"outcome": "value", "max_value": cap}, NOON)
    start_challenger(store, "home", second, 0.5, "", start)
    for _ in range(3):
        visit(made, clock, random, copies=8)
    with store.write() as connection:  # the shop of the tests sells everything for 1
        connection.execute(update(tables.outcomes).values(value=func.length(tables.outcomes.c.event_id) % 7 + 0.5))
    made.surfaces.refresh()
    surface = made.surfaces.get("home")
    settle(made, surface, clock.now)
    assert (surface.outcome, surface.max_value) == ("value", 3.0)
    assert "caused value (up to 3 per item) per visit" in judge(store, surface, clock.now)
    compared = difference(surface, measures_of(store)["trial"])
    slow: dict[str, list[float]] = {arm: [] for arm in ("challenger", "incumbent")}
    positives = store.rows(select(tables.positives))
    for row in store.rows(select(tables.results)):
        mine = [p for p in positives if p["decision"] == row["decision"]]
        signs = [1 if p["treated"] else -p["propensity"] / (1 - p["propensity"]) for p in mine]
        slow[row["arm"]].append(sum(s * min(p["value"], 3.0) for s, p in zip(signs, mine, strict=True)))
    assert compared.estimate == pytest.approx(np.mean(slow["challenger"]) - np.mean(slow["incumbent"]))
    assert np.isfinite(compared.low)
    assert max(row["value"] for row in positives) > 3
    assert set(export(made, surface).to_frame().query("outcome == 1")["value"]) == {0.5, 6.5}
    assert export(made, surface.model_copy(update={"outcome": "purchases"})).value is None
    with pytest.raises(InputError, match="'both'"):
        put_surface(store, "home", {"outcome": "both"})


def test_an_undecided_challenger_makes_room(sqlite_store: Store) -> None:
    open_shop(sqlite_store, holdout=0.0)
    second = stored(sqlite_store)
    start_challenger(sqlite_store, "home", second, 0.5, "", NOON)
    clock, random = SetClock(), np.random.default_rng(1)
    made = decider(sqlite_store, clock)
    for _ in range(3):
        visit(made, clock, random)
    surface = made.surfaces.get("home")
    assert surface.since == surface.periods.number(NOON)  # nobody had a list of that day
    settle(made, surface, clock.now)
    assert "between" in judge(sqlite_store, surface, clock.now, patience=4)
    assert judge(sqlite_store, surface, clock.now, patience=3) == "undecided"
    made.surfaces.refresh()
    assert made.surfaces.get("home").challenger is None
    write(sqlite_store, made.decide("home", "1"))
    start_challenger(sqlite_store, "home", second, 0.5, "", clock.now)
    made.surfaces.refresh()
    assert made.surfaces.get("home").since == surface.periods.number(clock.now) + 1


def _by_effect(scores: np.ndarray) -> Any:
    """A model with given scores: CountingBayes holds one score per pair."""
    learner = fitted("counting")
    users, items = scores.shape
    nothing = np.zeros(scores.size, np.int32)
    cells = {"item_cells": np.full(items, float(users)), "user_cells": np.full(users, float(items))}
    learner.counts_ = Pairs(  # type: ignore[attr-defined]
        start=np.arange(users + 1, dtype=np.int64) * items, item=np.tile(np.arange(items, dtype=np.int32), users),
        rows=nothing, treated=nothing, treated_positives=nothing, control_positives=nothing, chances=nothing + 1,
        times=1, limited=False, **cells,
    )  # fmt: skip
    learner.pair_score_ = scores.astype(np.float32).ravel()  # type: ignore[attr-defined]
    learner.unseen_ = scores.mean(axis=0).astype(np.float32)  # type: ignore[attr-defined]
    mean = scores.mean(axis=0)
    learner.popularity_ = np.round(1e6 * (mean - mean.min())).astype(np.int64)
    return learner


def test_a_sample_ratio_mismatch_stops_the_gate(sqlite_store: Store) -> None:
    open_shop(sqlite_store, holdout=0.1)
    second = stored(sqlite_store)
    start_challenger(sqlite_store, "home", second, 0.5, "", NOON)
    surface = decider(sqlite_store).surfaces.get("home")
    trial = measures_of(sqlite_store)["trial"]
    for arm, size, extra in (("holdout", 100, 0.0), ("incumbent", 450, 0.0), ("challenger", 250, 5.0)):
        users = np.ones((size, len(COLUMNS)))
        users[:, 2] = np.arange(size) % 2 + extra
        trial.arm(arm).change(np.zeros_like(users), users)
        trial.arm(arm).chance += np.array([[size / 4, size / 16], [0, 0]])
    trial.look(ALPHA)
    with sqlite_store.write() as connection:
        mine = tables.measures.c.name == "trial"
        connection.execute(update(tables.measures).where(mine).values(body=trial.dump()))
    assert mismatch(surface, trial)
    assert difference(surface, trial).low > 0  # it would have been promoted
    assert judge(sqlite_store, surface, NOON) == "sample-ratio mismatch"
    assert judge(sqlite_store, surface, NOON) == "sample-ratio mismatch"
    alerts = sqlite_store.rows(select(tables.history).where(tables.history.c.event == "alert"))
    assert len(alerts) == 1
    assert "challenger 250" in alerts[0]["reason"]
    assert judge(sqlite_store, surface.model_copy(update={"challenger": None}), NOON) == "no challenger"


def measures_of(store: Store) -> dict[str, Measure]:
    with store.read() as connection:
        return read_measures(connection, "home")


def test_measures_are_sums_of_all_results(store: Store) -> None:
    """What settlement adds up, period by period and after late outcomes, is what a look at all rows gives."""
    open_shop(store, Policy(k=4, floor=0.03, temperature=0.5), holdout=0.3)
    second = stored(store)
    clock, random = SetClock(), np.random.default_rng(0)
    made = decider(store, clock)
    visit(made, clock, random, copies=3)
    start_challenger(store, "home", second, 0.5, "", clock.now)
    for _ in range(2):
        visit(made, clock, random, copies=3)
        made.surfaces.refresh()
        settle(made, made.surfaces.get("home"), clock.now)
    late = store.rows(
        select(tables.decisions).where(tables.decisions.c.shown != "[]").order_by(tables.decisions.c.id)
    )[0]
    item = json.loads(late["shown"])[0]
    event = {"event_id": "late", "user_id": late["user_id"], "item_id": item, "time": late["time"] + 1, "value": 3.0}
    write(store, Write(events=[event]))
    looks = measures_of(store)["life"].periods, measures_of(store)["life"].last
    settle_again(made, "home", late["time"], clock.now)
    measures = measures_of(store)
    assert (measures["life"].periods, measures["life"].last) == looks  # that period has been looked at already
    positives = store.rows(select(tables.positives))
    for name, arms in (("life", {"recommended": RECOMMENDED, "holdout": ("holdout",)}),
                       ("trial", {arm: (arm,) for arm in ("holdout", *RECOMMENDED)})):  # fmt: skip
        measure = measures[name]
        for arm, parts in arms.items():
            rows = [row for row in store.rows(select(tables.results).where(tables.results.c.arm.in_(parts)))
                    if row["period"] >= measure.since]  # fmt: skip
            totals, users = measure.arms[arm], {row["user_id"] for row in rows}
            assert (totals.users, totals.visits) == (len(users), len(rows))
            own = {user: [row for row in rows if row["user_id"] == user] for user in users}
            sums = np.array([[sum(row.get(name, 1.0) for row in each) for name in COLUMNS] for each in own.values()])
            moments = [sums.sum(0), (sums**2).sum(0), (sums * sums[:, :1]).sum(0), (sums**4).sum(0)]
            np.testing.assert_allclose(totals.sums, np.transpose(moments), atol=1e-9)
            bought = [row for row in positives if row["decision"] in {each["decision"] for each in rows}]
            pi, value = (np.array([row[column] for row in bought]) for column in ("propensity", "value"))
            np.testing.assert_allclose(totals.chance, chance_moments(pi, value), atol=1e-9)
    counts = store.rows(select(tables.item_sums))
    assert sum(row["purchases"] for row in counts) == len(positives)


def test_a_change_that_a_comparison_does_not_survive_ends_it(sqlite_store: Store) -> None:
    """Only what is named changes; a repeated setting changes nothing; the hold-out's figures begin anew."""
    open_shop(sqlite_store, holdout=0.2)
    second = stored(sqlite_store)
    start_challenger(sqlite_store, "home", second, 0.5, "", NOON)
    with pytest.raises(Conflict, match="has the challenger"):
        start_challenger(sqlite_store, "home", second, 0.5, "another", NOON)
    assert put_surface(sqlite_store, "home", {"holdout": 0.2, "policy": {"k": 4}}, NOON) == ""
    clock = SetClock()
    made = decider(sqlite_store, clock)
    write(sqlite_store, made.decide("home", "1"))
    said = put_surface(sqlite_store, "home", {"holdout": 0.1, "policy": {"k": 5}}, NOON)
    assert (
        said == f"the trial of '{second}' ended: holdout, policy changed; figures count from 2023-11-16T00:00:00Z on"
    )
    made.surfaces.refresh()
    surface = made.surfaces.get("home")
    assert (surface.challenger, surface.policy.k, surface.policy.temperature) == (None, 5, 0.5)
    assert measures_of(sqlite_store)["life"].since == surface.periods.number(NOON) + 1
    start_challenger(sqlite_store, "home", second, 0.5, "", NOON)
    made.surfaces.refresh()
    assert made.surfaces.get("home").trials == 2
    assert made.surfaces.get("home").alpha < surface.alpha


def test_a_webhook_gets_what_happens(sqlite_store: Store) -> None:
    """Each event once, in order; while nobody answers, it waits."""
    bodies: list[Any] = []

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    open_shop(sqlite_store)
    hook = HTTPServer(("127.0.0.1", 0), Hook)
    address = f"http://127.0.0.1:{hook.server_port}/"
    threading.Thread(target=hook.serve_forever, daemon=True).start()
    assert post_events(sqlite_store, address) == ""  # what was before is not news
    second = stored(sqlite_store)
    start_challenger(sqlite_store, "home", second, 0.5, "", NOON)
    promote(sqlite_store, "home", second, "better", NOON)
    assert "does not answer" in post_events(sqlite_store, "http://127.0.0.1:9/")
    assert [post_events(sqlite_store, address) for _ in range(2)] == ["", ""]
    hook.shutdown()
    hook.server_close()
    (body,) = bodies
    assert [(event["event"], event["model"], event["reason"]) for event in body["events"]] == [
        ("promoted", second, "better")
    ]
