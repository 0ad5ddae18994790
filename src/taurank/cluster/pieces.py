"""Pieces of a log: row groups of Parquet files, read and checked where they are needed.

The pieces depend on the files alone, so that everything that is computed piece by piece does not depend on the
number of workers. ``ClusterRows`` sends them to the workers that need them, piece by piece or regrouped by users.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from taurank._types import Codes, Longs
from taurank.cluster.pool import WorkerPool
from taurank.data import storage
from taurank.data.cell_table import ELIGIBILITY_KEY, fingerprint
from taurank.data.files import find_files, kind_of
from taurank.data.ids import ID_COLUMNS, Catalog, Ids, WithCatalog, ids_to_arrays
from taurank.data.log import RULES, Log
from taurank.data.reader import OUTCOME_VALUE, IdColumn, WrongRows, read_cells
from taurank.data.tables import BATCH_ROWS, Source, open_table
from taurank.errors import InputError
from taurank.estimation.estimators import lacks_overlap

ROWS_PER_PIECE = 1 << 21
GROUPS_AT_ONCE = 64
T = TypeVar("T")


class Piece(NamedTuple):
    """Some row groups, in order."""

    groups: tuple[tuple[str, int], ...]  # file, number of the row group
    columns: tuple[str, ...]


class Whole(NamedTuple):
    """What a piece does not know of its log."""

    catalog: Catalog
    timed: bool
    treated_share: float


@dataclass(frozen=True, eq=False)
class PartOfLog(Log):
    """Some rows of a log that is elsewhere, with its catalog; ``treated_share`` is that of the whole log."""

    share: float = 0.0

    @property
    def treated_share(self) -> float:
        return self.share


def find_pieces(path: str | os.PathLike[str]) -> tuple[list[Piece], Source]:
    """The pieces of a file, folder or glob of Parquet, and the source they come from."""
    files = find_files(path)
    if any(kind_of(file) != "Parquet" for file in files):
        raise InputError(
            f"'{path}' has CSV files; a cluster reads Parquet: convert them with Log.read(...).write(...)."
        )
    source = open_table(path)
    if OUTCOME_VALUE.column in source.columns:  # what would change the numbers of one machine if it were left out
        raise InputError(
            f"{source.name} has the column 'value', by which a cluster cannot weigh outcomes; leave the column out, "
            "or read the log on one machine (Log.read)."
        )
    if any(ELIGIBILITY_KEY in metadata for metadata in source.metadata):
        raise InputError(
            f"{source.name} limits the cells that could have been recommended (visits, candidates), which a cluster "
            "cannot take into account; read the log on one machine (Log.read)."
        )
    pieces: list[Piece] = []
    groups: list[tuple[str, int]] = []
    rows = 0
    for file in files:
        metadata = pa.parquet.read_metadata(file)
        for group in range(metadata.num_row_groups):
            groups.append((str(file.resolve()), group))
            rows += metadata.row_group(group).num_rows
            if rows >= ROWS_PER_PIECE:
                pieces.append(Piece(tuple(groups), source.columns))
                groups, rows = [], 0
    if rows:
        pieces.append(Piece(tuple(groups), source.columns))
    if not pieces:
        raise InputError(f"{source.name} has no rows.")
    return pieces, source


def read_piece(piece: Piece) -> Log:
    """The rows of a piece, with the catalog of what occurs in it."""

    def walk(columns: list[str]) -> Iterator[pa.RecordBatch]:
        for file in dict.fromkeys(file for file, _ in piece.groups):
            groups = [group for name, group in piece.groups if name == file]
            with pa.parquet.ParquetFile(file, page_checksum_verification=True) as parquet:
                yield from parquet.iter_batches(batch_size=BATCH_ROWS, row_groups=groups, columns=columns)

    cells = read_cells(Source(f"'{piece.groups[0][0]}'", piece.columns, walk), (None, None, None), RULES)
    numbers = cells.numbers
    return Log(
        cells.catalog, cells.user, cells.item, cells.time,
        numbers["treated"], numbers["outcome"], numbers.get("propensity"), timed=cells.timed,
    )  # fmt: skip


def read_part(piece: Piece, whole: Whole) -> Log:
    """The rows of a piece, with the catalog of the whole log."""
    log = read_piece(piece)
    at = [_positions(known, own.values) for known, own in zip(whole.catalog.lists, log.catalog.lists, strict=True)]
    if not log.timed:
        at[2] = np.zeros(1, np.int32)
    return PartOfLog(
        whole.catalog, at[0][log.user], at[1][log.item], at[2][log.time], log.treated, log.outcome, log.propensity,
        timed=log.timed, share=whole.treated_share,
    )  # fmt: skip


def _positions(ids: Ids, values: pa.Array) -> Codes:
    """``ids.encode``; a sorted list of integers is searched, which needs no memory."""
    whole = ids.values
    if pa.types.is_integer(whole.type) and values.type == whole.type and len(whole):
        numbers, wanted = np.asarray(whole), np.asarray(values)
        if bool((numbers[1:] > numbers[:-1]).all()):
            at = np.minimum(np.searchsorted(numbers, wanted), len(numbers) - 1)
            return np.where(numbers[at] == wanted, at, -1).astype(np.int32)
    return ids.encode(values)


class Summary(NamedTuple):
    """What the catalog and the learners need to know of some rows."""

    users: pa.Array
    items: pa.Array
    times: pa.Array
    bought: npt.NDArray[np.int64]  # positives of each item
    rows: int
    treated: int
    positives: int
    timed: bool
    has_propensity: bool
    lacks_overlap: bool
    digest: str


def summarize(piece: Piece) -> Summary:
    """Read a piece once."""
    log = read_piece(piece)
    bought = np.bincount(log.item[log.outcome == 1], minlength=log.n_items)
    extreme = log.propensity is not None and bool(lacks_overlap(log.propensity).any())
    return Summary(
        log.users.values, log.items.values, log.times.values, bought, len(log), int(np.count_nonzero(log.treated)),
        int(np.count_nonzero(log.outcome)), log.timed, log.propensity is not None, extreme, fingerprint(log),
    )  # fmt: skip


def merge(*summaries: Summary) -> Summary:
    """The summary of several pieces."""
    readers = [IdColumn(column) for column in ID_COLUMNS]  # distinct ids, of one type
    for part in summaries:
        for reader, ids in zip(readers, part[:3], strict=True):
            reader.add(ids, WrongRows())
    users, items, times = (reader.encode()[0].values for reader in readers)
    bought = np.zeros(len(items), np.int64)
    for part in summaries:
        bought[np.asarray(pc.index_in(part.items.cast(items.type), value_set=items))] += part.bought
    rows, treated, positives = (sum(getattr(s, n) for s in summaries) for n in ("rows", "treated", "positives"))
    extreme = any(s.lacks_overlap for s in summaries)
    digest = " ".join(s.digest for s in summaries)
    flags = (summaries[0].timed, summaries[0].has_propensity)
    return Summary(users, items, times, bought, rows, treated, positives, *flags, extreme, digest)


class ClusterRows(WithCatalog):
    """Pieces of a log, and what was counted when the workers read them."""

    def __init__(
        self, pool: WorkerPool, pieces: Sequence[Piece], whole: Whole, summary: Summary, popularity: Longs
    ) -> None:
        self.pool, self.pieces, self.catalog, self.whole = pool, list(pieces), whole.catalog, whole
        self.summary, self.popularity = summary, popularity
        self.shared = pool.put(whole)
        types, arrays = ids_to_arrays(*whole.catalog.lists)
        ids = storage.checksum("catalog", str(types), arrays)
        self.fingerprint = hashlib.blake2b(f"{summary.digest} {ids}".encode(), digest_size=16).hexdigest()

    def __len__(self) -> int:
        return self.summary.rows

    def each_piece(self, function: Callable[..., T], *arguments: Any) -> list[T]:
        """``function(piece, whole, *arguments)`` for every piece, in order."""
        return self.pool.map(function, [(piece, self.shared, *arguments) for piece in self.pieces])

    def each_group(self, groups: Sequence[Codes], function: Callable[..., T], *arguments: Any) -> list[T]:
        """``function(log of the group, *arguments)`` for every group of users, in order.

        A group has positions in the catalog, in order; its log has the catalog of its users and everything else.
        """
        pool, results = self.pool, list[T]()
        for first in range(0, len(groups), GROUPS_AT_ONCE):
            some = groups[first : first + GROUPS_AT_ONCE]
            group_of = np.full(self.n_users, -1, np.int32)
            for number, users in enumerate(some):
                group_of[users] = number
            shared = pool.put(group_of)
            rows = [
                pool.run(n % len(pool), _rows_by_group, piece, self.shared, shared, len(some), parts=len(some))
                for n, piece in enumerate(self.pieces)
            ]
            tasks = [
                (function, users, self.shared, len(rows), *(parts[n] for parts in rows), *arguments)
                for n, users in enumerate(some)
            ]
            results += pool.map(_run, tasks)
        return results


def _rows_by_group(piece: Piece, whole: Whole, group_of: Codes, groups: int) -> list[dict[str, Any]]:
    """The columns of the rows of a piece that belong to each group, in order."""
    part = read_part(piece, whole)
    home = group_of[part.user]
    return [part.take(np.flatnonzero(home == group)).row_columns() for group in range(groups)]


def _run(function: Callable[..., T], users: Codes, whole: Whole, pieces: int, *more: Any) -> T:
    """On a worker: put the log of a group together, and call the function."""
    rows, arguments = more[:pieces], more[pieces:]
    columns: Any = {name: np.concatenate([part[name] for part in rows]) for name in rows[0]}
    columns["user"] = np.searchsorted(users, columns["user"]).astype(np.int32)
    catalog = Catalog(Ids(whole.catalog.users.decode(users), "user_id"), whole.catalog.items, whole.catalog.times)
    facts: Any = {"propensity": None, "timed": whole.timed, "share": whole.treated_share}
    return function(PartOfLog(catalog, **(facts | columns)), *arguments)
