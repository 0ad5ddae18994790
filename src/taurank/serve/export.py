"""Settled periods as a ``Log``, ready for ``fit``, with the visits beside it.

One row per item that was shown, or bought without being shown, with the recorded or replayed π. A user who did
not visit in a period has no decision and so no rows there, and the visits table says so: it has one row per
user and time at which a list was drawn.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from sqlalchemy import select

from taurank.data.log import Log
from taurank.data.tables import write_batches
from taurank.serve import tables
from taurank.serve.decisions import Decider
from taurank.serve.recorder import Row
from taurank.serve.store import Conflict
from taurank.serve.surfaces import Surface

_CHUNK = 5000


@dataclass(frozen=True)
class Export:
    """A log, and who visited when."""

    log: Log
    visits: pa.Table

    def write(self, folder: str | os.PathLike[str]) -> tuple[Path, Path]:
        """``log.parquet`` and ``visits.parquet`` in the folder."""
        Path(folder).mkdir(parents=True, exist_ok=True)
        log, visits = Path(folder) / "log.parquet", Path(folder) / "visits.parquet"
        self.log.write(log)
        write_batches(visits, self.visits.schema, self.visits.to_batches())
        return log, visits


def export(decider: Decider, surface: Surface, last: int | None = None) -> Export:
    """All settled periods of a surface, or the ``last`` so many."""
    periods = settled_periods(decider, surface, last)
    if not periods:
        raise Conflict(f"surface '{surface.name}' has no settled period yet; wait until one has ended.")
    columns: dict[str, list[Any]] = {
        name: [] for name in ("user_id", "item_id", "time", "treated", "outcome", "propensity", "value")
    }
    visits: dict[str, list[str]] = {"user_id": [], "time": []}
    models: set[str] = set()
    for decision, positives in drawn_decisions(decider, surface, periods):
        name = surface.periods.name(decision["period"])
        visits["user_id"].append(decision["user_id"])
        visits["time"].append(name)
        if decision["model"] is not None:
            models.add(decision["model"])
        for item, *rest in _cells(decision, positives):
            values = (decision["user_id"], item, name, *rest)
            for column, value in zip(columns.values(), values, strict=True):
                column.append(value)
    items = sorted({*columns["item_id"], *(item for version in models for item in decider.models.get(version).items)})
    table = pa.table({**columns, "treated": pa.array(columns["treated"], pa.int8()),
                      "outcome": pa.array(columns["outcome"], pa.int8())})  # fmt: skip
    names = [surface.periods.name(number) for number in periods]
    if surface.outcome != "value":  # a learner would weigh purchases by a column of values
        table = table.drop_columns(["value"])
    visited = pa.table(visits)
    log = Log.from_frame(table, users=sorted(set(visits["user_id"])), items=items, times=names, visits=visited)
    return Export(log, visited)


def settled_periods(decider: Decider, surface: Surface, last: int | None = None) -> list[int]:
    table = tables.settled
    query = select(table.c.period).where(table.c.surface == surface.name).order_by(table.c.period.desc())
    rows = decider.store.rows(query if last is None else query.limit(last))
    return sorted(row["period"] for row in rows)


def drawn_decisions(decider: Decider, surface: Surface, periods: list[int]) -> Iterator[tuple[Row, list[Row]]]:
    """Decisions with a list, each with its positives, period by period."""
    table = tables.decisions
    for number in periods:
        at = (table.c.surface == surface.name) & (table.c.period == number) & (table.c.shown != "[]")
        decisions = decider.store.rows(select(table).where(at).order_by(table.c.user_id))
        for first in range(0, len(decisions), _CHUNK):
            part = decisions[first : first + _CHUNK]
            positives = _positives_of(decider, [row["id"] for row in part])
            for decision in part:
                yield decision, positives.get(decision["id"], [])


def _positives_of(decider: Decider, ids: list[str]) -> dict[str, list[Row]]:
    grouped: dict[str, list[Row]] = {}
    for row in decider.store.rows(select(tables.positives).where(tables.positives.c.decision.in_(ids))):
        grouped.setdefault(row["decision"], []).append(row)
    return grouped


def _cells(decision: Row, positives: list[Row]) -> Iterator[tuple[str, int, int, float, float]]:
    """Item, treated, outcome, propensity and value; a log has no negative values (refunds), so they are 0 there."""
    bought = {row["item_id"]: row for row in positives}
    for item, pi in zip(json.loads(decision["shown"]), json.loads(decision["propensities"]), strict=True):
        yield item, 1, int(item in bought), pi, max(0.0, bought[item]["value"]) if item in bought else 0.0
    for item, row in sorted(bought.items()):
        if not row["treated"]:
            yield item, 0, 1, row["propensity"], max(0.0, row["value"])
