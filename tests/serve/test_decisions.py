"""Decisions: once per user and period, replayed to the bit, filters renormalize π."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from support.shop import NOON, SECRET, SetClock, decider, fitted, open_shop, stored, write
from taurank.errors import InputError
from taurank.serve.decisions import Decider
from taurank.serve.models import add_model, check_model, model_bytes
from taurank.serve.recorder import Write
from taurank.serve.store import Conflict, NotFound, Store
from taurank.serve.surfaces import Period, demote, promote, put_surface, roll_back, start_challenger, switch

DAY = 86400.0


def test_every_decision_can_be_replayed(sqlite_store: Store) -> None:
    open_shop(sqlite_store)
    made: list[Write] = []
    clock = SetClock()
    first = decider(sqlite_store, clock)
    for day in range(3):
        clock.now = NOON + day * DAY
        for user in range(45):  # five users are unknown to the model
            exclude = ["1", "2"] if user % 3 == 0 else []
            candidates = ["7", "3", "new", "5", "9"] if user % 5 == 0 else None
            made.append(first.decide("home", str(user), candidates, exclude))
    rows = [recorded.decision for recorded in write(sqlite_store, *made)]
    clock.now = NOON + 100 * DAY
    sqlite_store.close()  # connections are made anew
    other = Decider(sqlite_store, SECRET, clock)
    for row in rows:
        assert row is not None
        items, shown = json.loads(row["shown"]), json.loads(row["propensities"])
        assert other.replay(row) == (items, shown)
        eligible, pi = other.propensities(row)
        if row["arm"] == "holdout":
            assert items == []
            continue
        assert pi.sum() == pytest.approx(len(items))
        assert shown == [pi[list(eligible).index(item)] for item in items]


def test_another_secret_draws_other_lists(sqlite_store: Store) -> None:
    open_shop(sqlite_store, holdout=0.0)
    one, other = decider(sqlite_store), Decider(sqlite_store, SECRET[::-1], SetClock())
    lists = [[d.decide("home", str(u)).decision["shown"] for u in range(30)] for d in (one, other)]  # type: ignore[index]
    assert lists[0] != lists[1]


def test_filters_renormalize(sqlite_store: Store) -> None:
    open_shop(sqlite_store, holdout=0.0)
    made = decider(sqlite_store)
    row = write(sqlite_store, made.decide("home", "1", exclude=["0", "1", "nobody"]))[0].decision
    assert row is not None
    items, pi = made.propensities(row)
    assert len(items) == 28
    assert not {"0", "1"} & set(items)
    assert pi.sum() == pytest.approx(4)
    few = made.decide("home", "2", candidates=["4", "5", "4"]).decision
    assert few is not None
    assert len(json.loads(few["shown"])) == 1  # one of two: neither is certain
    none = made.decide("home", "2", candidates=[]).decision
    assert none is not None
    assert none["shown"] == "[]"


def test_arms_are_permanent_and_have_their_shares(sqlite_store: Store) -> None:
    first = open_shop(sqlite_store, holdout=0.2)
    second = stored(sqlite_store)
    start_challenger(sqlite_store, "home", second, 0.5, "try", NOON)
    surface = decider(sqlite_store).surfaces
    surface.refresh()
    arms = np.array([surface.get("home").arm(surface.salt, str(u)) for u in range(20_000)])
    shares = surface.get("home").shares()
    assert shares == pytest.approx({"holdout": 0.2, "incumbent": 0.4, "challenger": 0.4})
    for arm, share in shares.items():
        assert abs((arms == arm).mean() - share) < 4.5 * np.sqrt(share * (1 - share) / 20_000)
    demote(sqlite_store, "home", "", NOON)
    surface.refresh()
    after = np.array([surface.get("home").arm(surface.salt, str(u)) for u in range(20_000)])
    assert np.array_equal(after == "holdout", arms == "holdout")
    start_challenger(sqlite_store, "home", second, 0.5, "again", NOON + 5 * DAY)
    surface.refresh()
    anew = np.array([surface.get("home").arm(surface.salt, str(u)) for u in range(20_000)])
    assert 0.45 < (anew[arms == "challenger"] == "challenger").mean() < 0.55  # split anew
    assert surface.get("home").model("incumbent") == first


def test_switch_roll_back_and_promotion(sqlite_store: Store) -> None:
    first = open_shop(sqlite_store, holdout=0.0)
    second = stored(sqlite_store)
    start_challenger(sqlite_store, "home", second, 0.5, "", NOON)
    assert not promote(sqlite_store, "home", second, "", NOON, expected="other")
    assert promote(sqlite_store, "home", second, "", NOON, expected=second)
    assert decider(sqlite_store).surfaces.get("home").incumbent == second
    assert roll_back(sqlite_store, "home", "worse", NOON) == first
    switch(sqlite_store, "home", False, "stop", NOON)
    row = decider(sqlite_store).decide("home", "1").decision
    assert row is not None
    assert (row["arm"], row["shown"]) == ("off", "[]")
    with pytest.raises(InputError, match="no challenger"):
        demote(sqlite_store, "home", "", NOON)
    with pytest.raises(InputError, match="no model"):
        promote(sqlite_store, "home", "missing", "", NOON)


def test_a_holdout_may_get_a_fixed_model(sqlite_store: Store) -> None:
    version = open_shop(sqlite_store, holdout=0.0)
    put_surface(sqlite_store, "home", {"holdout": 0.9, "holdout_model": version})
    made = decider(sqlite_store)
    rows = [made.decide("home", str(user)).decision for user in range(40)]
    held = [row for row in rows if row is not None and row["arm"] == "holdout"]
    assert held
    assert all(len(json.loads(row["shown"])) == 4 and row["model"] == version for row in held)


def test_without_a_model(sqlite_store: Store) -> None:
    put_surface(sqlite_store, "mail", {"policy": {"k": 2, "floor": 0.01}, "period": "week", "holdout": 0.0})
    made = decider(sqlite_store)
    with pytest.raises(Conflict):
        made.decide("mail", "u")
    row = made.decide("mail", "u", candidates=["a", "b", "c", "d"]).decision
    assert row is not None
    assert json.loads(row["propensities"]) == pytest.approx([0.5, 0.5])
    with pytest.raises(NotFound):
        made.decide("nowhere", "u")
    put_surface(sqlite_store, "mail", {"period": "60"})  # nobody has a list yet
    write(sqlite_store, made.decide("mail", "u", candidates=["a", "b", "c", "d"]))
    with pytest.raises(InputError, match="cannot change"):
        put_surface(sqlite_store, "mail", {"period": "day"})


def test_models_are_checked(sqlite_store: Store) -> None:
    content = model_bytes(fitted())
    row = add_model(sqlite_store, content, "a note", NOON)
    assert row == add_model(sqlite_store, content, "another note", NOON + 1)
    assert (row["learner"], row["users"], row["items"]) == ("Popular", 40, 30)
    altered = bytearray(content)
    altered[len(content) // 2] ^= 1
    broken: Any = fitted()
    broken.popularity_ = np.full(30, np.nan)
    with pytest.raises(InputError, match="not a consistent Popular model"):
        check_model(model_bytes(broken))
    broken.popularity_ = np.ones(7, np.int64)
    with pytest.raises(InputError, match="not a consistent Popular model"):
        check_model(model_bytes(broken))
    for wrong in (b"", b"not a model", bytes(altered), content[:-5]):
        with pytest.raises(InputError) as error:
            check_model(wrong)
        assert "/tmp" not in str(error.value)


def test_days_begin_at_midnight_of_their_time_zone() -> None:
    """Also where the clock is set forward and back; every second belongs to one period."""
    for zone in ("UTC", "Europe/Berlin", "America/Havana", "Asia/Kolkata"):
        for name in ("day", "week"):
            periods = Period.parse(name, zone)
            for number in range(periods.number(NOON), periods.number(NOON) + 400):
                begin = datetime.fromtimestamp(periods.start(number), ZoneInfo(zone))
                assert (begin.hour, begin.minute) == (0, 0) or zone == "America/Havana"
                assert name == "day" or begin.weekday() == 0
                assert [periods.number(periods.start(number) + shift) for shift in (-1, 0)] == [number - 1, number]
    assert Period.parse("hour", "Asia/Kolkata") == Period.parse("hour")
