"""Plans: what the TOML files say, and one sentence for every odd one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.experiments import GOOD, small, write
from taurank.errors import InputError
from taurank_paper import plan as plans
from taurank_paper import rows
from taurank_paper.runner import run

EXAMPLES = sorted((Path(__file__).parents[2] / "experiments").glob("*.toml"))
PRESETS = ("smoke", "quick", "full", "authors")


@pytest.mark.parametrize("name", plans.KINDS)
@pytest.mark.parametrize("preset", PRESETS)
def test_all_plans_of_all_presets_can_be_read(name: str, preset: str) -> None:
    plan = plans.load(name, plans.load_preset(preset))
    assert plan.file.kind == name
    assert bool(rows.fits_of(plan)) == (name != "statistics")


def test_the_examples_can_be_read() -> None:
    assert len(EXAMPLES) >= 4
    for path in EXAMPLES:
        assert rows.fits_of(plans.load(str(path), plans.load_preset("full")))


def test_quick_shares_fits_between_experiments() -> None:
    preset = plans.load_preset("quick")
    needed = {name: set(rows.fits_of(plans.load(name, preset))) for name in plans.KINDS}
    assert needed["estimators"] <= needed["comparison"]
    for name in ("capping", "unevenness", "losses"):
        assert needed[name] & needed["comparison"]


def test_some_datasets_and_experiments_train_longer(tmp_path: Path) -> None:
    preset = small(lengths={"category": {"personalized": 2.0}})
    data = '[{items = "category"}, {items = "category", assignment = "personalized"}]'
    text = GOOD.replace('[{items = "category"}]', data)
    for length, updates in (("", [3000, 6000]), ("length = 0.5\n", [1500, 3000])):
        plan = plans.load(write(tmp_path, length + text), preset)
        assert [fit.updates for fit in rows.fits_of(plan)] == updates


def test_settings_go_from_the_preset_over_the_tuned_ones_to_the_file(tmp_path: Path) -> None:
    tuned: Any = {"category": {"original": {"dlce": {"cap": 0.3, "regularization": 0.1, "CAR": {"cap": 0.1}}}}}
    text = 'kind = "car"\nmetrics = ["CAR"]\ndata = [{items = "category"}]\nmethods = [{name = "dlce"}]'
    preset = small(settings={"cap": 0.7, "learning_rate": 0.02})

    def settings(text: str, metric: str) -> dict[str, Any]:
        plan = plans.load(write(tmp_path, text), preset, tuned)
        return plan.settings(plan.file.methods[0], plan.datasets[0], metric)

    assert settings(text, "CDCG")["cap"] == 0.3
    assert settings(text, "CAR") == {"factors": 4, "cap": 0.1, "learning_rate": 0.02, "regularization": 0.1}
    of_method = text.replace('{name = "dlce"}', '{name = "dlce", settings = {cap = 0.5}}')
    assert settings(of_method, "CAR")["cap"] == 0.5
    of_dataset = of_method.replace('{items = "category"}', '{items = "category", settings = {dlce = {cap = 0.6}}}')
    assert settings(of_dataset, "CAR")["cap"] == 0.6
    tuned["category"]["original"]["dlce"]["CP@10"] = {"cap": 0.01}
    for line, cap in (("", 0.3), ("\nper_metric = true", 0.01)):
        assert [settings(text + line, name)["cap"] for name in ("CP@10", "P@10")] == [cap, cap]


DATA, METHOD = 'items = "category"', '"dlce"'


def varied(kind: str, vary: str) -> str:
    return f'kind = "{kind}"\nvary = {{{vary}}}\n' + GOOD.split("\n", 1)[1]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('"comparison"', "comparison", "is not valid TOML"),
        ("metrics", "metrix", "unknown key 'metrix'; known: kind"),
        ('"comparison"', '"table"', "kind must be 'statistics', .*, got 'table'"),
        ("kind", "length = 0\nkind", "length must be greater than 0, got 0"),
        ("kind", "seed = -1\nkind", "seed must be ≥ 0, got -1"),
        ("kind", "times = {training = 5}\nkind", "times: unknown key 'training'; known: train, validation, test"),
        ("kind", "smoke = 3\nkind", r"\[smoke\] must be a table"),
        ("kind", "smoke = {metrix = 1}\nkind", "unknown key 'metrix'"),
        ('"CDCG"', '"NDCG"', "metrics: unknown metric 'NDCG'"),
        ('metrics = ["CDCG"]', "", "metrics is missing"),
        (DATA, f"{DATA}, beta = nan", "beta must be a finite number"),
        (DATA, f"{DATA}, settings = {{dlto = {{cap = 0.1}}}}", "unknown key 'dlto'; known: dlce"),
        (DATA, f"{DATA}, settings = {{dlce = {{cap = 7}}}}", "between 0 and 1"),
        ('data = [{items = "category"}]', "", r"at least one \[\[data\]\] is needed"),
        ("}]", '}, {items = "category", beta = 3.0}]', "two .* entries are 'category original'"),
        (METHOD, '"dice"', "there is no method 'dice'; known: random"),
        (METHOD, '"os:path"', "is not a learner"),
        (METHOD, f"{METHOD}, settings = {{capp = 0.1}}", "unknown key 'capp' in the settings of dlce"),
        (METHOD, f"{METHOD}, settings = {{cap = 2}}", "between 0 and 1"),
        (METHOD, f"{METHOD}, settings = {{epochs = 3}}", "unknown key 'epochs'"),
        (METHOD, f"{METHOD}, settings = {{updates = 0}}", "updates must be an integer ≥ 1"),
        (METHOD, '"truth", settings = {cap = 0.1}', "unknown key 'cap' in the settings of truth; known: none"),
        (METHOD, f"{METHOD}, choose = {{cap = []}}", "choose: cap must have at least 1 item"),
        (METHOD, f"{METHOD}, choose = {{cap = [0.1, 7]}}", "between 0 and 1"),
        ('"dlce"}', '"dlce"}, {name = "dlce"}', "two methods have the label 'dlce'"),
        ('methods = [{name = "dlce"}]', "", r"at least one \[\[methods\]\] is needed"),
        ("methods", "vary = {cap = [0.1]}\nmethods", "vary: unknown key 'cap'; known: none"),
        (GOOD, varied("capping", ""), "vary: cap is missing"),
        (GOOD, varied("capping", "cap = [2.0]"), "vary: cap must be ≤ 1"),
    ],
)  # fmt: skip
def test_an_odd_file_is_one_sentence(tmp_path: Path, old: str, new: str, words: str) -> None:
    assert old in GOOD
    with pytest.raises(InputError, match=rf"mine\.toml.*({words})") as refusal:
        rows.fits_of(plans.load(write(tmp_path, GOOD.replace(old, new, 1)), small()))
    assert "\n" not in str(refusal.value)
    assert len(str(refusal.value)) < 400


@pytest.mark.parametrize(
    ("content", "words"),
    [("[category]\noriginal = 3", "category: original must be a table, got 3"),
     ("[category.original]\ndlce = 3", "category: original: dlce must be a table"), ("x", "not valid TOML")],
)  # fmt: skip
def test_odd_tuned_files(tmp_path: Path, content: str, words: str) -> None:
    (tmp_path / "tuned.toml").write_text(content)
    with pytest.raises(InputError, match=words):
        plans.load_tuned(tmp_path / "tuned.toml")


def test_a_tuned_value_that_a_learner_does_not_take(tmp_path: Path) -> None:
    tuned: Any = {"category": {"original": {"dlce": {"cap": "large"}}}}
    with pytest.raises(InputError, match=r"mine\.toml: dlce: cap"):
        rows.fits_of(plans.load(write(tmp_path, GOOD), small(), tuned))


def test_unknown_names_list_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no experiment 'tables'; known: statistics, comparison"):
        run("tables", "smoke", out=tmp_path)
    with pytest.raises(InputError, match="cannot be read: No such file"):
        run(str(tmp_path / "none.toml"), "smoke", out=tmp_path)
    with pytest.raises(InputError, match="two experiments are called 'car'"):
        run(["car", "car"], "smoke", out=tmp_path)
