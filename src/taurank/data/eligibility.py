"""Eligibility: the cells (user, item, time) at which an item could have been recommended.

A user who did not visit and an item that was not for sale could not have been recommended, so that such a cell
belongs neither to the treated nor to the untreated cells. The eligible cells are a product, visitors of a time ×
candidates of that time, or, where every user has candidates of their own, a list. The product is never written
out: visits and candidates are sorted integers, and the counts follow from how many there are at each time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from taurank.data.ids import Catalog
from taurank.errors import InputError

Longs = npt.NDArray[np.int64]
Cells = tuple[Longs, Longs, Longs]


class OwnVisits(NamedTuple):
    """Visits with candidates of their own: visit v has the listed cells ``start[v] : start[v + 1]``."""

    user: Longs
    time: Longs
    start: Longs


@dataclass(frozen=True, eq=False)
class Eligibility:
    """Which cells could have been recommended; positions are those of the catalog of the log.

    ``visitors`` are the users of each time and ``candidates`` its items; ``listed`` (cell numbers by time, user and
    item, sorted) replaces both where candidates differ between users. ``treated_outside`` and ``outcomes_outside``
    count the recommendations and outcomes that were set aside because their cells are not eligible.
    """

    visitors: Members
    candidates: Members
    listed: Longs | None = None
    treated_outside: int = 0
    outcomes_outside: int = 0

    @classmethod
    def of(
        cls,
        catalog: Catalog,
        visits: tuple[Any, Any] | None = None,
        candidates: tuple[Any, Any, Any] | None = None,
        *,
        treated_outside: int = 0,
        outcomes_outside: int = 0,
    ) -> Eligibility:
        """From positions: visits are (users, times), candidates (users, items, times).

        None instead of an array means "all of them": candidates (None, items, None) are items for everyone at any
        time. Repeated rows count once.
        """
        sizes = (catalog.n_users, catalog.n_items, catalog.n_times)
        users, times = visits or (None, None)
        visitors = Members.of(sizes[0], sizes[2], users, times)
        own_users, items, own_times = candidates or (None, None, None)
        if own_users is None:
            listed_items = Members.of(sizes[1], sizes[2], items, own_times)
            return cls(visitors, listed_items, None, treated_outside, outcomes_outside)
        if own_times is None and sizes[2] > 1:
            raise InputError("candidates with a user_id need a time as well; add the column to the table.")
        whole = cls(visitors, Members(sizes[1], sizes[2]), None, treated_outside, outcomes_outside)
        return whole._of_listed(own_users, items, 0 if own_times is None else own_times)

    def _of_listed(self, users: Any, items: Any, times: Any) -> Eligibility:
        users, items, times = (np.asarray(codes, np.int64) for codes in (users, items, times))
        self._check_countable()
        inside = self.visitors.contains(users, np.broadcast_to(times, users.shape))
        listed = np.unique(self._number(users, items, times)[inside])
        everyone = Members(self.visitors.size, self.visitors.n_times)
        return replace(self, visitors=everyone, listed=listed)

    def _check_countable(self) -> None:
        n_users, n_items, n_times = self.shape
        if n_users * n_items * n_times >= 2**63:
            raise InputError("candidates by user are limited to 2^63 combinations of user, item and time.")

    @classmethod
    def everything(cls, catalog: Catalog) -> Eligibility:
        """Every user, item and time."""
        return cls(Members(catalog.n_users, catalog.n_times), Members(catalog.n_items, catalog.n_times))

    @property
    def is_everything(self) -> bool:
        """Whether every user, item and time is eligible."""
        return self.visitors.codes is None and self.candidates.codes is None and self.listed is None

    @property
    def shape(self) -> tuple[int, int, int]:
        """Users, items and times of the catalog."""
        return self.visitors.size, self.candidates.size, self.visitors.n_times

    @property
    def has_visits(self) -> bool:
        """Whether users count at some times only."""
        return self.visitors.codes is not None or self.listed is not None

    @cached_property
    def cells(self) -> int:
        """How many cells are eligible."""
        if self.listed is not None:
            return len(self.listed)
        pairs = zip(self.visitors.by_time.tolist(), self.candidates.by_time.tolist(), strict=True)
        return sum(visitors * candidates for visitors, candidates in pairs)

    @cached_property
    def cells_by_user(self) -> Longs:
        """How many eligible cells each user has."""
        if self.listed is not None:
            return np.bincount(self.cell(np.arange(self.cells))[0], minlength=self.shape[0])
        return self.visitors.sums(self.candidates.by_time)

    @cached_property
    def cells_by_item(self) -> Longs:
        """How many eligible cells each item has."""
        if self.listed is not None:
            return np.bincount(self.cell(np.arange(self.cells))[1], minlength=self.shape[1])
        return self.candidates.sums(self.visitors.by_time)

    @cached_property
    def cells_by_time(self) -> Longs:
        """How many eligible cells each time has."""
        if self.listed is not None:
            return np.bincount(self.cell(np.arange(self.cells))[2], minlength=self.shape[2])
        return self.visitors.by_time * self.candidates.by_time

    def visits(self, users: npt.NDArray[np.bool_]) -> tuple[Longs, Longs]:
        """How many visits, (user, time) with an eligible cell, some users have: by user and by time."""
        n_users, _, n_times = self.shape
        if self.listed is not None:
            user, time, _ = self.own_visits
            time, user = time[users[user]], user[users[user]]
            return np.bincount(user, minlength=n_users), np.bincount(time, minlength=n_times)
        open_at = (self.candidates.by_time > 0).astype(np.int64)
        return np.where(users, self.visitors.sums(open_at), 0), self.visitors.count_by_time(users) * open_at

    @cached_property
    def own_visits(self) -> OwnVisits:
        """The visits of the listed cells, by time and user."""
        assert self.listed is not None
        visit = self.listed // self.shape[1]
        first = np.ones(len(visit), np.bool_)
        first[1:] = visit[1:] != visit[:-1]  # sorted, as the cells are
        time, user = np.divmod(visit[first], self.shape[0])
        return OwnVisits(user, time, np.append(np.flatnonzero(first), len(visit)))

    def position(self, users: Any, items: Any, times: Any) -> Longs:
        """Where listed cells, given as positions, are in the list."""
        assert self.listed is not None
        return np.searchsorted(self.listed, self._number(users, items, times))

    def contains(self, users: Any, items: Any, times: Any) -> npt.NDArray[np.bool_]:
        """Whether cells, given as positions, are eligible."""
        users, items, times = np.broadcast_arrays(users, items, times)
        if self.listed is not None:
            return is_among(self._number(users, items, times), self.listed)
        return self.visitors.contains(users, times) & self.candidates.contains(items, times)

    def cell(self, number: npt.ArrayLike) -> Cells:
        """User, item and time of the eligible cells with these numbers, 0 … cells − 1, by time, user and item."""
        number = np.asarray(number, np.int64)
        n_users, n_items, _ = self.shape
        if self.listed is not None:
            rest, item = np.divmod(self.listed[number], n_items)
            time, user = np.divmod(rest, n_users)
            return user, item, time
        start = np.concatenate([[0], np.cumsum(self.cells_by_time)])
        time = np.searchsorted(start, number, side="right") - 1
        visitor, candidate = np.divmod(number - start[time], self.candidates.by_time[time])
        return self.visitors.nth(visitor, time), self.candidates.nth(candidate, time), time

    def moved(self, catalog: Catalog, user: Longs, item: Longs, time: Longs) -> Eligibility:
        """The same in another catalog: the new position of each user, item and time, −1 where it is left out."""
        n_users, n_items, n_times = catalog.n_users, catalog.n_items, catalog.n_times
        visitors = self.visitors.moved(n_users, n_times, user, time)
        candidates = self.candidates.moved(n_items, n_times, item, time)
        if self.listed is None:
            return replace(self, visitors=visitors, candidates=candidates)
        old = self.cell(np.arange(self.cells))
        new = [where[codes] for where, codes in zip((user, item, time), old, strict=True)]
        kept = np.minimum.reduce(new) >= 0
        empty = replace(self, visitors=visitors, candidates=candidates, listed=None)
        return empty._of_listed(*(codes[kept] for codes in new))

    def _number(self, users: Any, items: Any, times: Any) -> Longs:
        n_users, n_items, _ = self.shape
        number: Longs = (np.asarray(times, np.int64) * n_users + users) * n_items + items
        return number

    def arrays(self) -> dict[str, Longs]:
        """The sorted integers that describe it, for a file or a fingerprint."""
        parts = {
            f"visitors_{self.visitors.form}": self.visitors.codes,
            f"candidates_{self.candidates.form}": self.candidates.codes,
            "listed": self.listed,
        }
        return {name: codes for name, codes in parts.items() if codes is not None}

    def numbers(self) -> tuple[int, int]:
        return self.treated_outside, self.outcomes_outside


@dataclass(frozen=True, eq=False)
class Members:
    """The users that visit, or the items that are candidates, at each time.

    ``codes`` is None (all of ``size``, always), sorted positions that belong to every time, or, with ``timed``,
    sorted time · size + position.
    """

    size: int
    n_times: int
    codes: Longs | None = None
    timed: bool = False

    def __post_init__(self) -> None:
        if self.codes is not None:
            self.codes.flags.writeable = False

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.__post_init__()

    @classmethod
    def of(cls, size: int, n_times: int, codes: Any, times: Any) -> Members:
        """From positions; None stands for all of them."""
        if codes is None and times is not None:  # e.g. the shop was open at these times
            codes = np.tile(np.arange(size), len(times := np.unique(times)))
            times = np.repeat(times, size)
        if codes is None:
            return cls(size, n_times)
        codes = np.asarray(codes, np.int64)
        keys = codes if times is None else np.asarray(times, np.int64) * size + codes
        return cls(size, n_times, np.unique(keys), times is not None)

    @property
    def form(self) -> str:
        return "timed" if self.timed else "always"

    @cached_property
    def by_time(self) -> Longs:
        """How many there are at each time."""
        if self.codes is None or not self.timed:
            return np.full(self.n_times, self.size if self.codes is None else len(self.codes), np.int64)
        return np.diff(self._start)

    @cached_property
    def _start(self) -> Longs:
        """Where the codes of each time begin."""
        return np.searchsorted(self._keys, np.arange(self.n_times + 1) * self.size)

    @property
    def _keys(self) -> Longs:
        assert self.codes is not None
        return self.codes

    def sums(self, weight: Longs) -> Longs:
        """For each member the sum of a weight by time over its times."""
        sums = np.zeros(self.size, np.int64)
        if self.timed:
            time, code = np.divmod(self._keys, self.size)
            np.add.at(sums, code, weight[time])  # exact: a weighted bincount rounds above 2^53
        else:
            sums[... if self.codes is None else self.codes] = weight.sum()
        return sums

    def count_by_time(self, chosen: npt.NDArray[np.bool_]) -> Longs:
        """How many of the chosen ones there are at each time."""
        if self.codes is None or not self.timed:
            here = chosen if self.codes is None else chosen[self.codes]
            return np.full(self.n_times, np.count_nonzero(here), np.int64)
        time, code = np.divmod(self.codes, self.size)
        return np.bincount(time[chosen[code]], minlength=self.n_times)

    def contains(self, codes: Any, times: Any) -> npt.NDArray[np.bool_]:
        """Whether each is a member at its time."""
        if self.codes is None:
            return np.ones(np.shape(codes), bool)
        keys = np.asarray(times, np.int64) * self.size + codes if self.timed else np.asarray(codes, np.int64)
        return is_among(keys, self.codes)

    def nth(self, rank: Longs, time: Longs) -> Longs:
        """The member with this rank, from 0, among those of its time."""
        if self.codes is None:
            return rank
        if not self.timed:
            return self.codes[rank]
        code: Longs = self.codes[self._start[time] + rank] - time * self.size
        return code

    def moved(self, size: int, n_times: int, code: Longs, time: Longs) -> Members:
        """The same with new positions, −1 where one is left out."""
        if self.codes is None:
            return Members(size, n_times)
        if not self.timed:
            kept = code[self.codes]
            return Members(size, n_times, np.unique(kept[kept >= 0]))
        old_time, old_code = np.divmod(self.codes, self.size)
        new_time, new_code = time[old_time], code[old_code]
        keep = (new_time >= 0) & (new_code >= 0)
        return Members.of(size, n_times, new_code[keep], new_time[keep])


def same_cells(one: Eligibility, other: Eligibility) -> bool:
    """Whether both mean the same cells by tables of the same form, and set aside as much."""
    mine, theirs = one.arrays(), other.arrays()
    alike = (one.shape, one.numbers(), list(mine)) == (other.shape, other.numbers(), list(theirs))
    return alike and all(np.array_equal(mine[name], theirs[name]) for name in mine)


def is_among(keys: npt.NDArray[Any], known: Longs) -> npt.NDArray[np.bool_]:
    """Whether each key is one of the sorted known ones."""
    if not len(known):
        return np.zeros(keys.shape, bool)
    position = np.searchsorted(known, keys)
    position[position == len(known)] = 0
    return np.asarray(known[position] == keys)
