"""Tables out: a stream of Arrow batches as one Parquet or CSV file."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from taurank.data.files import atomic_path, check_target, kind_of
from taurank.errors import InputError, first_line

AnyPath = str | os.PathLike[str]
_ROWS_PER_GROUP = 1 << 16
Stream = tuple[pa.Schema, Iterable[pa.RecordBatch]]


def write_batches(path: AnyPath, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
    """Write a stream of batches as Parquet or CSV, by the name of the file, and never half of it."""
    write_together([(path, (schema, batches))])


def write_together(tables: Sequence[tuple[AnyPath, Stream]]) -> None:
    """Write several files: all of them, or none if one of them cannot be written."""
    kinds = [_kind(path) for path, _ in tables]
    with ExitStack() as stack:
        for (path, (schema, batches)), kind in zip(tables, kinds, strict=True):
            _write(path, kind, stack.enter_context(atomic_path(path)), schema, batches)


def _kind(path: AnyPath) -> str:
    kind = kind_of(check_target(path))
    if Path(path).suffix.lower() == ".gz":
        raise InputError(f"'{path}': writing compressed CSV is not supported; use .csv or .parquet.")
    return kind


def _write(path: AnyPath, kind: str, temporary: Path, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
    try:
        with _writer(kind, temporary, schema) as writer:
            for table in _gathered(schema, batches):
                writer.write_table(table)
    except pa.ArrowException as error:
        raise InputError(f"'{path}' cannot be written: {first_line(error)}.") from error


def _gathered(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Tables of at least so many rows: each becomes a row group of its own, and small ones are slow to read."""
    waiting, rows = [], 0
    for batch in batches:
        waiting.append(batch)
        rows += batch.num_rows
        if rows >= _ROWS_PER_GROUP:
            yield pa.Table.from_batches(waiting, schema)
            waiting, rows = [], 0
    if waiting:
        yield pa.Table.from_batches(waiting, schema)


def _writer(kind: str, path: Path, schema: pa.Schema) -> Any:
    if kind == "Parquet":
        return pa.parquet.ParquetWriter(path, schema, compression="zstd", write_page_checksum=True)
    return pa.csv.CSVWriter(path, schema.remove_metadata())
