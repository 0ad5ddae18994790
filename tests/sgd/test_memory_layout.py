"""Bits do not depend on where arrays lie in memory: compiled loops check how close they are before using vectors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from taurank._jit import compiled
from taurank.sgd.rows import pair_step, point_step, tied_step

f32 = np.float32
WIDTHS = [1, 4, 7, 8, 12, 16, 20, 31, 32, 64, 127, 128, 200]


@compiled
def steps(kind: int, users: Any, items: Any) -> float:
    """A few steps of each kind whose rows include the last user and the first item."""
    total, last = 0.0, np.uint64(len(users) - 1)
    zero, one, two = np.uint64(0), np.uint64(1), np.uint64(2)
    for _ in range(3):
        if kind == 0:
            total += pair_step(users, items, last, zero, one, last, two, one, f32(0.1), f32(0.99))
            total += pair_step(users, items, last, zero, one, last, two, np.uint64(3), f32(0.1), f32(0.99))
        elif kind == 1:
            total += point_step(users, items, last, zero, zero, zero, f32(0.1), f32(0.99))
            total += point_step(users, items, last, zero, last, one, f32(0.1), f32(0.99))
        else:
            total += tied_step(users, items, last, zero, one, zero, zero, f32(0.1), f32(0.99), f32(0.02))
            total += tied_step(users, items, last, zero, one, last, two, f32(0.1), f32(0.99), f32(0.02))
    return total


def layouts(users: Any, items: Any) -> Iterator[tuple[Any, Any]]:
    """Both tables in one buffer, one right after the other or a few floats apart, in both orders."""
    for first, second in ((users, items), (items, users)):
        for gap in range(0, 80):
            buffer = np.zeros(first.size + second.size + gap, f32)
            a, b = buffer[: first.size].reshape(first.shape), buffer[first.size + gap :].reshape(second.shape)
            a[:], b[:] = first, second
            yield (a, b) if first is users else (b, a)


@pytest.mark.parametrize("kind", [0, 1, 2], ids=["pair", "point", "tied"])
@pytest.mark.parametrize("width", WIDTHS)
def test_training_steps_have_the_same_bits_in_any_memory_layout(kind: int, width: int) -> None:
    random = np.random.default_rng(width)
    users, items = (random.normal(size=(4, width)).astype(f32) for _ in range(2))
    results = {
        (steps(kind, u, i), u.tobytes(), i.tobytes()) for u, i in layouts(users, items)
    }  # the calls come first: they change u and i
    assert len(results) == 1
