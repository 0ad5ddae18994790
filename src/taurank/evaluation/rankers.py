"""Scores from anywhere, block by block: an array, or a fitted learner with a catalogue of its own.

A block is some users of the gains' catalogue with their scores. Items the ranker does not know have no
column, items it knows beyond the catalogue are dropped, and users it does not know come in blocks of no
columns at all. Every score that is used is checked to be finite.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from taurank._arrays import first_bad, group
from taurank.data import sources
from taurank.data.ids import Codes, Ids
from taurank.data.reader import ColumnRule, read_cells
from taurank.errors import InputError
from taurank.estimation.gains import Gains

Scores = npt.NDArray[Any]

_BLOCK_SCORES = 1 << 22  # of a learner: enough for BLAS to be quick, little memory per thread
_ARRAY_SCORES = 1 << 19  # of an array: what is checked is still in a cache when it is ranked
_BLOCK_USERS = 256


class Ranker(Protocol):
    """A fitted learner: its own catalogue, and scores for a block of its users.

    ``score_block`` gets positions in ``users`` and gives an array (len(user_codes), len(items)) of float32 or
    float64. It is called from several threads at once: it changes nothing and starts no threads of its own.
    """

    @property
    def users(self) -> Ids: ...

    @property
    def items(self) -> Ids: ...

    def score_block(self, user_codes: Codes) -> Scores: ...


@dataclass(frozen=True)
class Block:
    """Users in the gains' catalogue, the same users at the ranker, and the score column of each item."""

    users: Codes
    at_ranker: Codes
    column: Codes


class Ranking(Protocol):
    """A ranker seen from the gains' catalogue."""

    unknown_users: int
    unknown_items: int

    def blocks(self, needed: npt.NDArray[np.bool_]) -> Iterator[Block]: ...

    def scores(self, block: Block) -> Scores: ...


def ranking_of(ranker: Any, gains: Gains) -> Ranking:
    """A fitted learner or an array of scores, seen from the gains' catalogue."""
    return LearnerRanking(ranker, gains) if hasattr(ranker, "score_block") else ArrayRanking(ranker, gains)


class ArrayRanking:
    """Scores users × items in the order of the gains' catalogue; all of them are checked."""

    unknown_users = unknown_items = 0

    def __init__(self, scores: npt.ArrayLike, gains: Gains) -> None:
        self.values = as_scores(scores)
        self.gains = gains
        shape = (gains.n_users, gains.n_items)
        if self.values.shape != shape:
            raise InputError(
                f"the scores have the shape {self.values.shape}, but the gains' catalogue has "
                f"{shape[0]:,} users × {shape[1]:,} items: {shape}."
            )

    def blocks(self, needed: npt.NDArray[np.bool_]) -> Iterator[Block]:
        users = np.arange(self.gains.n_users, dtype=np.int32)
        return _cut(users, users, np.arange(self.gains.n_items, dtype=np.int32), _ARRAY_SCORES)

    def scores(self, block: Block) -> Scores:
        rows = self.values[block.users[0] : block.users[-1] + 1]
        return _checked(_as_floats(rows), block, self.gains)


class LearnerRanking:
    """A fitted learner; users and items are matched by their ids. Only users with gains are scored."""

    def __init__(self, learner: Ranker, gains: Gains) -> None:
        self.learner, self.gains = learner, gains
        self.user_at = _positions(learner.users, gains.users)
        item_at = _positions(learner.items, gains.items)
        known = item_at >= 0
        self.column = np.where(known, np.cumsum(known) - 1, -1).astype(np.int32)
        kept = item_at[known]
        whole = len(kept) == len(learner.items) and bool((kept == np.arange(len(kept))).all())
        self.kept = None if whole else kept
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
        if scores.shape != shape:
            raise InputError(f"the learner gave scores of shape {scores.shape} where {shape} was asked for.")
        scores = scores if self.kept is None else np.take(scores, self.kept, axis=1)
        return _checked(_as_floats(scores), block, self.gains)


def as_scores(scores: npt.ArrayLike) -> Scores:
    """Anything like a two-dimensional array of numbers."""
    if np.ma.is_masked(scores):
        raise InputError("the array of scores has masked entries; fill them, for example with a very low number.")
    values = np.asarray(scores)
    if values.ndim != 2 or values.dtype.kind not in "fiub":
        raise InputError(
            "a ranker is a fitted learner or an array of numbers, users × items, not "
            f"{type(scores).__name__} of shape {values.shape} and type {values.dtype}."
        )
    return values


def _as_floats(scores: Scores) -> Scores:
    """float32 and float64 as they are (rounding would make ties); whatever else as float64."""
    kind = scores.dtype if scores.dtype in (np.float32, np.float64) else np.dtype(np.float64)
    return np.ascontiguousarray(scores, dtype=kind)


def _checked(scores: Scores, block: Block, gains: Gains) -> Scores:
    row, column = first_bad(scores)
    if row >= 0:
        item = int(np.flatnonzero(block.column == column)[0])
        raise InputError(
            f"the score of user {gains.users.name(block.users[row])} and item {gains.items.name(item)} is "
            f"{scores[row, column]}; scores must be finite numbers."
        )
    return scores


def _positions(own: Ids, asked: Ids) -> Codes:
    """Where each asked id stands in the ranker's own list; −1 where it is not in it."""
    if own == asked:
        return np.arange(len(own), dtype=np.int32)
    return own.encode(asked.values)


def _cut(users: Codes, at_ranker: Codes, column: Codes, n_scores: int) -> Iterator[Block]:
    """Blocks whose shape depends on the catalogue alone, never on the number of threads."""
    size = int(np.clip(n_scores // max(1, len(column)), 1, _BLOCK_USERS))
    for first in range(0, len(users), size):
        part = slice(first, first + size)
        yield Block(users[part], at_ranker[part], column)


_RULES = (ColumnRule("score", np.float64, lambda values: ~np.isfinite(values), "finite numbers"),)


class TableRanker:
    """Scores of listed pairs; a pair that is not listed ranks below all that are, tied."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        source = sources.from_files(path)
        if "time" in source.columns:
            raise InputError(f"{source.name} has a column 'time', but a ranking has one score per user and item.")
        pairs = read_cells(source, (None, None, None), _RULES)
        self.users: Ids = pairs.catalogue.users
        self.items: Ids = pairs.catalogue.items
        columns = (pairs.item, pairs.numbers["score"])
        self._start, (self._item, self._score) = group(pairs.user, len(self.users), *columns)
        self._floor = np.nextafter(self._score.min(), -np.inf)

    def score_block(self, user_codes: Codes) -> npt.NDArray[np.float64]:
        scores = np.full((len(user_codes), len(self.items)), self._floor)
        for row, user in enumerate(user_codes):
            here = slice(self._start[user], self._start[user + 1])
            scores[row, self._item[here]] = self._score[here]
        return scores
