"""Long fits: every metric is measured after the number of updates that is given for it.

One run serves all metrics with the same steps. What was measured on the way is written at once, and a fit that was
killed continues from its checkpoint.
"""

from __future__ import annotations

import json
import math
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from taurank.data.files import atomic_path
from taurank.learners import Learner, Record, learner_class
from taurank_paper.plan.names import causal
from taurank_paper.runs.fits import MODEL_METRIC, FitResult, FitSpec, Value, curve_of, weeks_of
from taurank_paper.runs.splits import Split, fit_seed


def long_fit(spec: FitSpec, split: Split, threads: int | None, stem: Path) -> FitResult:
    """Make a fit with snapshots; the files beside ``stem`` hold its state, and a model if one is wanted."""
    split.draw()
    learner = learner_class(spec.method)(**dict(spec.settings), random_state=fit_seed(spec.dataset))
    rhythm = Rhythm.of(spec, learner.updates_per_epoch(split.train))
    learner.set_params(epochs=rhythm.epochs, threads=threads)
    checkpoint, notes = stem.with_suffix(".checkpoint"), stem.with_suffix(".part")
    snapshots = Snapshots(spec, split, rhythm, threads, notes, stem.with_suffix(".model"))
    if not snapshots.begun:
        checkpoint.unlink(missing_ok=True)
    names = list(dict.fromkeys(causal(name) for name in spec.metrics))
    learner.fit(
        split.train, split.validation, metric=names, patience=None, validate_every=rhythm.every,
        show_progress=False, checkpoint=checkpoint, callback=snapshots.check,
    )  # fmt: skip
    if missing := snapshots.missing():
        checkpoint.unlink()
        notes.unlink(missing_ok=True)
        raise RuntimeError(f"{spec} was killed while {', '.join(missing)} was measured; run it again.")
    values = {name: snapshots.values[name] for name in spec.metrics}
    curve = curve_of(learner, rhythm.per_epoch)
    checkpoint.unlink()
    notes.unlink()
    return FitResult(dict(spec.settings), snapshots.seconds, rhythm.epochs * rhythm.per_epoch, values, curve)


@dataclass(frozen=True)
class Rhythm:
    """Epochs between two checks, and in all; ``unit`` is the number of updates that a check stands for."""

    per_epoch: int
    unit: int
    every: int
    epochs: int

    @classmethod
    def of(cls, spec: FitSpec, per_epoch: int) -> Rhythm:
        """A check at every snapshot, and at least as many as the spec wants."""
        wanted = [updates for _, updates in spec.snapshots]
        common = math.gcd(*wanted)
        unit = common // math.ceil(spec.validations * common / max(wanted))
        every = max(1, round(unit / per_epoch))
        return cls(per_epoch, unit, every, every * round(max(wanted) / unit))

    def epoch(self, updates: int) -> int:
        """The epoch after which a metric with so many updates is measured."""
        return self.every * round(updates / self.unit)


class Snapshots:
    """Measures metrics on the test weeks when their epoch has come, and notes them in a file."""

    def __init__(
        self, spec: FitSpec, split: Split, rhythm: Rhythm, threads: int | None, notes: Path, model: Path
    ) -> None:
        self.spec, self.split, self.rhythm, self.threads = spec, split, rhythm, threads
        self.notes, self.model = notes, model
        self.values: dict[str, Value] = {}
        self.seconds, self._clock = 0.0, time.perf_counter()
        self.begun = self._read()

    def check(self, learner: Learner, record: Record) -> None:
        """After a check: measure the metrics that are due."""
        due = [name for name in self.spec.metrics if self._epoch(name) == record.epoch]
        updates = record.epoch * self.rhythm.per_epoch
        for name, weeks in weeks_of(learner, self.split, due, self.threads).items() if due else ():
            self.values[name] = Value(weeks, record.metrics[causal(name)], updates)
        if self.spec.keep_model and self._epoch(MODEL_METRIC) == record.epoch:
            learner.save(self.model)
        self._write()

    def missing(self) -> list[str]:
        """Metrics that were not measured."""
        return [name for name in self.spec.metrics if name not in self.values]

    def _epoch(self, metric: str) -> int:
        """A metric without a number of updates of its own is measured at the end."""
        return self.rhythm.epoch(dict(self.spec.snapshots).get(causal(metric), self.spec.updates))

    def _read(self) -> bool:
        try:
            noted = json.loads(self.notes.read_text(encoding="utf-8"))
            self.values = {name: _value(value) for name, value in noted["values"].items()}
            self.seconds = float(noted["seconds"])
            return True
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return False

    def _write(self) -> None:
        now = time.perf_counter()
        self.seconds, self._clock = self.seconds + now - self._clock, now
        content = {"seconds": self.seconds, "values": {name: asdict(value) for name, value in self.values.items()}}
        with atomic_path(self.notes) as path:
            path.write_text(json.dumps(content), encoding="utf-8")


def _value(saved: dict[str, Any]) -> Value:
    return Value(tuple(saved["weeks"]), saved["validation"], saved["updates"])
