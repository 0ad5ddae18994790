"""Logs that no single machine holds: what learners, estimators and metrics ask of them.

``taurank.cluster`` implements it: that room is above the rooms that use these classes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from taurank._types import Codes, Longs
from taurank.data.ids import WithCatalog

if TYPE_CHECKING:
    from taurank.data.log import Log


class RemoteLog(WithCatalog, ABC):
    """A log whose rows are read where they are needed."""

    popularity: Longs
    fingerprint: str

    @abstractmethod
    def fit(self, learner: Any, options: Any) -> list[Any]:
        """Fit a learner to this log; returns the records of its epochs."""

    @abstractmethod
    def prepare(self, learner: Any) -> Any:
        """``FactorLearner.prepare``: the ``Epoch`` of factors that stay where the rows are."""

    @abstractmethod
    def rows_of(self, users: Codes) -> Log:
        """The rows of some users, by their positions in order, as a log in this process."""

    @abstractmethod
    def estimate(self, estimator: str, options: Mapping[str, Any]) -> RemoteGains:
        """The gains that a function of ``taurank.gains`` makes of this log, computed when they are needed."""


class RemoteGains(ABC):
    name: str
    fingerprint: str  # of the log, the estimator and its options
    log_fingerprint: str

    @property
    @abstractmethod
    def user(self) -> Codes:
        """The users that have any."""

    @abstractmethod
    def measurement(self, metrics: Any, unlisted: Any, users: Any) -> Any:
        """What rankers are measured by: the ``Measurement`` of ``taurank.evaluate``."""
