"""Logs that no single machine holds: what learners, estimators and metrics ask of them.

The room that implements them (``taurank.cluster``) is above the rooms that use them, so these classes are where the
two meet.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

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
    def prepare(self, learner: Any) -> Any:
        """The ``Epoch`` of a learner that trains factors, which stay where the rows are."""

    @abstractmethod
    def hold_out(self, by_outcome: bool) -> Any:
        """As ``taurank.learners.holdout.hold_out``."""

    @abstractmethod
    def estimate(self, estimator: str, options: Mapping[str, Any]) -> RemoteGains:
        """The gains that a function of ``taurank.gains`` makes of this log, computed when they are needed."""


class RemoteGains(ABC):
    """Gains of a remote log."""

    name: str
    fingerprint: str  # of the log, the estimator and its options
    log_fingerprint: str

    @property
    @abstractmethod
    def user(self) -> npt.NDArray[np.int32]:
        """The users that have gains."""

    @abstractmethod
    def measurement(self, metrics: Any, unlisted: Any, users: Any) -> Any:
        """What rankers are measured by: the ``Measurement`` of ``taurank.evaluate``."""
