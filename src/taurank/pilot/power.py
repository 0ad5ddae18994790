"""How many users and weeks, with which share of randomized slots, would detect an effect of a given size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.stats import norm

from taurank._checks import check_integer, check_number
from taurank.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

TINY = 1e-300  # in place of 0, to divide by
SHARES = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


def power(
    *,
    effect: float | None = None,
    users: float | None = None,
    weeks: float | None = None,
    randomized: float | None = None,
    items: int,
    bought_anyway: float,
    slots: int = 10,
    visits: float = 1.0,
    level: float = 0.95,
    chance: float = 0.8,
) -> ExperimentDesign:
    """Design an experiment with randomized slots; the one of its four sizes that is None is computed.

    A ranking's item is shown with P = randomized · slots / items at least. Without being shown it is bought at the
    rate b = bought_anyway / slots, shown at a = b + effect / slots. The IPS estimate of one week of one user has the
    variance V = slots · (a / P + b / (1 − P) − (a − b)²), so that n = (z(level) + z(chance))² · V / effect² weeks
    with a visit are needed, n = users · weeks · visits. Different weeks of a user count as independent.

    Parameters
    ----------
    effect : what is to be detected: extra purchases of a user in a week with a visit, if a ranking's first ``slots``
        items are shown
    users, weeks : how many users, for how many weeks
    randomized : the probability with which a slot is randomized, and shows one of the candidates at random
    items : the number of candidates
    bought_anyway : how many of the ``slots`` items a user buys in such a week without being shown them
    slots : how many items are shown
    visits : the share of weeks in which a user visits
    level : the effect is detected if its interval at this level does not contain 0
    chance : the probability of that

    Examples
    --------
    >>> design = power(effect=0.1, users=5000, randomized=0.1, items=200, bought_anyway=0.2)
    >>> round(design.weeks, 1)
    9.5
    """
    sizes = {"effect": effect, "users": users, "weeks": weeks, "randomized": randomized}
    unknown = [name for name, value in sizes.items() if value is None]
    if len(unknown) != 1:
        raise InputError(
            f"give three of effect, users, weeks and randomized, the fourth is computed; got {4 - len(unknown)}."
        )
    check_integer("slots", slots)
    check_integer("items", items, slots)
    known = {name: 1.0 if value is None else float(value) for name, value in sizes.items()}
    for name, value in known.items():
        check_number(name, value, 0.0, {"randomized": 1.0, "effect": slots}.get(name, np.inf))
        if not value:
            raise InputError(f"{name} must be a positive number, got {value}.")
    check_number("bought_anyway", bought_anyway, 0.0, slots)
    for name, share in (("visits", visits), ("level", level), ("chance", chance)):
        check_number(name, share, 0.0, 1.0)
        if share in (0.0, 1.0) and (name, share) != ("visits", 1.0):
            raise InputError(f"{name} must be between 0 and 1, got {share}.")
    design = ExperimentDesign(
        **known, items=items, bought_anyway=bought_anyway, slots=slots, visits=visits, level=level, chance=chance
    )
    solved: dict[str, Any] = {unknown[0]: _solved(design, unknown[0])}
    return replace(design, **solved)


@dataclass(frozen=True)
class ExperimentDesign:
    """An experiment: its sizes, and what it detects. ``print`` says it in a sentence."""

    effect: float
    users: float
    weeks: float
    randomized: float
    items: int
    bought_anyway: float
    slots: int
    visits: float
    level: float
    chance: float

    @property
    def propensity(self) -> float:
        """The smallest chance of a ranking's item to be shown."""
        return min(self.randomized * self.slots / self.items, 1.0)

    @property
    def variance(self) -> float:
        """V, of the estimate from one week of one user."""
        anyway, gain, p = self.bought_anyway / self.slots, self.effect / self.slots, self.propensity
        return float(self.slots * ((anyway + gain) / p + anyway / max(1.0 - p, TINY) - gain**2))

    @property
    def needed(self) -> float:
        """n, the weeks with a visit that the effect needs."""
        return self.z**2 * self.variance / self.effect**2

    @property
    def z(self) -> float:
        return float(norm.ppf(0.5 + self.level / 2) + norm.ppf(self.chance))

    def table(self, randomized: Sequence[float] = SHARES) -> pd.DataFrame:
        """The weeks that these users need, for several shares of randomized slots."""
        import pandas as pd

        designs = [replace(self, randomized=share) for share in randomized]
        rows = [{"randomized": p.randomized, "users": p.users, "weeks": _solved(p, "weeks")} for p in designs]
        return pd.DataFrame(rows)

    def __str__(self) -> str:
        share = f"{100 * self.randomized:.3g}% of the slots"
        weeks = f"{np.ceil(self.weeks):,.0f}" if self.weeks < 1e6 else "more than a million"
        return (
            f"{np.ceil(self.users):,.0f} users in {weeks} weeks, with {share} randomized over "
            f"{self.items:,} items, detect an effect of {self.effect:.3g} extra purchases per user and week with a "
            f"probability of {self.chance:.0%} (interval at {self.level:.0%})."
        )


def _solved(design: ExperimentDesign, name: str) -> float:
    """The smallest value of one size with which the experiment is large enough: needed = users · weeks · visits.

    In the effect and in P that is a quadratic equation each, whose coefficients are below.
    """
    d, slots = design, design.slots
    if name in ("weeks", "users"):
        return d.needed / (d.visits * (d.users if name == "weeks" else d.weeks))
    anyway, given = d.bought_anyway / slots, d.users * d.weeks * d.visits / d.z**2
    if name == "effect":
        p, square = d.propensity, given + 1.0 / slots
        linear, constant = 1.0 / p, slots * (anyway / p + anyway / max(1.0 - p, TINY))
        effect = (linear + np.sqrt(linear**2 + 4.0 * square * constant)) / (2.0 * square)
        if not effect <= slots:
            raise InputError("no effect is large enough for an experiment of this size; take more users or slots.")
        return float(effect)
    gain = d.effect / slots
    square = given * d.effect**2 / slots + gain**2
    linear = square + gain
    root = linear**2 - 4.0 * square * (anyway + gain)
    randomized = (linear - np.sqrt(root)) / (2.0 * square) * d.items / slots if root >= 0.0 else np.inf
    if randomized > 1.0:
        raise InputError("no share of randomized slots is enough; take more users or weeks, or a larger effect.")
    return float(randomized)
