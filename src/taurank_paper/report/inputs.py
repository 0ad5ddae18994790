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
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
from pydantic import ConfigDict
from pydantic.dataclasses import dataclass as checked

from taurank.errors import InputError, first_line
from taurank_paper.claims import CLAIMS
from taurank_paper.plan import KINDS, read_toml, validated

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


@checked(frozen=True, config=ConfigDict(extra="forbid"))
class Findings:
    """Prose about one run, written by people."""

    note: str = ""
    sections: dict[str, str] = field(default_factory=dict)
    explanations: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Inputs:
    """The tables by name, the record of the run, the findings, and the tables at the authors' settings."""

    frames: Mapping[str, pd.DataFrame]
    record: Mapping[str, Any]
    findings: Findings
    authors: Mapping[str, pd.DataFrame]

    @property
    def is_smoke(self) -> bool:
        """Whether the data are made up: then the figures prove nothing."""
        return bool(self.record.get("preset") == "smoke")

    @property
    def own(self) -> Mapping[str, Mapping[str, str]]:
        """A researcher's own experiments: kind and title by name."""
        own: Mapping[str, Mapping[str, str]] = self.record.get("own", {})
        return own


def read(folder: Path) -> Inputs:
    """Everything that lies in the folder of a run; tables that are not there are left out."""
    if not folder.is_dir():
        raise InputError(f"the folder '{folder}' does not exist; run 'taurank paper --out {folder}' first.")
    try:
        path = folder / "run.json"
        record = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except ValueError as error:
        raise InputError(f"'{path}' cannot be read as JSON: {error}.") from error
    if not isinstance(record, dict):
        raise InputError(f"'{path}' does not contain a JSON object; write it again with 'taurank paper'.")
    own = {name: str(entry["kind"]) for name, entry in record.get("own", {}).items()}
    findings = _read_findings(folder / "findings.toml", [*KINDS, *own])
    return Inputs(_read_tables(folder, own), record, findings, _read_tables(folder / "authors", {}))


def _read_tables(folder: Path, own: Mapping[str, str]) -> dict[str, pd.DataFrame]:
    kinds = {name: name for name in COLUMNS} | {
        name + suffix: kind + suffix for name, kind in own.items() for suffix in SUFFIXES if kind + suffix in COLUMNS
    }
    paths = {name: folder / f"{name}.csv" for name in kinds}
    return {name: _read_table(path, COLUMNS[kinds[name]].split()) for name, path in paths.items() if path.is_file()}


def _read_table(path: Path, columns: list[str]) -> pd.DataFrame:
    types = {name: object if name in _TEXT else "float64" for name in (*columns, *_TEXT)}
    try:
        frame = pd.read_csv(path, dtype=types, keep_default_na=False, na_values=[""])
    except (ValueError, OSError) as error:
        raise InputError(f"'{path}' cannot be read as CSV: {first_line(error)}; write it again.") from error
    missing = [name for name in columns if name not in frame.columns]
    if missing:
        raise InputError(f"'{path}' has no column {missing[0]!r}; write it again with 'taurank paper'.")
    return frame


def _read_findings(path: Path, experiments: list[str]) -> Findings:
    if not path.is_file():
        return Findings()
    findings: Findings = validated(Findings, read_toml(path), f"'{path}'")
    for part, known in (("sections", experiments), ("explanations", [claim.id for claim in CLAIMS])):
        for key in getattr(findings, part):
            if key not in known:
                raise InputError(f"'{path}' has the unknown key '{part}.{key}'; known: {', '.join(known)}.")
    texts = ({key: _prose(text) for key, text in part.items()} for part in (findings.sections, findings.explanations))
    return Findings(_prose(findings.note), *texts)


def _prose(text: str) -> str:
    """Paragraphs without the line breaks of the file; an empty line starts a new paragraph."""
    return "\n\n".join(" ".join(part.split()) for part in text.split("\n\n") if part.strip())
