"""From scores to recommendations: blocks of users, their best items, the caller's ids.

Scores exist for one block of users at a time, and of a factor learner for one tile of items: they are still in the
cache when the best are picked. Blocks run on several threads, each with one BLAS thread, and come out in order, so
that neither memory nor result depends on the number of threads.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from taurank import _arrays
from taurank._choices import OnUnknown, OnUnknownItem
from taurank._jit import compiled
from taurank._threads import one_blas_thread, worker_count
from taurank._validation import check_choice, check_integer, check_number
from taurank.data import sources, writer
from taurank.data.ids import Codes, Ids, to_array
from taurank.data.log import Log
from taurank.errors import InputError
from taurank.evaluation import topk
from taurank.evaluation.rankers import Ranker
from taurank.learners.candidates import Candidates, unknown_ids
from taurank.learners.lookup import Lookup

if TYPE_CHECKING:
    import pandas as pd

Mask = npt.NDArray[np.bool_]

_BLOCK_SCORES = 1 << 22
_BLOCK_USERS = 512
_TILED_USERS = 256
MAX_THREADS = 10_000


class Fitted(Ranker, Protocol):
    """A fitted learner, as far as recommending needs it."""

    @property
    def popularity_(self) -> npt.NDArray[Any]: ...

    @property
    def scores_are_effects(self) -> bool: ...

    @property
    def lookup(self) -> Lookup: ...


@dataclass(frozen=True)
class Exclusion:
    """What must not be recommended: items for all users, and items of each user (None: no such items)."""

    for_all: Codes
    start: npt.NDArray[np.int64] | None
    item: Codes

    @classmethod
    def of(cls, exclude: Any, users: Ids, items: Ids) -> Exclusion:
        """From a log (bought there), pairs, or items alone; unknown ids exclude nothing."""
        nothing = np.empty(0, np.int32)
        if exclude is None:
            return cls(nothing, None, nothing)
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
        return cls(np.unique(item[item >= 0]), None, nothing)

    @classmethod
    def _pairs(cls, user: Codes, item: Codes, n_users: int) -> Exclusion:
        known = (user >= 0) & (item >= 0)
        start, (grouped,) = _arrays.group(user[known], n_users, item[known])
        return cls(np.empty(0, np.int32), start, grouped)

    def of_users(self, codes: Codes) -> tuple[npt.NDArray[np.int64], Codes]:
        """Where each user's excluded items begin, and the items in ascending order."""
        if self.start is None:
            return np.zeros(len(codes) + 1, np.int64), self.item
        known = np.maximum(codes, 0)
        first, last = self.start[known], np.where(codes >= 0, self.start[known + 1], self.start[known])
        begin = np.concatenate(([0], np.cumsum(last - first)))
        pieces = [np.sort(self.item[a:b]) for a, b in zip(first, last, strict=True) if b > a]
        return begin, np.concatenate(pieces) if pieces else np.empty(0, np.int32)


@dataclass(frozen=True)
class Request:
    """One request to a fitted learner: how many items, from which, without which, and what if an id is unknown."""

    learner: Fitted
    k: int
    candidates: Any
    exclude: Any
    on_unknown: OnUnknown
    on_unknown_item: OnUnknownItem
    threads: int | None
    min_effect: float | None = None

    def __post_init__(self) -> None:
        if self.min_effect is not None:
            self._check_effects(self.min_effect)
        check_integer("k", self.k)
        if self.threads is not None:
            check_integer("threads", self.threads, 1, MAX_THREADS)
        check_choice("on_unknown", self.on_unknown, get_args(OnUnknown))
        check_choice("on_unknown_item", self.on_unknown_item, get_args(OnUnknownItem))

    def _check_effects(self, min_effect: float) -> None:
        check_number("min_effect", min_effect, -1, 1)
        if not self.learner.scores_are_effects:
            name = type(self.learner).__name__
            raise InputError(
                f"min_effect needs scores that are effects, and those of {name} only order the items; "
                "use EmpiricalBayes or CountingBayes."
            )
        if self.on_unknown == "popular":
            raise InputError("min_effect and on_unknown='popular' exclude each other: popularity is not an effect.")

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
        ids = [("user_id", self.learner.users.values.type), ("item_id", self.learner.items.values.type)]
        return pa.schema([*ids, ("score", pa.float32()), ("rank", pa.int32())])

    def batches(self, users: Any) -> Iterator[pa.RecordBatch]:
        """Recommendations block by block, in the order of ``users``."""
        yield from self.batches_of(*self.locate(users))

    def batches_of(self, codes: Codes, ids: pa.Array) -> Iterator[pa.RecordBatch]:
        """``batches`` of users that were located."""
        workers = worker_count(self.threads)
        exclusion = Exclusion.of(self.exclude, self.learner.users, self.learner.items)
        limits = Candidates.of(self.candidates, self.learner.items, self.on_unknown_item)
        lists, banned = limits.lists_of(ids), self._banned(exclusion, limits)
        size = _TILED_USERS if self._tiled(limits) else _block_size(len(self.learner.items))
        blocks = (slice(first, first + size) for first in range(0, len(codes), size))

        def of_block(part: slice) -> topk.Top:
            return self._top(codes[part], lists[part], banned, exclusion, limits)

        with one_blas_thread(), ThreadPoolExecutor(workers) as pool:
            while wave := list(islice(blocks, 4 * workers)):  # bounded: results wait in memory
                for part, top in zip(wave, pool.map(of_block, wave), strict=True):
                    yield self._batch(ids.slice(part.start, size), top)

    def locate(self, users: Any) -> tuple[Codes, pa.Array]:
        """Positions of the users (−1: unknown), and their ids."""
        known = self.learner.users
        if users is None:
            return np.arange(len(known), dtype=np.int32), known.values
        ids = to_array(users, "user_id")
        codes = self.learner.lookup.encode(ids)
        if self.on_unknown != "popular" and (codes < 0).any():
            text = unknown_ids("user", ids.filter(pa.array(codes < 0)))
            if self.on_unknown == "raise":
                raise InputError(f"{text}; leave them out, or set on_unknown (--on-unknown) to 'warn' or 'popular'.")
            warnings.warn(f"{text}; they get no recommendations.", stacklevel=5)
            ids, codes = ids.filter(pa.array(codes >= 0)), codes[codes >= 0]
        return codes, ids.cast(known.values.type)

    def _banned(self, exclusion: Exclusion, candidates: Candidates) -> Codes:
        """The items excluded for all users."""
        if candidates.for_all is None:
            return exclusion.for_all
        banned = np.ones(len(self.learner.items), np.bool_)
        banned[candidates.for_all] = False
        banned[exclusion.for_all] = True
        return np.flatnonzero(banned).astype(np.int32)

    def _top(self, codes: Codes, lists: Codes, banned: Codes, exclusion: Exclusion, limits: Candidates) -> topk.Top:
        start, excluded = exclusion.of_users(codes)
        following = start[:-1].copy()
        running: topk.RunningTop | None = None
        for first, scores in self._tiles(codes, limits):
            low, high = np.searchsorted(banned, (first, first + scores.shape[1]))
            scores[:, banned[low:high] - first] = -np.inf
            if self.min_effect is not None:
                scores[scores < self.min_effect] = -np.inf
            limits.keep(scores, lists)
            _exclude(scores, first, following, start, excluded)
            running = running or topk.RunningTop(len(codes), min(self.k, len(self.learner.items)), scores.dtype)
            running.add(first, scores)
        assert running is not None  # there is at least one tile
        return running.top()

    def _tiles(self, codes: Codes, limits: Candidates) -> Iterator[tuple[int, npt.NDArray[np.float32]]]:
        """Scores that may be written to, some items at a time, in order: the first item, and the scores."""
        if self._tiled(limits) and (codes >= 0).all():
            return self.learner.score_tiles(codes)  # type: ignore[attr-defined, no-any-return]
        return iter([(0, self._scores(codes))])

    def _tiled(self, limits: Candidates) -> bool:
        """A user's own candidates are looked up in a row of all items."""
        return limits.owners is None and getattr(self.learner, "scores_in_tiles", False)

    def _scores(self, codes: Codes) -> npt.NDArray[np.float32]:
        """A fresh block of scores; unknown users get the popularity of each item."""
        if (codes >= 0).all():
            return self.learner.score_block(codes)
        scores = np.empty((len(codes), len(self.learner.items)), np.float32)
        scores[:] = self.learner.popularity_
        if (codes >= 0).any():
            scores[codes >= 0] = self.learner.score_block(codes[codes >= 0])
        return scores

    def _batch(self, ids: pa.Array, top: topk.Top) -> pa.RecordBatch:
        filled = np.arange(top.columns.shape[1]) < top.length[:, None]
        row, rank = np.nonzero(filled)
        item_ids = self.learner.items.decode(top.columns[filled])
        columns = [
            ids.take(pa.array(row)),
            item_ids,
            pa.array(top.values[filled]),
            pa.array((rank + 1).astype(np.int32)),
        ]
        return pa.record_batch(columns, schema=self.schema())


@compiled
def _exclude(scores: Any, first: Any, following: Any, start: Any, excluded: Any) -> None:
    """Overwrite what a row must not get with −∞; ``following`` is where its excluded items from here on begin."""
    for row in range(scores.shape[0]):
        while following[row] < start[row + 1] and excluded[following[row]] < first + scores.shape[1]:
            scores[row, excluded[following[row]] - first] = -np.inf
            following[row] += 1


def _block_size(n_items: int) -> int:
    """Users per block, a multiple of 16: matrix products are filled up to that."""
    return int(np.clip(_BLOCK_SCORES // max(1, n_items) // 16 * 16, 16, _BLOCK_USERS))
