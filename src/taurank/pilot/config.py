"""What a pilot runs on: one TOML file that names a shop's tables, or a log, and a few choices with safe defaults."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from taurank._checks import check_choice
from taurank._choices import PropensityKind
from taurank.data.files import find_files
from taurank.errors import InputError, show
from taurank.learners import LEARNERS
from taurank.toml import read_toml, validated

LearnerName = Annotated[str, AfterValidator(lambda name: check_choice("learners", name, LEARNERS))]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Tables(_Section):
    """``impressions`` and ``purchases`` (optionally ``visits`` and ``candidates``), or a ``log``.

    ``users`` have a column named by ``segment``; ``today`` is the ranking that is shown now; ``categories`` are those
    that a user can be shown (user_id, category), if ``candidates`` have a category.
    """

    impressions: Path | None = None
    purchases: Path | None = None
    log: Path | None = None
    visits: Path | None = None
    candidates: Path | None = None
    users: Path | None = None
    categories: Path | None = None
    today: Path | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        pair = [self.impressions, self.purchases]
        if (self.log is not None) == any(pair) or (any(pair) and not all(pair)):
            raise InputError("[tables] must name either impressions and purchases, or a log.")
        if self.categories is not None and self.candidates is None:
            raise InputError("categories (user_id, category) need candidates (item_id, category).")
        return self

    def named(self) -> dict[str, Path]:
        """The tables that are given, by name."""
        return {name: path for name, path in self if path is not None}


class LogOptions(_Section):
    """Options of ``Log.from_events``."""

    period: str | int | float = "week"
    window: str | int | float | None = None
    combine: str | None = None
    nulls: str = "drop"
    timezone: str | None = None
    incomplete: str | None = None
    memory_limit: str | None = None


class Options(_Section):
    """``test_share`` of the periods, the last ones, measures; ``epochs`` is the longest fit of factors.

    ``segment`` is a column of users, ``item_segment`` one of candidates (a category, a range of prices), by which
    results are split. ``effect`` is what an experiment would have to detect, in extra purchases per user and period.
    """

    learners: tuple[LearnerName, ...] = Field(default=("popular", "empiricalbayes", "bpr", "dlce"), min_length=1)
    propensity: PropensityKind = "exposure"
    segment: str | None = None
    item_segment: str | None = None
    k: int = Field(default=10, ge=1)
    test_share: float = Field(default=0.4, ge=0.01, le=0.99)
    epochs: int | None = Field(default=None, ge=1)
    effect: float | None = Field(default=None, ge=0.0)
    level: float = Field(default=0.95, ge=0.01, le=0.99)
    seed: int = Field(default=0, ge=0)

    @property
    def metric(self) -> str:
        return f"CP@{self.k}"


class PilotConfig(_Section):
    """The sections of the TOML file; ``columns`` are those of ``Log.from_events``."""

    tables: Tables
    columns: Mapping[str, str] = {}
    log: LogOptions = LogOptions()
    pilot: Options = Options()

    @model_validator(mode="after")
    def _check(self) -> Self:
        segment = self.pilot.segment
        if segment is not None and self.tables.users is None:
            raise InputError(f"segment = {show(segment)} needs a table of users that has this column.")
        if self.pilot.item_segment is not None and self.tables.candidates is None:
            raise InputError("item_segment is a column of the candidates; name a table of candidates.")
        for path in self.tables.named().values():
            find_files(path)
        return self

    @classmethod
    def read(cls, plan: str | os.PathLike[str] | Mapping[str, Any], more: Mapping[str, Any] = {}) -> PilotConfig:
        """The configuration in a TOML file (as a file, or its content), or in a folder of tables.

        The tables of a folder are called as in a file: impressions.parquet, … Those of a file are relative to its
        folder. ``more`` has sections that are added to those of the plan.
        """
        folder, where = Path(), "the plan"
        if isinstance(plan, Mapping):
            sections = dict(plan)
        elif (folder := Path(plan)).is_dir():
            where = f"the folder '{folder}'"
            given = [one for one in sorted(folder.iterdir()) if one.suffix in (".parquet", ".csv")]
            sections = {"tables": {one.stem: one.name for one in given if one.stem in Tables.model_fields}}
        else:
            sections, folder, where = read_toml(plan), folder.parent, f"'{folder}'"
        tables = sections.get("tables")
        if isinstance(tables, Mapping):
            paths = {name: folder / one if isinstance(one, (str, Path)) else one for name, one in tables.items()}
            sections["tables"] = paths
        for name, section in more.items():
            sections[name] = {**sections.get(name, {}), **section} if section else sections.get(name, {})
        return validated(cls, sections, where)
