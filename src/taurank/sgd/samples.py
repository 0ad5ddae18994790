"""What a kernel visits: samples, the positives that a pass is planned from, and the baskets negatives avoid."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from taurank._types import Codes, Floats32, Longs

SAMPLE = np.dtype([("user", "i4"), ("item", "i4"), ("other", "i4"), ("value", "f4")])
"""A pair or a single item.

A pair compares item i with ``other``, j; ``value`` is its weight, whose sign says which of the two should rank
higher. Between the planning of a pass and the draw of its negatives, ``other`` holds the number of the basket.

A single item moves σ(p_u · q_item) toward its target, ``value``. ``item`` and ``other`` are rows of the item factors:
with two item tables, row i + n_items is item i in the second one. ``other`` is read only where rows are tied."""

Samples = npt.NDArray[Any]  # of SAMPLE
TRIES = 32  # of a rejection sampler, before it enumerates what is left (or, for new users, skips the sample)


class Positives(NamedTuple):
    """What a pass visits, user by user: user u owns the entries start[u] … start[u + 1] − 1."""

    start: Longs  # users + 1
    item: Codes
    weight: Floats32
    in_baskets: bool
    basket: Codes  # the basket of every entry; of length 0 unless in_baskets


class Baskets(NamedTuple):
    """Sorted items per basket (what one user bought at one time): negatives to avoid."""

    start: Longs  # baskets + 1
    item: Codes


NO_BASKETS = Baskets(np.zeros(1, np.int64), np.zeros(0, np.int32))
