"""``recommend``, ``score`` and ``write_recommendations``: the best items, the caller's ids, the unknown ones."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest

from taurank import Log
from taurank._threads import one_blas_thread
from taurank.data.eligibility import Eligibility
from taurank.data.ids import Ids
from taurank.errors import InputError
from taurank.learners import BPR, CUBN, LEARNERS, CountingBayes, Learner, scorer


@pytest.fixture(scope="module")
def model(log: Log) -> Learner:
    return BPR(random_state=0, factors=16, epochs=3, learning_rate=0.03).fit(log)


class TestRecommend:
    def test_agrees_with_a_full_sort(self, model: Learner) -> None:
        frame = model.recommend(k=7)
        all_scores = model.score_block(np.arange(300, dtype=np.int32))
        for user, rows in frame.groupby("user_id"):
            scores = all_scores[int(str(user))]
            best = np.argsort(-scores, kind="stable")[:7]
            assert rows["item_id"].tolist() == best.tolist()
            assert rows["score"].tolist() == scores[best].tolist()
            assert rows["rank"].tolist() == list(range(1, 8))

    def test_score_agrees(self, model: Learner) -> None:
        frame = model.recommend([4, 2], k=3)
        assert model.score(frame["user_id"], frame["item_id"]).tolist() == frame["score"].tolist()
        assert model.score([5], [1, 2, 3]).shape == (3,)

    def test_score_of_many_pairs_in_any_order(self, model: Learner) -> None:
        """More users than one block holds, pairs shuffled and repeated: each score is that of its own pair."""
        rng = np.random.default_rng(0)
        users, items = rng.integers(0, 300, 2000), rng.integers(0, 60, 2000)
        whole = model.score_block(np.arange(300, dtype=np.int32))
        assert np.array_equal(model.score(users, items), whole[users, items])

    def test_order_of_users_is_the_callers(self, model: Learner) -> None:
        assert model.recommend([9, 2, 5], k=1)["user_id"].tolist() == [9, 2, 5]

    def test_excluded_items_never_come_back(self, model: Learner, log: Log) -> None:
        bought = log.to_frame().query("outcome == 1")
        pairs = set(zip(bought["user_id"], bought["item_id"], strict=True))
        for exclude in (log, bought[["user_id", "item_id"]]):
            frame = model.recommend(k=60, exclude=exclude)
            assert not pairs & set(zip(frame["user_id"], frame["item_id"], strict=True))
            assert len(frame) == 300 * 60 - len(pairs)

    def test_unknown_users_beside_the_first_known_one(self, model: Learner) -> None:
        first = model.recommend([0], k=2)
        with pytest.raises(InputError, match=r"1 user is not in the log .* 12345; .* unknown_users"):
            model.recommend([0, 12345])
        with pytest.warns(UserWarning, match=r"1 user is not in the log .* 12345"):
            pd.testing.assert_frame_equal(model.recommend([0, 12345], k=2, unknown_users="warn"), first)
        frame = model.recommend([12345, 0], k=2, unknown_users="popular")
        assert frame["user_id"].tolist() == [12345, 12345, 0, 0]
        assert frame["item_id"].tolist()[2:] == first["item_id"].tolist()
        assert frame["item_id"][:2].tolist() == np.argsort(-model.popularity_, kind="stable")[:2].tolist()

    @pytest.mark.parametrize("suffix", ["parquet", "csv"])
    def test_streams_to_a_file(self, model: Learner, tmp_path: Path, suffix: str) -> None:
        path = tmp_path / f"best.{suffix}"
        assert model.write_recommendations(path, k=5) == 300 * 5
        read = pd.read_parquet(path) if suffix == "parquet" else pd.read_csv(path)
        pd.testing.assert_frame_equal(read, model.recommend(k=5), check_dtype=False)

    def test_threads_do_not_change_it(self, model: Learner) -> None:
        pd.testing.assert_frame_equal(model.recommend(k=5, threads=1), model.recommend(k=5, threads=3))

    def test_unknown_candidates(self, model: Learner) -> None:
        with pytest.raises(InputError, match=r"2 candidates are not in the log .* 777; .* unknown_items"):
            model.recommend([1], candidates=[4, 777, 778])
        with pytest.warns(UserWarning, match=r"1 candidate is not in the log .* 777; .* never recommended"):
            frame = model.recommend([1], candidates=[4, 777, 8], unknown_items="warn")
        assert sorted(frame["item_id"]) == [4, 8]
        dropped = model.recommend([1], candidates=[4, 777, 8], unknown_items="drop")
        pd.testing.assert_frame_equal(dropped, frame)
        assert model.recommend([1], candidates=[777], unknown_items="drop").empty

    def test_candidates_of_each_user(self, model: Learner) -> None:
        """Against the slow twin: the best of all items, those that are not the user's own left out."""
        pairs = pd.DataFrame({"user_id": [1, 1, 1, 2, 2, 5], "item_id": [4, 8, 15, 8, 3, 40]})
        whole = model.recommend([5, 2, 7, 1], k=60)
        expected = whole.merge(pairs)  # user 7 has none
        expected = expected[expected.groupby("user_id").cumcount() < 2].reset_index(drop=True)
        frame = model.recommend([5, 2, 7, 1], k=2, candidates=pairs)
        assert frame["rank"].tolist() == [1, 1, 2, 1, 2]
        pd.testing.assert_frame_equal(frame.drop(columns="rank"), expected.drop(columns="rank"))
        left = model.recommend([1], candidates=pairs, exclude=pd.DataFrame({"item_id": [8]}))
        assert sorted(left["item_id"]) == [4, 15]
        new = model.recommend([999], candidates=pairs.assign(user_id=999), unknown_users="popular", k=9)
        assert sorted(new["item_id"]) == [3, 4, 8, 15, 40]

    def test_candidates_of_a_log_are_what_its_last_time_had(self, model: Learner, log: Log) -> None:
        last = log.n_times - 1
        own = (np.array([1, 1, 2, 2]), np.array([4, 8, 3, 5]), np.array([last, last, last, 0]))
        listed = replace(log, eligibility=Eligibility.from_positions(log.catalog, None, own))
        frame = model.recommend(k=3, candidates=listed)
        assert sorted(zip(frame["user_id"], frame["item_id"], strict=True)) == [(1, 4), (1, 8), (2, 3)]
        timed = Eligibility.from_positions(log.catalog, None, (None, np.array([7, 9, 11]), np.array([last, last, 0])))
        assert set(model.recommend(k=3, candidates=replace(log, eligibility=timed))["item_id"]) == {7, 9}
        pd.testing.assert_frame_equal(model.recommend(k=3, candidates=log), model.recommend(k=3))

    def test_unknown_candidates_of_a_file(self, model: Learner, tmp_path: Path) -> None:
        rows = model.write_recommendations(
            tmp_path / "best.csv", users=[1, 2], candidates=[4, 777], unknown_items="drop"
        )
        assert rows == 2

    def test_unknown_items_exclude_nothing_and_unknown_users_have_exclusions_too(self, model: Learner) -> None:
        pairs = pd.DataFrame({"user_id": [1, 1, 9999, 8888], "item_id": [4, 777, 5, 6]})
        frame = model.recommend([1, 2, 9999], k=60, exclude=pairs, unknown_users="popular")
        assert frame.groupby("user_id").size().tolist() == [59, 60, 59]
        assert 4 not in set(frame[frame["user_id"] == 1]["item_id"])
        assert 5 not in set(frame[frame["user_id"] == 9999]["item_id"])

    def test_items_that_are_out_of_stock(self, model: Learner) -> None:
        for candidates, stock in ((range(60), set(range(60)) - {8, 9}), ([4, 8, 15], {4, 15}), ([8], set())):
            frame = model.recommend(
                [1, 2], k=60, candidates=candidates, exclude=pd.DataFrame({"item_id": [8, 9, 999]})
            )
            assert list(frame) == ["user_id", "item_id", "score", "rank"]
            for user in (1, 2):
                assert sorted(frame[frame["user_id"] == user]["item_id"]) == sorted(stock)

    @pytest.mark.parametrize(
        ("arguments", "sentence"),
        [
            ({"k": 0}, "k must be an integer ≥ 1"),
            ({"unknown_users": "perhaps"}, "unknown_users"),
            ({"exclude": pd.DataFrame({"user_id": [1]})}, "exclude needs a column 'item_id'"),
            ({"candidates": pd.DataFrame({"user_id": [1]})}, "candidates need a column 'item_id'"),
            (
                {"candidates": pd.DataFrame({"item_id": [1], "time": [0]})},
                "have a column 'time', but a list is",
            ),
            (
                {"candidates": pd.DataFrame({"item_id": [777, 777], "user_id": [1, 2]})},
                "1 candidate is not in the log",
            ),
        ],
    )
    def test_bad_arguments(self, arguments: Any, sentence: str, model: Learner) -> None:
        with pytest.raises(InputError, match=sentence):
            model.recommend([1], **arguments)

    @pytest.mark.parametrize("kind", LEARNERS.values())
    @pytest.mark.parametrize("factors", [5, 200])
    def test_a_user_alone_has_the_same_bits_as_among_all(self, kind: Any, factors: int, log: Log) -> None:
        options = {"factors": factors, "epochs": 1} if "factors" in kind().get_params() else {}
        learner = kind(random_state=0, **options).fit(log)
        together = learner.recommend(k=60).set_index("user_id")
        for user in (0, 17, 255, 256, 299):
            alone = learner.recommend([user], k=60).set_index("user_id")
            pd.testing.assert_frame_equal(alone, together.loc[[user]], check_exact=True)
            assert learner.score([user], together.loc[user, "item_id"]).tolist() == alone["score"].tolist()


class TestMinEffect:
    @pytest.mark.parametrize("kind", [CountingBayes, CUBN])
    def test_scores_in_money_have_thresholds_in_money(self, kind: Any, log: Log) -> None:
        """Twin: the whole list, cut by hand; also for effects larger than 1."""
        valued = Log.from_frame(log.to_frame().assign(value=lambda rows: rows["outcome"] * 50.0))
        learner = kind().fit(valued)
        whole = learner.recommend(k=60)
        least = float(whole["score"].quantile(0.95))
        assert least > 1
        expected = whole[whole["score"] >= np.float32(least)].reset_index(drop=True)
        pd.testing.assert_frame_equal(learner.recommend(k=60, min_effect=least), expected)
        assert learner.recommend(k=60, min_effect=-1e6).equals(whole)

    def test_effects_and_nothing_else_have_thresholds(self, model: Learner, log: Log) -> None:
        assert {kind.__name__ for kind in LEARNERS.values() if kind.scores_are_effects} == {
            "EmpiricalBayes", "CountingBayes", "CUBN"
        }  # fmt: skip
        with pytest.raises(InputError, match="those of BPR only order the items"):
            model.recommend([1], min_effect=0.1)
        with pytest.raises(InputError, match="popularity is not an effect"):
            CUBN().fit(log).recommend(["nobody"], unknown_users="popular", min_effect=0.01)
        with pytest.raises(InputError, match="min_effect must be a number between"):
            CUBN().fit(log).recommend([1], min_effect=float("nan"))


class TestManyItems:
    """More items than one tile of scores: what is listed is that of whole rows, whatever is left out."""

    @pytest.fixture
    def wide(self) -> BPR:
        rng, users, items = np.random.default_rng(0), 300, 3000
        model = BPR(random_state=0, factors=80)
        model.users_, model.items_ = Ids(np.arange(users), "user_id"), Ids(np.arange(items), "item_id")
        model.user_factors_ = rng.standard_normal((users, 80), np.float32)
        model.item_factors_ = rng.integers(-2, 3, (items, 80)).astype(np.float32)
        model.popularity_ = rng.integers(0, 9, items)
        assert model._scores_are_products
        return model

    def listed(self, scores: Any, k: int) -> list[int]:
        order = np.argsort(-scores, kind="stable")[:k]
        return [int(item) for item in order if scores[item] > -np.inf]

    def test_lists_are_those_of_whole_rows(self, wide: BPR) -> None:
        rng = np.random.default_rng(1)
        pairs = pd.DataFrame({"user_id": rng.integers(0, 300, 9000), "item_id": rng.integers(0, 3000, 9000)})
        candidates = rng.choice(3000, 1500, replace=False)
        with one_blas_thread():
            scores = wide.score_block(np.arange(300, dtype=np.int32))
        scores[pairs["user_id"], pairs["item_id"]] = -np.inf
        scores[:, np.setdiff1d(np.arange(3000), candidates)] = -np.inf
        for threads in (1, 2):
            frame = wide.recommend(k=20, candidates=candidates, exclude=pairs, threads=threads)
            for user, rows in frame.groupby("user_id"):
                assert rows["item_id"].tolist() == self.listed(scores[int(str(user))], 20)
                assert rows["score"].tolist() == scores[int(str(user)), rows["item_id"]].tolist()

    def test_a_user_alone_and_beside_an_unknown_one(self, wide: BPR) -> None:
        together = wide.recommend(k=5).set_index("user_id")
        for user in (0, 255, 256, 299):
            alone = wide.recommend([user], k=5).set_index("user_id")
            mixed = wide.recommend([10_000, user], k=5, unknown_users="popular").set_index("user_id")
            pd.testing.assert_frame_equal(alone, together.loc[[user]], check_exact=True)
            pd.testing.assert_frame_equal(mixed.loc[[user]], alone, check_exact=True)

    def test_a_learner_that_scores_in_its_own_way_is_asked(self, wide: BPR) -> None:
        class Reversed(BPR):
            def score_block(self, user_codes: Any) -> Any:
                return -super().score_block(user_codes)

        other = Reversed(random_state=0, factors=80)
        other.__dict__.update(wide.__dict__)
        worst = np.argsort(wide.score_block(np.array([7], np.int32))[0], kind="stable")[:3]
        assert other.recommend([7], k=3)["item_id"].tolist() == worst.tolist()

    def test_row_groups_of_a_file_are_not_small(self, wide: BPR, tmp_path: Path) -> None:
        wide.write_recommendations(tmp_path / "lists.parquet", k=10)
        assert pa.parquet.ParquetFile(tmp_path / "lists.parquet").num_row_groups == 1


def test_a_scorer_recommends_the_same_batch_by_batch(model: Learner, tmp_path: Path) -> None:
    """What Spark's mapInArrow and Ray Data's map_batches call, pickled on the way."""
    model.save(tmp_path / "model.tau")
    score = pickle.loads(pickle.dumps(scorer(tmp_path / "model.tau", k=4)))
    users = pa.table({"user_id": model.users.values})
    batches = list(score(iter(users.to_batches(max_chunksize=50))))
    want = model.recommend(k=4)
    pd.testing.assert_frame_equal(pa.Table.from_batches(batches).to_pandas(), want)
    pd.testing.assert_frame_equal(score.table(users).to_pandas(), want)
    with pytest.raises(InputError, match="needs the column 'user_id'; found: id"):
        list(score([pa.record_batch({"id": [1]})]))
