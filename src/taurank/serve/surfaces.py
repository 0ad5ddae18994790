"""Surfaces: where lists are shown, by which policy, and which models compete there.

Users are split by keyed hashes: a permanent hold-out first; then, while a candidate runs, its share of the
others, by a hash of its own, so that each experiment splits the users anew.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, delete, insert, select, update

from taurank._validation import check_choice, check_number
from taurank.serve import streams, tables
from taurank.serve.periods import Period
from taurank.serve.policy import Policy
from taurank.serve.store import Conflict, NotFound, Store, insert_new, setting

_CACHE_SECONDS = 1.0
_OUTCOME = "outcome/"


@dataclass(frozen=True)
class Surface:
    """One row of the table ``surfaces``, with its policy and period."""

    name: str
    policy_id: str
    policy: Policy
    period: Period
    period_name: str
    holdout: float
    holdout_model: str | None
    enabled: bool
    incumbent: str | None
    previous: str | None
    candidate: str | None
    share: float
    since: int | None
    outcome: str = "purchases"  # what the gate compares: "purchases", or their "value"
    cap: float | None = None  # values count up to here

    def worth(self, value: float) -> float:
        """What a bought item counts at the gate."""
        if self.outcome == "purchases":
            return 1.0
        return value if self.cap is None else min(value, self.cap)

    @property
    def unit(self) -> str:
        if self.outcome == "purchases":
            return "caused purchases"
        return "caused value" if self.cap is None else f"caused value (up to {self.cap:g} per item)"

    @property
    def experiment(self) -> str:
        """The name of the split between incumbent and candidate."""
        return f"{self.name}/{self.candidate}/{self.since}"

    def arm(self, salt: bytes, user: str) -> str:
        """ "off", "holdout", "candidate" or "incumbent"."""
        if not self.enabled:
            return "off"
        if streams.position(salt, f"holdout/{self.name}", user) < self.holdout:
            return "holdout"
        if self.candidate is not None and streams.position(salt, self.experiment, user) < self.share:
            return "candidate"
        return "incumbent"

    def model(self, arm: str) -> str | None:
        return {"holdout": self.holdout_model, "candidate": self.candidate, "incumbent": self.incumbent}.get(arm)

    def shares(self) -> dict[str, float]:
        """The expected share of users of each arm."""
        candidate = self.share if self.candidate is not None else 0.0
        rest = 1.0 - self.holdout
        planned = {"holdout": self.holdout, "incumbent": rest * (1 - candidate), "candidate": rest * candidate}
        return {arm: share for arm, share in planned.items() if share > 0}

    def to_dict(self) -> dict[str, Any]:
        names = ("name", "holdout", "holdout_model", "enabled", "incumbent", "previous", "candidate", "share",
                 "outcome", "cap")  # fmt: skip
        values = {name: getattr(self, name) for name in names}
        return {**values, "period": self.period_name, "policy": self.policy.to_dict(), "policy_id": self.policy_id}


class Surfaces:
    """The surfaces of a store, read anew about once a second."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._read_at = -_CACHE_SECONDS
        self._surfaces: dict[str, Surface] = {}
        self.salt = b""

    @property
    def stale(self) -> bool:
        return time.monotonic() - self._read_at >= _CACHE_SECONDS

    def get(self, name: str) -> Surface:
        if self.stale:
            self.refresh()
        surface = self._surfaces.get(name)
        if surface is None:
            raise NotFound(f"there is no surface '{name[:60]}'.")
        return surface

    def refresh(self) -> None:
        with self._store.read() as connection:
            self._surfaces = {surface.name: surface for surface in read_surfaces(connection)}
            self.salt = bytes.fromhex(setting(connection, "salt") or "")
        self._read_at = time.monotonic()

    def all(self) -> list[Surface]:
        self.refresh()
        return list(self._surfaces.values())


def read_surfaces(connection: Connection) -> list[Surface]:
    joined = tables.surfaces.join(tables.policies, tables.policies.c.id == tables.surfaces.c.policy)
    query = select(tables.surfaces, tables.policies.c.body).select_from(joined).order_by(tables.surfaces.c.name)
    outcomes = _read_outcomes(connection)
    return [_from_row({**row, **outcomes.get(row["name"], {})}) for row in connection.execute(query).mappings()]


def _read_outcomes(connection: Connection) -> dict[str, dict[str, Any]]:
    """What the gates compare; a setting, so that older databases need no new column."""
    table = tables.settings
    rows = connection.execute(select(table).where(table.c.name.startswith(_OUTCOME, autoescape=True))).all()
    return {name.removeprefix(_OUTCOME): json.loads(value) for name, value in rows}


def _from_row(row: dict[str, Any]) -> Surface:
    policy = Policy(**json.loads(row.pop("body")))
    name = row.pop("period")
    return Surface(policy_id=row.pop("policy"), policy=policy, period=Period.parse(name), period_name=name, **row)


def read_surface(connection: Connection, name: str) -> Surface:
    for surface in read_surfaces(connection):
        if surface.name == name:
            return surface
    raise NotFound(f"there is no surface '{name[:60]}'.")


def put_surface(
    store: Store,
    name: str,
    policy: Policy,
    period: str,
    holdout: float,
    holdout_model: str | None = None,
    now: float | None = None,
    outcome: str = "purchases",
    cap: float | None = None,
) -> None:
    """Create a surface, or change its policy, hold-out and outcome; its period stays as it was created."""
    Period.parse(period)
    _check_outcome(outcome, cap)
    check_number("holdout", holdout, 0, 0.9)
    values = {"policy": store_policy(store, policy), "holdout": holdout, "holdout_model": holdout_model}
    with store.write() as connection:
        row = connection.execute(select(tables.surfaces).where(tables.surfaces.c.name == name)).mappings().first()
        if row is None:
            fresh = {"name": name, "period": period, "enabled": True, "share": 0.0, **values}
            connection.execute(insert(tables.surfaces), fresh)
        elif row["period"] != period:
            raise Conflict(f"surface '{name}' has the period {row['period']}, which cannot change.")
        else:
            connection.execute(update(tables.surfaces).where(tables.surfaces.c.name == name).values(values))
        _put_outcome(connection, name, outcome, cap)
        note(connection, name, "settings", None, json.dumps(policy.to_dict()), now)


def _check_outcome(outcome: str, cap: float | None) -> None:
    check_choice("outcome", outcome, ("purchases", "value"))
    if cap is not None:
        check_number("cap", cap, 1e-9, 1e15)


def _put_outcome(connection: Connection, name: str, outcome: str, cap: float | None) -> None:
    current = read_surface(connection, name)
    if (current.outcome, current.cap) == (outcome, cap):
        return
    if current.candidate is not None:  # whoever may choose after a look finds something in either
        raise Conflict(f"the outcome of surface '{name}' cannot change while a candidate runs; demote it first.")
    key, table = _OUTCOME + name, tables.settings
    connection.execute(delete(table).where(table.c.name == key))
    connection.execute(insert(table), {"name": key, "value": json.dumps({"outcome": outcome, "cap": cap})})


def store_policy(store: Store, policy: Policy) -> str:
    body = json.dumps(policy.to_dict(), sort_keys=True)
    with store.write() as connection:
        insert_new(connection, tables.policies, [{"id": streams.fingerprint(body), "body": body}])
    return streams.fingerprint(body)


def note(
    connection: Connection, surface: str, event: str, model: str | None, reason: str, now: float | None = None
) -> None:
    """A line of the history that the dashboard shows."""
    when = time.time() if now is None else now
    line = {"time": when, "surface": surface, "event": event, "model": model, "reason": reason}
    connection.execute(insert(tables.history), line)
