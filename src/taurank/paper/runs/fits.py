"""Fits: one learner with its settings on one data, trained, measured and remembered on disk.

A fit keeps, for each metric, the epoch that is best by the truth of the validation weeks (the paper tunes each
metric by itself), and measures it on the test weeks. What was measured is a small file named by a hash of
everything that decides it. So a fit that two experiments share is made once, and a killed run goes on.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import taurank
from taurank.data.files import atomic_path
from taurank.data.log import Log
from taurank.errors import InputError
from taurank.estimation.gains import Gains
from taurank.evaluation.evaluate import evaluate
from taurank.evaluation.formulas import parse
from taurank.learners import LEARNERS, Learner, Record, load
from taurank.learners.factorization import FactorLearner
from taurank.learners.pairwise import DLCE, GainsPass
from taurank.paper.plan.plans import LIMITS, Data, Settings, causal
from taurank.paper.runs import limits
from taurank.paper.runs.samples import Split, Splits, fit_seed

RESULT_VERSION = 1  # raise it whenever the same settings give other figures
TRACKED = ("CP@10", "CP@100", "CDCG", "CAR", "P@10")  # measured in every fit, so that experiments can share it
MODEL_METRIC = "CDCG"  # the epoch of the model that is kept
DECIDED = ("random_state", "threads", "epochs")  # hyper-parameters that no plan gives
RETRIES = 4  # a fit that diverges is made again with a third of its learning rate

Report = Callable[[int, Mapping[str, float]], None]


@dataclass(frozen=True)
class Job:
    """One fit to be made. ``updates`` and ``validations`` are 0 for what is not trained."""

    data: Data
    method: str
    settings: tuple[tuple[str, Any], ...] = ()
    updates: int = 0
    validations: int = 0
    metrics: tuple[str, ...] = TRACKED
    keep_model: bool = field(default=False, compare=False)

    def __str__(self) -> str:
        usual = dict(_all_settings(self.method, {}))
        shown = ", ".join(f"{key}={value}" for key, value in self.settings if value != usual.get(key))
        return f"{self.method} on {self.data}" + (f" ({shown})" if shown else "")


def job(
    data: Data, method: str, settings: Settings, updates: int, validations: int,
    metrics: Iterable[str] = (), keep_model: bool = False,
) -> Job:  # fmt: skip
    """A job without anything that cannot change its result, so that equal fits are equal jobs."""
    wanted = (*TRACKED, *sorted({*metrics} - {*TRACKED}))
    kind = LEARNERS.get(method)
    if not uses_propensity(method):
        data = Data(data.items, data.setting, data.beta, times=data.times, seed=data.seed)
    if data.setting == "original":
        data = Data(**{**vars(data), "beta": Data.beta})
    own = {name: value for name, value in settings.items() if name != "updates"}
    filled = tuple(sorted(_all_settings(method, own).items()))
    if kind is None or not issubclass(kind, FactorLearner):
        return Job(data, method, filled, 0, 0, wanted, keep_model)
    budget = min(int(settings.get("updates", updates)), updates)
    return Job(data, method, filled, budget, validations, wanted, keep_model)


def _all_settings(method: str, given: Settings) -> dict[str, Any]:
    """All hyper-parameters of a method, the given values before the defaults; not what a run decides."""
    if method in LIMITS:
        return {}
    every = LEARNERS[method]().hyper_parameters()
    known = {name: given.get(name, value) for name, value in every.items()}
    return {name: value for name, value in known.items() if name not in DECIDED and value is not None}


def uses_propensity(method: str) -> bool:
    """Whether a method looks at the propensities of a log."""
    return method in LEARNERS and issubclass(LEARNERS[method], DLCE)


@dataclass(frozen=True)
class Value:
    """A metric of the epoch chosen for it: per test week, and the value it was chosen by."""

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

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, saved: Mapping[str, Any]) -> FitResult:
        values = {
            name: Value(tuple(v["weeks"]), v["validation"], v["updates"]) for name, v in saved["values"].items()
        }
        return cls(saved["settings"], saved["seconds"], saved["updates"], values)


class ResultCache:
    """Makes fits, or finds them on disk: ``done`` and ``reused`` count them."""

    def __init__(self, folder: Path, scenes: Splits, threads: int | None = None) -> None:
        self.folder, self.scenes, self.threads = folder, scenes, threads
        self.done = self.reused = 0

    def result(self, job: Job, report: Report | None = None, retries: int = RETRIES) -> FitResult:
        """The measured fit. ``report(validation number, values)`` is called on the way and may end it."""
        found = self.find(job)
        if found is not None:
            self.reused += 1
            return found
        made, model = _measured_fit(job, self.scenes.scene(job.data), self.threads, report, retries)
        if job.keep_model and model is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            model.save(self._path(job, "model"))
        self.write(self.key(job), {"job": asdict(job), **made.to_json()})
        self.done += 1
        return made

    def find(self, job: Job) -> FitResult | None:
        """The fit from the disk, if it is there (and its model too, if that is wanted)."""
        if job.keep_model and job.method not in LIMITS and not self._path(job, "model").exists():
            return None
        saved = self.read(self.key(job))
        return None if saved is None else FitResult.from_json(saved)

    def model(self, job: Job) -> Learner:
        """The fitted learner that a job with ``keep_model`` left."""
        return load(self._path(job, "model"))

    def key(self, job: Job, *more: Any) -> str:
        """A hash of everything that decides the result; threads and folders do not."""
        facts = asdict(job)
        del facts["keep_model"]
        world = self.scenes.fingerprint(job.data.items)
        text = json.dumps([RESULT_VERSION, taurank.__version__, world, facts, *more], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:24]

    def read(self, key: str) -> dict[str, Any] | None:
        """What was kept under this key; a file that cannot be read is as good as none."""
        try:
            saved = json.loads((self.folder / f"{key}.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return saved if isinstance(saved, dict) else None

    def write(self, key: str, facts: Mapping[str, Any]) -> None:
        """Keep facts under a key, in one step: a killed run leaves no half file."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with atomic_path(self.folder / f"{key}.json") as path:
            Path(path).write_text(json.dumps(facts, indent=1), encoding="utf-8")

    def kept(self, key: str, make: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
        """What is kept under this key; made and kept if it is not there."""
        saved = self.read(key)
        if saved is None:
            saved = dict(make())
            self.write(key, saved)
        return saved

    def _path(self, job: Job, suffix: str) -> Path:
        return self.folder / f"{self.key(job)}.{suffix}"


# ---- one fit -------------------------------------------------------------------------------------


def _measured_fit(
    job: Job, scene: Split, threads: int | None, report: Report | None, retries: int
) -> tuple[FitResult, Learner | None]:
    scene.draw()  # before the clock starts
    began = time.perf_counter()
    if job.method in LIMITS:
        scores = _limit_scores(job.method, scene, threads)
        weeks = weeks_of(scores, scene, job.metrics, threads)
        values = {name: Value(weeks[name], 0.0, 0) for name in job.metrics}
        return FitResult({}, time.perf_counter() - began, 0, values), None
    settings = dict(job.settings)
    learner = LEARNERS[job.method](**settings, random_state=fit_seed(job.data))
    best = Best(learner, scene.validation, job.metrics, threads)
    updates = _train(job, learner, scene, best, threads, report, retries)
    seconds = time.perf_counter() - began
    if isinstance(learner, FactorLearner):
        settings["learning_rate"] = learner.learning_rate
    values = best.values(job.metrics, scene)
    best.restore(MODEL_METRIC)
    return FitResult(settings, seconds, updates, values), learner


def _limit_scores(name: str, scene: Split, threads: int | None) -> Any:
    if name == "truth":
        return limits.truth_scores(scene.world)
    return limits.ten_weeks_scores(scene.world, scene.train, threads)


def _train(
    job: Job, learner: Learner, scene: Split, best: Best, threads: int | None, report: Report | None, retries: int
) -> int:
    """Fit with validation on the way; a third of the learning rate for every time it diverges."""
    if not isinstance(learner, FactorLearner):
        learner.fit(scene.train)
        best.look(0)
        return 0
    per_epoch = _updates_per_epoch(learner, scene.train)
    learner.epochs, every = _rhythm(job, per_epoch)
    learner.threads = threads

    def look(_: Learner, record: Record) -> None:
        epoch = record.epoch
        values = best.look(epoch * per_epoch)
        if report is not None:
            report(epoch // every, values)

    # The fit's own validation sees one cell and only beats time: ``look`` measures all metrics at once.
    beat = _first_cell(scene.validation)
    for left in reversed(range(retries)):
        try:
            learner.fit(scene.train, beat, patience=None, validate_every=every, show_progress=False, callback=look)
            break
        except InputError as error:
            if not left or "diverged" not in str(error):
                raise
            learner.learning_rate /= 3
            best.forget()
    return learner.epochs * per_epoch


def _rhythm(job: Job, per_epoch: int) -> tuple[int, int]:
    """How many epochs, and every how many of them to look: the last look is at the last epoch."""
    epochs = max(1, round(job.updates / per_epoch))
    every = max(1, epochs // job.validations)
    return epochs - epochs % every, every


def _updates_per_epoch(learner: Learner, log: Log) -> int:
    """A pass goes over the cells it has a gain for; the others draw as many samples as there are positives."""
    if isinstance(learner, GainsPass):
        return max(1, len(learner.gains(log)))
    return max(1, int(np.count_nonzero(log.outcome)))


def _first_cell(gains: Gains) -> Gains:
    cells = (gains.user[:1].copy(), gains.item[:1].copy(), gains.time[:1].copy(), gains.value[:1].copy())
    return Gains(gains.catalogue, *cells, gains.name, gains.timed)


class Best:
    """The best state of a learner so far, for each metric by itself."""

    def __init__(self, learner: Learner, validation: Gains, metrics: Iterable[str], threads: int | None) -> None:
        self.learner, self.validation, self.threads = learner, validation, threads
        self.tracked = list(dict.fromkeys(causal(name) for name in metrics))
        self.best: dict[str, tuple[float, int, dict[str, Any]]] = {}

    def forget(self) -> None:
        self.best.clear()

    def look(self, updates: int) -> dict[str, float]:
        """Measure the learner as it is now, and remember it where it is better than before."""
        found = evaluate(self.learner, self.validation, self.tracked, threads=self.threads)
        state = {name: getattr(self.learner, f"{name}_") for name in self.learner.stored}
        for name in self.tracked:
            value = found[name].mean
            if name not in self.best or _better(name, value, self.best[name][0]):
                self.best[name] = (value, updates, state)
        return {name: self.best[name][0] for name in self.tracked}

    def restore(self, metric: str) -> None:
        """Put the best state for this metric back into the learner."""
        for name, array in self.best[causal(metric)][2].items():
            setattr(self.learner, f"{name}_", array)

    def values(self, metrics: Iterable[str], scene: Split) -> dict[str, Value]:
        """Every metric of its own best state on the test weeks; states that are the same are ranked once."""
        values: dict[str, Value] = {}
        by_updates: dict[int, list[str]] = {}
        for metric in metrics:
            by_updates.setdefault(self.best[causal(metric)][1], []).append(metric)
        for updates, together in by_updates.items():
            self.restore(together[0])
            weeks = weeks_of(self.learner, scene, together, self.threads)
            for name in together:
                values[name] = Value(weeks[name], self.best[causal(name)][0], updates)
        return values


def weeks_of(ranker: Any, scene: Split, metrics: Iterable[str], threads: int | None) -> dict[str, tuple[float, ...]]:
    """Metrics in each test week: a causal name by the truth, any other by the purchases."""
    weeks: dict[str, tuple[float, ...]] = {}
    for true, gains in ((True, scene.truth), (False, scene.outcome)):
        names = [name for name in metrics if (name == causal(name)) is true]
        if names:
            found = evaluate(ranker, gains, names, threads=threads)
            weeks |= {name: tuple(float(week) for week in found[name].per_time) for name in names}
    return weeks


def _better(metric: str, value: float, than: float) -> bool:
    return value < than if parse(metric).form == "AR" else value > than


def best_of(results: Iterable[FitResult], metric: str) -> FitResult:
    """The result that the validation weeks prefer for this metric; the first of equals."""
    chosen, *others = results
    for other in others:
        if _better(causal(metric), other.values[metric].validation, chosen.values[metric].validation):
            chosen = other
    return chosen
