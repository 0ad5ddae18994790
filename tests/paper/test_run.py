"""The runner of the paper's experiments: plans, fits that are remembered, tables that repeat."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import taurank as tr
from taurank import paper
from taurank.errors import InputError
from taurank.paper.plan import plans
from taurank.paper.plan.plans import Data, Preset
from taurank.paper.runs import fits, runner, samples, search, tables
from taurank.paper.runs.progress import Progress

TINY = {
    "comparison": """
        metrics = ["CP@10", "CDCG", "P@10"]
        times = {train = 4, test = 3}
        data = [{items = "category"}]
        methods = [
          {name = "popular"}, {name = "dlce"}, {name = "dlce", label = "hinge", settings = {loss = "hinge"}},
          {name = "countingbayes", choose = {weight = [0.5, 4.0]}}, {name = "truth"}, {name = "ten_weeks"},
        ]
        keep_models = true
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
    monkeypatch.setattr(runner, "_report", called.append)
    return called


def small(**changes: Any) -> Preset:
    preset = Preset("smoke", 3000, 3, factors={"original": 4, "personalized": 4}, use_tuned=False)
    return replace(preset, **{"sizes": {"category": (30, 20), "product": (30, 40)}, **changes})


def lab(folder: Path, preset: Preset | None = None) -> fits.ResultCache:
    return fits.ResultCache(folder / "cache", samples.Splits(preset or small(), None, 1), 1)


def write(folder: Path, text: str) -> str:
    path = folder / "mine.toml"
    path.write_text(text)
    return str(path)


# ---- from end to end -----------------------------------------------------------------------------


@pytest.mark.usefixtures("no_report")
def test_run_writes_tables_and_a_record_and_a_second_run_makes_no_fit(tiny: dict[str, str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert paper.run(tiny.values(), "smoke", out=out, show_progress=False) == out
    record = json.loads((out / "run.json").read_text())
    # popular, dlce, hinge, two weights, two limits; dlce estimated and at ξ 0 and 0.5 with its own cap, blce
    assert record["fits"] == {"done": 11, "reused": 0}
    first = {path.name: path.read_bytes() for path in out.glob("*.csv")}
    assert set(first) >= {"comparison.csv", "estimators.csv", "misspecification.csv"}
    paper.run(tiny.values(), "smoke", out=out, show_progress=False)
    again = json.loads((out / "run.json").read_text())
    assert again["fits"] == {"done": 0, "reused": 11}
    assert again["earlier_starts"] == {record["date"]: {"seconds": record["seconds"], "fits": 11}}
    assert again["experiments"]["comparison"] >= record["experiments"]["comparison"]
    assert {path.name: path.read_bytes() for path in out.glob("*.csv")} == first


@pytest.mark.usefixtures("no_report")
def test_same_tables_from_another_folder_and_other_threads(tiny: dict[str, str], tmp_path: Path) -> None:
    for threads in (1, 2):
        paper.run(tiny["comparison"], "smoke", out=tmp_path / str(threads), threads=threads, show_progress=False)
    one, two = (pd.read_csv(tmp_path / str(threads) / "comparison.csv") for threads in (1, 2))
    pd.testing.assert_frame_equal(one.drop(columns="seconds"), two.drop(columns="seconds"), check_exact=True)


@pytest.mark.usefixtures("no_report")
def test_tables_have_the_columns_the_report_reads(tiny: dict[str, str], tmp_path: Path) -> None:
    paper.run(tiny.values(), "smoke", out=tmp_path, show_progress=False)
    comparison = pd.read_csv(tmp_path / "comparison.csv")
    assert list(comparison)[:9] == [
        "items", "setting", "method", "metric", "mean", "std", "settings", "seconds", "updates",
    ]  # fmt: skip
    assert set(comparison["method"]) == {"popular", "dlce", "hinge", "countingbayes", "truth", "ten_weeks"}
    assert set(comparison["metric"]) == {"CP@10", "CDCG", "P@10"}
    estimators = pd.read_csv(tmp_path / "estimators.csv")
    assert list(estimators) == ["items", "setting", "method", "metric", "cap", "mae", "bias", "truth"]
    misspecified = pd.read_csv(tmp_path / "misspecification.csv")
    assert misspecified["propensity"].tolist() == ["misspecified", "misspecified", "estimated", "none"]
    assert misspecified["xi"].isna().tolist() == [False, False, True, True]


def test_statistics_of_a_synthetic_world(tmp_path: Path) -> None:
    made = tables.frames(plans.load("statistics", small()), lab(tmp_path))
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
    bench = lab(tmp_path)
    data = Data("category", times=plans.Times(4, 1, 3))
    job = fits.job(data, "dlce", {"factors": 4, "learning_rate": 0.3}, 30_000, 10)
    result, scene = bench.result(job), bench.scenes.scene(data)
    per_epoch = int(np.count_nonzero(scene.train.outcome))
    for metric in ("CP@10", "CDCG", "CAR", "P@10"):
        value = result.values[metric]
        epochs, rest = divmod(value.updates, per_epoch)
        assert rest == 0
        model = tr.DLCE(**result.settings, epochs=epochs, random_state=samples.fit_seed(data), threads=1)
        gains = scene.outcome if metric == "P@10" else scene.truth
        found = tr.evaluate(model.fit(scene.train, show_progress=False), gains, metric)[metric]
        assert value.weeks == tuple(found.per_time)
        assert value.mean == pytest.approx(found.mean)
        assert value.std == pytest.approx(found.std)


def test_no_look_at_the_validation_is_better_than_the_chosen_one(tmp_path: Path) -> None:
    seen: list[dict[str, float]] = []
    job = fits.job(Data("category"), "blce", {"factors": 4, "learning_rate": 0.3}, 60_000, 6)
    result = lab(tmp_path).result(job, lambda _, values: seen.append(dict(values)))
    assert len(seen) >= 6
    assert result.values["CDCG"].validation == max(each["CDCG"] for each in seen)
    assert result.values["CAR"].validation == min(each["CAR"] for each in seen)


def test_jobs_that_cannot_differ_are_equal() -> None:
    blce = fits.job(Data("category", xi=0.5), "blce", {"factors": 4}, 100, 1)
    assert blce == fits.job(Data("category", beta=3.0, propensity="estimated"), "blce", {"factors": 4}, 100, 1)
    assert blce == fits.job(Data("category"), "blce", {"factors": 4, "loss": "logistic"}, 100, 1, keep_model=True)
    dlce = fits.job(Data("category"), "dlce", {"factors": 4}, 100, 1)
    assert dlce != fits.job(Data("category", xi=0.5), "dlce", {"factors": 4}, 100, 1)
    assert fits.job(Data("category"), "dlce", {"updates": 50}, 100, 1).updates == 50


def test_the_key_follows_the_world_and_the_settings(tmp_path: Path) -> None:
    job = fits.job(Data("category"), "dlce", {"factors": 4}, 100, 1)
    here = lab(tmp_path)
    other = lab(tmp_path, small(sizes={"category": (31, 20)}))
    assert here.key(job) == lab(tmp_path).key(job)
    assert here.key(job) != other.key(job)
    assert here.key(job) != here.key(fits.job(Data("category"), "dlce", {"factors": 5}, 100, 1))


def test_a_broken_file_in_the_cache_is_made_again(tmp_path: Path) -> None:
    bench = lab(tmp_path)
    job = fits.job(Data("category"), "popular", {}, 100, 1)
    first = bench.result(job)
    (bench.folder / f"{bench.key(job)}.json").write_text("{half")
    assert bench.result(job).values == first.values
    assert (bench.done, bench.reused) == (2, 0)


def test_a_model_that_is_wanted_later_is_fitted_again_to_the_same(tmp_path: Path) -> None:
    bench = lab(tmp_path)
    job = fits.job(Data("category"), "dlce", {"factors": 4}, 3000, 3)
    kept = fits.job(Data("category"), "dlce", {"factors": 4}, 3000, 3, keep_model=True)
    assert bench.result(job).values == bench.result(kept).values
    assert bench.done == 2
    found = tr.evaluate(bench.model(kept), bench.scenes.scene(job.data).truth, "CDCG")["CDCG"]
    assert tuple(found.per_time) == bench.result(kept).values["CDCG"].weeks


def test_a_fit_that_diverges_is_made_with_a_smaller_learning_rate(tmp_path: Path) -> None:
    job = fits.job(Data("category"), "dlce", {"factors": 4, "learning_rate": 1e5}, 3000, 3)
    result = lab(tmp_path).result(job, retries=20)
    assert result.settings["learning_rate"] < 1e5
    with pytest.raises(InputError, match="diverged"):
        lab(tmp_path).result(fits.job(Data("category"), "dlce", {"learning_rate": 1e9}, 3000, 3), retries=1)


@pytest.mark.usefixtures("no_report")
def test_one_half_is_run_alone(tiny: dict[str, str], tmp_path: Path) -> None:
    both = 'data = [{items = "category"}, {items = "product"}]'
    text = f'kind = "comparison"\n{TINY["comparison"]}'.replace('data = [{items = "category"}]', both)
    paper.run([write(tmp_path, text), tiny["misspecification"]], "smoke", out=tmp_path, items="product")
    assert set(pd.read_csv(tmp_path / "mine.csv")["items"]) == {"product"}
    assert not (tmp_path / "misspecification.csv").exists()
    with pytest.raises(InputError, match="no items 'shops'; known are category, product"):
        paper.run("car", "smoke", out=tmp_path, items="shops")
    with pytest.raises(InputError, match="none of these experiments has the items 'product'"):
        paper.run("car", "smoke", out=tmp_path, items="product")


def test_truth_is_the_same_in_both_settings_and_weeks_are_independent() -> None:
    drawn = samples.Splits(small(), None, 1)
    truth = {name: drawn.scene(Data("category", name)).truth for name in ("original", "personalized")}
    assert np.array_equal(truth["original"].value, truth["personalized"].value)
    scene = drawn.scene(Data("category", times=plans.Times(3, 3, 3)))
    assert len({scene.validation.value.tobytes(), scene.truth.value.tobytes(), scene.train.outcome.tobytes()}) == 3


def test_estimator_errors_by_hand(tmp_path: Path, tiny: dict[str, str]) -> None:
    bench = lab(tmp_path)
    made = plans.load(tiny["estimators"], small())
    frame = tables.frames(made, bench)["estimators"]
    scene = bench.scenes.scene(made.data[0])
    sample, model = scene.test_sample(), tr.Popular().fit(scene.train)
    truth = tr.evaluate(model, sample.truth, "CAR")["CAR"].per_time
    estimate = tr.evaluate(model, tr.gains.capped_ips(sample.log, 0.3), "CAR")["CAR"].per_time
    row = frame[(frame["method"] == "popular") & (frame["metric"] == "CAR") & (frame["cap"] == 0.3)].iloc[0]
    assert row["mae"] == pytest.approx(np.abs(estimate - truth).mean())
    assert row["bias"] == pytest.approx((estimate - truth).mean())
    assert row["truth"] == pytest.approx(truth.mean())


# ---- plans ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", plans.NAMES)
@pytest.mark.parametrize("preset", plans.PRESETS)
def test_all_plans_of_all_presets_can_be_read(name: str, preset: str) -> None:
    made = plans.load(name, plans.load_preset(preset))
    assert made.kind == name
    assert bool(tables.jobs(made)) == (name != "statistics")


def test_quick_shares_fits_between_experiments() -> None:
    preset = plans.load_preset("quick")
    needed = {name: set(tables.jobs(plans.load(name, preset))) for name in plans.NAMES}
    assert needed["estimators"] <= needed["comparison"]
    assert needed["capping"] & needed["comparison"]
    assert needed["unevenness"] & needed["comparison"]
    assert needed["losses"] & needed["comparison"]


def test_settings_go_from_preset_over_tuned_and_metric_to_the_file(tmp_path: Path) -> None:
    tuned = {"category": {"original": {"dlce": {"cap": 0.3, "regularization": 0.1, "CAR": {"cap": 0.1}}}}}
    text = 'kind = "car"\nmetrics = ["CAR"]\ndata = [{items = "category"}]\nmethods = [{name = "dlce"}]'
    preset = small(use_tuned=True, settings={"cap": 0.7, "learning_rate": 0.02})
    made = plans.load(write(tmp_path, text), preset, tuned)
    assert made.settings(made.methods[0], made.data[0], "CDCG")["cap"] == 0.3
    found = made.settings(made.methods[0], made.data[0], "CAR")
    assert found == {"factors": 4, "cap": 0.1, "learning_rate": 0.02, "regularization": 0.1}
    own = text.replace('{name = "dlce"}', '{name = "dlce", settings = {cap = 0.5}}')
    made = plans.load(write(tmp_path, own), preset, tuned)
    assert made.settings(made.methods[0], made.data[0], "CAR")["cap"] == 0.5
    tuned["category"]["original"]["dlce"]["CP@10"] = {"cap": 0.01}
    for line, caps in (("", [0.3, 0.3]), ("\nper_metric = true", [0.01, 0.01])):
        made = plans.load(write(tmp_path, text + line), preset, tuned)
        assert [made.settings(made.methods[0], made.data[0], name)["cap"] for name in ("CP@10", "P@10")] == caps


GOOD = 'kind = "comparison"\nmetrics = ["CDCG"]\ndata = [{items = "category"}]\nmethods = [{name = "dlce"}]\n'


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("metrics", "metrix", "unknown key 'metrix'"),
        ('"category"', '"shoe"', "items is 'shoe'"),
        ('items = "category"', 'item = "category"', "unknown key 'item'"),
        ('items = "category"', 'items = "category", seed = 0.5', "whole number"),
        ('items = "category"', 'items = "category", times = {train = 0}', "train is 0"),
        ('"dlce"', '"dice"', "no method 'dice'"),
        ('"dlce"', '"dlce", settings = {capp = 0.1}', "unknown key 'capp'"),
        ('"dlce"', '"dlce", settings = {cap = 2}', "between 0 and 1"),
        ('"dlce"}', '"dlce"}, {name = "dlce"}', "another label"),
        ('"CDCG"', '"NDCG"', "unknown metric"),
        ('"comparison"', '"table"', "kind is 'table'"),
        ("methods", "vary = {cap = [0.1]}\nmethods", "unknown key 'cap'"),
        ('"comparison"', '"capping"', "list of values of 'cap'"),
        ('"category"}', '"category", settings = {dlto = {cap = 0.1}}}', "unknown key 'dlto'"),
        ('"comparison"', "comparison", "is not TOML"),
    ],
)  # fmt: skip
def test_mistakes_in_a_plan_are_told(tmp_path: Path, old: str, new: str, words: str) -> None:
    plans.load(write(tmp_path, GOOD), small())
    with pytest.raises(InputError, match=words):
        plans.load(write(tmp_path, GOOD.replace(old, new, 1)), small())


def test_unknown_names_list_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no experiment 'tables'; known are statistics, comparison"):
        paper.run("tables", "smoke", out=tmp_path)
    with pytest.raises(InputError, match="no preset 'fast'; known are smoke, quick, full"):
        paper.run("car", "fast", out=tmp_path)
    with pytest.raises(InputError, match="cannot be read"):
        paper.run(str(tmp_path / "none.toml"), "smoke", out=tmp_path)
    with pytest.raises(InputError, match="two experiments are called 'car'"):
        paper.run(["car", "car"], "smoke", out=tmp_path)


# ---- the search ----------------------------------------------------------------------------------


def test_search_goes_on_where_it_stopped_and_its_values_are_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "worker_count", lambda _: 1)
    budget = {"trials": 1, "updates": 2000, "validations": 2, "objectives": ["CDCG", "CAR"], "learning_rate": [0.1]}
    preset = small(search=budget, use_tuned=True, per_metric=True)
    made = plans.load(write(tmp_path, GOOD), preset, {})
    with Progress(False) as progress:
        first = search.search([made], tmp_path, None, progress)
        assert progress.count == 3
        again = search.search([made], tmp_path, None, progress)
        assert (progress.total, progress.count) == (0, 0)
    assert first == again == plans.load_tuned(tmp_path / "tuned.toml")
    table = first["category"]["original"]["dlce"]
    assert table["learning_rate"] == 0.1
    assert table["cap"] in tr.DLCE.space["cap"]
    (spent,) = pd.read_csv(tmp_path / "search.csv").to_dict("records")
    assert (spent["method"], spent["trials"], spent["cut"]) == ("dlce", 3, 0)
    assert json.loads(spent["settings"]) == {name: table[name] for name in ("regularization", "cap", "learning_rate")}


def test_the_walk_goes_to_the_nearest_new_place_and_leaps_now_and_then() -> None:
    space = {"cap": [0.1, 0.3, 0.5], "regularization": [0.01, 0.1]}
    best = {"cap": 0.1, "regularization": 0.01}
    every = [{"cap": cap, "regularization": γ} for cap in space["cap"] for γ in space["regularization"]]
    beside = [{"cap": 0.3, "regularization": 0.01}, {"cap": 0.1, "regularization": 0.1}]
    behind = [{"cap": 0.5, "regularization": 0.01}, {"cap": 0.3, "regularization": 0.1}]

    def drawn(tried: list[dict[str, float]], start: dict[str, float] | None) -> list[dict[str, float]]:
        found = [search.next_settings(space, tried, start, np.random.default_rng(seed)) for seed in range(50)]
        return [each for each in every if each in found]

    assert drawn([], None) == every
    far = [each for each in every if each not in beside and each != best]
    assert drawn([best, *far][:4], best) == [each for each in every if each in beside]
    assert drawn([best, *beside, every[-1]], best) == [each for each in every if each in behind]
    assert drawn([best, best, *beside, *beside], best) == far, "every third trial goes anywhere new"
    assert drawn([best, *every], best) == [best], "an exhausted grid is no error"


def test_the_tuned_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    tuned = {"category": {"original": {"dlce": {"cap": 0.3, "CP@10": {"cap": 0.1}}}, "personalized": {"bpr": {}}}}
    (tmp_path / "tuned.toml").write_text(search._text(tuned))
    assert plans.load_tuned(tmp_path / "tuned.toml") == tuned
    assert plans.load_tuned() == plans._parse(search._text(plans.load_tuned()), "again")


# ---- progress ------------------------------------------------------------------------------------


def test_plain_lines_say_what_is_left(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(None) as progress:
        progress.plan(2)
        progress.step("one", 1.0)
        progress.step("two")
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "2 fits to make"
    assert lines[1].startswith("[1/2] one, 1.0 s; 1 left")
    assert lines[2] == "[2/2] two; none left"


def test_the_report_is_called_at_the_end(tmp_path: Path, tiny: dict[str, str], no_report: list[Path]) -> None:
    paper.run(tiny["misspecification"], "smoke", out=tmp_path, show_progress=False)
    assert no_report == [tmp_path]
