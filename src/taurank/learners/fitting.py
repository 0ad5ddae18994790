"""One fit: its options, and the loop around the epochs with validation, early stopping and a checkpoint.

Everything random in an epoch follows from the seed and the number of the epoch, so a fit that resumes from a
checkpoint takes the same steps as one that was never interrupted.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np

from taurank._progress import Progress
from taurank._validation import check_instance, check_integer, check_number, generator
from taurank.data.files import check_target
from taurank.data.log import Log
from taurank.errors import Diverged, InputError, OverlapWarning, TrainingLogWarning
from taurank.estimation.gains import Gains
from taurank.evaluation.evaluate import evaluate
from taurank.evaluation.formulas import Formula, parse
from taurank.evaluation.rankers import Ranker
from taurank.learners.checkpoints import Checkpoint, Record, State, copied
from taurank.sgd.scheduler import Factors, Stats

if TYPE_CHECKING:
    import pandas as pd

Metrics = str | Formula | Sequence[str | Formula]

# one epoch of a method: (factors, seed, number of the epoch, threads) -> its statistics
Epoch = Callable[[Factors, int, int, int], Stats]


class Trainable(Ranker, Protocol):
    """What the loop needs of a learner that trains factors."""

    epochs: int
    learning_rate: float
    regularization: float
    random_state: Any

    def hyper_parameters(self) -> dict[str, Any]: ...

    def initial(self, log: Log, seed: int) -> Factors: ...

    def with_factors(self, tables: Factors) -> Self: ...


@dataclass(frozen=True)
class FitOptions:
    """The arguments of ``fit`` apart from the log, checked."""

    validation: Gains | None = None
    metric: Metrics = "CDCG"
    patience: int | None = 10
    show_progress: bool | None = None
    checkpoint: str | os.PathLike[str] | None = None
    validate_every: int | None = None
    checkpoint_minutes: float = 5.0
    callback: Callable[[Any, Record], None] | None = None

    def __post_init__(self) -> None:
        if self.validation is not None:
            check_instance("validation", self.validation, Gains, "taurank.gains, such as gains.capped_ips(log, cap)")
        if self.patience is not None:
            check_integer("patience", self.patience)
        if self.validate_every is not None:
            check_integer("validate_every", self.validate_every)
        if self.callback is not None and not callable(self.callback):
            raise InputError(f"callback must be a function of a learner and a record, got {self.callback!r}.")
        check_number("checkpoint_minutes", self.checkpoint_minutes, 0)
        if self.checkpoint is not None:
            check_target(self.checkpoint)
        _ = self.formulas  # parsed now, so that a wrong name is refused before the fit

    @cached_property
    def formulas(self) -> tuple[Formula, ...]:
        """The metrics; the first one decides about early stopping."""
        formulas = tuple(one if isinstance(one, Formula) else parse(one) for one in _given(self.metric))
        if not formulas:
            raise InputError("metric is empty; name at least one, such as CDCG.")
        return formulas

    def measure(self, learner: Ranker, threads: int | None = None) -> dict[str, float]:
        """The validation metrics by name; empty without validation."""
        if self.validation is None:
            return {}
        with warnings.catch_warnings():
            for known in (OverlapWarning, TrainingLogWarning):  # noise once per check; see warn_of_training_log
                warnings.simplefilter("ignore", known)
            result = evaluate(learner, self.validation, _given(self.metric), threads=threads)
        return {formula.name: float(result[formula.name].mean) for formula in self.formulas}

    def warn_of_training_log(self, fingerprint: str | None) -> None:
        """Early stopping by the training log itself notices no overfitting."""
        if self.validation is not None and self.validation.log_fingerprint == fingerprint is not None:
            message = (
                "the validation gains come from the training log, so overfitting goes unnoticed; use another log."
            )
            warnings.warn(message, TrainingLogWarning, stacklevel=3)

    def merit(self, metrics: dict[str, float]) -> float:
        """The first metric, signed so that larger is better."""
        value = metrics[self.formulas[0].name]
        return value if self.formulas[0].larger_is_better else -value


def _given(metric: Metrics) -> Any:
    return [metric] if isinstance(metric, (str, Formula)) or not isinstance(metric, Iterable) else list(metric)


class Training:
    """One fit of a learner that trains factors: call ``run`` once."""

    def __init__(self, learner: Trainable, epoch: Epoch, options: FitOptions, threads: int) -> None:
        self.learner, self.epoch, self.options, self.threads = learner, epoch, options, threads
        self.every = options.validate_every or max(1, learner.epochs // 50)

    def run(self, log: Log) -> State:
        """Train to the last epoch, or until ``patience`` checks brought nothing better."""
        file, state = self._checkpoint(log), self._begin(log)
        if file and file.path.exists():
            names = [formula.name for formula in self.options.formulas]
            state = file.read(state, self.learner.epochs, names, seeded=self.learner.random_state is not None)
        written = time.monotonic()
        with Progress(self.options.show_progress) as bar:
            bar.begin(type(self.learner).__name__, self.learner.epochs, state.epoch)
            while not self._is_over(state):
                checked = self._step(state, bar)
                if file and time.monotonic() - written >= 60 * self.options.checkpoint_minutes:
                    file.write(state)
                    written = time.monotonic()
                if checked and self.options.callback:
                    self.options.callback(self.learner.with_factors(state.tables), state.history[-1])
            bar.end(self._summary(state))
        if file:
            file.write(state)  # the finished fit, until its model is saved
        return state

    def _begin(self, log: Log) -> State:
        seed = int(generator(self.learner.random_state).integers(2**63))
        return State(seed, self.learner.initial(log, seed))

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
        due = state.epoch % self.every == 0
        metrics = self._validate(state) if due and self.options.validation is not None else {}
        state.history.append(Record(state.epoch, float(stats.loss), int(stats.updates), metrics))
        speed = stats.updates / max(seconds, 1e-9) / 1e6
        bar.step(f"loss {stats.loss:.4g}, {speed:.1f} M updates/s{self._best(state)}")
        return due

    def _validate(self, state: State) -> dict[str, float]:
        metrics = self.options.measure(self.learner.with_factors(state.tables), self.threads)
        merit = self.options.merit(metrics)
        if merit > state.best:
            state.best, state.best_epoch, state.worse = merit, state.epoch, 0
            state.best_tables = Factors(*(copied(table) for table in state.tables))
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

    def _checkpoint(self, log: Log) -> Checkpoint | None:
        if self.options.checkpoint is None:
            return None
        if isinstance(self.learner.random_state, np.random.Generator):
            raise InputError("a checkpoint needs random_state to be an integer or None, got a Generator.")
        hyper = {name: value for name, value in self.learner.hyper_parameters().items() if name != "threads"}
        names = [formula.name for formula in self.options.formulas]
        identity = (type(self.learner).__module__, type(self.learner).__qualname__, sorted(hyper.items()), self.every)
        data = [log] if self.options.validation is None else [log, self.options.validation]
        return Checkpoint.of(self.options.checkpoint, (*identity, names, self.options.patience), data)


def history_frame(records: Sequence[Record], formulas: Sequence[Formula]) -> pd.DataFrame:
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
