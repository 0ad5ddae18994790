"""Groups of pairs that get priors of their own within each item.

What is known of a pair besides its outcomes can tell about its rates: how often it was recommended, with which
propensity, and what the user's other items say. Such knowledge enters as a group. Absent pairs have groups, too; how
many of an item's are in each group is estimated here, so that they need no rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from taurank.learners.empirical_bayes.counts import Floats, Pairs

SHARE_EDGES = (0.0, 0.1, 0.35, 0.65, 0.9999)
PROPENSITY_EDGES = (0.01, 0.05, 0.2, 0.6, 0.99)


@dataclass(frozen=True)
class Groups:
    """The group of every pair that has rows, and the number of absent pairs, items × groups."""

    number: int
    of_pair: npt.NDArray[np.int64]
    absent: Floats


def one_group(pairs: Pairs) -> Groups:
    return Groups(1, np.zeros(len(pairs.item), np.int64), pairs.absent()[:, None])


def by_exposure(pairs: Pairs) -> Groups:
    """By the share of times at which the pair was treated; absent pairs never were."""
    of_pair = np.searchsorted(SHARE_EDGES, pairs.treated / np.maximum(1, pairs.chances)).astype(np.int64)
    number = len(SHARE_EDGES) + 1
    absent = np.zeros((pairs.n_items, number))
    absent[:, 0] = pairs.absent()
    return Groups(number, of_pair, absent)


def by_propensity(pairs: Pairs) -> Groups:
    """By the pair's mean propensity. A pair of propensity P is absent with probability q = (1 − P)^T, if nothing
    happens to it, so each pair seen stands for q / (1 − q) that were not."""
    assert pairs.propensity is not None
    number = len(PROPENSITY_EDGES) + 1
    of_pair = np.searchsorted(PROPENSITY_EDGES, pairs.propensity).astype(np.int64)
    missed = (1.0 - pairs.propensity.astype(np.float64)) ** pairs.chances
    unseen = np.where(pairs.seen, missed / np.maximum(1 - missed, 1e-6), 0.0)
    weight = np.bincount(pairs.item * number + of_pair, unseen, pairs.n_items * number).reshape(-1, number)
    weight[weight.sum(1) == 0, 0] = 1.0
    return Groups(number, of_pair, weight / weight.sum(1, keepdims=True) * pairs.absent()[:, None])
