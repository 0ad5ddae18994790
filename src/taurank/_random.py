"""Counter-based random numbers (SplitMix64): a number depends on its key and counter alone.

No generator has a state, so any thread, block or machine can draw any number, in any order, to the same bits.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from taurank._jit import compiled, inlined

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_ONE = np.uint64(1)
_HALF = np.uint64(32)
_TO_UNIT = 1.0 / (1 << 53)


class Stream(IntEnum):
    """What an epoch's random numbers are for; one stream each, so that no two uses share a number."""

    USER_BLOCKS = 1
    ITEM_BLOCKS = 2
    NEGATIVES = 3
    DRAWN_SAMPLES = 4
    FOLDING = 5
    USER_GROUPS = 8  # once for a whole fit: which users form a block
    UNIT = 0  # within NEGATIVES: one stream for each unit of an epoch


@inlined
def mix(word: Any) -> Any:
    """SplitMix64's finalizer: a uniform hash of 64 bits."""
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return word ^ (word >> np.uint64(31))


@inlined
def word(key: Any, counter: Any) -> Any:
    """Random word ``counter`` of the stream ``key``."""
    return mix(key + (np.uint64(counter) + _ONE) * _GOLDEN)


@inlined
def uniform(key: Any, counter: Any) -> Any:
    """A uniform number in [0, 1)."""
    return np.float64(word(key, counter) >> np.uint64(11)) * _TO_UNIT


def uniforms(key: np.uint64, counters: npt.NDArray[np.uint64]) -> npt.NDArray[np.float64]:
    """``uniform`` for an array of counters."""
    with np.errstate(over="ignore"):
        words: npt.NDArray[np.uint64] = mix(key + (counters + _ONE) * _GOLDEN)
    return (words >> np.uint64(11)).astype(np.float64) * _TO_UNIT


@inlined
def below(key: Any, counter: Any, bound: Any) -> Any:
    """A uniform integer in 0 … bound − 1 for bounds up to 2³², by multiply and shift of the upper 32 bits.

    The probabilities of two integers differ by at most 2⁻³².
    """
    return ((word(key, counter) >> _HALF) * np.uint64(bound)) >> _HALF


def stream(seed: int, epoch: int, purpose: Stream) -> np.uint64:
    """The key of an independent stream of random numbers."""
    return np.uint64(stream_key(np.uint64(seed), np.uint64(epoch), np.uint64(purpose)))


@compiled
def stream_key(seed: Any, epoch: Any, purpose: Any) -> Any:
    """``stream`` for use inside kernels."""
    key = mix(np.uint64(seed) + _GOLDEN)
    key = mix(key ^ np.uint64(epoch) * _GOLDEN)
    return mix(key + np.uint64(purpose) * _GOLDEN)
