"""Tables out: a stream of Arrow batches as one Parquet or CSV file."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from taurank.data.files import atomic_path, check_target, kind_of
from taurank.data.seal import seal
from taurank.errors import InputError, first_line


def write_batches(path: str | os.PathLike[str], schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
    """Write a stream of batches as Parquet or CSV, by the name of the file, and never half of it."""
    kind = kind_of(check_target(path))
    if Path(path).suffix.lower() == ".gz":
        raise InputError(f"'{path}': writing compressed CSV is not supported; use .csv or .parquet.")
    with atomic_path(path) as temporary:
        try:
            with _writer(kind, temporary, schema) as writer:
                for batch in batches:
                    writer.write_batch(batch)
            if kind == "Parquet":
                seal(temporary)
        except pa.ArrowException as error:
            raise InputError(f"'{path}' cannot be written: {first_line(error)}.") from error


def _writer(kind: str, path: Path, schema: pa.Schema) -> Any:
    if kind == "Parquet":
        return pa.parquet.ParquetWriter(path, schema, compression="zstd", write_page_checksum=True)
    return pa.csv.CSVWriter(path, schema.remove_metadata())
