"""Checks of arguments: whatever is wrong becomes one sentence."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from taurank.errors import InputError

RandomState = int | np.random.Generator | np.random.SeedSequence | None


def at_least(name: str, value: Any, least: float, whole: bool = False, most: float = math.inf) -> None:
    """Refuse a number that is out of its range, or no number."""
    right = isinstance(value, (int, np.integer) if whole else (int, float, np.integer, np.floating))
    if not right or isinstance(value, bool) or not (least <= value <= most) or not math.isfinite(value):
        kind = "a whole number" if whole else "a number"
        upto = "" if math.isinf(most) else f" and at most {most:g}"
        raise InputError(f"{name} must be {kind} of at least {least:g}{upto}, not {value!r}.")


def whole(name: str, value: Any, least: int = 1) -> int:
    """A whole number of at least ``least``."""
    at_least(name, value, least, whole=True)
    return int(value)


def generator(random_state: RandomState) -> np.random.Generator:
    """A random generator from a seed, a Generator (used as it is) or None (a new one)."""
    if random_state is not None and not isinstance(random_state, (np.random.Generator, np.random.SeedSequence)):
        at_least("random_state", random_state, 0, whole=True)
    return np.random.default_rng(random_state)


def of_kind(name: str, value: Any, kind: type, how: str) -> None:
    """Refuse an argument of another kind, and say how to make the right one."""
    if not isinstance(value, kind):
        raise InputError(f"{name} must be a {kind.__name__}, not {type(value).__name__}; make one with {how}.")
