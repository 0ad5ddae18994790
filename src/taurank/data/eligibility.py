"""Which cells could have been recommended: a table of visits (user, time) and one of candidates (items, by time).

A user counts at the times of their visits and an item at the times it could be chosen. By default everything is
eligible: users × items × times. With tables the eligible cells are visitors of a time ×
candidates of that time, or, where every user has candidates of their own, a list. The product is never written
out: visits and candidates are sorted integers, and the counts follow from how many there are at each time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from taurank._types import Longs, Mask
from taurank.data.ids import Catalog
from taurank.errors import InputError


class OwnVisits(NamedTuple):
    """Visits with candidates of their own: visit v has the listed cells ``start[v] : start[v + 1]``."""

    user: Longs
    time: Longs
    start: Longs


@dataclass(frozen=True, eq=False)
class Eligibility:
    """Which cells could have been recommended; positions are those of the catalog of the log.

    ``visitors`` are the users of each time and ``candidates`` its items; ``listed`` (cell numbers by time, user and
    item, sorted) replaces both where candidates differ between users. ``outside`` counts the recommendations and the
    outcomes that were set aside because their cells are not eligible.
    """

    visitors: Members
    candidates: Members
    listed: Longs | None = None
    outside: tuple[int, int] = (0, 0)

    @classmethod
    def everything(cls, catalog: Catalog) -> Eligibility:
        """Every user, item and time."""
        return cls(Members(catalog.n_users, catalog.n_times), Members(catalog.n_items, catalog.n_times))

    @classmethod
    def from_positions(
        cls, catalog: Catalog, visits: tuple[Any, Any] | None = None,
        candidates: tuple[Any, Any, Any] | None = None, *, outside: tuple[int, int] = (0, 0),
    ) -> Eligibility:  # fmt: skip
        """From positions: visits are (users, times), candidates (users, items, times).

        None instead of an array means "all of them": candidates (None, items, None) are items for everyone at any
        time. Repeated rows count once.
        """
        visitors = Members.from_positions(catalog.n_users, catalog.n_times, *(visits or (None, None)))
        users, items, times = candidates or (None, None, None)
        same = Members.from_positions(catalog.n_items, catalog.n_times, items if users is None else None, times)
        limits = cls(visitors, same, None, outside)
        if users is None:
            return limits
        if times is None and catalog.n_times > 1:
            raise InputError("candidates with a user_id need a time as well; add the column to the table.")
        return limits._list(users, items, np.zeros(len(users), np.int64) if times is None else times)

    @classmethod
    def from_arrays(cls, catalog: Catalog, arrays: Mapping[str, Longs], outside: Sequence[int]) -> Eligibility:
        """The inverse of ``arrays``."""

        def members(name: str, size: int) -> Members:
            timed = f"{name}_timed" in arrays
            return Members(size, catalog.n_times, arrays.get(f"{name}_{'timed' if timed else 'always'}"), timed)

        visitors, candidates = members("visitors", catalog.n_users), members("candidates", catalog.n_items)
        return cls(visitors, candidates, arrays.get("listed"), (outside[0], outside[1]))

    def _list(self, users: Any, items: Any, times: Any) -> Eligibility:
        """The listed cells of visitors, instead of visitors and candidates."""
        listed = np.unique(self._number(users, items, times)[self.visitors.contains(users, times)])
        return replace(self, visitors=Members(self.visitors.size, self.visitors.n_times), listed=listed)

    @property
    def is_everything(self) -> bool:
        """Whether every user, item and time is eligible."""
        return self.candidates.codes is None and not self.has_visits

    @property
    def has_visits(self) -> bool:
        """Whether users count at some times only."""
        return self.visitors.codes is not None or self.listed is not None

    @property
    def shape(self) -> tuple[int, int, int]:
        """Users, items and times of the catalog."""
        return self.visitors.size, self.candidates.size, self.visitors.n_times

    @cached_property
    def cells(self) -> int:
        if self.listed is not None:
            return len(self.listed)
        pairs = zip(self.visitors.by_time.tolist(), self.candidates.by_time.tolist(), strict=True)
        return sum(visitors * candidates for visitors, candidates in pairs)

    @cached_property
    def cells_by_user(self) -> Longs:
        return self._count_listed(0) if self.listed is not None else self.visitors.sums(self.candidates.by_time)

    @cached_property
    def cells_by_item(self) -> Longs:
        return self._count_listed(1) if self.listed is not None else self.candidates.sums(self.visitors.by_time)

    @cached_property
    def cells_by_time(self) -> Longs:
        return self._count_listed(2) if self.listed is not None else self.visitors.by_time * self.candidates.by_time

    def _count_listed(self, axis: int) -> Longs:
        return np.bincount(self.cell(np.arange(self.cells))[axis], minlength=self.shape[axis])

    def visits(self, users: Mask) -> tuple[Longs, Longs]:
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
        visit, start = np.unique(self.listed // self.shape[1], return_index=True)
        time, user = np.divmod(visit, self.shape[0])
        return OwnVisits(user, time, np.append(start, len(self.listed)))

    def position(self, users: Any, items: Any, times: Any) -> Longs:
        """Where listed cells, given as positions, are in the list."""
        assert self.listed is not None
        return np.searchsorted(self.listed, self._number(users, items, times))

    def contains(self, users: Any, items: Any, times: Any) -> Mask:
        """Whether cells, given as positions, are eligible."""
        users, items, times = np.broadcast_arrays(users, items, times)
        if self.listed is not None:
            return is_among(self._number(users, items, times), self.listed)
        return self.visitors.contains(users, times) & self.candidates.contains(items, times)

    def cell(self, number: Any) -> tuple[Longs, Longs, Longs]:
        """User, item and time of the eligible cells with these numbers, 0 … cells − 1, by time, user and item."""
        number = np.asarray(number, np.int64)
        if self.listed is not None:
            rest, item = np.divmod(self.listed[number], self.shape[1])
            time, user = np.divmod(rest, self.shape[0])
            return user, item, time
        start = np.concatenate([[0], np.cumsum(self.cells_by_time)])
        time = np.searchsorted(start, number, side="right") - 1
        visitor, candidate = np.divmod(number - start[time], self.candidates.by_time[time])
        return self.visitors.nth(visitor, time), self.candidates.nth(candidate, time), time

    def _number(self, users: Any, items: Any, times: Any) -> Longs:
        number: Longs = (np.asarray(times, np.int64) * self.shape[0] + users) * self.shape[1] + items
        return number

    def reindex(self, catalog: Catalog, user: Any, item: Any, time: Any) -> Eligibility:
        """The same in another catalog: the new position of each user, item and time, −1 where it is left out."""
        visitors = self.visitors.reindex(catalog.n_users, catalog.n_times, user, time)
        candidates = self.candidates.reindex(catalog.n_items, catalog.n_times, item, time)
        moved = replace(self, visitors=visitors, candidates=candidates, listed=None)
        if self.listed is None:
            return moved
        old = self.cell(np.arange(self.cells))
        new = [where[codes] for where, codes in zip((user, item, time), old, strict=True)]
        kept = np.minimum.reduce(new) >= 0
        return moved._list(*(codes[kept] for codes in new))

    def concat(self, other: Eligibility, times: Any, other_times: Any) -> Eligibility:
        """The cells of both, in one catalog: at the times of each its own."""
        if self.is_everything and other.is_everything:
            return self
        if self.listed is not None or other.listed is not None:
            raise InputError(
                "logs whose candidates differ between users cannot be joined; fit to the whole log instead."
            )
        visitors = self.visitors.concat(other.visitors, times, other_times)
        candidates = self.candidates.concat(other.candidates, times, other_times)
        treated, outcomes = (own + others for own, others in zip(self.outside, other.outside, strict=True))
        return Eligibility(visitors, candidates, None, (treated, outcomes))

    def with_items(self, first: int) -> Eligibility:
        """The same, where all items are candidates at all times, with the first ones of the catalog alone."""
        if self.candidates.codes is not None or self.listed is not None:
            return self
        return replace(self, candidates=replace(self.candidates, codes=np.arange(first)))

    def arrays(self) -> dict[str, Longs]:
        """The sorted integers that describe it, for a file or a fingerprint."""
        both = (("visitors", self.visitors), ("candidates", self.candidates))
        parts = {f"{name}_{'timed' if own.timed else 'always'}": own.codes for name, own in both}
        return {name: codes for name, codes in {**parts, "listed": self.listed}.items() if codes is not None}


@dataclass(frozen=True, eq=False)
class Members:
    """The users that visit, or the items that are candidates, at each time.

    ``codes`` is None (all of ``size``, always), sorted positions that belong to every time, or, with ``timed``,
    sorted time · size + position. So there is a group of members for each time, or one for all times.
    """

    size: int
    n_times: int
    codes: Longs | None = None
    timed: bool = False

    @classmethod
    def from_positions(cls, size: int, n_times: int, codes: Any, times: Any) -> Members:
        if codes is None:
            return cls(size, n_times)
        codes = np.asarray(codes, np.int64)
        keys = codes if times is None else np.asarray(times, np.int64) * size + codes
        return cls(size, n_times, np.unique(keys), times is not None)

    @cached_property
    def _group(self) -> Longs:
        return np.arange(self.n_times) * self.timed

    @cached_property
    def _members(self) -> tuple[Longs, Longs, Longs]:
        """Where each group begins, and the group and the position of each member."""
        group, code = np.divmod(np.arange(self.size) if self.codes is None else self.codes, max(self.size, 1))
        return np.searchsorted(group, np.arange(self._group.max(initial=0) + 2)), group, code

    @cached_property
    def by_time(self) -> Longs:
        """How many there are at each time."""
        return np.diff(self._members[0])[self._group]

    def count_by_time(self, chosen: Mask) -> Longs:
        start, group, code = self._members
        return np.bincount(group[chosen[code]], minlength=len(start) - 1)[self._group]

    def sums(self, weight: Longs) -> Longs:
        """For each member the sum of a weight by time over its times."""
        start, group, code = self._members
        total, sums = np.zeros(len(start) - 1, np.int64), np.zeros(self.size, np.int64)
        np.add.at(total, self._group, weight)  # exact: a weighted bincount rounds above 2^53
        np.add.at(sums, code, total[group])
        return sums

    def contains(self, codes: Any, times: Any) -> Mask:
        if self.codes is None:
            return np.ones(np.shape(codes), np.bool_)
        return is_among(self._group[times] * self.size + codes, self.codes)

    def nth(self, rank: Longs, time: Longs) -> Longs:
        """The member with this rank, from 0, among those of its time."""
        start, _, code = self._members
        return np.asarray(code[start[self._group[time]] + rank])

    def reindex(self, size: int, n_times: int, code: Any, time: Any) -> Members:
        """The same with new positions, −1 where one is left out."""
        if self.codes is None:
            return Members(size, n_times)
        _, group, old = self._members
        new, when = code[old], time[group] if self.timed else None
        kept = new >= 0 if when is None else (new >= 0) & (when >= 0)
        return Members.from_positions(size, n_times, new[kept], None if when is None else when[kept])

    def concat(self, other: Members, times: Any, other_times: Any) -> Members:
        keys = [own._keys_at(when) for own, when in ((self, times), (other, other_times))]
        return Members(self.size, self.n_times, np.union1d(*keys), timed=True)

    def _keys_at(self, times: Any) -> Longs:
        _, group, code = self._members
        if self.timed:
            at = np.isin(group, times)
            return group[at] * self.size + code[at]
        return np.add.outer(np.unique(times) * np.int64(self.size), code).ravel()


def is_among(keys: Longs, known: Longs) -> Mask:
    if not len(known):
        return np.zeros(keys.shape, np.bool_)
    return np.asarray(known[np.minimum(np.searchsorted(known, keys), len(known) - 1)] == keys)
