"""Tables as shops have them: other names, nulls, duplicates, time zones, periods, visits and candidates."""

from __future__ import annotations

import re
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from support.command_line import Command
from taurank import Log
from taurank.errors import InputError

START = datetime(2024, 2, 26)  # a Monday


def table(rows: list[tuple[Any, ...]], *more: str) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=["user_id", "item_id", "timestamp", *more])


SHOWN = table([("a", 1, START), ("b", 2, START + timedelta(days=1))])
BOUGHT = table([("a", 1, START + timedelta(hours=1)), ("c", 1, START + timedelta(days=1))])


def test_columns_of_other_names() -> None:
    shown = SHOWN.rename(columns={"user_id": "customer", "timestamp": "shown_at"})
    bought = BOUGHT.rename(columns={"user_id": "customer", "timestamp": "bought_at"})
    names = {"user_id": "customer", "timestamp": "shown_at", "outcomes.timestamp": "bought_at"}
    assert Log.from_events(shown, bought, columns=names).equals(Log.from_events(SHOWN, BOUGHT))


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        (
            {"user": "customer"},
            "columns maps 'user' to 'customer', but no table has such a column; it maps user_id, ",
        ),
        ({"visits.item_id": "x"}, "columns maps 'visits.item_id' to 'x'"),
        ({"user_id": "customer"}, "columns maps 'user_id' to 'customer', but no table"),
        (["customer"], "columns must map our names to yours"),
    ],
)
def test_wrong_names_are_refused(columns: Any, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        Log.from_events(SHOWN, BOUGHT, columns=columns)


def test_flaws_name_the_columns_as_the_caller_does() -> None:
    shown = table([("a", 1, START, 2.0), (None, 2, START, 0.5)], "p").rename(columns={"user_id": "customer"})
    with pytest.raises(InputError) as caught:
        Log.from_events(shown, BOUGHT, columns={"user_id": "customer", "propensity": "p"})
    assert "'impressions.customer' has 1 null value" in str(caught.value)
    assert "'impressions.p' must be" in str(caught.value)


def test_tables_without_a_common_user_or_item_are_said_first() -> None:
    summary = Log.from_events(SHOWN, BOUGHT.assign(user_id=["A", "C"])).summary
    assert summary is not None
    first = " ".join(str(summary).splitlines()[0].split())
    assert first == "caution no user occurs in both tables; are user ids written alike in both?"
    assert summary.apart == ("user",)
    assert "caution" not in str(Log.from_events(SHOWN, BOUGHT).summary)


def test_nulls_are_dropped_and_counted_on_request() -> None:
    shown = table([("a", 1, START), (None, 2, START), (None, 2, pd.NaT), ("b", 2, START + timedelta(days=1))])
    with pytest.raises(InputError, match=r"'impressions.user_id' has 2 null values.*nulls='drop'"):
        Log.from_events(shown, BOUGHT)
    log = Log.from_events(shown, BOUGHT, nulls="drop")
    assert log.equals(Log.from_events(SHOWN, BOUGHT))
    assert log.summary is not None
    assert log.summary.impressions["null"] == 2
    assert log.summary.nulls == {"impressions.user_id": 2, "impressions.timestamp": 1}
    assert "2 with a null, dropped (user_id 2, timestamp 1)" in str(log.summary)


def test_all_flaws_come_in_one_message(tmp_path: Path) -> None:
    SHOWN.assign(timestamp=["soon", "later"], propensity=[0.5, 2]).to_csv(tmp_path / "shown.csv", index=False)
    bought = BOUGHT.assign(user_id=pd.Series(["a", None], dtype=object)).drop(columns="timestamp")
    with pytest.raises(InputError) as caught:
        Log.from_events(tmp_path / "shown.csv", bought, visits=SHOWN.drop(columns="user_id"))
    message = str(caught.value)
    assert message.startswith("4 flaws were found: (1) ")
    for flaw in ("outcomes .*'timestamp'", "visits .*'user_id'", "2 rows are not, .*'soon'", "propensity' must be"):
        assert re.search(flaw, message)


def test_exact_duplicates_are_one_chance() -> None:
    shown = table(
        [("a", 1, START, 0.5), ("a", 1, START, 0.5), ("a", 1, START + timedelta(hours=1), 0.5)], "propensity"
    )
    bought = table([("a", 1, START, 3.0), ("a", 1, START, 3.0), ("a", 1, START, 4.0)], "value")
    log = Log.from_events(shown, bought, combine="any")
    assert log.propensity is not None
    assert log.propensity.tolist() == [0.75]
    assert log.value is not None
    assert log.value.tolist() == [7.0]
    assert log.summary is not None
    assert (log.summary.impressions["duplicate"], log.summary.outcomes["duplicate"]) == (1, 1)


def test_a_time_zone_moves_the_days_and_joins_tables_with_and_without_one() -> None:
    shown = table([("a", 1, pd.Timestamp("2024-02-26 23:30", tz="UTC"))])
    bought = table([("a", 1, pd.Timestamp("2024-02-27 00:40"))])  # on the clock of Berlin: 23:40 UTC
    with pytest.raises(InputError, match="the time zone UTC in impressions and no time zone in outcomes; name one"):
        Log.from_events(shown, bought)
    log = Log.from_events(shown, bought, timezone="Europe/Berlin", window="15 minutes")
    assert log.times.values.to_pylist() == [date(2024, 2, 27)]
    assert log.outcome.tolist() == [1]
    with pytest.raises(InputError, match="the time zone 'Mars/Base' cannot be used"):
        Log.from_events(shown, bought, timezone="Mars/Base")


@pytest.mark.parametrize(
    ("period", "expected"),
    [
        ("month", [date(2024, 2, 1), date(2024, 3, 1), date(2024, 4, 1)]),
        ("2 months", [date(2024, 1, 1), date(2024, 3, 1)]),
        ("2 weeks", [date(2024, 2, 26), date(2024, 3, 11), date(2024, 3, 25)]),
        ("30 days", [date(1970, 1, 1) + timedelta(days=30 * n) for n in (659, 660)]),
    ],
)
def test_periods_of_several_units(period: str, expected: list[date]) -> None:
    events = table([("a", 1, START), ("b", 1, START + timedelta(days=40))])
    log = Log.from_events(events, events, period=period)
    assert log.times.values.to_pylist() == expected
    assert log.time.tolist() == [0, len(expected) - 1]


def many_days(first: datetime, last: datetime, users: int = 30) -> pd.DataFrame:
    """Every user has an event at noon of every day."""
    days = pd.date_range(first, last, freq="D") + timedelta(hours=12)
    return table([(user, 1, day) for day in days for user in range(users)])


def test_incomplete_first_and_last_weeks_are_named_and_dropped() -> None:
    events = many_days(datetime(2024, 1, 3), datetime(2024, 1, 30))  # Wednesday to Tuesday
    log = Log.from_events(events, events, period="week")
    assert log.times.values.to_pylist() == [date(2024, 1, 8), date(2024, 1, 15), date(2024, 1, 22)]
    assert log.summary is not None
    assert log.summary.dropped_periods == (
        "2024-01-01 (impressions begin 2024-01-03 12:00)",
        "2024-01-29 (impressions end 2024-01-30 12:00)",
    )
    assert log.summary.impressions["outside"] == 30 * 7
    assert Log.from_events(events, events, period="week", incomplete="keep").n_times == 5


def test_weeks_that_are_merely_quiet_are_complete() -> None:
    closed = many_days(datetime(2024, 1, 1), datetime(2024, 1, 27))
    closed = closed[closed["timestamp"].dt.day_of_week < 6]  # the last week ends on a Saturday as all do
    assert Log.from_events(closed, closed, period="week").n_times == 4
    sparse = many_days(datetime(2024, 1, 3), datetime(2024, 1, 30), users=3)
    assert Log.from_events(sparse, sparse, period="week").n_times == 5


def test_a_table_that_begins_later_shortens_the_log() -> None:
    shown = many_days(datetime(2024, 1, 1), datetime(2024, 1, 28))
    log = Log.from_events(shown, shown[shown["timestamp"] >= datetime(2024, 1, 15)], period="week")
    assert log.times.values.to_pylist() == [date(2024, 1, 15), date(2024, 1, 22)]


def test_semicolons_and_decimal_commas(tmp_path: Path) -> None:
    shown = SHOWN.assign(propensity=[0.25, 0.5])
    bought = BOUGHT.assign(value=[2.5, 10.0])
    shown.to_csv(tmp_path / "shown.csv", sep=";", decimal=",", index=False)
    bought.to_csv(tmp_path / "bought.csv", sep="\t", index=False)
    assert Log.from_events(tmp_path / "shown.csv", tmp_path / "bought.csv").equals(Log.from_events(shown, bought))
    comma = 'user_id,item_id,treated,outcome,propensity\na,1,1,1,"0,25"\n'
    (tmp_path / "comma.csv").write_text(comma)
    with pytest.raises(InputError, match="for example '0,25'"):  # 1,234 may be a thousand there
        Log.read(tmp_path / "comma.csv")


def test_events_outside_eligible_cells_are_set_aside() -> None:
    day = timedelta(days=1)
    shown = table([("a", 1, START, 0.5), ("a", 2, START, 0.5), ("b", 1, START, 0.5)], "propensity")
    bought = table([("b", 2, START + day, 0.5), ("c", 1, START, 0.0), ("a", 3, START, 0.0)], "propensity")
    visits = pd.DataFrame({"user_id": ["a", "b", "b", "d"], "timestamp": [START, START, START + day, START]})
    candidates = pd.DataFrame({"item_id": [1, 2]})
    log = Log.from_events(shown, bought, visits=visits, candidates=candidates)
    assert log.to_frame()[["user_id", "item_id"]].to_numpy().tolist() == [["a", 1], ["a", 2], ["b", 1], ["b", 2]]
    assert log.users.values.to_pylist() == ["a", "b", "c", "d"]  # d came, saw nothing and bought nothing
    assert log.cells == (3 + 1) * 2
    assert log.summary is not None
    assert log.summary.outcomes["not eligible"] == 2
    assert log.eligibility is not None
    assert log.eligibility.outside[1] == 2
    listed = shown.drop(columns="propensity").iloc[:2]
    with pytest.raises(InputError, match="none of the 3 outcomes is in an eligible cell"):
        Log.from_events(shown, bought, candidates=listed)
    with pytest.raises(InputError, match="candidates with a user_id need a timestamp"):
        Log.from_events(shown, bought, candidates=listed.drop(columns="timestamp"))
    zero = bought.assign(propensity=[0.0, 0.0, 0.0])
    with pytest.raises(InputError, match=r"strictly between 0 and 1; 1 cell is not, for example 0\.0 at user 'b'"):
        Log.from_events(shown, zero, visits=visits, candidates=candidates)


def test_eligible_cells_agree_with_a_slow_filter() -> None:
    rng = np.random.default_rng(4)

    def draw(n: int) -> pd.DataFrame:
        days = [START + timedelta(days=int(d)) for d in rng.integers(0, 4, n)]
        return pd.DataFrame({"user_id": rng.integers(0, 5, n), "item_id": rng.integers(0, 4, n), "timestamp": days})

    shown, bought, visits, candidates = draw(60), draw(60), draw(12), draw(40)
    whole = Log.from_events(shown, bought, users=range(5), items=range(4))
    for own in (["item_id"], ["item_id", "timestamp"], ["user_id", "item_id", "timestamp"]):
        log = Log.from_events(
            shown, bought, users=range(5), items=range(4), visits=visits[["user_id", "timestamp"]],
            candidates=candidates[own],
        )  # fmt: skip
        came = set(zip(visits["user_id"], visits["timestamp"].dt.date, strict=True))
        could = {
            tuple(row) for row in candidates[own].assign(timestamp=candidates["timestamp"].dt.date)[own].to_numpy()
        }
        rows = whole.to_frame()
        kept = [
            (row.user_id, row.time) in came
            and tuple({"user_id": row.user_id, "item_id": row.item_id, "timestamp": row.time}[c] for c in own)
            in could
            for row in rows.itertuples()
        ]
        pd.testing.assert_frame_equal(log.to_frame(), rows[kept].reset_index(drop=True))
        assert log.eligibility is not None
        assert log.eligibility.contains(log.user, log.item, log.time).all()


def chances(*events: Any) -> pd.DataFrame:
    return table(list(events), "propensity", "slate_id")


def test_every_slate_was_a_chance_also_those_on_which_the_item_was_not_drawn() -> None:
    """a and b get two slates in the first week; item 1 was drawn on one of a's and is bought by b unseen."""
    later = START + timedelta(days=1)
    shown = table([("a", 1, START), ("b", 2, START), ("b", 2, later)])
    bought = table([("b", 1, START), ("c", 1, START), ("b", 3, later)])
    first = [("a", 1, START, 0.2, "s1"), ("a", 2, START, 0.8, "s1"), ("a", 1, later, 0.5, "s2")]
    twice = [("b", 1, START, 0.25, slate) for slate in ("s3", "s4", "s4")]
    rest = [("b", 2, START, 0.5, "s3"), ("b", 3, START, 0.0, "s3"), ("b", 2, START + timedelta(weeks=1), 0.5, "s5")]
    log = Log.from_events(shown, bought, slates=chances(*first, *twice, *rest), period="week")
    assert log.to_frame()[["user_id", "item_id", "treated", "outcome"]].to_numpy().tolist() == [
        ["a", 1, 1, 0], ["b", 1, 0, 1], ["b", 2, 1, 0]
    ]  # fmt: skip
    # s4 is one chance, though it is written twice
    np.testing.assert_allclose(np.asarray(log.propensity), [1 - 0.8 * 0.5, 1 - 0.75 * 0.75, 0.5])
    assert log.cells == 4  # a: 1 and 2, b: 1 and 2; item 3 had no chance
    assert log.eligibility.outside == (0, 2)  # c was shown no slate, and 3 could not be shown
    by_the_impression = Log.from_events(
        shown.assign(propensity=[0.2, 0.5, 0.5]), bought, combine="any", period="week"
    )
    assert by_the_impression.propensity is not None
    assert by_the_impression.propensity[0] == 0.2  # what the table of slates repairs


def test_a_few_certain_cells_are_set_aside_and_counted() -> None:
    shown = many_days(START, START + timedelta(days=2)).assign(propensity=0.5)
    shown.loc[shown["user_id"] == 3, "propensity"] = 1.0
    bought = shown.assign(propensity=0.5)
    log = Log.from_events(shown, bought, period="day")
    assert log.summary is not None
    assert (log.summary.impressions["certain"], log.summary.impressions["treated"]) == (3, 87)
    assert (log.summary.outcomes["certain"], log.summary.outcomes["matched"]) == (3, 87)
    assert sum(log.summary.impressions.values()) == len(shown)
    assert len(log) == 87
    assert "3 with a propensity of 0 or 1, set aside" in str(log.summary)
    shown.loc[shown["user_id"] < 9, "propensity"] = 1.0
    with pytest.raises(InputError, match=r"strictly between 0 and 1; 27 cells are not.*leave the column out"):
        Log.from_events(shown, bought, period="day")


def not_returned(values: list[float]) -> list[float]:
    """The slow twin: each return takes from the latest purchases that are left."""
    left: list[tuple[int, float]] = []
    kept = [0.0] * len(values)
    for n, value in enumerate(values):
        if value > 0:
            left.append((n, value))
        owed = -value
        while owed > 0 and left:
            latest, rest = left.pop()
            if rest > owed:
                left.append((latest, rest - owed))
            owed -= rest
    for n, rest in left:
        kept[n] = rest
    return kept


def test_returns_cancel_the_latest_purchases_before_them() -> None:
    """20 users with twelve days each, and one who returns nothing."""
    drawn = np.random.default_rng(0).choice([1.0, 2.5, 4.0, -1.0, -2.5], (20, 12)).tolist()
    days = [START + timedelta(days=n) for n in range(12)]
    bought = [(f"u{n}", 1, day, value) for n, mine in enumerate(drawn) for day, value in zip(days, mine, strict=True)]
    log = Log.from_events(SHOWN, table([*bought, ("b", 1, START, 0.1)], "value"), period="day")
    rows = log.to_frame().query("outcome == 1").set_index(["user_id", "time"])["value"]
    kept = {("b", START.date()): 0.1}
    for n, mine in enumerate(drawn):
        left = zip(days, not_returned(mine), strict=True)
        kept |= {(f"u{n}", day.date()): value for day, value in left if value > 0}
    assert rows.to_dict() == pytest.approx(kept)
    summary, values = log.summary, [value for mine in drawn for value in mine]
    assert summary is not None
    assert summary.outcomes["return"] == sum(value < 0 for value in values)
    assert summary.outcomes["returned"] == sum(value > 0 for value in values) + 1 - len(kept)
    assert sum(summary.outcomes.values()) == len(values) + 1
    assert "returns, netted against earlier outcomes" in str(summary)


def test_tables_of_rectools_and_lenskit_are_taken_as_they_are() -> None:
    value = BOUGHT.assign(value=[2.0, 3.0])
    rectools = value.rename(columns={"timestamp": "datetime", "value": "weight"})
    expected = Log.from_events(SHOWN, value)
    assert Log.from_events(SHOWN.rename(columns={"timestamp": "datetime"}), rectools).equals(expected)
    assert Log.from_events(SHOWN, BOUGHT.assign(weight=7.0)).value is None  # a shop's own column beside timestamp
    lenskit = BOUGHT.assign(rating=[4.5, 1.0])
    assert Log.from_events(SHOWN, lenskit).equals(Log.from_events(SHOWN, BOUGHT))


def test_the_recipe_for_slates_gives_probabilities_that_were_true(tmp_path: Path, taurank: Command) -> None:
    """One to three slates a user, drawn by a softmax: Σ Z / P of treated cells estimates the eligible ones."""
    rng, n_items, size = np.random.default_rng(0), 12, 3
    scores, rows, shown = rng.normal(size=(300, n_items)), [], []
    for user in range(300):
        for slate in range(rng.integers(1, 4)):
            when = START + timedelta(days=int(rng.integers(7)), minutes=slate)
            race = np.argsort(scores[user] + rng.gumbel(size=n_items))[::-1]
            rows += [(user, item, when, f"{user}-{slate}", scores[user, item]) for item in range(n_items)]
            shown += [(user, int(item), when) for item in race[:size]]
    columns = ["user_id", "item_id", "timestamp", "slate_id", "score"]
    pd.DataFrame(rows, columns=columns).to_parquet(tmp_path / "candidates.parquet")
    table(shown).to_parquet(tmp_path / "shown.parquet")
    table(shown[::7]).to_parquet(tmp_path / "bought.parquet")
    chances, out = tmp_path / "chances.parquet", tmp_path / "log.parquet"
    command = ["propensity", "slates", tmp_path / "candidates.parquet", "--size", size, "--out", chances]
    assert taurank(*command).code == 0
    command = ["log", "build", tmp_path / "shown.parquet", tmp_path / "bought.parquet", "--slates", chances]
    assert taurank(*command, "--out", out).code == 0
    log = Log.read(out)
    assert log.cells == 300 * n_items
    chance = log.recorded_propensity("the test")[log.treated == 1]
    assert (1 / chance).sum() / log.cells == pytest.approx(1, abs=4 * np.sqrt((1 / chance**2).sum()) / log.cells)
    assert len(log) == log.treated.sum()
