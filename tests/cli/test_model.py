"""``taurank fit | evaluate | recommend | tune``, as a person meets them."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from support.command_line import Command, Finished
from taurank import Gains, Log, evaluate, load
from taurank.evaluation.text import verdict_sentence

SMALL = ("--set", "factors=8", "--set", "epochs=5")
OWN = """
from dataclasses import dataclass
import numpy as np
from taurank import Learner
from taurank.learners import Array

@dataclass(kw_only=True, eq=False)
class Coffee(Learner):
    sugar: int = 1
    stored = {"sweetness": Array("float32", ("items",))}

    def learn(self, log):
        self.sweetness_ = np.full(log.n_items, self.sugar, np.float32) * np.arange(log.n_items, dtype=np.float32)

    def score_block(self, user_codes):
        return np.tile(self.sweetness_, (len(user_codes), 1))
"""
EXPERIMENT = """
kind = "comparison"
metrics = ["CP@10"]
times = {train = 2, validation = 1, test = 2}
data = [{items = "category"}]
methods = [{name = "popular"}, {name = "my_methods:Coffee"}]
"""


@pytest.fixture
def model(taurank: Command, shop: Path, tmp_path: Path) -> Path:
    path = tmp_path / "model.tau"
    finished = taurank("fit", "dlce", shop / "train.parquet", *SMALL, "--set", "cap=0.1", "--out", path)
    assert finished.code == 0, finished.err
    assert "Wrote DLCE" in finished.out
    return path


def table(finished: Finished) -> dict[str, float]:
    """Metric and mean, from JSON."""
    assert finished.code == 0, finished.err
    return {row["metric"]: row["mean"] for row in json.loads(finished.out)["metrics"]}


class TestFit:
    def test_settings_reach_the_learner(self, model: Path) -> None:
        params = load(model).get_params()
        assert (params["factors"], params["epochs"], params["cap"], params["random_state"]) == (8, 5, 0.1, 0)

    def test_the_seed_decides(self, taurank: Command, model: Path, shop: Path, tmp_path: Path) -> None:
        arguments = ("fit", "dlce", shop / "train.parquet", *SMALL, "--set", "cap=0.1", "--out")
        assert taurank(*arguments, tmp_path / "same", "--threads", 2).code == 0
        assert taurank(*arguments, tmp_path / "other", "--seed", 1).code == 0
        users = np.arange(80, dtype=np.int32)
        scores = [load(tmp_path / name).score_block(users) for name in ("model.tau", "same", "other")]
        np.testing.assert_array_equal(scores[0], scores[1])
        assert not np.array_equal(scores[0], scores[2])

    @pytest.mark.parametrize("learner", ["dlce", "popular"])
    def test_validation_by_several_metrics(self, learner: str, taurank: Command, shop: Path, tmp_path: Path) -> None:
        """Learners of one pass take the same options."""
        settings = SMALL if learner == "dlce" else ()
        finished = taurank(
            "fit", learner, shop / "train.parquet", *settings, "--truth", shop / "test_truth.parquet",
            "--metric", "CP@10", "--metric", "CDCG", "--patience", 2,
            "--out", tmp_path / "model",
        )  # fmt: skip
        assert finished.code == 0, finished.err

    def test_validation_by_a_log(self, taurank: Command, shop: Path, tmp_path: Path) -> None:
        arguments = ("--validation", shop / "test.parquet", "--cap", 0.1, "--out", tmp_path / "model")
        assert taurank("fit", "dlce", shop / "train.parquet", *SMALL, *arguments).code == 0

    @pytest.mark.parametrize(
        ("setting", "sentence"),
        [("capp=3", "no hyper-parameter 'capp'"), ("cap", "name=value"), ("cap=7", "cap must be")],
    )
    def test_a_wrong_setting(self, setting: str, sentence: str, taurank: Command, shop: Path, tmp_path: Path) -> None:
        finished = taurank("fit", "dlce", shop / "train.parquet", "--out", tmp_path / "model", "--set", setting)
        assert finished.refused_with(sentence)
        assert not (tmp_path / "model").exists()

    def test_the_checkpoint_outlives_a_model_that_cannot_be_written(
        self, taurank: Command, shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from taurank.data import storage

        def full(path: object, kind: str, *rest: Any) -> None:
            if kind == "model":
                raise OSError(28, "No space left on device")
            write(path, kind, *rest)

        write: Any = storage.write
        checkpoint, model = tmp_path / "checkpoint", tmp_path / "model"
        arguments = ("fit", "bpr", shop / "train.parquet", *SMALL, "--checkpoint", checkpoint, "--out", model)
        with monkeypatch.context() as disk:
            disk.setattr(storage, "write", full)
            assert taurank(*arguments).refused_with("No space left")
        assert checkpoint.exists()
        assert taurank(*arguments).code == 0
        assert model.exists()
        assert not checkpoint.exists()


@pytest.mark.slow  # processes
class TestOwnLearner:
    def test_it_is_fitted_from_the_current_folder_and_loaded_if_trusted(
        self, process: Command, shop: Path, tmp_path: Path
    ) -> None:
        """With Python's safe path, as for the installed command: the current folder is not searched by itself."""
        (tmp_path / "my_methods.py").write_text(OWN)
        model, options = tmp_path / "model", {"cwd": tmp_path, "env": {**os.environ, "PYTHONSAFEPATH": "1"}}
        finished = process(
            "fit", "my_methods:Coffee", shop / "train.parquet", "--set", "sugar=2", "--out", model, **options
        )
        assert finished.code == 0, finished.err
        recommend = ("recommend", model, "--out", tmp_path / "best.csv")
        assert process(*recommend, **options).refused_with("--trust my_methods")
        assert process(*recommend, "--trust", "my_methods", **options).code == 0
        assert pd.read_csv(tmp_path / "best.csv").groupby("user_id")["item_id"].first().nunique() == 1
        evaluated = ("evaluate", model, "--truth", shop / "test_truth.parquet", "--trust", "my_methods")
        assert process(*evaluated, **options).code == 0

    def test_an_experiment_names_one_from_the_current_folder(self, process: Command, tmp_path: Path) -> None:
        (tmp_path / "my_methods.py").write_text(OWN)
        (tmp_path / "mine.toml").write_text(EXPERIMENT)
        options = {"cwd": tmp_path, "env": {**os.environ, "PYTHONSAFEPATH": "1"}}
        finished = process("paper", "mine.toml", "--preset", "smoke", "--out", "out", **options)
        assert finished.code == 0, finished.err
        assert set(pd.read_csv(tmp_path / "out" / "mine.csv")["method"]) == {"popular", "Coffee"}


class TestEvaluate:
    def test_by_the_truth_no_log_is_needed(self, taurank: Command, model: Path, shop: Path) -> None:
        truth = shop / "test_truth.parquet"
        finished = taurank("evaluate", model, "--truth", truth)
        assert finished.code == 0
        assert "measured by: truth" in finished.out
        assert "extra purchases per user and time" in finished.out
        means = table(taurank("evaluate", model, "--truth", truth, "--metrics", "CP@5,CAR", "--format", "json"))
        result = evaluate(load(model), Gains.read(truth), ["CP@5", "CAR"])
        assert means == pytest.approx({name: result[name].mean for name in ("CP@5", "CAR")}, rel=1e-9)

    def test_by_segments_of_items(self, taurank: Command, model: Path, shop: Path, tmp_path: Path) -> None:
        log = Log.read(shop / "test.parquet")
        items = log.items.values.to_pylist()
        labels = ["a" if place % 2 else "b" for place in range(len(items))]
        pd.DataFrame({"item_id": items, "shelf": labels}).to_csv(tmp_path / "by.csv", index=False)
        arguments = ("evaluate", model, shop / "test.parquet", "--metrics", "CP@5", "--by", tmp_path / "by.csv")
        finished = taurank(*arguments, "--format", "json")
        assert finished.code == 0, finished.err
        rows = {row["segment"]: row["mean"] for row in json.loads(finished.out)["metrics"]}
        assert rows["a"] + rows["b"] == pytest.approx(rows["all"])

    def test_a_curve_and_a_budget(self, taurank: Command, model: Path, shop: Path, tmp_path: Path) -> None:
        log, page, policy = shop / "test.parquet", tmp_path / "curve.html", tmp_path / "policy.csv"
        drawn = taurank("curve", model, log, "--html", page)
        assert drawn.code == 0, drawn.err
        assert "AUTOC" in drawn.out
        assert "<svg" in page.read_text()
        spent = taurank("spend", model, log, "--out", policy, "--budget", "30", "--k", "3")
        assert spent.code == 0, spent.err
        assert len(pd.read_csv(policy)) == 30
        measured = taurank("evaluate", policy, log, "--metrics", "CP@3")
        assert measured.code == 0, measured.err

    def test_without_a_cap_the_recommended_estimate_leads_with_its_verdict(
        self, taurank: Command, model: Path, shop: Path
    ) -> None:
        log = shop / "test.parquet"
        result = evaluate(load(model), Log.read(log), ["CP@5", "CAR"])
        arguments = ("evaluate", model, log, "--metrics", "CP@5,CAR")
        text = taurank(*arguments)
        assert text.code == 0, text.err
        lines = text.out.splitlines()
        sentence = " ".join(lines[: next(n for n, line in enumerate(lines) if line.startswith("metric"))])
        assert sentence == verdict_sentence(result)
        assert sentence.startswith(("Believe it, because ", "CP@5: Do not believe it, because "))
        assert lines[-1] == "measured by: doubly_robust"
        assert max(map(len, lines)) <= 80
        answer = json.loads(taurank(*arguments, "--format", "json").out)
        assert (answer["verdict"], answer["gains"]) == (sentence, "doubly_robust")
        assert {row["metric"]: row["believe"] for row in answer["metrics"]} == {
            name: metric.verdict is not None and metric.verdict.believe for name, metric in result.items()
        }
        frame = pd.read_csv(io.StringIO(taurank(*arguments, "--format", "csv").out))
        assert list(frame["mean"]) == pytest.approx([metric.mean for metric in result.values()])
        assert list(frame["reason"]) == [row["reason"] for row in answer["metrics"]]

    @pytest.mark.parametrize("estimator", ["outcome", "naive", "ips", "capped-ips"])
    def test_estimators_and_metrics(self, estimator: str, taurank: Command, model: Path, shop: Path) -> None:
        """Metrics are repeated or separated by commas."""
        cap = ("--cap", 0.05) if estimator == "capped-ips" else ()
        arguments = ("evaluate", model, shop / "test.parquet", "--estimator", estimator, *cap, "--format", "csv")
        repeated = taurank(*arguments, "--metric", "CP@5", "--metric", "CAR")
        assert repeated.out == taurank(*arguments, "--metrics", "CP@5,CAR").out
        assert repeated.out.startswith("metric,mean,std,low,high")
        assert [line.split(",")[0] for line in repeated.out.splitlines()[1:]] == ["CP@5", "CAR"]

    @pytest.mark.filterwarnings("default")
    def test_on_the_training_log_it_warns(self, taurank: Command, model: Path, shop: Path) -> None:
        arguments = ("evaluate", model, shop / "train.parquet", "--cap", 0.1)
        table, csv = taurank(*arguments), taurank(*arguments, "--format", "csv")
        assert (table.code, csv.code) == (0, 0)
        assert "trained on" in table.out
        assert table.err == ""  # it is said once
        assert csv.err.startswith("taurank: warning: ")
        assert "trained on" in csv.err
        other = taurank("evaluate", model, shop / "test.parquet", "--cap", 0.1)
        assert "trained on" not in other.out + other.err

    @pytest.mark.parametrize(
        ("arguments", "sentence"),
        [
            (("test.parquet", "--metrics", "XY"), "unknown metric 'XY'"),
            (("test.parquet", "--estimator", "truth"), "--truth FILE"),
            (("test.parquet", "--estimator", "capped-ips"), "needs a cap"),
            (("none.parquet",), "does not exist"),
            ((), "needs a log"),
        ],
    )
    def test_what_is_wrong(
        self, arguments: tuple[str, ...], sentence: str, taurank: Command, model: Path, shop: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:  # fmt: skip
        monkeypatch.chdir(shop)
        assert taurank("evaluate", model, *arguments).refused_with(sentence)

    def test_scores_from_an_array_and_from_a_table(self, taurank: Command, model: Path, shop: Path) -> None:
        """The model's own scores, as a .npy file and as a table of pairs, measure the same as the model."""
        learner, folder = load(model), model.parent
        np.save(folder / "scores.npy", learner.score_block(np.arange(80, dtype=np.int32)))
        learner.write_recommendations(folder / "scores.parquet", k=30)
        files = ("model.tau", "scores.npy", "scores.parquet")
        outs = [taurank("evaluate", folder / name, shop / "test.parquet", "--format", "json").out for name in files]
        assert outs[0] == outs[1] == outs[2]


class TestRecommend:
    @pytest.fixture
    def folder(self, model: Path) -> Path:
        (model.parent / "users.csv").write_text("user_id\n5\n3\n")
        (model.parent / "stock.csv").write_text("item_id\n1\n2\n3\n4\n")
        (model.parent / "gone.csv").write_text("item_id\n2\n")
        return model.parent

    def test_users_candidates_and_exclusions(self, taurank: Command, folder: Path) -> None:
        finished = taurank(
            "recommend", folder / "model.tau", "--out", folder / "best.csv", "--k", 3,
            "--users", folder / "users.csv", "--candidates", folder / "stock.csv", "--exclude", folder / "gone.csv",
        )  # fmt: skip
        assert finished.code == 0
        assert "Wrote 6 recommendations" in finished.out
        frame = pd.read_csv(folder / "best.csv")
        assert frame["user_id"].tolist() == [5, 5, 5, 3, 3, 3]
        assert set(frame["item_id"]) == {1, 3, 4}

    def test_a_log_excludes_what_was_bought(self, taurank: Command, folder: Path, shop: Path) -> None:
        best = folder / "best.csv"
        assert (
            taurank("recommend", folder / "model.tau", "--out", best, "--exclude", shop / "train.parquet").code == 0
        )
        bought = Log.read(shop / "train.parquet").to_frame().query("outcome == 1")
        pairs = set(zip(bought["user_id"], bought["item_id"], strict=True))
        frame = pd.read_csv(best)
        assert len(frame) > 100
        assert not pairs & set(zip(frame["user_id"], frame["item_id"], strict=True))

    def test_an_unknown_user(self, taurank: Command, folder: Path) -> None:
        (folder / "users.csv").write_text("user_id\n5\n999\n")
        arguments = ("recommend", folder / "model.tau", "--users", folder / "users.csv", "--k", 2, "--out")
        assert taurank(*arguments, folder / "none.csv").refused_with(
            "999; leave them out, or set unknown_users (--unknown-users)"
        )
        assert not (folder / "none.csv").exists()
        assert taurank(*arguments, folder / "all.csv", "--unknown-users", "popular").code == 0
        assert pd.read_csv(folder / "all.csv")["user_id"].tolist() == [5, 5, 999, 999]

    @pytest.mark.filterwarnings("default")
    def test_an_unknown_item(self, taurank: Command, folder: Path) -> None:
        (folder / "stock.csv").write_text("item_id\n1\n999\n4\n")
        arguments = ("recommend", folder / "model.tau", "--candidates", folder / "stock.csv", "--out")
        refused = taurank(*arguments, folder / "none.csv")
        assert refused.refused_with("999; leave them out, or set unknown_items (--unknown-items)")
        assert not (folder / "none.csv").exists()
        for behavior, warned in (("warn", True), ("drop", False)):
            finished = taurank(*arguments, folder / f"{behavior}.csv", "--unknown-items", behavior)
            assert finished.code == 0
            assert ("taurank: warning: " in finished.err) is warned
            assert set(pd.read_csv(folder / f"{behavior}.csv")["item_id"]) == {1, 4}


class TestTune:
    @pytest.mark.parametrize("by", ["validation", "truth"])
    def test_fit_reads_what_tune_writes(self, by: str, taurank: Command, shop: Path, tmp_path: Path) -> None:
        best, page, model = tmp_path / "best.json", tmp_path / "tuning.html", tmp_path / "model"
        by_log = ("--validation", shop / "test.parquet", "--cap", 0.1)
        measure = by_log if by == "validation" else ("--truth", shop / "test_truth.parquet")
        finished = taurank(
            "tune", "dlce", shop / "train.parquet", *measure, "--trials", 3, "--set", "factors=4",
            "--set", "epochs=3", "--search", "cap=0.03,0.3", "--journal", tmp_path / "journal",
            "--out", best, "--html", page, "--seed", 3,
        )  # fmt: skip
        assert finished.code == 0, finished.err
        assert "best CDCG" in finished.out
        assert "<svg" in page.read_text(encoding="utf-8")
        written = json.loads(best.read_text(encoding="utf-8"))
        assert written["settings"]["cap"] in (0.03, 0.3)
        fit = ("fit", "dlce", shop / "train.parquet", "--settings", best, "--out", model)
        assert taurank(*fit, "--set", "epochs=2").code == 0
        params = load(model).get_params()
        assert (params["factors"], params["cap"], params["epochs"]) == (4, written["settings"]["cap"], 2)
        assert params["random_state"] == 3
        assert taurank(*fit, "--seed", 7).code == 0
        assert load(model).get_params()["random_state"] == 7

    def test_it_needs_something_to_measure_by(self, taurank: Command, shop: Path) -> None:
        assert taurank("tune", "dlce", shop / "train.parquet").refused_with("--validation LOG or --truth FILE")

    @pytest.mark.parametrize(
        ("content", "sentence"),
        [
            ('{"learner": "bpr", "settings": {}}', "hyper-parameters of bpr, not of dlce"),
            ('{"learner": "dlce", "settings": 3}', "not a settings file"),
            ("[]", "not a settings file"),
            ("{", "not a settings file"),
            ("[" * 100_000, "not a settings file"),
        ],
    )
    def test_other_files_are_not_settings(
        self, content: str, sentence: str, taurank: Command, shop: Path, tmp_path: Path
    ) -> None:
        (tmp_path / "best.json").write_text(content)
        arguments = ("--settings", tmp_path / "best.json", "--out", tmp_path / "model")
        assert taurank("fit", "dlce", shop / "train.parquet", *arguments).refused_with(sentence)
