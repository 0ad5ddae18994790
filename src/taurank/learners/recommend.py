"""From scores to recommendations: blocks of users, their best items, the caller's ids.

Scores exist for one block of users at a time. Blocks run on several threads, each with one BLAS thread, and
come out in order, so that neither memory nor result depends on how many there are.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from threadpoolctl import threadpool_limits

from taurank import _arrays
from taurank._threads import worker_count
from taurank._validation import check_integer
from taurank.data import sources, writer
from taurank.data.ids import Codes, Ids, to_array
from taurank.data.log import Log
from taurank.errors import InputError, plural, show
from taurank.learners import topk

if TYPE_CHECKING:
    import pandas as pd

    from taurank.learners.base import Learner

_BLOCK_SCORES = 1 << 22
_BLOCK_USERS = 512

Scores = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Exclusion:
    """What must not be recommended: columns for everybody, and columns of each user."""

    everybody: Codes
    start: npt.NDArray[np.int64]
    item: Codes

    @classmethod
    def of(cls, exclude: Any, users: Ids, items: Ids) -> Exclusion:
        """From a log (bought there), pairs, or items alone; what the learner does not know cannot occur."""
        nothing = np.empty(0, np.int32)
        if exclude is None:
            return cls(nothing, np.zeros(len(users) + 1, np.int64), nothing)
        if isinstance(exclude, Log):
            bought = np.flatnonzero(exclude.outcome == 1)
            user = users.encode(exclude.users.values)[exclude.user[bought]]
            item = items.encode(exclude.items.values)[exclude.item[bought]]
            return cls._pairs(user, item, len(users))
        table = sources.to_arrow(exclude)
        if "item_id" not in table.column_names:
            raise InputError("exclude needs a column 'item_id', and 'user_id' if it differs between users.")
        item = items.encode(table["item_id"])
        if "user_id" in table.column_names:
            return cls._pairs(users.encode(table["user_id"]), item, len(users))
        return cls(np.unique(item[item >= 0]), np.zeros(len(users) + 1, np.int64), nothing)

    @classmethod
    def _pairs(cls, user: Codes, item: Codes, n_users: int) -> Exclusion:
        known = (user >= 0) & (item >= 0)
        start, (grouped,) = _arrays.group(user[known], n_users, item[known])
        return cls(np.empty(0, np.int32), start, grouped)


@dataclass(frozen=True)
class Recommender:
    """One question to a fitted learner: which items, without what, and what if a user is unknown."""

    learner: Learner
    k: int
    candidates: Any
    exclusion: Exclusion
    unknown: str
    threads: int | None

    def __post_init__(self) -> None:
        check_integer("k", self.k)
        if self.unknown not in ("raise", "warn", "popular"):
            raise InputError(f"on_unknown is 'raise', 'warn' or 'popular', not '{self.unknown}'.")

    def frame(self, users: Any) -> pd.DataFrame:
        frame: pd.DataFrame = pa.Table.from_batches(self.batches(users), self.schema()).to_pandas()
        return frame

    def write(self, path: str | os.PathLike[str], users: Any) -> int:
        rows = 0

        def counted() -> Iterator[pa.RecordBatch]:
            nonlocal rows
            for batch in self.batches(users):
                rows += batch.num_rows
                yield batch

        writer.write_batches(path, self.schema(), counted())
        return rows

    def schema(self) -> pa.Schema:
        return pa.schema(
            [
                ("user_id", self.learner.users.values.type),
                ("item_id", self.learner.items.values.type),
                ("score", pa.float32()),
                ("rank", pa.int32()),
            ]
        )

    def batches(self, users: Any) -> Iterator[pa.RecordBatch]:
        """Recommendations block by block, in the order of ``users``."""
        codes, ids = self._locate(users)
        allowed = self._allowed()
        size = int(np.clip(_BLOCK_SCORES // max(1, len(self.learner.items)), 1, _BLOCK_USERS))
        workers = worker_count(self.threads)
        blocks = (slice(first, first + size) for first in range(0, len(codes), size))
        with threadpool_limits(1, user_api="blas"), ThreadPoolExecutor(workers) as pool:
            while wave := list(islice(blocks, 4 * workers)):  # bounded: results wait in memory
                found = pool.map(lambda part: self._best(codes[part], allowed), wave)
                for part, best in zip(wave, found, strict=True):
                    yield self._batch(ids.slice(part.start, size), *best)

    def _locate(self, users: Any) -> tuple[Codes, pa.Array]:
        """Positions of the asked users (−1: not known), and their ids."""
        known = self.learner.users
        if users is None:
            return np.arange(len(known), dtype=np.int32), known.values
        ids = to_array(users, "user_id")
        codes = known.encode(ids)
        if self.unknown == "raise" and (codes < 0).any():
            missing = ids.filter(pa.array(codes < 0))
            raise InputError(
                f"{plural(len(missing), 'user')} not in the log this model was fitted to, for example "
                f"{show(missing[0])}; leave them out, or set on_unknown to 'warn' or 'popular'."
            )
        if self.unknown == "warn" and (codes < 0).any():
            missing = ids.filter(pa.array(codes < 0))
            warnings.warn(
                f"{plural(len(missing), 'user')} not in the log get nothing, for example {missing[0]}.",
                stacklevel=4,
            )
            keep = pa.array(np.flatnonzero(codes >= 0))
            ids, codes = ids.take(keep), codes[codes >= 0]
        return codes, ids.cast(known.values.type)

    def _allowed(self) -> npt.NDArray[np.bool_]:
        """Which items may be recommended to anybody."""
        items = self.learner.items
        allowed = np.ones(len(items), np.bool_)
        if self.candidates is not None:
            allowed[:] = False
            allowed[items.encode_known(self.candidates)] = True
        allowed[self.exclusion.everybody] = False
        return allowed

    def _best(self, codes: Codes, allowed: npt.NDArray[np.bool_]) -> Any:
        scores = self._scores(codes)
        if not allowed.all():
            scores[:, ~allowed] = -np.inf
        known = np.maximum(codes, 0)
        length = np.where(codes >= 0, self.exclusion.start[known + 1] - self.exclusion.start[known], 0)
        start = np.concatenate(([0], np.cumsum(length)))
        pieces = [
            self.exclusion.item[self.exclusion.start[c] : self.exclusion.start[c] + n]
            for c, n in zip(known, length, strict=True)
            if n
        ]
        excluded = np.concatenate(pieces) if pieces else np.empty(0, np.int32)
        return topk.best(scores, min(self.k, scores.shape[1]), start, excluded)

    def _scores(self, codes: Codes) -> Scores:
        """Scores of a block, ours to overwrite; unknown users get the popularity of each item."""
        if (codes >= 0).all():
            return self.learner.score_block(codes)
        scores = np.empty((len(codes), len(self.learner.items)), np.float32)
        scores[:] = self.learner.popularity_
        if (codes >= 0).any():
            scores[codes >= 0] = self.learner.score_block(codes[codes >= 0])
        return scores

    def _batch(self, ids: pa.Array, columns: Any, values: Any, found: Any) -> pa.RecordBatch:
        kept = np.arange(columns.shape[1]) < found[:, None]
        row, rank = np.nonzero(kept)
        return pa.record_batch(
            [
                ids.take(pa.array(row)),
                self.learner.items.decode(columns[kept]),
                pa.array(values[kept]),
                pa.array((rank + 1).astype(np.int32)),
            ],
            schema=self.schema(),
        )
