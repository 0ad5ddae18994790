"""The command line, as a person meets it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from taurank import Gains, Log, World, load
from taurank.cli import app


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of ``taurank ARGUMENTS``."""
    before = sys.argv
    sys.argv = ["taurank", *map(str, arguments)]
    try:
        app.main()
        code = 0
    except SystemExit as stop:
        code = int(stop.code or 0)
    finally:
        sys.argv = before
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_version_and_help_import_nothing_heavy() -> None:
    script = (
        "import sys; sys.argv = ['taurank', '--help']\n"
        "from taurank.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {'numpy', 'pandas', 'numba', 'duckdb', 'pyarrow', 'scipy', 'altair'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "propensity" in done.stdout


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "--version")[1].startswith("taurank ")


def test_the_package_runs_as_a_module() -> None:
    done = subprocess.run([sys.executable, "-m", "taurank", "--version"], capture_output=True, text=True, check=False)
    assert done.stdout.startswith("taurank ")


def test_synthetic_writes_log_truth_and_what_was_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("data", "synthetic", "--users", 30, "--items", 20, "--times", 2, "--seed", 5, "--out")
    assert run(capsys, *arguments, tmp_path / "a")[0] == 0
    assert run(capsys, *arguments, tmp_path / "b")[0] == 0
    log, again = (Log.read(tmp_path / folder / "log.parquet") for folder in "ab")
    assert log.equals(again)
    assert (log.n_users, log.n_items, log.n_times) == (30, 20, 2)
    assert set(Gains.read(tmp_path / "a" / "truth.parquet").value) == {-1.0, 1.0}
    made = json.loads((tmp_path / "a" / "world.json").read_text())
    assert made["origin"]["maker"] == "synthetic"
    assert (made["seed"], made["rows"]) == (5, len(log))


def test_personalized_synthetic(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, _ = run(
        capsys, "data", "synthetic", "--users", 9, "--items", 30, "--out", tmp_path,
        "--propensity", "personalized",
    )  # fmt: skip
    assert code == 0
    assert json.loads((tmp_path / "world.json").read_text())["origin"]["personalized"]["beta"] == 2.0


@pytest.fixture
def log_file(tmp_path: Path) -> Path:
    path = tmp_path / "log.parquet"
    World.synthetic(40, 30, random_state=0).sample(3, random_state=1).log.write(path)
    return path


def test_log_check(log_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "log", "check", log_file)
    assert code == 0
    assert "users" in out
    assert f"{len(Log.read(log_file)):,}" in out


def test_bad_input_is_one_sentence_and_exit_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "broken.csv"
    path.write_text("user_id,item_id,treated,outcome,propensity\n1,2,1,0,1.0\n1,3,1,0,0.5\n")
    code, out, err = run(capsys, "log", "check", path)
    assert code == 2
    assert out == ""
    assert err.count("\n") == 1
    assert "column 'propensity'" in err
    assert "1 row is not, for example '1.0'" in err


def test_usage_errors_are_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "data", "synthetic")[0] == 2
    assert run(capsys, "nothing")[0] == 2


def test_log_build(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown, bought, out = (tmp_path / name for name in ("shown.csv", "bought.csv", "log.parquet"))
    shown.write_text("user_id,item_id,timestamp\n1,tea,2024-01-01 10:00:00\n2,tea,2024-01-09 10:00:00\n")
    bought.write_text("user_id,item_id,timestamp\n1,tea,2024-01-02 12:00:00\n3,ham,2024-01-03 12:00:00\n")
    code, text, _ = run(capsys, "log", "build", shown, bought, "--period", "week", "--out", out)
    assert code == 0
    assert "Wrote Log(3 rows" in text
    log = Log.read(out)
    assert (log.n_users, log.n_times, int(log.treated.sum()), int(log.outcome.sum())) == (3, 2, 2, 2)


def test_log_build_writes_nothing_on_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown, out = tmp_path / "shown.csv", tmp_path / "log.parquet"
    shown.write_text("user_id,timestamp\n1,2024-01-01 10:00:00\n")
    code, _, err = run(capsys, "log", "build", shown, shown, "--out", out)
    assert code == 2
    assert "item_id" in err
    assert not out.exists()


def test_propensity_estimate_and_diagnose(log_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    without, estimated, page = (tmp_path / name for name in ("without.csv", "estimated.parquet", "page.html"))
    Log.from_frame(Log.read(log_file).to_frame().drop(columns="propensity")).write(without)
    code, _, err = run(capsys, "propensity", "diagnose", without)
    assert code == 2
    assert "taurank propensity estimate" in err
    assert run(capsys, "propensity", "estimate", without, "--out", estimated)[0] == 0
    code, out, _ = run(capsys, "propensity", "diagnose", estimated, "--html", page, "--format", "json")
    assert code == 0
    assert json.loads(out)
    assert "<svg" in page.read_text()


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a log, its truth, and a log to measure by."""
    folder = tmp_path_factory.mktemp("shop")
    world = World.synthetic(80, 30, random_state=0)
    for name, seed in (("train", 1), ("test", 2)):
        sample = world.sample(5, random_state=seed)
        sample.log.write(folder / f"{name}.parquet")
        sample.truth.write(folder / f"{name}_truth.parquet")
    return folder


def fitted(shop: Path, capsys: pytest.CaptureFixture[str], *options: object) -> Path:
    model = shop / "model.tau"
    settings = ("--set", "factors=8", "--set", "epochs=5", "--set", "cap=0.1")
    code, out, err = run(capsys, "fit", "dlce", shop / "train.parquet", *settings, "--out", model, *options)
    assert code == 0, err
    assert "Wrote DLCE" in out
    return model


def test_fit_and_evaluate(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = fitted(shop, capsys)
    log, truth = shop / "test.parquet", shop / "test_truth.parquet"
    code, out, _ = run(capsys, "evaluate", model, log, "--truth", truth, "--unit", "week")
    assert code == 0
    assert "measured by: truth" in out
    assert "extra purchases per user and week" in out
    for estimator in ("outcome", "naive", "ips"):
        code, out, _ = run(capsys, "evaluate", model, log, "--estimator", estimator, "--format", "json")
        assert code == 0
        assert json.loads(out)["gains"] == estimator
    code, out, _ = run(capsys, "evaluate", model, log, "--cap", 0.05, "--metrics", "CP@5,CAR", "--format", "csv")
    assert code == 0
    assert out.splitlines()[0].startswith("metric,mean,std,low,high")
    assert [line.split(",")[0] for line in out.splitlines()[1:]] == ["CP@5", "CAR"]


def test_evaluate_says_what_is_wrong(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, log = fitted(shop, capsys), shop / "test.parquet"
    for arguments, sentence in (
        ((model, log, "--metrics", "XY"), "unknown metric 'XY'"),
        ((model, log, "--estimator", "truth"), "--truth FILE"),
        ((model, log, "--estimator", "capped-ips"), "needs a cap"),
        ((shop / "none", log), "there is no file"),
        ((model, shop / "none.parquet"), "there is no file"),
    ):
        code, _, err = run(capsys, "evaluate", *arguments)
        assert code == 2
        assert sentence in err
        assert err.count("\n") == 1


def test_evaluate_scores_from_an_array_and_from_a_table(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The model's own scores, as a .npy file and as a table of pairs, measure the same as the model."""
    model, log = load(fitted(shop, capsys)), shop / "test.parquet"
    scores = model.score_block(np.arange(80, dtype=np.int32))
    np.save(shop / "scores.npy", scores)
    model.write_recommendations(shop / "scores.parquet", k=30)
    outs = [
        run(capsys, "evaluate", shop / name, log, "--format", "json")[1]
        for name in ("model.tau", "scores.npy", "scores.parquet")
    ]
    assert outs[0] == outs[1] == outs[2]


def test_recommend(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, out = fitted(shop, capsys), shop / "best.csv"
    (shop / "users.csv").write_text("user_id\n5\n3\n")
    (shop / "stock.csv").write_text("item_id\n1\n2\n3\n4\n")
    (shop / "gone.csv").write_text("item_id\n2\n")
    code, text, _ = run(
        capsys, "recommend", model, "--out", out, "--k", 3, "--users", shop / "users.csv",
        "--candidates", shop / "stock.csv", "--exclude", shop / "gone.csv",
    )  # fmt: skip
    assert code == 0
    assert "Wrote 6 recommendations" in text
    frame = pd.read_csv(out)
    assert frame["user_id"].tolist() == [5, 5, 5, 3, 3, 3]
    assert set(frame["item_id"]) == {1, 3, 4}
    (shop / "users.csv").write_text("user_id\n5\n999\n")
    code, _, err = run(capsys, "recommend", model, "--out", shop / "none.csv", "--users", shop / "users.csv")
    assert code == 2
    assert "999" in err
    assert not (shop / "none.csv").exists()
    code, _, _ = run(capsys, "recommend", model, "--out", out, "--exclude", shop / "train.parquet")
    bought = Log.read(shop / "train.parquet").to_frame().query("outcome == 1")
    pairs = set(zip(bought["user_id"], bought["item_id"], strict=True))
    best = pd.read_csv(out)
    assert not pairs & set(zip(best["user_id"], best["item_id"], strict=True))


def test_fit_with_validation_and_unknown_settings(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fitted(shop, capsys, "--truth", shop / "test_truth.parquet", "--metric", "CP@10", "--patience", 2)
    fitted(shop, capsys, "--validation", shop / "test.parquet", "--cap", 0.1)
    for settings, sentence in (
        ("capp=3", "it takes random_state"),
        ("cap", "name=value"),
        ("cap=7", "cap must be a number"),
    ):
        code, _, err = run(capsys, "fit", "dlce", shop / "train.parquet", "--out", shop / "x.tau", "--set", settings)
        assert code == 2
        assert sentence in err
        assert not (shop / "x.tau").exists()
    assert run(capsys, "fit", "nobody", shop / "train.parquet", "--out", shop / "x.tau")[0] == 2


def test_tune(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    best, page = shop / "best.json", shop / "tuning.html"
    code, out, err = run(
        capsys, "tune", "dlce", shop / "train.parquet", "--validation", shop / "test.parquet", "--cap", 0.1,
        "--trials", 3, "--set", "factors=4", "--set", "epochs=3", "--search", "cap=0.03,0.3",
        "--journal", shop / "journal", "--out", best, "--html", page,
    )  # fmt: skip
    assert code == 0, err
    assert "best CDCG" in out
    assert json.loads(best.read_text())["best"]["cap"] in (0.03, 0.3)
    assert "<svg" in page.read_text()
