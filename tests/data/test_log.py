"""The log's contract: what goes in, what comes out, and what is refused with which sentence."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from taurank import Log
from taurank.data.reader import read_ids
from taurank.data.tables import open_table
from taurank.errors import InputError


def frame(**columns: Any) -> pd.DataFrame:
    plain = {
        "user_id": [3, 1, 1, 2],
        "item_id": ["b", "a", "b", "c"],
        "time": [0, 0, 1, 1],
        "treated": [1, 0, 1, 0],
        "outcome": [1, 1, 0, 0],
        "propensity": [0.2, 0.3, 0.4, 0.5],
    }
    return pd.DataFrame({**plain, **columns})


class TestFrames:
    def test_pandas_polars_and_pyarrow_give_the_same_log(self) -> None:
        table = frame()
        logs = [Log.from_frame(f) for f in (table, pl.DataFrame(table), pa.Table.from_pandas(table))]
        logs.append(Log.from_frame(pl.LazyFrame(table)))
        assert all(logs[0].equals(log) for log in logs[1:])

    def test_rows_become_codes_and_come_back(self) -> None:
        log = Log.from_frame(frame())
        assert (len(log), log.n_users, log.n_items, log.n_times) == (4, 3, 3, 2)
        assert [log.user.tolist(), log.item.tolist(), log.time.tolist()] == [[2, 0, 0, 1], [1, 0, 1, 2], [0, 0, 1, 1]]
        pd.testing.assert_frame_equal(log.to_frame(), frame(), check_dtype=False)

    def test_without_time_there_is_one_time_and_no_time_column(self) -> None:
        log = Log.from_frame(frame().drop(columns="time"))
        assert log.n_times == 1
        assert "time" not in log.to_frame()

    def test_catalog_may_be_larger_and_keeps_its_order(self) -> None:
        log = Log.from_frame(frame(), users=[9, 3, 2, 1], items=["c", "b", "a", "z"], times=[1, 0, 7])
        assert (log.n_users, log.n_items, log.n_times) == (4, 4, 3)
        assert log.user.tolist() == [1, 3, 3, 2]
        assert log.users.values.to_pylist() == [9, 3, 2, 1]
        assert log.times.values.to_pylist() == [1, 0, 7]

    def test_categorical_ids_and_boolean_flags(self) -> None:
        table = frame()
        same = table.assign(
            item_id=table["item_id"].astype("category"),
            treated=table["treated"].astype(bool),
            outcome=table["outcome"].astype(float),
        )
        assert Log.from_frame(table).equals(Log.from_frame(same))

    def test_research_format(self) -> None:
        names = {"user_id": "idx_user", "item_id": "idx_item", "time": "idx_time"}
        research = frame(causal_effect=[1, 0, -1, 0]).rename(columns=names)
        assert Log.from_frame(research).equals(Log.from_frame(frame()))


class TestFiles:
    def test_parquet_is_exact_with_the_catalog(self, tmp_path: Path) -> None:
        log = Log.from_frame(frame(), users=[9, 3, 2, 1], times=[1, 0, 7])
        log.write(tmp_path / "log.parquet")
        assert Log.read(tmp_path / "log.parquet").equals(log)
        assert Log.from_frame(log.to_arrow()).equals(log)

    def test_csv_is_exact_for_the_rows(self, tmp_path: Path) -> None:
        log = Log.from_frame(frame(user_id=["007", "1e3", "1e3", ""], propensity=[1 / 3, 1e-9, 0.1, 0.7]))
        log.write(tmp_path / "log.csv")
        assert Log.read(tmp_path / "log.csv").equals(log)

    def test_csv_ids_that_look_like_numbers_stay_text_if_asked(self, tmp_path: Path) -> None:
        log = Log.from_frame(frame(user_id=["3", "1", "1", "2"]))
        log.write(tmp_path / "log.csv")
        assert not Log.read(tmp_path / "log.csv").equals(log)
        assert Log.read(tmp_path / "log.csv", id_types={"user_id": "string"}).equals(log)
        assert Log.read(tmp_path / "log.csv", users=["1", "2", "3"]).equals(log)

    def test_csv_types_are_decided_on_the_whole_column(self, tmp_path: Path) -> None:
        (tmp_path / "log.csv").write_text("user_id,item_id,treated,outcome\n1,1,1,0\nx,1,True,false\n")
        log = Log.read(tmp_path / "log.csv")
        assert log.users.values.to_pylist() == ["1", "x"]
        assert log.treated.tolist() == [1, 1]

    @pytest.mark.parametrize("suffix", ["parquet", "csv"])
    def test_folder_and_glob(self, tmp_path: Path, suffix: str) -> None:
        whole = Log.from_frame(frame())
        for part, rows in (("a", slice(0, 2)), ("b", slice(2, 4))):
            Log.from_frame(frame()[rows]).write(tmp_path / f"{part}.{suffix}")
        for path in (tmp_path, tmp_path / f"*.{suffix}"):
            pd.testing.assert_frame_equal(Log.read(path).to_frame(), whole.to_frame())

    def test_many_batches(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("taurank.data.tables.BATCH_ROWS", 7)
        monkeypatch.setattr("taurank.data.tables.CSV_BLOCK_BYTES", 200)
        rng = np.random.default_rng(0)
        cells = rng.permutation(400)[:150]
        table = pd.DataFrame(
            {"user_id": cells // 20, "item_id": cells % 20, "treated": 1, "outcome": 0, "propensity": 0.5}
        )
        log = Log.from_frame(table)
        for name in ("log.parquet", "log.csv"):
            log.write(tmp_path / name)
            assert Log.read(tmp_path / name).equals(log)
        pd.testing.assert_frame_equal(log.to_frame(), table, check_dtype=False)

    def test_nothing_is_written_when_writing_fails(self, tmp_path: Path) -> None:
        log = Log.from_frame(frame())
        with pytest.raises(InputError, match=r"does not end in \.parquet or \.csv"):
            log.write(tmp_path / "log.xlsx")
        with pytest.raises(InputError, match="does not exist"):
            log.write(tmp_path / "none" / "log.csv")
        assert list(tmp_path.iterdir()) == []


def changed(column: str, value: Any, rows: int = 1) -> pd.DataFrame:
    table = frame().astype({column: object})
    table.loc[: rows - 1, column] = value
    return table.infer_objects()


class TestRefusals:
    @pytest.mark.parametrize(
        ("table", "sentence"),
        [
            (frame().drop(columns="outcome"), "has no column 'outcome'; needed: user_id, item_id"),
            (frame()[:0], "has no rows"),
            (changed("user_id", None, 2), "column 'user_id' has 2 null values, the first in row 1; fill or drop"),
            (changed("item_id", None), "column 'item_id' has 1 null value"),
            (changed("time", None), "column 'time' has 1 null value"),
            (changed("treated", None), "column 'treated' has 1 null value"),
            (changed("treated", 2, 3), "column 'treated' must be 0 or 1; 3 rows are not, for example 2"),
            (changed("outcome", 0.5), "column 'outcome' must be 0 or 1; 1 row is not, for example 0.5"),
            (changed("outcome", -1), "'outcome' must be 0 or 1"),
            (frame(treated="yes"), "column 'treated' has type"),
            (changed("propensity", 0.0), "'propensity' must be a probability strictly between 0 and 1"),
            (changed("propensity", 1.0, 2), "2 rows are not, for example 1.0"),
            (changed("propensity", -0.1), "for example -0.1"),
            (changed("propensity", np.inf), "for example inf"),
            (frame(propensity=[1, 1, 1, 1]), "4 rows are not"),
            (frame(propensity=["a", "b", "c", "d"]), "'propensity' has type"),
            (
                pd.concat([frame(), frame()[:3]]),
                r"^3 rows repeat an earlier \(user_id, item_id, time\), .*; keep",
            ),
            (frame(user_id=[1, "a", 2, 3]), "the frame cannot be read"),
            (
                frame(user_id=[[1], [2], [3], [4]]),
                "'user_id' has type list.*; ids must be integers",
            ),
        ],
    )
    def test_bad_frames(self, table: pd.DataFrame, sentence: str) -> None:
        with pytest.raises(InputError, match=sentence):
            Log.from_frame(table)

    def test_nan_of_polars_and_arrow(self) -> None:
        table = pl.DataFrame(frame()).with_columns(propensity=pl.lit(float("nan")))
        with pytest.raises(InputError, match="4 rows are not, for example nan"):
            Log.from_frame(table)
        with pytest.raises(InputError, match="has double ids that are not int64"):
            Log.from_frame(table.with_columns(user_id=pl.lit(float("nan"))))

    @pytest.mark.parametrize(
        ("table", "lists", "sentence"),
        [
            (frame(), {"users": [2, 3]}, r"2 rows have a user_id that is not in users= \(2 ids\), for example 1"),
            (frame(), {"users": ["1", "2", "3"]}, "'user_id' has int64 ids such as 3, but the catalog"),
            (frame(), {"users": [1, 2, 2, 3]}, "has 1 id more than once, for example 2"),
            (frame().drop(columns="time"), {"times": [0, 1]}, "there is no column 'time'"),
            ([1, 2], {}, "frame is needed, got a list"),
        ],
    )
    def test_ids_outside_the_catalog(self, table: Any, lists: dict[str, Any], sentence: str) -> None:
        with pytest.raises(InputError, match=sentence):
            Log.from_frame(table, **lists)

    def test_a_null_propensity_is_not_recorded_and_stays_so_in_files(self, tmp_path: Path) -> None:
        log = Log.from_frame(frame(propensity=[0.2, None, 0.4, None]))
        assert log.n_without_propensity == 2
        np.testing.assert_array_equal(log.propensity, [0.2, np.nan, 0.4, np.nan])
        with pytest.raises(InputError, match=r"IPS needs the column 'propensity', which 2 rows lack.*estimate"):
            log.recorded_propensity("IPS")
        assert "2 rows without propensity" in repr(log)
        assert log.describe()["largest propensity"] == 0.4
        for name in ("log.parquet", "log.csv"):
            log.write(tmp_path / name)
            assert Log.read(tmp_path / name).equals(log)
        nothing = Log.from_frame(frame(propensity=[None] * 4))
        assert nothing.propensity is None
        with pytest.raises(InputError, match=r"which this log does not have.*propensity\.estimate\(log"):
            nothing.recorded_propensity("IPS")

    def test_with_propensity(self) -> None:
        log = Log.from_frame(frame().drop(columns="propensity"))
        assert log.with_propensity(frame()["propensity"]).equals(Log.from_frame(frame()))
        with pytest.raises(InputError, match=r"propensities must have one number per row, shape \(4,\), got \(1,\)"):
            log.with_propensity([0.5])
        with pytest.raises(InputError, match="1 row is not, for example nan"):
            log.with_propensity([0.5, 0.5, np.nan, 0.5])


def test_any_column_of_ids_can_be_read(tmp_path: Path) -> None:
    (tmp_path / "users.csv").write_text("user_id,segment\n7,b\n8,a\n9,b\n")
    source = open_table(tmp_path / "users.csv")
    assert read_ids(source, "user_id").to_pylist() == [7, 8, 9]
    assert read_ids(source, "segment").to_pylist() == ["b", "a", "b"]
    with pytest.raises(InputError, match="has no column 'plan'; found: user_id, segment"):
        read_ids(source, "plan")


class TestBadFiles:
    @pytest.mark.parametrize(
        ("text", "sentence"),
        [
            ("", "is empty"),
            ("user_id,item_id,treated,outcome\n", "has no rows"),
            ("user_id,item_id,treated,outcome\n1,2,1\n", "Expected 4 columns, got 3"),
            ("user_id,item_id,treated,outcome\n1,,1,0\n", "'item_id' has 1 null"),
            ("user_id,item_id,treated,outcome\n1,2,yes,0\n", "'treated' must be 0 or 1.*'yes'"),
            ("user_id,item_id,treated,outcome,propensity\n1,2,1,0,half\n", "between 0 and 1.*'half'"),
        ],
    )
    def test_bad_csv(self, tmp_path: Path, text: str, sentence: str) -> None:
        (tmp_path / "log.csv").write_text(text)
        with pytest.raises(InputError, match=sentence):
            Log.read(tmp_path / "log.csv")

    @pytest.mark.parametrize(
        ("name", "sentence"),
        [
            ("half.parquet", "not a complete Parquet file"),
            ("text.parquet", "a file of another kind"),
            ("binary.csv", "is a Parquet file"),
            ("none.parquet", "the file .* does not exist"),
            ("empty", r"contains no \.parquet or \.csv"),
            ("log.txt", r"does not end in \.parquet or \.csv"),
            ("*.*", "mixes Parquet and CSV"),
        ],
    )
    def test_files_that_are_not_tables(self, tmp_path: Path, name: str, sentence: str) -> None:
        for plain in ("a.csv", "a.parquet"):
            Log.from_frame(frame()).write(tmp_path / plain)
        text, binary = ((tmp_path / plain).read_bytes() for plain in ("a.csv", "a.parquet"))
        contents = {"half.parquet": binary[:-20], "text.parquet": text, "binary.csv": binary, "log.txt": text}
        if name in contents:
            (tmp_path / name).write_bytes(contents[name])
        (tmp_path / "empty").mkdir()
        with pytest.raises(InputError, match=sentence):
            Log.read(tmp_path / name)


ANY_ID = st.one_of(
    st.integers(-(2**70), 2**70),
    st.text(max_size=5),
    st.none(),
    st.floats(),
    st.booleans(),
    st.binary(max_size=3),
    st.dates(),
)
ANY_NUMBER = st.one_of(st.integers(-1, 2), st.floats(), st.none(), st.text(max_size=3), st.booleans())


@st.composite
def wild_tables(draw: st.DrawFn) -> dict[str, list[Any]]:
    rows = draw(st.integers(0, 5))
    kinds = {"user_id": ANY_ID, "item_id": ANY_ID, "time": ANY_ID}
    names = draw(st.sets(st.sampled_from(["user_id", "item_id", "time", "treated", "outcome", "propensity"])))
    return {name: draw(st.lists(kinds.get(name, ANY_NUMBER), min_size=rows, max_size=rows)) for name in sorted(names)}


@given(wild_tables())
@settings(max_examples=150, deadline=None)
@example({"user_id": [1], "item_id": [2**70], "treated": [1], "outcome": [1]})
def test_no_frame_makes_the_reader_fail_with_anything_but_its_own_error(table: dict[str, list[Any]]) -> None:
    try:
        log = Log.from_frame(pd.DataFrame(table))
    except InputError:
        return
    assert len(log) == len(next(iter(table.values())))


@given(
    st.one_of(st.binary(max_size=300), st.text(max_size=100).map(str.encode)),
    st.sampled_from(["csv", "parquet", "csv.gz"]),
)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(b"user_id,item_id,treated,outcome\n1,2,1,1\n", "csv")
@example(b"\xff\xfe", "csv")
@example(b"user_id,item_id,treated,outcome\n\xff,2,1,1\n", "csv")
def test_no_file_makes_the_reader_fail_with_anything_but_its_own_error(
    tmp_path: Path, content: bytes, suffix: str
) -> None:
    path = tmp_path / f"log.{suffix}"
    path.write_bytes(content)
    try:
        assert len(Log.read(path))
    except InputError:
        return


GOOD_IDS = st.one_of(
    st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=6),
    st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=4), min_size=1, max_size=6),
)


@st.composite
def good_tables(draw: st.DrawFn) -> pd.DataFrame:
    users, items = draw(GOOD_IDS), draw(GOOD_IDS)
    cells = draw(
        st.lists(
            st.tuples(st.sampled_from(users), st.sampled_from(items), st.integers(0, 3)),
            min_size=1, max_size=20, unique=True,
        )
    )  # fmt: skip
    n = len(cells)
    bits = st.lists(st.integers(0, 1), min_size=n, max_size=n)
    chances = st.floats(0, 1, exclude_min=True, exclude_max=True)
    columns = dict(zip(("user_id", "item_id", "time"), zip(*cells, strict=True), strict=True))
    return pd.DataFrame(
        {
            **columns,
            "treated": draw(bits),
            "outcome": draw(bits),
            "propensity": draw(st.lists(chances, min_size=n, max_size=n)),
        }
    )


@given(good_tables())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_good_rows_come_back_exactly(tmp_path: Path, table: pd.DataFrame) -> None:
    log = Log.from_frame(table)
    types = {"user_id": log.users.values.type, "item_id": log.items.values.type}
    log.write(tmp_path / "log.parquet")
    log.write(tmp_path / "log.csv")
    assert Log.read(tmp_path / "log.parquet").equals(log)
    assert Log.read(tmp_path / "log.csv", id_types=types).equals(log)


class TestChecksums:
    def test_a_flipped_bit_of_the_rows_is_refused_or_without_effect(self, tmp_path: Path) -> None:
        log, path = Log.from_frame(frame(), users=[9, 3, 2, 1]), tmp_path / "log.parquet"
        log.write(path)
        whole = path.read_bytes()
        rng, refused = np.random.default_rng(0), 0
        footer = int.from_bytes(whole[-8:-4], "little") + 8
        content = len(whole) - footer
        flips = 8 * np.arange(content) + rng.integers(8, size=content)  # a bit of every byte
        for flip in flips.tolist():
            data = bytearray(whole)
            data[flip // 8] ^= 1 << flip % 8
            path.write_bytes(bytes(data))
            try:
                assert Log.read(path).equals(log)
            except InputError:
                refused += 1
        assert refused > 0.6 * len(flips)

    def test_other_tools_read_a_file(self, tmp_path: Path) -> None:
        import duckdb

        path = tmp_path / "log.parquet"
        Log.from_frame(frame()).write(path)
        assert len(pd.read_parquet(path)) == len(pl.read_parquet(path)) == 4
        assert duckdb.sql(f"SELECT count(*) FROM '{path}'").fetchall() == [(4,)]


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda log: pickle.loads(pickle.dumps(log))])
def test_copies_are_equal_and_frozen(copied: Any) -> None:
    log = copied(Log.from_frame(frame()))
    assert log.equals(Log.from_frame(frame()))
    for array in (log.user, log.item, log.time, log.treated, log.outcome, log.propensity):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
