"""What is deleted: a user, a surface, a model, and decisions that are older than a surface keeps them.

Sums of settled periods stay: they say nothing about a single user, except ``user_sums``, which go with the user.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import delete, func, or_, select

from taurank.serve import tables
from taurank.serve.imports import forget_features
from taurank.serve.store import Conflict, NotFound, Store
from taurank.serve.surfaces import check_model, named, note, read_surfaces

CHUNK = 5_000  # rows per transaction: recommendations go on meanwhile
_DAY = 86400.0


def forget_user(store: Store, user: str, now: float) -> dict[str, int]:
    """Delete all rows about a user; returns how many by table. A later export has nothing of her."""
    decisions = select(tables.decisions.c.id).where(tables.decisions.c.user_id == user)
    with store.write() as connection:
        gone = {"positives": connection.execute(
            delete(tables.positives).where(tables.positives.c.decision.in_(decisions))).rowcount}  # fmt: skip
        for table in (tables.results, tables.decisions, tables.outcomes, tables.user_sums):
            gone[table.name] = connection.execute(delete(table).where(table.c.user_id == user)).rowcount
        gone["features"] = forget_features(connection, user)
        if not any(gone.values()):
            raise NotFound("there is nothing about this user.")
        note(connection, "", "user deleted", None, "a user was deleted on request", now)
    return gone


def delete_surface(store: Store, name: str, now: float) -> None:
    """Delete a surface with its decisions and figures; it must have been switched off."""
    with store.read() as connection:
        if named(read_surfaces(connection), name).enabled:
            raise Conflict(f"surface '{name}' is in use; switch it off first.")
    _prune(store, tables.decisions.c.surface == name)
    with store.write() as connection:
        for table in (tables.user_sums, tables.item_sums, tables.measures, tables.settled, tables.pages):
            connection.execute(delete(table).where(table.c.surface == name))
        connection.execute(delete(tables.surfaces).where(tables.surfaces.c.name == name))
        note(connection, name, "deleted", None, "", now)


def delete_model(store: Store, version: str, now: float) -> None:
    """Delete a model that no surface and no stored decision needs."""
    with store.write() as connection:
        check_model(connection, version)
        surfaces, decisions = tables.surfaces.c, tables.decisions.c
        roles = [surfaces[role] == version for role in ("incumbent", "challenger", "previous", "holdout_model")]
        if (name := connection.scalar(select(surfaces.name).where(or_(*roles)).limit(1))) is not None:
            raise Conflict(f"surface '{name}' uses model '{version}'.")
        if connection.scalar(select(decisions.id).where(decisions.model == version).limit(1)) is not None:
            raise Conflict(f"stored decisions were made by model '{version}'; a retention period removes them.")
        for table in (tables.models, tables.model_files):
            connection.execute(delete(table).where(table.c.version == version))
        note(connection, "", "model deleted", version, "", now)


def prune(store: Store, now: float) -> int:
    """Delete settled decisions that are older than their surface keeps them, and outcomes that none needs."""
    with store.read() as connection:
        surfaces = list(read_surfaces(connection).values())
        settled = tables.settled.c
        query = select(settled.surface, func.max(settled.period)).group_by(settled.surface)
        last = {row[0]: row[1] for row in connection.execute(query)}
    count, decisions = 0, tables.decisions.c
    for surface in surfaces:
        if surface.retention is not None and surface.name in last:
            first = min(surface.periods.number(now - surface.retention * _DAY), last[surface.name] + 1)
            count += _prune(store, (decisions.surface == surface.name) & (decisions.period < first))
    longest = [surface.retention for surface in surfaces]
    if surfaces and None not in longest:
        needed = [now - max(filter(None, longest)) * _DAY]
        for surface in surfaces:  # a purchase counts from the start of its decision's period
            query = select(func.min(decisions.period).label("oldest")).where(decisions.surface == surface.name)
            if (oldest := store.rows(query)[0]["oldest"]) is not None:
                needed.append(surface.periods.start(oldest))
        outcomes = tables.outcomes
        with store.write() as connection:
            count += connection.execute(delete(outcomes).where(outcomes.c.time < min(needed))).rowcount
    return count


def _prune(store: Store, condition: Any) -> int:
    """Delete decisions with what depends on them, some at a time."""
    total, ids = 0, tables.decisions.c.id
    while True:
        with store.write() as connection:
            chunk = list(connection.scalars(select(ids).where(condition).limit(CHUNK)))
            for column in (tables.positives.c.decision, tables.results.c.decision, ids):
                for first in range(0, len(chunk), 500):
                    connection.execute(delete(column.table).where(column.in_(chunk[first : first + 500])))
        total += len(chunk)
        if len(chunk) < CHUNK:
            return total
