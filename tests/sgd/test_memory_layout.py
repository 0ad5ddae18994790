"""Bits do not depend on where arrays lie in memory: compiled loops check how close they are before using vectors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from taurank._jit import compiled
from taurank.sgd.kernels import StepParams, pair_params, point_params, turn
from taurank.sgd.strata import SAMPLE, Samples

f32 = np.float32
WIDTHS = [1, 4, 7, 8, 12, 16, 20, 31, 32, 64, 127, 128, 200]


# the last user and the first item, before one that shares a row with it and before one that does not
BEFORE_AND_AFTER = [((3, 0, 1), (3, 2, 1)), ((3, 0, 1), (3, 2, 3)), ((3, 0, 1), (0, 0, 1)), ((3, 0, 1), (3, 1, 2))]
KINDS = {"pair": pair_params(0.1, 0.1), "point": point_params(0.1, 0.1), "tied": point_params(0.1, 0.1, 0.2)}


@compiled
def steps(users: Any, items: Any, samples: Samples, params: StepParams) -> float:
    total = 0.0
    for n in range(0, len(samples), 2):
        total += turn(users, items, samples[n], samples[n + 1], f32(0.3), params, params.loss, params.tie)
    return total


def layouts(users: Any, items: Any) -> Iterator[tuple[Any, Any]]:
    """Both tables in one buffer, one right after the other or a few floats apart, in both orders."""
    for first, second in ((users, items), (items, users)):
        for gap in range(0, 80):
            buffer = np.zeros(first.size + second.size + gap, f32)
            a, b = buffer[: first.size].reshape(first.shape), buffer[first.size + gap :].reshape(second.shape)
            a[:], b[:] = first, second
            yield (a, b) if first is users else (b, a)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("width", WIDTHS)
def test_training_steps_have_the_same_bits_in_any_memory_layout(kind: str, width: int) -> None:
    random = np.random.default_rng(width)
    users, items = (random.normal(size=(4, width)).astype(f32) for _ in range(2))
    samples = np.array([(*sample, 0.7) for both in 3 * BEFORE_AND_AFTER for sample in both], SAMPLE)
    results = {
        (steps(u, i, samples, KINDS[kind]), u.tobytes(), i.tobytes()) for u, i in layouts(users, items)
    }  # the calls come first: they change u and i
    assert len(results) == 1
