"""The gate before any estimate: do the propensities fit what was shown?

If they do, the sum of 1/P over the treated cells is, up to chance, the number of cells that could have been shown.
Where a shop shows each user some categories only, those are the cells within the user's categories; otherwise all
eligible ones, which ``taurank.diagnose`` checks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from taurank._types import Longs
from taurank.data.features import Features
from taurank.data.log import Log
from taurank.pilot.categories import own_categories
from taurank.report.diagnosis import diagnose

TOLERANCE = 0.1  # a sum may be off by this share
ERRORS = 4.0  # and by this many standard errors


@dataclass(frozen=True)
class Gate:
    """``level`` is "good", "caution" or "poor", which refuses; ``sentence`` says why."""

    level: str
    sentence: str

    @property
    def refuses(self) -> bool:
        return self.level == "poor"


def check_gate(log: Log, categories: Features | None) -> Gate:
    """The diagnosis' verdict, or, with categories, that of the cells within them."""
    if categories is None:
        diagnosis = diagnose(log)
        return Gate(diagnosis.level, diagnosis.verdict)
    own, category = own_categories(categories, log.users, log.items)
    rows = np.flatnonzero((log.treated == 1) & own[log.user, category[log.item]])
    weight = 1.0 / log.recorded_propensity("a pilot")[rows]
    size = own.astype(np.int64) @ np.bincount(category[log.eligibility.cells_by_item > 0], minlength=own.shape[1])
    cells = float(visits_of(log) @ size)
    ratio, error = weight.sum() / cells, np.sqrt((weight * (weight - 1.0)).sum()) / cells
    figures = f"the sum of 1/P over what was shown is {ratio:.3g} times the cells in the users' categories"
    if abs(ratio - 1.0) > TOLERANCE + ERRORS * error:
        return Gate("poor", f"the propensities do not fit: {figures}, and should be 1 (± {2 * error:.2g})")
    return Gate("good", f"The propensities fit: {figures} (± {2 * error:.2g}).")


def visits_of(log: Log) -> Longs:
    """At how many times each user could be shown something."""
    return log.eligibility.visits(np.ones(log.n_users, np.bool_))[0]
