"""From words on the command line to what they mean: hyper-parameters, gains, ids.

Nothing heavy is imported before a function runs, as in ``cli``.
"""

from __future__ import annotations

import json
import os
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

from taurank.errors import InputError


class Estimator(StrEnum):
    truth = "truth"
    outcome = "outcome"
    naive = "naive"
    ips = "ips"
    capped_ips = "capped-ips"


def make_learner(name: str, settings: list[str] | None, seed: int, threads: int | None) -> Any:
    from taurank.learners import LEARNERS
    from taurank.learners.factorization import FactorLearner

    if name.lower() not in LEARNERS:
        raise InputError(f"there is no learner '{name}'; known are {', '.join(LEARNERS)}.")
    learner = LEARNERS[name.lower()]
    options: dict[str, Any] = {"random_state": seed, **read_pairs(settings)}
    if threads is not None and issubclass(learner, FactorLearner):
        options["threads"] = threads
    try:
        return learner(**options)
    except TypeError as error:
        known = ", ".join(learner().hyper_parameters())
        raise InputError(f"{learner.__name__} does not take these settings; it takes {known}.") from error


def read_pairs(settings: list[str] | None) -> dict[str, Any]:
    """--set name=value: numbers as numbers, several values as a list, the rest as text."""
    result: dict[str, Any] = {}
    for setting in settings or []:
        name, equals, text = setting.partition("=")
        if not equals:
            raise InputError(f"'{setting}' is not of the form name=value.")
        values = [_value(part) for part in text.split(",")]
        result[name.strip().replace("-", "_")] = values if len(values) > 1 else values[0]
    return result


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def read_gains(log: Path | None, truth: Path | None, estimator: Estimator | None, cap: float | None) -> Any:
    """The gains to measure by: the truth if it is given, else an estimate from the log."""
    from taurank.data.files import find_files
    from taurank.data.log import Log
    from taurank.estimation import gains

    chosen = estimator or (Estimator.truth if truth else Estimator.capped_ips if cap is not None else Estimator.ips)
    if chosen is Estimator.truth:
        if truth is None:
            raise InputError("--estimator truth needs the effects: --truth FILE.")
        if cap is not None:
            raise InputError("--cap is for capped IPS; the truth needs none.")
        if log is not None:
            find_files(log)
        return gains.Gains.read(truth, name="truth")
    if log is None:
        raise InputError(f"--estimator {chosen} needs a log.")
    if chosen is Estimator.capped_ips:
        return gains.capped_ips(Log.read(log), cap)
    return {"outcome": gains.outcome, "naive": gains.naive, "ips": gains.ips}[chosen.value](Log.read(log))


def read_column(path: Path | None, column: str) -> Any:
    """One column of ids from a table, or None."""
    from taurank.data.reader import read_ids
    from taurank.data.sources import from_files

    return None if path is None else read_ids(from_files(path), column).unique()  # a log names a user often


def read_exclusion(path: Path | None) -> Any:
    """A log if the file has a log's columns, else a table of ids."""
    if path is None:
        return None
    import pyarrow as pa

    from taurank.data.log import Log
    from taurank.data.reader import read_ids
    from taurank.data.sources import from_files

    source = from_files(path)
    if "outcome" in source.columns:
        return Log.read(path)
    names = [name for name in ("user_id", "item_id") if name in source.columns]
    return pa.table({name: read_ids(source, name) for name in names})


def read_weight(text: str | None) -> float | Literal["tune"] | None:
    if text is None or text == "tune":
        return text  # type: ignore[return-value]
    try:
        return float(text)
    except ValueError as error:
        raise InputError(f"--prior-weight is a number or 'tune', not '{text}'.") from error


def read_period(text: str) -> str | list[str]:
    return [edge.strip() for edge in text.split(",")] if "," in text else text


def read_ranker(path: str | os.PathLike[str]) -> Any:
    """A model that ``save`` wrote, a ``.npy`` array users × items, or a table ``user_id, item_id, score``."""
    from taurank.data import archive
    from taurank.evaluation.rankers import TableRanker

    name = os.fspath(path)
    if Path(name).is_file():
        with open(name, "rb") as stream:
            start = stream.read(8)
        if start == archive.MAGIC:
            from taurank.learners import load

            return load(path)
        if start[:6] == b"\x93NUMPY":
            return _read_array(name)
    return TableRanker(path)


def _read_array(name: str) -> Any:
    import numpy as np

    try:
        return np.asarray(np.load(name, allow_pickle=False))
    except (ValueError, OSError) as error:
        raise InputError(f"'{name}' is not a whole array of numbers.") from error
