"""A pilot on made-up shops: its answer against the truth, its stages, its refusals."""

import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

import taurank as tr
from taurank._progress import Progress
from taurank.data.features import Features
from taurank.pilot import Pilot
from taurank.pilot.categories import LAST, Categories, WithinCategories, derived, learner_of
from taurank.pilot.config import PilotConfig
from taurank.pilot.pipeline import Stages
from taurank.worlds.shop import Shop
from taurank.worlds.shop_tables import write_tables


@pytest.fixture(scope="module")
def shop() -> Shop:
    return Shop.draw(users=1500, items=150, weeks=5, seed=1)


@pytest.fixture(scope="module")
def tables(shop: Shop, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shop")
    write_tables(shop, folder, threads=1)
    plan = folder / "pilot.toml"
    plan.write_text(plan.read_text() + "learners = ['popular', 'empiricalbayes']\nitem_segment = 'bestseller'\n")
    return folder


@pytest.fixture(scope="module")
def result(tables: Path) -> Pilot:
    return tr.pilot.run(tables / "pilot.toml", tables / "out", threads=1, show_progress=False)


def test_the_answer_names_a_ranking_that_is_better_in_truth(shop: Shop, result: Pilot) -> None:
    assert result.answer.decision == "show"
    assert result.answer.choice == "empiricalbayes"
    assert result.gate.level == "good"
    chosen = shop.value(result.rankings[result.answer.choice].recommend(k=10))
    assert chosen > 2 * shop.value(shop.today())
    assert str(result).startswith(f"Show {result.answer.choice}: its first 10 items, shown 1.")


def test_by_number_of_items_and_by_segments_of_items(result: Pilot) -> None:
    assert result.curve is not None
    assert result.by_items is not None
    assert result.estimate is not None
    chosen = result.estimate["empiricalbayes"]["CP@10"]
    ten = result.curve.to_frame().set_index("k")["effect"][10]
    assert ten == pytest.approx(10 * chosen.mean, rel=1e-9)
    parts = [one["empiricalbayes"]["CP@10"].mean for one in result.by_items.segments.values()]
    assert list(result.by_items.segments) == ["(none)", "False", "True"]
    assert sum(parts) == pytest.approx(chosen.mean, rel=1e-9)
    page = (result.folder / "report.html").read_text()
    assert "How many items?" in page
    assert "By bestseller" in page


def test_intervals_contain_the_truth(shop: Shop, result: Pilot) -> None:
    assert result.estimate is not None
    rows = result.estimate.to_frame().query("segment == 'all'").set_index("ranker")
    lists = {name: one.recommend(k=10) for name, one in result.rankings.items()} | {"today": shop.today()}
    first = result.setting.log.n_times - result.setting.test.n_times
    users = shop.users.encode_known(result.setting.test.users.values)
    everybody = float(shop.visited[users, first:].sum())  # what a metric is a mean over
    for name, frame in lists.items():
        known = frame[frame["user_id"].isin(result.setting.test.users.values.to_pylist())]
        pairs = known.groupby("user_id").head(10)
        visits = shop.visited[:, first:].sum(1)[shop.users.encode_known(pairs["user_id"].array)]
        effect = shop.effect(pairs["user_id"].array, pairs["item_id"].array)
        true = (effect * visits).sum() / (10 * everybody)
        row: Any = rows.loc[name]
        width = row["high"] - row["low"]
        assert row["low"] - width / 2 < true < row["high"] + width / 2, name  # 99.99 % of the time


def test_the_result_is_complete_and_the_second_run_repeats_nothing(
    result: Pilot, tables: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tables / "out"
    page = (out / "report.html").read_text()
    assert page.index(result.answer.sentence.replace("'", "&#39;")) < page.index("The rankings")
    assert (out / "pilot.toml").read_bytes() == (tables / "pilot.toml").read_bytes()
    lists = pq.read_table(out / "recommendations.parquet").to_pandas()
    assert lists.groupby("user_id").size().max() == 10
    assert tr.load(out / "model").users == result.setting.log.users
    changed = {path: path.stat().st_mtime_ns for path in (out / "stages").iterdir()}
    again = tr.pilot.run(tables / "pilot.toml", out, threads=2, show_progress=True)
    assert {path: path.stat().st_mtime_ns for path in (out / "stages").iterdir()} == changed
    assert again.answer == result.answer
    assert "model-empiricalbayes (done before)" in capsys.readouterr().err


def test_the_time_left_follows_from_the_stages_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 100.0, 110.0, 710.0, 800.0])
    monkeypatch.setattr("taurank.pilot.pipeline.time", SimpleNamespace(monotonic=lambda: next(clock)))
    monkeypatch.setattr("taurank.pilot.pipeline.SECONDS", {"log": 10.0, "a": 60.0, "b": 30.0, "report": 20.0})
    with Progress(False) as progress:
        stages, lines = Stages(tmp_path, progress, ["log", "done", "a", "b", "report"]), list[str]()
        monkeypatch.setattr(progress, "step", lambda text, steps: lines.append(text))
        stages.end("log")
        stages.end("done", done_before=True)
        stages.end("a")
        stages.skip("b")
        stages.end("report")
    assert lines == [
        "log, about 28.3 min left", "done (done before), about 18.3 min left", "a, about 8.3 min left", "report"
    ]  # fmt: skip


def test_a_killed_run_continues_to_the_same_answer(result: Pilot, tables: Path) -> None:
    """What a kill leaves: the stages before it. The rest is made again, to the same bits."""
    stages = tables / "out" / "stages"
    (model,) = stages.glob("model-empiricalbayes-*.model")
    content = model.read_bytes()
    model.unlink()
    again = tr.pilot.run(tables / "pilot.toml", tables / "out", threads=1, show_progress=False)
    assert model.read_bytes() == content
    assert again.answer == result.answer


def test_lists_stay_within_the_users_categories(shop: Shop, result: Pilot) -> None:
    p = shop.parameters
    lists = result.rankings["popular"].recommend(k=10)
    user = lists["user_id"].str[1:].astype(int).to_numpy()
    item = lists["item_id"].str[1:].astype(int).to_numpy()
    assert (p.categories[user] == p.category[item][:, None]).any(1).all()


def test_additive_propensities_alone_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_tables(Shop.draw(users=300, items=120, weeks=3, seed=1), tmp_path, recorded="nothing", threads=1)
    plan = tomllib.loads((tmp_path / "pilot.toml").read_text())
    plan["columns"].pop("propensity")
    plan["pilot"].update(propensity="additive", epochs=5, learners=["popular", "dlce"])
    plan["tables"] = {name: str(tmp_path / path) for name, path in plan["tables"].items()}
    result = tr.pilot.run(plan, tmp_path / "out", threads=1, show_progress=True)
    assert capsys.readouterr().err.splitlines()[-1] == "[7/7] report; none left"  # what is skipped is not left
    assert result.answer.decision == "unknown"
    assert result.gate.level == "poor"
    assert result.estimate is None  # no training: the gate needs the log alone
    assert not list((tmp_path / "out" / "stages").glob("model-*"))
    assert "the propensities do not fit" in result.answer.sentence
    assert result.answer.next_step == "record the propensities of what is shown"
    assert "of the slots randomized" in str(result)
    assert not (tmp_path / "out" / "model").exists()
    assert "Suggested experiment" in (tmp_path / "out" / "report.html").read_text()


def test_a_log_without_categories_or_today(tmp_path: Path) -> None:
    tr.World.synthetic(400, 40, 1).sample(4, random_state=2).log.write(tmp_path / "log.parquet")
    (tmp_path / "pilot.toml").write_text(
        '[tables]\nlog = "log.parquet"\n[pilot]\nlearners = ["popular", "dlce"]\nepochs = 5\n'
    )
    result = tr.pilot.run(tmp_path / "pilot.toml", tmp_path / "out", threads=1, show_progress=False)
    assert result.estimate is not None
    assert result.estimate.baseline == "popular"
    assert result.setting.visits.sum() == 400 * 4
    assert learner_of(result.rankings["dlce"]).get_params()["epochs"] == 5


def test_the_gate_makes_all_checks_within_the_categories(result: Pilot) -> None:
    log, categories = result.setting.log, result.setting.categories
    assert log.propensity is not None
    assert categories is not None
    wrong = log.with_propensity(np.minimum(1.3 * log.propensity, 0.999))
    assert tr.diagnose(wrong, categories=categories.features).level == "poor"
    promoted = np.where(log.item % 10 == 0, 0.5, 1.0) * log.propensity  # a promotion that was not recorded
    found = tr.diagnose(log.with_propensity(promoted), categories=categories.features)
    assert "of the items" in found.verdict


@pytest.mark.parametrize("items", [pytest.param(True, marks=pytest.mark.slow), False])
def test_a_plain_export_gets_an_answer(shop: Shop, tables: Path, tmp_path: Path, items: bool) -> None:
    """Without tables of visits and categories both are derived, with those of items in place of groups if known."""
    plan = tomllib.loads((tables / "pilot.toml").read_text())
    names = ["impressions", "purchases", "today", *(["candidates"] if items else [])]
    plan["tables"] = {name: str(tables / plan["tables"][name]) for name in names}
    del plan["columns"]["visits.timestamp"]
    plan["pilot"] = {"learners": ["popular", "empiricalbayes"]}
    result = tr.pilot.run(plan, tmp_path, threads=1, show_progress=False)
    assert (result.answer.decision, result.answer.choice) == ("show", "empiricalbayes")
    assert result.answer.sentence.startswith("Show empiricalbayes: its first 10 items, shown 1.")
    assert "per visiting user and week" in result.answer.sentence
    assert len(result.setting.notes) == 2
    assert result.setting.notes[1] in str(result)
    assert result.estimate is not None
    for name, true in (("today", shop.value(shop.today())), ("empiricalbayes", None)):
        one = result.estimate[name]["CP@10"]
        true = shop.value(result.rankings[name].recommend(k=10)) if true is None else true
        assert 10 * one.low - 0.1 < true < 10 * one.high + 0.1, name  # the truth is that of other weeks, too


def test_nothing_is_derived_where_everything_can_be_shown() -> None:
    log = tr.World.synthetic(400, 40, 1).sample(4, random_state=2).log
    assert derived(log, None) is None


def test_groups_are_the_categories_of_the_shop(shop: Shop, result: Pilot) -> None:
    log = result.setting.log
    groups = derived(log, None)
    assert groups is not None
    code = shop.items.encode(log.items.values)
    pairs = pd.crosstab(groups.category[code >= 0], shop.parameters.category[code[code >= 0]])
    assert (np.count_nonzero(pairs, axis=0) == 1).all()
    assert (np.count_nonzero(pairs, axis=1) == 1).all()


def test_scores_within_categories() -> None:
    log = tr.World.synthetic(6, 5, 0).sample(3, random_state=0).log
    model = tr.Popular().fit(log)
    of_item = pd.DataFrame({"item_id": [0, 1, 2, 3], "category": ["a", "b", "a", None]})
    of_user = pd.DataFrame({"user_id": [1, 2], "category": ["a", "c"]})
    ranking = WithinCategories(model, Categories.of(Features(items=of_item, categories=of_user), log))
    users = np.arange(log.n_users, dtype=np.int32)
    shown = ranking.score_block(users) > LAST
    expected = np.zeros((log.n_users, log.n_items), bool)
    expected[log.users.encode([1])[0], log.items.encode([0, 2])] = True
    np.testing.assert_array_equal(shown, expected)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[tables]\n", "must name either impressions and purchases, or a log"),
        ("[tables]\nlog = 3\n", "tables: log must be .*path.*, got 3"),
        ("[tables]\nlog = 'no.parquet'\n", "no.parquet' does not exist"),
        ("[tabels]\n", "'tables' is missing"),
        ("[tables]\nlog = 'pilot.toml'\n[pilot]\nlearners = ['dcle']\n", "learners must be one of"),
        ("[tables]\nlog = 'pilot.toml'\n[pilot]\nsegments = 'a'\n", "pilot: unknown key 'segments'; known: learners"),
        ("[tables]\nlog = 'pilot.toml'\n[pilot]\nsegment = 'a'\n", "needs a table of users"),
        ("[tables]\nlog = 'pilot.toml'\n[pilot]\ntest_share = 2\n", "pilot: test_share must be ≤ 0.99, got 2"),
        ("[tables\n", "is not valid TOML"),
    ],
)
def test_wrong_plans_are_one_sentence_and_write_nothing(tmp_path: Path, text: str, sentence: str) -> None:
    plan = tmp_path / "pilot.toml"
    plan.write_text(text)
    with pytest.raises(tr.InputError, match=sentence):
        tr.pilot.run(plan, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_malformed_tables_are_one_sentence_and_write_nothing(tmp_path: Path) -> None:
    pd.DataFrame({"user_id": [1], "item_id": [2], "treated": [3], "outcome": [0]}).to_parquet(
        tmp_path / "log.parquet"
    )
    with pytest.raises(tr.InputError, match="'treated' must be 0 or 1"):
        tr.pilot.run({"tables": {"log": str(tmp_path / "log.parquet")}}, tmp_path / "out", show_progress=False)
    assert not (tmp_path / "out").exists()


SIDE_FLAWS: dict[str, tuple[str, Any, str]] = {
    "today without a score": (
        "today",
        lambda one: one[["user_id", "item_id"]],
        "neither a column 'score' nor 'rank'",
    ),
    "today without items": ("today", lambda one: one.drop(columns="item_id"), "has no column 'item_id'"),
    "today with words": ("today", lambda one: one.assign(score="high"), "column 'score' .* must be numbers"),
    "today with a null": ("today", lambda one: one.assign(user_id=[None, *one["user_id"][1:]]), "1 null"),
    "today of others": ("today", lambda one: one.assign(user_id="x" + one["user_id"]), "no user_id of the log"),
    "a pair twice": ("today", lambda one: pd.concat([one, one[:2]]), "2 rows repeat an earlier"),
    "no segment": ("users", lambda one: one.drop(columns="segment"), "has no column 'segment'"),
    "users twice": ("users", lambda one: pd.concat([one, one[:3]]), "repeats a user_id in 3 rows"),
    "no category": ("categories", lambda one: one.drop(columns="category"), "no column 'category'"),
    "categories in pieces": ("categories", None, "not a complete Parquet file"),
}


@pytest.mark.parametrize("flaw", SIDE_FLAWS)
def test_flaws_of_side_tables_are_said_before_any_work(tables: Path, tmp_path: Path, flaw: str) -> None:
    name, spoil, sentence = SIDE_FLAWS[flaw]
    plan = PilotConfig.read(tables / "pilot.toml")
    bad = tmp_path / "bad.parquet"
    if spoil is None:
        bad.write_bytes(plan.tables.named()[name].read_bytes()[:500])
    else:
        spoil(pd.read_parquet(plan.tables.named()[name])).to_parquet(bad)
    settings = tomllib.loads((tables / "pilot.toml").read_text())
    settings["tables"] = {**{key: str(path) for key, path in plan.tables.named().items()}, name: str(bad)}
    with pytest.raises(tr.InputError, match=sentence):
        tr.pilot.run(settings, tmp_path / "out", show_progress=False)
    assert not (tmp_path / "out").exists()


def test_a_folder_of_tables_a_file_or_a_mapping_is_a_plan(tables: Path, tmp_path: Path) -> None:
    for name in ("impressions.csv", "purchases.parquet", "today.parquet", "other.csv"):
        (tmp_path / name).touch()
    more = {"columns": {"user_id": "customer"}, "log": {"timezone": "Europe/Berlin"}}
    plan = PilotConfig.read(tmp_path, more)
    assert sorted(plan.tables.named()) == ["impressions", "purchases", "today"]
    assert (plan.columns["user_id"], plan.log.timezone) == ("customer", "Europe/Berlin")
    (tmp_path / "purchases.parquet").unlink()
    with pytest.raises(tr.InputError, match="must name either impressions and purchases, or a log"):
        PilotConfig.read(tmp_path)
    plan = PilotConfig.read(tables / "pilot.toml")  # of which paths are relative to the file
    assert plan.tables.today == tables / "today.parquet"
    assert plan.columns["purchases.timestamp"] == "bought_at"
    with pytest.raises(tr.InputError, match="the plan: tables must be a table, got 3"):
        PilotConfig.read({"tables": 3})
