"""Taste: what a user's other items say about a pair.

In each arm the rate of a pair is μ^a_ui ≈ m^a_i · f^a(x_u·v^a_i), a ∈ {T, C}: the item's mean times a factor, from
one vector per user and two per item. The variance of positives is near their expectation, so x and v minimize

    Σ_{u,i,a} n^a_ui m^a_i (y^a_ui / (n^a_ui m^a_i) − x_u·v^a_i)² + λ Σ_u |x_u − e|² + λ Σ_{i,a} |v^a_i − v̄_i|²,

with e = (1, 0, …, 0), so that without data every factor is 1, and v̄ halfway between the arms. Each vector has a
closed form given the others (alternating least squares), and absent pairs enter through one
matrix Σ_i m^C_i v^C_i v^C_i'. With features of users f_u, e + M f_u takes the place of e; with features of items g_i,
v̄ is halfway between the arms' middle and e + M^a g_i. The maps M are regressed again after every sweep.

Least squares is linear and tastes are not, so the link f is a Poisson regression of the purchases of each arm,

    log f(t) = a + b z + c z²,    z = log max(t, 0.02),

with a pull toward f(t) = t (a = 0, b = 1, c = 0) that weighs as much as one purchase. The prior of a pair is Gamma(k)
with mean m · f(x·v), where x comes from the user's other items alone (leave one out, a correction of rank two).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from taurank._arrays import row_order
from taurank._jit import compiled
from taurank._threads import map_blocks, one_blas_thread
from taurank._types import Codes, Floats, Floats32, Longs, Mask
from taurank.data.features import Features
from taurank.data.ids import Ids
from taurank.learners.empirical_bayes.counted import MAX_RATE, blocks, effect, item_rates
from taurank.learners.features import Ridge, trust
from taurank.learners.pairs import Pairs, without_cold

RIDGE, SWEEPS = 4.0, 8
LEAST = 0.02  # of x·v, which least squares can make negative
HIGHEST = 50.0  # of a level: beyond what has been seen, a parabola grows too fast
EDGES = np.geomspace(LEAST, HIGHEST, 64)  # pairs between two edges are one point of the regression
LINK_STEPS = 50
SAMPLED_USERS = 1024  # whose idle pairs the link is regressed on
USERS_AT_ONCE = 256
STRAIGHT: Floats = np.array([0.0, 1.0, 0.0])  # f(t) = t


class Covariates(NamedTuple):
    """The features of all users and of all items, one sparse matrix each; None without a table of them."""

    users: Any = None
    items: Any = None

    @classmethod
    def of(cls, features: Features | None, users: Ids, items: Ids) -> Covariates:
        return cls() if features is None else cls(features.matrix(users), features.matrix(items))

    def warm(self, pairs: Pairs) -> Pairs:
        """The counts; those who have features and no rows are new, and count for nothing."""
        return without_cold(pairs, self.users is not None, self.items is not None)


NOTHING_KNOWN = Covariates()


class VectorMap:
    """From the features of users, or of items, to their vectors of taste, whose first entry is 1 without data."""

    def __init__(self, matrix: Any, positives: Floats) -> None:
        """``positives`` are the purchases of each row, which its vector comes from."""
        self.ridge = Ridge(matrix, trust(positives))

    def predict(self, vectors: Floats) -> Floats:
        """What the features say about each vector, given all of them; any axes between the first and the last."""
        usual = np.eye(vectors.shape[-1])[0]
        predicted = self.ridge.predict((vectors - usual).reshape(len(vectors), -1))
        return np.asarray(predicted.reshape(-1, *vectors.shape[1:]) + usual)


@dataclass(frozen=True)
class Taste:
    """What taste needs to score the pairs of any user: vectors of users and, in both arms, of items, and the link."""

    users: Floats  # users × rank
    items: Floats  # items × 2 × rank
    means: Floats  # items × 2
    link: Floats


@dataclass(frozen=True)
class TastePrior:
    """Gamma around what the user's other items say; ``strength`` is its shape k."""

    strength: float
    pairs: Pairs
    taste: Taste
    left_out: Any  # x·v of every pair with rows, without its own counts; pairs × 2

    def moments(self, part: slice) -> Floats:
        """E[μ^T], E[μ^C] and E[(μ^T − μ^C)²] of a part of the pairs with rows; pairs × 3."""
        pairs, taste = self.pairs, self.taste
        item, treated = pairs.item[part], pairs.treated[part]
        trials = treated, pairs.chances[part] - treated
        positives = pairs.treated_positives[part], pairs.control_positives[part]
        means, variance = np.empty((2, len(item))), np.zeros(len(item))
        for arm in range(2):
            prior = level(taste.link[arm], self.left_out[part, arm]) * taste.means[item, arm]
            means[arm], of_arm = gamma_posterior(positives[arm], trials[arm], prior, self.strength)
            variance += of_arm
        return np.stack((*means, (means[0] - means[1]) ** 2 + variance), 1)

    def pair_rates(self, part: slice) -> Floats:
        return self.moments(part)[:, :2]

    def absent_control(self, users: Longs) -> Floats:
        prior = _prior_mean(self.taste, self.taste.users[users], 1)
        return gamma_posterior(0.0, self.pairs.absent_chances(), prior, self.strength)[0]

    def pair_effects(self) -> tuple[Floats32, Floats32]:
        """In blocks: the moments of all pairs would take more memory than the log."""
        mean, deviation = np.empty((2, len(self.left_out)), np.float32)
        for part in blocks(len(mean)):
            mean[part], deviation[part] = effect(self.moments(part))
        return mean, deviation


class System(NamedTuple):
    """The least squares as kernels see them: the counts of the pairs of each user, and what is known of the items."""

    start: Longs
    item: Codes
    treated: Codes
    positives: Codes
    control: Codes
    chances: Codes
    user_share: Floats  # the product of two shares is about the number of chances of their pair
    item_share: Floats
    means: Floats
    vectors: Floats
    whole: Floats  # Σ_i c_i m^C_i v^C_i v^C_i', the control arm of a user to whom nothing is shown; c are chances

    @classmethod
    def of(cls, pairs: Pairs, means: Floats, vectors: Floats) -> System:
        counts = pairs.treated, pairs.treated_positives, pairs.control_positives, pairs.chances
        users, item_share = max(1, pairs.users), pairs.item_cells / max(1, pairs.users)
        user_share = pairs.user_cells * (users / max(1.0, pairs.user_cells.sum()))
        whole = (vectors[:, 1] * (item_share[:, None] * means[:, 1:])).T @ vectors[:, 1]
        return cls(pairs.start, pairs.item, *counts, user_share, item_share, means, vectors, whole)


def fit_taste(
    pairs: Pairs, rank: int, strength: float, threads: int | None = 1, covariates: Covariates = NOTHING_KNOWN
) -> TastePrior:
    """Alternating least squares, then the link."""
    means, user = item_rates(pairs, covariates.items), pairs.user
    by_item, order = row_order(pairs.item, pairs.n_items)
    users, items = _begin(pairs.n_users, rank), _begin(2 * pairs.n_items, rank).reshape(-1, 2, rank)
    user_goal, item_goal = np.eye(rank)[:1], None  # what features say about items: nothing before the first sweep
    user_map = None if covariates.users is None else VectorMap(covariates.users, pairs.bought_by_user())
    item_map = None if covariates.items is None else VectorMap(covariates.items, pairs.bought_by_item())

    def solve_users() -> None:
        system = System.of(pairs, means, items)
        map_blocks(lambda begin, end: _solve_users(begin, end, system, user_goal, users), pairs.n_users, threads)

    def solve_items() -> None:
        system = System.of(pairs, means, items)
        whole = (users * system.user_share[:, None]).T @ users
        goal = np.repeat(0.5 * (items[:, :1] + items[:, 1:]), 2, axis=1)  # halfway between the arms
        goal = goal if item_goal is None else 0.5 * (goal + item_goal)
        map_blocks(
            lambda begin, end: _solve_items(begin, end, by_item, order, user, system, users, whole, goal),
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
        users, left_out = _users_of(pairs, means, items, user_goal, threads)
        link = fit_link(pairs, users, items, means, left_out)
    return TastePrior(strength, pairs, Taste(users, items, means, link), left_out)


def fold_taste(pairs: Pairs, taste: Taste, strength: float, goal: Floats | None = None) -> TastePrior:
    """Vectors of new users from their own pairs; those of the items stay. ``goal`` is what their features say."""
    goal = np.eye(taste.items.shape[2])[:1] if goal is None else goal
    with one_blas_thread():
        users, left_out = _users_of(pairs, taste.means, taste.items, goal, 1)
    return TastePrior(strength, pairs, replace(taste, users=users), left_out)


def _users_of(
    pairs: Pairs, means: Floats, items: Floats, goal: Floats, threads: int | None
) -> tuple[Floats, Floats32]:  # fmt: skip
    """The vectors of users given the items, and x·v of every pair with rows, without its own counts."""
    users, left_out = np.empty((pairs.n_users, items.shape[2])), np.empty((len(pairs.item), 2), np.float32)
    system = System.of(pairs, means, items)
    map_blocks(lambda begin, end: _solve_users(begin, end, system, goal, users), pairs.n_users, threads)
    map_blocks(lambda begin, end: _leave_one_out(begin, end, system, goal, left_out), pairs.n_users, threads)
    return users, left_out


def gamma_posterior(positives: Any, trials: Any, prior_mean: Any, shape: float) -> tuple[Floats, Floats]:
    """Mean and variance of a rate with a Gamma(shape) prior of this mean, given its counts."""
    rate = shape / prior_mean + trials
    mean = np.minimum((shape + positives) / rate, MAX_RATE)
    return np.asarray(mean), np.asarray(mean / rate)


def _prior_mean(taste: Taste, users: Floats, arm: int, is_cold: Any = False) -> Floats:
    product = users @ taste.items[:, arm].T
    factor = level(taste.link[arm], product)
    if np.any(is_cold):
        factor = np.where(is_cold, level(STRAIGHT, product), factor)
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


def level(coefficients: Floats, taste: Any) -> Floats:
    """f(x·v), which never falls: it goes on level from where the parabola would turn."""
    a, b, c = coefficients
    z = np.log(np.clip(taste, LEAST, HIGHEST))
    if abs(c) < 1e-9:
        b, c = max(b, 0.0), 0.0
    else:
        turn = -b / (2.0 * c)
        z = np.maximum(z, turn) if c > 0.0 else np.minimum(z, turn)
    return np.asarray(np.exp(np.clip(a + (b + c * z) * z, np.log(LEAST), np.log(HIGHEST))))


def fit_link(pairs: Pairs, users: Floats, items: Floats, means: Floats, left_out: Floats32) -> Floats:
    """The regressions of both arms; ``left_out`` is x·v of every pair with rows, without its own counts."""
    points = np.zeros((2, 3, len(EDGES) + 1))
    for part in blocks(len(pairs.item)):
        trials = pairs.treated[part], pairs.chances[part] - pairs.treated[part]
        bought = pairs.treated_positives[part], pairs.control_positives[part]
        for arm in range(2):
            used = _happened(pairs, part) & (trials[arm] > 0)
            expected = trials[arm][used] * means[pairs.item[part][used], arm]
            points[arm] += _points(left_out[part, arm][used], expected, bought[arm][used])
    for taste, idle in _idle_blocks(pairs, users, items[:, 1], means[:, 1]):
        points[1] += _points(taste, idle, np.zeros(len(idle)))
    return np.array([_regress(of_arm) for of_arm in points])


def _happened(pairs: Pairs, part: slice) -> Mask:
    """Which pairs were treated or bought."""
    return np.asarray((pairs.treated[part] > 0) | (pairs.control_positives[part] > 0))


def _points(taste: Any, expected: Floats, bought: Any) -> Floats:
    """By parts of x·v: the counts expected from item means, the same times z, and what was bought; 3 × parts."""
    part = np.searchsorted(EDGES, taste)
    z = np.log(np.clip(taste, LEAST, HIGHEST))
    return np.stack([np.bincount(part, weight, len(EDGES) + 1) for weight in (expected, expected * z, bought)])


def _idle_blocks(pairs: Pairs, users: Floats, items: Floats, means: Floats) -> Iterator[tuple[Floats, Floats]]:
    """x·v and expectation of all pairs of sampled users that were never treated and never bought."""
    sample = np.flatnonzero(pairs.user_cells > 0)
    everyone = len(sample)
    sample = sample[:: max(1, everyone // SAMPLED_USERS)]
    weight, absent = everyone / max(1, len(sample)) * means * (pairs.item_cells > 0), pairs.absent_chances()
    for first in range(0, len(sample), USERS_AT_ONCE):
        block: Longs = sample[first : first + USERS_AT_ONCE]
        chances = np.tile(absent, (len(block), 1))
        for at, user in enumerate(block):
            own = slice(pairs.start[user], pairs.start[user + 1])
            chances[at, pairs.item[own]] = np.where(_happened(pairs, own), 0, pairs.chances[own])
        yield (users[block] @ items.T).ravel(), (chances * weight).ravel()


def _regress(points: Floats) -> Floats:
    """Newton's method for the Poisson regression, with a normal prior of variance 1 around f(t) = t."""
    expected, moment, bought = points[:, points[0] > 0.0]
    z = moment / expected
    design = np.stack((np.ones_like(z), z, z * z), 1)
    coefficients = STRAIGHT.copy()
    for _ in range(LINK_STEPS):
        fitted = expected * np.exp(np.clip(design @ coefficients, -20.0, 20.0))
        slope = design.T @ (bought - fitted) - (coefficients - STRAIGHT)
        curvature = design.T @ (fitted[:, None] * design) + np.eye(3)
        coefficients += np.clip(np.linalg.solve(curvature, slope), -0.5, 0.5)
    return np.asarray(coefficients)


@compiled
def _user_system(user: Any, system: Any, goal: Any) -> Any:
    """Matrix and right side of the normal equations of one user; ``goal`` has one row per user, or one for all."""
    first, last, rank = system.start[user], system.start[user + 1], len(system.whole)
    terms, weighted = np.empty((2 * (last - first), rank)), np.empty((2 * (last - first), rank))
    right = RIDGE * goal[user % len(goal)]
    filled = 0
    for pair in range(first, last):
        i, n = system.item[pair], system.treated[pair]
        for arm in range(2):
            positives = system.positives[pair] if arm == 0 else system.control[pair]
            if positives:
                for j in range(rank):
                    right[j] += positives * system.vectors[i, arm, j]
            if n:
                weight = n * system.means[i, 0] if arm == 0 else -n * system.means[i, 1]
                for j in range(rank):
                    terms[filled, j] = system.vectors[i, arm, j]
                    weighted[filled, j] = weight * system.vectors[i, arm, j]
                filled += 1
    matrix = system.user_share[user] * system.whole + terms[:filled].T @ weighted[:filled]
    for j in range(rank):
        matrix[j, j] += RIDGE
    return matrix, right


@compiled
def _solve_users(begin: Any, end: Any, system: Any, goal: Any, users: Any) -> None:
    for user in range(begin, end):
        matrix, right = _user_system(user, system, goal)
        users[user] = np.linalg.solve(matrix, right)


@compiled
def _solve_items(
    begin: Any, end: Any, start: Any, order: Any, user: Any, system: Any, users: Any, whole: Any, goal: Any
) -> None:
    """``order`` has the pairs item by item; ``goal`` is what the vectors are pulled to."""
    rank = users.shape[1]
    for i in range(begin, end):
        matrices, right = np.zeros((2, rank, rank)), np.zeros((2, rank))
        rows, weighted = np.empty((start[i + 1] - start[i], rank)), np.empty((start[i + 1] - start[i], rank))
        filled = 0
        for pair in order[start[i] : start[i + 1]]:
            x = users[user[pair]]
            for j in range(rank):
                right[0, j] += system.positives[pair] * x[j]
                right[1, j] += system.control[pair] * x[j]
            if system.treated[pair]:
                for j in range(rank):
                    rows[filled, j] = x[j]
                    weighted[filled, j] = system.treated[pair] * x[j]
                filled += 1
        matrices[0] = rows[:filled].T @ weighted[:filled]
        matrices[1] = (system.item_share[i] * whole - matrices[0]) * system.means[i, 1]
        matrices[0] *= system.means[i, 0]
        for arm in range(2):
            for j in range(rank):
                matrices[arm, j, j] += RIDGE
                right[arm, j] += RIDGE * goal[i, arm, j]
            system.vectors[i, arm] = np.linalg.solve(matrices[arm], right[arm])


@compiled
def _leave_one_out(begin: Any, end: Any, system: Any, goal: Any, left_out: Any) -> None:
    """Both tastes of every pair without its own counts: (A − V D V')⁻¹ (b − V y) by Woodbury's identity.

    With f = V'x, H = V'A⁻¹V and the residuals r = y − D f, these are f − H g, where (I − D H) g = r.
    """
    for user in range(begin, end):
        matrix, right = _user_system(user, system, goal)
        inverse = np.linalg.inv(matrix)
        x = inverse @ right
        for pair in range(system.start[user], system.start[user + 1]):
            i = system.item[pair]
            first, second = system.vectors[i, 0], system.vectors[i, 1]
            a, b = inverse @ first, inverse @ second
            aa, ab, bb = first @ a, first @ b, second @ b
            weight_t = system.treated[pair] * system.means[i, 0]
            weight_c = (system.chances[pair] - system.treated[pair]) * system.means[i, 1]
            f_t, f_c = first @ x, second @ x
            r_t, r_c = system.positives[pair] - weight_t * f_t, system.control[pair] - weight_c * f_c
            m11, m12, m21, m22 = 1 - weight_t * aa, -weight_t * ab, -weight_c * ab, 1 - weight_c * bb
            determinant = max(m11 * m22 - m12 * m21, 1e-3)
            g_t, g_c = (m22 * r_t - m12 * r_c) / determinant, (m11 * r_c - m21 * r_t) / determinant
            left_out[pair, 0] = f_t - aa * g_t - ab * g_c
            left_out[pair, 1] = f_c - ab * g_t - bb * g_c
