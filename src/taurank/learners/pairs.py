"""Counts of pairs: all that CountingBayes, CUBN and EmpiricalBayes know about a log.

A pair (user, item) that has rows was treated n^T times with y^T positives, and had y^C positives at the other times
at which it could have been treated. Pairs without rows are untreated and negative, so their number is enough.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from taurank._arrays import index_type, row_order
from taurank._jit import compiled
from taurank._types import Codes, Floats, Floats32, Longs, Mask
from taurank.data.log import Log
from taurank.data.storage import Array
from taurank.errors import InputError
from taurank.learners.base import Learner

COUNTS = ("rows", "treated", "treated_positives", "control_positives")


@dataclass(frozen=True)
class Pairs:
    """The pairs that have rows: user u owns the entries start[u] … start[u + 1], ordered by item.

    ``rows`` is the number of rows behind the counts; a pair with 0 is scored, but nothing is learned from it.
    Positives are numbers of outcomes, or sums of their values. ``chances`` are the times at which a pair could have
    been treated, ``item_cells`` and ``user_cells`` those of all pairs of an item or of a user; without ``limited``
    every pair had all ``times``. ``propensity`` is the mean over the pair's rows, or None if some row has none.
    """

    start: Longs
    item: Codes
    rows: Codes
    treated: Codes
    treated_positives: Any
    control_positives: Any
    chances: Codes
    item_cells: Floats
    user_cells: Floats
    times: int
    limited: bool
    propensity: Floats32 | None = None

    @property
    def n_users(self) -> int:
        return len(self.start) - 1

    @property
    def n_items(self) -> int:
        return len(self.item_cells)

    @property
    def users(self) -> int:
        """How many users could have been treated at all."""
        return int(np.count_nonzero(self.user_cells))

    @property
    def user(self) -> Codes:
        return np.repeat(np.arange(self.n_users, dtype=np.int32), np.diff(self.start))

    @property
    def positives(self) -> Any:
        return self.treated_positives + self.control_positives

    def by_item(self, counts: Any) -> Floats:
        """Sums over the pairs of each item that have counted rows."""
        sums = np.zeros(self.n_items)
        item, rows, each = (np.asarray(column) for column in (self.item, self.rows, counts))  # of files, perhaps
        _add_by_item(item, rows, each, sums)
        return sums

    def bought_by_user(self) -> Floats:
        return np.bincount(self.user, self.positives, self.n_users).astype(np.float64)

    def bought_by_item(self) -> Floats:
        return np.bincount(self.item, self.positives, self.n_items).astype(np.float64)

    def item_sums(self) -> Floats:
        """3 × items: how often each was treated, and its positives in each arm."""
        return np.stack([self.by_item(getattr(self, name)) for name in COUNTS[1:]])

    def mean_chances(self) -> Floats:
        """For each item, how many chances a pair without rows had on average."""
        number = self.users - self.by_item(np.minimum(self.rows, 1))
        return np.where(number > 0, self._left() / np.maximum(number, 1.0), self.times)

    def absent_chances(self) -> Codes:
        """The same as integers, at least 1."""
        return np.clip(np.rint(self.mean_chances()), 1, max(1, self.times)).astype(np.int32)

    def absent(self) -> Floats:
        """For each item, how many pairs have no rows: they are all alike, untreated and never positive."""
        return np.asarray(self._left() / self.absent_chances())

    def _left(self) -> Floats:
        """For each item, the chances of its pairs without rows."""
        return np.maximum(self.item_cells - self.by_item(self.chances), 0.0)

    def arrays(self) -> dict[str, Any]:
        """What a file stores; the inverse is ``from_arrays``."""
        left_out = {"times", "limited", *(() if self.limited else ("chances",))}
        values = {f"pair_{f.name}": getattr(self, f.name) for f in fields(self) if f.name not in left_out}
        present = {name: value for name, value in values.items() if value is not None}
        return {**present, "times": np.array([self.times])}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any]) -> Pairs:
        values = {name.removeprefix("pair_"): array for name, array in arrays.items() if name in STORED}
        values["times"] = times = int(arrays["times"][0])
        limited = "chances" in values
        return cls(**{"chances": np.broadcast_to(np.int32(times), len(values["item"]))} | values, limited=limited)


def stored_pairs(positives: str, users: str = "users") -> dict[str, Array]:
    """The declaration of the stored counts: the type of positives, and the axis of users."""
    return {
        "pair_start": Array("int64", (f"{users} + 1",), offsets_of="pairs"),
        "pair_item": Array("int32", ("pairs",), below="items"),
        **{f"pair_{name}": Array("int32", ("pairs",), minimum=0) for name in COUNTS[:2]},
        **{f"pair_{name}": Array(positives, ("pairs",), minimum=0.0) for name in COUNTS[2:]},
        "pair_item_cells": Array("float64", ("items",), minimum=0.0),
        "pair_user_cells": Array("float64", (users,), minimum=0.0),
        "pair_chances": Array("int32", ("pairs",), minimum=0, optional=True),  # limited by eligibility
        "pair_propensity": Array("float32", ("pairs",), optional=True),
        "times": Array("int64", (1,), minimum=0, maximum=2**31 - 1),
    }


STORED = stored_pairs("int32")


class PairLearner(Learner):
    """A learner whose fit is the counts of pairs (``counts_``) and arrays made of them."""

    counts_: Pairs

    def learn_pairs(self, pairs: Pairs) -> None:
        """Set ``counts_`` and the arrays that follow from them."""
        raise NotImplementedError

    def learn(self, log: Log) -> None:
        self.learn_pairs(count(log))

    def learn_more(self, log: Log) -> None:
        """Add up the counts: those of a fit to all rows, in which new items had no chances before."""
        self.learn_pairs(added(self._fitted("counts_"), log))

    def _state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        own = [name for name, array in self.stored.items() if name not in STORED and not array.optional]
        counts = {
            name: array.astype(self.stored[name].dtype, copy=False) for name, array in self.counts_.arrays().items()
        }
        return {**counts, **{name: getattr(self, f"{name}_") for name in own}}, {}

    def _set_state(self, arrays: Mapping[str, Any], metadata: Mapping[str, Any]) -> None:
        self.counts_ = Pairs.from_arrays(arrays)
        super()._set_state({name: array for name, array in arrays.items() if name not in STORED}, metadata)

    def _filled(self, user_codes: Codes, values: Floats32, absent: Any) -> Floats32:
        """A fresh block users × items: ``absent``, with the values of the pairs that have rows."""
        pairs = self.counts_
        first, last = pairs.start[user_codes], pairs.start[user_codes + 1]
        row = np.repeat(np.arange(len(user_codes)), last - first)
        within = np.arange(len(row)) - np.repeat(np.cumsum(last - first) - last, last - first)
        block = np.array(np.broadcast_to(absent, (len(user_codes), pairs.n_items)), np.float32)
        block[row, pairs.item[within]] = values[within]
        return block


def check_arms(learner: str, treated: Any, untreated: Any) -> None:
    """Refuse a log in which one arm has no observation."""
    for arm, observations in (("treated", treated), ("untreated", untreated)):
        if not np.any(observations):
            raise InputError(f"{learner} needs both arms, and nothing in this log is {arm}.")


def item_means(sums: Floats, cells: Floats | float, learner: str) -> Floats:
    """2 × items, the mean outcome in each arm, from ``Pairs.item_sums`` and the eligible cells of each item.

    An item that was never in an arm has the arm's own mean.
    """
    treated, *positives = sums
    arms = treated, cells - treated
    check_arms(learner, *arms)
    means = np.empty((2, len(treated)))
    for mean, bought, observations in zip(means, positives, arms, strict=True):
        mean[:] = bought.sum() / observations.sum()
        np.divide(bought, observations, out=mean, where=observations > 0)
    return means


def count(log: Log, times: int | None = None, kept: Mask | None = None, propensity: bool = False) -> Pairs:
    """The counts of the first ``times`` times (None: all), with mean propensities if they are asked for and recorded.

    A pair none of whose rows are ``kept`` has 0 rows.
    """
    times, kept = log.n_times if times is None else times, np.ones(len(log), np.bool_) if kept is None else kept
    start, order = row_order(log.user, log.n_users)
    start, item, entry = distinct(start, log.item[order], log.n_items)
    worth = log.outcome if log.value is None else log.outcome * log.value
    counts, positives = np.zeros((2, len(item)), np.int32), np.zeros((2, len(item)), np.result_type(worth, np.int32))
    _add_rows(entry, order, log.treated, worth, kept, counts, positives)
    mean = None
    if propensity and log.propensity is not None and not log.n_without_propensity:
        mean = np.zeros(len(item), np.float32)
        _average(entry, order, log.propensity, kept, mean)
    return Pairs(
        start, item, counts[0], counts[1], positives[0], positives[1], *_eligible(log, times, start, item), times,
        not log.eligibility.is_everything, mean,
    )  # fmt: skip


def _eligible(log: Log, times: int, start: Longs, item: Codes) -> tuple[Codes, Floats, Floats]:
    """The eligible cells of the first ``times`` times, of these pairs, of every item and of every user."""
    eligibility, n_users, n_items = log.eligibility, log.n_users, log.n_items
    if eligibility.is_everything:
        cells = np.full(n_items, float(n_users * times)), np.full(n_users, float(n_items * times))
        return np.broadcast_to(np.int32(times), len(item)), *cells  # in the memory of one number
    if times < log.n_times:
        at = np.arange(log.n_times)
        at[times:] = -1
        eligibility = eligibility.reindex(log.catalog, np.arange(n_users), np.arange(n_items), at)
    user, chances = np.repeat(np.arange(n_users), np.diff(start)), np.zeros(len(item), np.int32)
    for time in range(times):
        chances += eligibility.contains(user, item, time)
    return chances, eligibility.cells_by_item.astype(np.float64), eligibility.cells_by_user.astype(np.float64)


def added(known: Pairs, log: Log, dated: bool = True) -> Pairs:
    """The counts of a model and of new rows, in the catalog of the new rows.

    They are those of one log with all rows, in which items that are new had no chances before, if ``dated``. With
    eligibility tables, a pair that has its first rows in ``log`` had as many chances before as the item's other pairs
    without rows.
    """
    new = count(log, propensity=known.propensity is not None)
    both, times = (known, new), known.times + new.times
    limited = known.limited or new.limited or (dated and new.n_items > known.n_items)
    keys = [pairs.user * np.int64(new.n_items) + pairs.item for pairs in both]
    key = np.union1d(*keys)
    at = [np.searchsorted(key, own) for own in keys]
    user, item = (each.astype(np.int32) for each in np.divmod(key, new.n_items))
    start = np.searchsorted(user, np.arange(new.n_users + 1))

    def total(*columns: Any) -> Any:
        sums = np.zeros(len(key), np.result_type(*columns))
        for own, column in zip(at, columns, strict=True):
            sums[own] += column
        return sums

    sums = {name: total(*(getattr(pairs, name) for pairs in both)) for name in COUNTS}
    propensity = None
    if known.propensity is not None and new.propensity is not None:
        weighted = total(*(pairs.rows * pairs.propensity.astype(np.float64) for pairs in both))  # type: ignore[union-attr]
        propensity = (weighted / np.maximum(sums["rows"], 1)).astype(np.float32)
    pair_chances = np.broadcast_to(np.int32(times), len(key))
    item_cells = np.full(new.n_items, float(new.n_users * times))
    user_cells = np.full(new.n_users, float(new.n_items * times))
    if limited:
        past = _padded(known.absent_chances(), new.n_items)[item].astype(np.int32)
        past[at[0]] = known.chances
        pair_chances = past + _eligible(log, new.times, start, item)[0]
        of_items, of_users = known.item_cells, known.user_cells
        if not known.limited:  # users that are new could have been treated before
            of_items = np.full(known.n_items, float(new.n_users * known.times))
            of_users = np.full(new.n_users, float(known.n_items * known.times))
        item_cells = _padded(of_items, new.n_items) + new.item_cells
        user_cells = _padded(of_users, new.n_users) + new.user_cells
    return Pairs(
        start, item, **sums, chances=pair_chances, item_cells=item_cells, user_cells=user_cells, times=times,
        limited=limited, propensity=propensity,
    )  # fmt: skip


def beside(known: Pairs, new: Pairs) -> Pairs:
    """The pairs of a model, and behind them those of new users, which are scored but not learned from."""
    columns: dict[str, Any] = {
        name: np.concatenate((getattr(known, name), getattr(new, name))) for name in ("item", *COUNTS[1:], "chances")
    }
    if known.propensity is not None and new.propensity is not None:
        columns["propensity"] = np.concatenate((known.propensity, new.propensity))
    return replace(
        known, **{"propensity": None} | columns, start=np.concatenate((known.start, known.start[-1] + new.start[1:])),
        rows=np.concatenate((known.rows, np.zeros_like(new.rows))), limited=known.limited or new.limited,
        user_cells=_padded(known.user_cells, known.n_users + new.n_users),
    )  # fmt: skip


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
        pairs, item_cells=item_cells * warm_item, user_cells=pairs.user_cells * warm_item.mean() * warm_user
    )


def _padded(values: Any, length: int) -> Floats:
    return np.pad(np.asarray(values, np.float64), (0, length - len(values)))


def distinct(start: Longs, value: Any, n_values: int) -> tuple[Longs, Codes, Any]:
    """The different values within each stretch start[g] … start[g + 1], and the entry of every element."""
    where, many = np.full(n_values, -1, np.int64), np.zeros(len(start), np.int64)
    _count_distinct(start, value, where, many)
    begin = np.cumsum(many)
    values, entry = np.empty(begin[-1], np.int32), np.empty(len(value), index_type(len(value)))
    where[:] = -1
    _fill_distinct(start, value, where, begin, values, entry)
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
def _add_rows(entry: Any, order: Any, treated: Any, worth: Any, kept: Any, counts: Any, positives: Any) -> None:
    """``entry`` is the pair of each row in the given order."""
    for at in range(len(entry)):
        pair, row = entry[at], order[at]
        if kept[row]:
            counts[0, pair] += 1
            counts[1, pair] += treated[row]
            positives[1 - treated[row], pair] += worth[row]


@compiled
def _average(entry: Any, order: Any, propensity: Any, kept: Any, mean: Any) -> None:
    """Over the kept rows of each pair; a pair without any has the propensity of its last row."""
    rows = np.zeros(len(mean), np.int32)
    for at in range(len(entry)):
        pair, row = entry[at], order[at]
        rows[pair] += kept[row]
        if kept[row] or not rows[pair]:
            mean[pair] += (propensity[row] - mean[pair]) / max(rows[pair], 1)
