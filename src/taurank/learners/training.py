"""The training driver: epochs with validation, early stopping, progress and a checkpoint.

Everything random in an epoch follows from the seed and the number of the epoch, so training that resumes from a
checkpoint takes the same steps as training that was never interrupted.
"""

from __future__ import annotations

import hashlib
import math
import shutil
import time
from collections.abc import Callable, Container
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from taurank._progress import Progress
from taurank._threads import worker_count
from taurank._types import Floats32
from taurank.data import storage
from taurank.data.cell_table import fingerprint
from taurank.data.storage import ShardedArray
from taurank.errors import DivergedError, InputError
from taurank.learners.options import Record, TrainingOptions
from taurank.sgd.scheduler import Factors, Stats, factor_table


@dataclass(frozen=True)
class Schedule:
    """How many epochs, and the learning rate of each: it falls geometrically from ``first`` to ``decay`` · first."""

    epochs: int
    first: float
    decay: float = 1.0

    def rate(self, epoch: int) -> float:
        """Eq. (rate): first · decay^(epoch / (epochs − 1)), for epochs counted from 0."""
        if self.decay == 1 or self.epochs == 1:
            return self.first
        return float(self.first * self.decay ** (epoch / (self.epochs - 1)))

    @property
    def sum_of_rates(self) -> float:
        """Over the epochs, in units of the first rate."""
        unit = Schedule(self.epochs, 1.0, self.decay)
        return math.fsum(unit.rate(epoch) for epoch in range(self.epochs))


@dataclass(frozen=True)
class Epoch:
    """One epoch of a method on one log, and how many updates it makes.

    ``run(factors, seed, number of the epoch, rate, threads)`` changes the factors in place and returns its
    statistics. ``fold`` takes the same arguments and moves user rows alone; without it a learner cannot fold in.
    ``begin(seed, start)`` makes the factors before the first epoch where they are not in this process's memory.
    """

    run: Callable[[Any, int, int, float, int], Stats]
    updates: int
    fold: Callable[[Factors, int, int, float, int], None] | None = None
    begin: Callable[[int, Factors | None], Any] | None = None


@dataclass
class State:
    """How far training has come: enough to resume from."""

    seed: int
    tables: Any  # Factors, or what ``Epoch.begin`` returned: it has ``users`` and ``items`` as well
    held_out: list[Record] = field(default_factory=list)  # the epochs of the hold-out run before
    epoch: int = 0
    best: float = -math.inf
    best_epoch: int = 0
    best_tables: Factors | None = None
    worse: int = 0
    history: list[Record] = field(default_factory=list)

    @property
    def result(self) -> Any:
        """The factors of the best epoch; of the last one without validation."""
        return self.best_tables or self.tables

    def put_into(self, learner: Any) -> None:
        """Give the learner the factors of this epoch, to be evaluated."""
        learner._set_factors(self.tables)

    def keep_best(self) -> None:
        """Copy the factors that were just measured: they are the best so far."""
        self.best_tables = Factors(copied(self.tables.users), copied(self.tables.items))


class Training:
    """One run of the epochs of a schedule. ``checks`` are the epochs that are followed by a check."""

    def __init__(
        self, learner: Any, epoch: Epoch, schedule: Schedule, options: TrainingOptions,
        checks: Container[int] | None = None, title: str = "",
    ) -> None:  # fmt: skip
        self.learner, self.epoch, self.schedule, self.options = learner, epoch, schedule, options
        every = options.validate_every or max(1, schedule.epochs // 50)
        self.checks = range(every, schedule.epochs + 1, every) if checks is None or options.validate_every else checks
        self.title, self.threads = title or type(learner).__name__, worker_count(learner.threads)

    def run(self, state: State, checkpoint: Any = None) -> Any:
        """Train to the last epoch, or until ``patience`` checks brought no improvement."""
        options, written, before = self.options, time.monotonic(), state.epoch
        with Progress(options.show_progress) as bar:
            bar.begin(self.title, self.schedule.epochs, state.epoch)
            while state.epoch < self.schedule.epochs and not self._is_stopped(state):
                is_checked = self._step(state, bar)
                if checkpoint and time.monotonic() - written >= 60 * options.checkpoint_minutes:
                    checkpoint.write(state)
                    written = time.monotonic()
                if is_checked and options.callback:
                    state.put_into(self.learner)
                    options.callback(self.learner, state.history[-1])
            is_short = state.epoch < self.schedule.epochs
            end = "stopped early" if is_short else f"loss {state.history[-1].loss:.4g}"
            bar.end(f"{end}{self._best(state)}")
        if checkpoint and state.epoch > before:
            checkpoint.write(state)  # the finished training, until its model is saved
        return state

    def _is_stopped(self, state: State) -> bool:
        return self.options.patience is not None and state.worse >= self.options.patience

    def _step(self, state: State, bar: Progress) -> bool:
        """One epoch, and the check that follows it if one is due."""
        began = time.perf_counter()
        rate = self.schedule.rate(state.epoch)
        stats = self.epoch.run(state.tables, state.seed, state.epoch, rate, self.threads)
        seconds = time.perf_counter() - began
        state.epoch += 1
        if stats.diverged:
            raise _diverged(self.learner, state.epoch)
        is_due = state.epoch in self.checks
        metrics = self._check(state) if is_due and self.options.gains is not None else {}
        state.history.append(Record(state.epoch, float(stats.loss), int(stats.updates), metrics))
        speed = stats.updates / max(seconds, 1e-9) / 1e6
        bar.step(f"loss {stats.loss:.4g}, {speed:.1f} M updates/s{self._best(state)}")
        return is_due

    def _check(self, state: State) -> dict[str, float]:
        state.put_into(self.learner)
        metrics = self.options.measure(self.learner, self.threads)
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
        name, best = self.options.metrics[0].name, state.history[state.best_epoch - 1]
        return f", best {name} {best.metrics[name]:.4g} (epoch {state.best_epoch})"


def _diverged(learner: Any, epoch: int) -> DivergedError:
    rate, decay = learner.learning_rate, learner.learning_rate * learner.regularization
    if decay >= 1:
        advice = f"learning_rate × regularization is {decay:g} and must be below 1; lower one of them."
    else:
        cap = ", or a larger cap" if hasattr(learner, "cap") else ""
        advice = f"learning_rate={rate:g} is too large for this log; try {rate / 10:.2g}{cap}."
    return DivergedError(f"{type(learner).__name__} diverged in epoch {epoch}: {advice}")


@dataclass(frozen=True)
class Checkpoint:
    """The state of one training on disk; ``identity`` is a hash of the learner, the options and the data."""

    path: Path
    identity: str

    def write(self, state: State) -> None:
        arrays = {"users": state.tables.users, "items": state.tables.items}
        if state.best_tables:
            arrays |= {"best_users": state.best_tables.users, "best_items": state.best_tables.items}
        storage.write(self.path, "checkpoint", {"identity": self.identity, **progress_of(state)}, arrays)

    def read(self) -> State | None:
        """The state to resume from; None if there is none yet."""
        if not self.path.exists():
            return None
        progress, arrays = storage.read(self.path, "checkpoint")
        check_identity(self.path, progress, self.identity)
        arrays = {
            name: array if isinstance(array, ShardedArray) else aligned(array) for name, array in arrays.items()
        }
        tables = Factors(arrays["users"], arrays["items"])
        best = Factors(arrays["best_users"], arrays["best_items"]) if progress["best_epoch"] else None
        state: State = state_of(progress, State, tables=tables, best_tables=best)
        return state

    def remove(self) -> None:
        """Remove that of a finished fit, unless another fit has replaced it meanwhile."""
        with suppress(InputError):  # no longer a checkpoint
            if storage.read(self.path, "checkpoint")[0].get("identity") == self.identity:
                shutil.rmtree(self.path) if self.path.is_dir() else self.path.unlink(missing_ok=True)


def identity_of(learner: Any, options: TrainingOptions, schedule: Schedule, random_state: Any, log: Any) -> str:
    """A hash of all that the result of training follows from."""
    if isinstance(random_state, np.random.Generator):
        raise InputError("a checkpoint needs random_state to be an integer or None, got a Generator.")
    hyper = {**learner.hyper_parameters(), "threads": None, "random_state": random_state}
    names = [metric.name for metric in options.metrics]
    features = options.features and options.features.fingerprint
    how = (names, options.patience, options.holds_out, options.validate_every, options.validation_users, features)
    kind = (type(learner).__module__, type(learner).__qualname__)
    data = fingerprint(log) if options.gains is None else fingerprint(log, options.gains)
    what = (kind, sorted(hyper.items()), schedule, how, data)
    return hashlib.blake2b(repr(what).encode(), digest_size=16).hexdigest()


def check_identity(path: Path, progress: Any, identity: str) -> None:
    """Refuse to resume other training than that of the checkpoint."""
    if progress.get("identity") != identity:
        raise InputError(
            f"the checkpoint '{path}' belongs to another fit (other data, hyper-parameters or validation); remove it "
            "or name another one."
        )


def progress_of(state: State) -> dict[str, Any]:
    """A state without its factors, for JSON."""
    names = ("seed", "epoch", "best_epoch", "worse")
    records = {name: [asdict(record) for record in getattr(state, name)] for name in ("history", "held_out")}
    best = state.best if state.best_epoch else None
    return {name: getattr(state, name) for name in names} | records | {"best": best}


def state_of(progress: dict[str, Any], kind: Any, **factors: Any) -> Any:
    """The state of ``progress_of``, with its factors."""
    names = ("seed", "epoch", "best_epoch", "worse")
    records = {name: [Record(**record) for record in progress[name]] for name in ("history", "held_out")}
    best = -math.inf if progress["best"] is None else progress["best"]
    return kind(**{name: progress[name] for name in names}, **records, best=best, **factors)


def copied(table: Floats32) -> Floats32:
    """A copy; rows in files stay there, which nobody changes."""
    return table if isinstance(table, ShardedArray) else table.copy()


def aligned(table: Floats32, rows: int | None = None) -> Floats32:
    """A copy as the kernels need it, with ``rows`` rows; further rows begin as the mean of the table's."""
    table = np.asarray(table)  # those of a model folder are in files
    copy = factor_table(len(table) if rows is None else rows, table.shape[1])
    copy[: len(table), : table.shape[1]] = table
    if 0 < len(table) < len(copy):
        copy[len(table) :, : table.shape[1]] = table.mean(axis=0, dtype=np.float64)
    return copy
