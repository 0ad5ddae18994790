"""The columns of a table of cells: their names, the rules of the number columns, and the count of wrong rows.

Wrong rows are counted, and the first of them is stored as an example, until all rows have been read: so a
message can say how many there are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from taurank._types import Floats, Mask
from taurank.errors import InputError, plural, show, together

ID_COLUMNS = ("user_id", "item_id", "time")
RESEARCH_NAMES = {"user_id": "idx_user", "item_id": "idx_item", "time": "idx_time"}

Numbers = npt.NDArray[Any]


@dataclass(frozen=True)
class ColumnRule:
    """A number column: its name, the type it is stored in, and which of its values are right."""

    column: str
    dtype: type[np.generic]
    is_right: Callable[[Floats], Mask]  # false for NaN
    must: str  # "column 'treated' must be …"
    required: bool = True
    nullable: bool = False  # a null means "not recorded" and is stored as NaN

    def wrong(self, values: Floats) -> Mask:
        return ~np.asarray(self.is_right(values))

    def error(self, count: int, example: str) -> InputError:
        """The sentence about values that are not what they must be."""
        return InputError(_wrong_values(self.column, self.must, count, example))

    def read(self, array: pa.Array, wrong_rows: WrongRows, rows_before: int, text: bool, label: str = "") -> Floats:
        """The numbers of a batch that begins after ``rows_before`` rows, NaN where a null is allowed.

        What is wrong is counted; ``text`` says that the batch comes from a CSV, ``label`` what messages call the
        column.
        """
        label = label or self.column
        array = without_dictionary(array)
        if not self.nullable:
            wrong_rows.add_nulls(label, array, rows_before)
        known = array.drop_null() if array.null_count else array
        values = to_numbers(known, label, text)
        wrong = self.wrong(values)
        if wrong.any():
            wrong_rows.add(label, self.must, known, wrong)
            values = np.where(wrong, 0.0, values)
        if len(known) < len(array):
            rows = np.full(len(array), np.nan if self.nullable else 0.0)
            rows[np.asarray(array.is_valid(), dtype=bool)] = values
            return rows
        return values


TREATED = ColumnRule("treated", np.int8, lambda values: (values == 0.0) | (values == 1.0), "0 or 1")
OUTCOME = replace(TREATED, column="outcome")
PROPENSITY = ColumnRule(
    "propensity", np.float64, lambda values: (values > 0.0) & (values < 1.0),
    "a probability strictly between 0 and 1", required=False, nullable=True,
)  # fmt: skip
ANY_PROPENSITY = replace(  # where nothing could have been recommended
    PROPENSITY, is_right=lambda values: (values >= 0.0) & (values <= 1.0)
)
VALUE = ColumnRule("value", np.float64, np.isfinite, "a finite number")
OUTCOME_VALUE = ColumnRule(
    "value", np.float64, lambda values: np.isfinite(values) & (values >= 0.0), "a finite number ≥ 0", required=False
)


class WrongRows:
    """The wrong rows of a table: how many of each kind, and the first of them."""

    def __init__(self, advice: str = "fill or drop these rows") -> None:
        self.advice = advice  # about nulls
        self._kinds: dict[tuple[str, str], tuple[int, str]] = {}

    def __bool__(self) -> bool:
        return bool(self._kinds)

    def add_nulls(self, column: str, array: pa.Array, rows_before: int) -> None:
        """Count the nulls of a batch that begins after ``rows_before`` rows."""
        if array.null_count:
            first = int(np.asarray(array.is_null(), dtype=bool).argmax())
            self._add(column, "", array.null_count, f"{rows_before + first + 1:,}")

    def add(self, column: str, must: str, array: pa.Array, wrong: Mask) -> None:
        """Count the values of a batch that are not what they must be."""
        if wrong.any():
            self._add(column, must, int(np.count_nonzero(wrong)), show(array[int(wrong.argmax())]))

    def _add(self, column: str, must: str, count: int, example: str) -> None:
        before, first = self._kinds.get((column, must), (0, example))
        self._kinds[column, must] = (before + count, first)

    def sentences(self) -> list[str]:
        """What is wrong, one sentence for each kind of wrong row; nulls come first."""
        kinds = sorted(self._kinds.items(), key=lambda kind: kind[0][1] != "")
        return [
            _wrong_values(column, must, count, example)
            if must
            else f"column '{column}' has {plural(count, 'null value')}, the first in row {example}; {self.advice}."
            for (column, must), (count, example) in kinds
        ]

    def check(self) -> None:
        """Raise an error about all kinds of wrong rows, if there are any."""
        if self:
            raise together(self.sentences())


def _wrong_values(column: str, must: str, count: int, example: str) -> str:
    verb = "is" if count == 1 else "are"
    return f"column '{column}' must be {must}; {plural(count, 'row')} {verb} not, for example {example}."


def without_dictionary(array: pa.Array) -> pa.Array:
    """The values themselves; only then are the nulls of a dictionary nulls of the column."""
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array


def to_numbers(array: pa.Array, column: str, text: bool) -> Floats:
    """Any number column as float64; text that is not a number becomes NaN where ``text`` allows text at all."""
    kind = array.type
    if not text and (pa.types.is_temporal(kind) or pa.types.is_string(kind)):
        raise InputError(f"column '{column}' has type {kind}; it must have numbers.")
    try:
        array = array.cast(pa.int8()) if pa.types.is_boolean(kind) else array
        return np.asarray(array.cast(pa.float64(), safe=False), dtype=np.float64)
    except (pa.ArrowException, ValueError, TypeError) as error:
        if not text:
            raise InputError(f"column '{column}' has type {kind}; it must have numbers.") from error
    encoded = array.dictionary_encode()
    parsed = np.array([_parse(word.lower()) for word in encoded.dictionary.to_pylist()], np.float64)
    return np.asarray(parsed[np.asarray(encoded.indices)])


def _parse(word: str) -> float:
    try:
        return float({"true": "1", "false": "0"}.get(word, word))
    except ValueError:
        return float("nan")
