"""What the arrays of a saved file must look like: types, shapes and values, checked before anything uses them.

A checksum shows that a file is as it was written, not that its parts fit together or that taurank wrote it. Every
kind of file declares its arrays, so that a crafted file is refused instead of read out of bounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[Any]


@dataclass(frozen=True)
class Array:
    """The declaration of one stored array.

    An axis is a number, ``"users"``, ``"items"``, the name of a hyper-parameter such as ``"factors"``, or any
    other word for a length that is free but the same wherever the word occurs; ``"users + 1"`` is one more.
    Floating-point values must be finite and integers ≥ 0; ``minimum`` and ``maximum`` limit them further; with
    ``below`` they are positions in that axis; ``offsets_of`` names the axis that they divide into stretches, from 0
    to its length.
    """

    dtype: str
    shape: tuple[str | int, ...]
    below: str | None = None
    offsets_of: str | None = None
    minimum: float | None = None
    maximum: float | None = None
    optional: bool = False


def check_arrays(arrays: Mapping[str, Values], schema: Mapping[str, Array], lengths: Mapping[str, Any]) -> None:
    """Raise ValueError with a short reason unless ``arrays`` are exactly those of the schema.

    ``lengths`` has the axes that are known; another is taken from the first array that has it.
    """
    if missing := sorted(name for name, declared in schema.items() if name not in arrays and not declared.optional):
        raise ValueError(f"the array '{missing[0]}' is missing")
    if unknown := sorted(arrays.keys() - schema.keys()):
        raise ValueError(f"the array '{unknown[0]}' is unknown")
    sizes = dict(lengths)
    for problem in (_shape_problem, _value_problem):
        for name, declared in schema.items():
            if name in arrays and (text := problem(arrays[name], declared, sizes)):
                raise ValueError(f"the array '{name}' {text}")


def _shape_problem(array: Values, declared: Array, sizes: dict[str, Any]) -> str:
    if array.dtype != np.dtype(declared.dtype):
        return f"has type {array.dtype}, expected {declared.dtype}"
    if array.ndim != len(declared.shape):
        return f"has shape {array.shape}, expected {' × '.join(map(str, declared.shape))}"
    pairs = zip(declared.shape, array.shape, strict=True)
    expected = tuple(_length(axis, length, sizes) for axis, length in pairs)
    return "" if array.shape == expected else f"has shape {array.shape}, expected {expected}"


def _length(axis: str | int, length: int, sizes: dict[str, Any]) -> int:
    """The length that an axis must have; a free axis has the ``length`` it is first seen with."""
    if isinstance(axis, int):
        return axis
    word, _, more = axis.partition(" + ")
    return int(sizes.setdefault(word, length - int(more or 0))) + int(more or 0)


def _value_problem(array: Values, declared: Array, sizes: Mapping[str, int]) -> str:
    if declared.offsets_of and not _divides(array, sizes[declared.offsets_of]):
        return f"does not divide its {sizes[declared.offsets_of]:,} entries"
    if not array.size:
        return ""
    low, high = array.min(), array.max()
    if array.dtype.kind == "f" and not (np.isfinite(low) and np.isfinite(high)):
        return "has values that are not finite"
    least = 0 if array.dtype.kind == "i" and declared.minimum is None else declared.minimum
    most = sizes[declared.below] - 1 if declared.below else declared.maximum
    if (least is not None and low < least) or (most is not None and high > most):
        return f"has values out of range, from {low} to {high}"
    return ""


def _divides(offsets: Values, length: int) -> bool:
    return bool((offsets[1:] >= offsets[:-1]).all()) and offsets[0] == 0 and offsets[-1] == length
