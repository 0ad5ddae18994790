"""The loop around the epochs: progress, validation, early stopping, checkpoints.

Everything random in an epoch follows from the seed and the number of the epoch, so a fit that goes on from a
checkpoint takes the very steps it would have taken.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from taurank._validation import check_instance, check_integer, check_number, generator
from taurank.data import archive
from taurank.data.files import check_target
from taurank.data.log import Log
from taurank.errors import InputError, OverlapWarning
from taurank.estimation.gains import Gains
from taurank.evaluation.evaluate import evaluate
from taurank.evaluation.formulas import parse
from taurank.sgd.scheduler import Factors, Stats, factor_table

if TYPE_CHECKING:
    from taurank.learners.factorization import Epoch, FactorLearner


@dataclass(frozen=True)
class Validation:
    """Measure by ``metric`` on ``gains`` every so many epochs; stop after ``patience`` times without a better one."""

    gains: Gains
    metric: str
    every: int
    patience: int | None
    callback: Callable[[int, float], None] | None = None

    def __post_init__(self) -> None:
        parse(self.metric)
        check_instance("validation", self.gains, Gains, "taurank.gains, such as gains.capped_ips(log, cap)")
        check_integer("validate_every", self.every)
        if self.patience is not None:
            check_integer("patience", self.patience)

    def measure(self, learner: FactorLearner, threads: int) -> float:
        """The metric, turned so that larger is better."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", OverlapWarning)  # no news in every epoch
            result = evaluate(learner, self.gains, self.metric, threads=threads)
        value = float(next(iter(result.values())).mean)
        return -value if parse(self.metric).form == "AR" else value


@dataclass(frozen=True)
class Checkpoint:
    """A file that holds the state of a fit, written every so many minutes."""

    path: str | os.PathLike[str]
    minutes: float

    def __post_init__(self) -> None:
        check_target(self.path)
        check_number("checkpoint_minutes", self.minutes, 0)


@dataclass
class State:
    """Where a fit stands: enough to go on from."""

    seed: int
    tables: Factors
    epoch: int = 0
    best: float = -np.inf
    best_epoch: int = 0
    best_tables: Factors | None = None
    worse: int = 0
    history: list[dict[str, Any]] = field(default_factory=list)


class Training:
    """One fit of a learner: call ``run`` once."""

    def __init__(
        self,
        learner: FactorLearner,
        epoch: Epoch,
        validation: Validation | None,
        checkpoint: Checkpoint | None,
        threads: int,
        show_progress: bool | None,
    ) -> None:
        self.learner, self.epoch, self.threads = learner, epoch, threads
        self.validation, self.checkpoint = validation, checkpoint
        self.show = sys.stderr.isatty() if show_progress is None else show_progress
        self.history: list[dict[str, Any]] = []

    def run(self, log: Log) -> Factors:
        """Train, and give the factors of the best epoch (the last one without validation)."""
        mark = self._fingerprint(log) if self.checkpoint else ""
        state = self._resume(log, mark) or self._begin(log)
        saved = time.monotonic()
        with _progress(self.show, type(self.learner).__name__, self.learner.epochs) as tell:
            while state.epoch < self.learner.epochs and not self._is_over(state):
                self._step(state, tell)
                if self.checkpoint and time.monotonic() - saved >= 60 * self.checkpoint.minutes:
                    self._save(state, mark)
                    saved = time.monotonic()
                self._call_back(state)
        self.history = state.history
        if self.checkpoint:
            Path(self.checkpoint.path).unlink(missing_ok=True)
        return state.best_tables or state.tables

    def _begin(self, log: Log) -> State:
        seed = int(generator(self.learner.random_state).integers(2**63))
        return State(seed, self.learner.initial(log, seed))

    def _is_over(self, state: State) -> bool:
        patience = self.validation.patience if self.validation else None
        return patience is not None and state.worse >= patience

    def _step(self, state: State, tell: Any) -> None:
        began = time.perf_counter()
        stats = self.epoch(state.tables, state.seed, state.epoch, self.threads)
        seconds = time.perf_counter() - began
        state.epoch += 1
        if not (stats.finite and np.isfinite(stats.loss)):
            raise self._diverged(state.epoch)
        record = {"epoch": state.epoch, "loss": stats.loss, "updates": stats.updates}
        if self.validation and state.epoch % self.validation.every == 0:
            record[self.validation.metric] = self._validate(state, self.validation)
        state.history.append(record)
        tell(stats, seconds, state)

    def _validate(self, state: State, validation: Validation) -> float:
        value = validation.measure(self.learner.with_factors(state.tables), self.threads)
        if value > state.best:
            state.best, state.best_epoch, state.worse = value, state.epoch, 0
            state.best_tables = Factors(*(_copy(table) for table in state.tables))
        else:
            state.worse += 1
        return -value if parse(validation.metric).form == "AR" else value

    def _call_back(self, state: State) -> None:
        validation = self.validation
        if validation and validation.callback and validation.metric in state.history[-1]:
            validation.callback(state.epoch, state.history[-1][validation.metric])

    def _diverged(self, epoch: int) -> InputError:
        rate = self.learner.learning_rate
        return InputError(
            f"{type(self.learner).__name__} diverged in epoch {epoch}: learning_rate={rate:g} is too large for "
            f"this log; try {rate / 3:.1g}, or a larger cap or regularization."
        )

    def _fingerprint(self, log: Log) -> str:
        """What a checkpoint belongs to: the learner's hyper-parameters, the log and the validation."""
        hyper = {k: v for k, v in self.learner.hyper_parameters().items() if k not in ("threads",)}
        if isinstance(self.learner.random_state, np.random.Generator):
            raise InputError("a checkpoint needs random_state to be an integer or None, not a Generator.")
        digest = hashlib.blake2b(repr((type(self.learner).__name__, sorted(hyper.items()))).encode())
        digest.update(log.catalogue.to_text().encode())
        arrays = [log.user, log.item, log.time, log.treated, log.outcome, log.propensity]
        if self.validation:
            gains = self.validation.gains
            digest.update(gains.catalogue.to_text().encode())
            digest.update(repr((self.validation.metric, self.validation.every)).encode())
            digest.update(repr(self.validation.patience).encode())
            arrays += [gains.user, gains.item, gains.time, gains.value]
        for array in arrays:
            digest.update(b"none" if array is None else np.ascontiguousarray(array).view(np.uint8).data)
        return digest.hexdigest()

    def _save(self, state: State, mark: str) -> None:
        assert self.checkpoint is not None
        arrays = {"users": state.tables.users, "items": state.tables.items}
        if state.best_tables:
            arrays |= {"best_users": state.best_tables.users, "best_items": state.best_tables.items}
        facts = {
            "mark": mark, "seed": state.seed, "epoch": state.epoch, "best": state.best,
            "best_epoch": state.best_epoch, "worse": state.worse, "history": state.history,
        }  # fmt: skip
        archive.write(self.checkpoint.path, "checkpoint", facts, arrays)

    def _resume(self, log: Log, mark: str) -> State | None:
        if self.checkpoint is None or not Path(self.checkpoint.path).exists():
            return None
        facts, arrays = archive.read(self.checkpoint.path, "checkpoint")
        if facts.pop("mark") != mark:
            raise InputError(
                f"the checkpoint '{os.fspath(self.checkpoint.path)}' belongs to another fit (other data, "
                "hyper-parameters or validation); remove it or name another file."
            )
        best = (arrays["best_users"], arrays["best_items"]) if "best_users" in arrays else None
        return State(
            tables=Factors(_copy(arrays["users"]), _copy(arrays["items"])),
            best_tables=Factors(*(_copy(table) for table in best)) if best else None,
            **facts,
        )


def _copy(table: Any) -> Any:
    """A copy where the kernels like their factors to lie."""
    copy = factor_table(*table.shape)
    copy[:] = table
    return copy


@contextmanager
def _progress(show: bool, name: str, epochs: int) -> Iterator[Any]:
    """A bar with loss, updates per second and the best validation so far; nothing in a pipe."""
    if not show:
        yield lambda stats, seconds, state: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
               TextColumn("{task.fields[news]}"), TimeRemainingColumn())  # fmt: skip
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(name, total=epochs, news="")

        def tell(stats: Stats, seconds: float, state: State) -> None:
            news = f"loss {stats.loss:.4f}  {stats.updates / max(seconds, 1e-9) / 1e6:.1f} M updates/s"
            if np.isfinite(state.best):
                news += f"  best {abs(state.best):.4f} (epoch {state.best_epoch})"
            bar.update(task, completed=state.epoch, news=news)

        yield tell
