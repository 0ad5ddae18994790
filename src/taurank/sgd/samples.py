"""What a kernel visits: samples, the positives they are planned from, and the baskets negatives avoid."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int32]
Longs = NDArray[np.int64]
Floats = NDArray[np.float32]
Samples = NDArray[Any]  # of SAMPLE

SAMPLE = np.dtype([("user", "i4"), ("item", "i4"), ("other", "i4"), ("weight", "f4")])
"""A row for a kernel. Pairwise: (u, i, j, signed weight); while planned, `other` is the basket.
Pointwise: (u, i, the row tied to i, target). One record, so that sorting moves it in one piece."""


class Positives(NamedTuple):
    """What a pass visits, user by user: user u owns the entries start[u] .. start[u + 1]."""

    start: Longs  # users + 1
    item: Ints
    weight: Floats
    basket: Ints  # which basket the entry lies in, or empty if negatives may be anything


class Baskets(NamedTuple):
    """Sorted items per basket (what one user bought at one time): negatives to avoid."""

    start: Longs  # baskets + 1
    item: Ints
