"""Tables in and out: frames of any library and files of any number, as streams of Arrow batches.

Frames come in as pandas, Polars or PyArrow; files as Parquet or CSV, one file, a glob or a folder. A CSV has
commas, semicolons or tabs; it is read as text and typed later: a type is decided on the whole column, never guessed
from its first rows.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import narwhals as nw
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from taurank.data.files import atomic_path, check_target, find_files, kind_of, reason
from taurank.errors import InputError, first_line

BATCH_ROWS = 1 << 20
CSV_BLOCK_BYTES = 16 << 20
HEADER_BYTES = 1 << 16
MIN_ROWS_PER_GROUP = 1 << 16  # small row groups are slow to read
# what Arrow raises about a damaged file
DAMAGED = (pa.ArrowException, OSError, ValueError, TypeError, KeyError, OverflowError, MemoryError)

AnyPath = str | os.PathLike[str]
Stream = tuple[pa.Schema, Iterable[pa.RecordBatch]]


@dataclass(frozen=True)
class Source:
    """A table that can be walked batch by batch: its columns, its batches, the metadata it carries."""

    name: str
    columns: tuple[str, ...]
    walk: Callable[[list[str]], Iterator[pa.RecordBatch]]  # the batches with these columns
    text: bool = False  # a CSV: every value arrives as text
    metadata: tuple[Mapping[bytes, bytes], ...] = ()  # of each file
    decimal_comma: bool = False  # a CSV with semicolons, in which a number may be written 0,25

    def __post_init__(self) -> None:
        repeated = {column for column in self.columns if self.columns.count(column) > 1}
        if repeated:
            raise InputError(f"{self.name} has two columns named '{min(repeated)}'; rename one of them.")

    def numerals(self, array: pa.Array) -> pa.Array:
        """A column of text with a decimal point in its numbers."""
        if not self.decimal_comma:
            return array
        return pc.replace_substring_regex(array, r"^([+-]?\d*),(\d+([eE][+-]?\d+)?)$", r"\1.\2")

    def batches(self, columns: Iterable[str]) -> Iterator[pa.RecordBatch]:
        """Batches with just these columns, each checked to be what it announces; errors become one sentence."""
        try:
            for batch in self.walk(list(columns)):
                batch.validate(full=True)  # a damaged file can point outside its buffers
                if batch.num_rows:
                    yield batch
        except DAMAGED as error:
            raise InputError(f"{self.name} cannot be read: {reason(error)}.") from error


def open_table(data: Any) -> Source:
    """A pandas, Polars (lazy too) or PyArrow table, or the files behind a path: one file, a glob or a folder."""
    if not isinstance(data, (str, os.PathLike)):
        table = to_arrow(data)
        metadata = (dict(table.schema.metadata or {}),) if isinstance(data, pa.Table) else ()
        return Source(
            "the frame", tuple(table.column_names),
            lambda columns: iter(table.select(columns).to_batches(max_chunksize=BATCH_ROWS)), metadata=metadata,
        )  # fmt: skip
    files = find_files(data)
    kinds = {kind_of(file) for file in files}
    if len(kinds) > 1:
        raise InputError(f"'{data}' mixes Parquet and CSV files; read one kind at a time.")
    return _open_csv(files) if kinds == {"CSV"} else _open_parquet(files)


def to_arrow(frame: Any) -> pa.Table:
    if isinstance(frame, pa.Table):
        return frame
    try:
        native = nw.from_native(frame)
        eager = native.collect() if isinstance(native, nw.LazyFrame) else native
        return eager.to_arrow()
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        if type(error) is TypeError and ("Expected" in str(error) or "Unsupported" in str(error)):
            raise InputError(f"a pandas, Polars or PyArrow frame is needed, got a {type(frame).__name__}.") from error
        raise InputError(f"the frame cannot be read: {first_line(error)}.") from error


def _open_parquet(files: list[Path]) -> Source:
    schemas = []
    for file in files:
        try:
            schemas.append(pa.parquet.read_schema(file))
        except DAMAGED as error:
            raise InputError(
                f"'{file}' is not a complete Parquet file ({reason(error)}); "
                "it may be truncated, or a file of another kind with this name."
            ) from error

    def walk(wanted: list[str]) -> Iterator[pa.RecordBatch]:
        for file in files:
            with pa.parquet.ParquetFile(file, page_checksum_verification=True) as parquet:
                yield from parquet.iter_batches(batch_size=BATCH_ROWS, columns=wanted)

    metadata = tuple(dict(schema.metadata or {}) for schema in schemas)
    return Source(*_one_table(files, [schema.names for schema in schemas]), walk, metadata=metadata)


def _open_csv(files: list[Path]) -> Source:
    delimiters, headers = zip(*(_header(file) for file in files), strict=True)
    name, columns = _one_table(files, headers)

    def walk(wanted: list[str]) -> Iterator[pa.RecordBatch]:
        read = pa.csv.ReadOptions(block_size=CSV_BLOCK_BYTES)
        convert = pa.csv.ConvertOptions(
            column_types=dict.fromkeys(columns, pa.string()),
            include_columns=wanted,
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,  # an id may be the empty text, if it is written ""
        )
        for file, delimiter in zip(files, delimiters, strict=True):
            parse = pa.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
            with pa.csv.open_csv(file, read, parse, convert) as reader:
                yield from reader

    return Source(name, columns, walk, text=True, decimal_comma=set(delimiters) == {";"})


def _header(file: Path) -> tuple[str, list[str]]:
    """What separates the columns, of comma, semicolon and tab what the header has most of, and their names."""
    try:
        with pa.input_stream(file, compression="gzip" if file.suffix.lower() == ".gz" else None) as stream:
            start = stream.read(HEADER_BYTES)
        if start[:4] == b"PAR1":
            raise InputError(f"'{file}' is named .csv but is a Parquet file; rename it to .parquet.")
        if not start.strip():
            raise InputError(f"'{file}' is empty; a CSV needs a header line.")
        header = start.lstrip(b"\r\n").splitlines()[0].decode("utf-8-sig")
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise InputError(f"'{file}' is not a readable CSV: {reason(error)}.") from error
    plain = "".join(header.split('"')[::2])  # without what is quoted
    delimiter = max(",;\t", key=plain.count)  # a comma if it has none
    return delimiter, next(csv.reader([header], delimiter=delimiter))


def _one_table(files: list[Path], columns: Sequence[Sequence[str]]) -> tuple[str, tuple[str, ...]]:
    """The name and the columns of files that must all have the same columns."""
    for file, names in zip(files, columns, strict=True):
        if set(names) != set(columns[0]):
            odd = min(set(names) ^ set(columns[0]))
            raise InputError(f"'{file}' and '{files[0]}' have different columns ('{odd}' is in only one of them).")
    name = f"'{files[0]}'" if len(files) == 1 else f"'{files[0]}' and {len(files) - 1} more"
    return name, tuple(columns[0])


def write_batches(path: AnyPath, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
    write_together([(path, (schema, batches))])


def write_together(tables: Sequence[tuple[AnyPath, Stream]]) -> None:
    """Write several files: all of them, or none if one of them cannot be written."""
    for path, _ in tables:
        kind_of(check_target(path))
        if Path(path).suffix.lower() == ".gz":
            raise InputError(f"'{path}': writing compressed CSV is not supported; use .csv or .parquet.")
    with ExitStack() as stack:
        for path, (schema, batches) in tables:
            temporary = stack.enter_context(atomic_path(path))
            try:
                with _writer(kind_of(Path(path)), temporary, schema) as writer:
                    waiting: list[pa.RecordBatch] = []
                    for batch in batches:
                        waiting.append(batch)
                        if sum(map(len, waiting)) >= MIN_ROWS_PER_GROUP:
                            writer.write_table(pa.Table.from_batches(waiting, schema))
                            waiting = []
                    if waiting:
                        writer.write_table(pa.Table.from_batches(waiting, schema))
            except pa.ArrowException as error:
                raise InputError(f"'{path}' cannot be written: {first_line(error)}.") from error


def _writer(kind: str, path: Path, schema: pa.Schema) -> Any:
    if kind == "Parquet":
        return pa.parquet.ParquetWriter(path, schema, compression="zstd", write_page_checksum=True)
    return pa.csv.CSVWriter(path, schema.remove_metadata())
