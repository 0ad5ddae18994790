"""Plans: what an experiment measures, on which datasets, with which hyper-parameters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from taurank_paper.plan.names import ASSIGNMENTS, KINDS, TUNED_METRICS, causal

Settings = Mapping[str, Any]  # hyper-parameters of a method, and `updates` for the length of a fit
Tuned = Mapping[str, Any]  # items -> assignment -> method -> settings, and metric -> settings


@dataclass(frozen=True)
class Times:
    """How many weeks are drawn for training, validation and test."""

    train: int = 10
    validation: int = 1
    test: int = 10


@dataclass(frozen=True)
class Dataset:
    """What is sampled, and which propensities the learner sees.

    ``beta`` matters only for the personalized assignment; ``xi`` is how far the recorded propensities are
    misspecified; ``propensity`` is "recorded", or "estimated" from the training log itself.
    """

    items: str
    assignment: str = "original"
    beta: float = 2.0
    xi: float = 0.0
    propensity: str = "recorded"
    times: Times = Times()
    seed: int = 0

    def __str__(self) -> str:
        parts = [self.items, self.assignment]
        if self.assignment == "personalized" and self.beta != 2:
            parts.append(f"β={self.beta:g}")
        if self.xi:
            parts.append(f"ξ={self.xi:g}")
        if self.propensity == "estimated":
            parts.append("estimated")
        return " ".join(parts)


@dataclass(frozen=True)
class Method:
    """A learner or a limit by name, under a label, with settings that override the tuned ones.

    Of the values in ``choose`` the best by the validation weeks is taken, for each metric.
    """

    name: str
    label: str
    settings: Settings = field(default_factory=dict)
    choose: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Preset:
    """How large everything is.

    A fit makes at most ``updates``, times the ``lengths`` of its dataset, and is checked on the validation weeks
    ``validations`` times. ``factors`` is d by assignment, ``settings`` are defaults of all trained methods. ``sizes``
    are the users and items of the synthetic worlds that replace the real data. ``per_metric`` is the plans' (see
    Plan) unless they say otherwise. ``search`` is the budget of the search for hyper-parameters. ``tuned`` is the
    file with the hyper-parameters, and ``experiments`` are those that a run makes unless others are named. With
    ``snapshots``, the hyper-parameters say after how many updates each metric is measured; otherwise the validation
    weeks choose the epoch. ``draws`` are added to the seed of a dataset, one for each independent draw; the search
    uses the seed itself.
    """

    name: str
    updates: int
    validations: int
    factors: Mapping[str, int]
    settings: Settings = field(default_factory=dict)
    sizes: Mapping[str, tuple[int, int]] | None = None
    use_tuned: bool = True
    per_metric: bool = False
    search: Mapping[str, Any] | None = None
    tuned: str = "tuned.toml"
    experiments: Sequence[str] = KINDS
    snapshots: bool = False
    draws: Sequence[int] = (0,)
    lengths: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def updates_on(self, dataset: Dataset, updates: int | None = None) -> int:
        """The updates of a fit on this dataset; some need longer training than others before every method is flat."""
        length = self.lengths.get(dataset.items, {}).get(dataset.assignment, 1.0)
        return round((self.updates if updates is None else updates) * length)


@dataclass(frozen=True)
class Plan:
    """One experiment: the content of its TOML file, under a preset.

    With ``per_metric``, each metric that was tuned to other settings has a fit of its own; CAR always has one.
    With ``spread``, every fit is made on all draws of the preset, otherwise on the first. ``length`` multiplies the
    updates of the preset.
    ``overrides`` are settings by dataset and label, ``own_metrics`` metrics by dataset.
    """

    name: str
    kind: str
    title: str
    datasets: tuple[Dataset, ...]
    methods: tuple[Method, ...]
    metrics: tuple[str, ...]
    vary: Mapping[str, tuple[Any, ...]]
    preset: Preset
    tuned: Tuned
    keep_models: bool = False
    per_metric: bool = False
    spread: bool = False
    length: float = 1.0
    overrides: Mapping[tuple[str, str], Mapping[str, Settings]] = field(default_factory=dict)
    own_metrics: Mapping[tuple[str, str], tuple[str, ...]] = field(default_factory=dict)

    def on(self, items: Iterable[str], assignments: Iterable[str] = ASSIGNMENTS) -> Plan:
        """The same experiment on some of its datasets."""
        wanted = {(one, other) for one in items for other in assignments}
        return replace(self, datasets=tuple(d for d in self.datasets if (d.items, d.assignment) in wanted))

    def with_seed(self, seed: int) -> Plan:
        """The same experiment on other draws."""
        return replace(self, datasets=tuple(replace(dataset, seed=seed) for dataset in self.datasets))

    def updates_on(self, dataset: Dataset) -> int:
        """The most updates of a fit on this dataset."""
        return round(self.length * self.preset.updates_on(dataset))

    def drawn(self, dataset: Dataset) -> list[Dataset]:
        """The dataset in each draw: independent training, validation and test weeks, and initial factors."""
        draws = self.preset.draws if self.spread else self.preset.draws[:1]
        return [replace(dataset, seed=dataset.seed + draw) for draw in draws]

    def metrics_of(self, dataset: Dataset) -> tuple[str, ...]:
        """The metrics for this dataset."""
        return self.own_metrics.get((dataset.items, dataset.assignment), self.metrics)

    def settings(self, method: Method, dataset: Dataset, metric: str) -> dict[str, Any]:
        """The hyper-parameters of a method on this dataset: each later source overrides the earlier ones."""
        settings: dict[str, Any] = {"factors": self.preset.factors[dataset.assignment], **self.preset.settings}
        if self.preset.use_tuned:
            table = self.tuned.get(dataset.items, {}).get(dataset.assignment, {}).get(method.name, {})
            settings |= {key: value for key, value in table.items() if not isinstance(value, dict)}
            if self.per_metric or metric == "CAR":
                settings |= table.get(causal(metric), {})
        own = self.overrides.get((dataset.items, dataset.assignment), {}).get(method.label, {})
        return {**settings, **method.settings, **own}

    def snapshots(self, method: Method, dataset: Dataset, settings: Settings) -> dict[str, int]:
        """After how many updates a fit with these settings is measured, by metric: one run serves several metrics."""
        updates = {}
        for metric in TUNED_METRICS:
            wanted = self.settings(method, dataset, metric)
            if self.preset.snapshots and "updates" in wanted and _same_steps(wanted, settings):
                updates[metric] = int(wanted["updates"])
        return updates


def _same_steps(one: Settings, other: Settings) -> bool:
    """Whether two fits take the same steps, and differ at most in their number."""
    return {**one, "updates": None} == {**other, "updates": None}
