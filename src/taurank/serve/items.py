"""The item table: what can be bought, until when, and of which category.

Every change is a row of its own with the version of the whole table. A decision stores the version that it saw, so
that it can be repeated. An item that is not in the table can always be shown; one that is in it is eligible without
being named by a model or a request.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from sqlalchemy import Connection, insert, select

from taurank._types import Longs
from taurank.serve import tables
from taurank.serve.schemas import Item
from taurank.serve.store import Store, setting, upsert

COLUMNS = ("available", "until", "category")
_CHUNK = 500  # ids per query


class State(NamedTuple):
    """An item at some version of the table."""

    available: bool = True
    until: float | None = None
    category: str | None = None


def put_items(store: Store, items: Iterable[Item]) -> int:
    """Add items to the table, or change what is named of them; returns how many rows changed."""
    given = {item.item_id: item.model_dump(include=set(COLUMNS), exclude_unset=True) for item in items}
    lock = select(tables.settings.c.value).where(tables.settings.c.name == "salt").with_for_update()
    with store.write() as connection:
        connection.execute(lock)  # a version belongs to one change
        version = int(setting(connection, "items") or 0) + 1
        changed = []
        for first in range(0, len(given), _CHUNK):
            names = sorted(given)[first : first + _CHUNK]
            before = _latest(connection, tables.items.c.item_id.in_(names))
            for name in names:
                values = {**before.get(name, State())._asdict(), **given[name]}
                if values["until"] is not None and not isinstance(values["until"], float):
                    values["until"] = values["until"].timestamp()
                if name not in before or State(**values) != before[name]:
                    changed.append({"item_id": name, "version": version, **values})
        if changed:
            connection.execute(insert(tables.items), changed)
            upsert(connection, tables.settings, [{"name": "items", "value": str(version)}])
    return len(changed)


def list_items(store: Store) -> dict[str, State]:
    """The table as it is now."""
    with store.read() as connection:
        return _latest(connection, tables.items.c.version > 0)


def _latest(connection: Connection, condition: Any) -> dict[str, State]:
    table = tables.items.c
    rows = connection.execute(select(tables.items).where(condition).order_by(table.version)).mappings()
    return {row["item_id"]: State(*(row[name] for name in COLUMNS)) for row in rows}


class Stock:
    """Items by code: until when each can be shown, and its category; one without a category is one of its own."""

    def __init__(self, items: Sequence[str], states: Mapping[str, State]) -> None:
        self.items = items
        self.until = np.full(len(items), np.inf)
        codes: dict[str, int] = {}
        self.category: Longs = np.arange(len(items))
        self.place = {item: code for code, item in enumerate(items)}
        for item in self.place.keys() & states.keys():
            state, code = states[item], self.place[item]
            if not state.available or state.until is not None:
                self.until[code] = state.until if state.available and state.until is not None else -np.inf
            if state.category is not None:
                self.category[code] = codes.setdefault(state.category, len(items) + len(codes))

    def open(self, time: float, dropped: Iterable[str]) -> Longs:
        """Codes of the items that can be shown at a time, without those that are dropped."""
        may = self.until > time
        may[[self.place[item] for item in dropped if item in self.place]] = False
        return np.flatnonzero(may)


class ItemTable:
    """All changes of the item table in memory, read when a version is asked for that is later than those known."""

    def __init__(self, store: Store) -> None:
        self._store, self.version = store, 0
        self._changes: list[tuple[int, str, State]] = []
        self.at = lru_cache(4)(self._at)

    def _at(self, version: int) -> dict[str, State]:
        """The table as it was at a version."""
        if version > self.version:
            table = tables.items.c
            new = select(tables.items).where(table.version > self.version).order_by(table.version)
            rows = self._store.rows(new)
            changes = [(row["version"], row["item_id"], State(*(row[name] for name in COLUMNS))) for row in rows]
            self._changes, self.version = self._changes + changes, max(version, *(row[0] for row in changes))
        return {item: state for number, item, state in self._changes if number <= version}


def closed(states: Mapping[str, State], items: Iterable[str], time: float) -> set[str]:
    """Which of these items cannot be shown at a time."""
    gone = {item: states[item] for item in items if item in states}
    return {
        item for item, state in gone.items()
        if not state.available or (state.until is not None and state.until <= time)
    }  # fmt: skip
