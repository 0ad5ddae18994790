"""One behavioural suite for every learner, and what is special about some of them."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from taurank import Gains, Log, World
from taurank.errors import InputError
from taurank.evaluation.formulas import position_weights
from taurank.learners import BPR, DLCE, LEARNERS, Learner, Popular, Random, load
from taurank.learners.factorization import FactorLearner

TRAINED = [name for name, learner in LEARNERS.items() if issubclass(learner, FactorLearner)]
SMALL: dict[str, Any] = {"factors": 16, "epochs": 40, "learning_rate": 0.03}


def make(name: str, **options: Any) -> Learner:
    settings = {**SMALL, **options} if name in TRAINED else options
    return LEARNERS[name](**{"random_state": 0, **settings})


@pytest.fixture(scope="module")
def world() -> World:
    return World.synthetic(300, 60, random_state=0, effect_spread=1.0)


@pytest.fixture(scope="module")
def log(world: World) -> Log:
    return world.sample(10, random_state=1).log


def same(a: Learner, b: Learner) -> bool:
    """Bit-identical scores for all users."""
    users = np.arange(len(a.users), dtype=np.int32)
    return a.users == b.users and a.items == b.items and bool((a.score_block(users) == b.score_block(users)).all())


def worth(learner: Learner, target: Any, k: int = 10) -> float:
    """P@k of the learner's ranking by dense gains."""
    scores = learner.score_block(np.arange(len(learner.users), dtype=np.int32))
    return float((position_weights(scores, f"P@{k}") * target).sum(axis=1).mean())


@pytest.mark.parametrize("name", TRAINED)
def test_finds_planted_structure_better_than_popular_on_its_own_target(name: str, world: World, log: Log) -> None:
    p, treated, control = (
        rates.astype(np.float64) for rates in (world.propensity, world.treated_rate, world.control_rate)
    )
    targets = {"bpr": p * treated + (1 - p) * control, "dlto": treated}
    target = targets.get(name, treated - control)
    assert worth(make(name).fit(log), target) > 1.1 * worth(Popular().fit(log), target)


@pytest.mark.parametrize("name", LEARNERS)
class TestEveryLearner:
    def test_same_seed_same_bits(self, name: str, log: Log) -> None:
        first, again = (make(name, **_quick(name)).fit(log) for _ in range(2))
        assert same(first, again)
        if name in [*TRAINED, "random"]:
            assert not same(first, make(name, random_state=1, **_quick(name)).fit(log))

    def test_save_and_load(self, name: str, log: Log, tmp_path: Path) -> None:
        learner = make(name, **_quick(name)).fit(log)
        learner.save(tmp_path / "model")
        again = load(tmp_path / "model")
        assert [path.name for path in tmp_path.iterdir()] == ["model"]
        assert type(again) is type(learner)
        assert again.hyper_parameters() == learner.hyper_parameters()
        assert same(learner, again)
        pd.testing.assert_frame_equal(again.recommend([3, 1], k=4), learner.recommend([3, 1], k=4))

    def test_refit_forgets(self, name: str, log: Log, world: World) -> None:
        other = world.sample(2, random_state=9).log
        learner = make(name, **_quick(name)).fit(other)
        assert same(learner.fit(log), make(name, **_quick(name)).fit(log))

    @pytest.mark.parametrize("shape", [(1, 8), (8, 1), (2, 2)])
    def test_tiny_worlds(self, name: str, shape: tuple[int, int]) -> None:
        flat = np.full(shape, 0.5)
        tiny = World(flat, flat, flat, np.arange(shape[0]), np.arange(shape[1])).sample(20, random_state=0).log
        frame = make(name, **_quick(name)).fit(tiny).recommend(k=3)
        assert len(frame) == shape[0] * min(3, shape[1])
        assert np.isfinite(frame["score"]).all()

    def test_ids_are_the_callers(self, name: str) -> None:
        rows = World.synthetic(20, 10, random_state=0).sample(5, random_state=0).log.to_frame()
        rows["user_id"] = "u" + rows["user_id"].astype(str)
        rows["item_id"] = "i" + rows["item_id"].astype(str)
        frame = make(name, **_quick(name)).fit(Log.from_frame(rows)).recommend(["u7"], k=2)
        assert frame["user_id"].tolist() == ["u7", "u7"]
        assert frame["item_id"].str.startswith("i").all()
        assert frame["rank"].tolist() == [1, 2]
        assert frame["score"].is_monotonic_decreasing

    def test_unknown_hyper_parameter_is_refused(self, name: str) -> None:
        with pytest.raises(TypeError, match="unexpected keyword"):
            LEARNERS[name](**{"factor": 3})

    def test_not_fitted(self, name: str) -> None:
        with pytest.raises(InputError, match="not fitted yet"):
            LEARNERS[name]().recommend([1])


def _quick(name: str) -> dict[str, Any]:
    return {"epochs": 3, "factors": 5} if name in TRAINED else {}


@pytest.mark.parametrize("name", TRAINED)
def test_threads_do_not_change_a_bit(name: str, log: Log) -> None:
    one, two, three = (make(name, threads=threads, epochs=4).fit(log) for threads in (1, 2, 3))
    assert same(one, two)
    assert same(one, three)


@pytest.mark.parametrize("name", TRAINED)
def test_a_log_without_positives_is_refused(name: str, log: Log) -> None:
    nothing = Log.from_frame(log.to_frame().assign(outcome=0))
    with pytest.raises(InputError, match=r"nothing to learn|needs"):
        make(name).fit(nothing)


@pytest.mark.parametrize("name", ["dlce", "dlto"])
def test_propensities_are_asked_for(name: str, log: Log) -> None:
    without = Log.from_frame(log.to_frame().drop(columns="propensity"))
    with pytest.raises(InputError, match=r"needs the column 'propensity'.*estimate"):
        make(name).fit(without)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("factors", 0), ("factors", 2.5), ("epochs", 0), ("learning_rate", 0.0), ("learning_rate", float("nan")),
        ("regularization", -1.0), ("cap", 1.5), ("cap_control", -0.1), ("loss", "square"), ("steepness", -1),
    ],
)  # fmt: skip
def test_bad_hyper_parameters(option: str, value: Any) -> None:
    with pytest.raises(InputError, match=option):
        DLCE(**{option: value})


class TestFit:
    def test_validation_keeps_the_best_epoch_and_stops(self, log: Log, world: World) -> None:
        truth = world.sample(3, random_state=5).truth
        learner = DLCE(random_state=0, factors=8, epochs=200, learning_rate=0.2, threads=1)
        learner.fit(log, validation=truth, metric="CAR", patience=3, validate_every=1)
        values = [record["CAR"] for record in learner.history_]
        assert len(values) < 200
        assert len(values) == int(np.argmin(values)) + 1 + 3
        from taurank.evaluation.evaluate import evaluate

        assert evaluate(learner, truth, "CAR")["CAR"].mean == pytest.approx(min(values))

    def test_divergence_is_told(self, log: Log) -> None:
        with pytest.raises(InputError, match=r"diverged in epoch \d+: learning_rate=50 .* try 2e\+01"):
            DLCE(random_state=0, factors=8, learning_rate=50.0, epochs=50).fit(log)

    def test_a_checkpoint_of_another_fit_is_refused(self, log: Log, tmp_path: Path) -> None:
        path = tmp_path / "state"

        def stop(epoch: int, value: float) -> None:
            raise KeyboardInterrupt

        truth = Gains.from_frame(
            pd.DataFrame({"user_id": [0], "item_id": [0], "value": [1.0]}), users=range(300), items=range(60)
        )
        with pytest.raises(KeyboardInterrupt):
            DLCE(random_state=0, epochs=9, factors=4).fit(
                log, truth, checkpoint=path, checkpoint_minutes=0, callback=stop, validate_every=3
            )
        assert path.exists()
        with pytest.raises(InputError, match="belongs to another fit"):
            DLCE(random_state=1, epochs=9, factors=4).fit(log, truth, checkpoint=path, validate_every=3)
        DLCE(random_state=0, epochs=9, factors=4).fit(log, truth, checkpoint=path, validate_every=3)
        assert not path.exists()

    def test_killed_and_resumed_is_bit_identical(self, tmp_path: Path) -> None:
        """kill -9 in the middle of a fit; the same call afterwards ends with the same factors."""
        script = (
            "import sys, taurank as tr\n"
            "world = tr.World.synthetic(300, 60, random_state=0)\n"
            "log, truth = (lambda s: (s.log, s.truth))(world.sample(10, random_state=1))\n"
            "model = tr.DLCE(factors=16, epochs=600, random_state=4)\n"
            "model.fit(log, truth, patience=None, checkpoint=sys.argv[1], checkpoint_minutes=0)\n"
            "model.save(sys.argv[2])\n"
        )
        state, killed, whole = (tmp_path / name for name in ("state", "killed", "whole"))
        command = [sys.executable, "-c", script]
        process = subprocess.Popen([*command, str(state), str(killed)])
        while not state.exists():
            assert process.poll() is None
            time.sleep(0.005)
        time.sleep(0.05)
        process.kill()
        process.wait()
        assert state.exists()
        assert not killed.exists()
        subprocess.run([*command, str(state), str(killed)], check=True)
        subprocess.run([*command, str(tmp_path / "other"), str(whole)], check=True)
        assert killed.read_bytes() == whole.read_bytes()
        assert not state.exists()


@pytest.fixture(scope="module")
def model(log: Log) -> Learner:
    return make("bpr", epochs=3).fit(log)


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
        np.testing.assert_allclose(model.score(frame["user_id"], frame["item_id"]), frame["score"], rtol=1e-5)
        assert model.score([5], [1, 2, 3]).shape == (3,)

    def test_score_of_many_pairs_in_any_order(self, model: Learner) -> None:
        """More users than one block holds, pairs shuffled and repeated: each score is that of its own pair."""
        rng = np.random.default_rng(0)
        users, items = rng.integers(0, 300, 2000), rng.integers(0, 60, 2000)
        whole = model.score_block(np.arange(300, dtype=np.int32))
        np.testing.assert_allclose(model.score(users, items), whole[users, items], rtol=1e-4, atol=1e-6)

    def test_order_of_users_is_the_callers(self, model: Learner) -> None:
        assert model.recommend([9, 2, 5], k=1)["user_id"].tolist() == [9, 2, 5]

    def test_candidates_and_k_beyond_them(self, model: Learner) -> None:
        frame = model.recommend([1], k=10, candidates=[4, 8, 15])
        assert sorted(frame["item_id"]) == [4, 8, 15]

    def test_excluded_items_never_come_back(self, model: Learner, log: Log) -> None:
        bought = log.to_frame().query("outcome == 1")
        pairs = set(zip(bought["user_id"], bought["item_id"], strict=True))
        for exclude in (log, bought[["user_id", "item_id"]]):
            frame = model.recommend(k=60, exclude=exclude)
            assert not pairs & set(zip(frame["user_id"], frame["item_id"], strict=True))
            assert len(frame) == 300 * 60 - len(pairs)

    def test_out_of_stock(self, model: Learner) -> None:
        frame = model.recommend(k=60, exclude=pd.DataFrame({"item_id": [3, 4, 999]}))
        assert not frame["item_id"].isin([3, 4]).any()
        assert len(frame) == 300 * 58

    def test_everything_excluded_gives_an_empty_frame(self, model: Learner) -> None:
        frame = model.recommend(k=5, exclude=pd.DataFrame({"item_id": np.arange(60)}))
        assert len(frame) == 0
        assert list(frame) == ["user_id", "item_id", "score", "rank"]

    def test_unknown_users(self, model: Learner) -> None:
        with pytest.raises(InputError, match=r"1 user not in the log .* 12345; .* on_unknown"):
            model.recommend([1, 12345])
        with pytest.warns(UserWarning, match=r"1 user not in the log .* 12345"):
            assert model.recommend([1, 12345], k=2, on_unknown="warn")["user_id"].tolist() == [1, 1]
        frame = model.recommend([12345, 1], k=2, on_unknown="popular")
        assert frame["user_id"].tolist() == [12345, 12345, 1, 1]
        assert frame["item_id"][:2].tolist() == np.argsort(-model.popularity_, kind="stable")[:2].tolist()

    def test_bad_arguments(self, model: Learner) -> None:
        with pytest.raises(InputError, match="k must be an integer ≥ 1"):
            model.recommend([1], k=0)
        with pytest.raises(InputError, match="on_unknown"):
            model.recommend([1], on_unknown="perhaps")  # type: ignore[arg-type]
        with pytest.raises(InputError, match="not in the catalogue"):
            model.recommend([1], candidates=[777])
        with pytest.raises(InputError, match="needs a column 'item_id'"):
            model.recommend([1], exclude=pd.DataFrame({"user_id": [1]}))

    @pytest.mark.parametrize("suffix", ["parquet", "csv"])
    def test_streams_to_a_file(self, model: Learner, tmp_path: Path, suffix: str) -> None:
        path = tmp_path / f"best.{suffix}"
        assert model.write_recommendations(path, k=5) == 300 * 5
        read = pd.read_parquet(path) if suffix == "parquet" else pd.read_csv(path)
        pd.testing.assert_frame_equal(read, model.recommend(k=5), check_dtype=False)

    def test_threads_do_not_change_it(self, model: Learner) -> None:
        pd.testing.assert_frame_equal(model.recommend(k=5, threads=1), model.recommend(k=5, threads=3))


class TestStore:
    def test_broken_model_files(self, log: Log, tmp_path: Path) -> None:
        path = tmp_path / "model"
        Popular().fit(log).save(path)
        whole = path.read_bytes()
        altered = bytearray(whole)
        altered[len(whole) // 2] ^= 4
        for content in (b"", whole[:-5], whole[:40], bytes(altered), b"PK\x03\x04 something", whole + b"\0"):
            path.write_bytes(content)
            with pytest.raises(ValueError, match=r"not a taurank file|checksum mismatch"):
                load(path)
        with pytest.raises(ValueError, match="there is no file"):
            load(tmp_path / "none")

    def test_random_is_stable_and_uniform(self, log: Log) -> None:
        scores = Random(random_state=3).fit(log).score_block(np.arange(300, dtype=np.int32))
        assert 0 <= scores.min() < scores.max() < 1
        assert scores.mean() == pytest.approx(0.5, abs=0.01)

    def test_bpr_negatives_avoid_what_was_bought_that_time(self) -> None:
        """Two items, both always bought together: nothing is left to compare with, so nothing is learned."""
        rows = pd.DataFrame({"user_id": [0, 0, 1, 1], "item_id": [0, 1, 0, 1], "treated": 0, "outcome": 1})
        learner = BPR(random_state=0, factors=4, epochs=5, regularization=0.0).fit(Log.from_frame(rows))
        assert sum(record["updates"] for record in learner.history_) == 0
