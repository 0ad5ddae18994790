"""Which column of a shop's table serves which of ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from taurank.errors import InputError, show

# name of the table: the columns it needs, and those it may have
TABLES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "impressions": (("user_id", "item_id", "timestamp"), ("propensity",)),
    "outcomes": (("user_id", "item_id", "timestamp"), ("propensity", "value")),
    "visits": (("user_id", "timestamp"), ()),
    "candidates": (("item_id",), ("user_id", "timestamp")),
}


class Renames:
    """The caller's names of columns: ``{"user_id": "customer", "outcomes.timestamp": "bought_at"}``.

    A name without a table is meant for every table that has such a column; a table that already has ours keeps it.
    """

    def __init__(self, columns: Any) -> None:
        if columns is not None and not isinstance(columns, Mapping):
            raise InputError(
                f"columns must map our names to yours, such as {{'user_id': 'customer'}}, got {columns!r}."
            )
        self.names: dict[str, str] = dict(columns or {})
        self.used: set[str] = set()
        for key, name in self.names.items():
            table, _, column = key.rpartition(".") if isinstance(key, str) else ("", "", "")
            if column not in _columns_of(table) or not isinstance(name, str):
                raise InputError(
                    f"columns has {show(key)}: {show(name)}; it maps {', '.join(_columns_of(''))}, or one of them in "
                    "one table such as outcomes.timestamp, to the name of a column."
                )

    def locate(self, table: str, present: Sequence[str]) -> tuple[dict[str, str], list[str]]:
        """Our columns and theirs, as far as the table has them, and the needed ones that it lacks."""
        needed, optional = TABLES[table]
        found: dict[str, str] = {}
        for column in (*needed, *optional):
            for key in (f"{table}.{column}", column):
                if self.names.get(key) in present:
                    found.setdefault(column, self.names[key])
                    self.used.add(key)
            if column in present and f"{table}.{column}" not in self.names:
                found.setdefault(column, column)
        return found, [column for column in needed if column not in found]

    def unused(self) -> list[str]:
        """The sentences about names that no table has."""
        return [
            f"columns maps '{key}' to '{name}', but no table has a column '{name}'."
            for key, name in self.names.items()
            if key not in self.used
        ]


def _columns_of(table: str) -> list[str]:
    tables = TABLES if not table else {table: TABLES.get(table, ((), ()))}
    return list(dict.fromkeys(column for needed, optional in tables.values() for column in (*needed, *optional)))
