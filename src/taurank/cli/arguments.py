"""From words on the command line to what they mean: learners, hyper-parameters, gains, ids.

Nothing heavy is imported before a function runs.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taurank.cli.options import Estimator
from taurank.errors import InputError

if TYPE_CHECKING:
    from taurank.cluster import Cluster
    from taurank.data.log import Log
    from taurank.estimation.gains import Gains
    from taurank.learners import Learner


def read_learner(name: str) -> type[Learner]:
    """A learner's class by its name, or by ``module:Class``, also from the current folder."""
    from taurank.learners import learner_class

    if ":" in name:
        import_from_here()
    return learner_class(name)


def read_model(path: Path, trust: list[str] | None) -> Learner:
    """A model that ``save`` wrote; the modules of --trust are found in the current folder, too."""
    from taurank.learners import load

    if trust:
        import_from_here()
    return load(path, trust=trust or [])


def import_from_here() -> None:
    """The installed command, unlike ``python -m taurank``, does not look into the current folder by itself."""
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())


def make_learner(name: str, settings: dict[str, Any], threads: int | None) -> Learner:
    learner = read_learner(name)
    known = learner().get_params()
    if threads is not None and "threads" in known:
        settings = {**settings, "threads": threads}
    if unknown := [option for option in settings if option not in known]:
        raise InputError(f"{learner.__name__} has no hyper-parameter '{unknown[0]}'; it has {', '.join(known)}.")
    return learner(**settings)


def read_settings(path: Path | None, learner: str) -> dict[str, Any]:
    """The hyper-parameters in a file that ``tune --out`` wrote for this learner."""
    if path is None:
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        settings, made_for = dict(content["settings"]), content["learner"]
    except OSError as error:
        raise InputError(f"'{path}' cannot be read: {error.strerror}.") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(f"'{path}' is not a settings file; write one with: taurank tune --out FILE.") from error
    if str(made_for).lower() != learner.lower():
        raise InputError(f"'{path}' has hyper-parameters of {made_for}, not of {learner}.")
    return settings


def read_pairs(settings: list[str] | None) -> dict[str, Any]:
    """--set name=value: numbers as numbers, several values as a list, the rest as text."""
    result: dict[str, Any] = {}

    def value(text: str) -> Any:
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            return text

    for setting in settings or []:
        name, equals, text = setting.partition("=")
        if not equals:
            raise InputError(f"'{setting}' is not of the form name=value.")
        values = [value(part) for part in text.split(",")]
        result[name.strip().replace("-", "_")] = values if len(values) > 1 else values[0]
    return result


def read_columns(columns: list[str] | None) -> dict[str, str]:
    """--columns ours=theirs, comma-separated or repeated."""
    pairs = [pair.partition("=") for pair in split_commas(columns)]
    if wrong := next((name for name, equals, _ in pairs if not equals), None):
        raise InputError(f"--columns has '{wrong}'; write it as user_id=customer,timestamp=shown_at.")
    return {ours.strip(): theirs.strip() for ours, _, theirs in pairs}


def split_commas(texts: list[str] | None) -> list[str]:
    return [part.strip() for text in texts or [] for part in text.split(",")]


def read_log(path: Path | None, cluster: Cluster | None = None) -> Any:
    """A log in memory, or read by the workers of a cluster; None without a path."""
    from taurank.data.log import Log

    read = Log.read if cluster is None else cluster.read_log
    return None if path is None else read(path)


@contextmanager
def connected(address: str | None, out: Path | None = None) -> Iterator[Cluster | None]:
    """The cluster of --cluster, if there is one; its files are beside ``out``, which all of its machines reach."""
    if address is None:
        yield None
        return
    from taurank.cluster import connect

    with connect(None if address == "local" else address, storage=(out or Path("x")).resolve().parent) as cluster:
        yield cluster


def read_gains(
    log: Log | None, truth: Path | None, estimator: Estimator | None, cap: float | None, default: Estimator = "ips"
) -> Gains:
    """The gains to measure by: the truth if it is given, else an estimate from the log."""
    from taurank.estimation import gains

    chosen = estimator or ("truth" if truth else "capped-ips" if cap is not None else default)
    if chosen == "truth":
        if truth is None:
            raise InputError("--estimator truth needs the true effects: --truth FILE.")
        if cap is not None:
            raise InputError("--cap applies to capped IPS, not to the truth; leave it out.")
        return gains.Gains.read(truth, name="truth")
    if log is None:
        raise InputError(f"the estimator {chosen} needs a log; name one, or true effects: --truth FILE.")
    make: Any = getattr(gains, chosen.replace("-", "_"))
    made: Gains = make(log, cap=cap) if chosen in ("capped-ips", "doubly-robust") else make(log)
    return made


def read_table(path: Path | None, names: Collection[str] | None = None) -> Any:
    """A small table, or some of its columns: ids as those of a log, others as numbers where all of them are."""
    if path is None:
        return None
    import pyarrow as pa

    from taurank.data.reader import read_ids
    from taurank.data.tables import open_table

    source, columns = open_table(path), {}
    for name in source.columns if names is None else names:
        if name in ("user_id", "item_id"):
            columns[name] = read_ids(source, name)
            continue
        parts = [batch.column(0) for batch in source.batches([name])]
        columns[name] = pa.chunked_array(parts)
        with suppress(pa.ArrowException):  # text
            columns[name] = pa.chunked_array([source.numerals(part).cast(pa.float64()) for part in parts])
    return pa.table(columns)


def read_items(path: Path | None, *, of_one_time: bool = False) -> Any:
    """A log if the file has a log's columns, else a table with item_id, and user_id if it has one."""
    if path is None:
        return None
    from taurank.data.log import Log
    from taurank.data.tables import open_table
    from taurank.learners.candidates import check_timeless

    columns = open_table(path).columns
    if "outcome" in columns:
        return Log.read(path)
    if of_one_time:
        check_timeless(columns)
    return read_table(path, {"user_id", "item_id"}.intersection(columns))


def read_ranker(path: Path, trust: list[str] | None) -> Any:
    """A model that ``save`` wrote, a ``.npy`` array users × items, or the path of a ranking table."""
    from taurank.data import storage

    if storage.is_stored(str(path)):
        return read_model(path, trust)
    if not path.is_file():
        return path
    with path.open("rb") as stream:
        if stream.read(6) != b"\x93NUMPY":
            return path
    import numpy as np

    try:
        return np.asarray(np.load(path, allow_pickle=False))
    except (ValueError, OSError) as error:
        raise InputError(f"'{path}' is not a complete NumPy array of numbers.") from error
