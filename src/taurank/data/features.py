"""Features of users and items: tables with an id, and what they are as a sparse matrix.

A column of numbers becomes one column, standardized; a column of categories (text, booleans, dictionaries) one
indicator per category; a column of lists one per member, which share a weight of 1. The first column of the matrix
is 1. What is missing is refused in one sentence or, with ``impute``, counts as the mean and has an indicator.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from scipy.sparse import csr_array, hstack

from taurank._validation import check_number
from taurank.data import sources
from taurank.data.ids import Ids
from taurank.errors import InputError, plural, show

MAX_COLUMNS = 5000  # of the matrix; the map from features to factors solves a system of this size

Matrix: TypeAlias = Any  # a scipy.sparse.csr_array, which has no types
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Features:
    """Tables of users and of items, for ``fit`` and ``update``; one of them may be left out.

    ``users`` is a frame (pandas, Polars, PyArrow) with ``user_id`` and columns of features, ``items`` one with
    ``item_id``. With ``impute``, missing values and ids without a row are replaced by the mean and flagged. ``pull``
    is how strongly factors are pulled toward what the features predict, in updates per epoch.
    """

    users: Any = None
    items: Any = None
    impute: bool = False
    pull: float = 10.0

    def __post_init__(self) -> None:
        if self.users is None and self.items is None:
            raise InputError("Features needs a table of users or of items.")
        check_number("pull", self.pull, 0)
        for column in ("user_id", "item_id"):
            _ = self._table(column)

    def of_users(self, users: Ids) -> Matrix | None:
        """One row of features per user; None without a table of users."""
        table = self._table("user_id")
        return None if table is None else table.matrix(users, self.impute)

    def of_items(self, items: Ids) -> Matrix | None:
        """One row of features per item; None without a table of items."""
        table = self._table("item_id")
        return None if table is None else table.matrix(items, self.impute)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the tables and options."""
        digest = hashlib.blake2b(f"{self.impute} {self.pull}".encode(), digest_size=16)
        for column in ("user_id", "item_id"):
            table = self._table(column)
            text = "" if table is None else repr((table.ids.values.to_pylist(), table.columns.to_pydict()))
            digest.update(f"{column} {len(text)} {text}".encode())
        return digest.hexdigest()

    def _table(self, column: str) -> Table | None:
        return self._tables[column]

    @cached_property
    def _tables(self) -> dict[str, Table | None]:
        given = {"user_id": self.users, "item_id": self.items}
        return {column: None if frame is None else Table.of(frame, column) for column, frame in given.items()}


@dataclass(frozen=True)
class Table:
    """Feature columns, one row per id."""

    ids: Ids
    columns: pa.Table

    @classmethod
    def of(cls, frame: Any, column: str) -> Table:
        table = sources.to_arrow(frame)
        if column not in table.column_names:
            raise InputError(
                f"the table of features needs a column '{column}'; it has {', '.join(table.column_names)}."
            )
        if table.num_columns == 1:
            raise InputError(f"the table of features has no column beside '{column}'.")
        rest = table.drop_columns([column]).combine_chunks()
        for name in rest.column_names:
            _kind(name, rest[name].type)
        return cls(Ids(table[column], column), rest)

    def matrix(self, ids: Ids, impute: bool) -> Matrix:
        """Rows in the order of ``ids``. Means and categories are those of the whole table."""
        row = self.ids.encode(ids.values)
        if (row < 0).any() and not impute:
            missing = ids.values.filter(pa.array(row < 0))
            raise InputError(
                f"{plural(len(missing), ids.column)} of the log have no features, for example {show(missing[0])}; "
                "add their rows, or set impute=True."
            )
        parts = [csr_array(np.ones((len(ids), 1)))]
        if (row < 0).any():
            parts.append(csr_array((row < 0).astype(np.float64)[:, None]))
        for name in self.columns.column_names:
            encoded = _encoded(name, self.columns[name].combine_chunks(), impute)
            parts.append(_taken(encoded, row))
        matrix = csr_array(hstack(parts, format="csr"))
        if matrix.shape[1] > MAX_COLUMNS:
            raise InputError(
                f"the features of '{ids.column}' have {matrix.shape[1]:,} numbers and categories, more than "
                f"{MAX_COLUMNS:,}; group rare categories."
            )
        return matrix


def _taken(encoded: Matrix, row: npt.NDArray[Any]) -> Matrix:
    """These rows; zeros, the mean of a number, where there is none."""
    known = np.flatnonzero(row >= 0)
    pick = csr_array((np.ones(len(known)), (known, row[known])), (len(row), encoded.shape[0]))
    return csr_array(pick @ encoded)


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


def _encoded(name: str, values: Any, impute: bool) -> Matrix:
    missing = np.asarray(pc.is_null(values, nan_is_null=True))
    if missing.any() and not impute:
        raise InputError(
            f"the feature '{name}' has {plural(int(missing.sum()), 'missing value')}; fill them in, "
            "or set impute=True."
        )
    encode = {"number": _numbers, "category": _categories, "list": _lists}[_kind(name, values.type)]
    columns = encode(name, values, missing)
    if missing.any():
        columns = hstack([columns, csr_array(missing.astype(np.float64)[:, None])], format="csr")
    return csr_array(columns)


def _numbers(name: str, values: pa.Array, missing: npt.NDArray[np.bool_]) -> Matrix:
    numbers = np.asarray(values.cast(pa.float64(), safe=False).fill_null(np.nan))
    if np.isinf(numbers).any():
        raise InputError(f"the feature '{name}' has infinite values; use finite numbers.")
    known = numbers[~missing]
    center, spread = (float(known.mean()), float(known.std())) if len(known) else (0.0, 0.0)
    standardized = np.where(missing, 0.0, (numbers - center) / (spread or 1.0))
    return csr_array(standardized[:, None])


def _categories(name: str, values: pa.Array, missing: npt.NDArray[np.bool_]) -> Matrix:
    return _indicators(values, np.arange(len(values)), len(values))


def _lists(name: str, values: pa.Array, missing: npt.NDArray[np.bool_]) -> Matrix:
    row = np.asarray(pc.list_parent_indices(values))
    members = _indicators(pc.list_flatten(values), row, len(values))
    counts = np.asarray(members.sum(axis=1)).ravel()
    return csr_array(members.multiply(1.0 / np.maximum(counts, 1.0)[:, None]))


def _indicators(values: pa.Array, row: npt.NDArray[Any], rows: int) -> Matrix:
    """One column per category, in order of their text; a null has none."""
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    text = values.cast(pa.string())
    known = np.flatnonzero(~np.asarray(pc.is_null(text)))
    categories = pc.unique(text.take(pa.array(known)))
    categories = categories.take(pc.array_sort_indices(categories))
    codes = np.asarray(pc.index_in(text.take(pa.array(known)), value_set=categories))
    return csr_array((np.ones(len(known)), (row[known], codes)), (rows, len(categories)))
