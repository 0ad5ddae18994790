"""Cells drawn with known probabilities, so that weighted sums over them stand for sums over all cells.

Almost all of the cells have tiny propensities, and those that matter are few. So cells are drawn in three ways:
evenly, by the users' tastes, and among those whose pair was shown or bought before. A cell that any of the ways
can draw has the weight 1 / (expected number of times it is drawn), by all three together (the balance heuristic of
multiple importance sampling): Σ_draws weight · g is an unbiased estimate of Σ_cells g for every g. A log with few
cells is not sampled: all its cells have weight 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from taurank.data.log import Log
from taurank.estimation.propensities.cells import codes_of
from taurank.estimation.propensities.folds import Folds
from taurank.estimation.propensities.history import PairHistory
from taurank.estimation.propensities.shelf_tastes import ShelfTastes
from taurank.estimation.propensities.tastes import Tastes, inverse

Longs = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Codes = tuple[Longs, Longs, Longs]

MAX_CELLS = 1_000_000  # up to so many cells, all of them are taken
EVEN, BY_TASTE, BY_PAST = 200_000, 500_000, 300_000


class Cells(NamedTuple):
    """Cells with weights: sums over them stand for sums over all eligible cells."""

    user: Longs
    item: Longs
    time: Longs
    weight: Floats

    def take(self, rows: Any) -> Cells:
        return Cells(self.user[rows], self.item[rows], self.time[rows], self.weight[rows])


class TasteDraws(NamedTuple):
    """What is needed to draw cells by taste: tastes and the activity of users for every fold."""

    folds: Folds
    tastes: Sequence[Tastes | ShelfTastes]
    activity: list[Floats]  # of every fold, adds up to 1


def draw_cells(log: Log, past: PairHistory, by_taste: TasteDraws, generator: np.random.Generator) -> Cells:
    """Weighted eligible cells."""
    if log.cells <= MAX_CELLS:
        return _all_cells(log)
    parts = [_even(log, EVEN, generator), _by_past(past, BY_PAST, generator)]
    parts += [
        _by_taste(by_taste, fold, BY_TASTE // by_taste.folds.count, generator) for fold in range(by_taste.folds.count)
    ]
    user, item, time = (np.concatenate(codes) for codes in zip(*parts, strict=True))
    kept = np.ones(len(user), bool) if log.eligibility.is_everything else log.eligibility.contains(user, item, time)
    user, item, time = user[kept], item[kept], time[kept]
    return Cells(user, item, time, 1.0 / _expected_draws(log, past, by_taste, user, item, time))


def _all_cells(log: Log) -> Cells:
    number = np.arange(log.cells)
    codes = codes_of(log.catalog, number) if log.eligibility.is_everything else log.eligibility.cell(number)
    return Cells(*codes, np.ones(log.cells))


def _even(log: Log, n: int, generator: np.random.Generator) -> Codes:
    number = generator.integers(0, log.cells, n)
    return codes_of(log.catalog, number) if log.eligibility.is_everything else log.eligibility.cell(number)


def _by_past(past: PairHistory, n: int, generator: np.random.Generator) -> Codes:
    """Every cell whose pair has a past is as likely as any other."""
    count = count_with_past(past)
    return cells_with_past(past, generator.integers(0, max(count, 1), n if count else 0))


def count_with_past(past: PairHistory) -> int:
    """How many cells have a pair with an earlier event."""
    _, first = past.first_events()
    return int((past.n_times - 1 - first).sum())


def cells_with_past(past: PairHistory, number: Longs) -> Codes:
    """The cells with these numbers, 0 … ``count_with_past`` − 1."""
    pair, first = past.first_events()
    ends = np.cumsum(past.n_times - 1 - first)
    which = np.searchsorted(ends, number, side="right")
    time = past.n_times - (ends[which] - number)
    user, item = np.divmod(pair[which], past.n_items)
    return user, item, time


def _by_taste(by_taste: TasteDraws, fold: int, n: int, generator: np.random.Generator) -> Codes:
    """A user by activity, an item by the user's taste, a time of the fold."""
    folds, tastes = by_taste.folds, by_taste.tastes[fold]
    user = inverse(np.cumsum(by_taste.activity[fold]), generator.random(n))
    item = tastes.draw(user, generator)
    times = folds.times(fold)
    time = times[generator.integers(0, len(times), n)]
    inside = folds.at(user, item, time) == fold
    return user[inside], item[inside], time[inside]


def _expected_draws(
    log: Log, past: PairHistory, by_taste: TasteDraws, user: Longs, item: Longs, time: Longs
) -> Floats:
    """How often a cell is drawn on average, by all ways together."""
    expected = np.full(len(user), EVEN / log.cells)
    with_past = count_with_past(past)
    if with_past:
        expected += (past.before(user, item, time)[0] > 0) * (BY_PAST / with_past)
    folds = by_taste.folds
    fold = folds.at(user, item, time)
    for f in range(folds.count):
        rows = np.flatnonzero(fold == f)
        chance = by_taste.activity[f][user[rows]] * by_taste.tastes[f].chance(user[rows], item[rows])
        expected[rows] += (BY_TASTE // folds.count) * chance / len(folds.times(f))
    return expected
