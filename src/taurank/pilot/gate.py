"""The gate before any training: do the propensities fit what was shown?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from taurank._types import Longs
from taurank.data.features import Features
from taurank.data.log import Log
from taurank.report.diagnosis import diagnose


@dataclass(frozen=True)
class Gate:
    """``level`` is "good", "caution" or "poor", which refuses; ``sentence`` says why."""

    level: str
    sentence: str

    @property
    def refuses(self) -> bool:
        return self.level == "poor"


def check_gate(log: Log, categories: Features | None) -> Gate:
    """The verdict of ``diagnose``, over the users' categories where they are known."""
    diagnosis = diagnose(log, categories=categories)
    return Gate(diagnosis.level, diagnosis.verdict)


def visits_of(log: Log) -> Longs:
    """At how many times each user could be shown something."""
    return log.eligibility.visits(np.ones(log.n_users, np.bool_))[0]
