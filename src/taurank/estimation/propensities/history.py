"""The past of a pair: how often an item was shown to a user, or bought, before a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from taurank.data.ids import Catalog
from taurank.data.log import Log
from taurank.errors import InputError

Longs = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class PairHistory:
    """Events by pair and time: sorted numbers (user · items + item) · times + time."""

    n_items: int
    n_times: int
    events: Longs

    @classmethod
    def of(cls, log: Log, rows: Bools) -> PairHistory:
        """The history of the given rows of a log."""
        refuse_too_many_cells(log.catalog)
        chosen = np.flatnonzero(rows)
        history = cls(log.n_items, log.n_times, np.empty(0, np.int64))
        events = history.pair(log.user[chosen], log.item[chosen])
        events *= log.n_times
        events += log.time[chosen]
        events.sort()
        return cls(log.n_items, log.n_times, events)

    def pair(self, user: Any, item: Any) -> Longs:
        """The number of a pair."""
        number: Longs = np.asarray(user, np.int64) * self.n_items
        number += item
        return number

    def before(self, user: Any, item: Any, time: Any) -> tuple[Longs, Longs]:
        """How many events each pair had before a time, and how long ago the last one was (0: never)."""
        first = self.pair(user, item)
        first *= self.n_times
        begin = np.searchsorted(self.events, first)
        end = np.searchsorted(self.events, first + time)
        count = end - begin
        ago = np.zeros_like(count)
        some = count > 0
        ago[some] = (first + time)[some] - self.events[end[some] - 1]
        return count, ago

    def first_events(self) -> tuple[Longs, Longs]:
        """The pairs with an event, and the time of the first; each has a past at all later times."""
        pair, time = np.divmod(self.events, self.n_times)
        first = np.append(True, pair[1:] != pair[:-1])[: len(pair)]
        return pair[first], time[first]


def refuse_too_many_cells(catalog: Catalog) -> None:
    if catalog.n_cells >= 2**63:
        raise InputError("the past of pairs is limited to 2^63 combinations of user, item and time.")
