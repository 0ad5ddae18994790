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
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
from pydantic import AfterValidator, ConfigDict
from pydantic.dataclasses import dataclass as checked

import taurank as tr
from taurank.toml import read_toml, validated

Frames = Mapping[str, pd.DataFrame]

_TEXT = ["items", "setting", "method", "metric", "objective", "quantity", "propensity", "loss", "settings", "weeks"]
_NUMBERS = [
    "mean", "std", "value", "prior_weight", "brier", "low", "high", "density", "cap", "mae", "truth", "beta", "xi",
    "factors", "updates", "seconds", "minutes", "validation",
]  # fmt: skip
_TYPES: dict[str, Any] = {**dict.fromkeys(_TEXT, object), **dict.fromkeys(_NUMBERS, "float64")}


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


def read(folder: Path) -> Run:
    """Everything that lies in the folder of a run; tables that are not there are left out."""
    if not folder.is_dir():
        raise tr.InputError(f"the folder '{folder}' does not exist; run 'taurank paper --out {folder}' first.")
    record, path = read_record(folder), folder / "findings.toml"
    findings = validated(Findings, read_toml(path), f"'{path}'") if path.is_file() else Findings()
    return Run(_read_tables(folder), record, findings, _read_tables(folder / "authors"))


@cache
def printed() -> Frames:
    """What the paper prints, so that the same criteria apply to its figures and to ours."""
    return _read_tables(Path(__file__).parent / "printed")


def read_record(folder: Path) -> dict[str, Any]:
    """What ``run.json`` says of a run; empty where there is none."""
    path = folder / "run.json"
    try:
        record = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except (ValueError, RecursionError) as error:
        raise tr.InputError(f"'{path}' cannot be read as JSON: {tr.errors.first_line(error)}.") from error
    if not isinstance(record, dict):
        raise tr.InputError(f"'{path}' does not contain a JSON object; write it again with 'taurank paper'.")
    return record


def _read_tables(folder: Path) -> dict[str, pd.DataFrame]:
    tables = {}
    for path in sorted(folder.glob("*.csv")):
        try:
            tables[path.stem] = pd.read_csv(path, dtype=_TYPES, keep_default_na=False, na_values=[""])
        except (ValueError, OSError) as error:
            flaw = tr.errors.first_line(error)
            raise tr.InputError(f"'{path}' cannot be read as CSV: {flaw}; write it again.") from error
    return tables


def write_text(path: Path, text: str) -> None:
    """Write a file through a temporary one beside it; its folder is made if need be."""
    temporary = path.with_name(f"{path.name}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink()
        raise tr.InputError(f"'{path}' cannot be written: {error.strerror}.") from error
