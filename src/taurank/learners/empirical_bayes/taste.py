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

from dataclasses import dataclass
from typing import Any

import numpy as np

from taurank._arrays import row_order
from taurank._jit import compiled
from taurank._threads import map_blocks, one_blas_thread
from taurank.learners.empirical_bayes.counts import Floats, Pairs
from taurank.learners.empirical_bayes.covariates import NOTHING_KNOWN, Covariates, VectorMap
from taurank.learners.empirical_bayes.link import STRAIGHT, Float32s, Link, fit_link, level

RIDGE, SWEEPS = 4.0, 8
MOST = 0.999  # of a rate
UNMOVED = 1e12  # a shape so large that own counts do not matter


@dataclass(frozen=True)
class Taste:
    """Vectors of users and, in both arms, of items; x·v of every pair with rows, without its own counts."""

    users: Floats  # users × rank
    items: Floats  # items × 2 × rank
    means: Floats  # items × 2
    left_out: Float32s  # pairs × 2
    link: Link


def learn_taste(
    pairs: Pairs, means: Floats, rank: int, threads: int | None, covariates: Covariates = NOTHING_KNOWN
) -> Taste:
    """Alternating least squares, then the link; ``means`` are the items' mean rates m, items × 2."""
    data = (pairs.treated, pairs.treated_positives, pairs.control_positives)
    item_share, user_share = shares(pairs)
    left_out = np.empty((len(pairs.item), 2), np.float32)
    with one_blas_thread():
        users, items, goal = _alternate(pairs, means, rank, threads, covariates)
        whole = all_items(items, means, item_share)
        map_blocks(
            lambda begin, end: _leave_one_out(
                begin, end, pairs.start, pairs.item, *data, pairs.chances, means, items, whole, user_share,
                goal, left_out,
            ),
            pairs.n_users, threads,
        )  # fmt: skip
        link = fit_link(pairs, users, items, means, left_out)
    return Taste(users, items, means, left_out, link)


def _alternate(
    pairs: Pairs, means: Floats, rank: int, threads: int | None, covariates: Covariates
) -> tuple[Floats, Floats, Floats]:
    """The vectors of users and items, and what users' vectors are pulled to."""
    data = (pairs.treated, pairs.treated_positives, pairs.control_positives)
    item_share, user_share = shares(pairs)
    by_item, order = row_order(pairs.item, pairs.n_items)
    user = pairs.user
    users, items = _begin(pairs.n_users, rank), _begin(2 * pairs.n_items, rank).reshape(-1, 2, rank)
    user_map, item_map = _maps(pairs, covariates)
    user_goal, item_goal = np.eye(rank)[:1], np.empty((0, 2, rank))

    def solve_users() -> None:
        rest = (means, items, all_items(items, means, item_share), user_share, user_goal, users)
        map_blocks(
            lambda begin, end: _solve_users(begin, end, pairs.start, pairs.item, *data, *rest), pairs.n_users, threads
        )

    def solve_items() -> None:
        rest = (means, users, (users * user_share[:, None]).T @ users, item_share, item_goal, items)
        map_blocks(
            lambda begin, end: _solve_items(begin, end, by_item, order, user, *data, *rest), pairs.n_items, threads
        )

    for _ in range(SWEEPS):
        solve_users()
        user_goal = user_map.predict(users) if user_map else user_goal
        solve_items()
        item_goal = item_map.predict(items) if item_map else item_goal
    if item_map:
        items[pairs.item_cells == 0] = item_goal[pairs.item_cells == 0]
    solve_users()  # those of the final items, as for users that come later
    return users, items, user_goal


def _maps(pairs: Pairs, covariates: Covariates) -> tuple[VectorMap | None, VectorMap | None]:
    """From features to the vectors of users and of items; None without features of them."""
    return (
        None if covariates.users is None else VectorMap(covariates.users, pairs.bought_by_user()),
        None if covariates.items is None else VectorMap(covariates.items, pairs.bought_by_item()),
    )


def fold_taste(pairs: Pairs, items: Floats, means: Floats, link: Link, goal: Floats | None = None) -> Taste:
    """Vectors of new users from their own pairs; those of the items stay. ``goal`` is what their features say."""
    data = (pairs.treated, pairs.treated_positives, pairs.control_positives)
    users, left_out = np.zeros((pairs.n_users, items.shape[2])), np.ones((len(pairs.item), 2), np.float32)
    if not items.shape[2]:  # the model has no taste
        return Taste(users, items, means, left_out, link)
    item_share, user_share = shares(pairs)
    usual = np.eye(items.shape[2])[:1]
    rest = (means, items, all_items(items, means, item_share), user_share, usual if goal is None else goal)
    with one_blas_thread():
        _solve_users(0, pairs.n_users, pairs.start, pairs.item, *data, *rest, users)
        _leave_one_out(0, pairs.n_users, pairs.start, pairs.item, *data, pairs.chances, *rest, left_out)
    return Taste(users, items, means, left_out, link)


def shares(pairs: Pairs) -> tuple[Floats, Floats]:
    """Of items and of users; the product of two is about the number of chances of their pair."""
    visitors = max(1, int(np.count_nonzero(pairs.user_cells)))
    return pairs.item_cells / visitors, pairs.user_cells * (visitors / max(1.0, pairs.user_cells.sum()))


def gamma_posterior(positives: Any, trials: Any, prior_mean: Any, shape: float) -> tuple[Floats, Floats]:
    """Mean and variance of a rate with a Gamma(shape) prior of this mean, given its counts."""
    rate = shape / prior_mean + trials
    mean = np.minimum((shape + positives) / rate, MOST)
    return np.asarray(mean), np.asarray(mean / rate)


def pair_moments(pairs: Pairs, taste: Taste, shape: float, part: slice = slice(None)) -> Floats:
    """E[μ^T], E[μ^C] and E[(μ^T − μ^C)²] of every pair with rows, or of a part of them; pairs × 3."""
    item, treated = pairs.item[part], pairs.treated[part]
    trials = treated, pairs.chances[part] - treated
    positives = pairs.treated_positives[part], pairs.control_positives[part]
    means, variance = np.empty((2, len(item))), np.zeros(len(item))
    for arm in range(2):
        prior = level(taste.link[arm], taste.left_out[part, arm]) * taste.means[item, arm]
        means[arm], of_arm = gamma_posterior(positives[arm], trials[arm], prior, shape)
        variance += of_arm
    return np.stack((*means, (means[0] - means[1]) ** 2 + variance), 1)


def absent_moments(
    taste: Taste, users: Floats, shape: float, chances: Any, is_cold: Any = False
) -> tuple[Floats, Floats, Floats]:
    """E[μ^T], E[μ^C] and the variance of μ^T − μ^C for all items of users with these vectors, each users × items.

    Cold pairs are known by features alone: they had no chances, and x·v is what the features say about their level.
    """
    treated, treated_variance = gamma_posterior(0.0, 0.0, _prior_mean(taste, users, 0, is_cold), shape)
    control, control_variance = gamma_posterior(0.0, chances, _prior_mean(taste, users, 1, is_cold), shape)
    return treated, control, treated_variance + control_variance


def absent_control(taste: Taste, users: Floats, shape: float, chances: Any) -> Floats:
    """E[μ^C] alone."""
    return gamma_posterior(0.0, chances, _prior_mean(taste, users, 1, False), shape)[0]


def _prior_mean(taste: Taste, users: Floats, arm: int, is_cold: Any) -> Floats:
    product = users @ taste.items[:, arm].T
    factor = level(taste.link[arm], product)
    if np.any(is_cold):
        factor = np.where(is_cold, level(STRAIGHT[arm], product), factor)
    return np.asarray(factor * taste.means[:, arm])


def absent_effects(taste: Taste, users: Floats, shape: float, chances: Any, is_cold: Any) -> Any:
    """Scores and deviations of all items of users with these vectors, as if their pairs had no rows; users × items,
    float32. ``chances`` and ``is_cold`` are users × items, or one row for all users.
    """
    n, n_items = len(users), len(taste.items)
    treated, control, variance = absent_moments(
        taste, _filled(users), shape, _filled(np.broadcast_to(chances, (n, n_items))),
        _filled(np.broadcast_to(is_cold, (n, n_items))),
    )  # fmt: skip
    return (treated - control)[:n].astype(np.float32), np.sqrt(variance)[:n].astype(np.float32)


def _filled(rows: Any) -> Any:
    """With rows of zeros up to a multiple of sixteen: one shape of product, so one order of its sums."""
    return np.concatenate((rows, np.zeros((-len(rows) % 16, rows.shape[1]), rows.dtype)))


def _begin(n: int, rank: int) -> Floats:
    """The same small numbers in every fit: they only have to be different."""
    vectors = 0.3 * np.random.default_rng(0).standard_normal((n, rank))
    vectors[:, 0] = 1.0
    return vectors


def all_items(items: Floats, means: Floats, share: Floats) -> Floats:
    """Σ_i c_i m^C_i v^C_i v^C_i' with c_i chances: every user's control arm, as if nothing were treated."""
    return np.asarray((items[:, 1] * (share[:, None] * means[:, 1:])).T @ items[:, 1])


@compiled
def _user_system(
    user: Any, start: Any, item: Any, treated: Any, positives: Any, control: Any, means: Any, items: Any, whole: Any,
    share: Any, goal: Any,
) -> Any:  # fmt: skip
    """Matrix and right side of the normal equations of one user; ``goal`` has one row per user, or one for all."""
    first, last, rank = start[user], start[user + 1], len(whole)
    rows, weighted = np.empty((2 * (last - first), rank)), np.empty((2 * (last - first), rank))
    right = RIDGE * goal[user % len(goal)]
    filled = 0
    for pair in range(first, last):
        i, n = item[pair], treated[pair]
        for arm in range(2):
            bought = positives[pair] if arm == 0 else control[pair]
            if bought:
                for j in range(rank):
                    right[j] += bought * items[i, arm, j]
            if n:
                weight = n * means[i, 0] if arm == 0 else -n * means[i, 1]
                for j in range(rank):
                    rows[filled, j] = items[i, arm, j]
                    weighted[filled, j] = weight * items[i, arm, j]
                filled += 1
    matrix = share * whole + rows[:filled].T @ weighted[:filled]
    for j in range(rank):
        matrix[j, j] += RIDGE
    return matrix, right


@compiled
def _solve_users(
    begin: Any, end: Any, start: Any, item: Any, treated: Any, positives: Any, control: Any, means: Any, items: Any,
    whole: Any, share: Any, goal: Any, users: Any,
) -> None:  # fmt: skip
    for user in range(begin, end):
        matrix, right = _user_system(
            user, start, item, treated, positives, control, means, items, whole, share[user], goal
        )
        users[user] = np.linalg.solve(matrix, right)


@compiled
def _solve_items(
    begin: Any, end: Any, start: Any, order: Any, user: Any, treated: Any, positives: Any, control: Any, means: Any,
    users: Any, whole: Any, share: Any, goal: Any, items: Any,
) -> None:  # fmt: skip
    """``order`` has the pairs item by item; ``goal`` is what the features of the items say, or empty."""
    rank = users.shape[1]
    for i in range(begin, end):
        middle = 0.5 * (items[i, 0] + items[i, 1])
        matrices, right = np.zeros((2, rank, rank)), np.zeros((2, rank))
        rows, weighted = np.empty((start[i + 1] - start[i], rank)), np.empty((start[i + 1] - start[i], rank))
        filled = 0
        for pair in order[start[i] : start[i + 1]]:
            x = users[user[pair]]
            for j in range(rank):
                right[0, j] += positives[pair] * x[j]
                right[1, j] += control[pair] * x[j]
            if treated[pair]:
                for j in range(rank):
                    rows[filled, j] = x[j]
                    weighted[filled, j] = treated[pair] * x[j]
                filled += 1
        matrices[0] = rows[:filled].T @ weighted[:filled]
        matrices[1] = (share[i] * whole - matrices[0]) * means[i, 1]
        matrices[0] *= means[i, 0]
        for arm in range(2):
            for j in range(rank):
                matrices[arm, j, j] += RIDGE
                right[arm, j] += RIDGE * (0.5 * (middle[j] + goal[i, arm, j]) if len(goal) else middle[j])
            items[i, arm] = np.linalg.solve(matrices[arm], right[arm])


@compiled
def _leave_one_out(
    begin: Any, end: Any, start: Any, item: Any, treated: Any, positives: Any, control: Any, chances: Any, means: Any,
    items: Any, whole: Any, share: Any, goal: Any, left_out: Any,
) -> None:  # fmt: skip
    """Both tastes of every pair without its own counts: (A − V D V')⁻¹ (b − V y) by Woodbury's identity."""
    for user in range(begin, end):
        matrix, right = _user_system(
            user, start, item, treated, positives, control, means, items, whole, share[user], goal
        )
        inverse = np.linalg.inv(matrix)
        x = inverse @ right
        for pair in range(start[user], start[user + 1]):
            i = item[pair]
            first, second = items[i, 0], items[i, 1]
            a, b = inverse @ first, inverse @ second
            aa, ab, bb = first @ a, first @ b, second @ b
            weight_t, weight_c = treated[pair] * means[i, 0], (chances[pair] - treated[pair]) * means[i, 1]
            # residuals r = y − D f solve (I − D H) g = r, and the tastes without the pair are f − H g
            f_t, f_c = first @ x, second @ x
            r_t, r_c = positives[pair] - weight_t * f_t, control[pair] - weight_c * f_c
            m11, m12, m21, m22 = 1 - weight_t * aa, -weight_t * ab, -weight_c * ab, 1 - weight_c * bb
            determinant = max(m11 * m22 - m12 * m21, 1e-3)
            g_t, g_c = (m22 * r_t - m12 * r_c) / determinant, (m11 * r_c - m21 * r_t) / determinant
            left_out[pair, 0] = f_t - aa * g_t - ab * g_c
            left_out[pair, 1] = f_c - ab * g_t - bb * g_c
