"""Checks of arguments: anything wrong becomes one sentence."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from taurank.errors import InputError

RandomState = int | np.random.Generator | np.random.SeedSequence | None


def check_number(name: str, value: Any, minimum: float, maximum: float = math.inf, *, integer: bool = False) -> None:
    """Refuse anything but a finite number between ``minimum`` and ``maximum``."""
    kinds = (int, np.integer) if integer else (int, float, np.integer, np.floating)
    valid = isinstance(value, kinds) and not isinstance(value, bool)
    if not valid or not (minimum <= value <= maximum) or not math.isfinite(value):
        kind = "an integer" if integer else "a number"
        bounds = f"≥ {minimum:g}" if math.isinf(maximum) else f"between {minimum:g} and {maximum:g}"
        raise InputError(f"{name} must be {kind} {bounds}, got {value!r}.")


def check_integer(name: str, value: Any, minimum: int = 1) -> int:
    """An integer of at least ``minimum``."""
    check_number(name, value, minimum, integer=True)
    return int(value)


def generator(random_state: RandomState) -> np.random.Generator:
    """A random generator from a seed, a Generator (used as it is) or None (a new one)."""
    if random_state is not None and not isinstance(random_state, (np.random.Generator, np.random.SeedSequence)):
        check_number("random_state", random_state, 0, integer=True)
    return np.random.default_rng(random_state)


def check_instance(name: str, value: Any, kind: type, how: str) -> None:
    """Refuse an argument of another type, and say how to make the right one."""
    if not isinstance(value, kind):
        raise InputError(f"{name} must be a {kind.__name__}, not {type(value).__name__}; make one with {how}.")
