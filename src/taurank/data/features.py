"""Features of users and items: tables with an id, for learners, for models of exposure, and for pilots.

A learner sees a sparse matrix: a column of numbers becomes one column, standardized; a column of categories (text,
booleans, dictionaries) one indicator per category; a column of lists one per member, which share a weight of 1. The
first column of the matrix is 1. What is missing is refused in one sentence or, with ``impute``, counts as the mean
and has an indicator. A model of exposure sees classes: a category as it is, a fraction by its tenth of the ids.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from scipy.sparse import csr_array, hstack

from taurank._checks import check_number
from taurank._types import Codes, Floats, Longs, Mask
from taurank.data import tables
from taurank.data.ids import Ids, to_ids, typed_ids
from taurank.errors import InputError, first_line, plural, show

MAX_COLUMNS = 5000  # of the matrix; the map from features to factors solves a system of this size
MAX_CLASSES = 10_000
TENTHS = 10

Matrix: TypeAlias = Any  # a scipy.sparse.csr_array, which has no types


class UserCategories(NamedTuple):
    """Pairs of a user and a category that the user can be shown, each with a score, and the category of each item."""

    user: Longs
    category: Longs
    score: Floats  # standardized; 0 where there is none
    item: Longs  # items without a category have one more, which is nobody's


@dataclass(frozen=True, eq=False)
class Features:
    """Tables of users and of items; one of them may be left out.

    ``users`` is a frame (pandas, Polars, PyArrow) or a path with ``user_id`` and columns of features, ``items`` one
    with ``item_id``. ``categories`` are those that each user can be shown: ``user_id`` and one column that the items
    have too, and optionally ``score``, how much of each. With ``impute``, missing values and ids without a row are
    replaced by the mean and flagged. ``pull`` is how strongly factors are pulled toward what the features predict, in
    updates per epoch.
    """

    users: Any = None
    items: Any = None
    categories: Any = None
    impute: bool = False
    pull: float = 10.0

    def __post_init__(self) -> None:
        if self.users is None and self.items is None:
            raise InputError("Features needs a table of users or of items.")
        check_number("pull", self.pull, 0)
        _ = self._tables, self._category_column

    def of_users(self, users: Ids) -> Matrix | None:
        """One row of features per user; None without a table of users."""
        table = self._tables["user_id"]
        return None if table is None else table.matrix(users, self.impute)

    def of_items(self, items: Ids) -> Matrix | None:
        """One row of features per item; None without a table of items."""
        table = self._tables["item_id"]
        return None if table is None else table.matrix(items, self.impute)

    def classes(self, ids: Ids) -> list[Longs]:
        """For each column of the table of these ids, users or items, the class of every id; 0 where it has none."""
        table = self._tables[ids.column]
        return [] if table is None else table.classes(ids)

    def user_categories(self, users: Ids, items: Ids) -> UserCategories | None:
        """The categories that each user can be shown; None without a table of them."""
        own, table = self._categories, self._tables["item_id"]
        if own is None or table is None:
            return None
        of_item = table.columns[self._category_column].cast(pa.string()).combine_chunks()
        of_user = own.columns[self._category_column].cast(pa.string()).combine_chunks()
        labels = pc.unique(of_item.drop_null())
        item = np.full(len(items), len(labels))
        row = table.rows(items)
        item[row >= 0] = np.asarray(pc.index_in(of_item, labels).fill_null(len(labels)))[row[row >= 0]]
        user = users.encode(own.typed(users)).astype(np.int64)
        category = np.asarray(pc.index_in(of_user, labels).fill_null(-1), np.int64)
        known = (user >= 0) & (category >= 0)
        return UserCategories(user[known], category[known], own.scores()[known], item)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the tables and options."""
        digest = hashlib.blake2b(f"{self.impute} {self.pull}".encode(), digest_size=16)
        for column, table in {**self._tables, "categories": self._categories}.items():
            text = "" if table is None else repr((table.ids.to_pylist(), table.columns.to_pydict()))
            digest.update(f"{column} {len(text)} {text}".encode())
        return digest.hexdigest()

    @cached_property
    def _tables(self) -> dict[str, Table | None]:
        given = {"user_id": self.users, "item_id": self.items}
        return {name: None if data is None else Table.read(data, name, unique=True) for name, data in given.items()}

    @cached_property
    def _categories(self) -> Table | None:
        return None if self.categories is None else Table.read(self.categories, "user_id", unique=False)

    @cached_property
    def _category_column(self) -> str:
        """The one column that the categories of users and the table of items share."""
        own, items = self._categories, self._tables["item_id"]
        if own is None:
            return ""
        shared = set(own.columns.column_names) & set([] if items is None else items.columns.column_names) - {"score"}
        if len(shared) != 1:
            raise InputError(
                "the categories of users need user_id and one column that the items have too, such as category; "
                f"they have user_id, {', '.join(own.columns.column_names)}."
            )
        return str(shared.pop())


@dataclass(frozen=True)
class Table:
    """Feature columns, one row per id."""

    column: str
    ids: pa.Array
    columns: pa.Table
    text: bool  # ids of a CSV, which have no type yet

    @classmethod
    def read(cls, data: Any, column: str, unique: bool) -> Table:
        source = tables.open_table(data)
        if column not in source.columns:
            raise InputError(f"the table of features needs a column '{column}'; it has {', '.join(source.columns)}.")
        if len(source.columns) == 1:
            raise InputError(f"the table of features has no column beside '{column}'.")
        batches = list(source.batches(source.columns))
        if not batches:
            raise InputError(f"the table of features with '{column}' has no rows.")
        table = pa.Table.from_batches(batches).combine_chunks()
        ids, rest = to_ids(table[column], column), table.drop_columns([column])
        if unique and len(pc.unique(ids)) < len(ids):
            counts = pc.value_counts(ids)
            twice = counts.filter(pc.greater(counts.field("counts"), 1)).field("values")
            raise InputError(
                f"column '{column}' of the features repeats {plural(len(twice), 'id')}, for example "
                f"{show(twice[0])}; keep one row of each."
            )
        if source.text:
            rest = pa.table(
                {name: _parsed(source.numerals(rest[name].combine_chunks())) for name in rest.column_names}
            )
        for name in rest.column_names:
            _kind(name, rest[name].type)
        return cls(column, ids, rest, source.text)

    def typed(self, ids: Ids) -> pa.Array:
        """The table's ids, those of a CSV in the type of ``ids``."""
        return typed_ids(self.ids, ids.values.type, self.column) if self.text else self.ids

    def rows(self, ids: Ids) -> Codes:
        """The row of every id; −1 where the table has none."""
        position = ids.encode(self.typed(ids))
        rows = np.full(len(ids), -1, np.int32)
        rows[position[position >= 0]] = np.flatnonzero(position >= 0)
        return rows

    def matrix(self, ids: Ids, impute: bool) -> Matrix:
        """Rows in the order of ``ids``. Means and categories are those of the whole table."""
        row = self.rows(ids)
        if (row < 0).any() and not impute:
            missing = ids.values.filter(pa.array(row < 0))
            raise InputError(
                f"{plural(len(missing), ids.column)} of the log have no features, for example {show(missing[0])}; "
                "add their rows, or set impute=True."
            )
        parts = [csr_array(np.ones((len(ids), 1)))]
        if (row < 0).any():
            parts.append(csr_array((row < 0).astype(np.float64)[:, None]))
        known = np.flatnonzero(row >= 0)
        pick = csr_array((np.ones(len(known)), (known, row[known])), (len(row), len(self.ids)))
        columns = ((name, self.columns[name].combine_chunks()) for name in self.columns.column_names)
        parts += [csr_array(pick @ _encoded(name, values, impute)) for name, values in columns]  # 0 without a row
        matrix = csr_array(hstack(parts, format="csr"))
        if matrix.shape[1] > MAX_COLUMNS:
            raise InputError(
                f"the features of '{ids.column}' have {matrix.shape[1]:,} numbers and categories, more than "
                f"{MAX_COLUMNS:,}; group rare categories."
            )
        return matrix

    def classes(self, ids: Ids) -> list[Longs]:
        """For each column the class of every id: its category, or the tenth of a fraction; 0 where it has none."""
        rows = self.rows(ids)
        return [_classes(name, self.columns[name].combine_chunks(), rows) for name in self.columns.column_names]

    def scores(self) -> Floats:
        """The column ``score``, standardized; 0 where there is none."""
        if "score" not in self.columns.column_names:
            return np.zeros(len(self.ids))
        try:
            score = np.asarray(self.columns["score"].cast(pa.float64()).combine_chunks().fill_null(np.nan))
        except pa.ArrowException as error:
            raise InputError(f"column 'score' of the categories is not numeric: {first_line(error)}.") from error
        known = np.isfinite(score)
        spread = score[known].std() if known.any() else 0.0
        return np.where(known, (score - score[known].mean()) / spread, 0.0) if spread > 0 else np.zeros(len(score))


def _parsed(text: pa.Array) -> pa.Array:
    """A column of a CSV as integers or fractions, if all of it can be read as such."""
    for kind in (pa.int64(), pa.float64()):
        try:
            return text.cast(kind)
        except pa.ArrowInvalid:
            continue
    return text


def _kind(name: str, kind: pa.DataType) -> str:
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return "list"
    if pa.types.is_boolean(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return "category"
    if pa.types.is_dictionary(kind) or str(kind) == "string_view":
        return "category"
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return "number"
    raise InputError(f"the feature '{name}' has type {kind}; use numbers, text, booleans or lists of them.")


def _classes(name: str, column: Any, rows: Codes) -> Longs:
    if pa.types.is_floating(column.type):
        values = np.where(rows >= 0, np.asarray(column.cast(pa.float64()).fill_null(np.nan))[rows], np.nan)
        known = values[np.isfinite(values)]
        edges = np.unique(np.quantile(known, np.arange(1, TENTHS) / TENTHS)) if len(known) else known
        return np.where(np.isnan(values), 0, 1 + np.searchsorted(edges, values, side="right"))
    if _kind(name, column.type) == "list":
        raise InputError(f"the feature '{name}' has lists; a model of exposure takes numbers and categories.")
    encoded = column if pa.types.is_dictionary(column.type) else pc.dictionary_encode(column)
    codes = np.asarray(encoded.indices.fill_null(-1), np.int64)
    classes = np.where(rows >= 0, codes[rows] + 1, 0)
    if classes.max(initial=0) > MAX_CLASSES:
        raise InputError(f"feature '{name}' has more than {MAX_CLASSES:,} classes; group them first.")
    return classes


def _encoded(name: str, values: Any, impute: bool) -> Matrix:
    missing = np.asarray(pc.is_null(values, nan_is_null=True))
    if missing.any() and not impute:
        raise InputError(
            f"the feature '{name}' has {plural(int(missing.sum()), 'missing value')}; fill them in, "
            "or set impute=True."
        )
    kind = _kind(name, values.type)
    if kind == "number":
        columns = _numbers(name, values, missing)
    elif kind == "category":
        columns = _indicators(values, np.arange(len(values)), len(values))
    else:
        members = _indicators(pc.list_flatten(values), np.asarray(pc.list_parent_indices(values)), len(values))
        counts = np.asarray(members.sum(axis=1)).ravel()
        columns = members.multiply(1.0 / np.maximum(counts, 1.0)[:, None])
    return csr_array(hstack([columns, csr_array(missing.astype(np.float64)[:, None])]) if missing.any() else columns)


def _numbers(name: str, values: pa.Array, missing: Mask) -> Matrix:
    numbers = np.asarray(values.cast(pa.float64(), safe=False).fill_null(np.nan))
    if np.isinf(numbers).any():
        raise InputError(f"the feature '{name}' has infinite values; use finite numbers.")
    known = numbers[~missing]
    center, spread = (float(known.mean()), float(known.std())) if len(known) else (0.0, 0.0)
    return csr_array(np.where(missing, 0.0, (numbers - center) / (spread or 1.0))[:, None])


def _indicators(values: pa.Array, row: Any, rows: int) -> Matrix:
    """One column per category, in order of their text; a null has none."""
    text = (values.dictionary_decode() if pa.types.is_dictionary(values.type) else values).cast(pa.string())
    known = np.flatnonzero(~np.asarray(pc.is_null(text)))
    text = text.take(pa.array(known))
    categories = pc.unique(text)
    categories = categories.take(pc.array_sort_indices(categories))
    codes = np.asarray(pc.index_in(text, value_set=categories))
    return csr_array((np.ones(len(known)), (row[known], codes)), (rows, len(categories)))
