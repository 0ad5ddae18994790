"""Scores from anywhere, block by block: an array, a table, or a fitted learner with a catalog of its own.

A block is some users of the catalog with their scores. Items the ranker does not know have no column, items it
knows beyond the catalog are dropped, and users it does not know come in blocks without columns. Every score that
is used is checked to be finite.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from taurank._arrays import first_bad
from taurank._checks import check_instance
from taurank.data.ids import Codes, Ids
from taurank.errors import InputError, first_line
from taurank.evaluation.ranking_tables import TableRanker, is_table

Scores = npt.NDArray[Any]

_BLOCK_SCORES = 1 << 22  # of a learner: enough for BLAS to be fast, little memory per thread
_ARRAY_SCORES = 1 << 19  # of an array: checked scores are still in the cache when they are ranked
_BLOCK_USERS = 256


class Ranker(Protocol):
    """A fitted learner: its own catalog, and scores for a block of its users.

    ``score_block`` gets positions in ``users`` and returns an array (len(user_codes), len(items)) of float32 or
    float64. It is called from several threads at once: it changes nothing and starts no threads of its own.
    """

    @property
    def users(self) -> Ids: ...

    @property
    def items(self) -> Ids: ...

    def score_block(self, user_codes: Codes) -> Scores: ...


@dataclass(frozen=True)
class Block:
    """Positions of users in the catalog and at the ranker, and the score column of each item."""

    users: Codes
    at_ranker: Codes
    column: Codes


class Ranking(Protocol):
    """A ranker applied to the users and items of a catalog."""

    unknown_users: int
    unknown_items: int

    def blocks(self, needed: npt.NDArray[np.bool_]) -> Iterator[Block]: ...

    def scores(self, block: Block) -> Scores: ...


AnyRanker = Ranker | npt.ArrayLike | Any  # a fitted learner, scores, a ranking table or the path to one


def ranker_of(ranker: Any) -> Any:
    """A ranker as it is given, a table or path read."""
    if hasattr(ranker, "score_block"):
        return ranker
    return TableRanker(ranker) if is_table(ranker) else as_scores(ranker)


def ranking_of(ranker: Any, users: Ids, items: Ids) -> Ranking:
    """A learner, table or array of scores, applied to these users and items."""
    ready = ranker_of(ranker)
    return LearnerRanking(ready, users, items) if hasattr(ready, "score_block") else ArrayRanking(ready, users, items)


class ArrayRanking:
    """Scores users × items in the order of the catalog; all of them are checked."""

    unknown_users = unknown_items = 0

    def __init__(self, scores: npt.ArrayLike, users: Ids, items: Ids) -> None:
        self.values = as_scores(scores)
        self.users, self.items = users, items
        shape = (len(users), len(items))
        if self.values.shape != shape:
            raise InputError(
                f"the scores have the shape {self.values.shape}, but the catalog has "
                f"{shape[0]:,} users × {shape[1]:,} items: {shape}."
            )

    def blocks(self, needed: npt.NDArray[np.bool_]) -> Iterator[Block]:
        users = np.arange(len(self.users), dtype=np.int32)
        return _cut(users, users, np.arange(len(self.items), dtype=np.int32), _ARRAY_SCORES)

    def scores(self, block: Block) -> Scores:
        rows = self.values[block.users[0] : block.users[-1] + 1]
        return _checked(_as_floats(rows), block, self.users, self.items)


class LearnerRanking:
    """A fitted learner; users and items are matched by their ids. Only users that are needed are scored."""

    def __init__(self, learner: Ranker, users: Ids, items: Ids) -> None:
        for ids in (learner.users, learner.items):
            check_instance("a ranker's users and items", ids, Ids, "taurank.data.ids.Ids(list_of_ids, column)")
        self.learner, self.users, self.items = learner, users, items
        self.user_at = _positions(learner.users, users)
        item_at = _positions(learner.items, items)
        known = item_at >= 0
        self.column = np.where(known, np.cumsum(known) - 1, -1).astype(np.int32)
        columns = item_at[known]
        whole = len(columns) == len(learner.items) and bool((columns == np.arange(len(columns))).all())
        self.columns = None if whole else columns
        self.unknown_users = int(np.count_nonzero(self.user_at < 0))
        self.unknown_items = int(np.count_nonzero(~known))

    def blocks(self, needed: npt.NDArray[np.bool_]) -> Iterator[Block]:
        known = np.flatnonzero(needed & (self.user_at >= 0)).astype(np.int32)
        unknown = np.flatnonzero(needed & (self.user_at < 0)).astype(np.int32)
        yield from _cut(known, self.user_at[known], self.column, _BLOCK_SCORES)
        yield from _cut(unknown, self.user_at[unknown], np.full_like(self.column, -1), _BLOCK_SCORES)

    def scores(self, block: Block) -> Scores:
        if block.at_ranker[0] < 0:
            return np.empty((len(block.users), 0), np.float32)
        scores = np.asarray(self.learner.score_block(block.at_ranker))
        shape = (len(block.users), len(self.learner.items))
        if scores.shape != shape or scores.dtype.kind not in "fiub":
            raise InputError(
                f"the learner returned scores of shape {scores.shape} and type {scores.dtype}, expected numbers "
                f"of shape {shape}."
            )
        scores = scores if self.columns is None else np.take(scores, self.columns, axis=1)
        return _checked(_as_floats(scores), block, self.users, self.items)


def as_scores(scores: npt.ArrayLike) -> Scores:
    """Anything like a two-dimensional array of numbers."""
    if np.ma.is_masked(scores):
        raise InputError("the array of scores has masked entries; fill them, for example with a very low number.")
    try:
        values = np.asarray(scores)
    except (TypeError, ValueError) as error:
        raise InputError(f"the scores are not an array users × items: {first_line(error)}.") from error
    if values.ndim != 2 or values.dtype.kind not in "fiub":
        raise InputError(
            "a ranker is a fitted learner, an array of scores users × items, or a table user_id, item_id, score; got "
            f"{type(scores).__name__} of shape {values.shape} and type {values.dtype}."
        )
    return values


def _as_floats(scores: Scores) -> Scores:
    """float32 and float64 as they are (rounding would make ties); all else as float64."""
    kind = scores.dtype if scores.dtype in (np.float32, np.float64) else np.dtype(np.float64)
    return np.ascontiguousarray(scores, dtype=kind)


def _checked(scores: Scores, block: Block, users: Ids, items: Ids) -> Scores:
    row, column = first_bad(scores)
    if row >= 0:
        item = int(np.flatnonzero(block.column == column)[0])
        raise InputError(
            f"the score of user {users.name(block.users[row])} and item {items.name(item)} is "
            f"{scores[row, column]}; scores must be finite numbers."
        )
    return scores


def _positions(own: Ids, asked: Ids) -> Codes:
    """The position of each asked id in the ranker's own list; −1 where it is not in it."""
    if own == asked:
        return np.arange(len(own), dtype=np.int32)
    return own.encode(asked.values)


def _cut(users: Codes, at_ranker: Codes, column: Codes, n_scores: int) -> Iterator[Block]:
    """Blocks whose shape depends on the catalog alone, never on the number of threads."""
    size = int(np.clip(n_scores // max(1, len(column)), 1, _BLOCK_USERS))
    for first in range(0, len(users), size):
        part = slice(first, first + size)
        yield Block(users[part], at_ranker[part], column)
