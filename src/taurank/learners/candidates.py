"""What a list may hold: the same items for everybody, items of a user's own, or what a log says could be shown."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from taurank import _arrays
from taurank._choices import OnUnknownItem
from taurank._jit import compiled
from taurank.data import sources
from taurank.data.ids import Codes, Ids, to_array
from taurank.data.log import Log
from taurank.errors import InputError, plural, show
from taurank.evaluation.ranking_tables import is_table

_BY_TIME = ("time", "timestamp")


@dataclass(frozen=True)
class Candidates:
    """The only items to choose from: ``for_all``, or those of each user in ``owners``; None means no limit."""

    for_all: Codes | None = None
    owners: Ids | None = None
    start: npt.NDArray[np.int64] | None = None
    item: Codes | None = None

    @classmethod
    def of(cls, candidates: Any, items: Ids, on_unknown: OnUnknownItem) -> Candidates:
        """From a log, a table with item_id[, user_id], or ids of items."""
        if candidates is None:
            return cls()
        users, ids = _columns(candidates)
        code = items.encode(ids)
        _check_known(ids, code, on_unknown)
        known = code >= 0
        if users is None:
            return cls(np.unique(code[known]))
        owners = Ids(pc.unique(users), "user_id")
        start, (own,) = _arrays.group(owners.encode(users)[known], len(owners), code[known])
        return cls(None, owners, start, own)

    def lists_of(self, users: pa.Array) -> Codes:
        """The number of each user's own list, −1 without one."""
        return np.full(len(users), -1, np.int32) if self.owners is None else self.owners.encode(users)

    def keep(self, scores: npt.NDArray[Any], lists: Codes) -> None:
        """Put what is not on each row's own list at −∞, in place."""
        if self.owners is not None:
            _keep_own(scores, lists, self.start, self.item)


def _columns(candidates: Any) -> tuple[pa.Array | None, pa.Array]:
    """User ids, or None if the items are for all, and item ids."""
    if isinstance(candidates, Log):
        return _of_log(candidates)
    if not is_table(candidates):
        return None, to_array(candidates, "item_id")
    table = sources.to_arrow(candidates)
    if "item_id" not in table.column_names:
        raise InputError("candidates need a column 'item_id', and 'user_id' if they differ between users.")
    check_timeless(table.column_names)
    users = to_array(table["user_id"], "user_id") if "user_id" in table.column_names else None
    return users, to_array(table["item_id"], "item_id")


def check_timeless(columns: Sequence[str]) -> None:
    """A list is for one time; a table of several would mix their items."""
    timed = [name for name in _BY_TIME if name in columns]
    if timed:
        raise InputError(
            f"candidates have a column '{timed[0]}', but a list is for one time; keep the rows of that time, and "
            "leave the column out."
        )


def _of_log(log: Log) -> tuple[pa.Array | None, pa.Array]:
    """What could be shown at the last time of a log."""
    limits = log.eligibility
    if limits.is_everything:
        return None, log.items.values
    if limits.listed is None:
        items = np.arange(log.n_items)
        return None, log.items.decode(items[limits.candidates.contains(items, np.full(log.n_items, log.n_times - 1))])
    last = limits.cells - int(limits.cells_by_time[-1])
    user, item, _ = limits.cell(np.arange(last, limits.cells))
    return log.users.decode(user), log.items.decode(item)


def _check_known(ids: pa.Array, codes: Codes, on_unknown: OnUnknownItem) -> None:
    if on_unknown == "drop" or not (codes < 0).any():
        return
    text = unknown_ids("candidate", pc.unique(ids.filter(pa.array(codes < 0))))
    if on_unknown == "raise":
        choice = "set on_unknown_item (--on-unknown-items) to 'warn' or 'drop'"
        raise InputError(f"{text}; leave them out, or {choice}.")
    warnings.warn(f"{text}; they are never recommended.", stacklevel=7)


def unknown_ids(noun: str, missing: pa.Array) -> str:
    verb = "is" if len(missing) == 1 else "are"
    return (
        f"{plural(len(missing), noun)} {verb} not in the log this model was fitted to, for example {show(missing[0])}"
    )


@compiled
def _keep_own(scores: Any, lists: Any, start: Any, item: Any) -> None:
    for row in range(scores.shape[0]):
        one = scores[row]
        first, last = 0, 0
        if lists[row] >= 0:
            first, last = start[lists[row]], start[lists[row] + 1]
        own = np.empty(last - first, scores.dtype)
        for j in range(last - first):
            own[j] = one[item[first + j]]
        one[:] = -np.inf
        for j in range(last - first):
            one[item[first + j]] = own[j]
