"""What ``fit`` and ``update`` are asked to do, and the records they leave: one per epoch."""

from __future__ import annotations

import inspect
import os
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import KW_ONLY, asdict, dataclass, field
from functools import cached_property, wraps
from typing import TYPE_CHECKING, Any, ClassVar, Concatenate, Literal, ParamSpec, TypeVar

import numpy as np

from taurank._checks import Allowed, Range, check_instance, check_parameters
from taurank._types import Codes
from taurank.data.features import Features
from taurank.data.files import check_target, is_folder
from taurank.data.log import Log
from taurank.data.remote import RemoteGains
from taurank.errors import InputError, TrainingLogWarning, UnfinishedWarning
from taurank.estimation.gains import Gains
from taurank.evaluation.measurement import Measurement
from taurank.evaluation.metrics import Metric, parse
from taurank.evaluation.rankers import Ranker

if TYPE_CHECKING:
    import pandas as pd

Metrics = str | Metric | Sequence[str | Metric]
P = ParamSpec("P")
S = TypeVar("S")
Options = TypeVar("Options")

MIN_CHECKS = 8  # to tell that a curve is still rising
RISE, LATE = 0.01, 0.75  # "still improving": by 1% in the last quarter of the epochs


@dataclass(frozen=True)
class Record:
    """What one epoch did; ``metrics`` is empty where nothing was measured."""

    epoch: int
    loss: float
    updates: int
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class TrainingOptions:
    """The arguments of ``fit`` after the log; ``Learner.fit`` says what they mean."""

    validation: Gains | RemoteGains | Literal["auto"] | None = "auto"
    metric: Metrics = "CDCG"
    _: KW_ONLY
    patience: int | None = 10
    show_progress: bool | None = None
    checkpoint: str | os.PathLike[str] | None = None
    validate_every: int | None = None
    checkpoint_minutes: float = 5.0
    callback: Callable[[Any, Record], None] | None = None
    validation_users: int | None = None
    features: Features | None = None

    allowed: ClassVar[Allowed] = {
        **dict.fromkeys(("patience", "validate_every", "validation_users"), Range(1, integer=True, optional=True)),
        "checkpoint_minutes": Range(0),
    }

    def __post_init__(self) -> None:
        if self.validation is not None and not (self.chooses_length or isinstance(self.validation, RemoteGains)):
            check_instance("validation", self.validation, Gains, "taurank.gains, such as gains.capped_ips(log, cap)")
        check_parameters(self, self.allowed)
        if self.callback is not None and not callable(self.callback):
            raise InputError(f"callback must be a function of a learner and a record, got {self.callback!r}.")
        if self.features is not None:
            check_instance("features", self.features, Features, "taurank.Features(users=frame, items=frame)")
        if self.checkpoint is not None and not is_folder(self.checkpoint):  # a folder for a remote log
            check_target(self.checkpoint)
        _ = self.metrics  # parsed now, so that a wrong name is refused before the fit

    @property
    def chooses_length(self) -> bool:
        """Whether fits of several lengths are to be compared."""
        return isinstance(self.validation, str) and self.validation == "auto"

    @cached_property
    def metrics(self) -> tuple[Metric, ...]:
        """The first one decides about early stopping."""
        several = isinstance(self.metric, Iterable) and not isinstance(self.metric, (str, Metric))
        given: Any = self.metric if several else [self.metric]
        metrics = tuple(one if isinstance(one, Metric) else parse(one) for one in given)
        if not metrics:
            raise InputError("metric is empty; name at least one, such as CDCG.")
        return metrics

    @property
    def gains(self) -> Gains | RemoteGains | None:
        """What a check measures, if anything."""
        return None if isinstance(self.validation, str) else self.validation

    @cached_property
    def sample(self) -> Codes | None:
        """The users whose mean a check is; None: all."""
        users = np.empty(0) if self.gains is None else np.unique(self.gains.user)
        if self.validation_users is None or len(users) <= self.validation_users:
            return None
        return np.random.default_rng(np.random.SeedSequence(0)).choice(users, self.validation_users, replace=False)

    @cached_property
    def _measurement(self) -> Measurement | None:
        """What checks measure a learner by, prepared once."""
        return None if self.gains is None else Measurement.prepare(self.gains, list(self.metrics), users=self.sample)

    def measure(self, learner: Ranker, threads: int | None = None) -> dict[str, float]:
        """The validation metrics by name; empty without validation."""
        return {} if self._measurement is None else self._measurement.means(learner, threads)

    def merit(self, metrics: dict[str, float]) -> float:
        """The first metric, signed so that larger is better."""
        value = metrics[self.metrics[0].name]
        return value if self.metrics[0].larger_is_better else -value

    def warn_of_training_log(self, fingerprint: str | None) -> None:
        """Early stopping by the training log itself notices no overfitting."""
        if self.gains is not None and self.gains.log_fingerprint == fingerprint is not None:
            warnings.warn(
                "the validation gains come from the training log, so overfitting goes unnoticed; use another log.",
                TrainingLogWarning,
                stacklevel=4,
            )

    def warn_if_improving(self, name: str, records: Sequence[Record], epochs: int) -> None:
        """Warn if the last check is the best, and better by far than the checks well before the end."""
        checked = [(record.epoch, self.merit(record.metrics)) for record in records if record.metrics]
        if len(checked) < MIN_CHECKS or max(merit for _, merit in checked) > checked[-1][1]:
            return
        last_epoch, last = checked[-1]
        if last - max(merit for epoch, merit in checked if epoch <= LATE * last_epoch) > RISE * abs(last):
            warnings.warn(
                f"{name} was still improving by the validation's {self.metrics[0].name} when its {epochs} epochs "
                f"ended; try epochs={2 * epochs}, or a larger learning_rate.",
                UnfinishedWarning,
                stacklevel=6,
            )


@dataclass(frozen=True)
class UpdateOptions(TrainingOptions):
    """The arguments of ``update`` after the log: ``past`` and, by name, those of ``fit``."""

    validation: Gains | RemoteGains | Literal["auto"] | None = field(default=None, kw_only=True)
    metric: Metrics = field(default="CDCG", kw_only=True)
    past: Log | None = None
    epochs: int | None = field(default=None, kw_only=True)

    allowed: ClassVar[Allowed] = {**TrainingOptions.allowed, "epochs": Range(1, integer=True, optional=True)}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.chooses_length:
            raise InputError(
                "an update does not choose its length; give it the gains of another log as validation, or None."
            )
        if self.past is not None:
            check_instance("past", self.past, Log, "Log.read or Log.from_frame")


def takes(
    options: Callable[P, Options],
) -> Callable[[Callable[[S, Any, Options], S]], Callable[Concatenate[S, Any, P], S]]:
    """Give a method the fields of ``options`` as arguments after the log; it receives them as one object."""

    def decorate(method: Callable[[S, Any, Options], S]) -> Callable[Concatenate[S, Any, P], S]:
        @wraps(method)
        def call(self: S, log: Any, *args: P.args, **named: P.kwargs) -> S:
            return method(self, log, options(*args, **named))

        own = list(inspect.signature(method).parameters.values())[:2]
        shown = inspect.Signature([*own, *inspect.signature(options).parameters.values()])
        call.__signature__ = shown  # type: ignore[attr-defined]
        return call  # type: ignore[return-value]  # log has a name

    return decorate


def history_frame(records: Sequence[Record], metrics: Sequence[Metric]) -> pd.DataFrame:
    """``epoch, loss, updates`` and a column per metric that was measured, NaN in epochs without a check."""
    import pandas as pd

    frame = pd.DataFrame([asdict(record) for record in records], columns=["epoch", "loss", "updates"])
    frame = frame.astype({"epoch": np.int64, "loss": np.float64, "updates": np.int64})
    for name in (metric.name for metric in metrics if any(metric.name in record.metrics for record in records)):
        frame[name] = np.array([record.metrics.get(name, np.nan) for record in records], np.float64)
    return frame
