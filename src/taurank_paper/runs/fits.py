"""Fits: one method with its settings on one dataset, trained and measured.

For each metric, the epoch that is best by the truth of the validation weeks is measured on the test weeks: the paper
tunes each metric by itself.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from taurank.errors import DivergedError, UnfinishedWarning
from taurank.evaluation.evaluate import evaluate
from taurank.evaluation.metrics import parse
from taurank.learners import Learner, Record, learner_class
from taurank_paper.plan.names import LIMITS, causal
from taurank_paper.plan.plans import Dataset, Settings
from taurank_paper.plan.reading import hyper_parameters
from taurank_paper.runs import limits
from taurank_paper.runs.splits import Split, fit_seed

TRACKED = ("CP@10", "CP@100", "CDCG", "CAR", "P@10")  # measured in every fit, so that experiments can share it
MODEL_METRIC = "CDCG"  # selects the epoch of a stored model
RETRIES = 4  # attempts for a fit that diverges, each with a third of the learning rate before

Report = Callable[[Mapping[str, float]], None]


@dataclass(frozen=True)
class FitSpec:
    """One fit to be made; equal specs have equal results.

    ``updates`` and ``validations`` are 0 without epochs. ``snapshots`` says after how many updates a metric is
    measured; without it the validation weeks choose the epoch of each metric.
    """

    dataset: Dataset
    method: str
    settings: tuple[tuple[str, Any], ...] = ()
    updates: int = 0
    validations: int = 0
    metrics: tuple[str, ...] = TRACKED
    snapshots: tuple[tuple[str, int], ...] = ()
    keep_model: bool = field(default=False, compare=False)

    @classmethod
    def of(
        cls, dataset: Dataset, method: str, settings: Settings, updates: int, validations: int,
        metrics: Iterable[str] = (), snapshots: Mapping[str, int] | None = None, keep_model: bool = False,
    ) -> FitSpec:  # fmt: skip
        """A spec without anything that cannot change the result, so that experiments share fits."""
        wanted = (*TRACKED, *sorted({*metrics} - {*TRACKED}))
        defaults = hyper_parameters(method)
        filled = {name: _hashable(settings.get(name, value)) for name, value in defaults.items()}
        spec = cls(
            _relevant(dataset, method), method,
            tuple(sorted((k, v) for k, v in filled.items() if v is not None and k != "updates")),
            metrics=wanted, keep_model=keep_model,
        )  # fmt: skip
        if "updates" not in defaults:
            return spec
        if snapshots:
            spec, updates = replace(spec, snapshots=tuple(sorted(snapshots.items()))), max(snapshots.values())
            return replace(spec, updates=updates, validations=validations)
        return replace(spec, updates=min(int(settings.get("updates", updates)), updates), validations=validations)

    def __str__(self) -> str:
        usual = hyper_parameters(self.method)
        changed = ", ".join(f"{key}={value}" for key, value in self.settings if value != usual.get(key))
        return f"{self.method} on {self.dataset}" + (f" ({changed})" if changed else "")


def _hashable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _relevant(dataset: Dataset, method: str) -> Dataset:
    """The dataset without what this method does not look at."""
    if not needs_propensity(method):
        dataset = replace(dataset, xi=Dataset.xi, propensity=Dataset.propensity)
    return replace(dataset, beta=Dataset.beta) if dataset.assignment == "original" else dataset


def needs_propensity(method: str) -> bool:
    """Whether a method uses the propensities of a log."""
    return method not in LIMITS and learner_class(method).needs_propensity


@dataclass(frozen=True)
class Value:
    """A metric at the epoch chosen for it: per test week, and the validation value it was chosen by."""

    weeks: tuple[float, ...]
    validation: float
    updates: int

    @property
    def mean(self) -> float:
        return float(np.mean(self.weeks))

    @property
    def std(self) -> float:
        return float(np.std(self.weeks))


@dataclass(frozen=True)
class FitResult:
    """What was measured of a fit, and what it cost."""

    settings: Mapping[str, Any]
    seconds: float
    updates: int
    values: Mapping[str, Value]
    curve: Sequence[Mapping[str, float]] = ()  # the validation metrics after each check, with its ``updates``

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, saved: Mapping[str, Any]) -> FitResult:
        values = {
            name: Value(tuple(v["weeks"]), v["validation"], v["updates"]) for name, v in saved["values"].items()
        }
        return cls(saved["settings"], saved["seconds"], saved["updates"], values, saved.get("curve", ()))


def best_of(results: Iterable[FitResult], metric: str) -> FitResult:
    """The result that the validation weeks prefer for this metric; the first of equals."""
    chosen, *others = results
    for other in others:
        if _better(causal(metric), other.values[metric].validation, chosen.values[metric].validation):
            chosen = other
    return chosen


def weeks_of(ranker: Any, split: Split, metrics: Iterable[str], threads: int | None) -> dict[str, tuple[float, ...]]:
    """Metrics in each test week: a causal name by the truth, any other by the purchases."""
    weeks: dict[str, tuple[float, ...]] = {}
    for true, gains in ((True, split.truth), (False, split.outcome)):
        names = [name for name in metrics if (name == causal(name)) is true]
        if names:
            result = evaluate(ranker, gains, names, threads=threads)
            weeks |= {name: tuple(float(week) for week in result[name].per_time) for name in names}
    return weeks


def measured_fit(
    spec: FitSpec, split: Split, threads: int | None, report: Report | None, retries: int
) -> tuple[FitResult, Learner | None]:
    """Make a fit. ``report`` is called with the best validation values after every check, and may end the fit."""
    split.draw()  # before the clock starts
    began = time.perf_counter()
    if spec.method in LIMITS:
        weeks = weeks_of(_limit_scores(spec.method, split, threads), split, spec.metrics, threads)
        values = {name: Value(weeks[name], 0.0, 0) for name in spec.metrics}
        return FitResult({}, time.perf_counter() - began, 0, values), None
    learner = learner_class(spec.method)(**dict(spec.settings), random_state=fit_seed(spec.dataset))
    best = _train(spec, learner, split, threads, report, retries)
    seconds = time.perf_counter() - began
    values = best.values(spec.metrics, split, threads)
    best.restore(MODEL_METRIC)
    params = learner.get_params()
    settings = {name: params[name] for name, _ in spec.settings}  # with the learning rate that did not diverge
    return FitResult(settings, seconds, best.updates, values, curve_of(learner, best.per_epoch)), learner


def curve_of(learner: Learner, per_epoch: int) -> list[dict[str, float]]:
    """The validation metrics of every check, by the number of updates made until then."""
    checks = learner.history_.drop(columns=["loss", "updates"]).dropna().to_dict("records")
    return [
        {"updates": check.pop("epoch") * per_epoch, **{str(name): float(value) for name, value in check.items()}}
        for check in checks
    ]


def _limit_scores(name: str, split: Split, threads: int | None) -> Any:
    if name == "truth":
        return limits.truth_scores(split.world)
    return limits.ten_weeks_scores(split.world, split.train, threads)


def _train(
    spec: FitSpec, learner: Learner, split: Split, threads: int | None, report: Report | None, retries: int
) -> BestEpochs:
    """Fit, with a third of the learning rate whenever it diverges."""
    per_epoch = learner.updates_per_epoch(split.train)
    every = None
    if per_epoch:
        epochs, every = _rhythm(spec, per_epoch)
        learner.set_params(epochs=epochs, threads=threads)
    for left in reversed(range(retries)):
        best = BestEpochs(learner, spec.metrics, per_epoch, report)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UnfinishedWarning)  # the report has the curves
                learner.fit(
                    split.train, split.validation, metric=best.names, patience=None, validate_every=every,
                    show_progress=False, callback=best.check,
                )  # fmt: skip
            break
        except DivergedError:
            if not left:
                raise
            learner.set_params(learning_rate=learner.get_params()["learning_rate"] / 3)
    return best


def _rhythm(spec: FitSpec, per_epoch: int) -> tuple[int, int]:
    """The number of epochs, and of epochs between two checks: the last check is after the last epoch."""
    epochs = max(1, round(spec.updates / per_epoch))
    every = max(1, epochs // spec.validations)
    return epochs - epochs % every, every


class BestEpochs:
    """The best epoch of one fit for each metric; ``fit`` itself returns that of the first."""

    def __init__(self, learner: Learner, metrics: Iterable[str], per_epoch: int, report: Report | None) -> None:
        self.learner, self.per_epoch, self.report = learner, per_epoch, report
        self.names = list(dict.fromkeys(causal(name) for name in metrics))
        self.best: dict[str, tuple[float, int, dict[str, Any]]] = {}
        self.updates = 0

    def check(self, learner: Learner, record: Record) -> None:
        """After a check: store the fitted arrays for the metrics that improved."""
        self.updates = record.epoch * self.per_epoch
        arrays = {name: learner.__dict__[f"{name}_"] for name in learner.stored if f"{name}_" in learner.__dict__}
        for name in self.names:
            value = record.metrics[name]
            if name not in self.best or _better(name, value, self.best[name][0]):
                self.best[name] = (value, self.updates, arrays)
        if self.report is not None:
            self.report({name: self.best[name][0] for name in self.names})

    def restore(self, metric: str) -> None:
        """Put the best epoch for this metric back into the learner."""
        for name, array in self.best[causal(metric)][2].items():
            setattr(self.learner, f"{name}_", array)

    def values(self, metrics: Iterable[str], split: Split, threads: int | None) -> dict[str, Value]:
        """Every metric at its own best epoch on the test weeks; metrics with the same epoch are measured together."""
        values: dict[str, Value] = {}
        by_updates: dict[int, list[str]] = {}
        for metric in metrics:
            by_updates.setdefault(self.best[causal(metric)][1], []).append(metric)
        for updates, together in by_updates.items():
            self.restore(together[0])
            weeks = weeks_of(self.learner, split, together, threads)
            for name in together:
                values[name] = Value(weeks[name], self.best[causal(name)][0], updates)
        return values


def _better(metric: str, value: float, than: float) -> bool:
    return value > than if parse(metric).larger_is_better else value < than
