"""Plans: what an experiment measures, on which datasets, with which hyper-parameters.

An experiment is a TOML file that names datasets, methods and metrics, and what is varied. Presets say how large
everything is, ``tuned.toml`` has the hyper-parameters that a search found. Hyper-parameters have three sources, each
overriding the one before: the preset, the tuned file, the experiment's own file. Everything is checked before
anything runs, settings when ``rows`` makes fits of them: an unknown key or a value out of range is one sentence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import AfterValidator, ConfigDict, Field, model_validator
from pydantic.dataclasses import dataclass as checked

import taurank as tr
from taurank.evaluation.metrics import parse
from taurank.toml import read_toml, validated

Kind = Literal["statistics", "comparison", "car", "capping", "estimators", "unevenness", "misspecification", "losses"]
Items = Literal["category", "product"]
Assignment = Literal["original", "personalized"]  # how recommendations were assigned

KINDS: tuple[str, ...] = get_args(Kind)  # the paper's experiments; one of your own is of one of these kinds
ITEMS: tuple[str, ...] = get_args(Items)
ASSIGNMENTS: tuple[str, ...] = get_args(Assignment)
LIMITS = ("truth", "ten_weeks")  # rankings computed from the world itself, beside the learners
TUNED_METRICS = ("CDCG", "CP@10", "CP@100", "CAR")  # the first is the one that hyper-parameters are tuned for
DECIDED = ("random_state", "threads", "epochs")  # hyper-parameters that a run decides, not a plan
VARIED = {  # what each kind of experiment varies, beside datasets and methods
    "capping": ("cap",), "estimators": ("cap",), "unevenness": ("beta",), "misspecification": ("xi",),
    "losses": ("loss", "factors"),
}  # fmt: skip
EXPERIMENTS = Path(__file__).parent / "experiments"

Settings = Mapping[str, Any]  # hyper-parameters of a method, and `updates` for the length of a fit
Tuned = dict[str, dict[str, dict[str, dict[str, Any]]]]  # items -> assignment -> method -> settings
T = TypeVar("T")


def causal(metric: str) -> str:
    """The metric that a metric is chosen by: P@10 is reported of the model that is best in CP@10."""
    return metric if metric.startswith("C") else f"C{metric}"


def first_repeated(values: Sequence[T]) -> T | None:
    return next((value for n, value in enumerate(values) if value in values[:n]), None)


def _check_method(name: str) -> str:
    """The name of a limit or a built-in learner, or the "module:Class" of one's own."""
    if name in LIMITS:
        return name
    if ":" not in name and name.lower() not in tr.learners.LEARNERS:
        known = ", ".join((*tr.learners.LEARNERS, *LIMITS))
        raise tr.InputError(f"there is no method '{name}'; known: {known}, or your own as my_module:MyClass")
    kind = tr.learners.learner_class(name)
    try:
        kind()
    except TypeError as error:
        raise tr.InputError(f"'{name}' {error}") from error
    return tr.learners.learner_name(kind)


def _label(method: Mapping[str, str]) -> str:
    """The class of a learner, unless a method of the paper has that name."""
    short = method.get("name", "").rpartition(":")[2]
    return method.get("name", "") if short.lower() in (*tr.learners.LEARNERS, *LIMITS) else short


Integer = Annotated[int, Field(strict=True, ge=0)]
Positive = Annotated[int, Field(strict=True, ge=1)]
Weeks = Annotated[int, Field(strict=True, ge=1, le=10_000)]
Number = Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(strict=True, ge=0, le=1)]
Flag = Annotated[bool, Field(strict=True)]
MetricName = Annotated[str, AfterValidator(lambda name: parse(name).name)]
Values = Annotated[tuple[T, ...], Field(min_length=1)]

_STRICT = ConfigDict(extra="forbid")


@checked(frozen=True, config=_STRICT)
class Times:
    """How many weeks are drawn for training, validation and test."""

    train: Weeks = 10
    validation: Weeks = 1
    test: Weeks = 10


@checked(frozen=True, config=_STRICT)
class Sampled:
    """What is sampled, and which propensities the learner sees.

    ``beta`` is how uneven the propensities of the personalized assignment are; ``xi`` is how far the recorded
    propensities are misspecified; ``propensity`` is "recorded", or "estimated" from the training log itself.
    """

    items: Items
    assignment: Assignment = "original"
    beta: Number = 2.0
    xi: Number = 0.0
    propensity: Literal["recorded", "estimated"] = "recorded"


@checked(frozen=True, config=_STRICT)
class Dataset(Sampled):
    """The weeks drawn from it with a seed."""

    times: Times = Times()
    seed: Integer = 0

    def __str__(self) -> str:
        uneven = [f"β={self.beta:g}"] if self.assignment == "personalized" and self.beta != 2 else []
        shrunk = [f"ξ={self.xi:g}"] if self.xi else []
        estimated = ["estimated"] if self.propensity == "estimated" else []
        return " ".join([self.items, self.assignment, *uneven, *shrunk, *estimated])


@checked(frozen=True, config=_STRICT)
class Data(Sampled):
    """A [[data]] entry: metrics and, by label of a method, settings of its own override those of the file."""

    metrics: tuple[MetricName, ...] = ()
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)


@checked(frozen=True, config=_STRICT)
class Method:
    """A [[methods]] entry: a learner or a limit by name, under a label, with settings that override the tuned ones.

    Of the values in ``choose`` the best by the validation weeks is taken, for each metric.
    """

    name: Annotated[str, AfterValidator(_check_method)]
    label: str = Field(default_factory=_label)
    settings: dict[str, Any] = field(default_factory=dict)
    choose: dict[str, Values[Any]] = field(default_factory=dict)


def hyper_parameters(name: str) -> dict[str, Any]:
    """What a plan can set of a method, with the defaults; ``updates`` is the length of a fit with epochs."""
    if name in LIMITS:
        return {}
    defaults = tr.learners.learner_class(name)().get_params()
    settable = {key: value for key, value in defaults.items() if key not in DECIDED}
    return {**settable, "updates": None} if "epochs" in defaults else settable


def check_settings(name: str, settings: Settings) -> None:
    """Refuse hyper-parameters that the method does not have, or values it does not take."""
    known = hyper_parameters(name)
    for key in settings:
        if key not in known:
            listed = ", ".join(known) or "none"
            raise tr.InputError(f"unknown key {tr.errors.show(key)} in the settings of {name}; known: {listed}")
    updates = settings.get("updates", 1)
    if isinstance(updates, bool) or not isinstance(updates, int) or updates < 1:
        raise tr.InputError(f"updates must be an integer ≥ 1, got {tr.errors.show(updates)}")
    if name not in LIMITS:
        try:
            tr.learners.learner_class(name)(**{key: value for key, value in settings.items() if key != "updates"})
        except (tr.InputError, TypeError, ValueError, OverflowError) as error:
            raise tr.InputError(f"{name}: {str(error).rstrip('.')}") from error


@checked(frozen=True, config=_STRICT)
class Vary:
    """The values of what a kind of experiment varies."""

    cap: Values[Share] = ()
    beta: Values[Number] = ()
    xi: Values[Number] = ()
    loss: Values[str] = ()
    factors: Values[Positive] = ()


@checked(frozen=True, config=_STRICT)
class Experiment:
    """The content of an experiment's file.

    With ``per_metric``, each metric that was tuned to other settings has a fit of its own (None: as the preset says);
    CAR always has one. With ``spread``, every fit is made on all draws of the preset, otherwise on the first.
    ``length`` multiplies the updates of the preset.
    """

    kind: Kind
    title: str | None = None
    seed: Integer = 0
    times: Times = Times()
    metrics: tuple[MetricName, ...] = ()
    vary: Vary = Vary()
    data: tuple[Data, ...] = ()
    methods: tuple[Method, ...] = ()
    per_metric: Flag | None = None
    spread: Flag = False
    length: Annotated[float, Field(strict=True, gt=0, le=100)] = 1.0

    @model_validator(mode="after")
    def _fits_together(self) -> Experiment:
        if not self.data:
            raise tr.InputError("at least one [[data]] is needed")
        if repeated := first_repeated([f"{entry.items} {entry.assignment}" for entry in self.data]):
            raise tr.InputError(
                f"two [[data]] entries are '{repeated}', so their rows would look alike; use two files"
            )
        varied = VARIED.get(self.kind, ())
        for key, values in asdict(self.vary).items():
            if key in varied and not values:
                raise tr.InputError(f"vary: {key} is missing; list its values")
            if values and key not in varied:
                raise tr.InputError(f"vary: unknown key '{key}'; known: {', '.join(varied) or 'none'}")
        if self.kind == "statistics":
            return self
        if not self.methods:
            raise tr.InputError("at least one [[methods]] is needed")
        if not all(entry.metrics or self.metrics for entry in self.data):
            raise tr.InputError("metrics is missing; name at least one, such as CDCG")
        labels = [method.label for method in self.methods]
        if repeated := first_repeated(labels):
            raise tr.InputError(f"two methods have the label '{repeated}'; give one of them another label")
        for entry in self.data:
            if unknown := entry.settings.keys() - {*labels}:
                raise tr.InputError(
                    f"settings: unknown key {tr.errors.show(min(unknown))}; known: {', '.join(labels)}"
                )
        return self


@checked(frozen=True, config=_STRICT)
class Budget:
    """What each search for hyper-parameters may cost; ``updates`` are those of one trial."""

    trials: Positive
    updates: Positive
    objectives: tuple[MetricName, ...]
    learning_rate: tuple[Number, ...]


@checked(frozen=True, config=_STRICT)
class Preset:
    """How large everything is.

    A fit makes at most ``updates``, times the ``lengths`` of its dataset, and is checked on the validation weeks
    ``validations`` times. ``factors`` is d by assignment, ``settings`` are defaults of all trained methods. ``sizes``
    are the users and items of the synthetic worlds that replace the real data. ``tuned`` is the file with the
    hyper-parameters, ``search`` the budget of the search that comes first. ``experiments`` are those that a run makes
    unless others are named. With ``snapshots``, the hyper-parameters say after how many updates each metric is
    measured; otherwise the validation weeks choose the epoch. ``draws`` are added to the seed of a dataset, one for
    each independent draw; the search uses the seed itself.
    """

    name: str
    updates: Positive
    validations: Positive
    factors: dict[Assignment, Positive]
    settings: dict[str, Any] = field(default_factory=dict)
    sizes: dict[Items, tuple[int, int]] | None = None
    tuned: str | None = None
    per_metric: Flag = False
    search: Budget | None = None
    experiments: tuple[Kind, ...] = KINDS  # type: ignore[assignment]
    snapshots: Flag = False
    draws: tuple[Integer, ...] = (0,)
    lengths: dict[Items, dict[Assignment, float]] = field(default_factory=dict)

    def updates_on(self, dataset: Dataset, length: float = 1.0) -> int:
        """The updates of a fit on this dataset; some need longer training than others before every method is flat."""
        own = self.lengths.get(dataset.items, {}).get(dataset.assignment, 1.0)
        return round(length * round(self.updates * own))


@dataclass(frozen=True)
class Plan:
    """One experiment under a preset: the name of its tables, its file, and the datasets that are run."""

    name: str
    file: Experiment
    preset: Preset
    tuned: Tuned
    datasets: tuple[Dataset, ...]

    def drawn(self, dataset: Dataset) -> list[Dataset]:
        """The dataset in each draw: independent training, validation and test weeks, and initial factors."""
        draws = self.preset.draws if self.file.spread else self.preset.draws[:1]
        return [replace(dataset, seed=dataset.seed + draw) for draw in draws]

    def metrics_of(self, dataset: Dataset) -> tuple[str, ...]:
        return self._entry(dataset).metrics or self.file.metrics

    def settings(self, method: Method, dataset: Dataset, metric: str) -> dict[str, Any]:
        """The hyper-parameters of a method on this dataset: the preset's, the tuned ones, the file's own."""
        usual = {"factors": self.preset.factors[dataset.assignment], **self.preset.settings}
        settings = {key: value for key, value in usual.items() if key in hyper_parameters(method.name)}
        table = self.tuned.get(dataset.items, {}).get(dataset.assignment, {}).get(method.name, {})
        settings |= {key: value for key, value in table.items() if not isinstance(value, dict)}
        if metric == "CAR" or (self.preset.per_metric if self.file.per_metric is None else self.file.per_metric):
            settings |= table.get(causal(metric), {})
        return {**settings, **method.settings, **self._entry(dataset).settings.get(method.label, {})}

    def snapshots(self, method: Method, dataset: Dataset, settings: Settings) -> dict[str, int]:
        """After how many updates a fit with these settings is measured, by metric: one run serves several metrics."""
        updates = {}
        for metric in TUNED_METRICS if self.preset.snapshots else ():
            wanted = self.settings(method, dataset, metric)
            if "updates" in wanted and {**wanted, "updates": None} == {**settings, "updates": None}:
                updates[metric] = int(wanted["updates"])
        return updates

    def _entry(self, dataset: Dataset) -> Data:
        place = (dataset.items, dataset.assignment)
        return next(each for each in self.file.data if (each.items, each.assignment) == place)


# ---- reading -------------------------------------------------------------------------------------


def load(name: str, preset: Preset, tuned: Tuned | None = None, seed: int | None = None) -> Plan:
    """The plan of one of the paper's experiments, or of a TOML file of your own given by its path.

    ``tuned`` are hyper-parameters to use in place of the preset's, and ``seed`` replaces that of the file.
    """
    if name not in KINDS and not name.endswith(".toml"):
        raise tr.InputError(
            f"there is no experiment '{name}'; known: {', '.join(KINDS)}, or the path of a TOML file."
        )
    path = EXPERIMENTS / f"{name}.toml" if name in KINDS else Path(name)
    content, presets = read_toml(path), read_toml(EXPERIMENTS / "presets.toml")
    for key in presets:
        if not isinstance(content.get(key, {}), dict):
            raise tr.InputError(f"{path.name}: [{key}] must be a table, got {tr.errors.show(content[key])}.")
    plain = {key: value for key, value in content.items() if key not in presets}
    file = validated(Experiment, {**plain, **content.get(preset.name, {})}, path.name)
    times, seed = file.times, file.seed if seed is None else seed
    datasets = tuple(
        Dataset(**{each.name: getattr(entry, each.name) for each in fields(Sampled)}, times=times, seed=seed)
        for entry in file.data
    )
    return Plan(path.stem, file, preset, packaged_tuned(preset) if tuned is None else tuned, datasets)


def load_preset(name: str) -> Preset:
    """smoke, quick, full or authors, as ``presets.toml`` describes them."""
    return validated(Preset, {"name": name, **read_toml(EXPERIMENTS / "presets.toml")[name]}, name)


def packaged_tuned(preset: Preset) -> Tuned:
    """The hyper-parameters that the package has for a preset."""
    return load_tuned(EXPERIMENTS / preset.tuned) if preset.tuned else {}


def load_tuned(path: Path) -> Tuned:
    """Tuned hyper-parameters from a file."""
    return validated(Tuned, read_toml(path), str(path))
