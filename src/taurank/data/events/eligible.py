"""Visits and candidates of a shop in the database: which cells of the log could have been recommended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from taurank.data.eligibility import Eligibility
from taurank.data.events.tables import EventTable
from taurank.data.ids import Catalog
from taurank.errors import InputError

_CODES = {"user_id": "user_code", "item_id": "item_code", "timestamp": "period"}


class EligibleCells:
    """The two tables, if they were given, by positions in the catalog and within the periods of the log."""

    def __init__(self, database: Any, tables: Mapping[str, EventTable], first: int, last: int) -> None:
        self.database, self.first = database, first
        self.keys = {name: _keys(table) for name, table in tables.items() if name in ("visits", "candidates")}
        for name, keys in self.keys.items():
            within = f"WHERE period BETWEEN {first} AND {last}" if "period" in keys else ""
            database.execute(f"CREATE TABLE {name}_cells AS SELECT DISTINCT {', '.join(keys)} FROM {name} {within}")
            if not database.execute(f"SELECT count(*) FROM {name}_cells").fetchall()[0][0]:
                raise InputError(f"none of the {name} falls into the periods of the log; are their dates right?")

    def __bool__(self) -> bool:
        return bool(self.keys)

    def flagged(self, cells: str) -> str:
        """A query for the rows of ``cells``, with the column eligible."""
        joins = "".join(
            f" LEFT JOIN (SELECT *, TRUE AS in_{name} FROM {name}_cells) {name} USING ({', '.join(keys)})"
            for name, keys in self.keys.items()
        )
        eligible = " AND ".join(f"coalesce(in_{name}, FALSE)" for name in self.keys)
        return f"SELECT cells.*, {eligible} AS eligible FROM {cells} cells{joins}"

    def collect(self, catalog: Catalog, treated_outside: int, outcomes_outside: int) -> Eligibility:
        """Out of the database, for the log."""
        if not self:
            return Eligibility.everything(catalog)
        visits, candidates = (self._columns(name) for name in ("visits", "candidates"))
        return Eligibility.of(
            catalog,
            (visits.get("user_code"), visits.get("period")) if visits else None,
            (candidates.get("user_code"), candidates["item_code"], candidates.get("period")) if candidates else None,
            treated_outside=treated_outside,
            outcomes_outside=outcomes_outside,
        )

    def _columns(self, name: str) -> dict[str, Any]:
        if name not in self.keys:
            return {}
        columns: dict[str, Any] = self.database.execute(f"SELECT * FROM {name}_cells").fetchnumpy()
        if "period" in columns:
            columns["period"] = columns["period"] - self.first
        return columns


def _keys(table: EventTable) -> list[str]:
    """The columns that a table of eligible cells has: visits a user and a period, candidates an item at least."""
    keys = [code for column, code in _CODES.items() if table.has(column)]
    if table.name == "candidates" and "user_code" in keys and "period" not in keys:
        raise InputError("candidates with a user_id need a timestamp as well; add the column to the table.")
    return keys
