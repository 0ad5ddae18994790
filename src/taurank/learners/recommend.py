"""From scores to recommendations: blocks of users, their best items, the caller's ids.

Blocks run on several threads, each with one BLAS thread, and come out in order, so that neither memory nor result
depends on the number of threads.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from taurank._checks import check_choice, check_integer, check_number
from taurank._choices import UnknownItems, UnknownUsers
from taurank._threads import one_blas_thread, worker_count
from taurank._types import Codes, Floats32
from taurank.data import tables
from taurank.data.ids import to_array
from taurank.errors import InputError
from taurank.evaluation import topk
from taurank.evaluation.rankers import Ranker
from taurank.learners.candidates import Limits, unknown_ids
from taurank.learners.scores import ProductSearch

if TYPE_CHECKING:
    import pandas as pd

_BLOCK_SCORES = 1 << 22
_BLOCK_USERS = 256
MAX_THREADS = 10_000
MAX_EFFECT = 1e30


class Fitted(Ranker, Protocol):
    """A fitted learner, as far as recommending needs it."""

    @property
    def popularity_(self) -> npt.NDArray[Any]: ...

    @property
    def scores_are_effects(self) -> bool: ...


@dataclass(frozen=True)
class Request:
    """One request to a fitted learner: how many items, from which, without which, and what if an id is unknown."""

    learner: Fitted
    k: int
    candidates: Any = None
    exclude: Any = None
    unknown_users: UnknownUsers = "raise"
    unknown_items: UnknownItems = "raise"
    threads: int | None = None
    min_effect: float | None = None

    def __post_init__(self) -> None:
        check_integer("k", self.k)
        if self.threads is not None:
            check_integer("threads", self.threads, 1, MAX_THREADS)
        check_choice("unknown_users", self.unknown_users, get_args(UnknownUsers))
        check_choice("unknown_items", self.unknown_items, get_args(UnknownItems))
        if self.min_effect is None:
            return
        check_number("min_effect", self.min_effect, -MAX_EFFECT, MAX_EFFECT)
        if not self.learner.scores_are_effects:
            name = type(self.learner).__name__
            raise InputError(
                f"min_effect needs scores that are effects, and those of {name} only order the items; "
                "use EmpiricalBayes, CountingBayes or CUBN."
            )
        if self.unknown_users == "popular":
            raise InputError(
                "min_effect and unknown_users='popular' exclude each other: popularity is not an effect."
            )

    def frame(self, users: Any) -> pd.DataFrame:
        frame: pd.DataFrame = pa.Table.from_batches(self.batches(users), self.schema()).to_pandas()
        return frame

    def write(self, path: str | os.PathLike[str], batches: Iterator[pa.RecordBatch]) -> int:
        """Write batches to a file; the number of rows."""
        rows = 0

        def counted() -> Iterator[pa.RecordBatch]:
            nonlocal rows
            for batch in batches:
                rows += batch.num_rows
                yield batch

        tables.write_batches(path, self.schema(), counted())
        return rows

    def schema(self) -> pa.Schema:
        ids = [("user_id", self.learner.users.values.type), ("item_id", self.learner.items.values.type)]
        return pa.schema([*ids, ("score", pa.float32()), ("rank", pa.int32())])

    def batches(self, users: Any) -> Iterator[pa.RecordBatch]:
        """Recommendations block by block, in the order of ``users``."""
        yield from self.batches_of(*self.locate(users))

    def locate(self, users: Any) -> tuple[Codes, pa.Array]:
        """Positions of the users (−1: unknown), and their ids."""
        known = self.learner.users
        if users is None:
            return np.arange(len(known), dtype=np.int32), known.values
        ids = to_array(users, "user_id")
        codes = self.learner.users.encode(ids)
        if self.unknown_users != "popular" and (codes < 0).any():
            text = unknown_ids("user", ids.filter(pa.array(codes < 0)))
            if self.unknown_users == "raise":
                choice = "set unknown_users (--unknown-users) to 'warn' or 'popular'"
                raise InputError(f"{text}; leave them out, or {choice}.")
            warnings.warn(f"{text}; they get no recommendations.", stacklevel=5)
            ids, codes = ids.filter(pa.array(codes >= 0)), codes[codes >= 0]
        return codes, ids.cast(known.values.type)

    def batches_of(self, codes: Codes, ids: pa.Array) -> Iterator[pa.RecordBatch]:
        """``batches`` of users that were located."""
        workers = worker_count(self.threads)
        limits = Limits.of(self.candidates, self.exclude, self.learner.items, self.unknown_items)
        best, size = self._best(limits)
        blocks = (slice(first, first + size) for first in range(0, len(codes), size))

        def of_block(part: slice) -> topk.Top:
            return best(codes[part], limits.hiding(ids[part]))

        with one_blas_thread(), ThreadPoolExecutor(workers) as pool:
            while wave := list(islice(blocks, 4 * workers)):  # bounded: results wait in memory
                for part, top in zip(wave, pool.map(of_block, wave), strict=True):
                    yield self._batch(ids[part], limits, top)

    def _best(self, limits: Limits) -> tuple[Callable[..., topk.Top], int]:
        """A function from users of a block, and what to hide from them, to their best items; the size of a block."""
        k = max(1, min(self.k, len(limits.items)))

        def of_scores(codes: Codes, hide: Callable[[int, Floats32], None]) -> topk.Top:
            scores = limits.narrow(self._scores(codes), axis=1)
            hide(0, scores)
            return topk.best(scores, k)

        if not getattr(self.learner, "_scores_are_products", False):
            return of_scores, int(np.clip(_BLOCK_SCORES // max(1, len(self.learner.items)), 1, _BLOCK_USERS))
        learner: Any = self.learner
        search = ProductSearch(limits.narrow(learner.item_factors_), k)

        def of_products(codes: Codes, hide: Callable[[int, Floats32], None]) -> topk.Top:
            if (codes < 0).any():
                return of_scores(codes, hide)
            return search.best(learner.user_factors_[codes], hide)

        return of_products, _BLOCK_USERS

    def _scores(self, codes: Codes) -> Floats32:
        """A fresh block of scores; unknown users get the popularity of each item."""
        if (codes >= 0).all():
            return self.learner.score_block(codes)
        scores = np.empty((len(codes), len(self.learner.items)), np.float32)
        scores[:] = self.learner.popularity_
        if (codes >= 0).any():
            scores[codes >= 0] = self.learner.score_block(codes[codes >= 0])
        return scores

    def _batch(self, ids: pa.Array, limits: Limits, top: topk.Top) -> pa.RecordBatch:
        length = top.length
        if self.min_effect is not None:
            length = np.count_nonzero(top.values >= np.float32(self.min_effect), axis=1)
        row, rank = np.nonzero(np.arange(top.columns.shape[1]) < length[:, None])
        columns = [
            ids.take(pa.array(row)),
            self.learner.items.decode(limits.items[top.columns[row, rank]]),
            pa.array(top.values[row, rank]),
            pa.array((rank + 1).astype(np.int32)),
        ]
        return pa.record_batch(columns, schema=self.schema())
