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

from taurank._checks import check_instance, check_integer, generator
from taurank._types import Floats, Longs, Mask
from taurank.data.ids import Catalog
from taurank.data.log import Log
from taurank.errors import InputError
from taurank.estimation.folds import Folds

if TYPE_CHECKING:
    import pandas as pd

BOUND = 1e-6  # estimates are clipped to [BOUND, 1 − BOUND]
MAX_FOLDS = 20
BLOCK = 1 << 17  # cells at a time
MAX_CELLS = 1_000_000  # up to this many cells, all of them are taken
EVEN, BY_PROPOSAL, BY_PAST = 200_000, 500_000, 300_000  # draws

RandomState = int | np.random.Generator | None
Codes3 = tuple[Longs, Longs, Longs]  # users, items and times


def check_log(log: Log, folds: int) -> None:
    """A propensity can be estimated only where some cells were treated and others were not."""
    check_instance("log", log, Log, "Log.from_frame or Log.read")
    check_integer("folds", folds, 2, MAX_FOLDS)
    n_treated = int(np.count_nonzero(log.treated))
    if n_treated == 0:
        raise InputError(
            f"column 'treated' is 0 in all {len(log):,} rows; a propensity can be estimated only from a "
            "log in which something was recommended."
        )
    if n_treated == log.cells:
        raise InputError(
            f"column 'treated' is 1 in all {n_treated:,} cells; without a cell that was not recommended there "
            "is no propensity to estimate (does the catalog have all users, items and times?)."
        )


def positions(catalog: Catalog, *codes: Any) -> list[Any]:
    """User, item and time positions of one shape; none of them may point outside the catalog."""
    try:
        arrays = list(np.broadcast_arrays(*codes))
    except ValueError as error:
        raise InputError("user, item and time positions must have the same length.") from error
    sizes = {"user": catalog.n_users, "item": catalog.n_items, "time": catalog.n_times}
    for (name, n), array in zip(sizes.items(), arrays, strict=True):
        if not np.issubdtype(array.dtype, np.integer):
            raise InputError(f"{name} positions must be integers, got {array.dtype}.")
        wrong = (array < 0) | (array >= n)
        if wrong.any():
            raise InputError(
                f"{name} positions must be between 0 and {n - 1}; {np.count_nonzero(wrong):,} are not, "
                f"for example {array[wrong][0]}."
            )
    return arrays


class Model(ABC):
    """A fitted model of exposure: the propensity of any cell."""

    catalog: Catalog

    @abstractmethod
    def _log_odds(self, user: Longs, item: Longs, time: Longs) -> Floats:
        """The cross-fitted log-odds of a block of cells."""

    def at(self, user: Any, item: Any, time: Any = 0) -> Floats:
        """The out-of-fold propensity of cells, in the log or not, given as positions in the catalog."""
        codes = positions(self.catalog, user, item, time)
        flat = [code.reshape(-1) for code in codes]
        result = np.empty(len(flat[0]))
        for start in range(0, len(result), BLOCK):
            rows = slice(start, start + BLOCK)
            result[rows] = np.clip(expit(self._log_odds(*(code[rows] for code in flat))), BOUND, 1.0 - BOUND)
        return result.reshape(codes[0].shape)

    def sample_cells(self, n_cells: int, random_state: RandomState = None) -> pd.DataFrame:
        """Distinct random cells with their ids and propensities, for the ``cells=`` of ``diagnose``."""
        import pandas as pd

        check_integer("n_cells", n_cells)
        random, catalog = generator(random_state), self.catalog
        if n_cells > catalog.n_cells // 2:
            number = np.sort(random.permutation(np.arange(catalog.n_cells))[:n_cells])
        else:
            number = np.unique(random.integers(0, catalog.n_cells, n_cells))
            while len(number) < n_cells:
                more = random.integers(0, catalog.n_cells, n_cells - len(number))
                number = np.unique(np.concatenate([number, more]))
        rest, item = np.divmod(number, catalog.n_items)
        time, user = np.divmod(rest, catalog.n_users)
        ids = {"user_id": (catalog.users, user), "item_id": (catalog.items, item), "time": (catalog.times, time)}
        frame = pd.DataFrame({name: of.decode(codes).to_pandas() for name, (of, codes) in ids.items()})
        return frame.assign(propensity=self.at(user, item, time))


@dataclass(frozen=True, eq=False)
class PairHistory:
    """When the pairs of a log had an event: sorted numbers (user · items + item) · times + time."""

    n_items: int
    n_times: int
    events: Longs

    @classmethod
    def from_rows(cls, log: Log, rows: Mask) -> PairHistory:
        """The history of the given rows of a log."""
        if log.catalog.n_cells >= 2**63:
            raise InputError("the past of pairs is limited to 2^63 combinations of user, item and time.")
        chosen = np.flatnonzero(rows)
        pair = log.user[chosen].astype(np.int64) * log.n_items + log.item[chosen]
        return cls(log.n_items, log.n_times, np.sort(pair * log.n_times + log.time[chosen]))

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

    def later_cells(self, number: Longs) -> Codes3:
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


class ItemShares(ABC):
    """Which items a user is shown; ``popularity`` has the same of all users together, and adds up to 1."""

    popularity: Floats

    @abstractmethod
    def chance(self, user: Any, item: Any, bought: bool = False) -> Floats:
        """P(this item | something is shown to this user), or with ``bought`` that of what the user bought."""

    @abstractmethod
    def draw(self, user: Longs, generator: np.random.Generator) -> Longs:
        """An item for each user, by ``chance``."""

    def lift(self, user: Any, item: Any, bought: bool = False) -> Floats:
        """log of how much likelier the item is for this user than for an average one."""
        return np.asarray(np.log(self.chance(user, item, bought)) - np.log(self.popularity[item]))


@dataclass(frozen=True, eq=False)
class Popularity(ItemShares):
    """The same shares of items for all users."""

    popularity: Floats

    def chance(self, user: Any, item: Any, bought: bool = False) -> Floats:
        return np.asarray(self.popularity[item])

    def draw(self, user: Longs, generator: np.random.Generator) -> Longs:
        return inverse(np.cumsum(self.popularity), generator.random(len(user)))


class Proposal(NamedTuple):
    """What cells are drawn by: for every fold the activity of users, which adds up to 1, and shares of items."""

    folds: Folds
    shares: Sequence[ItemShares]
    activity: Sequence[Floats]

    @classmethod
    def by_popularity(cls, log: Log) -> Proposal:
        """Users by activity and items by popularity, which favors no model of exposure; a single fold."""
        rows = np.flatnonzero(log.treated)
        users = np.bincount(log.user[rows], minlength=log.n_users) + 0.5
        items = np.bincount(log.item[rows], minlength=log.n_items) + 0.5
        folds = Folds(1, *(np.zeros(n, np.int8) for n in (log.n_users, log.n_items, log.n_times)))
        return cls(folds, [Popularity(items / items.sum())], [users / users.sum()])


class WeightedCells(NamedTuple):
    """Cells with weights: sums over them stand for sums over all eligible cells."""

    user: Longs
    item: Longs
    time: Longs
    weight: Floats

    def take(self, rows: Any) -> WeightedCells:
        return WeightedCells(self.user[rows], self.item[rows], self.time[rows], self.weight[rows])


def draw_cells(log: Log, past: PairHistory, proposal: Proposal, generator: np.random.Generator) -> WeightedCells:
    """Weighted eligible cells: all of them, or some million draws."""
    eligible = log.eligibility
    if eligible.cells <= MAX_CELLS:
        return WeightedCells(*eligible.cell(np.arange(eligible.cells)), np.ones(eligible.cells))
    n_later, folds = past.n_later_cells, proposal.folds
    parts: list[tuple[Longs, ...]] = [
        eligible.cell(generator.integers(0, eligible.cells, EVEN)),
        past.later_cells(generator.integers(0, max(n_later, 1), BY_PAST if n_later else 0)),
    ]
    for fold in range(folds.count):
        n, times = BY_PROPOSAL // folds.count, folds.times(fold)
        # evenly spaced: each user is drawn as often as the activity says, but for one draw
        user = inverse(np.cumsum(proposal.activity[fold]), (np.arange(n) + generator.random()) / n)
        item = proposal.shares[fold].draw(user, generator)
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
        chance = proposal.activity[fold][user[rows]] * proposal.shares[fold].chance(user[rows], item[rows])
        expected[rows] += (BY_PROPOSAL // folds.count) * chance / len(folds.times(fold))
    return WeightedCells(user, item, time, 1.0 / expected)


def inverse(cumulated: Floats, chance: Floats) -> Longs:
    """Positions with probabilities proportional to the steps of ``cumulated``."""
    position = np.searchsorted(cumulated, chance * cumulated[-1], side="right")
    return np.asarray(np.minimum(position, len(cumulated) - 1))
