"""What arrays of a saved file must look like: types, shapes and ranges, checked before anything uses them.

A checksum says that a file is as it was written, not that it was written by taurank. Every kind of file
declares its arrays, so that a crafted file is refused instead of read out of bounds.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from taurank.errors import InputError


@dataclass(frozen=True)
class ArraySpec:
    """One array: its type, and its shape in numbers and in named sizes such as "users" and "items".

    ``minimum`` and ``maximum`` are the range of its values; ``below`` names a size that all values stay
    below (an index). Floating-point values are finite.
    """

    dtype: npt.DTypeLike
    shape: tuple[int | str, ...]
    minimum: float | None = None
    maximum: float | None = None
    below: str | None = None
    optional: bool = False


def check_arrays(
    path: str | os.PathLike[str],
    arrays: Mapping[str, npt.NDArray[Any]],
    specs: Mapping[str, ArraySpec],
    sizes: dict[str, int],
) -> None:
    """Refuse a file whose arrays are not exactly those of ``specs``.

    ``sizes`` has the sizes that are known; one that is not is taken from the first array that has it.
    """
    needed = {name for name, spec in specs.items() if not spec.optional}
    if not needed <= set(arrays) <= set(specs):
        odd = sorted(needed - set(arrays)) or sorted(set(arrays) - set(specs))
        raise _inconsistent(path, f"array '{odd[0]}' is {'missing' if odd[0] in specs else 'unknown'}")
    for name, array in arrays.items():
        problem = _problem(array, specs[name], sizes)
        if problem:
            raise _inconsistent(path, f"array '{name}' {problem}")


def _problem(array: npt.NDArray[Any], spec: ArraySpec, sizes: dict[str, int]) -> str:
    if array.dtype != np.dtype(spec.dtype):
        return f"has type {array.dtype}, expected {np.dtype(spec.dtype)}"
    shape = _shape(array, spec, sizes)
    if array.shape != shape:
        return f"has shape {array.shape}, expected {shape}"
    if not array.size:
        return ""
    low, high = array.min(), array.max()
    if array.dtype.kind == "f" and not (np.isfinite(low) and np.isfinite(high)):
        return "has values that are not finite"
    largest = sizes[spec.below] - 1 if spec.below else spec.maximum
    if (spec.minimum is not None and low < spec.minimum) or (largest is not None and high > largest):
        return f"has values out of range, from {low} to {high}"
    return ""


def _shape(array: npt.NDArray[Any], spec: ArraySpec, sizes: dict[str, int]) -> tuple[int, ...]:
    if array.ndim == len(spec.shape):
        for length, size in zip(array.shape, spec.shape, strict=True):
            if isinstance(size, str):
                sizes.setdefault(size, length)
    return tuple(sizes.get(size, -1) if isinstance(size, str) else size for size in spec.shape)


def _inconsistent(path: str | os.PathLike[str], problem: str) -> InputError:
    return InputError(f"'{os.fsdecode(path)}' is not a valid taurank file: {problem}; save it again.")
