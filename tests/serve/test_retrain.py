"""Export and retraining: the log is exact, and only a log that can tell makes a challenger."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sqlalchemy import select

from support.shop import SetClock, decider, open_shop, small_world, stored, visit
from taurank.data.log import Log
from taurank.errors import InputError
from taurank.serve import tables
from taurank.serve.decisions import Decider
from taurank.serve.gate import run_jobs
from taurank.serve.policy import Policy
from taurank.serve.retrain import RetrainConfig, cannot_tell, compare_offline, retrain
from taurank.serve.settlement import export, settle
from taurank.serve.store import Store
from taurank.serve.surfaces import demote, promote


def shop_for_days(store: Store, days: int, copies: int = 1, seed: int = 0) -> tuple[Decider, SetClock]:
    open_shop(store, Policy(k=4, floor=0.05, temperature=0.5), holdout=0.1)
    clock, random = SetClock(), np.random.default_rng(seed)
    made = decider(store, clock)
    for _ in range(days):
        visit(made, clock, random, copies)
    settle(made, made.surfaces.get("home"), clock.now)
    return made, clock


def test_the_exported_log_is_what_happened(sqlite_store: Store, tmp_path: Path) -> None:
    made, clock = shop_for_days(sqlite_store, 2)
    visit(made, clock, np.random.default_rng(0), copies=2)  # other users, on this day only
    settle(made, made.surfaces.get("home"), clock.now)
    exported = export(made, made.surfaces.get("home"))
    log = Log.read(exported.write(tmp_path / "out"))
    visits = pd.read_parquet(exported.write_visits(tmp_path / "visits.parquet"))
    frame = log.to_frame().set_index(["user_id", "item_id", "time"])
    period = made.surfaces.get("home").periods
    decisions = sqlite_store.rows(select(tables.decisions))
    drawn = [row for row in decisions if row["shown"] != "[]"]
    assert set(zip(visits["user_id"], visits["time"], strict=True)) == {
        (row["user_id"], period.name(row["period"])) for row in drawn
    }
    bought = {
        (r["user_id"], r["item_id"], period.name(period.number(r["time"])))
        for r in sqlite_store.rows(select(tables.outcomes))
    }
    rows = 0
    for decision in drawn:
        items, pi = made.propensities(decision)
        shown = json.loads(decision["shown"])
        for item, p in zip(items, pi, strict=True):  # every eligible cell, in the log or absent
            cell = (decision["user_id"], item, period.name(decision["period"]))
            if item in shown or cell in bought:
                row: Any = frame.loc[cell, :]  # type: ignore[index]
                assert (row["treated"], row["outcome"]) == (item in shown, cell in bought)
                assert row["propensity"] == pytest.approx(p, rel=1e-12)
                rows += 1
    assert rows == len(log)
    assert log.cells == len(visits) * log.n_items < log.n_users * log.n_items * log.n_times
    assert log.n_items == 30
    assert export(made, made.surfaces.get("home"), last=1).log.n_times == 1


def test_an_empty_shop_has_no_log(sqlite_store: Store) -> None:
    open_shop(sqlite_store)
    made = decider(sqlite_store)
    with pytest.raises(InputError, match="no settled period"):
        export(made, made.surfaces.get("home"))


def test_retraining_makes_a_challenger(sqlite_store: Store) -> None:
    made, clock = shop_for_days(sqlite_store, 6, copies=3)
    result = retrain(made, "home", RetrainConfig("countingbayes", {"weight": 2.0}, share=0.4))
    assert result.version is not None
    assert result.estimate is not None
    assert result.estimate.low < result.estimate.difference < result.estimate.high
    made.surfaces.refresh()
    surface = made.surfaces.get("home")
    assert (surface.challenger, surface.share) == (result.version, 0.4)
    assert surface.since == surface.periods.number(clock.now)
    again = retrain(made, "home", RetrainConfig("countingbayes", {"weight": 3.0}))
    assert "still the challenger" in again.reason
    assert "home" in run_jobs(made)


def test_an_update_learns_what_a_fit_would(sqlite_store: Store) -> None:
    """A learner that counts: the incumbent and the days since then make what a fit to all days makes."""
    made, clock = shop_for_days(sqlite_store, 4, copies=3)
    plan = RetrainConfig("countingbayes", {"weight": 2.0}, update=True)
    first = retrain(made, "home", plan)
    assert "fitted from nothing, because the incumbent has ids that are not text" in first.reason
    promote(sqlite_store, "home", first.version or "", "", clock.now)
    refused = retrain(made, "home", plan)
    assert "no period has ended since the incumbent was stored" in refused.reason
    assert refused.version is None
    for day in range(3):
        visit(made, clock, np.random.default_rng(day), copies=3)
        if day == 0:
            assert "fewer than two periods have ended" in retrain(made, "home", plan, grace=0.0).reason
            demote(sqlite_store, "home", "", clock.now)
    again = retrain(made, "home", plan)
    assert f"update of '{first.version}' with 3 periods" in again.reason
    learner = made.models.get(again.version or "").learner
    fresh = plan.fitted(export(made, made.surfaces.get("home")).log)
    assert learner.users.values.equals(fresh.users.values)
    assert learner.popularity_.tolist() == fresh.popularity_.tolist()
    user = np.array([5], np.int32)
    np.testing.assert_array_equal(learner.score_block(user), fresh.score_block(user))
    before = made.models.get(first.version or "").learner
    assert before.popularity_.sum() < learner.popularity_.sum()  # the incumbent in memory stayed as it was
    assert "the incumbent is a CountingBayes" in retrain(made, "home", RetrainConfig("popular", update=True)).reason


def test_offline_estimate_is_right(sqlite_store: Store) -> None:
    """The mean over many days is the true difference between the two models."""
    made, _ = shop_for_days(sqlite_store, 30)
    surface, world = made.surfaces.get("home"), small_world()
    rival = stored(sqlite_store)
    model = made.models.get(rival)
    truths = []
    periods = [row["period"] for row in sqlite_store.rows(select(tables.settled))]
    estimates = [compare_offline(made, surface, model.learner, period) for period in periods]
    incumbent = made.models.get(surface.incumbent or "")
    effect = world.treated_rate - world.control_rate
    for decision in sqlite_store.rows(select(tables.decisions).where(tables.decisions.c.shown != "[]")):
        pis = [made.propensities_of(decision, m, surface.policy) for m in (model, incumbent)]
        new, old = (np.array([pi[str(item)] for item in range(world.n_items)]) for pi in pis)
        truths.append(float(((new - old) * effect[int(decision["user_id"])]).sum()))
    values = np.array([estimate.difference for estimate in estimates])
    assert abs(values.mean() - np.mean(truths)) < 4 * values.std(ddof=1) / np.sqrt(len(values))
    inside = [estimate.low <= np.mean(truths) <= estimate.high for estimate in estimates]
    assert np.mean(inside) >= 0.8


def test_a_log_that_cannot_tell_is_refused(sqlite_store: Store) -> None:
    made, _ = shop_for_days(sqlite_store, 2)
    thin = export(made, made.surfaces.get("home"), last=1).log
    assert "fewer than two" in cannot_tell(thin)
    result = retrain(made, "home", RetrainConfig("popular", last=1))
    assert result.version is None
    lines = sqlite_store.rows(select(tables.history).where(tables.history.c.event == "not retrained"))
    assert [line["reason"] for line in lines] == [result.reason]
    with pytest.raises(InputError, match="no learner"):
        retrain(made, "home", RetrainConfig("nothing"))


def test_few_purchases_are_refused(sqlite_store: Store) -> None:
    made, _ = shop_for_days(sqlite_store, 2)
    log = export(made, made.surfaces.get("home")).log
    few = log.to_frame()
    few.loc[few.index[30:], "outcome"] = 0
    assert "after weighting" in cannot_tell(Log.from_frame(few[few.treated.eq(1) | few.outcome.eq(1)]))
