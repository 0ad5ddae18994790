"""Features of users and items: tables with an id, for learners, for models of exposure, and for pilots.

A learner sees a sparse matrix: a column of numbers becomes one column, standardized; a column of categories (text,
booleans, dictionaries) one indicator per category; a column of lists one per member, which share a weight of 1. The
first column of the matrix is 1. What is missing is refused in one sentence or, with ``impute``, counts as the mean
and has an indicator. A model of exposure sees classes: a category as it is, a fraction by its tenth of the ids.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from scipy.sparse import csr_array, hstack

from taurank._checks import check_number
from taurank._types import Codes, Floats, Longs
from taurank.data.ids import Ids, to_ids, typed_ids
from taurank.data.tables import open_table
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

    Parameters
    ----------
    users : a frame (pandas, Polars, PyArrow) or a path with ``user_id`` and columns of features
    items : the same with ``item_id``
    categories : those that each user can be shown: ``user_id`` and one column that the items have too, and optionally
        ``score``, how much of each
    impute : replace missing values and ids without a row by the mean, and flag them; else they are refused
    pull : how strongly factors are pulled toward what the features predict, in updates per epoch
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

    def matrix(self, ids: Ids) -> Matrix | None:
        """One row of features per user or item; None without a table of them."""
        table = self._tables[ids.column]
        return None if table is None else table.matrix(ids, self.impute)

    def classes(self, ids: Ids) -> list[Longs]:
        """For each column of the table of these users or items the class of every id; 0 where it has none.

        A category is a class, a fraction belongs to its tenth.
        """
        table = self._tables[ids.column]
        if table is None:
            return []
        rows = table.rows(ids)
        return [_classes(name, column, rows) for name, column in table.columns.items()]

    def user_categories(self, users: Ids, items: Ids) -> UserCategories | None:
        """The categories that each user can be shown; None without a table of them."""
        own, table = self._tables["categories"], self._tables["item_id"]
        if own is None or table is None:
            return None
        of_item, of_user = (each.columns[self._category_column].cast(pa.string()) for each in (table, own))
        labels = pc.unique(of_item.drop_null())
        row, code = table.rows(items), np.asarray(pc.index_in(of_item, labels).fill_null(len(labels)), np.int64)
        user = users.encode(own.typed(users)).astype(np.int64)
        category = np.asarray(pc.index_in(of_user, labels).fill_null(-1), np.int64)
        score = _standardized("score", own.columns["score"]) if "score" in own.columns else np.zeros(len(user))
        known = (user >= 0) & (category >= 0)
        return UserCategories(user[known], category[known], score[known], np.where(row < 0, len(labels), code[row]))

    @cached_property
    def fingerprint(self) -> str:
        digest = hashlib.blake2b(f"{self.impute} {self.pull}".encode(), digest_size=16)
        for column, table in self._tables.items():
            columns = {} if table is None else {name: values.to_pylist() for name, values in table.columns.items()}
            text = "" if table is None else repr((table.ids.to_pylist(), columns))
            digest.update(f"{column} {len(text)} {text}".encode())
        return digest.hexdigest()

    @cached_property
    def _tables(self) -> dict[str, Table | None]:
        given = {"user_id": self.users, "item_id": self.items, "categories": self.categories}
        return {name: None if data is None else Table.read(data, name) for name, data in given.items()}

    @cached_property
    def _category_column(self) -> str:
        """The one column that the categories of users and the table of items share."""
        own, items = self._tables["categories"], self._tables["item_id"]
        if own is None:
            return ""
        shared = own.columns.keys() & (items.columns.keys() if items else set()) - {"score"}
        if len(shared) != 1:
            raise InputError(
                "the categories of users need user_id and one column that the items have too, such as category; "
                f"they have user_id, {', '.join(own.columns)}."
            )
        return shared.pop()


@dataclass(frozen=True)
class Table:
    ids: pa.Array
    columns: dict[str, pa.Array]
    text: bool  # ids of a CSV, which have no type yet

    @classmethod
    def read(cls, data: Any, name: str) -> Table:
        column = "item_id" if name == "item_id" else "user_id"
        source = open_table(data)
        if column not in source.columns:
            raise InputError(f"the table of features needs a column '{column}'; it has {', '.join(source.columns)}.")
        batches = list(source.batches(source.columns))
        if len(source.columns) == 1 or not batches:
            missing = "rows" if len(source.columns) > 1 else f"column beside '{column}'"
            raise InputError(f"the table of features has no {missing}.")
        table = pa.Table.from_batches(batches)
        columns = {each: table[each].combine_chunks() for each in source.columns}
        ids = to_ids(columns.pop(column), column)
        if name != "categories":
            Ids(ids, column)  # refuses ids that repeat
        if source.text:
            columns = {each: _parsed(source.numerals(values)) for each, values in columns.items()}
        for each, values in columns.items():
            _kind(each, values.type)
        return cls(ids, columns, source.text)

    def typed(self, ids: Ids) -> pa.Array:
        """The table's ids, those of a CSV in the type of ``ids``."""
        return typed_ids(self.ids, ids.values.type, ids.column) if self.text else self.ids

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
        parts += [csr_array(pick @ _encoded(name, values, impute)) for name, values in self.columns.items()]
        matrix = csr_array(hstack(parts, format="csr"))
        if matrix.shape[1] > MAX_COLUMNS:
            raise InputError(
                f"the features of '{ids.column}' have {matrix.shape[1]:,} numbers and categories, more than "
                f"{MAX_COLUMNS:,}; group rare categories."
            )
        return matrix


def _parsed(text: pa.Array) -> pa.Array:
    """A column of a CSV as integers or fractions, if all of it can be read as such."""
    for kind in (pa.int64(), pa.float64()):
        with suppress(pa.ArrowInvalid):
            return text.cast(kind)
    return text


def _kind(name: str, kind: pa.DataType) -> str:
    types = pa.types
    if types.is_list(kind) or types.is_large_list(kind):
        return "list"
    if types.is_boolean(kind) or types.is_dictionary(kind) or str(kind) in ("string", "large_string", "string_view"):
        return "category"
    if types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind):
        return "number"
    raise InputError(f"the feature '{name}' has type {kind}; use numbers, text, booleans or lists of them.")


def _classes(name: str, column: Any, rows: Codes) -> Longs:
    if _kind(name, column.type) == "list":
        raise InputError(f"the feature '{name}' has lists; a model of exposure takes numbers and categories.")
    if pa.types.is_floating(column.type):
        values = np.where(rows >= 0, np.asarray(column.cast(pa.float64()).fill_null(np.nan))[rows], np.nan)
        known = values[np.isfinite(values)]
        edges = np.unique(np.quantile(known, np.arange(1, TENTHS) / TENTHS)) if len(known) else known
        return np.where(np.isnan(values), 0, 1 + np.searchsorted(edges, values, side="right"))
    encoded = column if pa.types.is_dictionary(column.type) else pc.dictionary_encode(column)
    classes = np.where(rows >= 0, np.asarray(encoded.indices.fill_null(-1), np.int64)[rows] + 1, 0)
    if classes.max(initial=0) > MAX_CLASSES:
        raise InputError(f"feature '{name}' has more than {MAX_CLASSES:,} classes; group them first.")
    return classes


def _encoded(name: str, values: Any, impute: bool) -> Matrix:
    """The columns of a feature, one row per row of its table, and one that flags what is missing, if anything is."""
    missing = np.asarray(pc.is_null(values, nan_is_null=True))
    if missing.any() and not impute:
        raise InputError(
            f"the feature '{name}' has {plural(int(missing.sum()), 'missing value')}; fill them in, "
            "or set impute=True."
        )
    kind = _kind(name, values.type)
    if kind == "number":
        columns = csr_array(_standardized(name, values)[:, None])
    elif kind == "category":
        columns = _indicators(values, np.arange(len(values)), len(values))
    else:
        members = _indicators(pc.list_flatten(values), np.asarray(pc.list_parent_indices(values)), len(values))
        counts = np.asarray(members.sum(axis=1)).ravel()
        columns = members.multiply(1.0 / np.maximum(counts, 1.0)[:, None])
    return csr_array(hstack([columns, csr_array(missing.astype(np.float64)[:, None])]) if missing.any() else columns)


def _standardized(name: str, values: pa.Array) -> Floats:
    """Numbers with mean 0 and deviation 1; 0 where one is missing."""
    try:
        numbers = np.asarray(values.cast(pa.float64(), safe=False).fill_null(np.nan))
    except pa.ArrowException as error:
        raise InputError(f"the feature '{name}' is not numeric: {first_line(error)}.") from error
    if np.isinf(numbers).any():
        raise InputError(f"the feature '{name}' has infinite values; use finite numbers.")
    known = numbers[~np.isnan(numbers)]
    center, spread = (float(known.mean()), float(known.std())) if len(known) else (0.0, 0.0)
    return np.where(np.isnan(numbers), 0.0, (numbers - center) / (spread or 1.0))


def _indicators(values: pa.Array, row: Any, rows: int) -> Matrix:
    text = (values.dictionary_decode() if pa.types.is_dictionary(values.type) else values).cast(pa.string())
    known = np.flatnonzero(np.asarray(text.is_valid(), dtype=bool))
    text = text.take(pa.array(known))
    categories = text.unique().sort()
    codes = np.asarray(pc.index_in(text, value_set=categories))
    return csr_array((np.ones(len(known)), (row[known], codes)), (rows, len(categories)))
