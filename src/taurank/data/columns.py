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

from taurank.errors import InputError, plural, show, together

ID_COLUMNS = ("user_id", "item_id", "time")
RESEARCH_NAMES = {"user_id": "idx_user", "item_id": "idx_item", "time": "idx_time"}
_TRUTH_WORDS = {"true": 1.0, "false": 0.0}

Numbers = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]
Wrong = npt.NDArray[np.bool_]


def not_binary(values: Floats) -> Wrong:
    return np.asarray((values != 0.0) & (values != 1.0))


def not_probability(values: Floats) -> Wrong:
    return ~((values > 0.0) & (values < 1.0))  # true for NaN as well


def not_share(values: Floats) -> Wrong:
    return ~((values >= 0.0) & (values <= 1.0))


def not_finite(values: Floats) -> Wrong:
    return ~np.isfinite(values)


def not_amount(values: Floats) -> Wrong:
    return ~(np.isfinite(values) & (values >= 0.0))


@dataclass(frozen=True)
class ColumnRule:
    """A number column: its name, the type it is stored in, and which of its values are wrong."""

    column: str
    dtype: type[np.generic]
    wrong: Callable[[Floats], Wrong]
    must: str  # "column 'treated' must be …"
    required: bool = True
    nullable: bool = False  # a null means "not recorded" and is stored as NaN


TREATED = ColumnRule("treated", np.int8, not_binary, "0 or 1")
OUTCOME = ColumnRule("outcome", np.int8, not_binary, "0 or 1")
PROPENSITY = ColumnRule(
    "propensity", np.float64, not_probability, "a probability strictly between 0 and 1", required=False, nullable=True
)
ANY_PROPENSITY = replace(PROPENSITY, wrong=not_share)  # where nothing could have been recommended
VALUE = ColumnRule("value", np.float64, not_finite, "a finite number")
OUTCOME_VALUE = ColumnRule("value", np.float64, not_amount, "a finite number ≥ 0", required=False)


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

    def add(self, column: str, must: str, array: pa.Array, wrong: Wrong) -> None:
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
            str(wrong_values(column, must, count, example)) if must else self._nulls(column, count, example)
            for (column, must), (count, example) in kinds
        ]

    def _nulls(self, column: str, count: int, example: str) -> str:
        return f"column '{column}' has {plural(count, 'null value')}, the first in row {example}; {self.advice}."

    def refuse(self) -> None:
        """Raise an error about all kinds of wrong rows, if there are any."""
        if self:
            raise together(self.sentences())


def wrong_values(column: str, must: str, count: int, example: str) -> InputError:
    """The sentence about values that are not what they must be."""
    return InputError(
        f"column '{column}' must be {must}; {plural(count, 'row')} {'is' if count == 1 else 'are'} not, "
        f"for example {example}."
    )


class NumberColumn:
    """A column of numbers, checked by its rule and stored in its rule's type."""

    def __init__(self, rule: ColumnRule, wrong_rows: WrongRows) -> None:
        self.rule, self.wrong_rows = rule, wrong_rows
        self.n_rows = 0
        self.chunks: list[Numbers] = []

    def add(self, array: pa.Array, text: bool) -> None:
        """Take one batch of the column; ``text`` says that it comes from a CSV."""
        array = without_dictionary(array)
        present = np.asarray(array.is_valid(), dtype=bool)
        if not self.rule.nullable:
            self.wrong_rows.add_nulls(self.rule.column, array, self.n_rows)
        self.n_rows += len(array)
        array = array.drop_null() if array.null_count else array
        values = to_numbers(array, self.rule.column, text)
        wrong = self.rule.wrong(values)
        if wrong.any():
            self.wrong_rows.add(self.rule.column, self.rule.must, array, wrong)
            values = np.where(wrong, 0.0, values)
        if self.rule.nullable and len(values) < len(present):
            values = spread(values, present)
        self.chunks.append(values.astype(self.rule.dtype, copy=False))

    def finish(self) -> Numbers:
        values = np.concatenate(self.chunks)
        self.chunks.clear()
        return values


def spread(values: Floats, present: npt.NDArray[np.bool_]) -> Floats:
    """The values at the rows where one is present, NaN at the others."""
    rows = np.full(len(present), np.nan)
    rows[present] = values
    return rows


def without_dictionary(array: pa.Array) -> pa.Array:
    """The values themselves; only then are the nulls of a dictionary nulls of the column."""
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array


def to_numbers(array: pa.Array, column: str, text: bool) -> Floats:
    """Any number column as float64; text that is not a number becomes NaN where ``text`` allows text at all."""
    if text:
        return _parse(array)
    kind = array.type
    if pa.types.is_temporal(kind) or pa.types.is_string(kind):
        raise InputError(f"column '{column}' has type {kind}; it must have numbers.")
    try:
        if pa.types.is_boolean(kind):
            array = array.cast(pa.int8())
        return np.asarray(array.cast(pa.float64(), safe=False), dtype=np.float64)
    except (pa.ArrowException, ValueError, TypeError) as error:
        raise InputError(f"column '{column}' has type {kind}; it must have numbers.") from error


def _parse(array: pa.Array) -> Floats:
    try:
        return np.asarray(array.cast(pa.float64()), dtype=np.float64)
    except pa.ArrowInvalid:
        encoded = array.dictionary_encode()
        parsed = np.array([_parse_word(word.lower()) for word in encoded.dictionary.to_pylist()], np.float64)
        return np.asarray(parsed[np.asarray(encoded.indices)])


def _parse_word(word: str) -> float:
    if word in _TRUTH_WORDS:
        return _TRUTH_WORDS[word]
    try:
        return float(word)
    except ValueError:
        return float("nan")
