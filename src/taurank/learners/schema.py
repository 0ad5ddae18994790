"""What the arrays of a file must look like, checked before anything is computed with them.

A checksum shows that a file is whole, not that its parts fit together. Each learner declares its arrays: type,
shape in terms of the catalogue and the hyper-parameters, and which values may occur.
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
    Floating-point values must be finite and integers ≥ 0; with ``below`` they are positions in that axis;
    ``offsets_of`` names the axis that they divide into stretches, from 0 to its length.
    """

    dtype: str
    shape: tuple[str | int, ...]
    below: str | None = None
    offsets_of: str | None = None


USER_FACTORS = Array("float32", ("users", "factors"))
ITEM_FACTORS = Array("float32", ("items", "factors"))


def check_arrays(arrays: Mapping[str, Values], schema: Mapping[str, Array], lengths: Mapping[str, Any]) -> None:
    """Raise ValueError with a short reason unless ``arrays`` are exactly those of the schema."""
    if missing := sorted(schema.keys() - arrays.keys()):
        raise ValueError(f"the array '{missing[0]}' is missing")
    if extra := sorted(arrays.keys() - schema.keys()):
        raise ValueError(f"the array '{extra[0]}' does not belong to it")
    sizes = dict(lengths)
    for name, declared in schema.items():
        _check_shape(name, arrays[name], declared, sizes)
    for name, declared in schema.items():
        _check_values(name, arrays[name], declared, sizes)


def _check_shape(name: str, array: Values, declared: Array, sizes: dict[str, Any]) -> None:
    if array.dtype != np.dtype(declared.dtype):
        raise ValueError(f"the array '{name}' is {array.dtype}, not {declared.dtype}")
    if array.ndim == len(declared.shape):
        expected = tuple(_length(axis, found, sizes) for axis, found in zip(declared.shape, array.shape, strict=True))
        if array.shape == expected:
            return
    axes = " × ".join(str(axis) for axis in declared.shape)
    raise ValueError(f"the array '{name}' has the shape {array.shape}, which is not {axes}")


def _length(axis: str | int, found: int, sizes: dict[str, Any]) -> int:
    if isinstance(axis, int):
        return axis
    word, _, one = axis.partition(" + ")
    return int(sizes.setdefault(word, found - int(one or 0))) + int(one or 0)


def _check_values(name: str, array: Values, declared: Array, sizes: Mapping[str, int]) -> None:
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise ValueError(f"the array '{name}' has values that are not finite")
    if array.dtype.kind == "i" and array.size and int(array.min()) < 0:
        raise ValueError(f"the array '{name}' has negative values")
    if declared.below and array.size and int(array.max()) >= sizes[declared.below]:
        raise ValueError(f"the array '{name}' has positions beyond the {sizes[declared.below]:,} {declared.below}")
    if declared.offsets_of:
        rises = bool((array[1:] >= array[:-1]).all())
        if not rises or array[0] != 0 or array[-1] != sizes[declared.offsets_of]:
            raise ValueError(f"the array '{name}' does not divide its {sizes[declared.offsets_of]:,} entries")
