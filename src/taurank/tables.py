"""Tables from anywhere: frames of any library and files of any number, as a stream of Arrow batches.

Frames come in as pandas, Polars or PyArrow; files as Parquet or CSV, one file, a glob or a folder. A CSV is
read as text and typed later: a type is decided on the whole column, never guessed from its first rows.
"""

from __future__ import annotations

import glob
import os
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import narwhals as nw
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from taurank.catalogue import first_line
from taurank.errors import InputError

BATCH_ROWS = 1 << 20
CSV_BLOCK_BYTES = 16 << 20
SUFFIXES = {".parquet": "Parquet", ".pq": "Parquet", ".csv": "CSV", ".csv.gz": "CSV"}


@dataclass(frozen=True)
class Source:
    """A table that can be walked batch by batch: its columns, its batches, the metadata it carries."""

    name: str
    columns: tuple[str, ...]
    walk: Any  # columns -> iterator of record batches
    text: bool = False  # a CSV: every value arrives as text
    metadata: tuple[Mapping[bytes, bytes], ...] = field(default=())

    def batches(self, columns: Iterable[str]) -> Iterator[pa.RecordBatch]:
        """Batches with just these columns; whatever a file does wrong becomes one sentence."""
        wanted = list(columns)
        try:
            for batch in self.walk(wanted):
                if batch.num_rows:
                    yield batch
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise InputError(f"{self.name} cannot be read: {first_line(error)}.") from error


def from_frame(frame: Any) -> Source:
    """A pandas, Polars (lazy too) or PyArrow table as a source."""
    table = to_arrow(frame)
    if len(set(table.column_names)) != len(table.column_names):
        raise InputError("the frame has two columns of the same name; rename one of them.")

    def walk(columns: list[str]) -> Iterator[pa.RecordBatch]:
        return iter(table.select(columns).to_batches(max_chunksize=BATCH_ROWS))

    metadata = (table.schema.metadata or {},) if isinstance(frame, pa.Table) else ()
    return Source("the frame", tuple(table.column_names), walk, metadata=metadata)


def to_arrow(frame: Any) -> pa.Table:
    if isinstance(frame, pa.Table):
        return frame
    try:
        native = nw.from_native(frame)
        eager = native.collect() if isinstance(native, nw.LazyFrame) else native
        return eager.to_arrow()
    except TypeError as error:
        if "Expected" in str(error) or "Unsupported" in str(error):
            raise InputError(f"a pandas, Polars or PyArrow frame is needed, not {type(frame).__name__}.") from error
        raise InputError(f"the frame cannot be read: {first_line(error)}.") from error
    except (pa.ArrowException, ValueError, OverflowError, UnicodeError) as error:
        raise InputError(f"the frame cannot be read: {first_line(error)}.") from error


def from_files(path: str | os.PathLike[str]) -> Source:
    """A Parquet or CSV file, a glob, or a folder of them, as one source."""
    files = find_files(path)
    kinds = {kind_of(file) for file in files}
    if len(kinds) > 1:
        raise InputError(f"'{path}' mixes Parquet and CSV files; read one kind at a time.")
    return _from_csv(files) if kinds == {"CSV"} else _from_parquet(files)


def find_files(path: str | os.PathLike[str]) -> list[Path]:
    """The files behind a path, in name order."""
    if not isinstance(path, (str, os.PathLike)):
        raise InputError(f"the path of a file, a glob or a folder is needed, not {path!r}.")
    text = os.fspath(path)
    if os.path.isdir(text):
        inside = [p for p in sorted(Path(text).rglob("*")) if not _is_hidden(p.relative_to(text))]
        found = [p for p in inside if p.is_file() and kind_of(p, ask=True)]
        _refuse_partitions(found, text)
        if not found:
            raise InputError(f"the folder '{text}' holds no .parquet or .csv file.")
        return found
    if os.path.exists(text):
        if not os.path.isfile(text):
            raise InputError(f"'{text}' is no ordinary file; copy it to one first.")
        return [Path(text)]
    matched = [Path(p) for p in sorted(glob.glob(text, recursive=True)) if os.path.isfile(p)]
    found = [p for p in matched if not p.name.startswith(("_", "."))]
    if not found:
        raise InputError(f"there is no file '{text}'.")
    return found


def _is_hidden(relative: Path) -> bool:
    """Leftovers of other tools: .ipynb_checkpoints/…, ._a.parquet, _SUCCESS."""
    return any(part.startswith((".", "_")) for part in relative.parts)


def _refuse_partitions(files: list[Path], folder: str) -> None:
    for file in files:
        for part in file.relative_to(folder).parts[:-1]:
            if "=" in part:
                raise InputError(
                    f"'{folder}' is partitioned: '{part}' holds a column in the name of a folder; "
                    "write the column into the files first."
                )


def kind_of(file: Path, ask: bool = False) -> str:
    """ "Parquet" or "CSV", by name; ``ask`` gives an empty string instead of an error."""
    for suffix, kind in SUFFIXES.items():
        if file.name.lower().endswith(suffix):
            return kind
    if ask:
        return ""
    raise InputError(f"'{file}' is neither .parquet nor .csv by its name; rename or convert it.")


def _from_parquet(files: list[Path]) -> Source:
    schemas = [_parquet_schema(file) for file in files]
    columns = _same_columns(files, [tuple(schema.names) for schema in schemas])

    def walk(wanted: list[str]) -> Iterator[pa.RecordBatch]:
        for file in files:
            with pa.parquet.ParquetFile(file) as parquet:
                yield from parquet.iter_batches(batch_size=BATCH_ROWS, columns=wanted)

    metadata = tuple(schema.metadata or {} for schema in schemas)
    return Source(_name(files), columns, walk, metadata=metadata)


def _parquet_schema(file: Path) -> pa.Schema:
    try:
        return pa.parquet.read_schema(file)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"'{file}' is not a whole Parquet file ({first_line(error)}); "
            "it may be truncated, or another kind of file under this name."
        ) from error


def _from_csv(files: list[Path]) -> Source:
    headers = [_csv_header(file) for file in files]
    columns = _same_columns(files, headers)

    def walk(wanted: list[str]) -> Iterator[pa.RecordBatch]:
        for file in files:
            yield from _csv_batches(file, columns, wanted)

    return Source(_name(files), columns, walk, text=True)


def _csv_header(file: Path) -> tuple[str, ...]:
    with open(file, "rb") as stream:
        start = stream.read(4)
    if start[:4] == b"PAR1":
        raise InputError(f"'{file}' is named .csv but is a Parquet file; rename it to .parquet.")
    if not start:
        raise InputError(f"'{file}' is empty; a CSV needs a header line.")
    try:
        with pa.csv.open_csv(file, read_options=pa.csv.ReadOptions(block_size=CSV_BLOCK_BYTES)) as reader:
            names = tuple(reader.schema.names)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise InputError(f"'{file}' is not a readable CSV: {first_line(error)}.") from error
    if len(set(names)) != len(names):
        raise InputError(f"'{file}' has two columns of the same name; rename one of them.")
    return names


def _csv_batches(file: Path, columns: tuple[str, ...], wanted: list[str]) -> Iterator[pa.RecordBatch]:
    convert = pa.csv.ConvertOptions(
        column_types={name: pa.string() for name in columns},
        include_columns=wanted,
        null_values=[""],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,  # an id may be the empty text, if it is written ""
    )
    read = pa.csv.ReadOptions(block_size=CSV_BLOCK_BYTES)
    parse = pa.csv.ParseOptions(newlines_in_values=True)
    with pa.csv.open_csv(file, read_options=read, parse_options=parse, convert_options=convert) as reader:
        yield from reader


def _same_columns(files: list[Path], columns: list[tuple[str, ...]]) -> tuple[str, ...]:
    for file, names in zip(files, columns, strict=True):
        if set(names) != set(columns[0]):
            odd = sorted(set(names) ^ set(columns[0]))[0]
            raise InputError(f"'{file}' and '{files[0]}' do not have the same columns ('{odd}' is only in one).")
    return columns[0]


def _name(files: list[Path]) -> str:
    return f"'{files[0]}'" if len(files) == 1 else f"'{files[0]}' and {len(files) - 1} more"


@contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary path beside ``path``; renamed onto it if the block ends well, removed if not."""
    target = check_target(path)
    temporary = target.parent / f".{uuid.uuid4().hex}.tmp"
    try:
        yield temporary
        temporary.replace(target)
    except OSError as error:
        raise InputError(f"'{target}' cannot be written: {error.strerror or first_line(error)}.") from error
    finally:
        temporary.unlink(missing_ok=True)


def check_target(path: str | os.PathLike[str]) -> Path:
    """The file behind a path to be written to, links followed; refused if it can be none."""
    try:
        target = Path(path).resolve()
        is_folder, is_other = target.is_dir(), target.exists() and not target.is_file()
    except (TypeError, ValueError, OSError) as error:
        raise InputError(f"{path!r} is not the name of a file.") from error
    if is_folder or is_other:
        raise InputError(f"'{path}' is {'a folder' if is_folder else 'no ordinary file'}; name a file to write.")
    if not target.parent.is_dir():
        raise InputError(f"the folder '{target.parent}' does not exist; make it first.")
    return target


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
        except pa.ArrowException as error:
            raise InputError(f"'{path}' cannot be written: {first_line(error)}.") from error


def _writer(kind: str, path: Path, schema: pa.Schema) -> Any:
    if kind == "Parquet":
        return pa.parquet.ParquetWriter(path, schema, compression="zstd")
    return pa.csv.CSVWriter(path, schema.remove_metadata())
