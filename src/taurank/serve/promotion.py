"""Which model serves: promotion, demotion, roll-back, and the switch that turns recommendations off."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, select, update

from taurank._validation import check_number
from taurank.serve import tables
from taurank.serve.lift import compare_challenger
from taurank.serve.store import Conflict, NotFound, Store
from taurank.serve.surfaces import Surface, note, read_surface

DEFAULT_SHARE = 0.2  # of the users who are not held out, for a challenger
PATIENCE = 28  # settled periods after which an undecided challenger makes room for another


def judge(store: Store, surface: Surface, now: float, patience: int = PATIENCE) -> str:
    """Promote or demote the challenger if the evidence suffices; returns what was done and why."""
    if surface.challenger is None:
        return "no challenger"
    comparison = compare_challenger(store, surface)
    low, high = comparison.bounds
    reason = f"{surface.unit} per visit, challenger − incumbent: between {low:.4g} and {high:.4g}"
    if comparison.mismatch:
        counts = ", ".join(f"{arm} {users:,}" for arm, users in comparison.users.items())
        _alert(
            store, surface, f"the arms do not have their planned shares of users ({counts}); nothing is promoted", now
        )
        return "sample-ratio mismatch"
    if low > 0 and promote(store, surface.name, surface.challenger, reason, now, expected=surface.challenger):
        return "promoted"
    if high < 0 and demote(store, surface.name, reason, now, expected=surface.challenger):
        return "demoted"
    if len(comparison.periods) >= patience:
        undecided = f"undecided after {len(comparison.periods)} periods; {reason}"
        demote(store, surface.name, undecided, now, expected=surface.challenger)
        return "undecided"
    return reason


def _alert(store: Store, surface: Surface, words: str, now: float) -> None:
    """One alert per challenger."""
    table = tables.history
    same = (table.c.surface == surface.name) & (table.c.event == "alert") & (table.c.model == surface.challenger)
    since = surface.period.start(surface.since or 0) - 2 * surface.period.seconds
    with store.write() as connection:
        if connection.scalar(select(table.c.id).where(same & (table.c.time >= since))) is None:
            note(connection, surface.name, "alert", surface.challenger, words, now)


def start_challenger(store: Store, surface: str, model: str, share: float, reason: str, now: float) -> None:
    """Give a model its share of the users that are not held out; it is measured over whole periods."""
    check_number("share", share, 0.01, 0.99)
    with store.write() as connection:
        current = _current(connection, surface, model)
        if current.incumbent is None:
            raise Conflict(f"surface '{surface}' has no incumbent to compare with; promote a first model.")
        if model == current.incumbent:
            raise Conflict(f"model '{model}' is the incumbent of surface '{surface}'.")
        since = _first_whole_period(connection, current, now)
        _change(connection, surface, challenger=model, share=share, since=since)
        note(connection, surface, "challenger", model, reason, now)


def promote(store: Store, surface: str, model: str, reason: str, now: float, expected: str | None = None) -> bool:
    """Make a model the incumbent; with ``expected`` only while that is still the challenger."""
    with store.write() as connection:
        current = _current(connection, surface, model)
        if expected is not None and current.challenger != expected:
            return False
        if current.incumbent == model:
            raise Conflict(f"model '{model}' is the incumbent of surface '{surface}' already.")
        _change(
            connection, surface, incumbent=model, previous=current.incumbent, challenger=None, share=0.0, since=None
        )
        note(connection, surface, "promoted", model, reason, now)
    return True


def demote(store: Store, surface: str, reason: str, now: float, expected: str | None = None) -> bool:
    """Take the challenger's traffic away."""
    with store.write() as connection:
        current = read_surface(connection, surface)
        if expected is not None and current.challenger != expected:
            return False
        if current.challenger is None:
            raise Conflict(f"surface '{surface}' has no challenger.")
        _change(connection, surface, challenger=None, share=0.0, since=None)
        note(connection, surface, "demoted", current.challenger, reason, now)
    return True


def roll_back(store: Store, surface: str, reason: str, now: float) -> str:
    """Return to the incumbent before; returns its version."""
    with store.write() as connection:
        current = read_surface(connection, surface)
        if current.previous is None:
            raise Conflict(f"surface '{surface}' has no earlier incumbent.")
        _change(
            connection, surface, incumbent=current.previous, previous=current.incumbent,
            challenger=None, share=0.0, since=None,
        )  # fmt: skip
        note(connection, surface, "rolled back", current.previous, reason, now)
    return current.previous


def switch(store: Store, surface: str, enabled: bool, reason: str, now: float) -> None:
    """Turn all recommendations of a surface off, or on again."""
    with store.write() as connection:
        read_surface(connection, surface)
        _change(connection, surface, enabled=enabled)
        note(connection, surface, "on" if enabled else "off", None, reason, now)


def _first_whole_period(connection: Connection, surface: Surface, now: float) -> int:
    """This period, or the next if users have lists of this one already: they would not be split."""
    number, table = surface.period.number(now), tables.decisions
    begun = (table.c.surface == surface.name) & (table.c.period == number)
    return number if connection.scalar(select(table.c.id).where(begun).limit(1)) is None else number + 1


def _current(connection: Connection, surface: str, model: str) -> Surface:
    current = read_surface(connection, surface)
    if connection.scalar(select(tables.models.c.version).where(tables.models.c.version == model)) is None:
        raise NotFound(f"there is no model '{model[:60]}'.")
    return current


def _change(connection: Connection, surface: str, **values: Any) -> None:
    connection.execute(update(tables.surfaces).where(tables.surfaces.c.name == surface).values(values))
