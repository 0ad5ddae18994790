"""From TOML files to plans, checked before anything runs.

A file names datasets, methods and metrics, and what is varied. Presets say how large everything is, and
``tuned.toml`` holds the hyper-parameters that a search found. A researcher adds a method or a dataset by writing
such a file; an unknown key is an error.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import resources
from pathlib import Path
from typing import Any

from taurank.errors import InputError, show
from taurank.evaluation.metrics import parse
from taurank.learners import LEARNERS, learner_class, learner_name
from taurank_paper.plan.names import (
    ASSIGNMENTS,
    ITEMS,
    KINDS,
    LIMITS,
    PRESETS,
    PROPENSITIES,
    RESERVED,
    VARIES,
)
from taurank_paper.plan.plans import Dataset, Method, Plan, Preset, Settings, Times, Tuned
from taurank_paper.plan.toml_table import TomlTable, is_integer, is_label, is_number, parse_toml

DECIDED = ("random_state", "threads", "epochs")  # hyper-parameters that a run decides, not a plan
MAX_LENGTH = 100  # times the updates of a preset
MAX_WEEKS = 10_000
RATES = {  # where a plan sets none: the constant rates of the searches before the learners' own rates decayed
    "BPR": {"learning_rate": 0.01},
    "ULBPR": {"learning_rate": 0.03},
    "CausE": {"learning_rate": 0.05},
    **{name: {"learning_rate": 0.003} for name in ("DLCE", "DLTO", "BLCE")},
}


def load(name: str, preset: Preset, tuned: Tuned | None = None) -> Plan:
    """The plan of a name, or of a researcher's own TOML file given by its path."""
    if name in KINDS:
        text, stem = _packaged(f"{name}.toml"), name
    elif name.endswith(".toml"):
        text, stem = _read(Path(name)), Path(name).stem
        _check_stem(stem)
    else:
        known = ", ".join(KINDS)
        raise InputError(f"there is no experiment '{name}'; known: {known}, or the path of a TOML file.")
    content = parse_toml(text, f"{stem}.toml")
    return _plan(content, stem, preset, load_tuned(packaged=preset.tuned) if tuned is None else tuned)


def load_preset(name: str) -> Preset:
    """smoke, quick, full or authors, as ``presets.toml`` describes them."""
    tables = parse_toml(_packaged("presets.toml"), "presets.toml")
    if name not in tables:
        raise InputError(f"there is no preset '{name}'; known: {', '.join(tables)}.")
    table = tables[name]
    sizes = table.pop("sizes", None)
    sizes = None if sizes is None else {items: (int(u), int(i)) for items, (u, i) in sizes.items()}
    return Preset(name=name, sizes=sizes, **table)


def load_tuned(path: Path | None = None, packaged: str = "tuned.toml") -> Tuned:
    """Tuned hyper-parameters: from a file, or from this one of the package."""
    text = _packaged(packaged) if path is None else _read(path)
    where = packaged if path is None else str(path)
    tuned = parse_toml(text, where)
    for items in tuned:
        for assignment, methods in TomlTable(tuned[items], f"{where}: {items}").content.items():
            for method, table in TomlTable(methods, f"{where}: {items}.{assignment}").content.items():
                TomlTable(table, f"{where}: {items}.{assignment}.{method}")
    return tuned


def hyper_parameters(name: str) -> dict[str, Any]:
    """What a plan can set of a method, with the defaults; ``updates`` is the length of a fit with epochs.

    Unless a plan says otherwise the rate is constant, as in the paper.
    """
    if name in LIMITS:
        return {}
    kind = learner_class(name)
    defaults = {**kind().get_params(), **RATES.get(kind.__name__, {})}
    if "rate_decay" in defaults:
        defaults["rate_decay"] = 1.0
    settable = {key: value for key, value in defaults.items() if key not in DECIDED}
    return {**settable, "updates": None} if "epochs" in defaults else settable


def check_settings(name: str, settings: Settings, where: str) -> None:
    """Refuse hyper-parameters that the method does not have, or values it does not take."""
    known = hyper_parameters(name)
    for key in settings:
        if key not in known:
            listed = ", ".join(known) or "none"
            raise InputError(f"{where}: unknown key {show(key)} in the settings of {name}; known: {listed}.")
    if not is_integer(settings.get("updates", 1), 1):
        raise InputError(f"{where}: updates must be an integer ≥ 1, got {show(settings['updates'])}.")
    if name in LIMITS:
        return
    try:
        learner_class(name)(**{key: value for key, value in settings.items() if key != "updates"})
    except (InputError, TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{where}: {name}: {error}") from error


# ---- the parts of a plan -------------------------------------------------------------------------


def _plan(content: dict[str, Any], name: str, preset: Preset, tuned: Tuned) -> Plan:
    where = f"{name}.toml"
    for key in PRESETS:
        TomlTable(content.get(key, {}), f"{where}: [{key}]")
    merged = {key: value for key, value in content.items() if key not in PRESETS}
    table = TomlTable({**merged, **content.get(preset.name, {})}, where)
    kind = table.choice("kind", KINDS, name)
    title = table.text("title", name)
    seed, times = table.integer("seed", 0), _times(table.table("times"), Times())
    entries = [_Entry(entry, times, seed) for entry in table.tables("data")]
    plan = Plan(
        name=name,
        kind=kind,
        title=title,
        datasets=tuple(entry.dataset for entry in entries),
        methods=tuple(_method(entry) for entry in table.tables("methods")),
        metrics=_metrics(table),
        vary=_vary(table.table("vary"), kind),
        preset=preset,
        tuned=tuned,
        keep_models=table.flag("keep_models", False),
        per_metric=table.flag("per_metric", preset.per_metric),
        spread=table.flag("spread", False),
        length=table.number("length", 1.0),
        overrides={entry.dataset_key: entry.settings for entry in entries if entry.settings},
        own_metrics={entry.dataset_key: entry.metrics for entry in entries if entry.metrics},
    )
    table.finish()
    _check(plan, where)
    return plan


class _Entry:
    """One [[data]] entry: a dataset, and what holds for it alone."""

    def __init__(self, table: TomlTable, times: Times, seed: int) -> None:
        if "setting" in table and "assignment" not in table:  # the older word
            table.content = {("assignment" if key == "setting" else key): v for key, v in table.content.items()}
        self.dataset = Dataset(
            items=table.choice("items", ITEMS),
            assignment=table.choice("assignment", ASSIGNMENTS, "original"),
            beta=table.number("beta", 2.0),
            xi=table.number("xi", 0.0),
            propensity=table.choice("propensity", PROPENSITIES, "recorded"),
            times=_times(table.table("times"), times),
            seed=table.integer("seed", seed),
        )
        self.dataset_key = self.dataset.items, self.dataset.assignment
        self.metrics = _metrics(table)
        given = table.table("settings")
        self.settings = {
            label: TomlTable(own, f"{given.where}.{label}").content for label, own in given.content.items()
        }
        table.finish()


def _times(table: TomlTable, default: Times) -> Times:
    parts = {part: table.integer(part, weeks, 1, MAX_WEEKS) for part, weeks in vars(default).items()}
    table.finish()
    return Times(**parts)


def _method(table: TomlTable) -> Method:
    if "name" not in table:
        raise InputError(f"{table.where}: 'name' is missing; it is a learner such as dlce, or truth, or ten_weeks.")
    name = _method_name(table.text("name", ""), table.where)
    label = table.text("label", _short_name(name))
    settings = dict(table.table("settings").content)
    choose = table.table("choose")
    method = Method(name, label, settings, {key: tuple(choose.values(key)) for key in choose.content})
    check_settings(name, settings, table.where)
    for key, values in method.choose.items():
        _check_distinct(values, key, choose.where)
        for value in values:
            check_settings(name, {**settings, key: value}, choose.where)
    table.finish()
    return method


def _short_name(name: str) -> str:
    """The class without its module, unless tables would confuse it with a method of the paper."""
    short = name.rpartition(":")[2]
    return name if short.lower() in (*LEARNERS, *LIMITS) else short


def _method_name(name: str, where: str) -> str:
    """The name of a limit or a built-in learner, or the "module:Class" of one's own."""
    if name in LIMITS:
        return name
    if ":" not in name and name.lower() not in LEARNERS:
        known = ", ".join((*LEARNERS, *LIMITS))
        raise InputError(f"{where}: there is no method '{name}'; known: {known}, or your own as my_module:MyClass.")
    try:
        kind = learner_class(name)
        kind()
        return learner_name(kind)
    except (InputError, TypeError) as error:
        raise InputError(f"{where}: {error}") from error


def _metrics(table: TomlTable) -> tuple[str, ...]:
    names = table.values("metrics")
    for name in names:
        if not is_label(name):
            raise InputError(f"{table.where}: metrics must be names such as CP@10, got {show(name)}.")
    try:
        return tuple(dict.fromkeys(parse(name).name for name in names))
    except InputError as error:
        raise InputError(f"{table.where}: {error}") from error


_VARIED = {  # the values that a varied quantity can have
    "cap": (lambda value: is_number(value, 0, 1), "numbers between 0 and 1"),
    "beta": (lambda value: is_number(value, 0), "numbers ≥ 0"),
    "xi": (lambda value: is_number(value, 0), "numbers ≥ 0"),
    "loss": (is_label, "names"),
    "factors": (lambda value: is_integer(value, 1), "integers ≥ 1"),
}


def _vary(table: TomlTable, kind: str) -> dict[str, tuple[Any, ...]]:
    varied = {}
    for key in VARIES.get(kind, ()):
        values = table.values(key)
        test, wanted = _VARIED[key]
        if not values or not all(map(test, values)):
            raise InputError(f"{table.where}: {key} must be a list of {wanted}, got {show(values)}.")
        _check_distinct(values, key, table.where)
        varied[key] = tuple(values)
    table.finish()
    return varied


# ---- what must fit together ----------------------------------------------------------------------


def _check(plan: Plan, where: str) -> None:
    if not plan.datasets:
        raise InputError(f"{where}: at least one [[data]] is needed.")
    if not 0 < plan.length <= MAX_LENGTH:
        raise InputError(f"{where}: length must be a number above 0, at most {MAX_LENGTH}, got {plan.length:g}.")
    labels = [f"{dataset.items} {dataset.assignment}" for dataset in plan.datasets]
    if repeated := _repeated(labels):
        raise InputError(
            f"{where}: two [[data]] entries are '{repeated}', so their rows would look alike; use two files."
        )
    if plan.kind == "statistics":
        return
    if not plan.methods:
        raise InputError(f"{where}: at least one [[methods]] is needed.")
    for dataset in plan.datasets:
        if not plan.metrics_of(dataset):
            raise InputError(f"{where}: metrics is missing; name at least one, such as CDCG.")
    labels = [method.label for method in plan.methods]
    if label := _repeated(labels):
        raise InputError(f"{where}: two methods have the label '{label}'; give one of them another label.")
    for (items, assignment), by_label in plan.overrides.items():
        own = TomlTable(by_label, f"{where}: settings of {items} {assignment}")
        own.known = labels
        own.finish()
        for method in plan.methods:
            check_settings(method.name, by_label.get(method.label, {}), own.where)
    _check_varied(plan, where)


def _check_varied(plan: Plan, where: str) -> None:
    """Every varied hyper-parameter must be one that the methods take."""
    for method in plan.methods:
        takes = hyper_parameters(method.name)
        for key, values in plan.vary.items():
            for value in values:
                if key in takes:
                    check_settings(method.name, {key: value}, f"{where}: vary")


def _check_distinct(values: Iterable[Any], key: str, where: str) -> None:
    if value := _repeated([repr(value) for value in values]):
        raise InputError(f"{where}: {key} has the value {value} twice; remove one.")


def _repeated(names: list[str]) -> str | None:
    return next((name for name in names if names.count(name) > 1), None)


def _check_stem(stem: str) -> None:
    if stem.casefold() in RESERVED:
        raise InputError(
            f"an experiment cannot be called '{stem}', which is a file of the report; rename {stem}.toml."
        )
    if not is_label(stem) or stem.startswith("."):
        raise InputError(f"{show(stem + '.toml')} is not a usable name for an experiment; rename the file.")


def _packaged(name: str) -> str:
    return (resources.files("taurank_paper.plan") / "experiments" / name).read_text(encoding="utf-8")


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"'{path}' is not UTF-8 text; save it as UTF-8.") from error
    except (OSError, ValueError) as error:
        raise InputError(f"'{path}' cannot be read: {getattr(error, 'strerror', None) or error}.") from error
