"""Fits: one method with its settings on one dataset, trained and measured, each once.

For each metric, the epoch that is best by the truth of the validation weeks is measured on the test weeks: the paper
tunes each metric by itself. A fit with ``snapshots`` measures each metric after a given number of updates instead.

What was measured is a small file named by a hash of everything it depends on. So a fit that two experiments share is
made once, and a killed run continues where it stopped; a fit with snapshots, which may take an hour, from its own
checkpoint.
"""

from __future__ import annotations

import copy
import hashlib
import inspect
import json
import math
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter, ValidationError

import taurank as tr
from taurank.evaluation.metrics import parse
from taurank_paper.folder import write_text
from taurank_paper.plan import LIMITS, Dataset, Settings, causal, hyper_parameters
from taurank_paper.worlds import Split, Splits, fit_seed, ten_weeks_scores, truth_scores

TRACKED = ("CP@10", "CP@100", "CDCG", "CAR", "P@10")  # measured in every fit, so that experiments can share it
MODEL_METRIC = "CDCG"  # selects the epoch of a stored model
ATTEMPTS = 4  # at a fit that diverges, each with a third of the learning rate before
RESULT_VERSION = 4  # raise it whenever the same settings give other figures


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
        defaults = hyper_parameters(method)
        filled = {name: settings.get(name, value) for name, value in defaults.items() if name != "updates"}
        if not needs_propensity(method):
            dataset = replace(dataset, xi=0.0, propensity="recorded")
        if dataset.assignment == "original":
            dataset = replace(dataset, beta=2.0)
        spec = cls(
            dataset, method,
            tuple(sorted((k, tuple(v) if isinstance(v, list) else v) for k, v in filled.items() if v is not None)),
            metrics=(*TRACKED, *sorted({*metrics} - {*TRACKED})), keep_model=keep_model,
        )  # fmt: skip
        if "updates" not in defaults:
            return spec
        if snapshots:
            spec, updates = replace(spec, snapshots=tuple(sorted(snapshots.items()))), max(snapshots.values())
        else:
            updates = min(int(settings.get("updates", updates)), updates)
        return replace(spec, updates=updates, validations=validations)

    def __str__(self) -> str:
        usual = hyper_parameters(self.method)
        changed = ", ".join(f"{key}={value}" for key, value in self.settings if value != usual.get(key))
        return f"{self.method} on {self.dataset}" + (f" ({changed})" if changed else "")


def merit(metric: str, value: float) -> float:
    """A value of the causal metric behind a metric, turned so that larger is better."""
    return value if parse(causal(metric)).larger_is_better else -value


def needs_propensity(method: str) -> bool:
    """Whether a method uses the propensities of a log."""
    return method not in LIMITS and tr.learners.learner_class(method).needs_propensity


@dataclass(frozen=True)
class Value:
    """A metric at the epoch chosen for it: per test week, and the validation value it was chosen by."""

    weeks: tuple[float, ...]
    validation: float
    updates: int


@dataclass(frozen=True)
class FitResult:
    """What was measured of a fit, and what it cost; of a killed fit, the seconds since it was resumed.

    ``curve`` has the validation metrics after each check, with its ``updates``.
    """

    settings: Mapping[str, Any]
    seconds: float
    updates: int
    values: Mapping[str, Value]
    curve: Sequence[Mapping[str, float]] = ()


class ResultCache:
    """Makes fits, or reads them from disk; ``done`` counts those made."""

    def __init__(self, folder: Path, splits: Splits, threads: int | None = None) -> None:
        self.folder, self.splits, self.threads = folder, splits, threads
        self.done = 0

    def result(self, spec: FitSpec) -> FitResult:
        """The measured fit, from the disk if it is there."""
        result = self.find(spec)
        if result is None:
            result = _measured_fit(spec, self)
            self.write(self.key(spec), {"fit": asdict(spec), **asdict(result)})
            self.done += 1
        return result

    def best(self, specs: Iterable[FitSpec], metric: str) -> tuple[FitSpec, FitResult]:
        """The fit that the validation weeks prefer for this metric, the first of equals, and what was measured."""
        results = [(spec, self.result(spec)) for spec in specs]
        return max(results, key=lambda pair: merit(metric, pair[1].values[metric].validation))

    def find(self, spec: FitSpec) -> FitResult | None:
        """The fit from the disk, if it is there, with its model if that is wanted."""
        if spec.keep_model and spec.method not in LIMITS and not self.path(spec, ".model").exists():
            return None
        try:
            return TypeAdapter(FitResult).validate_python(self.read(self.key(spec)))
        except ValidationError:
            return None

    def model(self, spec: FitSpec) -> tr.Learner:
        """The fitted learner of a spec with ``keep_model``."""
        return tr.load(self.path(spec, ".model"), trust=[tr.learners.learner_class(spec.method).__module__])

    def cached(self, key: str, measure: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
        """What is stored under this key, measured and stored first if need be."""
        stored = self.read(key)
        if not stored:
            stored = dict(measure())
            self.write(key, stored)
        return stored

    def key(self, spec: FitSpec, *more: Any) -> str:
        """A hash of everything the result depends on; threads and folders are not among it."""
        settings = asdict(spec)
        del settings["keep_model"]
        world = self.splits.fingerprint(spec.dataset.items)
        text = None
        if ":" in spec.method:  # the text of one's own module: after a change its fits are made again
            text = inspect.getsource(sys.modules[tr.learners.learner_class(spec.method).__module__])
        parts = [RESULT_VERSION, tr.__version__, world, text, settings, *more]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:24]

    def path(self, spec: FitSpec, suffix: str) -> Path:
        return self.folder / f"{self.key(spec)}{suffix}"

    def read(self, key: str) -> dict[str, Any]:
        """What is stored under a key; nothing where the file is missing or broken."""
        try:
            stored = json.loads((self.folder / f"{key}.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return stored if isinstance(stored, dict) else {}

    def write(self, key: str, content: Mapping[str, Any]) -> None:
        write_text(self.folder / f"{key}.json", json.dumps(content, indent=1))


# ---- making a fit --------------------------------------------------------------------------------


def _measured_fit(spec: FitSpec, cache: ResultCache) -> FitResult:
    split, threads = cache.splits.split(spec.dataset), cache.threads
    _drawn = split.train, split.validation, split.tested  # before the clock starts
    began = time.perf_counter()
    if spec.method in LIMITS:
        is_truth = spec.method == "truth"
        scores = truth_scores(split.world) if is_truth else ten_weeks_scores(split.world, split.train, threads)
        weeks = weeks_of(scores, split, spec.metrics, threads)
        values = {name: Value(weeks[name], 0.0, 0) for name in spec.metrics}
        return FitResult({}, time.perf_counter() - began, 0, values)
    learner = tr.learners.learner_class(spec.method)(**dict(spec.settings), random_state=fit_seed(spec.dataset))
    rhythm = Rhythm.of(spec, learner.updates_per_epoch(split.train))
    if rhythm.epochs:
        learner.set_params(epochs=rhythm.epochs, threads=threads)
    cache.folder.mkdir(parents=True, exist_ok=True)
    values = _trained(spec, learner, rhythm, cache)
    seconds = time.perf_counter() - began
    params = learner.get_params()
    settings = {name: params[name] for name, _ in spec.settings}  # with the learning rate that did not diverge
    checks = learner.history_.drop(columns=["loss", "updates"]).dropna().rename(columns={"epoch": "updates"})
    checks["updates"] *= rhythm.per_epoch
    curve = [{str(name): float(value) for name, value in check.items()} for check in checks.to_dict("records")]
    return FitResult(settings, seconds, rhythm.epochs * rhythm.per_epoch, values, curve)


@dataclass(frozen=True)
class Rhythm:
    """Epochs in all and between two checks; ``unit`` is the number of updates that a check stands for."""

    per_epoch: int
    epochs: int = 0
    every: int = 0
    unit: int = 0

    @classmethod
    def of(cls, spec: FitSpec, per_epoch: int) -> Rhythm:
        """The last check is after the last epoch, and there is one at every snapshot."""
        if not per_epoch:
            return cls(0)
        if not spec.snapshots:
            epochs = max(1, round(spec.updates / per_epoch))
            every = max(1, epochs // spec.validations)
            return cls(per_epoch, epochs - epochs % every, every)
        wanted = [updates for _, updates in spec.snapshots]
        common = math.gcd(*wanted)
        unit = common // math.ceil(spec.validations * common / max(wanted))
        every = max(1, round(unit / per_epoch))
        return cls(per_epoch, every * round(max(wanted) / unit), every, unit)

    def epoch(self, updates: int) -> int:
        """The epoch of the snapshot after so many updates."""
        return self.every * round(updates / self.unit)


def _trained(spec: FitSpec, learner: tr.Learner, rhythm: Rhythm, cache: ResultCache) -> dict[str, Value]:
    """Every metric at its epoch, with a third of the learning rate whenever the fit diverges.

    The epoch is the best one by the validation weeks, or that of the metric's snapshot: this is stored as soon as it
    is measured, and a killed fit continues from its checkpoint.
    """
    split, key = cache.splits.split(spec.dataset), cache.key(spec, "snapshots")
    checkpoint = cache.path(spec, ".checkpoint")
    snapshots = dict(spec.snapshots)  # a metric without one is measured at the end
    due = {name: rhythm.epoch(snapshots.get(causal(name), spec.updates)) for name in spec.metrics if snapshots}
    values = TypeAdapter(dict[str, Value]).validate_python(cache.read(key))
    best: dict[str, tuple[float, int, tr.Learner]] = {}  # by metric: its validation, the updates, the model

    def measure() -> None:
        for updates in {updates for _, updates, _ in best.values()}:
            together = [name for name in best if best[name][1] == updates]
            weeks = weeks_of(best[together[0]][2], split, together, cache.threads)
            values.update({name: Value(weeks[name], best[name][0], updates) for name in together})
        best.clear()

    def check(at: tr.Learner, record: tr.learners.Record) -> None:
        scores, model = {name: record.metrics[causal(name)] for name in spec.metrics}, copy.copy(at)
        for name, score in scores.items():
            is_better = name not in best or merit(name, score) > merit(name, best[name][0])
            if due[name] == record.epoch if due else is_better:
                best[name] = (score, record.epoch * rhythm.per_epoch, model)
                if spec.keep_model and name == MODEL_METRIC:
                    at.save(cache.path(spec, ".model"))
        if due and best:
            measure()
            cache.write(key, {name: asdict(value) for name, value in values.items()})

    for left in reversed(range(ATTEMPTS)):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", tr.errors.UnfinishedWarning)  # the report has the curves
                learner.fit(
                    split.train, split.validation, metric=list(dict.fromkeys(map(causal, spec.metrics))),
                    patience=None, validate_every=rhythm.every or None, show_progress=False,
                    checkpoint=checkpoint if due else None, callback=check,
                )  # fmt: skip
            measure()
        except tr.errors.DivergedError:
            if not left:
                raise
            learner.set_params(learning_rate=learner.get_params()["learning_rate"] / 3)
            values.clear()
            best.clear()
        checkpoint.unlink(missing_ok=True)
        if len(values) == len(spec.metrics):
            break  # else from the start: the checkpoint was later than what was measured
    return {name: values[name] for name in spec.metrics}


def weeks_of(ranker: Any, split: Split, metrics: Iterable[str], threads: int | None) -> dict[str, tuple[float, ...]]:
    """Metrics in each test week: a causal name by the truth, any other by the purchases."""
    weeks: dict[str, tuple[float, ...]] = {}
    for gains, is_causal in zip(split.tested, (True, False), strict=True):
        if names := [name for name in metrics if (name == causal(name)) == is_causal]:
            result = tr.evaluate(ranker, gains, names, threads=threads)
            weeks |= {name: tuple(map(float, np.asarray(result[name].per_time))) for name in names}
    return weeks
