"""Cells of a log: the propensities that a model has for them, the past of their pairs, and weighted draws.

Almost all cells have tiny propensities, and those that matter are few. So cells are drawn in three ways: evenly, by
what users are shown (a ``Proposal``), and among those whose pair has a past. A drawn cell has the weight
1 / (expected number of times it is drawn), by all three ways together (the balance heuristic of multiple importance
sampling): Σ_draws weight · g is an unbiased estimate of Σ_cells g for every g. A log with few cells is not sampled:
all its eligible cells have weight 1.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy.special import expit

from taurank._checks import check_positions
from taurank._types import Floats, Longs, Mask
from taurank.data.log import Log
from taurank.errors import InputError
from taurank.estimation.folds import Folds
from taurank.estimation.propensity.shares import CategoryShares, Mixture, inverse

if TYPE_CHECKING:
    pass

BOUND = 1e-6  # estimates are clipped to [BOUND, 1 − BOUND]
BLOCK = 1 << 17  # cells at a time
MAX_CELLS = 1_000_000  # up to this many cells, all of them are taken
EVEN, BY_PROPOSAL, BY_PAST = 200_000, 500_000, 300_000  # draws


@dataclass(frozen=True, eq=False)
class Model(ABC):
    """A fitted model of exposure: the propensity of any cell."""

    log: Log
    folds: Folds

    @abstractmethod
    def _log_odds(self, user: Longs, item: Longs, time: Longs) -> Floats:
        """The cross-fitted log-odds of a block of cells."""

    def __repr__(self) -> str:
        size = f"{self.log.n_users:,} users, {self.log.n_items:,} items, {self.log.n_times:,} times"
        return f"{type(self).__name__}({size}, {self.folds.count} folds)"

    def at(self, user: Any, item: Any, time: Any = 0) -> Floats:
        """The out-of-fold propensity of cells, in the log or not, given as positions in the catalog."""
        names, sizes = ("user", "item", "time"), self.log.eligibility.shape
        codes = [check_positions(*given) for given in zip(names, (user, item, time), sizes, strict=True)]
        try:
            codes = list(np.broadcast_arrays(*codes))
        except ValueError as error:
            raise InputError("user, item and time positions must have the same length.") from error
        flat = [code.reshape(-1) for code in codes]
        result = np.empty(len(flat[0]))
        for start in range(0, len(result), BLOCK):
            rows = slice(start, start + BLOCK)
            result[rows] = np.clip(expit(self._log_odds(*(code[rows] for code in flat))), BOUND, 1.0 - BOUND)
        return result.reshape(codes[0].shape)


@dataclass(frozen=True, eq=False)
class PairHistory:
    """When the pairs of a log had an event: sorted numbers (user · items + item) · times + time."""

    n_items: int
    n_times: int
    events: Longs

    @classmethod
    def from_rows(cls, log: Log, rows: Mask) -> PairHistory:
        """The history of the given rows of a log."""
        n_users, n_items, n_times = log.eligibility.shape
        if n_users * n_items * n_times >= 2**63:
            raise InputError("the past of pairs is limited to 2^63 combinations of user, item and time.")
        pair = log.user[rows].astype(np.int64) * n_items + log.item[rows]
        return cls(n_items, n_times, np.sort(pair * n_times + log.time[rows]))

    def before(self, user: Any, item: Any, time: Any) -> tuple[Longs, Longs]:
        """How many events each pair had before a time, and how long ago the last one was (0: never)."""
        first = (np.asarray(user, np.int64) * self.n_items + item) * self.n_times
        begin, end = (np.searchsorted(self.events, number) for number in (first, first + time))
        count = end - begin
        ago = np.zeros_like(count)
        some = count > 0
        ago[some] = (first + time)[some] - self.events[end[some] - 1]
        return count, ago

    @property
    def n_later_cells(self) -> int:
        """How many cells have a pair with an earlier event."""
        return int((self.n_times - 1 - self._first_events[1]).sum())

    def later_cells(self, number: Longs) -> tuple[Longs, Longs, Longs]:
        """The cells with an earlier event that have these numbers, 0 … ``n_later_cells`` − 1."""
        pair, first = self._first_events
        ends = np.cumsum(self.n_times - 1 - first)
        which = np.searchsorted(ends, number, side="right")
        user, item = np.divmod(pair[which], self.n_items)
        return user, item, self.n_times - (ends[which] - number)

    @property
    def _first_events(self) -> tuple[Longs, Longs]:
        """The pairs with an event, and the time of the first."""
        pair, time = np.divmod(self.events, self.n_times)
        first = np.append(True, pair[1:] != pair[:-1])[: len(pair)]
        return pair[first], time[first]


class Proposal(NamedTuple):
    """What cells are drawn by: for every fold the activity of users, which adds up to 1, and shares of items."""

    folds: Folds
    shares: Sequence[Mixture | CategoryShares]
    activity: Sequence[Floats]

    @classmethod
    def by_popularity(cls, log: Log) -> Proposal:
        """Users by activity and items by popularity, which favors no model of exposure; a single fold."""
        rows = log.treated == 1
        users = np.bincount(log.user[rows], minlength=log.n_users) + 0.5
        items = np.bincount(log.item[rows], minlength=log.n_items) + 0.5
        shares = Mixture.from_popularity(log.n_users, items / items.sum())
        return cls(Folds.from_times(log.eligibility.shape, 1), [shares], [users / users.sum()])


class WeightedCells(NamedTuple):
    """Cells with weights: sums over them stand for sums over all eligible cells."""

    user: Longs
    item: Longs
    time: Longs
    weight: Floats


def draw_cells(log: Log, past: PairHistory, proposal: Proposal, generator: np.random.Generator) -> WeightedCells:
    """Weighted eligible cells: all of them, or some million draws."""
    eligible = log.eligibility
    if eligible.cells <= MAX_CELLS:
        return WeightedCells(*eligible.cell(np.arange(eligible.cells)), np.ones(eligible.cells))
    n_later, (folds, shares, activity) = past.n_later_cells, proposal
    n = BY_PROPOSAL // folds.count
    parts: list[tuple[Longs, ...]] = [
        eligible.cell(generator.integers(0, eligible.cells, EVEN)),
        past.later_cells(generator.integers(0, max(n_later, 1), BY_PAST if n_later else 0)),
    ]
    for fold in range(folds.count):
        times = folds.times(fold)
        # evenly spaced: each user is drawn as often as the activity says, but for one draw
        user = inverse(np.cumsum(activity[fold]), (np.arange(n) + generator.random()) / n)
        item = shares[fold].draw(user, generator)
        time = times[generator.integers(0, len(times), n)]
        inside = folds.at(user, item, time) == fold
        parts.append((user[inside], item[inside], time[inside]))
    if not eligible.is_everything:
        parts = [tuple(codes[eligible.contains(*part)] for codes in part) for part in parts]
    user, item, time = (np.concatenate(codes) for codes in zip(*parts, strict=True))
    del parts
    expected = np.full(len(user), EVEN / eligible.cells)
    if n_later:
        expected += (past.before(user, item, time)[0] > 0) * (BY_PAST / n_later)
    own = folds.at(user, item, time)
    for fold in range(folds.count):
        rows = np.flatnonzero(own == fold)
        chance = activity[fold][user[rows]] * shares[fold].chance(user[rows], item[rows])
        expected[rows] += n * chance / len(folds.times(fold))
    return WeightedCells(user, item, time, 1.0 / expected)
