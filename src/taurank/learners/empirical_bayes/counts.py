"""Counting: what the rows of a log say about each pair, and which of them are held out.

A pair that has rows was treated n^T times with y^T positives, and had y^C positives in the other times. Everything
that follows sees only these counts, never a row.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from taurank._arrays import index_type, row_order
from taurank._jit import compiled
from taurank.data.eligibility import Eligibility
from taurank.data.ids import Codes
from taurank.data.log import Log

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

FOLDS = 5  # of a log with one time, a fifth of the pairs is held out

# what happened in a held-out cell; the cells of absent rows are untreated and negative
NOTHING, TREATED_NEGATIVE, TREATED_POSITIVE, CONTROL_POSITIVE, NOT_HELD_OUT = range(5)


@dataclass(frozen=True)
class Pairs:
    """The pairs that have rows: user u owns the entries start[u] .. start[u + 1], ordered by item.

    ``rows`` counts the rows that the counts come from; a pair with 0 is scored, but nothing is learned from it.
    ``chances`` are the times at which the pair could have been treated, ``item_cells`` and ``user_cells`` those of
    all pairs of an item, or of a user. ``users`` is the number of users whose pairs are counted, for each item: a
    fraction of them if pairs are held out.
    """

    start: Integers
    item: Codes
    rows: Codes
    treated: Codes
    treated_positives: Codes
    control_positives: Codes
    propensity: npt.NDArray[np.float32] | None
    chances: Codes
    item_cells: Floats
    user_cells: Floats
    times: int
    users: float

    @property
    def n_users(self) -> int:
        return len(self.start) - 1

    @property
    def n_items(self) -> int:
        return len(self.item_cells)

    @property
    def user(self) -> Codes:
        return np.repeat(np.arange(self.n_users, dtype=np.int32), np.diff(self.start))

    @property
    def limited(self) -> bool:
        """Whether eligibility tables limit the chances; without them they are one number, stored once."""
        return self.chances.strides != (0,)

    @property
    def seen(self) -> npt.NDArray[np.bool_]:
        return np.asarray(self.rows > 0)

    def by_item(self, counts: Codes) -> Floats:
        """Sums over the pairs of each item that have counted rows."""
        sums = np.zeros(self.n_items)
        _add_by_item(self.item, self.rows, counts, sums)
        return sums

    def bought_by_user(self) -> Floats:
        bought = self.treated_positives + self.control_positives
        return np.bincount(self.user, bought, self.n_users).astype(np.float64)

    def bought_by_item(self) -> Floats:
        bought = self.treated_positives + self.control_positives
        return np.bincount(self.item, bought, self.n_items).astype(np.float64)

    def absent_chances(self) -> Codes:
        """For each item, how many chances a pair without rows had: their mean, as an integer."""
        number = np.maximum(self.users - self.by_item(np.minimum(self.rows, 1)), 1e-9)
        return np.clip(np.rint(self._left() / number), 1, max(1, self.times)).astype(np.int32)

    def absent(self) -> Floats:
        """For each item, how many pairs have no rows: they are all alike, untreated and never positive."""
        return np.asarray(self._left() / self.absent_chances())

    def _left(self) -> Floats:
        """For each item, the chances of its pairs without rows."""
        return np.maximum(self.item_cells - self.by_item(self.chances), 0.0)


@dataclass(frozen=True)
class HeldOut:
    """The counts without the cells that are held out, and what happened to each pair there."""

    pairs: Pairs
    held: npt.NDArray[np.int8]
    share: float  # of the absent pairs' cells, how many are held out
    eligibility: Eligibility
    time: int

    @property
    def hides_pairs(self) -> bool:
        """Whether whole pairs are held out, since there is only one time: nothing is known of their own counts."""
        return self.share < 1.0

    def eligible(self, users: Integers) -> npt.NDArray[np.bool_]:
        """Which cells of the held-out time could have been treated, users × items."""
        items = np.arange(self.pairs.n_items)
        if self.eligibility.is_everything:
            return np.outer(self.pairs.user_cells[users] > 0, self.pairs.item_cells > 0)
        return self.eligibility.contains(users[:, None], items[None, :], self.time)


def count(log: Log) -> Pairs:
    """The counts of every pair."""
    return _count(log, np.broadcast_to(np.False_, len(log)), log.n_times, 1.0)[0]


def without_cold(pairs: Pairs, users: bool, items: bool) -> Pairs:
    """Users, or items, without rows had no chances: they are new, instead of never shown and never bought.

    Eligibility tables say themselves who had chances.
    """
    if pairs.limited:
        return pairs
    warm_user = (np.diff(pairs.start) > 0) | (not users)
    warm_item = (np.bincount(pairs.item, minlength=pairs.n_items) > 0) | (not items)
    item_cells = np.maximum(pairs.item_cells * warm_user.mean(), pairs.by_item(pairs.chances))
    return replace(
        pairs, users=pairs.users * warm_user.mean(), item_cells=item_cells * warm_item,
        user_cells=pairs.user_cells * warm_item.mean() * warm_user,
    )  # fmt: skip


def hold_out(log: Log) -> HeldOut:
    """The counts without the last time; of a log with one time, without a fifth of the pairs."""
    last = log.n_times - 1
    if last:
        pairs, held = _count(log, np.asarray(log.time == last), last, 1.0)
    else:
        pairs, held = _count(log, _is_sampled(log.user, log.item), 1, 1 - 1 / FOLDS)
        held[~_is_sampled(pairs.user, pairs.item)] = NOT_HELD_OUT
        pairs = replace(
            pairs, item_cells=_kept(pairs.item_cells, pairs.item, pairs.seen),
            user_cells=_kept(pairs.user_cells, pairs.user, pairs.seen),
        )  # fmt: skip
    if not log.eligibility.is_everything:
        held[~log.eligibility.contains(pairs.user, pairs.item, last)] = NOT_HELD_OUT
    return HeldOut(pairs, held, 1.0 if last else 1 / FOLDS, log.eligibility, last)


def _count(
    log: Log, is_held: npt.NDArray[np.bool_], times: int, counted: float
) -> tuple[Pairs, npt.NDArray[np.int8]]:
    """The first ``times`` times without the held-out rows; ``counted`` is the share of pairs that stay."""
    is_recorded = log.n_without_propensity == 0 and log.propensity is not None  # of all rows
    propensity = log.propensity if is_recorded and log.propensity is not None else np.empty(0)
    start, order = row_order(log.user, log.n_users)
    pair_start, pair_item, entry = distinct(start, log.item[order], log.n_items)
    counts, held = np.zeros((4, len(pair_item)), np.int32), np.zeros(len(pair_item), np.int8)
    mean = np.zeros(len(pair_item) if is_recorded else 0, np.float32)
    _add_rows(entry, order, log.treated, log.outcome, is_held, propensity, counts, held, mean)
    by_item, by_user, users = cells_of(log, times)
    rows, shown, bought, otherwise = counts
    pairs = Pairs(
        pair_start, pair_item, rows, shown, bought, otherwise, mean if is_recorded else None,
        chances_of(log.eligibility, times, pair_start, pair_item), counted * by_item, counted * by_user, times,
        counted * users,
    )  # fmt: skip
    return pairs, held


def _kept(cells: Floats, unit: Codes, seen: npt.NDArray[np.bool_]) -> Floats:
    """The chances that are not held out: a share of the absent pairs', and those of the pairs whose rows are seen."""
    kept, all_rows = np.bincount(unit[seen], minlength=len(cells)), np.bincount(unit, minlength=len(cells))
    return np.asarray(kept + np.maximum(cells - (1 - 1 / FOLDS) * all_rows, 0.0), np.float64)


def chances_of(eligibility: Eligibility, times: int, start: Integers, item: Codes) -> Codes:
    """At how many of the first ``times`` times each pair could have been treated."""
    if eligibility.is_everything:
        return np.broadcast_to(np.int32(times), len(item))
    user, chances = np.repeat(np.arange(len(start) - 1), np.diff(start)), np.zeros(len(item), np.int32)
    for time in range(times):
        chances += eligibility.contains(user, item, time)
    return chances


def cells_of(log: Log, times: int) -> tuple[Floats, Floats, float]:
    """The chances of every item and of every user at the first ``times`` times, and the users that had any."""
    if log.eligibility.is_everything:
        by_item, by_user = np.full(log.n_items, log.n_users * times), np.full(log.n_users, log.n_items * times)
        return by_item.astype(np.float64), by_user.astype(np.float64), float(log.n_users)
    by_item, by_user = log.eligibility.cells_by_item, log.eligibility.cells_by_user
    if times < log.n_times:
        of_item, of_user = _last_cells(log.eligibility)
        by_item, by_user = by_item - of_item, by_user - of_user
    return by_item.astype(np.float64), by_user.astype(np.float64), float(np.count_nonzero(by_user))


def _last_cells(eligibility: Eligibility) -> tuple[Integers, Integers]:
    """The eligible cells of the last time, by item and by user."""
    n_users, n_items, n_times = eligibility.shape
    if eligibility.listed is not None:
        cells = eligibility.cells
        user, item, _ = eligibility.cell(np.arange(cells - eligibility.cells_by_time[-1], cells))
        return np.bincount(item, minlength=n_items), np.bincount(user, minlength=n_users)
    users = eligibility.visitors.contains(np.arange(n_users), np.full(n_users, n_times - 1))
    items = eligibility.candidates.contains(np.arange(n_items), np.full(n_items, n_times - 1))
    return items * np.count_nonzero(users), users * np.count_nonzero(items)


def _is_sampled(user: Codes, item: Codes) -> npt.NDArray[np.bool_]:
    """The pairs of one fold, by a hash of the pair."""
    mixed = (user.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)) ^ (
        item.astype(np.uint64) * np.uint64(0xC2B2AE3D27D4EB4F)
    )
    mixed = (mixed ^ (mixed >> np.uint64(31))) * np.uint64(0xBF58476D1CE4E5B9)
    return np.asarray((mixed >> np.uint64(33)) % np.uint64(FOLDS) == 0)


def distinct(start: Integers, value: Any, n_values: int) -> tuple[Integers, Codes, npt.NDArray[Any]]:
    """The different values within each stretch start[g] .. start[g + 1], and the entry of every element."""
    where = np.full(n_values, -1, np.int64)
    many = np.zeros(len(start), np.int64)
    _count_distinct(start, value, where, many)
    begin = np.cumsum(many)
    values, entry = np.empty(begin[-1], np.int32), np.empty(len(value), index_type(len(value)))
    _fill_distinct(start, value, np.full(n_values, -1, np.int64), begin, values, entry)
    return begin, values, entry


@compiled
def _add_by_item(item: Any, rows: Any, counts: Any, sums: Any) -> None:
    for pair in range(len(item)):
        if rows[pair]:
            sums[item[pair]] += counts[pair]


@compiled
def _count_distinct(start: Any, value: Any, where: Any, many: Any) -> None:
    for g in range(len(start) - 1):
        for row in range(start[g], start[g + 1]):
            if where[value[row]] != g:
                where[value[row]] = g
                many[g + 1] += 1


@compiled
def _fill_distinct(start: Any, value: Any, where: Any, begin: Any, values: Any, entry: Any) -> None:
    for g in range(len(start) - 1):
        filled = begin[g]
        for row in range(start[g], start[g + 1]):
            if where[value[row]] < begin[g]:
                where[value[row]] = filled
                values[filled] = value[row]
                filled += 1
        values[begin[g] : filled].sort()
        for k in range(begin[g], filled):
            where[values[k]] = k
        for row in range(start[g], start[g + 1]):
            entry[row] = where[value[row]]


@compiled
def _add_rows(
    entry: Any, order: Any, treated: Any, outcome: Any, is_held: Any, propensity: Any, counts: Any, held: Any,
    chance: Any,
) -> None:  # fmt: skip
    """``entry`` is the pair of each row in the given order."""
    for at in range(len(entry)):
        pair, row = entry[at], order[at]
        if is_held[row]:
            held[pair] = 1 + outcome[row] if treated[row] else 3 * outcome[row]
            if len(chance) and not counts[0, pair]:
                chance[pair] = propensity[row]  # all that is known of a pair whose only row is held out
            continue
        counts[0, pair] += 1
        counts[1, pair] += treated[row]
        counts[2, pair] += treated[row] * outcome[row]
        counts[3, pair] += (1 - treated[row]) * outcome[row]
        if len(chance):
            chance[pair] += (propensity[row] - chance[pair]) / counts[0, pair]
