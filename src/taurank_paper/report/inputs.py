"""What a report is made from: the tables of a run, its record, and what people found out about it.

All of it lies in one folder: ``<experiment>.csv``, ``run.json`` and, optionally, a folder ``authors`` with the tables
of a run with the authors' settings, which gives every claim a second answer, and ``findings.toml``:

    note = "Shown at the top of the report."

    [sections]
    comparison = "Shown above the tables of this experiment."

    [explanations]
    dlce-over-blce = "Shown with this claim if it is not reproduced."
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from taurank.errors import InputError, plural
from taurank_paper.plan.names import KINDS
from taurank_paper.verdicts.claims import CLAIMS

_SCORES = ("items", "setting", "method", "metric", "mean", "std")
COLUMNS: Mapping[str, tuple[str, ...]] = {
    "statistics": ("items", "quantity", "value"),
    "statistics_brier": ("items", "prior_weight", "brier"),
    "statistics_density": ("items", "setting", "low", "high", "density"),
    "comparison": _SCORES,
    "comparison_targets": _SCORES,
    "comparison_curves": ("items", "setting", "method", "metric", "updates", "value"),
    "car": _SCORES,
    "capping": ("items", "setting", "metric", "cap", "mean", "std"),
    "estimators": ("items", "setting", "method", "metric", "cap", "mae", "truth"),
    "unevenness": ("items", "beta", "method", "metric", "mean", "std"),
    "misspecification": (*_SCORES, "propensity", "xi"),
    "losses": ("items", "setting", "loss", "factors", "metric", "mean", "std"),
    "search": (
        "items",
        "setting",
        "method",
        "objective",
        "trials",
        "pruned",
        "updates",
        "core_minutes",
        "validation",
    ),
}
SUFFIXES = ("", "_brier", "_density", "_targets", "_curves")  # of the tables that one experiment may write
_TEXT = ("items", "setting", "method", "metric", "objective", "quantity", "propensity", "loss", "settings", "weeks")
_RENAMED = {"cut": "pruned"}  # columns of tables written by earlier versions


@dataclass(frozen=True)
class Findings:
    """Prose about one run, written by people."""

    note: str = ""
    sections: Mapping[str, str] = field(default_factory=dict)
    explanations: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Inputs:
    """The tables by name, the record of the run, and the findings."""

    frames: Mapping[str, pd.DataFrame]
    record: Mapping[str, Any] = field(default_factory=dict)
    findings: Findings = field(default_factory=Findings)
    authors: Mapping[str, pd.DataFrame] = field(default_factory=dict)

    @property
    def is_smoke(self) -> bool:
        """Whether the data are made up: then the figures prove nothing."""
        return bool(self.record.get("preset") == "smoke")

    @property
    def in_pairs(self) -> bool:
        """Whether the weeks of every score are known, so that scores are compared in pairs."""
        return any("weeks" in frame for frame in self.frames.values())

    @property
    def own(self) -> dict[str, str]:
        """A researcher's own experiments: the kind of each by its name."""
        return own_experiments(self.record)


def read(folder: Path) -> Inputs:
    """Everything that lies in the folder of a run; tables that are not there are left out."""
    if not folder.is_dir():
        raise InputError(f"the folder '{folder}' does not exist; run 'taurank paper --out {folder}' first.")
    record = _read_record(folder / "run.json")
    own = own_experiments(record)
    findings = _read_findings(folder / "findings.toml", [*KINDS, *own])
    return Inputs(_read_tables(folder, own), record, findings, _read_tables(folder / "authors", {}))


def _read_tables(folder: Path, own: Mapping[str, str]) -> dict[str, pd.DataFrame]:
    kinds = {name: name for name in COLUMNS} | {
        name + suffix: kind + suffix for name, kind in own.items() for suffix in SUFFIXES if kind + suffix in COLUMNS
    }
    paths = {name: folder / f"{name}.csv" for name in kinds}
    return {name: _read_table(path, COLUMNS[kinds[name]]) for name, path in paths.items() if path.is_file()}


def own_experiments(record: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(entry["kind"]) for name, entry in record.get("own", {}).items()}


def _read_table(path: Path, columns: Sequence[str]) -> pd.DataFrame:
    types = dict.fromkeys(_TEXT, object)
    try:
        frame = pd.read_csv(path, dtype=types, keep_default_na=False, na_values=[""]).rename(columns=_RENAMED)
    except (ValueError, OSError) as error:
        raise InputError(f"'{path}' cannot be read as CSV: {error}.") from error
    missing = [name for name in columns if name not in frame.columns]
    if missing:
        raise InputError(f"'{path}' has no column {missing[0]!r}; write it again with 'taurank paper'.")
    for name in columns:
        if name not in _TEXT:
            frame[name] = _numbers(frame[name], path)
    return frame


def _numbers(column: pd.Series[Any], path: Path) -> pd.Series[float]:
    numbers = pd.to_numeric(column, errors="coerce").astype("float64")
    bad = column[numbers.isna() & column.notna()]
    if len(bad):
        where = f"'{path}' has {plural(len(bad), 'value')} in the column {column.name!r}"
        raise InputError(f"{where} that should be numbers, such as {bad.iloc[0]!r}; write it again.")
    return numbers


def _read_record(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"'{path}' cannot be read as JSON: {error}.") from error
    if not isinstance(record, dict):
        raise InputError(f"'{path}' does not contain a JSON object; write it again with 'taurank paper'.")
    return record


def _read_findings(path: Path, experiments: Sequence[str]) -> Findings:
    if not path.is_file():
        return Findings()
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"'{path}' cannot be read as TOML: {error}.") from error
    _check_keys(path, "", content, ("note", "sections", "explanations"))
    sections, explanations = content.get("sections", {}), content.get("explanations", {})
    _check_keys(path, "sections.", sections, experiments)
    _check_keys(path, "explanations.", explanations, [claim.id for claim in CLAIMS])
    return Findings(_prose(content.get("note", "")), *(
        {key: _prose(text) for key, text in part.items()} for part in (sections, explanations)
    ))  # fmt: skip


def _check_keys(path: Path, prefix: str, table: Mapping[str, Any], known: Sequence[str]) -> None:
    unknown = [key for key in table if key not in known]
    if unknown:
        raise InputError(f"'{path}' has the unknown key '{prefix}{unknown[0]}'; known: {', '.join(known)}.")


def _prose(text: str) -> str:
    """Paragraphs without the line breaks of the file; an empty line starts a new paragraph."""
    return "\n\n".join(" ".join(part.split()) for part in str(text).split("\n\n") if part.strip())
