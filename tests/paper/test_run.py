"""Running the paper's experiments: fits that are cached, tables that repeat, learners of one's own."""

from __future__ import annotations

import json
import linecache
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import taurank as tr
from support.experiments import result_cache, small, write
from taurank.errors import DivergedError, InputError
from taurank_paper import plan as plans
from taurank_paper import report, rows, runner, worlds
from taurank_paper.fits import FitSpec
from taurank_paper.plan import Dataset, Times
from taurank_paper.runner import run

TINY = {
    "comparison": """
        metrics = ["CP@10", "CDCG", "P@10"]
        times = {train = 4, test = 3}
        data = [{items = "category"}]
        methods = [
          {name = "popular"}, {name = "dlce"}, {name = "dlce", label = "hinge", settings = {loss = "hinge"}},
          {name = "countingbayes", choose = {weight = [0.5, 4.0]}}, {name = "truth"}, {name = "ten_weeks"},
        ]
    """,
    "estimators": """
        metrics = ["CDCG", "CAR"]
        times = {train = 4, test = 3}
        data = [{items = "category"}]
        methods = [{name = "popular"}, {name = "dlce"}]
        vary = {cap = [0.0, 0.3]}
    """,
    "misspecification": """
        metrics = ["CDCG"]
        times = {train = 4, test = 3}
        data = [{items = "category", settings = {dlce = {cap = 0.2}}}]
        methods = [{name = "dlce"}, {name = "blce"}]
        vary = {xi = [0.0, 0.5]}
    """,
}


@pytest.fixture
def tiny(tmp_path: Path) -> dict[str, str]:
    """Paths of small plans, by kind."""
    paths = {}
    for kind, text in TINY.items():
        path = tmp_path / f"{kind}.toml"
        path.write_text(f'kind = "{kind}"\n{text}')
        paths[kind] = str(path)
    return paths


@pytest.fixture
def no_report(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The report has its own tests: here the folders it was called with are enough."""
    called: list[Path] = []
    monkeypatch.setattr(report, "write", called.append)
    return called


# ---- from end to end -----------------------------------------------------------------------------


@pytest.mark.usefixtures("no_report")
def test_run_writes_tables_and_a_record_and_a_second_run_makes_no_fit(tiny: dict[str, str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert run(tiny.values(), "smoke", out=out, show_progress=False) == out
    record = json.loads((out / "run.json").read_text())
    # popular, dlce, hinge, two weights, two limits; dlce estimated and at ξ 0 and 0.5 with its own cap, blce
    assert record["fits"] == {"done": 11, "reused": 0}
    first = {path.name: path.read_bytes() for path in out.glob("*.csv")}
    comparison, estimators, misspecified = (pd.read_csv(out / f"{name}.csv") for name in TINY)
    assert set(comparison["method"]) == {"popular", "dlce", "hinge", "countingbayes", "truth", "ten_weeks"}
    assert set(comparison["metric"]) == {"CP@10", "CDCG", "P@10"}
    assert list(estimators) == ["items", "setting", "method", "metric", "cap", "mae", "bias", "truth"]
    assert misspecified["propensity"].tolist() == ["misspecified", "misspecified", "estimated", "none"]
    assert misspecified["xi"].isna().tolist() == [False, False, True, True]
    run(tiny.values(), "smoke", out=out, show_progress=False)
    again = json.loads((out / "run.json").read_text())
    assert again["fits"] == {"done": 0, "reused": 11}
    assert again["experiments"]["comparison"] >= record["experiments"]["comparison"]
    assert {path.name: path.read_bytes() for path in out.glob("*.csv")} == first


@pytest.mark.usefixtures("no_report")
def test_the_record_says_which_preset_made_each_table(tiny: dict[str, str], tmp_path: Path) -> None:
    run(tiny["comparison"], "smoke", out=tmp_path, show_progress=False)
    path = tmp_path / "run.json"
    record = json.loads(path.read_text())
    other = {**record, "preset": "full", "presets": {"comparison": "full"}, "experiments": {"comparison": 9000.0}}
    path.write_text(json.dumps(other | {"seed": [7]}))
    run(tiny["misspecification"], "smoke", out=tmp_path, show_progress=False)
    record = json.loads(path.read_text())
    assert record["presets"] == {"comparison": "full", "misspecification": "smoke"}
    assert record["experiments"]["comparison"] == 9000
    assert record["seed"] == [0, 7]
    run(tiny["comparison"], "smoke", out=tmp_path, show_progress=False)
    record = json.loads(path.read_text())
    assert record["presets"]["comparison"] == "smoke"
    assert record["experiments"]["comparison"] < 9000, "seconds of another preset are not added"


@pytest.mark.usefixtures("no_report")
def test_same_tables_from_another_folder_and_other_threads(tiny: dict[str, str], tmp_path: Path) -> None:
    for threads in (1, 2):
        run(tiny["comparison"], "smoke", out=tmp_path / str(threads), threads=threads, show_progress=False)
    one, two = (pd.read_csv(tmp_path / str(threads) / "comparison.csv") for threads in (1, 2))
    pd.testing.assert_frame_equal(one.drop(columns="seconds"), two.drop(columns="seconds"), check_exact=True)


def test_statistics_of_a_synthetic_world(tmp_path: Path) -> None:
    made = rows.frames(plans.load("statistics", small()), result_cache(tmp_path))
    facts = made["statistics"].set_index(["items", "quantity"])["value"]
    assert facts["category", "users"] == 30
    assert facts["product", "items"] == 40
    density = made["statistics_density"].groupby(["items", "setting"])
    areas = density.apply(lambda part: float((part["density"] * (part["high"] - part["low"])).sum()))
    assert np.allclose(areas, 1.0)
    assert len(areas) == 4


# ---- fits ----------------------------------------------------------------------------------------


def test_each_metric_is_of_its_own_best_epoch(tmp_path: Path) -> None:
    """Against the obvious way: fit as many epochs as were chosen, without validation, and evaluate."""
    cache = result_cache(tmp_path)
    data = Dataset("category", times=Times(4, 1, 3))
    fit = FitSpec.of(data, "dlce", {"factors": 4, "learning_rate": 0.3, "rate_decay": 1.0}, 30_000, 10)
    result, split = cache.result(fit), cache.splits.split(data)
    per_epoch = int(np.count_nonzero(split.train.outcome))
    for metric in ("CP@10", "CDCG", "CAR", "P@10"):
        value = result.values[metric]
        epochs, rest = divmod(value.updates, per_epoch)
        assert rest == 0
        model = tr.DLCE(**result.settings, epochs=epochs, random_state=worlds.fit_seed(data), threads=1)
        gains = split.tested[metric == "P@10"]
        measured = tr.evaluate(model.fit(split.train, None, show_progress=False), gains, metric)[metric]
        assert value.weeks == tuple(measured.per_time)


def test_specs_that_cannot_differ_are_equal() -> None:
    blce = FitSpec.of(Dataset("category", xi=0.5), "blce", {"factors": 4}, 100, 1)
    assert blce == FitSpec.of(Dataset("category", beta=3.0, propensity="estimated"), "blce", {"factors": 4}, 100, 1)
    assert blce == FitSpec.of(
        Dataset("category"), "blce", {"factors": 4, "loss": "logistic"}, 100, 1, keep_model=True
    )
    dlce = FitSpec.of(Dataset("category"), "dlce", {"factors": 4}, 100, 1)
    assert dlce != FitSpec.of(Dataset("category", xi=0.5), "dlce", {"factors": 4}, 100, 1)
    assert FitSpec.of(Dataset("category"), "dlce", {"updates": 50}, 100, 1).updates == 50


def test_a_broken_file_in_the_cache_is_made_again(tmp_path: Path) -> None:
    cache = result_cache(tmp_path)
    fit = FitSpec.of(Dataset("category"), "popular", {}, 100, 1)
    first = cache.result(fit)
    (cache.folder / f"{cache.key(fit)}.json").write_text("{half")
    assert cache.result(fit).values == first.values
    assert cache.done == 2


def test_a_model_that_is_wanted_later_is_fitted_again_to_the_same(tmp_path: Path) -> None:
    cache = result_cache(tmp_path)
    fit = FitSpec.of(Dataset("category"), "dlce", {"factors": 4}, 3000, 3)
    kept = FitSpec.of(Dataset("category"), "dlce", {"factors": 4}, 3000, 3, keep_model=True)
    assert cache.result(fit).values == cache.result(kept).values
    assert cache.done == 2
    measured = tr.evaluate(cache.model(kept), cache.splits.split(fit.dataset).tested[0], "CDCG")["CDCG"]
    assert tuple(measured.per_time) == cache.result(kept).values["CDCG"].weeks


def test_a_fit_that_diverges_is_made_with_a_smaller_learning_rate(tmp_path: Path) -> None:
    def fit(rate: float) -> FitSpec:
        return FitSpec.of(Dataset("category"), "dlce", {"factors": 4, "learning_rate": rate}, 3000, 3)

    assert result_cache(tmp_path).result(fit(2.0)).settings["learning_rate"] < 2
    with pytest.raises(DivergedError):
        result_cache(tmp_path).result(fit(1e9))


def test_estimator_errors_by_hand(tmp_path: Path, tiny: dict[str, str]) -> None:
    cache = result_cache(tmp_path)
    made = plans.load(tiny["estimators"], small())
    frame = rows.frames(made, cache)["estimators"]
    split = cache.splits.split(made.datasets[0])
    sample, model = split.test_sample(), tr.Popular().fit(split.train)
    truth = tr.evaluate(model, sample.truth, "CAR")["CAR"].per_time
    estimate = tr.evaluate(model, tr.gains.capped_ips(sample.log, 0.3), "CAR")["CAR"].per_time
    row = frame[(frame["method"] == "popular") & (frame["metric"] == "CAR") & (frame["cap"] == 0.3)].iloc[0]
    assert row["mae"] == pytest.approx(np.abs(estimate - truth).mean())
    assert row["bias"] == pytest.approx((estimate - truth).mean())
    assert row["truth"] == pytest.approx(truth.mean())


# ---- a learner of one's own ----------------------------------------------------------------------

OWN = """
from dataclasses import dataclass
from typing import ClassVar
from taurank import DLCE, Popular, gains

class Shy(Popular):
    def score_block(self, user_codes):
        return -super().score_block(user_codes)

@dataclass(kw_only=True, eq=False)
class DLCE(DLCE):  # not to be confused with taurank's
    flavor: str = "plain"
    space: ClassVar = {"flavor": ("plain", "sour")}

    def gains(self, log):
        return gains.capped_ips(log, self.cap) if self.flavor == "plain" else gains.outcome(log)
"""

WITH_OWN = """
kind = "comparison"
metrics = ["CP@10", "CDCG"]
times = {train = 4, test = 3}
data = [{items = "category"}]
methods = [
  {name = "popular"}, {name = "dlce"}, {name = "own_learners:Shy"},
  {name = "own_learners:DLCE", label = "sour", settings = {flavor = "sour"}},
]
"""


@pytest.fixture
def own_learners(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module of a user's own; it is forgotten after the test."""
    path = tmp_path / "modules" / "own_learners.py"
    path.parent.mkdir()
    path.write_text(OWN)
    monkeypatch.syspath_prepend(path.parent)
    monkeypatch.delitem(sys.modules, "own_learners", raising=False)
    return path


@pytest.mark.usefixtures("own_learners")
def test_a_learner_named_like_ours_keeps_its_module_in_the_tables(tmp_path: Path) -> None:
    path = write(tmp_path, WITH_OWN.replace('label = "sour", ', ""))
    plan = plans.load(path, small(), {})
    assert [method.label for method in plan.file.methods] == ["popular", "dlce", "Shy", "own_learners:DLCE"]


@pytest.mark.usefixtures("own_learners")
def test_learners_of_ones_own_are_measured_and_reported(tmp_path: Path) -> None:
    run(write(tmp_path, WITH_OWN), "smoke", out=tmp_path / "out", show_progress=False)
    means = pd.read_csv(tmp_path / "out" / "mine.csv").set_index(["method", "metric"])["mean"]
    assert {method for method, _ in means.index} == {"popular", "dlce", "Shy", "sour"}
    assert means["Shy", "CDCG"] != means["popular", "CDCG"]
    assert means["sour", "CDCG"] != means["dlce", "CDCG"], "a user's DLCE is not taurank's"
    assert "sour" in (tmp_path / "out" / "report.html").read_text()
    record = json.loads((tmp_path / "out" / "run.json").read_text())
    assert record["fits"] == {"done": 4, "reused": 0}


@pytest.mark.usefixtures("no_report")
def test_after_a_change_of_ones_own_learner_its_fits_are_made_again(tmp_path: Path, own_learners: Path) -> None:
    path = write(tmp_path, WITH_OWN)
    run(path, "smoke", out=tmp_path / "out", show_progress=False)
    own_learners.write_text(OWN + "# changed\n")
    linecache.checkcache()
    run(path, "smoke", out=tmp_path / "out", show_progress=False)
    record = json.loads((tmp_path / "out" / "run.json").read_text())
    assert record["fits"] == {"done": 2, "reused": 2}


def test_a_folder_that_cannot_be_written_is_refused_before_any_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "_run_all", lambda *_: pytest.fail("no fit may be made"))
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"run\.json' cannot be written"):
        run("car", "smoke", out=tmp_path / "file")
    assert not list(tmp_path.rglob("*.tmp"))
