"""Samples of logs in which only some cells could have been recommended: control cells are eligible ones.

The samplers of ``taurank.sgd.samplers`` draw from all users × items × times. Here eligible cells are numbered by
time, user and item, as ``Eligibility.cell`` does, so that the cells of a visit are neighbors, and the n-th cell
that is not in a sorted list is found by one search: nothing is rejected, and nothing is written out.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from taurank._random import uniforms
from taurank._types import Floats, Longs
from taurank.data.eligibility import Eligibility, Members, is_among
from taurank.data.log import Log
from taurank.errors import TooLittleData
from taurank.sgd.samplers import CLASS_NAMES, CN, Sampler, pair_kinds, slots_of
from taurank.sgd.strata import Samples

_STEPS = np.uint64(8)  # random numbers of one sample


def pair_sampler(log: Log, alpha: float) -> Sampler:
    """ULBPR: a kind of pair, a time, a user with both classes, an item of each."""
    cells, slots = EligibleCells(log.eligibility), slots_of(log)
    listed = Without(np.sort(cells.number(*_rows(log, (log.treated == 1) | (log.outcome == 1)))), cells.count)
    first, size = cells.visit(cells.visit_number(slots.user, slots.time))[2:]
    begin, end = listed.before(first), listed.before(first + size)
    kinds = pair_kinds(slots, alpha, end - begin)
    if kinds is None:
        raise TooLittleData("ULBPR found no treated positive in this log.")

    def item_of(kind: Longs, slot: Longs, random: Floats) -> Longs:
        absent = kind == CN
        low = np.where(absent, begin[slot], slots.start[3 * slot + np.where(absent, 0, kind)])
        high = np.where(absent, end[slot], slots.start[3 * slot + np.where(absent, 0, kind) + 1])
        place = low + _below(random, high - low)
        item = np.empty(len(place), np.int64)
        item[absent] = cells.cell(listed.nth(place[absent]))[1]
        item[~absent] = slots.item[place[~absent]]
        return item

    def choose(key: np.uint64, samples: Samples, first_sample: int, last: int) -> None:
        random = partial(_random, key, first_sample, last)
        kind = np.searchsorted(kinds.chance[:-1], random(0), "right")
        time = kinds.busy[kind, _below(random(1), kinds.n_busy[kind])]
        low, high = kinds.start[kind, time], kinds.start[kind, time + 1]
        slot = kinds.slot[low + _below(random(2), high - low)].astype(np.int64)
        part = samples[first_sample:last]
        part["user"], part["value"] = slots.user[slot], 1
        part["item"] = item_of(kinds.better[kind], slot, random(3))
        part["other"] = item_of(kinds.worse[kind], slot, random(4))

    return Sampler(choose, _nothing_left)


def class_sampler(log: Log, positives: float, alpha: float) -> Sampler:
    """ULRMF: an arm, a class of it, and one of its cells."""
    cells = EligibleCells(log.eligibility)
    is_treated, is_positive = log.treated == 1, log.outcome == 1
    rows = [np.flatnonzero(mask) for mask in (is_treated & is_positive, is_treated & ~is_positive,
                                              ~is_treated & is_positive)]  # fmt: skip
    listed = Without(np.sort(cells.number(*_rows(log, is_treated | is_positive))), cells.count)
    for name, size in zip(CLASS_NAMES, (*map(len, rows), listed.count), strict=True):
        if not size:
            raise TooLittleData(f"ULRMF needs cells of every class; this log has no {name}.")
    order, start = np.concatenate(rows), np.concatenate(([0], np.cumsum([len(each) for each in rows])))

    def choose(key: np.uint64, samples: Samples, first_sample: int, last: int) -> None:
        random = partial(_random, key, first_sample, last)
        kind = np.where(random(0) < 0.5, 0, 2) + (random(1) >= positives)  # TP, TN, CP, CN
        absent, part = kind == CN, samples[first_sample:last]
        user, item, _ = cells.cell(listed.nth(_below(random(3)[absent], listed.count)))
        part["user"][absent], part["item"][absent] = user, item
        low, high = start[kind[~absent]], start[kind[~absent] + 1]
        row = order[low + _below(random(3)[~absent], high - low)]
        part["user"][~absent], part["item"][~absent] = log.user[row], log.item[row]
        part["other"] = part["item"]
        part["value"] = np.where(absent, random(2) < alpha, kind == 0)

    return Sampler(choose, _nothing_left)


def arm_sampler(log: Log) -> Sampler:
    """CausE: an arm, a user and time that has it, and an item of it; see ``samplers.fill_by_arm`` for the tables."""
    cells, slots = EligibleCells(log.eligibility), slots_of(log)
    treated_slots = np.flatnonzero(slots.start[2::3] > slots.start[:-1:3])
    treated = np.sort(cells.number(*_rows(log, log.treated == 1)))
    bought = np.sort(cells.number(*_rows(log, (log.treated == 0) & (log.outcome == 1))))
    untreated = Without(treated, cells.count)
    of_slot = cells.visit_number(slots.user, slots.time)
    first, size = cells.visit(of_slot)[2:]
    full = of_slot[untreated.before(first) == untreated.before(first + size)]
    visits = Without(np.sort(full), cells.n_visits)
    if not len(treated_slots) or not visits.count:
        raise TooLittleData("CausE needs positive outcomes and both treated and untreated cells.")

    def choose(key: np.uint64, samples: Samples, first_sample: int, last: int) -> None:
        random = partial(_random, key, first_sample, last)
        part, arm = samples[first_sample:last], random(0) < 0.5
        slot = treated_slots[_below(random(1)[arm], len(treated_slots))]
        low, high = slots.start[3 * slot], slots.start[3 * slot + 2]
        row = low + _below(random(2)[arm], high - low)
        part["user"][arm], part["item"][arm] = slots.user[slot], slots.item[row]
        part["other"][arm], part["value"][arm] = slots.item[row] + log.n_items, row < slots.start[3 * slot + 1]
        user, _, begin, count = cells.visit(visits.nth(_below(random(1)[~arm], visits.count)))
        low, high = untreated.before(begin), untreated.before(begin + count)
        number = untreated.nth(low + _below(random(2)[~arm], high - low))
        item = cells.cell(number)[1]
        part["user"][~arm], part["item"][~arm] = user, item + log.n_items
        part["other"][~arm], part["value"][~arm] = item, is_among(number, bought)

    return Sampler(choose, _nothing_left)


@dataclass(frozen=True)
class Without:
    """The numbers 0 … size − 1 without some sorted ones."""

    left_out: Longs
    size: int

    @property
    def count(self) -> int:
        return self.size - len(self.left_out)

    def nth(self, rank: Longs) -> Longs:
        """The number with this rank, from 0: before it, n are left out for which left_out[n] − n <= rank."""
        return rank + np.searchsorted(self.left_out - np.arange(len(self.left_out)), rank, "right")

    def before(self, number: Longs) -> Longs:
        """How many of these numbers are smaller."""
        return number - np.searchsorted(self.left_out, number)


class EligibleCells:
    """The eligible cells of a log and its visits, users at a time that have any, by number."""

    def __init__(self, eligibility: Eligibility) -> None:
        self.eligibility, self.count, self.cell = eligibility, eligibility.cells, eligibility.cell
        sizes = eligibility.candidates.by_time
        self.cell_start = np.concatenate(([0], np.cumsum(eligibility.visitors.by_time * sizes)))
        self.visit_start = np.concatenate(([0], np.cumsum(eligibility.visitors.by_time * (sizes > 0))))
        own = eligibility.listed is not None
        self.n_visits = len(eligibility.own_visits.user) if own else int(self.visit_start[-1])

    def number(self, user: Any, item: Any, time: Any) -> Longs:
        """The numbers of eligible cells: the inverse of ``Eligibility.cell``."""
        if self.eligibility.listed is not None:
            return self.eligibility.position(user, item, time)
        candidates = self.eligibility.candidates
        within = _rank(self.eligibility.visitors, user, time) * candidates.by_time[time]
        number: Longs = self.cell_start[time] + within + _rank(candidates, item, time)
        return number

    def visit_number(self, user: Any, time: Any) -> Longs:
        """The number of the visit of a user at a time."""
        if self.eligibility.listed is not None:
            own, n_users = self.eligibility.own_visits, self.eligibility.shape[0]
            keys = np.asarray(time, np.int64) * n_users + user
            return np.asarray(np.searchsorted(own.time * n_users + own.user, keys))
        number: Longs = self.visit_start[time] + _rank(self.eligibility.visitors, user, time)
        return number

    def visit(self, number: Longs) -> tuple[Longs, Longs, Longs, Longs]:
        """User and time of visits, the number of their first cell, and how many cells they have."""
        if self.eligibility.listed is not None:
            own = self.eligibility.own_visits
            return own.user[number], own.time[number], own.start[number], np.diff(own.start)[number]
        time = np.searchsorted(self.visit_start, number, "right") - 1
        rank, size = number - self.visit_start[time], self.eligibility.candidates.by_time[time]
        return self.eligibility.visitors.nth(rank, time), time, self.cell_start[time] + rank * size, size


def _rank(members: Members, code: Any, time: Any) -> Longs:
    """The rank of members among those of their time: the inverse of ``Members.nth``."""
    if members.codes is None:
        return np.asarray(code, np.int64)
    if not members.timed:
        return np.asarray(np.searchsorted(members.codes, code))
    key = np.asarray(time, np.int64) * members.size
    return np.asarray(np.searchsorted(members.codes, key + code) - np.searchsorted(members.codes, key))


def _rows(log: Log, mask: Any) -> tuple[Any, Any, Any]:
    return log.user[mask], log.item[mask], log.time[mask]


def _random(key: np.uint64, begin: int, end: int, step: int) -> Floats:
    """One of the numbers in [0, 1) of the samples begin … end − 1."""
    return uniforms(key, np.arange(begin, end, dtype=np.uint64) * _STEPS + np.uint64(step))


def _below(random: Floats, bound: Any) -> Longs:
    return np.asarray(np.minimum((random * bound).astype(np.int64), bound - 1))


def _nothing_left(key: np.uint64, samples: Samples, begin: int, end: int) -> None:
    """``choose`` has filled the samples."""
