"""Plans: an experiment is a TOML file, read into dataclasses and checked before anything runs.

A file says on which data which methods are measured by which metrics, and what is varied. Presets say how
large everything is, and ``tuned.toml`` holds the hyper-parameters that a search has found. A researcher adds a
method or a setting by writing such a file; a key that has no meaning is refused.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from importlib import resources
from pathlib import Path
from typing import Any

from taurank.errors import InputError

NAMES = (
    "statistics", "comparison", "car", "capping", "estimators", "unevenness", "misspecification", "losses",
)  # fmt: skip
PRESETS = ("smoke", "quick", "full")
ITEMS = ("category", "product")
SETTINGS = ("original", "personalized")
LIMITS = ("truth", "ten_weeks")
# what each kind of experiment varies, beside data and methods
VARIES: Mapping[str, tuple[str, ...]] = {
    "capping": ("cap",), "estimators": ("cap",), "unevenness": ("beta",), "misspecification": ("xi",),
    "losses": ("loss", "factors"),
}  # fmt: skip

Settings = Mapping[str, Any]
Tuned = Mapping[str, Any]  # items -> setting -> method -> hyper-parameters, and metric -> hyper-parameters


@dataclass(frozen=True)
class Times:
    """How many weeks are drawn to learn from, to choose by, and to measure on."""

    train: int = 10
    validation: int = 1
    test: int = 10


@dataclass(frozen=True)
class Data:
    """What is sampled, and which propensities the learner sees.

    ``beta`` counts only where the setting is personalized; ``xi`` is how far the recorded propensities are
    misspecified; ``propensity`` is "recorded", or "estimated" from the training log itself.
    """

    items: str
    setting: str = "original"
    beta: float = 2.0
    xi: float = 0.0
    propensity: str = "recorded"
    times: Times = Times()
    seed: int = 0

    def __str__(self) -> str:
        beta = f" β={self.beta:g}" if self.setting == "personalized" and self.beta != 2 else ""
        xi = f" ξ={self.xi:g}" if self.xi else ""
        return f"{self.items} {self.setting}{beta}{xi}" + (" estimated" * (self.propensity == "estimated"))


@dataclass(frozen=True)
class Method:
    """A learner by name, under a label, with hyper-parameters that go before the tuned ones.

    Of the values in ``choose`` the best by the validation weeks is taken, for each metric.
    """

    name: str
    label: str
    settings: Settings = field(default_factory=dict)
    choose: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Preset:
    """How large everything is.

    ``updates`` is the most that a fit makes, and it is validated ``validations`` times on the way. ``factors``
    is d by setting, ``settings`` are defaults of all trained methods. ``sizes`` are users and items of the
    synthetic worlds that stand for the real data. ``per_metric`` is the plans' (see Plan) unless they say otherwise.
    ``search`` is the budget of the tuning.
    """

    name: str
    updates: int
    validations: int
    factors: Mapping[str, int]
    settings: Settings = field(default_factory=dict)
    sizes: Mapping[str, tuple[int, int]] | None = None
    use_tuned: bool = True
    per_metric: bool = False
    search: Settings | None = None


@dataclass(frozen=True)
class Plan:
    """One experiment: what its TOML file says, under a preset."""

    name: str
    kind: str
    title: str
    data: tuple[Data, ...]
    methods: tuple[Method, ...]
    metrics: tuple[str, ...]
    vary: Mapping[str, tuple[Any, ...]]
    preset: Preset
    tuned: Tuned
    keep_models: bool = False
    per_metric: bool = False  # a fit of its own for each metric that was tuned to other values; CAR always has one
    overrides: Mapping[tuple[str, str], Mapping[str, Settings]] = field(default_factory=dict)
    own_metrics: Mapping[tuple[str, str], tuple[str, ...]] = field(default_factory=dict)

    def on(self, items: Iterable[str], settings: Iterable[str] = SETTINGS) -> Plan:
        """The same experiment on some of its data: a piece of it."""
        items, settings = list(items), list(settings)
        return replace(self, data=tuple(d for d in self.data if d.items in items and d.setting in settings))

    def metrics_of(self, data: Data) -> tuple[str, ...]:
        """The metrics for this data."""
        return self.own_metrics.get((data.items, data.setting), self.metrics)

    def settings(self, method: Method, data: Data, metric: str) -> dict[str, Any]:
        """The hyper-parameters of a method on this data: each later source goes before the earlier ones."""
        found: dict[str, Any] = {"factors": self.preset.factors[data.setting], **self.preset.settings}
        if self.preset.use_tuned:
            table = self.tuned.get(data.items, {}).get(data.setting, {}).get(method.name, {})
            found |= {key: value for key, value in table.items() if not isinstance(value, dict)}
            if self.per_metric or metric == "CAR":
                found |= table.get(causal(metric), {})
        own = self.overrides.get((data.items, data.setting), {}).get(method.label, {})
        return {**found, **method.settings, **own}


def causal(metric: str) -> str:
    """The metric that a metric is chosen by: P@10 is reported of the model that is best in CP@10."""
    return metric if metric.startswith("C") else f"C{metric}"


def load(name: str, preset: Preset, tuned: Tuned | None = None) -> Plan:
    """The plan of a name, or of a researcher's own TOML file given by its path."""
    if name in NAMES:
        text, stem = _packaged(f"{name}.toml"), name
    elif name.endswith(".toml"):
        text, stem = _read(Path(name)), Path(name).stem
    else:
        known = ", ".join(NAMES)
        raise InputError(f"there is no experiment '{name}'; known are {known}, or the path of a TOML file.")
    return _plan(_parse(text, f"{stem}.toml"), stem, preset, load_tuned() if tuned is None else tuned)


def load_preset(name: str) -> Preset:
    """smoke, quick or full, as ``presets.toml`` describes them."""
    tables = _parse(_packaged("presets.toml"), "presets.toml")
    if name not in tables:
        raise InputError(f"there is no preset '{name}'; known are {', '.join(tables)}.")
    table = tables[name]
    sizes = table.pop("sizes", None)
    sizes = None if sizes is None else {items: (int(u), int(i)) for items, (u, i) in sizes.items()}
    return Preset(name=name, sizes=sizes, **table)


def load_tuned(path: Path | None = None) -> Tuned:
    """Tuned hyper-parameters: from a file, or those that come with the package."""
    text = _packaged("tuned.toml") if path is None else _read(path)
    return _parse(text, "tuned.toml" if path is None else str(path))


# ---- from text to a plan -------------------------------------------------------------------------

_TOP = ("kind", "title", "seed", "times", "data", "methods", "metrics", "vary", "keep_models", "per_metric")


def _plan(table: dict[str, Any], name: str, preset: Preset, tuned: Tuned) -> Plan:
    where = f"{name}.toml"
    _only(table, (*_TOP, *PRESETS), where)
    own = {key: table.pop(key, {}) for key in PRESETS}[preset.name]
    _only(own, _TOP, f"[{preset.name}] of {where}")
    table |= own
    kind = table.get("kind", name)
    if kind not in NAMES:
        raise InputError(f"{where}: kind is '{kind}'; it must be one of {', '.join(NAMES)}.")
    entries = _tables(table, "data", where)
    times, seed = table.get("times", {}), table.get("seed", 0)
    plan = Plan(
        name=name,
        kind=kind,
        title=str(table.get("title", name)),
        data=tuple(_data(entry, times, seed, where) for entry in entries),
        methods=tuple(_method(entry, where) for entry in _tables(table, "methods", where, kind != "statistics")),
        metrics=_metrics(table.get("metrics", ()), where),
        vary=_vary(table.get("vary", {}), kind, where),
        preset=preset,
        tuned=tuned,
        keep_models=bool(table.get("keep_models", False)),
        per_metric=bool(table.get("per_metric", preset.per_metric)),
        overrides={_place(entry): entry["settings"] for entry in entries if "settings" in entry},
        own_metrics={_place(e): _metrics(e["metrics"], where) for e in entries if "metrics" in e},
    )
    _check_labels(plan, where)
    return plan


def _place(entry: dict[str, Any]) -> tuple[str, str]:
    return entry["items"], entry.get("setting", "original")


def _data(entry: dict[str, Any], times: dict[str, Any], seed: int, where: str) -> Data:
    known = [f.name for f in fields(Data)]
    _only(entry, (*known, "settings", "metrics"), f"[[data]] of {where}")
    weeks = {**times, **entry.get("times", {})}
    _only(weeks, [f.name for f in fields(Times)], f"times of {where}")
    given = {key: value for key, value in entry.items() if key not in ("times", "settings", "metrics")}
    if "items" not in given:
        raise InputError(f"{where}: a [[data]] entry has no 'items'; it is one of {', '.join(ITEMS)}.")
    data = Data(**{"seed": seed, **given, "times": Times(**weeks)})
    _one_of(data.items, ITEMS, "items", where)
    _one_of(data.setting, SETTINGS, "setting", where)
    _one_of(data.propensity, ("recorded", "estimated"), "propensity", where)
    numbers = {"beta": data.beta, "xi": data.xi}
    whole = {"seed": data.seed, **{f.name: getattr(data.times, f.name) for f in fields(Times)}}
    for key, value in {**numbers, **whole}.items():
        right = int if key in whole else (int, float)
        if isinstance(value, bool) or not isinstance(value, right) or value < (key in weeks):
            raise InputError(f"{where}: {key} is {value!r}; it must be a {'whole ' * (key in whole)}number.")
    return replace(data, beta=float(data.beta), xi=float(data.xi))


def _method(entry: dict[str, Any], where: str) -> Method:
    from taurank.learners import LEARNERS

    _only(entry, [f.name for f in fields(Method)], f"[[methods]] of {where}")
    name = entry.get("name")
    if name not in (*LEARNERS, *LIMITS):
        known = ", ".join((*LEARNERS, *LIMITS))
        raise InputError(f"{where}: there is no method '{name}'; known are {known}.")
    choose = {key: tuple(values) for key, values in entry.get("choose", {}).items()}
    method = Method(name, entry.get("label", name), dict(entry.get("settings", {})), choose)
    first = {key: values[0] for key, values in choose.items() if values}
    check_settings(name, {**method.settings, **first}, where)
    return method


def check_settings(name: str, settings: Settings, where: str) -> None:
    """Refuse hyper-parameters that the learner does not have, or values it does not take."""
    from taurank.learners import LEARNERS

    own = {key: value for key, value in settings.items() if key != "updates"}
    if name in LIMITS and own:
        raise InputError(f"{where}: {name} has no hyper-parameters, but {', '.join(own)} is given.")
    if name in LIMITS:
        return
    known = {f.name for f in fields(LEARNERS[name])} - {"random_state", "threads", "epochs"}
    _only(own, sorted(known) + ["updates"] * ("factors" in known), f"the settings of {name} in {where}")
    try:
        LEARNERS[name](**own)
    except InputError as error:
        raise InputError(f"{where}: {name}: {error}") from error


def _metrics(names: Any, where: str) -> tuple[str, ...]:
    from taurank.evaluation.formulas import parse

    if not isinstance(names, (list, tuple)):
        raise InputError(f"{where}: metrics must be a list of names, not {names!r}.")
    return tuple(parse(name).name for name in names)


def _vary(table: dict[str, Any], kind: str, where: str) -> dict[str, tuple[Any, ...]]:
    needed = VARIES.get(kind, ())
    _only(table, needed, f"[vary] of {where}")
    for key in needed:
        if not isinstance(table.get(key), list) or not table[key]:
            raise InputError(f"{where}: [vary] needs a list of values of '{key}'.")
    return {key: tuple(values) for key, values in table.items()}


def _check_labels(plan: Plan, where: str) -> None:
    labels = [method.label for method in plan.methods]
    twice = {label for label in labels if labels.count(label) > 1}
    if twice:
        raise InputError(f"{where}: two methods are called '{twice.pop()}'; give one of them another label.")
    for (items, setting), by_label in plan.overrides.items():
        _only(by_label, labels, f"settings of {items} {setting} in {where}")
        for method in plan.methods:
            check_settings(method.name, by_label.get(method.label, {}), where)


# ---- small checks --------------------------------------------------------------------------------


def _only(table: Any, known: Iterable[str], where: str) -> None:
    if not isinstance(table, dict):
        raise InputError(f"{where}: a table is needed, not {table!r}.")
    known = list(known)
    for key in table:
        if key not in known:
            raise InputError(f"{where}: unknown key '{key}'; known are {', '.join(known) or 'none'}.")


def _one_of(value: Any, known: Iterable[str], key: str, where: str) -> None:
    if value not in known:
        raise InputError(f"{where}: {key} is {value!r}; it must be one of {', '.join(known)}.")


def _tables(table: dict[str, Any], key: str, where: str, needed: bool = True) -> list[dict[str, Any]]:
    entries = table.get(key, [])
    if not isinstance(entries, list) or (needed and not entries):
        raise InputError(f"{where}: at least one [[{key}]] is needed.")
    return entries


def _parse(text: str, where: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{where} is not TOML: {error}.") from error


def _packaged(name: str) -> str:
    return (resources.files("taurank.paper.plan") / "experiments" / name).read_text(encoding="utf-8")


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"'{path}' cannot be read: {error}.") from error
