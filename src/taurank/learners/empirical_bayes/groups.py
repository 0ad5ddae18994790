"""Groups of pairs that get priors of their own within each item.

What is known of a pair besides its outcomes can tell about its rates: how often it was recommended, with which
propensity, and what the user's other items say. Such knowledge enters as a group. Absent pairs have groups, too; how
many of an item's are in each group is estimated here, so that they need no rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from taurank._types import Bits, Floats
from taurank.learners.empirical_bayes.prior import BLOCK
from taurank.learners.pairs import Pairs

SHARE_EDGES = (0.0, 0.1, 0.35, 0.65, 0.9999)
PROPENSITY_EDGES = (0.01, 0.05, 0.2, 0.6, 0.99)


@dataclass(frozen=True)
class Groups:
    """The group of every pair that has rows, and the number of absent pairs, items × groups."""

    number: int
    of_pair: Bits
    absent: Floats


def one_group(pairs: Pairs) -> Groups:
    return Groups(1, np.zeros(len(pairs.item), np.int8), pairs.absent()[:, None])


def by_exposure(pairs: Pairs) -> Groups:
    """By the share of times at which the pair was treated; absent pairs never were."""
    of_pair = np.empty(len(pairs.item), np.int8)
    for block in _blocks(len(pairs.item)):
        share = pairs.treated[block] / np.maximum(1, pairs.chances[block])
        of_pair[block] = np.searchsorted(SHARE_EDGES, share)
    number = len(SHARE_EDGES) + 1
    absent = np.zeros((pairs.n_items, number))
    absent[:, 0] = pairs.absent()
    return Groups(number, of_pair, absent)


def by_propensity(pairs: Pairs) -> Groups:
    """By the pair's mean propensity. A pair of propensity P is absent with probability q = (1 − P)^T, if nothing
    happens to it, so each pair seen stands for q / (1 − q) that were not."""
    assert pairs.propensity is not None
    number = len(PROPENSITY_EDGES) + 1
    of_pair, weight = np.empty(len(pairs.item), np.int8), np.zeros(pairs.n_items * number)
    for block in _blocks(len(pairs.item)):
        of_pair[block] = np.searchsorted(PROPENSITY_EDGES, pairs.propensity[block])
        missed = (1.0 - pairs.propensity[block].astype(np.float64)) ** pairs.chances[block]
        unseen = np.where(pairs.rows[block] > 0, missed / np.maximum(1 - missed, 1e-6), 0.0)
        weight += np.bincount(pairs.item[block] * number + of_pair[block], unseen, len(weight))
    absent = weight.reshape(-1, number)
    absent[absent.sum(1) == 0, 0] = 1.0
    return Groups(number, of_pair, absent / absent.sum(1, keepdims=True) * pairs.absent()[:, None])


def _blocks(n: int) -> Iterator[slice]:
    return (slice(begin, begin + BLOCK) for begin in range(0, n, BLOCK))


GROUPS: dict[str, Callable[[Pairs], Groups]] = {
    "item": one_group, "exposure": by_exposure, "propensity": by_propensity,
}  # fmt: skip
