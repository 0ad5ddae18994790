"""The database that matches events: of its own, in a temporary folder, gone afterwards."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import duckdb

from taurank._validation import check_integer
from taurank.data.files import reason
from taurank.data.temporary import temporary_folder
from taurank.errors import InputError, first_line


@contextmanager
def open_database(
    memory_limit: str | None, threads: int | None, temp_folder: str | os.PathLike[str] | None
) -> Iterator[Any]:
    """A database of its own that spills into a folder of its own; both are gone afterwards."""
    if temp_folder is not None and not (isinstance(temp_folder, (str, os.PathLike)) and os.path.isdir(temp_folder)):
        raise InputError(f"temp_folder {temp_folder!r} is not a folder; create it first.")
    if threads is not None:
        check_integer("threads", threads)
    try:
        with temporary_folder(temp_folder) as folder, _connect(memory_limit, threads, folder) as database:
            yield database
    except duckdb.OutOfMemoryException as error:
        raise InputError(f"memory_limit is too small for these tables: {first_line(error)}.") from error
    except (OSError, duckdb.IOException) as error:
        raise InputError(f"temporary files cannot be written: {reason(error)}; give a temp_folder.") from error


def _connect(memory_limit: str | None, threads: int | None, folder: os.PathLike[str]) -> Any:
    settings = {"memory_limit": memory_limit, "threads": threads}
    config = {name: value for name, value in settings.items() if value is not None}
    config |= {"temp_directory": os.fspath(folder), "preserve_insertion_order": False}
    try:
        return duckdb.connect(":memory:", config=config)
    except (duckdb.Error, TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{settings} cannot be used: {first_line(error)}.") from error


def one(database: Any, query: str) -> tuple[Any, ...]:
    """The first row of a query."""
    rows: list[tuple[Any, ...]] = database.execute(query).fetchall()
    return rows[0]
