"""CountingBayes: what each pair's own counts say, shrunk toward the item's mean.

No factors and nothing shared between items: a pair that was often treated and often bought then, and seldom
bought otherwise, goes up. It is strong where pairs repeat themselves (a household and its groceries), and it
cannot help where a pair has no counts of its own: such pairs have the same order for every user.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.sparse import coo_array

from taurank._validation import check_number
from taurank.data.ids import Codes
from taurank.data.log import Log
from taurank.data.storage import Array
from taurank.errors import InputError
from taurank.learners.base import Float32s, Learner
from taurank.learners.empirical_bayes.counts import cells_of, chances_of

Floats = npt.NDArray[np.float64]

COUNTS = ("pair_treated", "pair_treated_positives", "pair_control_positives")
CHANCES = {
    "pair_chances": Array("int32", ("pairs",), minimum=0, optional=True),
    "absent_chances": Array("float64", ("items",), minimum=0.0, optional=True),
    "item_chances": Array("float64", ("items",), minimum=0.0, optional=True),
}
WEIGHT_GRID = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0)


@dataclass(kw_only=True, eq=False)
class CountingBayes(Learner):
    """Rank by μ̂^T − μ̂^C, where in each arm μ̂_ui = (a_ui + w·m_i) / (b_ui + w).

    a_ui are the pair's positives in the arm and b_ui its observations there: the times it was treated, or all
    other times of the log at which it was eligible (an absent row is untreated and negative).
    m_i = Σ_u a_ui / Σ_u b_ui is the item's
    mean in the arm, or the mean of the whole arm for an item that was never in it. ``weight`` is w: the
    item's mean counts as much as that many observations. Propensities are not used, and nothing is drawn.
    """

    weight: float = 2.0

    scores_are_effects: ClassVar[bool] = True
    stored: ClassVar[Mapping[str, Array]] = {
        "unseen": Array("float32", ("items",)),
        "pair_start": Array("int64", ("users + 1",), offsets_of="pairs"),
        "pair_item": Array("int32", ("pairs",), below="items"),
        "pair_score": Array("float32", ("pairs",)),
        **{name: Array("int32", ("pairs",), optional=True) for name in COUNTS},
        "times": Array("int64", (1,), minimum=0, maximum=2**31 - 1, optional=True),
        **CHANCES,
    }
    space: ClassVar[Mapping[str, Sequence[float]]] = {"weight": WEIGHT_GRID}

    def __post_init__(self) -> None:
        check_number("weight", self.weight, 0)
        if self.weight == 0:
            raise InputError("weight must be larger than 0: a pair never treated has no mean of its own.")

    def learn(self, log: Log) -> None:
        pairs = count_pairs(log)
        self._set_scores(pairs, chances(log, pairs), log.n_times)

    def learn_more(self, log: Log) -> None:
        """Add up the counts; they are integers, so the bits are those of a fit to all rows."""
        known = self._counts()
        pairs = added(known, count_pairs(log))
        before = stored_chances(self, known, int(self.times_[0]))
        self._set_scores(pairs, later_chances(known, before, log, pairs), int(self.times_[0]) + log.n_times)

    def fold(self, log: Log) -> None:
        """The users' own counts over the times of their rows, with the item means of the fit."""
        known = self._counts()
        means = item_means(item_sums(known, len(self.items)), stored_chances(self, known, int(self.times_[0])).item)
        pairs = count_pairs(log)
        self._set_scores(pairs, chances(log, pairs), log.n_times, means)

    def _set_scores(self, pairs: Pairs, had: Chances, n_times: int, means: ItemMeans | None = None) -> None:
        means = means or item_means(item_sums(pairs, len(self.items)), had.item)
        self.unseen_ = self.unseen_scores(means, had.absent)
        self.pair_start_, self.pair_item_ = pairs.start, pairs.item
        self.pair_score_ = self.pair_scores(pairs, means, had.pair)
        for name, counts in zip(COUNTS, pairs[2:], strict=True):
            setattr(self, f"{name}_", counts.astype(np.int32))
        self.times_ = np.array([n_times], np.int64)
        store_chances(self, had)

    def unseen_scores(self, means: ItemMeans, chances: Floats | float) -> Float32s:
        """The score of each item for users without a row of it, who had so many chances."""
        return (means.treated - _smoothed(0.0, chances, means.control, self.weight)).astype(np.float32)

    def pair_scores(self, pairs: Pairs, means: ItemMeans, chances: npt.NDArray[Any] | int) -> Float32s:
        """The score of each pair that has rows."""
        treated = _smoothed(pairs.treated_positives, pairs.treated, means.treated[pairs.item], self.weight)
        untreated = chances - pairs.treated
        control = _smoothed(pairs.control_positives, untreated, means.control[pairs.item], self.weight)
        return (treated - control).astype(np.float32)

    def _counts(self) -> Pairs:
        """What was counted; a file of an early version has the scores alone."""
        if "times_" not in self.__dict__:
            raise InputError(
                "this model was saved by a version of taurank that did not store its counts, so it cannot take in "
                "new rows; fit it again."
            )
        counts = (np.asarray(getattr(self, f"{name}_"), np.float64) for name in COUNTS)
        return Pairs(self.pair_start_, np.asarray(self.pair_item_), *counts)

    def score_block(self, user_codes: Codes) -> Float32s:
        first, last = self._fitted("pair_start_")[user_codes], self.pair_start_[user_codes + 1]
        row = np.repeat(np.arange(len(user_codes)), last - first)
        within = np.arange(len(row)) - np.repeat(np.cumsum(last - first) - last, last - first)
        scores = np.tile(self.unseen_, (len(user_codes), 1))
        scores[row, self.pair_item_[within]] = self.pair_score_[within]
        return scores


class Pairs(NamedTuple):
    """The pairs that have rows: user u owns the entries start[u] .. start[u + 1]."""

    start: npt.NDArray[np.int64]
    item: Codes
    treated: Floats
    treated_positives: Floats
    control_positives: Floats


class Chances(NamedTuple):
    """At how many times pairs could have been treated: those with rows, a mean one without, and all of an item."""

    pair: npt.NDArray[Any]
    absent: Floats
    item: Floats
    limited: bool  # by eligibility tables


def chances(log: Log, pairs: Pairs) -> Chances:
    """All times of the log, or those at which the eligibility tables have the pair."""
    pair = chances_of(log.eligibility, log.n_times, pairs.start, pairs.item)
    item, _, visitors = cells_of(log, log.n_times)
    with_rows, had = (np.bincount(pairs.item, each, log.n_items) for each in (None, pair))
    absent = np.maximum(item - had, 0.0) / np.maximum(visitors - with_rows, 1.0)
    if log.eligibility.is_everything:
        absent = np.full(log.n_items, float(log.n_times))
    return Chances(pair, absent, item, not log.eligibility.is_everything)


def later_chances(known: Pairs, before: Chances, log: Log, pairs: Pairs) -> Chances:
    """Those of the model and of the new rows; a pair without rows so far had as many as others of its item."""
    new, n_items = chances(log, pairs), log.n_items
    if not (before.limited or new.limited):
        times = before.absent[0] + log.n_times
        return Chances(new.pair + np.int32(before.absent[0]), np.full(n_items, times),
                       np.full(n_items, log.n_users * times), False)  # fmt: skip
    absent, item = (np.concatenate((each, np.zeros(n_items - len(each)))) for each in before[1:3])
    pair = np.rint(absent)[pairs.item]
    pair[entries(known, pairs, n_items)] = before.pair
    return Chances(pair.astype(np.int32) + new.pair, absent + new.absent, item + new.item, True)


def entries(part: Pairs, whole: Pairs, n_items: int) -> npt.NDArray[np.intp]:
    """Where the pairs of one are among those of the other, which has them all."""
    codes = [
        np.repeat(np.arange(len(pairs.start) - 1), np.diff(pairs.start)) * n_items + pairs.item
        for pairs in (part, whole)
    ]
    return np.searchsorted(codes[1], codes[0])


def store_chances(learner: Learner, had: Chances) -> None:
    """Into the attributes of the model, if eligibility tables limit them."""
    for name in CHANCES:
        learner.__dict__.pop(f"{name}_", None)
    if had.limited:
        columns = (had.pair.astype(np.int32), had.absent, had.item)
        learner.__dict__.update({f"{name}_": values for name, values in zip(CHANCES, columns, strict=True)})


def stored_chances(learner: Learner, pairs: Pairs, times: int) -> Chances:
    if "pair_chances_" in learner.__dict__:
        pair, absent, item = (learner.__dict__[f"{name}_"] for name in CHANCES)
        return Chances(pair, absent, item, True)
    n_users, n_items = len(pairs.start) - 1, len(learner.items)
    everywhere = np.broadcast_to(np.int32(times), len(pairs.item))
    return Chances(everywhere, np.full(n_items, float(times)), np.full(n_items, float(n_users * times)), False)


def count_pairs(log: Log) -> Pairs:
    """How often each pair was treated, and its positives in each arm, or what they are worth."""
    treated, positive = log.treated == 1, log.outcome if log.value is None else log.outcome * log.value
    counts = (treated, treated * positive, ~treated * positive)
    return _summed(log.user, log.item, counts, (log.n_users, log.n_items))


def added(known: Pairs, new: Pairs) -> Pairs:
    """The counts of both, in the catalog of the new ones."""
    users = [np.repeat(np.arange(len(pairs.start) - 1), np.diff(pairs.start)) for pairs in (known, new)]
    counts = tuple(np.concatenate(both) for both in zip(known[2:], new[2:], strict=True))
    shape = (len(new.start) - 1, int(max(known.item.max(initial=0), new.item.max(initial=0))) + 1)
    return _summed(np.concatenate(users), np.concatenate((known.item, new.item)), counts, shape)


def _summed(
    user: npt.NDArray[Any], item: npt.NDArray[Any], counts: tuple[npt.NDArray[Any], ...], shape: tuple[int, int]
) -> Pairs:
    # rows are added up pair by pair, and a pair keeps its entry where the sum is 0: one order for all three
    sums = [coo_array((rows.astype(np.float64), (user, item)), shape).tocsr() for rows in counts]
    start, items = sums[0].indptr.astype(np.int64), sums[0].indices.astype(np.int32)
    return Pairs(start, items, *(arm.data for arm in sums))


class ItemMeans(NamedTuple):
    """The mean outcome of every item in each arm."""

    treated: Floats
    control: Floats


def item_sums(pairs: Pairs, n_items: int) -> Floats:
    """3 × items: how often each was treated, and its positives in each arm; whole numbers, so their order is free."""
    return np.stack([np.bincount(pairs.item, counts, n_items) for counts in pairs[2:]]).astype(np.float64)


def item_means(sums: Floats, chances: Floats | float) -> ItemMeans:
    """The means from the sums over all users, each of which is out of so many chances."""
    times, treated, control = sums
    return ItemMeans(_means("treated", treated, times), _means("untreated", control, chances - times))


def _means(arm: str, positives: Floats, observations: Floats) -> Floats:
    """Each item's mean in an arm; the arm's own mean for items that were never in it."""
    if not observations.any():
        raise InputError(f"CountingBayes needs both arms, and nothing in this log is {arm}.")
    whole = np.full(len(positives), positives.sum() / observations.sum())
    return np.asarray(np.divide(positives, observations, out=whole, where=observations > 0))


def _smoothed(positives: Floats | float, observations: Floats | float, mean: Floats, weight: float) -> Floats:
    return np.asarray((positives + weight * mean) / (observations + weight))
