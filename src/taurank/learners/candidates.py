"""What a list may hold: items for everybody, items of a user's own, or what a log says could be shown; less what is
excluded."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from taurank import _arrays
from taurank._choices import UnknownItems
from taurank._jit import compiled
from taurank._types import Codes, Floats32, Longs
from taurank.data import tables
from taurank.data.ids import Ids, to_array
from taurank.data.log import Log
from taurank.errors import InputError, plural, show
from taurank.evaluation.rankers import is_table

_BY_TIME = ("time", "timestamp")


@dataclass(frozen=True)
class Lists:
    """Items of some users: those of ``owners[n]`` are ``item[start[n] : start[n + 1]]``."""

    owners: Ids
    start: Longs
    item: Codes

    @classmethod
    def of(cls, users: pa.Array, item: Codes) -> Lists:
        """From pairs; −1 stands for an item that is left out."""
        owners, known = Ids(pc.unique(users), "user_id"), item >= 0
        start, (items,) = _arrays.group(owners.encode(users)[known], len(owners), item[known])
        return cls(owners, start, items)


@dataclass(frozen=True)
class Limits:
    """The items that can be listed for anybody, in catalog order, and of them the only ones or the excluded ones of
    some users."""

    items: Codes
    of_catalog: int
    own: Lists | None
    excluded: Lists | None

    @classmethod
    def of(cls, candidates: Any, exclude: Any, items: Ids, unknown_items: UnknownItems) -> Limits:
        """Candidates and exclusions are logs or tables with ``item_id`` and perhaps ``user_id``; candidates may also
        be ids of items. An unknown item excludes nothing."""
        allowed = np.ones(len(items), np.bool_)
        own = excluded = None
        if candidates is not None:
            users, ids = _candidates(candidates)
            item = items.encode(ids)
            _check_known(ids, item, unknown_items)
            if users is None:
                allowed[:] = False
                allowed[item[item >= 0]] = True
            else:
                own = (users, item)
        if exclude is not None:
            users, item = _excluded(exclude, items)
            if users is None:
                allowed[item[item >= 0]] = False
            else:
                excluded = (users, item)
        position = np.where(allowed, np.cumsum(allowed) - 1, -1).astype(np.int32)
        position = np.append(position, np.int32(-1))  # of an unknown item
        lists = (None if pairs is None else Lists.of(pairs[0], position[pairs[1]]) for pairs in (own, excluded))
        return cls(np.flatnonzero(allowed).astype(np.int32), len(items), *lists)

    def narrow(self, values: Any, axis: int = 0) -> Any:
        """The values of the items that can be listed."""
        return values if len(self.items) == self.of_catalog else np.take(values, self.items, axis=axis)

    def hiding(self, users: pa.Array) -> Callable[[int, Floats32], None]:
        """A function that puts what is not for these users at −∞, in scores of the items from ``first`` on."""
        lists = [
            (hide, each.owners.encode(users), each)
            for hide, each in ((_hide_others, self.own), (_hide_listed, self.excluded))
            if each is not None
        ]

        def hide_all(first: int, scores: Floats32) -> None:
            for hide, number, each in lists:
                hide(scores, first, number, each.start, each.item)

        return hide_all


def _candidates(candidates: Any) -> tuple[pa.Array | None, pa.Array]:
    """User ids, or None if the items are for all, and item ids."""
    if isinstance(candidates, Log):
        return _of_log(candidates)
    if not is_table(candidates):
        return None, to_array(candidates, "item_id")
    table = tables.to_arrow(candidates)
    check_timeless(table.column_names)
    users, items = _columns(table, "candidates need")
    return users, to_array(items, "item_id")


def _columns(rows: Any, needs: str) -> tuple[pa.Array | None, Any]:
    table = tables.to_arrow(rows)
    if "item_id" not in table.column_names:
        raise InputError(f"{needs} a column 'item_id', and 'user_id' if the items differ between users.")
    users = to_array(table["user_id"], "user_id") if "user_id" in table.column_names else None
    return users, table["item_id"]


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


def _excluded(exclude: Any, items: Ids) -> tuple[pa.Array | None, Codes]:
    """User ids, or None if nobody may get the items, and positions of items."""
    if isinstance(exclude, Log):
        bought = np.flatnonzero(exclude.outcome == 1)
        return exclude.users.decode(exclude.user[bought]), items.encode(exclude.items.values)[exclude.item[bought]]
    users, ids = _columns(exclude, "exclude needs")
    return users, items.encode(ids)


def _check_known(ids: pa.Array, codes: Codes, unknown_items: UnknownItems) -> None:
    if unknown_items == "drop" or not (codes < 0).any():
        return
    text = unknown_ids("candidate", pc.unique(ids.filter(pa.array(codes < 0))))
    if unknown_items == "raise":
        choice = "set unknown_items (--unknown-items) to 'warn' or 'drop'"
        raise InputError(f"{text}; leave them out, or {choice}.")
    warnings.warn(f"{text}; they are never recommended.", stacklevel=7)


def unknown_ids(noun: str, missing: pa.Array) -> str:
    verb = "is" if len(missing) == 1 else "are"
    return (
        f"{plural(len(missing), noun)} {verb} not in the log this model was fitted to, for example {show(missing[0])}"
    )


@compiled
def _hide_listed(scores: Any, first: Any, number: Any, start: Any, item: Any) -> None:
    """Put the items of each row's list at −∞; ``number`` is −1 for a row without one."""
    for row in range(len(scores)):
        if number[row] >= 0:
            for n in range(start[number[row]], start[number[row] + 1]):
                if first <= item[n] < first + scores.shape[1]:
                    scores[row, item[n] - first] = -np.inf


@compiled
def _hide_others(scores: Any, first: Any, number: Any, start: Any, item: Any) -> None:
    """Put what is not on each row's list at −∞; a row without one has nothing."""
    for row in range(len(scores)):
        listed = np.zeros(scores.shape[1], np.bool_)
        if number[row] >= 0:
            for n in range(start[number[row]], start[number[row] + 1]):
                if first <= item[n] < first + scores.shape[1]:
                    listed[item[n] - first] = True
        for j in range(scores.shape[1]):
            if not listed[j]:
                scores[row, j] = -np.inf
