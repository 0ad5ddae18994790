"""The negatives of a pass: one random item j of the unit's item block for every planned sample."""

from __future__ import annotations

from typing import Any

import numpy as np

from taurank._jit import compiled
from taurank._random import below
from taurank._types import Codes
from taurank.sgd.samples import TRIES, Baskets, Samples


@compiled
def draw_others(samples: Samples, items: Codes, key: Any) -> None:
    """j uniform over ``items`` without i: where the draw hits i, the last item replaces it.

    The draw itself never returns the last item, so all items but i are equally likely."""
    bound = len(items) - 1
    for n in range(len(samples)):
        j = items[below(key, n, bound)]
        samples[n].other = items[bound] if j == samples[n].item else j


@compiled
def draw_outside(samples: Samples, baskets: Baskets, items: Codes, key: Any) -> int:
    """j uniform over ``items`` outside the sample's basket; where there is none, value 0. Returns their number.

    Where random items keep hitting the basket, those outside it are listed. The samples of a basket follow each
    other, so that one list serves them all."""
    outside, n_outside, listed = np.empty_like(items), 0, -1
    skipped = 0
    for n in range(len(samples)):
        i, basket = samples[n].item, samples[n].other
        bought = baskets.item[baskets.start[basket] : baskets.start[basket + 1]]
        j = np.int32(-1)
        if basket != listed:
            j = _try_outside(i, bought, items, key, n * TRIES)
        if j < 0:
            if basket != listed:
                n_outside, listed = _list_outside(bought, items, outside), basket
            j = _pick(outside[:n_outside], i, key, n * TRIES)
        if j < 0:
            skipped += 1
            samples[n].value = 0
            j = items[0] if items[0] != i else items[1]
        samples[n].other = j
    return skipped


@compiled
def draw_negatives(samples: Samples, in_baskets: bool, baskets: Baskets, items: Codes, key: Any) -> int:
    """j for every sample, outside its basket if there are baskets; returns how many found none."""
    if in_baskets:
        return draw_outside(samples, baskets, items, key)
    draw_others(samples, items, key)
    return 0


@compiled
def _try_outside(i: int, bought: Codes, items: Codes, key: Any, counter: int) -> Any:
    for attempt in range(TRIES):
        j = items[below(key, counter + attempt, len(items))]
        if j != i and not contains(bought, j):
            return j
    return np.int32(-1)


@compiled
def _list_outside(bought: Codes, items: Codes, outside: Codes) -> int:
    n_outside = 0
    for j in items:
        if not contains(bought, j):
            outside[n_outside] = j
            n_outside += 1
    return n_outside


@compiled
def _pick(outside: Codes, i: int, key: Any, counter: int) -> Any:
    """A uniform item of the list other than i, or −1."""
    last = len(outside) - 1
    if last < 0 or (last == 0 and outside[0] == i):
        return np.int32(-1)
    j = outside[below(key, counter, last + 1)]
    if j != i:
        return j
    j = outside[below(key, counter + 1, last)]  # i, too, is on the list: its entry represents the last item
    return outside[last] if j == i else j


@compiled
def contains(bought: Codes, item: int) -> bool:
    position = np.searchsorted(bought, item)
    return bool(position < len(bought) and bought[position] == item)
