"""What a prior is, and how well it predicts what was held out.

The score of a prior is the log-likelihood of the cells of the last time, absent ones included: log μ̂^a of a cell that
was positive in arm a, log(1 − μ̂^a) of one that was not. No truth and no inverse propensities are involved.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from taurank._types import Bits, Codes, Floats, Floats32, Longs, Mask
from taurank.data.eligibility import Eligibility
from taurank.data.log import Log
from taurank.learners.empirical_bayes.covariates import Covariates
from taurank.learners.pairs import Pairs, count

BLOCK = 2**20  # pairs at a time, so that a large log needs no further arrays of its size
FOLDS = 5  # of a log with one time, a fifth of the pairs is held out
SAMPLED_USERS = 4096  # whose cells are scored: enough to choose by, also where users × items are too many to visit
TINY = 1e-300  # a likelihood that is zero to rounding

# what happened in a held-out cell; the cells of absent rows are untreated and negative
NOTHING, TREATED_NEGATIVE, TREATED_POSITIVE, CONTROL_POSITIVE, NOT_HELD_OUT = range(5)


@dataclass(frozen=True)
class Setting:
    """The name of a prior, its strength (in pairs, or in purchases for taste), the rank of taste, and steps of EM."""

    prior: str
    strength: float
    rank: int = 0
    steps: int = 3  # on a segment's own pairs: stopping early is a second way to stay near its cluster


@dataclass(frozen=True)
class Prior(ABC):
    """A prior of the rates (μ^T, μ^C) of pairs; after ``fit`` it has the posterior of every pair."""

    setting: Setting
    threads: int | None = 1

    @abstractmethod
    def fit(self, pairs: Pairs, covariates: Covariates) -> Self:
        """This prior, fitted to the counts of a log."""

    @abstractmethod
    def pair_rates(self, part: slice, own: bool) -> Floats:
        """E[μ^T] and E[μ^C] of a part of the pairs with rows, with or without their own counts; pairs × 2."""

    @abstractmethod
    def absent_control(self, users: Longs, own: bool) -> Floats:
        """E[μ^C] of these users' pairs, as if they had no rows: users × items, or one row for all users."""

    @abstractmethod
    def pair_effects(self) -> tuple[Floats32, Floats32]:
        """Mean and deviation of μ^T − μ^C of every pair with rows."""

    def log_likelihood(self, held_out: HeldOut) -> float:
        """The mean log-likelihood of the held-out cells of all users, or of a sample of them."""
        pairs, held, own = held_out.pairs, held_out.held, not held_out.hides_pairs
        step = max(1, pairs.n_users // SAMPLED_USERS)
        used = (pairs.user % step == 0) & (held != NOT_HELD_OUT)
        total, cells = 0.0, 0
        for first in range(0, len(used), BLOCK):
            part = slice(first, first + BLOCK)
            treated, control = self.pair_rates(part, own)[used[part]].T
            likelihood = np.choose(held[part][used[part]], (1.0 - control, 1.0 - treated, treated, control))
            total += float(np.log(np.maximum(likelihood, TINY)).sum())
        for users, mask in held_out.absent_blocks(np.arange(0, pairs.n_users, step)):
            total += held_out.share * float((mask * np.log1p(-self.absent_control(users, own))).sum())
            cells += int(np.count_nonzero(mask))
        return total / max(1.0, np.count_nonzero(used) + held_out.share * cells)


@dataclass(frozen=True)
class HeldOut:
    """The counts without the cells that are held out, and what happened to each pair there."""

    pairs: Pairs
    held: Bits
    share: float  # of the absent pairs' cells, how many are held out
    eligibility: Eligibility
    time: int

    @property
    def hides_pairs(self) -> bool:
        """Whether whole pairs are held out, since there is only one time: nothing is known of their own counts."""
        return self.share < 1.0

    def absent_blocks(self, users: Longs) -> Iterator[tuple[Longs, Mask]]:
        """Blocks of users, and which of their cells at the held-out time are eligible and of pairs without rows."""
        pairs, items = self.pairs, np.arange(self.pairs.n_items)
        for first in range(0, len(users), 256):
            block = users[first : first + 256]
            if self.eligibility.is_everything:
                mask = np.outer(pairs.user_cells[block] > 0, pairs.item_cells > 0)
            else:
                mask = self.eligibility.contains(block[:, None], items[None, :], self.time)
            for at, user in enumerate(block):
                mask[at, pairs.item[pairs.start[user] : pairs.start[user + 1]]] = False
            yield block, mask


def hold_out(log: Log) -> HeldOut:
    """The counts without the last time; of a log with one time, without a fifth of the pairs."""
    last = log.n_times - 1
    is_held = np.asarray(log.time == last) if last else _is_sampled(log.user, log.item)
    pairs = count(log, last or 1, ~is_held, propensity=True)
    rows = np.flatnonzero(is_held)
    held = np.zeros(len(pairs.item), np.int8)
    treated, positive = log.treated[rows], log.outcome[rows]
    held[_entry(pairs, log.user[rows], log.item[rows])] = np.where(treated == 1, 1 + positive, 3 * positive)
    if not last:
        held[~_is_sampled(pairs.user, pairs.item)] = NOT_HELD_OUT
        pairs = replace(
            pairs, item_cells=_kept(pairs.item_cells, pairs.item, pairs.seen),
            user_cells=_kept(pairs.user_cells, pairs.user, pairs.seen),
        )  # fmt: skip
    if not log.eligibility.is_everything:
        held[~log.eligibility.contains(pairs.user, pairs.item, last)] = NOT_HELD_OUT
    return HeldOut(pairs, held, 1.0 if last else 1 / FOLDS, log.eligibility, last)


def _entry(pairs: Pairs, user: Codes, item: Codes) -> Longs:
    """The entries of pairs."""
    code = pairs.user * np.int64(pairs.n_items) + pairs.item
    return np.searchsorted(code, user * np.int64(pairs.n_items) + item)


def _kept(cells: Floats, unit: Codes, seen: Mask) -> Floats:
    """The chances that are not held out: a share of the absent pairs', and those of the pairs whose rows are seen."""
    kept, all_rows = np.bincount(unit[seen], minlength=len(cells)), np.bincount(unit, minlength=len(cells))
    return np.asarray(kept + (1 - 1 / FOLDS) * np.maximum(cells - all_rows, 0.0), np.float64)


def _is_sampled(user: Codes, item: Codes) -> Mask:
    """The pairs of one fold, by a hash of the pair."""
    mixed = (user.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)) ^ (
        item.astype(np.uint64) * np.uint64(0xC2B2AE3D27D4EB4F)
    )
    mixed = (mixed ^ (mixed >> np.uint64(31))) * np.uint64(0xBF58476D1CE4E5B9)
    return np.asarray((mixed >> np.uint64(33)) % np.uint64(FOLDS) == 0)


def effect(moments: Any) -> tuple[Floats32, Floats32]:
    """Mean and standard deviation of μ^T − μ^C, from E[μ^T], E[μ^C] and E[(μ^T − μ^C)²]."""
    mean = moments[..., 0] - moments[..., 1]
    deviation = np.sqrt(np.maximum(moments[..., 2] - mean**2, 0.0))
    return mean.astype(np.float32), deviation.astype(np.float32)
