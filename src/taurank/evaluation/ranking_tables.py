"""Rankings that come as a table: ``user_id, item_id`` and a ``score`` (or a ``rank``), as a frame or in files."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import narwhals as nw
import numpy as np
import numpy.typing as npt

from taurank._arrays import group
from taurank.data import tables
from taurank.data.ids import Codes, Ids
from taurank.data.reader import ColumnRule, read_cells
from taurank.errors import InputError, plural

if TYPE_CHECKING:
    from taurank.evaluation.metrics import Metric

Floats = npt.NDArray[np.float64]

_LOWEST = np.finfo(np.float64).min


class TableRanker:
    """The listed pairs of a table, best first by ``score``, or by ``rank`` (1 is best) where it has no score.

    ``table`` is a pandas, Polars or PyArrow frame, or a path to Parquet or CSV. A pair that is not listed ranks
    below all pairs that are, tied.
    """

    def __init__(self, table: Any) -> None:
        source = tables.open_table(table)
        rule = _rule(source)
        pairs = read_cells(source, (None, None, None), [rule])
        score = pairs.numbers[rule.column] if rule.column == "score" else -pairs.numbers[rule.column]
        self.users: Ids = pairs.catalog.users
        self.items: Ids = pairs.catalog.items
        self._start, (self._item, self._score) = group(pairs.user, len(self.users), pairs.item, score)
        self._floor = np.nextafter(self._score.min(), -np.inf)

    def score_block(self, user_codes: Codes) -> Floats:
        scores = np.full((len(user_codes), len(self.items)), self._floor)
        for row, user in enumerate(user_codes):
            here = slice(self._start[user], self._start[user + 1])
            scores[row, self._item[here]] = self._score[here]
        return scores

    def check_depth(self, formulas: Iterable[Metric], users: Ids, items: Ids) -> None:
        """Refuse metrics that look further down the list than the table reaches.

        A metric of depth k needs k listed items of the catalog for every user the table lists, a metric of the
        whole list needs all items.
        """
        listed = self._lengths(items)
        shared = np.flatnonzero((users.encode(self.users.values) >= 0) & (np.diff(self._start) > 0))
        if not len(shared):
            return
        for formula in formulas:
            needed = min(formula.depth or len(items), len(items))
            short = shared[listed[shared] < needed]
            if len(short):
                shortest = int(short[np.argmin(listed[short])])
                raise self._too_short(formula, needed, len(short), shortest, int(listed[shortest]))

    def _lengths(self, items: Ids) -> npt.NDArray[np.int64]:
        """How many items of the catalog each user's list has."""
        known = items.encode(self.items.values) >= 0
        counted = np.concatenate(([0], np.cumsum(known[self._item])))
        return np.asarray(counted[self._start[1:]] - counted[self._start[:-1]], dtype=np.int64)

    def _too_short(self, formula: Metric, needed: int, n_short: int, user: int, length: int) -> InputError:
        whole = "the whole list" if formula.depth is None else f"the first {needed:,} items"
        return InputError(
            f"{formula.name} counts {whole}, but the ranking lists fewer than {needed:,} items for "
            f"{plural(n_short, 'user')}, for example {plural(length, 'item')} for user {self.users.name(user)}; list "
            "more items, choose P@k with a smaller k, or rank unlisted items last, tied, with unlisted='last' "
            "(--unlisted last)."
        )


def is_table(ranker: Any) -> bool:
    """A path, or a frame that names users or items in its columns (another frame is an array of scores)."""
    if isinstance(ranker, (str, os.PathLike)):
        return True
    return bool({"user_id", "item_id", "idx_user", "idx_item"} & set(_columns(ranker)))


def _columns(frame: Any) -> list[Any]:
    try:
        native = nw.from_native(frame, pass_through=True)
        if not isinstance(native, (nw.DataFrame, nw.LazyFrame)):
            return []
        return list(native.collect_schema().names())
    except (TypeError, ValueError, nw.exceptions.NarwhalsError):  # columns that have no proper names
        return []


def _rule(source: tables.Source) -> ColumnRule:
    """Which column ranks the pairs, and what it may hold."""
    if "time" in source.columns:
        raise InputError(f"{source.name} has a column 'time', but a ranking has one score per user and item.")
    if "score" in source.columns:
        return ColumnRule("score", np.float64, lambda v: np.isfinite(v) & (v > _LOWEST), "finite numbers")
    if "rank" in source.columns:
        return ColumnRule("rank", np.float64, lambda v: np.isfinite(v) & (v >= 1) & (v % 1 == 0), "integers ≥ 1")
    raise InputError(
        f"{source.name} has neither a column 'score' nor 'rank'; a ranking needs user_id, item_id and one of them, "
        f"found: {', '.join(map(str, source.columns))[:200] or 'none'}."
    )
