"""Checks of arguments: anything wrong becomes one sentence."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from taurank.errors import InputError, show

RandomState = int | np.random.Generator | np.random.SeedSequence | None

LARGEST = 2**63 - 1  # a count beyond this fits into no array


def check_number(name: str, value: Any, minimum: float, maximum: float = math.inf, *, integer: bool = False) -> None:
    """Refuse anything but a finite number between ``minimum`` and ``maximum``."""
    kinds = (int, np.integer) if integer else (int, float, np.integer, np.floating)
    valid = isinstance(value, kinds) and not isinstance(value, bool)
    largest = min(maximum, LARGEST if integer else sys.float_info.max)
    if not valid or not minimum <= value <= largest:
        kind = "an integer" if integer else "a number"
        bounds = f"≥ {minimum:g}" if math.isinf(maximum) else f"between {minimum:g} and {maximum:g}"
        raise InputError(f"{name} must be {kind} {bounds}, got {show(value)}.")


@dataclass(frozen=True)
class Range:
    """The numbers that a parameter may be."""

    minimum: float
    maximum: float = math.inf
    integer: bool = False
    above: bool = False  # the minimum itself is refused
    optional: bool = False  # None is allowed

    def check(self, name: str, value: Any) -> None:
        if value is None and self.optional:
            return
        check_number(name, value, self.minimum, self.maximum, integer=self.integer)
        if self.above and value == self.minimum:
            raise InputError(f"{name} must be larger than {self.minimum:g}.")


Allowed = Mapping[str, Range | tuple[str, ...]]
"""What each parameter may be: a number of a range, or one of a few words."""


def check_parameters(owner: Any, allowed: Allowed) -> None:
    """Refuse attributes of ``owner`` that are not allowed."""
    for name, values in allowed.items():
        if isinstance(values, Range):
            values.check(name, getattr(owner, name))
        else:
            check_choice(name, getattr(owner, name), values)


def check_integer(name: str, value: Any, minimum: int = 1, maximum: float = math.inf) -> int:
    """An integer of at least ``minimum``."""
    check_number(name, value, minimum, maximum, integer=True)
    return int(value)


def check_choice(name: str, value: Any, choices: Iterable[str]) -> str:
    """One of a few words."""
    known = list(choices)
    if not isinstance(value, str) or value not in known:
        raise InputError(f"{name} must be one of {', '.join(map(repr, known))}, got {show(value)}.")
    return value


def generator(random_state: RandomState) -> np.random.Generator:
    """A random generator from a seed, a Generator (used as it is) or None (a new one)."""
    if random_state is not None and not isinstance(random_state, (np.random.Generator, np.random.SeedSequence)):
        valid = isinstance(random_state, (int, np.integer)) and not isinstance(random_state, bool)
        if not valid or random_state < 0:  # of any size: SeedSequence takes all its bits
            raise InputError(f"random_state must be an integer ≥ 0, a Generator or None, got {show(random_state)}.")
    return np.random.default_rng(random_state)


def check_instance(name: str, value: Any, kind: type, how: str) -> None:
    """Refuse an argument of another type, and say how to make the right one."""
    if not isinstance(value, kind):
        raise InputError(f"{name} must be a {kind.__name__}, got a {type(value).__name__}; make one with {how}.")


def check_positions(name: str, positions: Any, size: int) -> npt.NDArray[Any]:
    """Integers that are safe to index ``size`` things with."""
    array = np.asarray(positions)
    if array.size and array.dtype.kind not in "iu":
        raise InputError(f"{name} positions must be integers, got {array.dtype}.")
    wrong = array[(array < 0) | (array >= size)]
    if len(wrong):
        raise InputError(
            f"{name} positions must be between 0 and {size - 1}; {len(wrong):,} are not, for example {wrong[0]}."
        )
    return array
