"""Surfaces: where lists are shown, by which policy, and which models serve and compete there.

Users are split by keyed hashes: a permanent hold-out first; then, while a challenger runs, its share of the
others, by a hash of its own, so that each experiment splits the users anew.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property, lru_cache
from typing import Annotated, Any, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator, BaseModel, Field, StringConstraints
from sqlalchemy import Connection, delete, desc, insert, select, update

from taurank._checks import check_number
from taurank.errors import InputError
from taurank.serve import tables
from taurank.serve.lift import spent_alpha
from taurank.serve.policy import Policy, fingerprint, position
from taurank.serve.store import Conflict, NotFound, Store, insert_new, setting
from taurank.toml import validated

DEFAULT_SHARE = 0.2  # of the users who are not held out, for a challenger
Version = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{16}$")]  # of a model
_CACHE_SECONDS = 1.0
_NAMED = {"hour": 3600, "day": 86400, "week": 604800}
_MONDAY = 4 * 86400  # 1970-01-01 was a Thursday


@dataclass(frozen=True)
class Period:
    """Stretches of time, numbered: a surface decides once per user and period. Weeks start on Monday.

    Days and weeks begin at midnight of their time zone, so that two of them a year last an hour more or less.
    """

    seconds: int
    offset: int = 0
    zone: str = "UTC"

    @classmethod
    def parse(cls, text: str, zone: str = "UTC") -> Period:
        """ "hour", "day", "week" or a number of seconds."""
        if text in _NAMED:
            return cls(_NAMED[text], _MONDAY if text == "week" else 0, "UTC" if text == "hour" else zone)
        if text.isascii() and text.isdigit() and 1 <= int(text) <= 366 * 86400:
            return cls(int(text))
        raise InputError(f"a period is hour, day, week or a number of seconds up to a year, got '{text}'.")

    def number(self, time: float) -> int:
        """The number of the period that holds this time."""
        if self.zone != "UTC":  # what a clock there shows, read as if it were UTC
            time = datetime.fromtimestamp(time, ZoneInfo(self.zone)).replace(tzinfo=UTC).timestamp()
        return math.floor((time - self.offset) / self.seconds)

    def start(self, number: int) -> float:
        start = float(number * self.seconds + self.offset)
        if self.zone == "UTC":
            return start
        return datetime.fromtimestamp(start, UTC).replace(tzinfo=ZoneInfo(self.zone)).timestamp()

    def end(self, number: int) -> float:
        return self.start(number + 1)

    @lru_cache(1000)  # noqa: B019  (periods are few and small)
    def name(self, number: int) -> str:
        """The start of a period as text; names sort in the order of time."""
        return datetime.fromtimestamp(self.start(number), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _known_zone(zone: str) -> str:
    try:
        ZoneInfo(zone)
    except (ValueError, OSError, ZoneInfoNotFoundError) as error:
        raise ValueError(f"'{zone[:60]}' is not a time zone such as Europe/Berlin") from error
    return zone


def _known(period: str) -> str:
    Period.parse(period)
    return period


class Settings(BaseModel, frozen=True, extra="forbid", allow_inf_nan=False):
    """Settings of a surface; what is not named stays as it is. A new surface gets the defaults.

    ``holdout`` is the share of users without recommendations, or with the lists of ``holdout_model``.
    """

    period: Annotated[
        str, StringConstraints(pattern=r"^(hour|day|week|[1-9][0-9]{0,7})$"), AfterValidator(_known)
    ] = "day"
    timezone: Annotated[
        str, AfterValidator(_known_zone), Field(description="Where days and weeks begin, for example Europe/Berlin.")
    ] = "UTC"
    policy: Policy = Policy()
    holdout: Annotated[float, Field(ge=0, le=0.9)] = 0.05
    holdout_model: Version | None = None
    outcome: Annotated[
        Literal["purchases", "value"],
        Field(description="What challengers are compared by: purchases, or their value."),
    ] = "purchases"
    max_value: Annotated[
        float | None, Field(ge=1e-9, le=1e15, description="Maximum value counted per purchased item.")
    ] = None

    retention: Annotated[
        float | None, Field(gt=0, le=36600, description="Days after which settled decisions are deleted.")
    ] = None

    @cached_property
    def periods(self) -> Period:
        return Period.parse(self.period, self.timezone)


class Surface(Settings, frozen=True):
    """A surface: its settings, and which models serve and compete there."""

    name: str
    policy_id: str
    enabled: bool = True
    incumbent: str | None = None
    previous: str | None = None  # the incumbent before, for a roll-back
    challenger: str | None = None
    share: float = 0.0  # the challenger's share of the users who are not held out
    since: int | None = None  # the first period that counts for the challenger
    trials: int = 0  # challengers so far

    @property
    def alpha(self) -> float:
        """α of the running challenger."""
        return spent_alpha(self.trials)

    def capped(self, value: float) -> float:
        return value if self.max_value is None else min(value, self.max_value)

    def worth(self, value: float) -> float:
        """What a bought item counts in a comparison."""
        return 1.0 if self.outcome == "purchases" else self.capped(value)

    @property
    def compared(self) -> str:
        """The column of the results that challengers are compared by."""
        return "lift" if self.outcome == "purchases" else "value"

    @property
    def unit(self) -> str:
        if self.outcome == "purchases":
            return "caused purchases"
        return "caused value" if self.max_value is None else f"caused value (up to {self.max_value:g} per item)"

    def arm(self, salt: bytes, user: str) -> str:
        """ "off", "holdout", "challenger" or "incumbent"."""
        if not self.enabled:
            return "off"
        if position(salt, f"holdout/{self.name}", user) < self.holdout:
            return "holdout"
        experiment = f"{self.name}/{self.challenger}/{self.since}"  # each one splits the users anew
        if self.challenger is not None and position(salt, experiment, user) < self.share:
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


class Surfaces:
    """The surfaces of a store, read again about once a second."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._read_at = -_CACHE_SECONDS
        self._surfaces: dict[str, Surface] = {}
        self.salt, self.items = b"", 0  # of the arms; the version of the item table

    @property
    def stale(self) -> bool:
        return time.monotonic() - self._read_at >= _CACHE_SECONDS

    def get(self, name: str) -> Surface:
        if self.stale or name not in self._surfaces:  # it may be new
            self.refresh()
        return named(self._surfaces, name)

    def refresh(self) -> None:
        with self._store.read() as connection:
            self._surfaces = read_surfaces(connection)
            self.salt = bytes.fromhex(setting(connection, "salt") or "")
            self.items = int(setting(connection, "items") or 0)
        self._read_at = time.monotonic()

    def all(self, fresh: bool = True) -> list[Surface]:
        if fresh:
            self.refresh()
        return list(self._surfaces.values())


def read_surfaces(connection: Connection) -> dict[str, Surface]:
    """All surfaces by name."""
    columns = [column for column in tables.surfaces.c if column.name != "policy"]
    query = select(*columns, tables.policies.c.id.label("policy_id"), tables.policies.c.body)
    joined = query.join(tables.policies, tables.policies.c.id == tables.surfaces.c.policy)
    rows = [dict(row) for row in connection.execute(joined.order_by(tables.surfaces.c.name)).mappings()]
    return {row["name"]: Surface(policy=json.loads(row.pop("body")), **row) for row in rows}


def named(surfaces: Mapping[str, Surface], name: str) -> Surface:
    if name not in surfaces:
        raise NotFound(f"there is no surface '{name[:60]}'.")
    return surfaces[name]


def put_surface(store: Store, name: str, changes: Mapping[str, Any], now: float | None = None) -> str:
    """Create a surface, or change what is named of its ``Settings``; the rest stays as it is, or gets its default.

    The period cannot change once there are decisions. A change that a running comparison does not survive ends it.
    Returns what ended or began anew, in a sentence.
    """
    now = time.time() if now is None else now
    with store.write() as connection:
        known = read_surfaces(connection).get(name)
        before = {} if known is None else known.model_dump(include=set(Settings.model_fields))
        policy = {**before.get("policy", {}), **changes.get("policy", {})}
        settings = validated(Settings, {**before, **changes, "policy": policy}, f"surface '{name}'")
        check_model(connection, settings.holdout_model)
        body = json.dumps(settings.policy.model_dump(), sort_keys=True)
        key = fingerprint(body)
        insert_new(connection, tables.policies, {key: {"id": key, "body": body}})
        columns = settings.model_dump(exclude={"policy"})
        ended = []
        if known is None:
            first = {"name": name, "policy": key, "enabled": True, "share": 0.0, "trials": 0, **columns}
            connection.execute(insert(tables.surfaces), first)
            _begin_measure(connection, name, "life", settings.periods.number(now))
        else:
            if settings.periods != known.periods and _has_decisions(connection, name):
                raise Conflict(
                    f"surface '{name}' has decisions by {known.period} ({known.timezone}); its period and its time "
                    "zone cannot change any more."
                )
            changed = {field for field, value in settings if value != getattr(known, field)}
            _update(connection, name, policy=key, **columns)
            changed -= {"retention"}
            if settings.policy.compared == known.policy.compared:  # rules are the same for both models
                changed -= {"policy"}
            if known.challenger is not None and changed:
                ended.append(f"the trial of '{known.challenger}' ended: {', '.join(sorted(changed))} changed")
                _end_trial(connection, name)
                note(connection, name, "trial ended", known.challenger, ended[0], now)
            if changed & {"period", "timezone", "holdout", "holdout_model", "outcome", "max_value"}:
                since = _next_clean_period(connection, name, settings.periods, now)
                _begin_measure(connection, name, "life", since)
                ended.append(f"figures count from {settings.periods.name(since)} on")
        flat, old = _flat(settings), {} if known is None else _flat(known)
        text = ", ".join(f"{field} {value}" for field, value in flat.items() if value != old.get(field, ()))
        note(connection, name, "settings", None, text, now)
    return "; ".join(ended)


def _flat(settings: Settings) -> dict[str, Any]:
    own = settings.model_dump(include=set(Settings.model_fields))
    policy: dict[str, Any] = own.pop("policy")
    return own | policy


def start_challenger(store: Store, surface: str, model: str, share: float, reason: str, now: float) -> None:
    """Give a model its share of the users that are not held out; it is measured over whole periods."""
    check_number("share", share, 0.01, 0.99)
    with store.write() as connection:
        current = _current(connection, surface, model)
        if current.incumbent is None:
            raise Conflict(f"surface '{surface}' has no incumbent to compare with; promote a first model.")
        if model == current.incumbent:
            raise Conflict(f"model '{model}' is the incumbent of surface '{surface}'.")
        if current.challenger is not None:
            raise Conflict(f"surface '{surface}' has the challenger '{current.challenger}'; demote it first.")
        since = _next_clean_period(connection, surface, current.periods, now)
        _begin_measure(connection, surface, "trial", since)
        _update(connection, surface, challenger=model, share=share, since=since, trials=current.trials + 1)
        note(connection, surface, "challenger", model, reason, now)


def _next_clean_period(connection: Connection, surface: str, periods: Period, now: float) -> int:
    """The running period, or the next one: users who have lists of this one would not be split anew."""
    since = periods.number(now)
    return since + _has_decisions(connection, surface, since)


def _has_decisions(connection: Connection, surface: str, since: int = 0) -> bool:
    table = tables.decisions.c
    query = select(table.period).where((table.surface == surface) & (table.period >= since)).limit(1)
    return connection.scalar(query) is not None


def _begin_measure(connection: Connection, surface: str, name: str, since: int) -> None:
    """Running sums begin at nothing, from a period on."""
    _end_measure(connection, surface, name)
    connection.execute(insert(tables.measures), {"surface": surface, "name": name, "since": since, "body": ""})


def _end_measure(connection: Connection, surface: str, name: str) -> None:
    parts = [(tables.user_sums, tables.user_sums.c.measure), (tables.measures, tables.measures.c.name)]
    for table, column in parts:
        connection.execute(delete(table).where((table.c.surface == surface) & (column == name)))
    if name == "life":
        connection.execute(delete(tables.item_sums).where(tables.item_sums.c.surface == surface))


def _end_trial(connection: Connection, surface: str) -> None:
    _update(connection, surface, challenger=None, share=0.0, since=None)
    _end_measure(connection, surface, "trial")


def promote(store: Store, surface: str, model: str, reason: str, now: float, expected: str | None = None) -> bool:
    """Make a model the incumbent; with ``expected`` only while that is still the challenger."""
    with store.write() as connection:
        current = _current(connection, surface, model)
        if expected is not None and current.challenger != expected:
            return False
        if current.incumbent == model:
            raise Conflict(f"model '{model}' is the incumbent of surface '{surface}' already.")
        _update(connection, surface, incumbent=model, previous=current.incumbent)
        _end_trial(connection, surface)
        note(connection, surface, "promoted", model, reason, now)
    return True


def demote(store: Store, surface: str, reason: str, now: float, expected: str | None = None) -> bool:
    """Take the challenger's traffic away; with ``expected`` only while that is still the challenger."""
    with store.write() as connection:
        current = _current(connection, surface)
        if expected is not None and current.challenger != expected:
            return False
        if current.challenger is None:
            raise Conflict(f"surface '{surface}' has no challenger.")
        _end_trial(connection, surface)
        note(connection, surface, "demoted", current.challenger, reason, now)
    return True


def roll_back(store: Store, surface: str, reason: str, now: float) -> str:
    """Restore the previous incumbent; returns its version."""
    with store.write() as connection:
        current = _current(connection, surface)
        if current.previous is None:
            raise Conflict(f"surface '{surface}' has no earlier incumbent.")
        _update(connection, surface, incumbent=current.previous, previous=current.incumbent)
        _end_trial(connection, surface)
        note(connection, surface, "rolled back", current.previous, reason, now)
    return current.previous


def switch(store: Store, surface: str, enabled: bool, reason: str, now: float) -> None:
    """Turn the recommendations of a surface off, or on again."""
    with store.write() as connection:
        _current(connection, surface)
        _update(connection, surface, enabled=enabled)
        note(connection, surface, "on" if enabled else "off", None, reason, now)


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


def _current(connection: Connection, surface: str, model: str | None = None) -> Surface:
    """A surface inside a transaction; the ``model`` that it is to get must exist."""
    current = named(read_surfaces(connection), surface)
    check_model(connection, model)
    return current


def check_model(connection: Connection, model: str | None) -> None:
    known = tables.models.c.version
    if model is not None and connection.scalar(select(known).where(known == model)) is None:
        raise NotFound(f"there is no model '{model[:60]}'.")


def _update(connection: Connection, surface: str, **values: Any) -> None:
    connection.execute(update(tables.surfaces).where(tables.surfaces.c.name == surface).values(values))
