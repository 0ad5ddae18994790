"""The folder of a run: its tables, its record, and what people found out about it.

It has ``<experiment>.csv``, ``run.json`` and, optionally, a folder ``authors`` with the tables of a run with the
authors' settings, which gives every claim a second answer, and ``findings.toml``:

    note = "Shown at the top of the report."

    [sections]
    comparison = "Shown above the tables of this experiment."

    [explanations]
    dlce-over-blce = "Shown with this claim if it is not reproduced."

The figures that the paper prints, Tables 2-7, are tables of the same columns. Their ± is the standard deviation over
ten test weeks. Random appears once per catalog: the truth is the same in both settings.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
from pydantic import AfterValidator, ConfigDict
from pydantic.dataclasses import dataclass as checked

from taurank.errors import InputError, first_line
from taurank.toml import read_toml, validated

Frames = Mapping[str, pd.DataFrame]

_SCORES = "items setting method metric mean std"
COLUMNS: Mapping[str, str] = {
    "statistics": "items quantity value",
    "statistics_brier": "items prior_weight brier",
    "statistics_density": "items setting low high density",
    "comparison": f"{_SCORES} settings seconds updates",
    "comparison_targets": _SCORES,
    "comparison_curves": "items setting method metric updates value",
    "car": _SCORES,
    "capping": "items setting metric cap mean std",
    "estimators": "items setting method metric cap mae truth",
    "unevenness": "items beta method metric mean std",
    "misspecification": f"{_SCORES} propensity xi",
    "losses": "items setting loss factors metric mean std",
    "search": "items setting method objective trials pruned updates minutes validation settings",
}
SUFFIXES = ("", "_brier", "_density", "_targets", "_curves")  # of the tables that one experiment may write
_TEXT = ("items", "setting", "method", "metric", "objective", "quantity", "propensity", "loss", "settings", "weeks")


def _without_breaks(text: str) -> str:
    """Paragraphs without the line breaks of the file; an empty line starts a new paragraph."""
    return "\n\n".join(" ".join(part.split()) for part in text.split("\n\n") if part.strip())


Prose = Annotated[str, AfterValidator(_without_breaks)]


@checked(frozen=True, config=ConfigDict(extra="forbid"))
class Findings:
    """Prose about one run, written by people: ``sections`` by experiment, ``explanations`` by claim."""

    note: Prose = ""
    sections: dict[str, Prose] = field(default_factory=dict)
    explanations: dict[str, Prose] = field(default_factory=dict)


@dataclass(frozen=True)
class Run:
    """The tables by name, the record of the run, the findings, and the tables at the authors' settings."""

    frames: Frames
    record: Mapping[str, Any]
    findings: Findings
    authors: Frames

    @property
    def is_smoke(self) -> bool:
        """Whether the data are made up: then the figures prove nothing."""
        return bool(self.record.get("preset") == "smoke")

    @property
    def own(self) -> Mapping[str, Mapping[str, str]]:
        """A researcher's own experiments: kind and title by name."""
        own: Mapping[str, Mapping[str, str]] = self.record.get("own", {})
        return own


def read(folder: Path) -> Run:
    """Everything that lies in the folder of a run; tables that are not there are left out."""
    if not folder.is_dir():
        raise InputError(f"the folder '{folder}' does not exist; run 'taurank paper --out {folder}' first.")
    record, path = read_record(folder), folder / "findings.toml"
    findings = validated(Findings, read_toml(path), f"'{path}'") if path.is_file() else Findings()
    own = {
        name + suffix: entry["kind"] + suffix for name, entry in record.get("own", {}).items() for suffix in SUFFIXES
    }
    return Run(_read_tables(folder, own), record, findings, _read_tables(folder / "authors"))


@cache
def printed() -> Frames:
    """What the paper prints, so that the same criteria apply to its figures and to ours."""
    return {path.stem: _read_table(path) for path in sorted((Path(__file__).parent / "printed").glob("*.csv"))}


def read_record(folder: Path) -> dict[str, Any]:
    """What ``run.json`` says of a run; empty where there is none."""
    path = folder / "run.json"
    try:
        record = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except (ValueError, RecursionError) as error:
        raise InputError(f"'{path}' cannot be read as JSON: {first_line(error)}.") from error
    if not isinstance(record, dict):
        raise InputError(f"'{path}' does not contain a JSON object; write it again with 'taurank paper'.")
    return record


def _read_tables(folder: Path, own: Mapping[str, str] | None = None) -> dict[str, pd.DataFrame]:
    kinds = {**{name: name for name in COLUMNS}, **(own or {})}
    paths = {name: folder / f"{name}.csv" for name, kind in kinds.items() if kind in COLUMNS}
    return {name: _read_table(path, COLUMNS[kinds[name]].split()) for name, path in paths.items() if path.is_file()}


def _read_table(path: Path, columns: Sequence[str] = ()) -> pd.DataFrame:
    types = {name: object if name in _TEXT else "float64" for name in (*columns, *_TEXT)}
    try:
        frame = pd.read_csv(path, dtype=types, keep_default_na=False, na_values=[""])
    except (ValueError, OSError) as error:
        raise InputError(f"'{path}' cannot be read as CSV: {first_line(error)}; write it again.") from error
    missing = [name for name in columns if name not in frame.columns]
    if missing:
        raise InputError(f"'{path}' has no column {missing[0]!r}; write it again with 'taurank paper'.")
    return frame


def write_text(path: Path, text: str) -> None:
    """Write a file through a temporary one beside it; its folder is made if need be."""
    temporary = path.with_name(f"{path.name}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise InputError(f"'{path}' cannot be written: {error.strerror}.") from error
