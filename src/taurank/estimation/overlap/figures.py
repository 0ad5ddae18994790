"""What was measured on a log: plain figures, without words.

Sums, shares and counts of a diagnosis. Findings, text, charts and page are made from these figures alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from taurank.estimation.propensities.calibration import PairStratum

Z_LIMIT = 3.0  # z-score above which a difference counts
ENOUGH_TREATED = 50  # treated cells a user or item needs for a check of its own
HISTOGRAM_EDGES = tuple(np.linspace(-6.0, 6.0, 49).tolist())  # log10 of the odds of P


@dataclass(frozen=True)
class Arm:
    """The purchases (outcome = 1) of one arm, weighted by w = 1/P if treated, 1/(1−P) if not."""

    name: str
    purchases: int
    effective: float  # Kish: (Σw)² / Σw²
    always: int  # purchases with P ≥ 1 − NEAR
    never: int  # purchases with P ≤ NEAR
    near_weight: float  # share of the weight of the purchases with P within NEAR of 0 or 1
    largest_weight: float
    histogram: tuple[int, ...]  # purchases between the HISTOGRAM_EDGES
    curve: tuple[float, ...]  # share of the weight that the heaviest 0 %, 1 %, … 100 % carry

    @property
    def near_share(self) -> float:
        """Share of the purchases with P within NEAR of 0 or 1."""
        return (self.always + self.never) / self.purchases if self.purchases else 0.0


@dataclass(frozen=True)
class Total:
    """A sum of weights divided by the number of cells: 1 up to its standard error if P is right."""

    cells: int
    ratio: float
    error: float

    @property
    def z(self) -> float:
        """How many standard errors the ratio is away from 1."""
        return (self.ratio - 1.0) / self.error if self.error > 0 else 0.0


@dataclass(frozen=True)
class Margin:
    """The same sum for each user, or each item, with enough treated cells: how many are far from 1."""

    name: str
    checked: int
    far: int  # more than Z_LIMIT standard errors away

    @property
    def far_share(self) -> float:
        return self.far / self.checked if self.checked else float("nan")


@dataclass(frozen=True)
class Bin:
    """Cells with like propensities: their mean propensity against the share of them that was treated."""

    low: float
    high: float
    cells: int
    propensity: float
    treated: float
    error: float

    @property
    def z(self) -> float:
        """How many standard errors the share treated is away from the mean propensity."""
        return (self.treated - self.propensity) / self.error if self.error > 0 else 0.0


@dataclass(frozen=True)
class Figures:
    """Everything that was measured; ``control_total`` and ``bins`` are None where the log does not identify them."""

    n_rows: int
    n_users: int
    n_items: int
    n_times: int
    n_treated: int
    treated: Arm
    control: Arm
    smallest_treated: float  # the smallest propensity of a treated cell; 1 if there is none
    treated_total: Total
    users: Margin
    items: Margin
    control_total: Total | None
    bins: tuple[Bin, ...] | None
    pairs: tuple[PairStratum, ...]  # by past exposures of the pair; none for a log with a single time

    @property
    def n_cells(self) -> int:
        """The cells that could have been recommended."""
        return self.treated_total.cells

    @property
    def n_purchases(self) -> int:
        return self.treated.purchases + self.control.purchases

    @property
    def always_share(self) -> float:
        """Share of all purchases that were of items this user is always shown (P ≥ 1 − NEAR)."""
        return (self.treated.always + self.control.always) / max(self.n_purchases, 1)

    @property
    def never_share(self) -> float:
        """Share of all purchases that were of items this user is almost never shown (P ≤ NEAR)."""
        return (self.treated.never + self.control.never) / max(self.n_purchases, 1)

    @property
    def smallest_chance(self) -> float:
        """At most so likely is a treated cell with a propensity as small as the smallest one (union bound)."""
        return min(self.smallest_treated * self.n_cells, 1.0)
