"""Surfaces: where lists are shown, by which policy, and which models compete there.

Users are split by keyed hashes: a permanent hold-out first; then, while a challenger runs, its share of the
others, by a hash of its own, so that each experiment splits the users anew.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from sqlalchemy import Connection, desc, insert, select, update

from taurank._validation import check_choice, check_number
from taurank.serve import streams, tables
from taurank.serve.periods import Period
from taurank.serve.policy import Policy
from taurank.serve.store import Conflict, NotFound, Store, insert_new, setting

_CACHE_SECONDS = 1.0
DEFAULTS: Mapping[str, Any] = {
    "period": "day", "holdout": 0.05, "holdout_model": None, "outcome": "purchases", "max_value": None,
}  # fmt: skip
POLICY = tuple(field.name for field in fields(Policy))


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
    challenger: str | None
    share: float
    since: int | None
    outcome: str = "purchases"  # what a challenger is compared by: "purchases", or their "value"
    max_value: float | None = None  # values count up to here

    def worth(self, value: float) -> float:
        """What a bought item counts in a comparison."""
        if self.outcome == "purchases":
            return 1.0
        return value if self.max_value is None else min(value, self.max_value)

    @property
    def unit(self) -> str:
        if self.outcome == "purchases":
            return "caused purchases"
        return "caused value" if self.max_value is None else f"caused value (up to {self.max_value:g} per item)"

    @property
    def experiment(self) -> str:
        """The name of the split between incumbent and challenger."""
        return f"{self.name}/{self.challenger}/{self.since}"

    def arm(self, salt: bytes, user: str) -> str:
        """ "off", "holdout", "challenger" or "incumbent"."""
        if not self.enabled:
            return "off"
        if streams.position(salt, f"holdout/{self.name}", user) < self.holdout:
            return "holdout"
        if self.challenger is not None and streams.position(salt, self.experiment, user) < self.share:
            return "challenger"
        return "incumbent"

    def model(self, arm: str) -> str | None:
        return {"holdout": self.holdout_model, "challenger": self.challenger, "incumbent": self.incumbent}.get(arm)

    def shares(self) -> dict[str, float]:
        """The expected share of users of each arm."""
        challenger = self.share if self.challenger is not None else 0.0
        rest = 1.0 - self.holdout
        planned = {"holdout": self.holdout, "incumbent": rest * (1 - challenger), "challenger": rest * challenger}
        return {arm: share for arm, share in planned.items() if share > 0}

    def settings(self) -> dict[str, Any]:
        """What ``put_surface`` can change, besides the policy."""
        return {name: self.period_name if name == "period" else getattr(self, name) for name in DEFAULTS}

    def to_dict(self) -> dict[str, Any]:
        names = ("name", "enabled", "incumbent", "previous", "challenger", "share")
        values = {name: getattr(self, name) for name in names}
        return {**values, **self.settings(), "policy": self.policy.to_dict(), "policy_id": self.policy_id}


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
    return [_from_row(dict(row)) for row in connection.execute(query).mappings()]


def _from_row(row: dict[str, Any]) -> Surface:
    policy = Policy(**json.loads(row.pop("body")))
    name = row.pop("period")
    return Surface(policy_id=row.pop("policy"), policy=policy, period=Period.parse(name), period_name=name, **row)


def read_surface(connection: Connection, name: str) -> Surface:
    for surface in read_surfaces(connection):
        if surface.name == name:
            return surface
    raise NotFound(f"there is no surface '{name[:60]}'.")


def put_surface(store: Store, name: str, changes: Mapping[str, Any], now: float | None = None) -> None:
    """Create a surface, or change what is named; the rest stays as it is, or gets its default.

    ``changes`` may have the fields of ``Policy``, and "period" ("day"), "holdout" (0.05), "holdout_model" (None),
    "outcome" ("purchases") and "max_value" (None). The period of a surface cannot change, and what a running
    comparison depends on cannot change while a challenger runs.
    """
    with store.write() as connection:
        known = {surface.name: surface for surface in read_surfaces(connection)}.get(name)
        policy = Policy(**{**({} if known is None else known.policy.to_dict()), **_only(changes, POLICY)})
        settings = {**DEFAULTS, **({} if known is None else known.settings()), **_only(changes, tuple(DEFAULTS))}
        _check(settings)
        values = {**settings, "policy": store_policy(connection, policy)}
        if known is None:
            fresh = {"name": name, "enabled": True, "share": 0.0, **values}
            connection.execute(insert(tables.surfaces), fresh)
        else:
            _check_change(known, settings)
            connection.execute(update(tables.surfaces).where(tables.surfaces.c.name == name).values(values))
        note(connection, name, "settings", None, json.dumps({**settings, **policy.to_dict()}), now)


def _only(changes: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {key: value for key, value in changes.items() if key in names}


def _check(settings: Mapping[str, Any]) -> None:
    Period.parse(settings["period"])
    check_number("holdout", settings["holdout"], 0, 0.9)
    check_choice("outcome", settings["outcome"], ("purchases", "value"))
    if settings["max_value"] is not None:
        check_number("max_value", settings["max_value"], 1e-9, 1e15)


def _check_change(known: Surface, settings: Mapping[str, Any]) -> None:
    if settings["period"] != known.period_name:
        raise Conflict(f"surface '{known.name}' has the period {known.period_name}, which cannot change.")
    outcome = settings["outcome"], settings["max_value"]
    if known.challenger is not None and outcome != (known.outcome, known.max_value):
        # choosing the metric after a look at the results would invalidate the test
        raise Conflict(
            f"the outcome of surface '{known.name}' cannot change while a challenger runs; demote it first."
        )


def store_policy(connection: Connection, policy: Policy) -> str:
    body = json.dumps(policy.to_dict(), sort_keys=True)
    insert_new(connection, tables.policies, [{"id": streams.fingerprint(body), "body": body}])
    return streams.fingerprint(body)


def note(
    connection: Connection, surface: str, event: str, model: str | None, reason: str, now: float | None = None
) -> None:
    """A line of the history that the dashboard shows."""
    when = time.time() if now is None else now
    line = {"time": when, "surface": surface, "event": event, "model": model, "reason": reason}
    connection.execute(insert(tables.history), line)


def read_history(store: Store, limit: int, surface: str | None = None) -> list[dict[str, Any]]:
    """The latest lines of the history, of one surface or of all."""
    query = select(tables.history).order_by(desc(tables.history.c.id)).limit(limit)
    return store.rows(query if surface is None else query.where(tables.history.c.surface == surface))
