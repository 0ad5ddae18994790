"""Export and retraining: the log is exact, and only a log that can tell makes a challenger."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
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
from taurank.serve.surfaces import promote


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
    export(made, made.surfaces.get("home")).write(tmp_path / "log.parquet")
    log = Log.read(tmp_path / "log.parquet")
    frame = log.to_frame().set_index(["user_id", "item_id", "time"])
    period = made.surfaces.get("home").periods
    decisions = sqlite_store.rows(select(tables.decisions))
    drawn = [row for row in decisions if row["shown"] != "[]"]
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
    assert log.cells == len(drawn) * log.n_items < log.n_users * log.n_items * log.n_times
    assert log.n_items == 30
    assert export(made, made.surfaces.get("home"), last=1).n_times == 1


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


def test_a_model_is_compared_on_periods_that_its_rival_has_not_seen(sqlite_store: Store) -> None:
    made, clock = shop_for_days(sqlite_store, 4, copies=3)
    config = RetrainConfig("countingbayes", {"weight": 2.0})
    first = retrain(made, "home", config)
    promote(sqlite_store, "home", first.version or "", "", clock.now)
    refused = retrain(made, "home", config)
    assert "no period has ended since the incumbent was stored" in refused.reason
    assert refused.version is None
    visit(made, clock, np.random.default_rng(0), copies=3)
    assert "challenger with 20%" in retrain(made, "home", config).reason


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
        items = [str(item) for item in range(world.n_items)]
        pis = [made.propensities_of(decision, m, surface.policy, items) for m in (model, incumbent)]
        new, old = (np.array([pi[item] for item in items]) for pi in pis)
        truths.append(float(((new - old) * effect[int(decision["user_id"])]).sum()))
    values = np.array([estimate.difference for estimate in estimates])
    assert abs(values.mean() - np.mean(truths)) < 4 * values.std(ddof=1) / np.sqrt(len(values))
    inside = [estimate.low <= np.mean(truths) <= estimate.high for estimate in estimates]
    assert np.mean(inside) >= 0.8


def test_a_log_that_cannot_tell_is_refused(sqlite_store: Store) -> None:
    made, _ = shop_for_days(sqlite_store, 2)
    thin = export(made, made.surfaces.get("home"), last=1)
    assert "fewer than two" in cannot_tell(thin)
    result = retrain(made, "home", RetrainConfig("popular", last=1))
    assert result.version is None
    lines = sqlite_store.rows(select(tables.history).where(tables.history.c.event == "not retrained"))
    assert [line["reason"] for line in lines] == [result.reason]
    with pytest.raises(InputError, match="no learner"):
        retrain(made, "home", RetrainConfig("nothing"))


def test_few_purchases_are_refused(sqlite_store: Store) -> None:
    made, _ = shop_for_days(sqlite_store, 2)
    log = export(made, made.surfaces.get("home"))
    few = log.to_frame()
    few.loc[few.index[30:], "outcome"] = 0
    assert "after weighting" in cannot_tell(Log.from_frame(few[few.treated.eq(1) | few.outcome.eq(1)]))
