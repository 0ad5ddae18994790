"""Events to log: against a slow twin that reads the definition aloud, and every sentence of its errors."""

from __future__ import annotations

import math
import random
from collections import Counter, defaultdict
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taurank import Log
from taurank.data.events.build import COMBINE
from taurank.errors import InputError

START = datetime(2024, 2, 26)  # a Monday
FATES = ("matched", "control", "early", "late", "outside")
EDGES = [START + timedelta(hours=h) for h in (0, 20, 44, 50, 120)]

Event = tuple[str, int, datetime, float]
Row = tuple[Any, Any, Any, int, int, float]


def period_of(period: Any, instant: datetime) -> Any:
    """The name of the period an instant falls into; None outside the edges."""
    if period == "day":
        return instant.date()
    if period == "week":
        return instant.date() - timedelta(days=instant.weekday())
    return next((a for a, b in pairwise(period) if a <= instant < b), None)


def merged(combine: str, events: list[Event]) -> float:
    """One propensity for the events of a cell."""
    values = [p for *_, p in sorted(events, key=lambda event: (event[2], event[3]))]
    if combine == "first":
        return values[0]
    if combine == "any":
        return -math.expm1(math.fsum(math.log1p(-p) for p in values))  # 1 − Π(1 − p), to the last digits
    return max(values)


def slow_log(
    impressions: list[Event], outcomes: list[Event], period: Any, window: timedelta | None, combine: str
) -> tuple[list[Row], Counter[str]]:
    """The rows and the fate of every outcome, straight from the definition."""
    treated: dict[Any, list[Event]] = defaultdict(list)
    control: dict[Any, list[Event]] = defaultdict(list)
    positive, fates = set(), Counter[str]()
    for event in impressions:
        if period_of(period, event[2]) is not None:
            treated[*event[:2], period_of(period, event[2])].append(event)
    for event in outcomes:
        user, item, happened, _ = event
        earlier = [r for u, i, r, _ in impressions if (u, i) == (user, item) and r <= happened]
        explained = window is not None and bool(earlier) and happened <= max(earlier) + window
        own = period_of(period, happened)
        cell = (user, item, period_of(period, max(earlier)) if explained else own)
        if cell[2] is None:
            fate = "outside"
        elif cell not in treated:
            fate = "control"
            control[cell].append(event)
        elif explained or window is None:
            fate = "matched"
            positive.add(cell)
        else:
            shown_before = any(period_of(period, r) == own for r in earlier)
            fate = "late" if shown_before else "early"
        fates[fate] += 1
    rows = [(*cell, 1, int(cell in positive), merged(combine, events)) for cell, events in treated.items()]
    rows += [(*cell, 0, 1, merged(combine, events)) for cell, events in control.items()]
    return sorted(rows, key=lambda row: (row[2], row[0], row[1])), fates


def frame(events: list[Event], propensity: bool = True) -> pd.DataFrame:
    columns = ["user_id", "item_id", "timestamp", "propensity"]
    table = pd.DataFrame(events, columns=columns)
    return table if propensity else table.drop(columns="propensity")


def random_events(seed: int, n: int) -> list[Event]:
    """Few users, items and hours, so that repeats, ties and every fate occur."""
    rng = random.Random(seed)
    return [
        (
            rng.choice("abc"), rng.choice((7, 8, 30)), START + timedelta(hours=rng.randrange(-10, 200)),
            rng.choice((0.125, 0.25, 0.7, 1e-7)),
        )
        for _ in range(n)
    ]  # fmt: skip


def cell_propensity(events: list[Event], period: Any) -> list[Event]:
    """The same events with one propensity per cell, as combine="same" wants them."""
    values = (0.1, 0.35, 0.8)
    return [
        (u, i, t, values[(ord(u) + i + (period_of(period, t) or START).toordinal()) % 3]) for u, i, t, _ in events
    ]


def rows_of(log: Log) -> list[Row]:
    names = ["user_id", "item_id", "time", "treated", "outcome"]
    table = log.to_arrow()
    columns = [table[name].to_pylist() for name in names]
    values = [0.0] * len(log) if log.propensity is None else log.propensity.tolist()
    return list(zip(*columns, values, strict=True))


@pytest.mark.parametrize("combine", list(COMBINE))
@pytest.mark.parametrize("window", [None, timedelta(0), timedelta(hours=6), timedelta(days=2)])
@pytest.mark.parametrize("period", ["day", "week", EDGES], ids=["day", "week", "edges"])
def test_agrees_with_the_slow_twin(period: Any, window: timedelta | None, combine: str) -> None:
    impressions, outcomes = random_events(1, 60), random_events(2, 60)
    if combine == "same":
        impressions, outcomes = (cell_propensity(events, period) for events in (impressions, outcomes))
    log = Log.from_events(frame(impressions), frame(outcomes), period=period, window=window, combine=combine)
    impressions, outcomes = (list(dict.fromkeys(events)) for events in (impressions, outcomes))  # duplicates once
    rows, fates = slow_log(impressions, outcomes, period, window, combine)
    assert [row[:5] for row in rows_of(log)] == [row[:5] for row in rows]
    np.testing.assert_allclose([row[5] for row in rows_of(log)], [row[5] for row in rows], rtol=1e-13)
    summary = log.summary
    assert summary is not None
    if (period, window) == (EDGES, timedelta(hours=6)):  # else the comparison would be silent about some fates
        assert min(fates[fate] for fate in FATES) > 0
    assert {fate: n for fate, n in summary.outcomes.items() if fate not in ("duplicate", "null", "not eligible")} == {
        fate: fates[fate] for fate in FATES
    }


events_strategy = st.lists(
    st.tuples(st.sampled_from("ab"), st.sampled_from([1, 2]), st.integers(0, 60)), min_size=1, max_size=12
)


@settings(max_examples=15, deadline=None)
@given(events_strategy, events_strategy, st.sampled_from([None, 0, 5, 30]), st.randoms())
def test_every_event_is_accounted_for(shown: Any, happened: Any, hours: int | None, rng: Any) -> None:
    impressions, outcomes = (
        [(u, i, START + timedelta(hours=h), 0.5) for u, i, h in events] for events in (shown, happened)
    )
    window = None if hours is None else timedelta(hours=hours)
    log = Log.from_events(frame(impressions), frame(outcomes), window=window)
    rows, _ = slow_log(impressions, outcomes, "day", window, "same")
    assert rows_of(log) == rows
    s = log.summary
    assert s is not None
    assert s.impressions["duplicate"] == len(shown) - len(set(shown))
    assert s.outcomes["duplicate"] == len(happened) - len(set(happened))
    assert (sum(s.impressions.values()), sum(s.outcomes.values())) == (len(shown), len(happened))
    assert s.repeated_outcomes == s.outcomes["matched"] + s.outcomes["control"] - int(log.outcome.sum())
    assert s.rows == len(log) == s.impressions["treated"] + int((log.treated == 0).sum())
    rng.shuffle(impressions)
    rng.shuffle(outcomes)
    assert Log.from_events(frame(impressions), frame(outcomes), window=window).equals(log)


@pytest.mark.parametrize("combine", ["any", "first", "max"])
def test_row_order_and_threads_change_nothing(combine: str) -> None:
    impressions, outcomes = random_events(5, 300), random_events(6, 300)
    options: dict[str, Any] = {"window": "6 hours", "period": "week", "combine": combine}
    log = Log.from_events(frame(impressions), frame(outcomes), threads=1, **options)
    random.Random(0).shuffle(impressions)
    random.Random(1).shuffle(outcomes)
    again = Log.from_events(frame(impressions), frame(outcomes), threads=2, memory_limit="200MB", **options)
    assert again.equals(log)
    assert again.summary == log.summary


def test_many_chances_stay_a_probability() -> None:
    often = [("a", 1, START + timedelta(minutes=m), 0.99) for m in range(30)]
    rare = [("b", 1, START + timedelta(minutes=m), 1e-12) for m in range(2)]
    log = Log.from_events(frame(often + rare), frame([("a", 1, START, 0.5)]), combine="any")
    assert log.propensity is not None
    assert log.propensity[0] == np.nextafter(1.0, 0.0)
    assert log.propensity[1] == pytest.approx(2e-12, rel=1e-11)


def small_tables() -> tuple[pd.DataFrame, pd.DataFrame]:
    return frame(cell_propensity(random_events(3, 40), "day")), frame(cell_propensity(random_events(4, 40), "day"))


@pytest.mark.parametrize(
    "convert",
    [pl.from_pandas, lambda f: pl.from_pandas(f).lazy(), pa.Table.from_pandas],
    ids=["polars", "lazy", "pyarrow"],
)
def test_frames_of_every_kind_give_the_same_log(convert: Callable[[pd.DataFrame], Any]) -> None:
    impressions, outcomes = small_tables()
    expected = Log.from_events(impressions, outcomes, window="1 day")
    assert Log.from_events(convert(impressions), convert(outcomes), window="1 day").equals(expected)


def test_files_give_the_same_log(tmp_path: Path) -> None:
    impressions, outcomes = small_tables()
    expected = Log.from_events(impressions, outcomes, window="1 day")
    folder = tmp_path / 'it\'s "the" shop'
    folder.mkdir()
    for name, part in (("a", impressions[:17]), ("b", impressions[17:])):
        part.to_parquet(folder / f"{name}.parquet", index=False)
    outcomes.to_csv(tmp_path / "outcomes.csv", index=False)
    outcomes.to_parquet(tmp_path / "outcomes.parquet", index=False)
    for shown in (folder, str(folder / "*.parquet")):
        for happened in (tmp_path / "outcomes.csv", tmp_path / "outcomes.parquet", outcomes):
            assert Log.from_events(shown, happened, window="1 day").equals(expected)


def test_ids_of_csv_files_are_typed_over_both_tables(tmp_path: Path) -> None:
    (tmp_path / "shown.csv").write_text("user_id,item_id,timestamp\n1,7,2024-01-01\n2,8,2024-01-01 10:30\n")
    (tmp_path / "bought.csv").write_text("user_id,item_id,timestamp\n10,007,2024-01-02T00:00:00.123456789\n")
    log = Log.from_events(tmp_path / "shown.csv", tmp_path / "bought.csv")
    assert log.users.values.to_pylist() == [1, 2, 10]
    assert log.items.values.to_pylist() == ["007", "7", "8"]
    text = Log.from_events(tmp_path / "shown.csv", tmp_path / "bought.csv", id_types={"user_id": "string"})
    assert text.users.values.to_pylist() == ["1", "10", "2"]


def test_empty_periods_between_first_and_last_count() -> None:
    impressions = frame([("a", 1, START, 0.5)], propensity=False)
    outcomes = frame([("a", 1, START + timedelta(days=15), 0.5)], propensity=False)
    days, weeks = (Log.from_events(impressions, outcomes, period=period) for period in ("day", "week"))
    assert days.times.values.to_pylist() == [START.date() + timedelta(days=k) for k in range(16)]
    assert weeks.times.values.to_pylist() == [START.date() + timedelta(weeks=k) for k in range(3)]
    assert Log.from_events(impressions, impressions, period=EDGES).times.values.to_pylist() == EDGES[:-1]


@pytest.mark.parametrize(
    ("edges", "names"),
    [
        (["2024-02-01", "2024-03-01"], [date(2024, 2, 1)]),
        (["2024-02-01 06:00", "2024-03-01"], [datetime(2024, 2, 1, 6)]),
        ([date(2024, 2, 1), datetime(2024, 3, 1, 12)], [datetime(2024, 2, 1)]),
        (np.array(["2024-02-01", "2024-03-01"], "datetime64[D]"), [date(2024, 2, 1)]),
        (pd.date_range("2024-02-01", periods=2, freq="MS"), [date(2024, 2, 1)]),
    ],
)
def test_edges_of_many_kinds(edges: Any, names: list[Any]) -> None:
    table = frame([("a", 1, START, 0.5), ("b", 1, datetime(2024, 3, 2), 0.5)])
    log = Log.from_events(table, table, period=edges)
    assert log.times.values.to_pylist() == names
    assert len(log) == 1
    assert log.users.values.to_pylist() == ["a", "b"]
    assert log.summary is not None
    assert log.summary.impressions["outside"] == log.summary.outcomes["outside"] == 1


def test_the_example_of_the_documentation() -> None:
    first, second, third = (datetime(2024, 3, day) for day in (1, 2, 3))
    hours = [timedelta(hours=h) for h in range(24)]
    impressions = [("ann", 1, first + hours[10]), ("ann", 1, first + hours[12]), ("bob", 2, third + hours[9])]
    outcomes = [("ann", 1, second + hours[1]), ("bob", 2, third + hours[8]), ("cy", 1, second + hours[11])]
    tables = [frame([(*event, 0.5) for event in events]) for events in (impressions, outcomes)]
    shown_to_ann, shown_to_bob = ("ann", 1, first.date(), 1), ("bob", 2, third.date(), 1)
    control = ("cy", 1, second.date(), 0, 1, 0.5)
    ann_again = ("ann", 1, second.date(), 0, 1, 0.5)
    by_period = [(*shown_to_ann, 0, 0.5), ann_again, control, (*shown_to_bob, 1, 0.5)]
    assert rows_of(Log.from_events(*tables)) == by_period
    by_window = [(*shown_to_ann, 1, 0.5), control, (*shown_to_bob, 0, 0.5)]
    assert rows_of(Log.from_events(*tables, window="1 day")) == by_window


def test_an_outcome_goes_where_its_impression_is_even_across_the_last_edge() -> None:
    edges = [START, START + timedelta(days=1), START + timedelta(days=2)]
    hour = timedelta(hours=1)
    impressions = frame([("a", 1, edges[2] - hour, 0.5), ("b", 1, edges[0] - hour, 0.5)])
    outcomes = frame([("a", 1, edges[2] + hour, 0.5), ("b", 1, edges[0] + hour, 0.5)])
    log = Log.from_events(impressions, outcomes, period=edges, window="3 hours")
    assert rows_of(log) == [("a", 1, edges[1].date(), 1, 1, 0.5)]
    assert log.summary is not None
    assert (log.summary.outcomes["matched"], log.summary.outcomes["outside"]) == (1, 1)


def test_days_follow_the_time_zone() -> None:
    """The night the clocks go forward: 31 March 2024 begins at 23:00 UTC and has 23 hours."""
    utc = [datetime(2024, 3, 30, 22, 59), datetime(2024, 3, 30, 23), datetime(2024, 3, 31, 22)]
    table = frame([("a", 1, t, 0.5) for t in utc])
    table["timestamp"] = table["timestamp"].dt.tz_localize("UTC").dt.tz_convert("Europe/Berlin")
    days = [date(2024, 3, 30), date(2024, 3, 31), date(2024, 4, 1)]
    for period in ("day", [*days, date(2024, 4, 2)]):
        log = Log.from_events(table, table, period=period)
        assert log.to_arrow()["time"].to_pylist() == days
    assert "Europe/Berlin" in str(log.summary)
    log = Log.from_events(table, table, period=[t.replace(tzinfo=UTC) for t in (utc[0], utc[2])])
    assert len(log) == 1


def test_time_before_1970_and_nanoseconds_round_down() -> None:
    nanoseconds = pa.array([-1, 0], pa.int64()).view(pa.timestamp("ns"))
    table = pa.table({"user_id": [1, 1], "item_id": [1, 1], "timestamp": nanoseconds})
    log = Log.from_events(table, table)
    assert log.times.values.to_pylist() == [date(1969, 12, 31), date(1970, 1, 1)]
    weeks = Log.from_events(table, table, period="week").times.values.to_pylist()
    assert weeks == [date(1969, 12, 29)]


def test_a_given_catalog_keeps_its_order() -> None:
    table = frame([("a", 1, START, 0.5), ("b", 2, START, 0.5)])
    log = Log.from_events(table, table, users=["z", "b", "a"], items=[2, 1, 0])
    assert (log.n_users, log.n_items) == (3, 3)
    assert log.to_arrow()["user_id"].to_pylist() == ["b", "a"]


@pytest.mark.parametrize(
    ("shown", "happened", "lacking"),
    [(True, True, 0), (True, False, 1), (False, True, 1), (False, False, 2)],
)
def test_recorded_propensities_are_kept_where_other_rows_have_none(shown: bool, happened: bool, lacking: int) -> None:
    impressions = frame([("a", 1, START, 0.25)], shown)
    outcomes = frame([("a", 1, START, 0.5), ("b", 1, START, 0.75)], happened)
    log = Log.from_events(impressions, outcomes)
    assert log.summary is not None
    assert log.summary.rows_without_propensity == lacking
    if lacking == 2:
        assert log.propensity is None
    else:
        assert log.propensity is not None
        np.testing.assert_array_equal(log.propensity, [0.25 if shown else np.nan, 0.75 if happened else np.nan])
    if lacking:
        assert f"{lacking} of 2 rows have none" in str(log.summary)
        assert "taurank.propensity.estimate" in str(log.summary)


@pytest.mark.parametrize(("combine", "expected"), [("same", 0.25), ("any", np.nan), ("first", 0.25), ("max", 0.25)])
def test_a_null_propensity_among_the_events_of_a_cell(combine: str, expected: float) -> None:
    """1 − Π(1 − p) needs every p; the other choices take what was recorded."""
    shown = frame([("a", 1, START, 0.25), ("a", 1, START, float("nan")), ("b", 1, START, 0.5)])
    log = Log.from_events(shown, frame([("a", 1, START, 0.5)]), combine=combine)
    assert log.propensity is not None
    np.testing.assert_array_equal(log.propensity, [expected, 0.5])


def test_summary_reads() -> None:
    text = str(Log.from_events(*small_tables(), window=timedelta(days=1, hours=6)).summary)
    for words in (
        "impressions  40",
        "treated cells",
        "before the impression",
        "without an impression",
        "1 day, 6:00",
    ):
        assert words in text
    assert max(len(line) for line in text.splitlines()) <= 80


def changed(column: str, values: Any) -> pd.DataFrame:
    table = frame([("a", 1, START, 0.5), ("b", 2, START, 0.5), ("c", 3, START, 0.5)])
    return table.assign(**{column: values})


GOOD = changed("propensity", 0.5)


@pytest.mark.parametrize(
    ("impressions", "sentence"),
    [
        (GOOD.drop(columns="item_id"), "impressions .* has no column 'item_id'; needed: user_id, item_id"),
        (changed("user_id", ["a", None, "c"]), "'impressions.user_id' has 1 null value, the first in row 2"),
        (changed("timestamp", [pd.NaT, START, pd.NaT]), "'impressions.timestamp' has 2 null .* row 1;"),
        (changed("timestamp", None), "'impressions.timestamp' has 3 null values"),
        (changed("timestamp", [1704067200] * 3), "has numbers such as 1704067200, .*unit='s'"),
        (changed("timestamp", ["2024-01-01"] * 3), "has .*string such as '2024-01-01', .*to_datetime"),
        (
            changed("propensity", [0.5, 1.0, 0.0]),
            "'impressions.propensity' must .* 2 cells are not, .* 1.0 at user 'b'",
        ),
        (changed("propensity", [0.5, np.inf, 0.5]), "1 row is not, for example inf"),
        (changed("propensity", ["x"] * 3), "'impressions.propensity' has type"),
        (pl.from_pandas(GOOD).with_columns(propensity=pl.lit(float("nan"))), "3 rows are not, .* nan"),
        (changed("user_id", [1, 2, 3]), "'outcomes.user_id' has string ids such as 'a', but the catalog has int64"),
        (GOOD[:0], "impressions has no rows"),
        (changed("timestamp", [START.replace(tzinfo=UTC)] * 3), "the time zone UTC in impressions and no"),
        ([1, 2], "impressions: a pandas, Polars or PyArrow frame is needed, got a list"),
        ("no/such/file.parquet", "impressions: the file .* does not exist"),
    ],
)
def test_bad_tables_are_refused(impressions: Any, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        Log.from_events(impressions, GOOD)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"period": "year"}, "period must be 'day', 'week' or 'month', a number of them .*, got 'year'"),
        ({"period": [START]}, "edges of period must be at least two, without a null, and increase"),
        ({"period": 7}, "period must be 'day', 'week' or 'month', .*, got 7"),
        ({"period": [1, 2]}, "edges that are not all dates or timestamps such as .*: 1, 2"),
        ({"period": ["2024-02-30", "2024-03-01"]}, "edges that are not all dates .*: '2024-02-30', '2024-03-01'"),
        ({"period": [EDGES[1], EDGES[0]]}, "without a null, and increase"),
        ({"period": [datetime(2030, 1, 1), datetime(2031, 1, 1)]}, "3 impressions falls into the given"),
        ({"period": [t.replace(tzinfo=UTC) for t in EDGES]}, "no time zone, but the edges .* UTC"),
        ({"window": "-3 days"}, "window must be a timedelta ≥ 0 or text such as '3 days' .*, got '-3 days'"),
        ({"window": timedelta(-1)}, "window must be a timedelta ≥ 0"),
        ({"window": "3"}, "window must be a timedelta ≥ 0"),
        ({"window": 3}, "window must be a timedelta ≥ 0"),
        ({"threads": "two"}, "threads must be an integer"),
        ({"memory_limit": 5.5j}, "cannot be used"),
        ({"memory_limit": "much"}, "memory_limit.* cannot be used"),
        ({"combine": ["any"]}, "combine must be one of"),
        ({"combine": "mean"}, "combine must be one of 'same', 'any', 'first', 'max', got 'mean'"),
        ({"users": ["a", "b"]}, "impressions: 1 row has a user_id that is not in users= .2 ids., for example 'c'"),
        ({"items": ["1", "2"]}, "'impressions.item_id' has int64 ids .* string ids"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        Log.from_events(GOOD, GOOD, **options)


def test_differing_propensities_are_refused_in_both_arms() -> None:
    twice = frame([("a", 1, START, 0.2), ("a", 1, START + timedelta(hours=1), 0.4)])
    example = "differs within 1 cell, for example 0.2 and 0.4 at user 'a', item 1, period 2024-02-26; set combine"
    with pytest.raises(InputError, match=f"'impressions.propensity' {example}"):
        Log.from_events(twice, GOOD)
    with pytest.raises(InputError, match=f"'outcomes.propensity' {example}"):
        Log.from_events(GOOD[1:], twice)


@pytest.mark.parametrize(
    ("stamps", "sentence"),
    [
        (["2024-01-01", "soon", "2024-02-30"], "must be a timestamp .* 2 rows are not, for example 'soon'"),
        (["1704067200", "2024-01-01", "2024-01-01"], "1 row is not, for example '1704067200'"),
        (["2024-01-01 10:00Z", "2024-01-01", "2024-01-01"], "mixes timestamps with and without a time zone"),
        (["2024-01-01", "", "2024-01-01"], "'impressions.timestamp' has 1 null value, the first in row 2"),
    ],
)
def test_bad_text_in_a_csv_is_refused(tmp_path: Path, stamps: list[str], sentence: str) -> None:
    changed("timestamp", stamps).to_csv(tmp_path / "shown.csv", index=False)
    with pytest.raises(InputError, match=sentence):
        Log.from_events(tmp_path / "shown.csv", GOOD)


def test_files_that_disagree_are_refused(tmp_path: Path) -> None:
    whole = pa.Table.from_pandas(GOOD)
    pq.write_table(whole, tmp_path / "a.parquet")
    zoned = whole["timestamp"].cast(pa.timestamp("us", "UTC"))
    for column, values, sentence in (
        (
            "user_id",
            pa.array([1, 2, 3]),
            "'impressions.user_id' has int64 ids such as 1, but the catalog has string",
        ),
        ("timestamp", zoned, "no time zone in impressions and the time zone UTC in impressions"),
    ):
        position = whole.schema.get_field_index(column)
        pq.write_table(whole.set_column(position, column, values), tmp_path / "b.parquet")
        with pytest.raises(InputError, match=sentence):
            Log.from_events(tmp_path, GOOD)
    (tmp_path / "b.parquet").write_bytes((tmp_path / "a.parquet").read_bytes()[:-20])
    with pytest.raises(InputError, match="not a complete Parquet file"):
        Log.from_events(tmp_path, GOOD)


def test_one_wrong_date_is_told() -> None:
    shown = pd.DataFrame(
        {"user_id": [1, 1], "item_id": [1, 2], "timestamp": pd.to_datetime(["1700-01-01", "2024-01-01"])}
    )
    with pytest.raises(InputError, match=r"reach from 1700-01-01 to 2024-01-01, 118,339 periods, but only 2"):
        Log.from_events(shown, shown, period="day")
