"""Tables of users and items as classes: a category as it is, a number by its tenth of the units."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from taurank.data import sources
from taurank.data.ids import Ids
from taurank.data.log import Log
from taurank.errors import InputError, first_line, plural, show
from taurank.estimation.propensities.lifts import Lift
from taurank.estimation.propensities.shelf_tastes import OwnShelves

Floats = npt.NDArray[np.float64]
Codes = npt.NDArray[np.int64]

TENTHS = 10
MAX_CLASSES = 10_000
SCORE = "score"  # of a user's shelf


@dataclass(frozen=True, eq=False)
class Classes:
    """The class of every user and every item, an array for each feature; the first is the unit itself."""

    user: list[Codes]
    item: list[Codes]
    shelves: OwnShelves | None = None

    def lifts(self, user: Any, item: Any, fold: Any, folds: int) -> list[tuple[int, int, Lift]]:
        """User × class of the item, class of the user × item, and class × class; user × item is the tastes' part."""
        return [
            (a, b, Lift.of(mine[user], theirs[item], fold, (int(mine.max()) + 1, int(theirs.max()) + 1), folds))
            for a, mine in enumerate(self.user)
            for b, theirs in enumerate(self.item)
            if (a, b) != (0, 0)
        ]

    def columns(self, lifts: list[tuple[int, int, Lift]], user: Any, item: Any, fold: Any) -> list[Floats]:
        """The lifts of cells, each with a kink at zero."""
        values = [lift.at(self.user[a][user], self.item[b][item], fold) for a, b, lift in lifts]
        return [column for value in values for column in (value, np.maximum(value, 0.0))]


def read_classes(log: Log, features: Any) -> Classes:
    """The classes of ``features``: None, or a mapping of "user", "item" and "shelves" to a frame or a file.

    "shelves" has ``user_id`` and a column of the items' table: which of its values a user can be shown. A column
    ``score`` may say how much of each.
    """
    if features is None:
        features = {}
    if not isinstance(features, Mapping) or not set(features) <= {"user", "item", "shelves"}:
        raise InputError(
            'features must map "user", "item" or "shelves" to a table, for example {"item": items}; '
            f"got {show(features)}."
        )
    user = [np.arange(log.n_users), *_table(log.users, "user_id", features.get("user"))]
    item = [np.arange(log.n_items), *_table(log.items, "item_id", features.get("item"))]
    return Classes(user, item, _shelves(log, features.get("shelves"), features.get("item")))


def _table(ids: Ids, key: str, table: Any) -> list[Codes]:
    if table is None:
        return []
    data, text = _read(key, table)
    rows = _rows_of(ids, key, data.column(key).combine_chunks(), text)
    names = [name for name in data.column_names if name != key]
    return [_classes(name, data.column(name).combine_chunks(), rows) for name in names]


def _read(key: str, table: Any) -> tuple[pa.Table, bool]:
    """The columns of a frame or a file, and whether it is text."""
    is_path = isinstance(table, (str, os.PathLike))
    source = sources.from_files(table) if is_path else sources.from_frame(table)
    if key not in source.columns or len(source.columns) < 2:
        raise InputError(f"{source.name} must have the column '{key}' and at least one feature.")
    names = [name for name in source.columns if name != key]
    return pa.Table.from_batches(list(source.batches([key, *names]))), source.text


def _shelves(log: Log, table: Any, items: Any) -> OwnShelves | None:
    if table is None:
        return None
    shelves = _read("user_id", table)[0]
    goods = None if items is None else _read("item_id", items)[0]
    names = [name for name in shelves.column_names if name not in ("user_id", SCORE)]
    shared = [] if goods is None else [name for name in names if name in goods.column_names]
    if goods is None or len(shared) != 1:
        raise InputError(
            'features["shelves"] needs user_id and one column that features["item"] has too, such as category; '
            f"it has {', '.join(shelves.column_names)}."
        )
    values = pc.cast(goods.column(shared[0]), pa.string()).combine_chunks()
    labels = pc.unique(values.drop_null())
    user = _positions(log.users, "user_id", shelves.column("user_id").combine_chunks())
    shelf = _codes(pc.cast(shelves.column(shared[0]), pa.string()).combine_chunks(), labels)
    known = (user >= 0) & (shelf >= 0)
    item = np.full(log.n_items, len(labels))  # a class of its own, on nobody's shelf
    position = _positions(log.items, "item_id", goods.column("item_id").combine_chunks())
    codes = _codes(values, labels)
    listed = (position >= 0) & (codes >= 0)
    item[position[listed]] = codes[listed]
    return OwnShelves.of(log.n_users, user[known], shelf[known], item, _scores(shelves)[known])


def _scores(shelves: pa.Table) -> Floats:
    """Standardized; 0 where there are none."""
    if SCORE not in shelves.column_names:
        return np.zeros(len(shelves))
    try:
        score = np.asarray(pc.cast(shelves.column(SCORE), pa.float64()).combine_chunks().fill_null(np.nan))
    except pa.ArrowException as error:
        raise InputError(f"column '{SCORE}' of the shelves is not numeric: {first_line(error)}.") from error
    known = np.isfinite(score)
    spread = score[known].std() if known.any() else 0.0
    return np.where(known, (score - score[known].mean()) / spread, 0.0) if spread > 0 else np.zeros(len(score))


def _codes(values: Any, labels: Any) -> Codes:
    return np.asarray(pc.index_in(values, labels).fill_null(-1), np.int64)


def _rows_of(ids: Ids, key: str, column: Any, text: bool) -> Codes:
    """The row of every unit of the catalog, −1 where the table has none; units outside it are left out."""
    position = _positions(ids, key, column)
    known = np.flatnonzero(position >= 0)
    counts = np.bincount(position[known], minlength=len(ids))
    if counts.max(initial=0) > 1:
        raise InputError(
            f"column '{key}' of the features repeats {plural(int((counts > 1).sum()), 'id')}, for example "
            f"{ids.name(int(counts.argmax()))}; keep one row of each."
        )
    rows = np.full(len(ids), -1)
    rows[position[known]] = known
    return rows


def _positions(ids: Ids, key: str, column: Any) -> Codes:
    try:
        return ids.encode(column.cast(ids.values.type)).astype(np.int64)
    except (pa.ArrowException, InputError) as error:
        raise InputError(
            f"column '{key}' of the features does not have ids like the log's {show(ids.values[0])}."
        ) from error


def _classes(name: str, column: Any, rows: Codes) -> Codes:
    """0 for units without a value, else the category or the tenth."""
    column = _parsed(column)
    if pa.types.is_floating(column.type):
        values = np.where(rows >= 0, np.asarray(column.cast(pa.float64()).fill_null(np.nan))[rows], np.nan)
        known = values[np.isfinite(values)]
        edges = np.unique(np.quantile(known, np.arange(1, TENTHS) / TENTHS)) if len(known) else known
        return np.where(np.isnan(values), 0, 1 + np.searchsorted(edges, values, side="right"))
    encoded = column if pa.types.is_dictionary(column.type) else pc.dictionary_encode(column)
    codes = np.asarray(encoded.indices.fill_null(-1), np.int64)
    classes = np.where(rows >= 0, codes[rows] + 1, 0)
    if classes.max(initial=0) > MAX_CLASSES:
        raise InputError(f"feature '{name}' has more than {MAX_CLASSES:,} classes; group them first.")
    return classes


def _parsed(column: Any) -> Any:
    """The text of a CSV as fractions where it has them; integers and other text stay categories."""
    if not pa.types.is_string(column.type):
        return column
    try:
        column.cast(pa.int64())
    except pa.ArrowInvalid:
        try:
            return column.cast(pa.float64())
        except pa.ArrowInvalid:
            return column
    return column
