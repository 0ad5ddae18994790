"""Taste: what a user's other items say about a pair.

In each arm the rate of a pair is the item's mean times a low-rank factor, from one vector per user and two per item:

    μ^a_ui ≈ m^a_i · x_u·v^a_i,    a ∈ {T, C}.

The variance of positives is near their expectation, so x and v minimize the weighted squares

    Σ_{u,i,a} n^a_ui m^a_i (y^a_ui / (n^a_ui m^a_i) − x_u·v^a_i)² + λ Σ_u |x_u − e|² + λ Σ_{i,a} |v^a_i − v̄_i|²,

with e = (1, 0, …, 0), so that without data every factor is 1, and v̄ halfway between the arms. Each vector has a
closed form given the others (alternating least squares), and absent pairs enter through one
matrix Σ_i m^C_i v^C_i v^C_i'. With features of users f_u, e + M f_u takes the place of e; with features of items g_i,
v̄ is halfway between the arms' middle and e + M^a g_i. The maps M are regressed again after every sweep.

The prior of a pair is Gamma(k) with mean m · f(x·v), where x comes from the user's other items alone (leave one out,
a correction of rank two) and f is the link (``link.py``). Then the pair's own counts have the posterior mean
(k + y) / (k / (m f(x·v)) + n).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from taurank._arrays import row_order
from taurank._jit import compiled
from taurank._threads import map_blocks, one_blas_thread
from taurank._types import Codes, Floats, Floats32, Longs
from taurank.learners.empirical_bayes.counted import MOST, item_rates
from taurank.learners.empirical_bayes.covariates import NOTHING_KNOWN, Covariates, VectorMap
from taurank.learners.empirical_bayes.link import STRAIGHT, fit_link, level
from taurank.learners.empirical_bayes.prior import BLOCK, Prior, effect
from taurank.learners.pairs import Pairs

RIDGE, SWEEPS = 4.0, 8
UNMOVED = 1e12  # a shape so large that own counts do not matter


@dataclass(frozen=True)
class Taste:
    """What taste needs to score the pairs of any user: vectors of users and, in both arms, of items, and the link."""

    users: Floats  # users × rank
    items: Floats  # items × 2 × rank
    means: Floats  # items × 2
    link: Floats


@dataclass(frozen=True)
class TastePrior(Prior):
    """Gamma around what the user's other items say; ``strength`` is its shape k."""

    pairs: Pairs | None = None
    taste: Taste | None = None
    left_out: Any = None  # x·v of every pair with rows, without its own counts; pairs × 2

    def fit(self, pairs: Pairs, covariates: Covariates = NOTHING_KNOWN) -> TastePrior:
        means = item_rates(pairs, covariates.items)
        taste, left_out = learn_taste(pairs, means, self.setting.rank, self.threads, covariates)
        return replace(self, pairs=pairs, taste=taste, left_out=left_out)

    def moments(self, part: slice, shape: float) -> Floats:
        """E[μ^T], E[μ^C] and E[(μ^T − μ^C)²] of a part of the pairs with rows; pairs × 3."""
        pairs, taste = self.pairs, self.taste
        assert pairs is not None
        assert taste is not None
        item, treated = pairs.item[part], pairs.treated[part]
        trials = treated, pairs.chances[part] - treated
        positives = pairs.treated_positives[part], pairs.control_positives[part]
        means, variance = np.empty((2, len(item))), np.zeros(len(item))
        for arm in range(2):
            prior = level(taste.link[arm], self.left_out[part, arm]) * taste.means[item, arm]
            means[arm], of_arm = gamma_posterior(positives[arm], trials[arm], prior, shape)
            variance += of_arm
        return np.stack((*means, (means[0] - means[1]) ** 2 + variance), 1)

    def pair_rates(self, part: slice, own: bool) -> Floats:
        return self.moments(part, self.setting.strength if own else UNMOVED)[:, :2]

    def absent_control(self, users: Longs, own: bool) -> Floats:
        assert self.pairs is not None
        assert self.taste is not None
        shape = self.setting.strength if own else UNMOVED
        prior = _prior_mean(self.taste, self.taste.users[users], 1, False)
        return gamma_posterior(0.0, self.pairs.absent_chances(), prior, shape)[0]

    def pair_effects(self) -> tuple[Floats32, Floats32]:
        """In blocks: the moments of all pairs would take more memory than the log."""
        mean, deviation = np.empty((2, len(self.left_out)), np.float32)
        for first in range(0, len(mean), BLOCK):
            part = slice(first, first + BLOCK)
            mean[part], deviation[part] = effect(self.moments(part, self.setting.strength))
        return mean, deviation


class Rows(NamedTuple):
    """The counts of the pairs of each user, as kernels see them."""

    start: Longs
    item: Codes
    treated: Codes
    positives: Codes
    control: Codes
    chances: Codes
    share: Floats  # of users


class ItemSide(NamedTuple):
    """What is known of the items when users are solved: mean rates, vectors, and Σ_i c_i m^C_i v^C_i v^C_i'."""

    means: Floats
    vectors: Floats
    whole: Floats


def learn_taste(
    pairs: Pairs, means: Floats, rank: int, threads: int | None, covariates: Covariates = NOTHING_KNOWN
) -> tuple[Taste, Floats32]:
    """Alternating least squares, then the link; ``means`` are the items' mean rates m, items × 2.

    Also returns x·v of every pair with rows, without its own counts.
    """
    rows, (item_share, _) = _rows(pairs), shares(pairs)
    by_item, order = row_order(pairs.item, pairs.n_items)
    user, left_out = pairs.user, np.empty((len(pairs.item), 2), np.float32)
    users, items = _begin(pairs.n_users, rank), _begin(2 * pairs.n_items, rank).reshape(-1, 2, rank)
    user_goal, item_goal = np.eye(rank)[:1], None  # what features say about items: nothing before the first sweep
    user_map = None if covariates.users is None else VectorMap(covariates.users, pairs.bought_by_user())
    item_map = None if covariates.items is None else VectorMap(covariates.items, pairs.bought_by_item())

    def solve_users() -> None:
        side = _item_side(means, items, item_share)
        map_blocks(lambda begin, end: _solve_users(begin, end, rows, side, user_goal, users), pairs.n_users, threads)

    def solve_items() -> None:
        whole = (users * rows.share[:, None]).T @ users
        centers = np.repeat(0.5 * (items[:, :1] + items[:, 1:]), 2, axis=1)  # halfway between the arms
        goal = centers if item_goal is None else 0.5 * (centers + item_goal)
        map_blocks(
            lambda begin, end: _solve_items(
                begin, end, by_item, order, user, rows, means, users, whole, item_share, goal, items
            ),
            pairs.n_items, threads,
        )  # fmt: skip

    with one_blas_thread():
        for _ in range(SWEEPS):
            solve_users()
            user_goal = user_map.predict(users) if user_map else user_goal
            solve_items()
            item_goal = item_map.predict(items) if item_map else item_goal
        if item_goal is not None:
            items[pairs.item_cells == 0] = item_goal[pairs.item_cells == 0]
        solve_users()  # those of the final items, as for users that come later
        side = _item_side(means, items, item_share)
        map_blocks(
            lambda begin, end: _leave_one_out(begin, end, rows, side, user_goal, left_out), pairs.n_users, threads
        )
        link = fit_link(pairs, users, items, means, left_out)
    return Taste(users, items, means, link), left_out


def fold_taste(pairs: Pairs, taste: Taste, goal: Floats | None = None) -> tuple[Taste, Floats32]:
    """Vectors of new users from their own pairs; those of the items stay. ``goal`` is what their features say."""
    rank = taste.items.shape[2]
    users, left_out = np.zeros((pairs.n_users, rank)), np.ones((len(pairs.item), 2), np.float32)
    rows, goal = _rows(pairs), np.eye(rank)[:1] if goal is None else goal
    with one_blas_thread():
        side = _item_side(taste.means, taste.items, shares(pairs)[0])
        _solve_users(0, pairs.n_users, rows, side, goal, users)
        _leave_one_out(0, pairs.n_users, rows, side, goal, left_out)
    return replace(taste, users=users), left_out


def shares(pairs: Pairs) -> tuple[Floats, Floats]:
    """Of items and of users; the product of two is about the number of chances of their pair."""
    visitors = max(1, pairs.users)
    return pairs.item_cells / visitors, pairs.user_cells * (visitors / max(1.0, pairs.user_cells.sum()))


def _rows(pairs: Pairs) -> Rows:
    counts = pairs.treated, pairs.treated_positives, pairs.control_positives, pairs.chances
    return Rows(pairs.start, pairs.item, *counts, shares(pairs)[1])


def _item_side(means: Floats, items: Floats, share: Floats) -> ItemSide:
    """With every user's control arm, as if nothing were treated; ``share`` are the chances c."""
    return ItemSide(means, items, (items[:, 1] * (share[:, None] * means[:, 1:])).T @ items[:, 1])


def gamma_posterior(positives: Any, trials: Any, prior_mean: Any, shape: float) -> tuple[Floats, Floats]:
    """Mean and variance of a rate with a Gamma(shape) prior of this mean, given its counts."""
    rate = shape / prior_mean + trials
    mean = np.minimum((shape + positives) / rate, MOST)
    return np.asarray(mean), np.asarray(mean / rate)


def _prior_mean(taste: Taste, users: Floats, arm: int, is_cold: Any) -> Floats:
    product = users @ taste.items[:, arm].T
    factor = level(taste.link[arm], product)
    if np.any(is_cold):
        factor = np.where(is_cold, level(STRAIGHT[arm], product), factor)
    return np.asarray(factor * taste.means[:, arm])


def absent_effects(taste: Taste, users: Codes, shape: float, chances: Any, is_cold: Any) -> tuple[Floats32, Floats32]:
    """Scores and deviations of all items of these users, as if their pairs had no rows; users × items.

    ``chances`` and ``is_cold`` are users × items, or one row for all users. Cold pairs are known by features alone:
    they had no chances, and x·v is what the features say about their level.
    """
    n, n_items = len(users), len(taste.items)
    vectors = _filled(taste.users[users])
    chances, is_cold = (_filled(np.broadcast_to(each, (n, n_items))) for each in (chances, is_cold))
    treated, treated_variance = gamma_posterior(0.0, 0.0, _prior_mean(taste, vectors, 0, is_cold), shape)
    control, control_variance = gamma_posterior(0.0, chances, _prior_mean(taste, vectors, 1, is_cold), shape)
    deviation = np.sqrt(treated_variance + control_variance)
    return (treated - control)[:n].astype(np.float32), deviation[:n].astype(np.float32)


def _filled(rows: Any) -> Any:
    """With rows of zeros up to a multiple of sixteen: one shape of product, so one order of its sums."""
    return np.concatenate((rows, np.zeros((-len(rows) % 16, rows.shape[1]), rows.dtype)))


def _begin(n: int, rank: int) -> Floats:
    """The same small numbers in every fit: they only have to be different."""
    vectors = 0.3 * np.random.default_rng(0).standard_normal((n, rank))
    vectors[:, 0] = 1.0
    return vectors


@compiled
def _user_system(user: Any, rows: Any, side: Any, goal: Any) -> Any:
    """Matrix and right side of the normal equations of one user; ``goal`` has one row per user, or one for all."""
    first, last, rank = rows.start[user], rows.start[user + 1], len(side.whole)
    terms, weighted = np.empty((2 * (last - first), rank)), np.empty((2 * (last - first), rank))
    right = RIDGE * goal[user % len(goal)]
    filled = 0
    for pair in range(first, last):
        i, n = rows.item[pair], rows.treated[pair]
        for arm in range(2):
            positives = rows.positives[pair] if arm == 0 else rows.control[pair]
            if positives:
                for j in range(rank):
                    right[j] += positives * side.vectors[i, arm, j]
            if n:
                weight = n * side.means[i, 0] if arm == 0 else -n * side.means[i, 1]
                for j in range(rank):
                    terms[filled, j] = side.vectors[i, arm, j]
                    weighted[filled, j] = weight * side.vectors[i, arm, j]
                filled += 1
    matrix = rows.share[user] * side.whole + terms[:filled].T @ weighted[:filled]
    for j in range(rank):
        matrix[j, j] += RIDGE
    return matrix, right


@compiled
def _solve_users(begin: Any, end: Any, rows: Any, side: Any, goal: Any, users: Any) -> None:
    for user in range(begin, end):
        matrix, right = _user_system(user, rows, side, goal)
        users[user] = np.linalg.solve(matrix, right)


@compiled
def _solve_items(
    begin: Any, end: Any, start: Any, order: Any, user: Any, counts: Any, means: Any, users: Any, whole: Any,
    share: Any, goal: Any, items: Any,
) -> None:  # fmt: skip
    """``order`` has the pairs item by item; ``goal`` is what the vectors are pulled to."""
    rank = users.shape[1]
    for i in range(begin, end):
        matrices, right = np.zeros((2, rank, rank)), np.zeros((2, rank))
        rows, weighted = np.empty((start[i + 1] - start[i], rank)), np.empty((start[i + 1] - start[i], rank))
        filled = 0
        for pair in order[start[i] : start[i + 1]]:
            x = users[user[pair]]
            for j in range(rank):
                right[0, j] += counts.positives[pair] * x[j]
                right[1, j] += counts.control[pair] * x[j]
            if counts.treated[pair]:
                for j in range(rank):
                    rows[filled, j] = x[j]
                    weighted[filled, j] = counts.treated[pair] * x[j]
                filled += 1
        matrices[0] = rows[:filled].T @ weighted[:filled]
        matrices[1] = (share[i] * whole - matrices[0]) * means[i, 1]
        matrices[0] *= means[i, 0]
        for arm in range(2):
            for j in range(rank):
                matrices[arm, j, j] += RIDGE
                right[arm, j] += RIDGE * goal[i, arm, j]
            items[i, arm] = np.linalg.solve(matrices[arm], right[arm])


@compiled
def _leave_one_out(begin: Any, end: Any, rows: Any, side: Any, goal: Any, left_out: Any) -> None:
    """Both tastes of every pair without its own counts: (A − V D V')⁻¹ (b − V y) by Woodbury's identity.

    With f = V'x, H = V'A⁻¹V and the residuals r = y − D f, these are f − H g, where (I − D H) g = r.
    """
    for user in range(begin, end):
        matrix, right = _user_system(user, rows, side, goal)
        inverse = np.linalg.inv(matrix)
        x = inverse @ right
        for pair in range(rows.start[user], rows.start[user + 1]):
            i = rows.item[pair]
            first, second = side.vectors[i, 0], side.vectors[i, 1]
            a, b = inverse @ first, inverse @ second
            aa, ab, bb = first @ a, first @ b, second @ b
            weight_t = rows.treated[pair] * side.means[i, 0]
            weight_c = (rows.chances[pair] - rows.treated[pair]) * side.means[i, 1]
            f_t, f_c = first @ x, second @ x
            r_t, r_c = rows.positives[pair] - weight_t * f_t, rows.control[pair] - weight_c * f_c
            m11, m12, m21, m22 = 1 - weight_t * aa, -weight_t * ab, -weight_c * ab, 1 - weight_c * bb
            determinant = max(m11 * m22 - m12 * m21, 1e-3)
            g_t, g_c = (m22 * r_t - m12 * r_c) / determinant, (m11 * r_c - m21 * r_t) / determinant
            left_out[pair, 0] = f_t - aa * g_t - ab * g_c
            left_out[pair, 1] = f_c - ab * g_t - bb * g_c
