"""Plans: what the TOML files say, and one sentence for every odd one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import taurank_paper as paper
from support.experiments import small, write
from taurank.errors import InputError
from taurank_paper.plan import names, reading
from taurank_paper.runs import tables

EXAMPLES = Path(__file__).parents[2] / "experiments"
GOOD = 'kind = "comparison"\nmetrics = ["CDCG"]\ndata = [{items = "category"}]\nmethods = [{name = "dlce"}]\n'


@pytest.mark.parametrize("name", names.KINDS)
@pytest.mark.parametrize("preset", names.PRESETS)
def test_all_plans_of_all_presets_can_be_read(name: str, preset: str) -> None:
    plan = reading.load(name, reading.load_preset(preset))
    assert plan.kind == name
    assert bool(tables.fits_of(plan)) == (name != "statistics")


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.toml")), ids=lambda path: path.stem)
def test_the_examples_can_be_read(path: Path) -> None:
    assert tables.fits_of(reading.load(str(path), reading.load_preset("full")))


def test_there_are_examples() -> None:
    assert list(EXAMPLES.glob("*.toml"))


def test_quick_shares_fits_between_experiments() -> None:
    preset = reading.load_preset("quick")
    needed = {name: set(tables.fits_of(reading.load(name, preset))) for name in names.KINDS}
    assert needed["estimators"] <= needed["comparison"]
    assert needed["capping"] & needed["comparison"]
    assert needed["unevenness"] & needed["comparison"]
    assert needed["losses"] & needed["comparison"]


def test_some_datasets_and_experiments_train_longer(tmp_path: Path) -> None:
    preset = small(lengths={"category": {"personalized": 2.0}})
    data = '[{items = "category"}, {items = "category", assignment = "personalized"}]'
    text = GOOD.replace('[{items = "category"}]', data)
    for length, updates in (("", [3000, 6000]), ("length = 0.5\n", [1500, 3000])):
        plan = reading.load(write(tmp_path, length + text), preset)
        assert [fit.updates for fit in tables.fits_of(plan)] == updates


def test_settings_go_from_preset_over_tuned_and_metric_to_the_file(tmp_path: Path) -> None:
    tuned = {"category": {"original": {"dlce": {"cap": 0.3, "regularization": 0.1, "CAR": {"cap": 0.1}}}}}
    text = 'kind = "car"\nmetrics = ["CAR"]\ndata = [{items = "category"}]\nmethods = [{name = "dlce"}]'
    preset = small(use_tuned=True, settings={"cap": 0.7, "learning_rate": 0.02})
    plan = reading.load(write(tmp_path, text), preset, tuned)
    assert plan.settings(plan.methods[0], plan.datasets[0], "CDCG")["cap"] == 0.3
    settings = plan.settings(plan.methods[0], plan.datasets[0], "CAR")
    assert settings == {"factors": 4, "cap": 0.1, "learning_rate": 0.02, "regularization": 0.1}
    own = text.replace('{name = "dlce"}', '{name = "dlce", settings = {cap = 0.5}}')
    plan = reading.load(write(tmp_path, own), preset, tuned)
    assert plan.settings(plan.methods[0], plan.datasets[0], "CAR")["cap"] == 0.5
    tuned["category"]["original"]["dlce"]["CP@10"] = {"cap": 0.01}
    for line, caps in (("", [0.3, 0.3]), ("\nper_metric = true", [0.01, 0.01])):
        plan = reading.load(write(tmp_path, text + line), preset, tuned)
        assert [plan.settings(plan.methods[0], plan.datasets[0], name)["cap"] for name in ("CP@10", "P@10")] == caps


def test_the_older_word_setting_means_the_assignment(tmp_path: Path) -> None:
    for word in ("setting", "assignment"):
        text = GOOD.replace('"category"', f'"category", {word} = "personalized"')
        assert reading.load(write(tmp_path, text), small()).datasets[0].assignment == "personalized"


DATA, METHOD = 'items = "category"', '"dlce"'


def varied(kind: str, vary: str) -> str:
    return f'kind = "{kind}"\nvary = {{{vary}}}\n' + GOOD.split("\n", 1)[1]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        # the file as a whole
        ('"comparison"', "comparison", "mine.toml is not valid TOML"),
        ("metrics", "metrix", "unknown key 'metrix'; known: kind"),
        ('"comparison"', '"table"', "kind must be one of statistics, .*, got 'table'"),
        ('"comparison"', "5", "kind must be one of"),
        ('"comparison"', '["comparison"]', "kind must be one of"),
        ('kind = "comparison"', "", "'kind' is missing"),
        ("kind", "title = 5\nkind", "title must be a short text"),
        ("kind", 'title = ""\nkind', "title must be a short text"),
        ("kind", 'title = "a\\nb"\nkind', "title must be a short text"),
        ("kind", "length = 0\nkind", "length must be a number above 0, at most 100, got 0"),
        ("kind", "length = 1e9\nkind", "length must be a number above 0"),
        ("kind", 'length = "long"\nkind', "length must be a number"),
        ("kind", "seed = -1\nkind", "seed must be an integer ≥ 0, got -1"),
        ("kind", "seed = true\nkind", "seed must be an integer"),
        ("kind", "seed = 1.0\nkind", "seed must be an integer"),
        ("kind", 'seed = "1"\nkind', "seed must be an integer"),
        ("kind", "times = 5\nkind", "times must be a table, got 5"),
        ("kind", "times = [5]\nkind", "times must be a table"),
        ("kind", 'times = {train = "x"}\nkind', "train must be an integer between 1 and 10000"),
        ("kind", "times = {train = 1000000000}\nkind", "train must be an integer between 1 and 10000"),
        ("kind", "times = {training = 5}\nkind", "unknown key 'training'; known: train, validation, test"),
        ("kind", 'keep_models = "yes"\nkind', "keep_models must be true or false"),
        ("kind", "per_metric = 1\nkind", "per_metric must be true or false"),
        ("kind", "smoke = 3\nkind", r"\[smoke\] must be a table"),
        ("kind", "full = [1]\nkind", r"\[full\] must be a table"),
        ("kind", "smoke = {metrix = 1}\nkind", "unknown key 'metrix'"),
        ("kind", "smoke = {smoke = {}}\nkind", "unknown key 'smoke'"),
        # metrics
        ('"CDCG"', '"NDCG"', "mine.toml: unknown metric 'NDCG'"),
        ('["CDCG"]', '"CDCG"', "metrics must be a list"),
        ('["CDCG"]', "[]", "metrics must be a list with at least one"),
        ('["CDCG"]', "[3]", "metrics must be names"),
        ('["CDCG"]', '[["CDCG"]]', "metrics must be names"),
        ('metrics = ["CDCG"]', "", "metrics is missing"),
        # datasets
        ('"category"', '"shoe"', "items must be one of category, product, got 'shoe'"),
        ('"category"', "3", "items must be one of"),
        ('"category"', '["category"]', "items must be one of"),
        (DATA, 'item = "category"', "'items' is missing"),
        (DATA, f'{DATA}, item = "category"', "unknown key 'item'"),
        (DATA, f'{DATA}, assignment = "x"', "assignment must be one of original, personalized"),
        (DATA, f"{DATA}, setting = 1", "assignment must be one of"),
        (DATA, f'{DATA}, assignment = "original", setting = "original"', "unknown key 'setting'"),
        (DATA, f"{DATA}, beta = nan", "beta must be a number ≥ 0"),
        (DATA, f"{DATA}, beta = inf", "beta must be a number ≥ 0"),
        (DATA, f"{DATA}, beta = -1", "beta must be a number ≥ 0"),
        (DATA, f"{DATA}, beta = true", "beta must be a number ≥ 0"),
        (DATA, f"{DATA}, beta = [2]", "beta must be a number ≥ 0"),
        (DATA, f"{DATA}, beta = 1{'0' * 400}", "beta must be a number ≥ 0"),
        (DATA, f"{DATA}, xi = -0.5", "xi must be a number ≥ 0"),
        (DATA, f'{DATA}, propensity = "guessed"', "propensity must be one of recorded, estimated"),
        (DATA, f"{DATA}, seed = 0.5", "seed must be an integer"),
        (DATA, f"{DATA}, times = {{train = 0}}", "train must be an integer between 1 and 10000, got 0"),
        (DATA, f"{DATA}, times = 5", "times must be a table"),
        (DATA, f"{DATA}, metrics = 5", "metrics must be a list"),
        (DATA, f"{DATA}, settings = 5", "settings must be a table"),
        (DATA, f"{DATA}, settings = {{dlce = 5}}", "settings.dlce must be a table"),
        (DATA, f"{DATA}, settings = {{dlto = {{cap = 0.1}}}}", "unknown key 'dlto'; known: dlce"),
        (DATA, f"{DATA}, settings = {{dlce = {{cap = 7}}}}", "between 0 and 1"),
        ('[{items = "category"}]', "5", "data must be a list"),
        ('[{items = "category"}]', "[5]", r"\[\[data\]\] 1 must be a table"),
        ('[{items = "category"}]', '{items = "category"}', "data must be a list"),
        ('[{items = "category"}]', "[]", "data must be a list with at least one"),
        ('data = [{items = "category"}]', "", r"at least one \[\[data\]\] is needed"),
        ("}]", '}, {items = "category", beta = 3.0}]', "two .* entries are 'category original'"),
        # methods
        (METHOD, '"dice"', "there is no method 'dice'; known: random"),
        (METHOD, '""', "name must be a short text"),
        (METHOD, "3", "name must be a short text"),
        (METHOD, '"no_such_module:X"', "'no_such_module:X' cannot be imported"),
        (METHOD, '"os:path"', "is not a learner"),
        (METHOD, '"taurank.learners:Learner"', "is not a learner"),
        (METHOD, '":"', "cannot be imported"),
        ("name = ", "nam = ", "'name' is missing"),
        (METHOD, f'{METHOD}, label = ""', "label must be a short text"),
        (METHOD, f'{METHOD}, label = "  "', "label must be a short text"),
        (METHOD, f"{METHOD}, label = 3", "label must be a short text"),
        (METHOD, f'{METHOD}, label = "\\u001b[31m"', "label must be a short text"),
        (METHOD, f"{METHOD}, settings = 3", "settings must be a table"),
        (METHOD, f"{METHOD}, settings = {{capp = 0.1}}", "unknown key 'capp' in the settings of dlce"),
        (METHOD, f"{METHOD}, settings = {{cap = 2}}", "between 0 and 1"),
        (METHOD, f'{METHOD}, settings = {{cap = "x"}}', "dlce: cap"),
        (METHOD, f"{METHOD}, settings = {{loss = 3}}", "dlce: loss"),
        (METHOD, f"{METHOD}, settings = {{factors = [3]}}", "dlce: factors"),
        (METHOD, f"{METHOD}, settings = {{factors = 1{'0' * 400}}}", "dlce: "),
        (METHOD, f"{METHOD}, settings = {{epochs = 3}}", "unknown key 'epochs'"),
        (METHOD, f"{METHOD}, settings = {{updates = 0}}", "updates must be an integer ≥ 1"),
        (METHOD, f'{METHOD}, settings = {{updates = "x"}}', "updates must be an integer ≥ 1"),
        (METHOD, '"truth", settings = {cap = 0.1}', "unknown key 'cap' in the settings of truth; known: none"),
        (METHOD, f"{METHOD}, choose = 3", "choose must be a table"),
        (METHOD, f"{METHOD}, choose = {{cap = 0.1}}", "cap must be a list"),
        (METHOD, f"{METHOD}, choose = {{cap = []}}", "cap must be a list with at least one"),
        (METHOD, f"{METHOD}, choose = {{cap = [0.1, 7]}}", "between 0 and 1"),
        (METHOD, f"{METHOD}, choose = {{cap = [0.1, 0.1]}}", "cap has the value 0.1 twice"),
        (METHOD, f"{METHOD}, choose = {{capp = [0.1]}}", "unknown key 'capp'"),
        ('"dlce"}', '"dlce"}, {name = "dlce"}', "two methods have the label 'dlce'"),
        ('[{name = "dlce"}]', "3", "methods must be a list"),
        ('[{name = "dlce"}]', '["dlce"]', r"\[\[methods\]\] 1 must be a table"),
        ('methods = [{name = "dlce"}]', "", r"at least one \[\[methods\]\] is needed"),
        # what is varied
        ("methods", "vary = {cap = [0.1]}\nmethods", "unknown key 'cap'; known: none"),
        ("methods", "vary = 3\nmethods", "vary must be a table"),
        (GOOD, varied("capping", ""), "cap must be a list of numbers between 0 and 1"),
        (GOOD, varied("capping", "cap = 0.1"), "cap must be a list"),
        (GOOD, varied("capping", "cap = [2.0]"), "cap must be a list of numbers between 0 and 1"),
        (GOOD, varied("capping", "cap = [[1]]"), "cap must be a list of numbers between 0 and 1"),
        (GOOD, varied("capping", "cap = [0.1, 0.1]"), "cap has the value 0.1 twice"),
        (GOOD, varied("unevenness", 'beta = ["x"]'), "beta must be a list of numbers"),
        (GOOD, varied("misspecification", "xi = [nan]"), "xi must be a list of numbers"),
        (GOOD, varied("losses", 'loss = ["logistic"], factors = [0.5]'), "factors must be a list of integers"),
        (GOOD, varied("losses", 'loss = ["square"], factors = [4]'), "loss"),
        (GOOD, varied("losses", "loss = [1], factors = [4]"), "loss must be a list of names"),
    ],
)  # fmt: skip
def test_an_odd_file_is_one_sentence(tmp_path: Path, old: str, new: str, words: str) -> None:
    tables.fits_of(reading.load(write(tmp_path, GOOD), small()))
    assert old in GOOD
    with pytest.raises(InputError, match=words) as refusal:
        tables.fits_of(reading.load(write(tmp_path, GOOD.replace(old, new, 1)), small()))
    assert "\n" not in str(refusal.value)
    assert len(str(refusal.value)) < 400


def test_braces_in_the_name_of_a_file(tmp_path: Path) -> None:
    twice = GOOD.replace('"dlce"}', '"dlce"}, {name = "dlce"}')
    with pytest.raises(InputError, match="two methods have the label 'dlce'"):
        reading.load(write(tmp_path, twice, "{mine}.toml"), small())


@pytest.mark.parametrize("content", [b"\xff\xfe", b"\x00", b"a = " + b"[" * 5000, b"a = 1\na = 2", b""])
def test_a_file_that_is_not_toml(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "mine.toml").write_bytes(content)
    with pytest.raises(InputError, match=r"not UTF-8|not valid TOML|'kind' is missing"):
        reading.load(str(tmp_path / "mine.toml"), small())


@pytest.mark.parametrize("stem", ["run", "verdicts", "search", "report", "tuned", "Run", "comparison_targets"])
def test_a_name_that_the_report_needs_is_refused(tmp_path: Path, stem: str) -> None:
    path = write(tmp_path, GOOD, f"{stem}.toml")
    with pytest.raises(InputError, match=f"an experiment cannot be called '{stem}'"):
        paper.run(path, "smoke", out=tmp_path / "out")


def test_reserved_names_are_those_that_a_run_writes(tmp_path: Path) -> None:
    """Every file of a run that is not named by an experiment must be reserved."""
    paper.run(["statistics", write(tmp_path, GOOD)], "smoke", out=tmp_path / "out", show_progress=False)
    stems = {path.name.split(".")[0] for path in (tmp_path / "out").iterdir()}
    assert {"run", "report", "verdicts"} <= stems
    assert stems - {"mine", "mine_targets", "mine_curves", "statistics"} <= set(names.RESERVED)


@pytest.mark.parametrize(
    ("content", "words"),
    [("category = 3", "category must be a table"), ("[category]\noriginal = 3", "category.original must be a table"),
     ("[category.original]\ndlce = 3", "category.original.dlce must be a table"), ("x", "not valid TOML")],
)  # fmt: skip
def test_odd_tuned_files(tmp_path: Path, content: str, words: str) -> None:
    (tmp_path / "tuned.toml").write_text(content)
    with pytest.raises(InputError, match=words):
        reading.load_tuned(tmp_path / "tuned.toml")


def test_a_tuned_value_that_a_learner_does_not_take(tmp_path: Path) -> None:
    tuned: dict[str, Any] = {"category": {"original": {"dlce": {"cap": "large"}}}}
    plan = reading.load(write(tmp_path, GOOD), small(use_tuned=True), tuned)
    with pytest.raises(InputError, match=r"mine\.toml: dlce: cap"):
        tables.fits_of(plan)


def test_unknown_names_list_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no experiment 'tables'; known: statistics, comparison"):
        paper.run("tables", "smoke", out=tmp_path)
    with pytest.raises(InputError, match="no preset 'fast'; known: smoke, quick, full"):
        paper.run("car", "fast", out=tmp_path)
    with pytest.raises(InputError, match="cannot be read: No such file"):
        paper.run(str(tmp_path / "none.toml"), "smoke", out=tmp_path)
    with pytest.raises(InputError, match="two experiments are called 'car'"):
        paper.run(["car", "car"], "smoke", out=tmp_path)
