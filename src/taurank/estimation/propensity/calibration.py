"""Do propensities fit? Sums of weights over the cells of a log, of its users, items and pairs.

Over the treated cells of *any* set of cells Σ 1/P is, on average, their number. So propensities can be right for
every user, item and time and wrong for every pair: exposure is autocorrelated within a pair, and cells are told apart
by how often their pair was shown *before* their time, which the log records. It needs P at treated rows only, so that
it serves recorded and estimated propensities alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from taurank._checks import check_instance, generator
from taurank._types import Codes, Floats, Longs, Mask
from taurank.data.features import Features
from taurank.data.log import Log
from taurank.errors import InputError
from taurank.estimation.propensity.cells import MAX_CELLS, PairHistory
from taurank.estimation.propensity.shares import Categories

TINY = 1e-100  # smaller propensities count as this one in sums, whose squares stay finite then
Z_LIMIT = 3.0  # z-score above which a difference counts
ENOUGH = 50  # treated cells a user, an item or a stratum needs for a check of its own
RATIO_SLACK = 0.05  # a sum of weights this close to the number of cells is close enough
PAIR_SLACK = 0.25  # the same within a stratum of pairs
MARGIN_SLACK = 0.1  # and for a single user or item
PAST = ("not shown before", "shown once before", "shown twice or more before")


@dataclass(frozen=True, eq=False)
class Scope:
    """The cells whose propensities are checked: the eligible ones, or those in the categories of their user.

    Where a shop shows each user some categories only, nothing can be shown outside them, and no weight stands for it.
    """

    log: Log
    categories: Features | None = None

    @cached_property
    def own(self) -> Categories | None:
        if self.categories is None:
            return None
        check_instance("categories", self.categories, Features, "taurank.Features(items=…, categories=…)")
        given = self.categories.user_categories(self.log.users, self.log.items)
        if given is None:
            raise InputError("the features need a table of categories: taurank.Features(items=…, categories=…).")
        return Categories(self.log.n_users, given)

    def contains(self, user: Any, item: Any, time: Any) -> Mask:
        """Which cells, given as positions, are checked."""
        eligible = self.log.eligibility.contains(user, item, time)
        return eligible if self.own is None else eligible & (self.own.entry(user, item) >= 0)

    @cached_property
    def cells_by(self) -> tuple[Longs, Longs, Longs]:
        """How many cells each user, item and time has."""
        eligible, own = self.log.eligibility, self.own
        if own is None:
            return eligible.cells_by_user, eligible.cells_by_item, eligible.cells_by_time
        users, items, times = (np.zeros(n, np.int64) for n in eligible.shape)
        if eligible.listed is not None:
            cells = eligible.cell(np.arange(eligible.cells))
            inside = own.entry(*cells[:2]) >= 0
            for counts, codes in zip((users, items, times), cells, strict=True):
                counts += np.bincount(codes[inside], minlength=len(counts))
            return users, items, times
        for time in range(len(times)):  # one after the other: nothing has the size times × items
            visits = eligible.visitors.contains(np.arange(len(users)), time)
            open_now = eligible.candidates.contains(np.arange(len(items)), time)
            entries = visits[own.user] * own.of_items(open_now.astype(np.float64))[own.category]
            users += own.by_user(entries).astype(np.int64)
            items += np.bincount(own.category[visits[own.user]], minlength=own.count)[own.item] * open_now
            times[time] = entries.sum()
        return users, items, times


@dataclass(frozen=True)
class Total:
    """Σ 1/P over the treated rows of some cells, per cell: 1 up to its standard error if P is right."""

    name: str
    cells: float
    rows: int
    ratio: float
    error: float

    @classmethod
    def of(cls, name: str, cells: float, propensity: Floats) -> Total:
        """The variance Σ_cells (1−P)/P is estimated by Σ_treated (1−P)/P²."""
        p, n = np.maximum(propensity, TINY), max(cells, 1)
        error = float(np.sqrt(((1.0 - p) / p**2).sum())) / n
        return cls(name, cells, len(p), float((1.0 / p).sum()) / n, error)

    @property
    def z(self) -> float:
        """How many standard errors the ratio is away from 1."""
        return (self.ratio - 1.0) / self.error if self.error > 0 else 0.0

    def is_far(self, slack: float = RATIO_SLACK) -> bool:
        """More than ``slack`` and Z_LIMIT standard errors away from 1."""
        return abs(self.z) > Z_LIMIT and abs(self.ratio - 1) > slack


@dataclass(frozen=True)
class PairCalibration:
    """Whether propensities fit pairs: the cells by how often their pair was shown before; none for a single time."""

    strata: tuple[Total, ...]

    @property
    def identified(self) -> bool:
        """Whether enough pairs were shown at more than one time."""
        return any(stratum.rows >= ENOUGH for stratum in self.strata[1:])

    @property
    def failing(self) -> tuple[Total, ...]:
        """The strata with a past that are far off."""
        return tuple(one for one in self.strata[1:] if one.rows >= ENOUGH and one.is_far(PAIR_SLACK))

    @property
    def holds(self) -> bool:
        """Whether no stratum with a past is far off; True where the log cannot say (see ``identified``)."""
        return not self.failing

    @property
    def sentence(self) -> str:
        """What was found, in one sentence."""
        if not self.identified:
            return "Pair-level calibration cannot be checked: too few pairs were shown at more than one time."
        worst = max(self.failing or self.strata[1:], key=lambda one: abs(np.log(max(one.ratio, TINY))))
        return (
            f"Pair-level calibration {'holds' if self.holds else 'fails'}: pairs {worst.name} were shown "
            f"{worst.ratio:.2f} times as often as their propensities say."
        )


def pair_calibration(log: Log, categories: Features | None = None) -> PairCalibration:
    """Check the propensities of a log pair by pair.

    Over the treated cells of any set of cells Σ 1/P is, on average, their number: here of the cells whose pair was
    not shown before, once, or more often.

    With ``categories``, of the pairs that could be shown by these features.

    Examples
    --------
    >>> import taurank as tr
    >>> log = tr.World.synthetic(200, 20, random_state=0).sample(4, random_state=1).log
    >>> pair_calibration(log).holds
    True
    """
    check_instance("log", log, Log, "Log.from_frame or Log.read")
    scope, treated = Scope(log, categories), np.flatnonzero(log.treated)
    p = log.recorded_propensity("pair_calibration")[treated]
    if log.n_times == 1 or log.catalog.n_cells >= 2**63:
        return PairCalibration(())
    shown = PairHistory.from_rows(log, log.treated == 1)

    def stratum(user: Any, item: Any, time: Any) -> Longs:
        """0, 1 or 2 by how often the pair was shown; −1 outside the scope or without a past."""
        past = np.minimum(shown.before(user, item, time)[0], len(PAST) - 1)
        return np.where((time == 0) | ~scope.contains(user, item, time), -1, past)

    # the cells with a past are counted, or estimated from a million of them
    later = shown.n_later_cells
    number = np.arange(later) if later <= MAX_CELLS else generator(0).integers(0, later, MAX_CELLS)
    past = stratum(*shown.later_cells(number))
    cells = np.bincount(past + 1, minlength=len(PAST) + 1)[1:] * (later / max(len(number), 1))
    cells[0] = float(scope.cells_by[2][1:].sum()) - cells[1:].sum()
    own = stratum(log.user[treated], log.item[treated], log.time[treated])
    return PairCalibration(tuple(Total.of(name, float(cells[k]), p[own == k]) for k, name in enumerate(PAST)))


@dataclass(frozen=True)
class Margin:
    """The same sum for each user, or each item, with enough treated cells: how many are far from 1."""

    checked: int
    far: int  # more than Z_LIMIT standard errors and MARGIN_SLACK away

    @property
    def far_share(self) -> float:
        return self.far / self.checked if self.checked else float("nan")


def margin(code: Codes, cells: Longs, propensity: Floats) -> Margin:
    """For how many users or items Σ 1/P over their treated cells is far from the number of their cells."""
    p = np.maximum(propensity, TINY)
    count, total, variance = (np.bincount(code, x, len(cells)) for x in (np.ones_like(p), 1.0 / p, (1.0 - p) / p**2))
    enough = count >= ENOUGH
    gap = np.abs(total - cells)
    far = enough & (gap > Z_LIMIT * np.sqrt(variance)) & (gap > MARGIN_SLACK * cells)
    return Margin(int(np.count_nonzero(enough)), int(np.count_nonzero(far)))
