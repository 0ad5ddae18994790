"""Two workers on two nodes: the bits of one machine, in fits, evaluations, recommendations and files."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import psutil
import pyarrow.parquet as pq
import pytest

import taurank as tr
from support.command_line import Command
from taurank.cli.arguments import read_ranker
from taurank.cluster import connection, pieces
from taurank.cluster import fit as cluster_fit
from taurank.cluster.fit import visits
from taurank.cluster.pool import Lost
from taurank.data import storage

Pair = tuple[Any, Any]  # training and test log; or of one machine and of the cluster
PLAIN: dict[str, Any] = {"factors": 12, "epochs": 3, "random_state": 3}
METRICS = ["CDCG", "CP@10", "CAR"]

pytestmark = pytest.mark.integration


def sha(model: Any) -> str:
    arrays = (np.asarray(model.user_factors_), np.asarray(model.item_factors_))
    return hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()


@pytest.fixture(scope="module", autouse=True)
def small_pieces() -> Iterator[None]:
    """Several pieces, although the logs are small."""
    before, pieces.ROWS_PER_PIECE = pieces.ROWS_PER_PIECE, 4_000
    yield
    pieces.ROWS_PER_PIECE = before


@pytest.fixture(scope="module")
def cluster(nodes: Any) -> Iterator[Any]:
    """Two workers on two nodes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        with tr.cluster.connect(nodes.address, workers=2) as cluster:
            assert len({node_of(cluster, worker) for worker in range(2)}) == 2
            yield cluster


@pytest.fixture(scope="module")
def data(cluster: Any, logs: Pair) -> Pair:
    return cluster.read_log(logs[0]), cluster.read_log(logs[1])


def node_of(cluster: Any, worker: int) -> str:
    import ray

    call = cluster.pool.actors[worker].__ray_call__.remote(lambda _: ray.get_runtime_context().get_node_id())
    return str(ray.get(call))


@pytest.fixture(scope="module")
def local(logs: Pair) -> Pair:
    return tr.Log.read(logs[0]), tr.Log.read(logs[1])


@pytest.fixture(scope="module")
def models(data: Pair, local: Pair) -> Pair:
    """DLCE with a falling rate, fitted on one machine and on the cluster."""
    one, many = tr.DLCE(**PLAIN, rate_decay=0.3), tr.DLCE(**PLAIN, rate_decay=0.3)
    return one.fit(local[0], None), many.fit(data[0], None)


def test_the_catalog_is_that_of_one_machine(data: Pair, local: Pair) -> None:
    for remote, log in zip(data, local, strict=True):
        assert len(remote.pieces) > 1
        assert remote.catalog == log.catalog
        assert len(remote) == len(log)
        assert remote.whole.treated_share == log.treated_share


def test_dlce_has_the_same_bits_and_the_same_history(models: Pair) -> None:
    one, many = models
    assert sha(many) == sha(one)
    pd.testing.assert_frame_equal(many.history_, one.history_)
    assert (many.popularity_ == one.popularity_).all()


@pytest.mark.parametrize("learner", [tr.BPR, tr.BLCE, tr.DLTO])
def test_other_passes_have_the_same_bits(learner: Any, data: Pair, local: Pair) -> None:
    assert sha(learner(**PLAIN).fit(data[0], None)) == sha(learner(**PLAIN).fit(local[0], None))


@pytest.mark.parametrize("learner", [tr.Popular, tr.Random])
def test_learners_without_factors_score_the_same(learner: Any, data: Pair, local: Pair, tmp_path: Path) -> None:
    one, many = learner(random_state=5).fit(local[0], None), learner(random_state=5).fit(data[0], None)
    users = np.arange(local[0].n_users, dtype=np.int32)
    assert (one.score_block(users) == many.score_block(users)).all()
    many.save(tmp_path / "model")
    loaded = tr.load(tmp_path / "model")
    assert (one.score_block(users) == loaded.score_block(users)).all()


@pytest.mark.filterwarnings("ignore::taurank.errors.UnfinishedWarning")
def test_a_fit_chooses_the_same_length_and_ends_with_the_same_bits(data: Pair, local: Pair, tmp_path: Path) -> None:
    """Fits of several lengths are compared by default; this one overfits and is cut short."""
    steps: dict[str, Any] = {"cap": 0.2, "regularization": 0.0, "learning_rate": 0.04}
    settings: dict[str, Any] = {"factors": 12, "epochs": 60, "random_state": 3} | steps
    one, many, again = (tr.DLCE(**settings) for _ in range(3))
    one.fit(local[0])
    many.fit(data[0], checkpoint=tmp_path / "kept", checkpoint_minutes=0)
    assert one.lengths_["epoch"].tolist()[:2] == [30, 15]
    assert len(one.lengths_) >= 3
    pd.testing.assert_frame_equal(many.lengths_, one.lengths_)
    pd.testing.assert_frame_equal(many.history_, one.history_)
    assert sha(many) == sha(one)
    assert many.trained_ == one.trained_
    again.fit(data[0], checkpoint=tmp_path / "kept")  # nothing is left to do
    assert sha(again) == sha(one)
    pd.testing.assert_frame_equal(again.lengths_, one.lengths_)


@pytest.mark.filterwarnings("ignore::taurank.errors.UnfinishedWarning")
@pytest.mark.parametrize("learner", [tr.BPR, tr.DLCE])
def test_a_log_with_one_time_and_no_propensities_chooses_a_length(
    cluster: Any, learner: Any, data: Pair, logs: Pair, tmp_path: Path
) -> None:
    frame = pd.read_parquet(logs[0]).drop_duplicates(["user_id", "item_id"])
    columns = ["time"] if learner is tr.DLCE else ["time", "propensity"]
    for part in range(3):
        frame[part::3].drop(columns=columns).to_parquet(tmp_path / f"{part}.parquet")
    settings: dict[str, Any] = {"factors": 12, "epochs": 25, "random_state": 1}
    one = learner(**settings).fit(tr.Log.read(tmp_path))
    many = learner(**settings).fit(cluster.read_log(tmp_path))
    assert len(one.lengths_)
    pd.testing.assert_frame_equal(many.lengths_, one.lengths_)
    assert sha(many) == sha(one)


@pytest.mark.parametrize("learner", [tr.ULBPR, tr.EmpiricalBayes, tr.CUBN])
def test_other_learners_are_refused_in_one_sentence(learner: Any, data: Pair) -> None:
    why = "draws its samples from all cells" if learner is tr.ULBPR else "needs the whole log"
    with pytest.raises(tr.InputError, match=f"{learner.__name__} {why} and cannot be fitted on a cluster"):
        learner().fit(data[0], None)


def test_what_a_cluster_cannot_take_into_account_is_refused(
    cluster: Any, data: Pair, logs: Pair, tmp_path: Path
) -> None:
    frame = pd.read_parquet(logs[0])[:200]
    frame.assign(value=2.0).to_parquet(tmp_path / "worth.parquet")
    with pytest.raises(tr.InputError, match="column 'value', by which a cluster cannot weigh outcomes"):
        cluster.read_log(tmp_path / "worth.parquet")
    tr.Log.from_frame(frame, visits=frame[["user_id", "time"]]).write(tmp_path / "visits.parquet")
    with pytest.raises(tr.InputError, match="limits the cells that could have been recommended"):
        cluster.read_log(tmp_path / "visits.parquet")
    features = tr.Features(users=pd.DataFrame({"user_id": [0], "age": [1.0]}))
    with pytest.raises(tr.InputError, match="features are not used on a cluster"):
        tr.DLCE(**PLAIN).fit(data[0], None, features=features)
    with pytest.raises(tr.InputError, match=r"gains\.doubly_robust is not available on a cluster"):
        tr.gains.doubly_robust(data[0])
    popular, measured = tr.Popular().fit(data[0], None), tr.gains.ips(data[1])
    shelf = pd.DataFrame({"item_id": ["item 0"], "shelf": ["a"]})
    with pytest.raises(tr.InputError, match="on a cluster an estimate is that of all items"):
        tr.evaluate(popular, measured, "CP@5", by=shelf)
    with pytest.raises(tr.InputError, match="curves by share are estimated on one machine"):
        tr.effect_curve(popular, measured)
    some = {"user_id": data[1].users.values[:1], "item_id": ["item 0"], "probability": [1.0]}
    with pytest.raises(tr.InputError, match="a policy is measured on one machine"):
        tr.evaluate(pd.DataFrame(some), measured, "CP@1")
    with pytest.raises(tr.InputError, match="on a cluster, name the estimator"):
        tr.evaluate(tr.Popular().fit(data[0], None), data[1])


def test_an_object_store_is_refused_in_one_sentence(cluster: Any, data: Pair, models: Pair) -> None:
    uses: list[Callable[[Any], Any]] = [
        tr.Log.read, cluster.read_log, tr.load, models[1].save, models[1].write_recommendations,
        lambda path: cluster.write_recommendations(models[1], path),
        lambda path: tr.DLCE(**PLAIN).fit(data[0], None, checkpoint=path),
        lambda path: connection._storage(None, path),
    ]  # fmt: skip
    for use in uses:
        for path in ("s3://bucket/x", Path("s3://bucket/x")):
            with pytest.raises(tr.InputError, match="is an address in an object store, and only folders are read"):
                use(path)


def test_the_command_does_not_change_the_estimator(taurank: Command, logs: Pair, tmp_path: Path) -> None:
    """Without --cluster the default is doubly robust, which a cluster does not have; nothing is connected to."""
    done = taurank("evaluate", tmp_path, logs[1], "--cluster", "127.0.0.1:1")
    assert done.refused_with("on a cluster, name the estimator: --cap 0.1"), done


def test_commands_take_a_model_folder_like_a_file(taurank: Command, models: Pair, logs: Pair, tmp_path: Path) -> None:
    printed = []
    for name, model in zip(("file", "folder"), models, strict=True):
        path, updated = tmp_path / name, tmp_path / f"{name}-2"
        model.save(path)
        printed.append(taurank("evaluate", path, logs[1], "--format", "json"))
        for words in (
            ("update", path, logs[1], "--out", updated),
            ("recommend", path, "--out", tmp_path / f"{name}.csv"),
            ("recommend", updated, "--out", tmp_path / f"{name}-2.csv"),
        ):
            done = taurank(*words)
            assert done.code == 0, done
    assert (tmp_path / "folder").is_dir()
    assert printed[0].code == 0
    assert printed[0].out == printed[1].out
    for end in (".csv", "-2.csv"):
        assert (tmp_path / f"file{end}").read_bytes() == (tmp_path / f"folder{end}").read_bytes()


@pytest.mark.parametrize("estimator", ["ips", "capped_ips", "naive", "outcome"])
def test_evaluation_has_the_same_numbers(estimator: str, models: Pair, data: Pair, local: Pair) -> None:
    """Means, intervals, verdicts and paired differences."""
    options = {"cap": 0.1} if estimator == "capped_ips" else {}
    popular, results = tr.Popular().fit(local[0], None), []
    for model, log in zip(models, (local[1], data[1]), strict=True):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", tr.errors.OverlapWarning)
            gains = getattr(tr.gains, estimator)(log, **options)
            results.append(tr.evaluate({"model": model, "popular": popular}, gains, METRICS))
    assert str(results[1]) == str(results[0])
    pd.testing.assert_frame_equal(results[1].to_frame(), results[0].to_frame(), rtol=1e-8)
    want, got = (result["model"] for result in results)
    assert want.unknown_users == got.unknown_users > 0
    assert got.verdict == want.verdict
    for name in METRICS:
        np.testing.assert_allclose(got[name].per_user, want[name].per_user, rtol=1e-12, atol=1e-15)
        np.testing.assert_allclose(got[name].per_time, want[name].per_time, rtol=1e-12, atol=1e-15)
        assert (got[name].overlap_share or 0.0) == pytest.approx(want[name].overlap_share or 0.0, rel=1e-12)


def test_early_stopping_is_the_same(data: Pair, local: Pair) -> None:
    settings = {**PLAIN, "epochs": 5, "learning_rate": 0.02}
    options: dict[str, Any] = {"metric": "CDCG", "patience": 2, "validate_every": 1}
    one = tr.DLCE(**settings).fit(local[0], tr.gains.capped_ips(local[1], 0.1), **options)
    many = tr.DLCE(**settings).fit(data[0], tr.gains.capped_ips(data[1], 0.1), **options)
    assert sha(one) == sha(many)
    pd.testing.assert_frame_equal(one.history_, many.history_)


def test_a_model_folder_is_complete_checked_and_recommends_the_same(
    cluster: Any, data: Pair, models: Pair, tmp_path: Path
) -> None:
    one, many = models
    many.save(tmp_path / "model")
    loaded = tr.load(tmp_path / "model")
    assert isinstance(loaded.user_factors_.parts[0].base, np.memmap)  # type: ignore[attr-defined]
    assert sha(loaded) == sha(one)
    pd.testing.assert_frame_equal(loaded.recommend(k=5), one.recommend(k=5))
    assert sha(read_ranker(tmp_path / "model", [])) == sha(one)  # as the commands read it
    rows = cluster.write_recommendations(loaded, tmp_path / "lists", k=5)
    written = pq.read_table(tmp_path / "lists").to_pandas()
    assert rows == len(written)
    pd.testing.assert_frame_equal(written, one.recommend(k=5))
    with pytest.raises(tr.InputError, match="has other files in it"):
        cluster.write_recommendations(loaded, tmp_path / "lists", k=5)
    with pytest.raises(tr.InputError, match=r"lists.csv' is the name of a file, but a cluster writes a folder"):
        cluster.write_recommendations(loaded, tmp_path / "lists.csv", k=5)


def test_tuning_tries_the_same_and_finds_the_same(data: Pair, local: Pair, tmp_path: Path) -> None:
    options: dict[str, Any] = {"space": {"regularization": [0.1, 0.001]}, "trials": 2}
    options["fixed"] = {"factors": 8, "epochs": 2}
    one = tr.tune(tr.DLCE, local[0], tr.gains.capped_ips(local[1], 0.1), **options)
    many = tr.tune(tr.DLCE, data[0], tr.gains.capped_ips(data[1], 0.1), **options)
    pd.testing.assert_frame_equal(one.trials, many.trials)


def test_one_two_and_three_workers_agree_bit_for_bit(nodes: Any, logs: Pair, models: Pair) -> None:
    """Factors and intervals; the three workers are on two nodes, with an uneven share of the blocks each."""
    measured = set()
    for workers in (1, 2, 3):
        with tr.cluster.connect(nodes.address, workers=workers) as cluster:
            model = tr.DLCE(**PLAIN, rate_decay=0.3).fit(cluster.read_log(logs[0]), None)
            assert sha(model) == sha(models[0])
            test: Any = cluster.read_log(logs[1])
            gains = tr.gains.capped_ips(test, 0.1)
            result = tr.evaluate(model, gains, "CDCG")["CDCG"]
            measured.add((result.interval(), str(result.verdict)))
            assert len(list(cluster.pool.storage.iterdir())) <= 2  # the model, and where the fit would resume
    assert len(measured) == 1
    assert not cluster.pool.storage.exists()
    with pytest.raises(tr.InputError, match="the connection of this log is closed"):
        tr.evaluate(model, gains, "CDCG")


def test_the_command_prints_what_one_machine_prints(nodes: Any, logs: Pair, models: Pair, tmp_path: Path) -> None:
    models[1].save(tmp_path / "model")
    command = [sys.executable, "-m", "taurank", "evaluate", tmp_path / "model", logs[1], "--cap", "0.1"]
    alone, together = (
        subprocess.run([*map(str, command), *more], capture_output=True, text=True, timeout=120)
        for more in ([], ["--cluster", nodes.address])
    )
    assert "elieve it" in alone.stdout
    assert together.stdout == alone.stdout, together.stderr


@pytest.fixture
def in_the_middle(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, Callable[[], None]], list[int]]:
    """Do something in the middle of the epoch that is the n-th to run; returns a list of those that have begun."""

    def of_epoch(n: int, interrupt: Callable[[], None]) -> list[int]:
        epochs: list[int] = []

        def interrupted(blocks: int, workers: int) -> Iterator[Any]:
            epochs.append(len(epochs))
            order = list(visits(blocks, workers))
            for number, visit in enumerate(order):
                if len(epochs) == n and number == len(order) // 2:
                    interrupt()
                yield visit

        monkeypatch.setattr(cluster_fit, "visits", interrupted)
        return epochs

    return of_epoch


def test_a_killed_node_costs_no_bit(cluster: Any, nodes: Any, data: Pair, models: Pair, in_the_middle: Any) -> None:
    """The second node does not come back: its worker is started on the first, and later tests have one node."""
    head = nodes.head_node.node_id
    there = [pid for worker, pid in enumerate(cluster.pool.pids()) if node_of(cluster, worker) != head]
    assert there

    def kill() -> None:
        nodes.remove_node(nodes.list_all_nodes()[1], allow_graceful=False)
        while any(psutil.pid_exists(pid) for pid in there):  # a worker ends some time after its raylet
            time.sleep(0.05)

    epochs = in_the_middle(2, kill)
    assert sha(tr.DLCE(**PLAIN, rate_decay=0.3).fit(data[0], None)) == sha(models[0])
    assert len(epochs) > 3


def test_a_worker_killed_in_the_middle_of_an_epoch_costs_no_bit(
    data: Pair, models: Pair, tmp_path: Path, in_the_middle: Any
) -> None:
    victim = data[0].pool.pids()[1]
    epochs = in_the_middle(3, lambda: os.kill(victim, signal.SIGKILL))
    model = tr.DLCE(**PLAIN, rate_decay=0.3)
    model.fit(data[0], None, checkpoint=tmp_path / "kept", checkpoint_minutes=0)
    assert sha(model) == sha(models[0])
    assert len(epochs) == 4  # the third epoch ran twice, the first two once
    pd.testing.assert_frame_equal(model.history_, models[0].history_)
    model.save(tmp_path / "model")
    assert not (tmp_path / "kept").exists()


def test_a_lost_worker_costs_an_evaluation_only_its_groups(
    cluster: Any, data: Pair, local: Pair, models: Pair, tmp_path: Path
) -> None:
    os.kill(data[0].pool.pids()[0], signal.SIGKILL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tr.errors.OverlapWarning)
        got: Any = tr.evaluate(models[1], tr.gains.capped_ips(data[1], 0.1), METRICS)
        want: Any = tr.evaluate(models[0], tr.gains.capped_ips(local[1], 0.1), METRICS)
    assert all((got[name].per_user == want[name].per_user).all() for name in METRICS)
    os.kill(data[0].pool.pids()[1], signal.SIGKILL)
    cluster.write_recommendations(models[1], tmp_path / "lists", k=3)
    pd.testing.assert_frame_equal(pq.read_table(tmp_path / "lists").to_pandas(), models[0].recommend(k=3))
    assert [path.name for path in tmp_path.iterdir()] == ["lists"]


def test_a_worker_without_memory_is_one_sentence(data: Pair) -> None:
    pool = data[0].pool
    with pytest.raises(tr.InputError, match="a worker ran out of memory; use more workers"):
        pool.get(pool.actors[0].__ray_call__.remote(lambda _: np.ones(1 << 50)))


def test_cores_that_are_in_use_are_waited_for_with_a_word_and_then_one_sentence(
    data: Pair, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import ray

    monkeypatch.setattr(connection, "FREE_SECONDS", 1.1)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 4.0})
    monkeypatch.setattr(ray, "available_resources", lambda: {"CPU": 2.0})
    assert connection._free_cores(ray, None) == 2
    with pytest.raises(tr.InputError, match="3 workers need as many free cores, and 2 of the cluster's 4 are free"):
        connection._free_cores(ray, 3)
    assert capsys.readouterr().err == "Waiting for 3 free cores (2 of 4 are free) ...\n"
    with pytest.raises(tr.InputError, match="5 workers need as many cores, and the cluster has 4"):
        connection._free_cores(ray, 5)


def test_a_busy_worker_is_kept_when_another_is_lost(data: Pair) -> None:
    """A call is repeated by the worker that Ray starts instead; what the lost one held is not there any more."""
    pool = data[0].pool
    pids = pool.pids()
    pool.hold(1, list)
    busy, short = pool.run(0, time.sleep, 4.0), pool.run(1, time.sleep, 0.5)
    os.kill(pids[1], signal.SIGKILL)
    pool.get([busy, short])
    with pytest.raises(Lost):
        pool.get(pool.use(1, list.copy))
    assert pool.pids()[0] == pids[0]


LISTENING = """
import os, psutil, taurank as tr
with tr.cluster.connect(workers=1) as cluster:
    pids = cluster.pool.pids()
    family = {os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))}
    assert set(pids) <= family
    for one in psutil.net_connections("tcp"):
        if one.status == "LISTEN" and one.pid in family:
            print(one.laddr.ip.removeprefix("::ffff:"))
    print(cluster.pool.new_folder())
"""


def test_ray_of_ones_own_listens_on_loopback_alone_and_leaves_nothing() -> None:
    own = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    done = subprocess.run([sys.executable, "-c", LISTENING], capture_output=True, text=True, env=own)
    *addresses, folder = done.stdout.split()
    assert addresses, done.stderr
    assert set(addresses) == {"127.0.0.1"}
    assert not Path(folder).exists()


def test_an_address_where_nothing_answers_is_one_sentence_at_once() -> None:
    began = time.monotonic()
    with pytest.raises(tr.InputError, match=r"nothing answers at '127\.0\.0\.1:1'"):
        connection._check_reachable("127.0.0.1:1")
    assert time.monotonic() - began < 6
    connection._check_reachable("auto")


def test_a_killed_command_resumes_from_its_folder(
    nodes: Any, logs: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the same command, or by a program with another number of workers."""
    monkeypatch.setattr(pieces, "ROWS_PER_PIECE", 1 << 21)  # as in the command
    kept = tmp_path / "c"
    words = ["fit", "dlce", logs[0], "--set", "factors=8", "--set", "epochs=6", "--all-epochs", "--cluster"]
    words += [nodes.address, "--checkpoint", kept, "--checkpoint-minutes", "0", "--out", tmp_path / "m"]
    command = [sys.executable, "-m", "taurank", *map(str, words)]
    first = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    while not storage.is_stored(kept) and first.poll() is None:
        time.sleep(0.01)
    first.kill()
    first.communicate()
    assert 1 <= storage.read(kept, "checkpoint")[0]["epoch"] < 6
    shutil.copytree(kept, tmp_path / "copy")
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not kept.exists()
    learner = tr.DLCE(factors=8, epochs=6, random_state=0)
    with tr.cluster.connect(nodes.address, workers=1) as cluster:
        again = sha(learner.fit(cluster.read_log(logs[0]), None, checkpoint=tmp_path / "copy"))
    assert sha(tr.load(tmp_path / "m")) == again == sha(learner.fit(tr.Log.read(logs[0]), None))


def test_bad_rows_are_refused_in_one_sentence(cluster: Any, data: Pair, tmp_path: Path) -> None:
    frame = pd.DataFrame({"user_id": [1, 2], "item_id": [1, 2], "treated": [0, 2], "outcome": [1, 1]})
    frame.to_parquet(tmp_path / "bad.parquet")
    with pytest.raises(tr.InputError, match="column 'treated' must be 0 or 1; 1 row is not"):
        cluster.read_log(tmp_path / "bad.parquet")


def test_what_kills_every_worker_is_one_sentence(data: Pair) -> None:
    with pytest.raises(tr.InputError, match="a worker was lost more than 10 times, perhaps for lack of memory"):
        data[0].pool.map(os.abort, [()])
