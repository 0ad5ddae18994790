"""The training driver: epochs with validation, early stopping, progress and a checkpoint.

Everything random in an epoch follows from the seed and the number of the epoch, so training that resumes from a
checkpoint takes the same steps as training that was never interrupted.
"""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
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

CLEARLY = 0.01  # of its merit: by how much a shorter fit must be better than a longer one to be preferred


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
    epoch: int = 0
    best: float | None = None
    best_epoch: int = 0
    best_tables: Any = None
    worse: int = 0
    history: list[Record] = field(default_factory=list)
    lengths: list[Record] = field(default_factory=list)  # complete fits, one for each length
    best_history: list[Record] = field(default_factory=list)  # of the best of them

    @property
    def result(self) -> Any:
        """The factors of the best epoch or length; of the last epoch without validation."""
        return self.best_tables or self.tables

    def merits(self, options: TrainingOptions) -> list[tuple[int, float]]:
        """The lengths of the complete fits, and what they are worth."""
        return [(record.epoch, options.merit(record.metrics)) for record in self.lengths]

    def end_length(self, metrics: dict[str, float], options: TrainingOptions) -> None:
        """Keep this fit if it is the best of its length, and no shorter one is clearly better; begin anew."""
        self.lengths.append(replace(self.history[-1], metrics=metrics))
        merits = [merit for _, merit in self.merits(options)]
        enough, longer = max(merits) - CLEARLY * abs(max(merits)), len(self.history) - len(self.best_history)
        if self.best is None or longer > 0:
            keep = merits[-1] >= enough
        else:
            keep = merits[-1] > self.best and (longer == 0 or self.best < enough)
        if keep:
            self.best, self.best_tables, self.best_history = merits[-1], copied(self.tables), self.history
        self.tables, self.epoch, self.history = None, 0, []


def train(
    learner: Any, epoch: Epoch, schedule: Schedule, options: TrainingOptions, state: State,
    checkpoint: Checkpoint | None = None,
) -> State:  # fmt: skip
    """Train to the last epoch, or until ``patience`` checks brought no improvement."""
    every = options.validate_every or max(1, schedule.epochs // 50)
    checks = range(every, schedule.epochs + 1, every)
    threads, written, before = worker_count(learner.threads), time.monotonic(), state.epoch
    with Progress(options.show_progress) as bar:
        bar.begin(f"{type(learner).__name__}, {schedule.epochs} epochs", schedule.epochs, state.epoch)
        while state.epoch < schedule.epochs and (options.patience is None or state.worse < options.patience):
            began = time.perf_counter()
            stats = epoch.run(state.tables, state.seed, state.epoch, schedule.rate(state.epoch), threads)
            speed = stats.updates / max(time.perf_counter() - began, 1e-9) / 1e6
            state.epoch += 1
            if stats.diverged:
                raise _diverged(learner, state.epoch)
            is_due = state.epoch in checks
            metrics = _check(learner, state, options, threads) if is_due and options.gains is not None else {}
            state.history.append(Record(state.epoch, float(stats.loss), int(stats.updates), metrics))
            bar.step(f"loss {stats.loss:.4g}, {speed:.1f} M updates/s{_best(state, options)}")
            if checkpoint and time.monotonic() - written >= 60 * options.checkpoint_minutes:
                checkpoint.write(state)
                written = time.monotonic()
            if is_due and options.callback:
                learner._set_factors(state.tables)
                options.callback(learner, state.history[-1])
        end = "stopped early" if state.epoch < schedule.epochs else f"loss {state.history[-1].loss:.4g}"
        bar.end(f"{end}{_best(state, options)}")
    if checkpoint and state.epoch > before:
        checkpoint.write(state)  # the finished training, until its model is saved
    return state


def _check(learner: Any, state: State, options: TrainingOptions, threads: int) -> dict[str, float]:
    """Measure the factors of this epoch, and copy them if they are the best so far."""
    learner._set_factors(state.tables)
    metrics = options.measure(learner, threads)
    merit = options.merit(metrics)
    if state.best is None or merit > state.best:
        state.best, state.best_epoch, state.worse = merit, state.epoch, 0
        state.best_tables = copied(state.tables)
    else:
        state.worse += 1
    return metrics


def _best(state: State, options: TrainingOptions) -> str:
    if not state.best_epoch:
        return ""
    name, best = options.metrics[0].name, state.history[state.best_epoch - 1]
    return f", best {name} {best.metrics[name]:.4g} (epoch {state.best_epoch})"


def _diverged(learner: Any, epoch: int) -> DivergedError:
    rate, decay = learner.learning_rate, learner.learning_rate * learner.regularization
    if decay >= 1:
        advice = f"learning_rate × regularization is {decay:g} and must be below 1; lower one of them."
    else:
        cap = ", or a larger cap" if hasattr(learner, "cap") else ""
        advice = f"learning_rate={rate:g} is too large for this log; try {rate / 10:.2g}{cap}."
    return DivergedError(f"{type(learner).__name__} diverged in epoch {epoch}: {advice}")


_NUMBERS = ("seed", "epoch", "best", "best_epoch", "worse")  # of a state
_RECORDS = ("history", "lengths", "best_history")


@dataclass(frozen=True)
class Checkpoint:
    """The state of one training on disk; ``identity`` is a hash of the learner, the options and the data."""

    path: Path
    identity: str

    def write(self, state: State) -> None:
        arrays = {"users": state.tables.users, "items": state.tables.items}
        if state.best_tables:
            arrays |= {"best_users": state.best_tables.users, "best_items": state.best_tables.items}
        progress: dict[str, Any] = {name: getattr(state, name) for name in _NUMBERS}
        progress |= {name: [asdict(record) for record in getattr(state, name)] for name in _RECORDS}
        storage.write(self.path, "checkpoint", {"identity": self.identity, **progress}, arrays)

    def read(self) -> State | None:
        """The state to resume from; None if there is none yet."""
        if not self.path.exists():
            return None
        progress, arrays = storage.read(self.path, "checkpoint")
        if progress.get("identity") != self.identity:
            raise InputError(
                f"the checkpoint '{self.path}' belongs to another fit (other data, hyper-parameters or validation); "
                "remove it or name another one."
            )
        tables: dict[str, Any] = {
            name: array if isinstance(array, ShardedArray) else aligned(array) for name, array in arrays.items()
        }
        stored: dict[str, Any] = {name: progress[name] for name in _NUMBERS}
        stored |= {name: [Record(**record) for record in progress[name]] for name in _RECORDS}
        return State(
            **stored,
            tables=Factors(tables["users"], tables["items"]),
            best_tables=Factors(tables["best_users"], tables["best_items"]) if "best_users" in tables else None,
        )

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
    checks = (options.patience, options.chooses_length, options.validate_every, options.validation_users)
    how = (names, *checks, features)
    kind = (type(learner).__module__, type(learner).__qualname__)
    data = fingerprint(log) if options.gains is None else fingerprint(log, options.gains)
    what = (kind, sorted(hyper.items()), schedule, how, data)
    return hashlib.blake2b(repr(what).encode(), digest_size=16).hexdigest()


def copied(tables: Any, columns: int | None = None) -> Factors:
    """The first columns as they are now; training goes on to change them. Rows in files stay there."""
    each: Any = (tables.users, tables.items)
    each = [table if isinstance(table, ShardedArray) else np.array(table[:, :columns]) for table in each]
    return Factors(*each)


def aligned(table: Floats32, rows: int | None = None) -> Floats32:
    """A copy as the kernels need it, with ``rows`` rows; further rows begin as the mean of the table's."""
    table = np.asarray(table)  # those of a model folder are in files
    copy = factor_table(len(table) if rows is None else rows, table.shape[1])
    copy[: len(table), : table.shape[1]] = table
    if 0 < len(table) < len(copy):
        copy[len(table) :, : table.shape[1]] = table.mean(axis=0, dtype=np.float64)
    return copy
