"""Logs that no single machine holds: what a learner, an estimator and a metric ask of them.

The room that implements them (``taurank.cluster``) is above the rooms that use them, so these classes are where the
two meet.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from taurank.data.ids import WithCatalog


class RemoteLog(WithCatalog, ABC):
    """A log whose rows are read where they are needed."""

    popularity: npt.NDArray[np.int64]
    fingerprint: str

    @abstractmethod
    def fit(self, learner: Any, options: Any) -> list[Any]:
        """Fit a learner to this log; returns the records of its epochs."""

    @abstractmethod
    def estimate(self, estimator: str, options: Mapping[str, Any]) -> RemoteGains:
        """The gains that a function of ``taurank.gains`` makes of this log, computed when they are needed."""


class RemoteGains(ABC):
    """Gains of a remote log."""

    name: str
    log_fingerprint: str
    chosen: npt.NDArray[np.int32] | None = None  # users to measure, positions in the catalog; None: all

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """Identifies the gains: the log, the estimator and its options."""

    @abstractmethod
    def measurement(self, metrics: Any, unlisted: Any) -> Any:
        """What rankers are measured by: the ``Measurement`` of ``taurank.evaluate``."""


class Engine(Protocol):
    """Machines that write recommendations together."""

    def write_recommendations(self, request: Any, folder: Any, users: Any) -> int: ...


_engines: list[Engine] = []


def engine() -> Engine | None:
    """The cluster this process is connected to, if it is."""
    return _engines[-1] if _engines else None


def set_engine(new: Engine | None) -> None:
    """Connected, or no longer."""
    _engines[:] = [] if new is None else [new]
