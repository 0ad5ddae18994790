"""The negatives of a pass: one random item j for every planned sample."""

from __future__ import annotations

from typing import Any

import numpy as np

from taurank._jit import compiled
from taurank._random import below, stream_key
from taurank._types import Codes
from taurank.sgd.strata import SAMPLE, TRIES, Baskets, Positives, Samples


@compiled
def draw_negatives(samples: Samples, baskets: Baskets | None, items: Codes, key: Any) -> int:
    """j uniform over the unit's ``items`` without i; with baskets, outside that of the sample, or else value 0.

    Returns how many samples found none."""
    if baskets is not None:
        return _draw_outside(samples, baskets, items, key)
    bound = len(items) - 1
    for n in range(len(samples)):  # the draw leaves out the last item, which replaces i where the draw hits it
        j = items[below(key, n, bound)]
        samples[n].other = items[bound] if j == samples[n].item else j
    return 0


def draw_for_users(positives: Positives, n_items: int, key: np.uint64) -> Samples:
    """The positives of new users, each against a uniform item other than i (outside its basket, if there are any).

    The random numbers of a positive depend on its place among those of its user. Where nothing was found in several
    tries, the sample is left out.
    """
    samples = np.empty(len(positives.item), SAMPLE)
    samples["user"] = np.repeat(np.arange(len(positives.start) - 1), np.diff(positives.start))
    samples["item"], samples["value"] = positives.item, positives.weight
    _draw_for_users(samples, positives, positives.baskets, n_items, key)
    return samples[samples["other"] >= 0]


@compiled
def _draw_outside(samples: Samples, baskets: Baskets, items: Codes, key: Any) -> int:
    """Where random items keep hitting the basket, those outside it are listed. The samples of a basket follow each
    other, so that one list serves them all."""
    start, item_of, outside = baskets.start, baskets.item, np.empty_like(items)
    n_outside, listed, skipped = 0, -1, 0
    for n in range(len(samples)):
        i, basket = samples[n].item, samples[n].other
        bought = item_of[start[basket] : start[basket + 1]]
        j = np.int32(-1)
        if basket != listed:
            for attempt in range(TRIES):
                j = items[below(key, n * TRIES + attempt, len(items))]
                if j != i and not _contains(bought, j):
                    break
                j = np.int32(-1)
        if j < 0:
            if basket != listed:
                n_outside, listed = 0, basket
                for item in items:
                    if not _contains(bought, item):
                        outside[n_outside] = item
                        n_outside += 1
            j = _pick(outside[:n_outside], i, key, n * TRIES)
        if j < 0:
            skipped += 1
            samples[n].value = 0
            j = items[0] if items[0] != i else items[1]
        samples[n].other = j
    return skipped


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
def _draw_for_users(samples: Samples, positives: Positives, baskets: Baskets | None, n_items: int, key: Any) -> None:
    start = positives.start
    for n in range(len(samples)):
        i, own = samples[n].item, stream_key(key, n - start[samples[n].user], 0)
        samples[n].other = -1
        for attempt in range(TRIES if n_items > 1 else 0):
            j = np.int64(below(own, np.uint64(attempt), n_items - 1))
            j += j >= i
            if baskets is not None:
                basket = baskets.of[n]
                if _contains(baskets.item[baskets.start[basket] : baskets.start[basket + 1]], j):
                    continue
            samples[n].other = j
            break


@compiled
def _contains(bought: Codes, item: int) -> bool:
    position = np.searchsorted(bought, item)
    return bool(position < len(bought) and bought[position] == item)
