"""One fit: its options, and the loop around the epochs with validation, early stopping and a checkpoint.

Everything random in an epoch follows from the seed and the number of the epoch, so a fit that resumes from a
checkpoint takes the same steps as one that was never interrupted.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self

import numpy as np

from taurank._progress import Progress
from taurank._types import Codes
from taurank._validation import check_instance, check_integer, check_number, generator
from taurank.data.features import Features
from taurank.data.files import check_target, is_folder
from taurank.data.log import Log
from taurank.data.remote import RemoteGains
from taurank.errors import Diverged, InputError, TrainingLogWarning
from taurank.estimation.gains import Gains
from taurank.evaluation.measurement import Measurement
from taurank.evaluation.metrics import Metric, parse
from taurank.evaluation.rankers import Ranker
from taurank.learners.checkpoints import Checkpoint, Record, State
from taurank.learners.holdout import some_users, warn_if_improving
from taurank.sgd.scheduler import Factors, Stats

if TYPE_CHECKING:
    import pandas as pd

Metrics = str | Metric | Sequence[str | Metric]


@dataclass(frozen=True)
class Epoch:
    """One epoch of a method on one log.

    ``run(factors, seed, number of the epoch, threads)`` changes the factors in place and returns its statistics;
    ``updates`` is how many updates it makes.
    """

    run: Callable[[Factors, int, int, int], Stats]
    updates: int

    def __call__(self, factors: Factors, seed: int, number: int, threads: int) -> Stats:
        return self.run(factors, seed, number, threads)


class Trainable(Ranker, Protocol):
    """What the loop needs of a learner that trains factors."""

    epochs: int
    learning_rate: float
    regularization: float
    averaging: float
    random_state: Any

    def hyper_parameters(self) -> dict[str, Any]: ...

    def initial(self, log: Log, seed: int) -> Factors: ...

    def with_factors(self, tables: Factors) -> Self: ...


@dataclass(frozen=True)
class FitOptions:
    """The arguments of ``fit`` apart from the log, checked."""

    validation: Gains | RemoteGains | Literal["auto"] | None = "auto"
    metric: Metrics = "CDCG"
    patience: int | None = 10
    show_progress: bool | None = None
    checkpoint: str | os.PathLike[str] | None = None
    validate_every: int | None = None
    checkpoint_minutes: float = 5.0
    callback: Callable[[Any, Record], None] | None = None
    validation_users: int | None = None
    features: Features | None = None
    start: Any = None  # a fitted learner

    def __post_init__(self) -> None:
        if self.validation is not None and not (self.holds_out or isinstance(self.validation, RemoteGains)):
            check_instance("validation", self.validation, Gains, "taurank.gains, such as gains.capped_ips(log, cap)")
        if self.patience is not None:
            check_integer("patience", self.patience)
        if self.validate_every is not None:
            check_integer("validate_every", self.validate_every)
        if self.validation_users is not None:
            check_integer("validation_users", self.validation_users)
        if self.callback is not None and not callable(self.callback):
            raise InputError(f"callback must be a function of a learner and a record, got {self.callback!r}.")
        if self.features is not None:
            check_instance("features", self.features, Features, "taurank.Features(users=frame, items=frame)")
        check_number("checkpoint_minutes", self.checkpoint_minutes, 0)
        if self.checkpoint is not None and not is_folder(self.checkpoint):  # a folder for a remote log
            check_target(self.checkpoint)
        _ = self.formulas  # parsed now, so that a wrong name is refused before the fit

    @cached_property
    def formulas(self) -> tuple[Metric, ...]:
        """The metrics; the first one decides about early stopping."""
        formulas = tuple(one if isinstance(one, Metric) else parse(one) for one in _given(self.metric))
        if not formulas:
            raise InputError("metric is empty; name at least one, such as CDCG.")
        return formulas

    @property
    def holds_out(self) -> bool:
        """Whether a part of the log is to be held out."""
        return isinstance(self.validation, str) and self.validation == "auto"

    @cached_property
    def measurement(self) -> Measurement | None:
        """What checks measure the learner by, prepared once."""
        if not isinstance(self.validation, (Gains, RemoteGains)):
            return None
        return Measurement.prepare(self.validation, _given(self.metric), users=self.sample)

    @cached_property
    def sample(self) -> Codes | None:
        """The users whose mean a check is; None: all."""
        if isinstance(self.validation, RemoteGains):
            chosen: Codes | None = getattr(self.validation, "chosen", None)
            return chosen
        if not isinstance(self.validation, Gains) or self.validation_users is None:
            return None
        return some_users(self.validation, self.validation_users, seed=0)

    def measure(self, learner: Ranker, threads: int | None = None) -> dict[str, float]:
        """The validation metrics by name; empty without validation."""
        return {} if self.measurement is None else self.measurement.means(learner, threads)

    def warn_of_training_log(self, fingerprint: str | None) -> None:
        """Early stopping by the training log itself notices no overfitting."""
        if (
            isinstance(self.validation, (Gains, RemoteGains))
            and self.validation.log_fingerprint == fingerprint is not None
        ):
            message = (
                "the validation gains come from the training log, so overfitting goes unnoticed; use another log."
            )
            warnings.warn(message, TrainingLogWarning, stacklevel=3)

    def warn_if_improving(self, name: str, records: Sequence[Record], epochs: int) -> None:
        """Say so if the curve of the validation had not leveled off."""
        merits = [self.merit(record.metrics) for record in records if record.metrics]
        if merits:
            warn_if_improving(name, records, merits, epochs, self.formulas[0].name)

    def best_epoch(self, records: Sequence[Record]) -> int:
        """The epoch whose check was the best, the first of equals."""
        return max((record for record in records if record.metrics), key=lambda one: self.merit(one.metrics)).epoch

    def merit(self, metrics: dict[str, float]) -> float:
        """The first metric, signed so that larger is better."""
        value = metrics[self.formulas[0].name]
        return value if self.formulas[0].larger_is_better else -value


def _given(metric: Metrics) -> Any:
    return [metric] if isinstance(metric, (str, Metric)) or not isinstance(metric, Iterable) else list(metric)


class Training:
    """One fit of a learner that trains factors: call ``run`` once."""

    def __init__(
        self, learner: Trainable, epoch: Epoch, options: FitOptions, threads: int,
        checks: Container[int] | None = None, pilot: Sequence[Record] = (), title: str = "",
    ) -> None:  # fmt: skip
        self.learner, self.epoch, self.options, self.threads = learner, epoch, options, threads
        self.pilot, self.title = list(pilot), title or type(learner).__name__
        self.averaged = round(learner.averaging * learner.epochs)  # the last epochs
        self.every = options.validate_every or max(1, learner.epochs // 50)
        self.checks = checks or range(self.every, learner.epochs + 1, self.every)

    def run(self, log: Any) -> State:
        """Train to the last epoch, or until ``patience`` checks brought nothing better."""
        file, state = self.checkpoint(log), self.begin(log)
        if file and file.path.exists():
            names = [formula.name for formula in self.options.formulas]
            state = file.read(state, self.learner.epochs, names, seeded=self.learner.random_state is not None)
        written = time.monotonic()
        with Progress(self.options.show_progress) as bar:
            bar.begin(self.title, self.learner.epochs, state.epoch)
            while not self._is_over(state):
                checked = self._step(state, bar)
                if file and time.monotonic() - written >= 60 * self.options.checkpoint_minutes:
                    file.write(state)
                    written = time.monotonic()
                if checked and self.options.callback:
                    self.options.callback(self.measured(state), state.history[-1])
            bar.end(self._summary(state))
        if file:
            file.write(state)  # the finished fit, until its model is saved
        return state

    def begin(self, log: Any) -> State:
        """The state before the first epoch."""
        seed = int(generator(self.learner.random_state).integers(2**63))
        return State(seed, self.learner.initial(log, seed), pilot=self.pilot)

    def measured(self, state: State) -> Any:
        """The learner with the factors of now, to be evaluated."""
        return self.learner.with_factors(state.model)

    def _is_over(self, state: State) -> bool:
        patience = self.options.patience
        return state.epoch >= self.learner.epochs or (patience is not None and state.worse >= patience)

    def _step(self, state: State, bar: Progress) -> bool:
        """One epoch, and the check that follows it if one is due."""
        began = time.perf_counter()
        stats = self.epoch(state.tables, state.seed, state.epoch, self.threads)
        seconds = time.perf_counter() - began
        state.epoch += 1
        if stats.diverged:
            raise self._diverged(state.epoch)
        if state.epoch > self.learner.epochs - self.averaged:
            state.add_to_average()
        due = state.epoch in self.checks
        metrics = self._validate(state) if due and self.options.measurement is not None else {}
        state.history.append(Record(state.epoch, float(stats.loss), int(stats.updates), metrics))
        speed = stats.updates / max(seconds, 1e-9) / 1e6
        bar.step(f"loss {stats.loss:.4g}, {speed:.1f} M updates/s{self._best(state)}")
        return due

    def _validate(self, state: State) -> dict[str, float]:
        metrics = self.options.measure(self.measured(state), self.threads)
        merit = self.options.merit(metrics)
        if merit > state.best:
            state.best, state.best_epoch, state.worse = merit, state.epoch, 0
            state.keep_best()
        else:
            state.worse += 1
        return metrics

    def _best(self, state: State) -> str:
        if not state.best_epoch:
            return ""
        name, best = self.options.formulas[0].name, state.history[state.best_epoch - 1]
        return f", best {name} {best.metrics[name]:.4g} (epoch {state.best_epoch})"

    def _summary(self, state: State) -> str:
        stopped = "stopped early" if state.epoch < self.learner.epochs else f"loss {state.history[-1].loss:.4g}"
        return f"{stopped}{self._best(state)}"

    def _diverged(self, epoch: int) -> Diverged:
        rate, decay = self.learner.learning_rate, self.learner.learning_rate * self.learner.regularization
        name = type(self.learner).__name__
        if decay >= 1:
            return Diverged(
                f"{name} diverged in epoch {epoch}: learning_rate × regularization is {decay:g} and must be below 1; "
                "lower one of them."
            )
        cap = ", or a larger cap" if hasattr(self.learner, "cap") else ""
        return Diverged(
            f"{name} diverged in epoch {epoch}: learning_rate={rate:g} is too large for this log; "
            f"try {rate / 10:.2g}{cap}."
        )

    def checkpoint(self, log: Any) -> Any:
        """Where the state is stored, if that was asked for."""
        if self.options.checkpoint is None:
            return None
        if isinstance(self.learner.random_state, np.random.Generator):
            raise InputError("a checkpoint needs random_state to be an integer or None, got a Generator.")
        hyper = {name: value for name, value in self.learner.hyper_parameters().items() if name != "threads"}
        names = [formula.name for formula in self.options.formulas]
        identity = (type(self.learner).__module__, type(self.learner).__qualname__, sorted(hyper.items()), self.every)
        features = () if self.options.features is None else (self.options.features.fingerprint,)
        how = (names, self.options.patience, self.options.holds_out, self.options.validation_users, *features)
        data = [log, self.options.validation] if isinstance(self.options.validation, (Gains, RemoteGains)) else [log]
        return self.stored(self.options.checkpoint, (*identity, *how), data)

    def stored(self, path: str | os.PathLike[str], identity: tuple[Any, ...], data: list[Any]) -> Any:
        """The checkpoint of a fit with this identity to these tables."""
        return Checkpoint.of(path, identity, data)


def history_frame(records: Sequence[Record], formulas: Sequence[Metric]) -> pd.DataFrame:
    """``epoch, loss, updates`` and a column per metric that was measured, NaN in epochs without a check."""
    import pandas as pd

    names = [formula.name for formula in formulas if any(formula.name in record.metrics for record in records)]
    columns: dict[str, Any] = {
        "epoch": np.array([record.epoch for record in records], np.int64),
        "loss": np.array([record.loss for record in records], np.float64),
        "updates": np.array([record.updates for record in records], np.int64),
    }
    for name in names:
        columns[name] = np.array([record.metrics.get(name, np.nan) for record in records], np.float64)
    return pd.DataFrame(columns)
