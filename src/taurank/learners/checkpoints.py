"""The state of a fit, and the file that stores it while the fit runs."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from taurank.data import storage
from taurank.data.files import check_target
from taurank.data.fingerprint import fingerprint
from taurank.data.storage import Array, check_arrays
from taurank.errors import InputError, first_line, show
from taurank.sgd.scheduler import Factors, factor_table

Float32s = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Record:
    """What one epoch did; ``metrics`` is empty where nothing was measured."""

    epoch: int
    loss: float
    updates: int
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass
class State:
    """How far a fit has come: enough to resume from."""

    seed: int
    tables: Factors
    epoch: int = 0
    best: float = -math.inf
    best_epoch: int = 0
    best_tables: Factors | None = None
    worse: int = 0
    history: list[Record] = field(default_factory=list)
    average: Factors | None = None
    averaged: int = 0  # epochs in it
    pilot: list[Record] = field(default_factory=list)  # what was measured on held-out rows before this fit

    @property
    def model(self) -> Factors:
        """The factors to measure now: the average, as soon as there is one."""
        return self.average or self.tables

    @property
    def result(self) -> Factors:
        """The factors of the best epoch; of the last one without validation."""
        return self.best_tables or self.model

    def keep_best(self) -> None:
        """Copy the factors that were just measured: they are the best so far."""
        self.best_tables = Factors(*(copied(table) for table in self.model))

    def add_to_average(self) -> None:
        """Eq. (averaging): the running mean of the factors after each of these epochs."""
        self.averaged += 1
        if self.average is None:
            self.average = Factors(*(copied(table) for table in self.tables))
            return
        share = np.float32(1 / self.averaged)
        for mean, table in zip(self.average, self.tables, strict=True):
            mean += share * (table - mean)


@dataclass(frozen=True)
class Checkpoint:
    """A file that holds the state of one fit. ``fingerprint`` identifies the fit: learner, options and data."""

    path: Path
    fingerprint: str

    @classmethod
    def of(cls, path: str | os.PathLike[str], identity: object, data: Sequence[Any]) -> Checkpoint:
        target = check_target(path)
        return cls(target, hashlib.blake2b(f"{identity!r} {fingerprint(*data)}".encode(), digest_size=16).hexdigest())

    def write(self, state: State) -> None:
        arrays = {"users": state.tables.users, "items": state.tables.items}
        if state.best_tables:
            arrays |= {"best_users": state.best_tables.users, "best_items": state.best_tables.items}
        if state.average:
            arrays |= {"average_users": state.average.users, "average_items": state.average.items}
        metadata = {
            "mark": self.fingerprint, "seed": state.seed, "epoch": state.epoch, "best": state.best,
            "best_epoch": state.best_epoch, "worse": state.worse, "history": [asdict(r) for r in state.history],
            "averaged": state.averaged, "pilot": [asdict(r) for r in state.pilot],
        }  # fmt: skip
        storage.write(self.path, "checkpoint", metadata, arrays)

    @staticmethod
    def pilot(path: str | os.PathLike[str], names: Sequence[str]) -> list[Record]:
        """The pilot of the fit whose state is in this file."""
        metadata, _ = storage.read(path, "checkpoint")
        with _consistent(os.fspath(path)):
            return _pilot(metadata, names)

    def read(self, start: State, epochs: int, names: Sequence[str], seeded: bool) -> State:
        """The state in the file, of a fit that began with ``start`` (by the same seed if it was ``seeded``)."""
        metadata, arrays = storage.read(self.path, "checkpoint")
        with _consistent(os.fspath(self.path)):
            if metadata["mark"] != self.fingerprint:
                raise InputError(
                    f"the checkpoint '{self.path}' belongs to another fit (other data, "
                    "hyper-parameters or validation); remove it or name another file."
                )
            state = _state(metadata, arrays, start.tables, names)
            if state.epoch > epochs or (seeded and state.seed != start.seed):
                raise ValueError("it has another seed or too many epochs")
        return state


@contextmanager
def _consistent(path: str) -> Iterator[None]:
    """Whatever is wrong with the parts of a checkpoint ends in one sentence."""
    try:
        yield
    except InputError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise InputError(f"the checkpoint '{path}' is inconsistent ({first_line(error)}); remove it.") from error


class Leftover(NamedTuple):
    """The checkpoint of a finished fit, to be removed when the model is safely in a file of its own."""

    path: Path
    identity: tuple[int, int, int]

    @classmethod
    def of(cls, path: str | os.PathLike[str]) -> Leftover:
        target = Path(path).resolve()
        return cls(target, _identity(target))

    def remove(self) -> None:
        """Remove the file unless another fit has replaced it meanwhile."""
        if self.path.exists() and _identity(self.path) == self.identity:
            self.path.unlink(missing_ok=True)


def _identity(path: Path) -> tuple[int, int, int]:
    status = path.stat()
    return status.st_ino, status.st_mtime_ns, status.st_size


def _state(metadata: Mapping[str, Any], arrays: storage.Arrays, like: Factors, metrics: Sequence[str]) -> State:
    seed, epoch, best_epoch, worse = (_count(metadata[name]) for name in ("seed", "epoch", "best_epoch", "worse"))
    history = [_record(entry, metrics) for entry in metadata["history"]]
    if [record.epoch for record in history] != list(range(1, epoch + 1)):
        raise ValueError("its history does not lead to its epoch")
    if best_epoch and not history[min(best_epoch, epoch) - 1].metrics:
        raise ValueError("its best epoch was not measured")
    if best_epoch + worse > epoch or math.isfinite(metadata["best"]) != (best_epoch > 0):
        raise ValueError("its best epoch does not fit its history")
    averaged = _count(metadata.get("averaged", 0))
    if averaged > epoch:
        raise ValueError("its average has more epochs than its history")
    stored = {"": True, "best_": best_epoch > 0, "average_": averaged > 0}
    prefixes = [prefix for prefix, there in stored.items() if there]
    shapes = {"users": like.users.shape, "items": like.items.shape}
    schema = {prefix + name: Array("float32", shape) for prefix in prefixes for name, shape in shapes.items()}
    check_arrays(arrays, schema, {})
    tables = {prefix: Factors(*(copied(arrays[prefix + name]) for name in shapes)) for prefix in prefixes}
    return State(
        seed=seed, tables=tables[""], epoch=epoch, best=float(metadata["best"]), best_epoch=best_epoch,
        best_tables=tables.get("best_"), worse=worse, history=history,
        average=tables.get("average_"), averaged=averaged, pilot=_pilot(metadata, metrics),
    )  # fmt: skip


def _pilot(metadata: Mapping[str, Any], metrics: Sequence[str]) -> list[Record]:
    records = [_record(entry, metrics) for entry in metadata.get("pilot", [])]
    if [record.epoch for record in records] != list(range(1, len(records) + 1)):
        raise ValueError("the history of its pilot has gaps")
    return records


def _record(entry: Mapping[str, Any], names: Sequence[str]) -> Record:
    metrics, loss = dict(entry["metrics"]), entry["loss"]
    if metrics and list(metrics) != list(names):
        raise ValueError("its history has other metrics")
    if not all(isinstance(number, float) and math.isfinite(number) for number in (loss, *metrics.values())):
        raise ValueError("its history has a loss or a metric that is not a number")
    return Record(_count(entry["epoch"]), loss, _count(entry["updates"]), metrics)


def _count(number: Any) -> int:
    if type(number) is not int or not 0 <= number < 2**63:
        raise ValueError(f"{show(number)} is not a count")
    return number


def copied(table: Float32s) -> Float32s:
    """A copy with the alignment that the kernels need."""
    copy = factor_table(*table.shape)
    copy[:] = table
    return copy
