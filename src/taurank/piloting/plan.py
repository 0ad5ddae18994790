"""What a pilot runs on: one TOML file that names a shop's tables, or a log, and a few choices with safe defaults."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, get_args

from taurank._choices import PropensityKind
from taurank._validation import check_choice, check_integer, check_number
from taurank.data.files import find_files
from taurank.errors import InputError, show
from taurank.learners import LEARNERS

TABLES = ("impressions", "purchases", "visits", "candidates", "users", "shelves", "today", "log")
BUILDING = ("period", "window", "combine", "nulls", "timezone", "incomplete", "memory_limit")


@dataclass(frozen=True)
class Plan:
    """A checked plan. Paths are relative to the folder of the TOML file.

    ``tables`` are ``impressions`` and ``purchases`` (optionally ``visits``, ``candidates``), or a ``log``. ``users``
    have a column named by ``segment``; ``today`` is the ranking that is shown now; ``shelves`` are the categories
    that a user can be shown (user_id, category), if ``candidates`` have a category. ``columns`` and ``building`` are
    the options of ``Log.from_events``. ``test_share`` of the weeks, the last ones, measures; ``trials`` settings of
    each learner are tried. ``effect`` is what an experiment would have to detect (extra purchases per user and week).
    """

    tables: Mapping[str, Path]
    columns: Mapping[str, str] = field(default_factory=dict)
    building: Mapping[str, Any] = field(default_factory=dict)
    learners: tuple[str, ...] = ("popular", "bpr", "dlto", "dlce")
    propensity: str = "exposure"
    segment: str | None = None
    k: int = 10
    test_share: float = 0.4
    trials: int = 4
    epochs: int | None = None
    effect: float | None = None
    level: float = 0.95
    seed: int = 0

    @property
    def per(self) -> str:
        """What an effect is a mean over: with a table of visits, users count in the weeks in which they came."""
        return "visiting user and week" if "visits" in self.tables else "user and week"

    def __post_init__(self) -> None:
        if not self.learners:
            raise InputError("learners is empty; name at least one, such as 'dlce'.")
        for name in self.learners:
            check_choice("learners", name, LEARNERS)
        check_choice("propensity", self.propensity, get_args(PropensityKind))
        for name in ("k", "trials"):
            check_integer(name, getattr(self, name))
        if self.epochs is not None:
            check_integer("epochs", self.epochs)
        check_integer("seed", self.seed, 0)
        for name in ("test_share", "level"):
            check_number(name, getattr(self, name), 0.01, 0.99)
        if self.effect is not None:
            check_number("effect", self.effect, 0.0)
        self._check_tables()

    def _check_tables(self) -> None:
        pair = {"impressions", "purchases"} & self.tables.keys()
        if ("log" in self.tables) == bool(pair) or len(pair) == 1:
            raise InputError("tables must name either impressions and purchases, or a log.")
        if "shelves" in self.tables and "candidates" not in self.tables:
            raise InputError("shelves (user_id, category) need candidates (item_id, category).")
        if self.segment is not None and "users" not in self.tables:
            raise InputError(f"segment = {show(self.segment)} needs a table of users that has this column.")
        for path in self.tables.values():
            find_files(path)

    @property
    def metric(self) -> str:
        return f"CP@{self.k}"


def read_plan(path: str | os.PathLike[str]) -> tuple[Plan, bytes]:
    """The plan in a TOML file, and the file's content."""
    try:
        content = Path(path).read_bytes()
        table = tomllib.loads(content.decode())
    except OSError as error:
        raise InputError(f"'{os.fspath(path)}' cannot be read: {error.strerror}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"'{os.fspath(path)}' is not valid TOML: {error}.") from error
    try:
        return plan_of(table, Path(path).parent), content
    except InputError as error:
        raise InputError(f"'{os.fspath(path)}': {error}") from error


def plan_of(table: Mapping[str, Any], folder: Path = Path()) -> Plan:
    """A plan from the tables of a TOML file: ``[tables]``, ``[columns]``, ``[log]`` and ``[pilot]``."""
    _refuse_unknown("section", table, ("tables", "columns", "log", "pilot"))
    parts = {name: _section(table, name) for name in ("tables", "columns", "log", "pilot")}
    own = [one.name for one in fields(Plan) if one.name not in ("tables", "columns", "building")]
    _refuse_unknown("table", parts["tables"], TABLES)
    _refuse_unknown("[log] option", parts["log"], BUILDING)
    _refuse_unknown("[pilot] option", parts["pilot"], own)
    settings: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in parts["pilot"].items()
    }
    return Plan(
        {name: _path(folder, name, value) for name, value in parts["tables"].items()},
        parts["columns"], parts["log"], **settings,
    )  # fmt: skip


def _section(table: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = table.get(name, {})
    if not isinstance(section, Mapping):
        raise InputError(f"{name} must be a section, [{name}], got {show(section)}.")
    return section


def _refuse_unknown(what: str, given: Mapping[str, Any], known: Any) -> None:
    unknown = [name for name in given if name not in known]
    if unknown:
        raise InputError(f"there is no {what} {show(unknown[0])}; known are {', '.join(known)}.")


def _path(folder: Path, name: str, value: Any) -> Path:
    if not isinstance(value, (str, os.PathLike)):
        raise InputError(f"the table '{name}' must be the path of a file, got {show(value)}.")
    return folder / value
