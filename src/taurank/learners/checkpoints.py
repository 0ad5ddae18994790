"""The state of a fit, and the file it is kept in while the fit runs."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from taurank.data import archive
from taurank.data.cell_table import CellTable
from taurank.data.files import check_target
from taurank.data.fingerprint import fingerprint
from taurank.errors import InputError
from taurank.learners.schema import Array, check_arrays
from taurank.sgd.scheduler import Factors, factor_table

Floats = npt.NDArray[np.float32]


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

    @property
    def result(self) -> Factors:
        """The factors of the best epoch; of the last one without validation."""
        return self.best_tables or self.tables


@dataclass(frozen=True)
class Checkpoint:
    """A file that holds the state of one fit. ``mark`` identifies the fit: learner, options and data."""

    path: Path
    mark: str

    @classmethod
    def of(cls, path: str | os.PathLike[str], question: object, data: Sequence[CellTable]) -> Checkpoint:
        target = check_target(path)
        return cls(target, hashlib.blake2b(f"{question!r} {fingerprint(*data)}".encode(), digest_size=16).hexdigest())

    def write(self, state: State) -> None:
        arrays = {"users": state.tables.users, "items": state.tables.items}
        if state.best_tables:
            arrays |= {"best_users": state.best_tables.users, "best_items": state.best_tables.items}
        facts = {
            "mark": self.mark, "seed": state.seed, "epoch": state.epoch, "best": state.best,
            "best_epoch": state.best_epoch, "worse": state.worse, "history": [asdict(r) for r in state.history],
        }  # fmt: skip
        archive.write(self.path, "checkpoint", facts, arrays)

    def read(self, start: State, epochs: int, seeded: bool) -> State:
        """The state in the file, of a fit that began with ``start`` (by the same seed if it was ``seeded``)."""
        facts, arrays = archive.read(self.path, "checkpoint")
        if facts.get("mark") != self.mark:
            raise InputError(
                f"the checkpoint '{self.path}' belongs to another fit (other data, "
                "hyper-parameters or validation); remove it or name another file."
            )
        try:
            state = _state(facts, arrays, start.tables, epochs)
            if seeded and state.seed != start.seed:
                raise ValueError("it has another seed")
            return state
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(f"the checkpoint '{self.path}' is inconsistent ({error}); remove it.") from error


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


def _state(facts: Mapping[str, Any], arrays: archive.Arrays, like: Factors, epochs: int) -> State:
    has_best = facts["best_epoch"] > 0
    names = ("users", "items", "best_users", "best_items") if has_best else ("users", "items")
    shapes = dict(zip(names, (like.users.shape, like.items.shape) * 2, strict=False))
    check_arrays(arrays, {name: Array("float32", shape) for name, shape in shapes.items()}, {})
    history = [_record(entry) for entry in facts["history"]]
    numbers = [facts[name] for name in ("seed", "epoch", "best_epoch", "worse")]
    if any(type(number) is not int or number < 0 for number in numbers) or facts["seed"] >= 2**63:
        raise ValueError("its counters are not integers ≥ 0")
    if [record.epoch for record in history] != list(range(1, facts["epoch"] + 1)) or facts["epoch"] > epochs:
        raise ValueError("its history does not lead to its epoch")
    if facts["best_epoch"] + facts["worse"] > facts["epoch"] or math.isfinite(facts["best"]) != has_best:
        raise ValueError("its best epoch does not fit its history")
    tables = [copied(arrays[name]) for name in names]
    best = Factors(*tables[2:]) if has_best else None
    return State(
        seed=facts["seed"], tables=Factors(*tables[:2]), epoch=facts["epoch"], best=float(facts["best"]),
        best_epoch=facts["best_epoch"], best_tables=best, worse=facts["worse"], history=history,
    )  # fmt: skip


def _record(entry: Mapping[str, Any]) -> Record:
    metrics = {str(name): float(value) for name, value in entry["metrics"].items()}
    record = Record(int(entry["epoch"]), float(entry["loss"]), int(entry["updates"]), metrics)
    if not math.isfinite(record.loss) or record.updates < 0:
        raise ValueError("its history has an impossible loss or number of updates")
    return record


def copied(table: Floats) -> Floats:
    """A copy with the alignment that the kernels need."""
    copy = factor_table(*table.shape)
    copy[:] = table
    return copy
