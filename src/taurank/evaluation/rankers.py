"""Scores from anywhere, block by block: an array, a table, or a fitted learner with a catalog of its own.

A block is some users of the catalog with a score for each of its items: −∞ for what the ranker does not know, so
that unknown items come last, tied, and an unknown user's items are all tied. Items that the ranker knows beyond the
catalog are dropped. Every score that is used is checked to be finite.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import narwhals as nw
import numpy as np
import numpy.typing as npt

from taurank._arrays import first_bad, group
from taurank._checks import check_instance
from taurank._types import Codes, Floats, Mask
from taurank.data import tables
from taurank.data.ids import Ids
from taurank.data.reader import ColumnRule, read_cells
from taurank.errors import InputError, first_line, plural

if TYPE_CHECKING:
    from taurank.evaluation.metrics import Metric

Scores = npt.NDArray[Any]

_BLOCK_SCORES = 1 << 22  # of a learner: enough for BLAS to be fast, little memory per thread
_ARRAY_SCORES = 1 << 19  # of an array: checked scores are still in the cache when they are ranked
_BLOCK_USERS = 256
_LOWEST = np.finfo(np.float64).min
_COLUMNS: dict[str, tuple[Any, str]] = {  # what ranks the pairs of a table; the first that it has decides
    "probability": (lambda v: (v >= 0.0) & (v <= 1.0), "between 0 and 1"),
    "score": (lambda v: np.isfinite(v) & (v > _LOWEST), "finite numbers"),
    "rank": (lambda v: np.isfinite(v) & (v >= 1) & (v % 1 == 0), "integers ≥ 1"),
}


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


AnyRanker = Ranker | npt.ArrayLike | Any  # a fitted learner, scores, a ranking table or the path to one


class Block(NamedTuple):
    """Positions of users in the catalog and at the ranker, which knows all or none (−1) of them."""

    users: Codes
    at_ranker: Codes


class Ranking:
    """A ranker applied to the users and items of a catalog, which are matched by their ids.

    Only users that are needed are scored; of an array, whose rows and columns are the catalog's, all are checked.
    """

    def __init__(self, ranker: Any, users: Ids, items: Ids) -> None:
        is_learner = hasattr(ranker, "score_block")
        self.is_array = not is_learner and not is_table(ranker)
        if self.is_array:
            ranker = _ArrayRanker(as_scores(ranker), users, items)
        self.ranker = ranker if is_learner or self.is_array else TableRanker(ranker)
        self.is_policy = getattr(self.ranker, "is_policy", False)
        own_users, own_items = self.ranker.users, self.ranker.items
        for ids in (own_users, own_items):
            check_instance("a ranker's users and items", ids, Ids, "taurank.data.ids.Ids(list_of_ids, column)")
        self.users, self.items = users, items
        self.user_at, item_at = (
            np.arange(len(asked), dtype=np.int32) if own == asked else own.encode(asked.values)
            for own, asked in ((own_users, users), (own_items, items))
        )
        self.known = item_at >= 0
        columns = item_at[self.known]
        whole = len(columns) == len(own_items) and bool((columns == np.arange(len(columns))).all())
        self.columns = None if whole else columns  # of the ranker's scores, in catalog order
        self.unknown_users = 0 if self.is_policy else int(np.count_nonzero(self.user_at < 0))
        self.unknown_items = int(np.count_nonzero(~self.known))

    def blocks(self, needed: Mask) -> Iterator[Block]:
        """Blocks whose shape depends on the catalog alone, never on the number of threads."""
        needed = needed | self.is_array
        n_scores = _ARRAY_SCORES if self.is_array else _BLOCK_SCORES
        size = int(np.clip(n_scores // max(1, len(self.items)), 1, _BLOCK_USERS))
        for is_known in (True, False):
            users = np.flatnonzero(needed & ((self.user_at >= 0) == is_known)).astype(np.int32)
            for first in range(0, len(users), size):
                part = users[first : first + size]
                yield Block(part, self.user_at[part])

    def scores(self, block: Block) -> Scores:
        """Scores of the block's users, users × items."""
        shape = len(block.users), len(self.items)
        if block.at_ranker[0] < 0:
            return np.full(shape, -np.inf, np.float32)
        scores = np.asarray(self.ranker.score_block(block.at_ranker))
        expected = len(block.users), len(self.ranker.items)
        if scores.shape != expected or scores.dtype.kind not in "fiub":
            raise InputError(
                f"the learner returned scores of shape {scores.shape} and type {scores.dtype}, expected numbers "
                f"of shape {expected}."
            )
        scores = scores if self.columns is None else np.take(scores, self.columns, axis=1)
        # float32 and float64 as they are (rounding would make ties); all else as float64
        kind = scores.dtype if scores.dtype in (np.float32, np.float64) else np.dtype(np.float64)
        scores = np.ascontiguousarray(scores, dtype=kind)
        row, column = first_bad(scores)
        if row >= 0:
            user, item = block.users[row], np.flatnonzero(self.known)[column]
            raise InputError(
                f"the score of user {self.users.name(user)} and item {self.items.name(item)} is "
                f"{scores[row, column]}; scores must be finite numbers."
            )
        if not self.unknown_items:
            return scores
        whole = np.full(shape, -np.inf, scores.dtype)
        whole[:, self.known] = scores
        return whole


class _ArrayRanker:
    """Scores users × items in the order of the catalog."""

    def __init__(self, values: Scores, users: Ids, items: Ids) -> None:
        self.values, self.users, self.items = values, users, items
        shape = (len(users), len(items))
        if values.shape != shape:
            raise InputError(
                f"the scores have the shape {values.shape}, but the catalog has "
                f"{shape[0]:,} users × {shape[1]:,} items: {shape}."
            )

    def score_block(self, user_codes: Codes) -> Scores:
        return self.values[user_codes[0] : user_codes[-1] + 1]


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


class TableRanker:
    """The listed pairs of a table, best first by ``score``, or by ``rank`` (1 is best) where it has no score.

    ``table`` is a pandas, Polars or PyArrow frame, or a path to Parquet or CSV. A pair that is not listed ranks
    below all pairs that are, tied. A column ``probability`` makes it a stochastic policy instead: how likely each
    pair is shown, 0 if it is not listed.
    """

    def __init__(self, table: Any) -> None:
        source = tables.open_table(table)
        if "time" in source.columns:
            raise InputError(f"{source.name} has a column 'time', but a ranking has one score per user and item.")
        column = next((name for name in _COLUMNS if name in source.columns), None)
        if column is None:
            raise InputError(
                f"{source.name} has neither a column 'score' nor 'rank'; a ranking needs user_id, item_id and one of "
                f"them, found: {', '.join(map(str, source.columns))[:200] or 'none'}."
            )
        pairs = read_cells(source, (None, None, None), [ColumnRule(column, np.float64, *_COLUMNS[column])])
        self.is_policy = column == "probability"
        score = pairs.numbers[column] * (-1.0 if column == "rank" else 1.0)
        self.users: Ids = pairs.catalog.users
        self.items: Ids = pairs.catalog.items
        self._start, (self._item, self._score) = group(pairs.user, len(self.users), pairs.item, score)
        self._floor = 0.0 if self.is_policy else np.nextafter(self._score.min(), -np.inf)

    def score_block(self, user_codes: Codes) -> Floats:
        scores = np.full((len(user_codes), len(self.items)), self._floor)
        for row, user in enumerate(user_codes):
            here = slice(self._start[user], self._start[user + 1])
            scores[row, self._item[here]] = self._score[here]
        return scores

    def check_depth(self, metrics: Iterable[Metric], users: Ids, items: Ids) -> None:
        """Refuse metrics that look further down the list than the table reaches.

        A metric of depth k needs k listed items of the catalog for every user the table lists, a metric of the
        whole list needs all items.
        """
        known = np.concatenate(([0], np.cumsum((items.encode(self.items.values) >= 0)[self._item])))
        listed = known[self._start[1:]] - known[self._start[:-1]]
        shared = np.flatnonzero((users.encode(self.users.values) >= 0) & (np.diff(self._start) > 0))
        for metric in metrics:
            needed = min(metric.depth or len(items), len(items))
            short = shared[listed[shared] < needed]
            if len(short):
                user = int(short[np.argmin(listed[short])])
                whole = "the whole list" if metric.depth is None else f"the first {needed:,} items"
                raise InputError(
                    f"{metric.name} counts {whole}, but the ranking lists fewer than {needed:,} items for "
                    f"{plural(len(short), 'user')}, for example {plural(int(listed[user]), 'item')} for user "
                    f"{self.users.name(user)}; list more items, choose P@k with a smaller k, or rank unlisted items "
                    "last, tied, with unlisted='last' (--unlisted last)."
                )

    def check_slots(self, metrics: Iterable[Metric]) -> None:
        """Refuse metrics but P@k, k being at least the number of items that the policy shows."""
        slots = np.bincount(np.repeat(np.arange(len(self.users)), np.diff(self._start)), self._score)
        most = float(slots.max(initial=0.0))
        user, needed = self.users.name(int(slots.argmax())), max(1, int(np.ceil(most - 1e-6)))
        for metric in metrics:
            if metric.form != "P@k" or (metric.depth or 0) < needed:
                raise InputError(
                    f"{metric.name} does not fit a policy: the probabilities of user {user} add up to {most:g}; "
                    f"measure it by CP@k, k being the number of slots that it fills, such as CP@{needed}."
                )


def is_table(ranker: Any) -> bool:
    """A path, or a frame that names users or items in its columns (another frame is an array of scores)."""
    if isinstance(ranker, (str, os.PathLike)):
        return True
    try:
        native = nw.from_native(ranker, pass_through=True)
        columns = native.collect_schema().names() if isinstance(native, (nw.DataFrame, nw.LazyFrame)) else []
        return bool({"user_id", "item_id", "idx_user", "idx_item"} & set(columns))
    except (TypeError, ValueError, nw.exceptions.NarwhalsError):  # columns that have no proper names
        return False
