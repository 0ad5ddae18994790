"""Taste and exposure: what a user's other items say about a pair, and what being recommended says.

The log-odds of the rates of a pair are bilinear in one vector per user and three per item,

    logit μ^a_ui = x̃_u · w^a_i,    x̃_u = (1, x_u),    a ∈ {T, C, Z}:

a purchase with the recommendation, a purchase without it, and the recommendation itself. Recommendations follow
tastes, so Z is a witness of taste that needs no recorded propensity. The priors are x_u ~ N(0, I) and, for the three
vectors of an item together, w_i ~ N(ν, S). ν and S are learned (EM), so the log says how far an item's effect follows
from its purchases, and how many dimensions are of use. With features f_u and g_i, M f_u takes the place of 0, and
ν + B g_i that of ν.

q(x_u) and q(w_i) are normal. By Jaakkola and Jordan's bound on log σ(η), a cell with n trials and y positives enters
as least squares, with weight n ω(ξ), ω(ξ) = tanh(ξ/2) / 2ξ, and linear term y − n/2 (Durante and Rigon 2019). ξ is
|η| of the last sweep. Where pairs without rows, untreated and negative, are too many to be written down, those of
an item have one ξ, from their mean η²: so they enter as one matrix, and the cost is that of the pairs with rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_array
from scipy.special import expit, logit

from taurank._arrays import row_order
from taurank._jit import compiled, dot32, inlined, vectorized
from taurank._threads import map_blocks, one_blas_thread
from taurank._types import Codes, Floats, Floats32, Longs
from taurank.data.features import Features
from taurank.data.ids import Ids
from taurank.learners.features import Ridge, trust
from taurank.learners.pairs import COUNTS, Pairs, without_cold

ARMS = 3  # T, C, Z
SWEEPS = 8
STARTS = 4  # steps of subspace iteration before the first sweep
FOLDS = 4  # of the users' half of a sweep, where items are known
SPREAD, SHARED = 0.3, 0.8  # the first S: variances, and how far the vectors of an item agree
ABSENT = np.array([0.0, -0.5, -0.5])  # y − n/2 of one trial of a pair without rows
USERS_AT_ONCE = 4096
SPELLED_OUT = 3  # times as many pairs as have rows, at most


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


@dataclass(frozen=True)
class Latent:
    """q(x) and q(w): means, and E[x̃ x̃'] and E[w^a w^a'] as lower triangles. R is the rank and one more."""

    users: Floats32  # users × R, the first is 1
    user_squares: Floats32  # users × R (R + 1) / 2
    items: Floats32  # items × 3 × R
    item_squares: Floats32

    def moments(self, users: Codes) -> Floats:
        """E[μ^T], E[μ^C] and E[(μ^T − μ^C)²] of all items of these users: 3 × users × items."""
        x, squares = _padded(self.users[users]), _padded(self.user_squares[users] * _twice(self.users.shape[1]))
        rates, variance = [], 0.0
        for arm in range(2):
            mean = x @ self.items[:, arm].T.astype(np.float64)
            spread = np.maximum(squares @ self.item_squares[:, arm].T.astype(np.float64) - mean**2, 0.0)
            rates.append(expit(mean / np.sqrt(1.0 + np.pi / 8.0 * spread)))  # E[σ(η)] of a normal η, nearly
            variance = variance + spread * (rates[arm] * (1.0 - rates[arm])) ** 2
        return np.stack((*rates, (rates[0] - rates[1]) ** 2 + variance))[:, : len(users)]


def _padded(rows: Any) -> Floats:
    """With rows of zeros up to a multiple of sixteen: one shape of product, so one order of its sums."""
    return np.concatenate((rows, np.zeros((-len(rows) % 16, rows.shape[1])))).astype(np.float64)


class Shares(NamedTuple):
    """The product of two shares is about the number of chances of their pair."""

    users: Floats
    items: Floats

    @classmethod
    def of(cls, pairs: Pairs) -> Shares:
        every = max(1, pairs.users)
        return cls(pairs.user_cells * (every / max(1.0, pairs.user_cells.sum())), pairs.item_cells / every)


def fit_latent(
    pairs: Pairs, rank: int, threads: int | None = 1, covariates: Covariates = NOTHING_KNOWN, sweeps: int = SWEEPS
) -> Latent:
    """Sweeps: items, then ν and S, then users, whose vectors are turned to have mean 0 and covariance I."""
    pairs = _spelled_out(pairs)
    n_items, size, warm, shares = pairs.n_items, rank + 1, pairs.item_cells > 0, Shares.of(pairs)
    by_item, order = row_order(pairs.item, n_items)
    counts = _counts(pairs)
    shown, *bought = pairs.item_sums().sum(1)
    trials = np.array([shown, pairs.item_cells.sum() - shown, pairs.item_cells.sum()])
    w: Any = np.zeros((n_items, ARMS, size))
    w[:, :, 0] = logit((np.array([*bought, shown]) + 0.5) / (trials + 1.0))
    goal: Any = w.reshape(n_items, -1)
    covariance = SPREAD * np.kron(SHARED + (1.0 - SHARED) * np.eye(ARMS), np.eye(size))
    x = np.column_stack((np.ones(pairs.n_users), _begin(pairs, rank)))
    x_squares, w_squares = _squares(x, 0.1 * np.diag(np.arange(size) > 0)), _squares(w, 0.0)
    user_map = None if covariates.users is None else Ridge(covariates.users, trust(pairs.bought_by_user()))
    item_map = None if covariates.items is None else Ridge(covariates.items, trust(pairs.bought_by_item()))
    user_goal, own = np.zeros((1, rank)), np.zeros((n_items, ARMS))
    idle_pairs = np.maximum(pairs.users - pairs.by_item(np.minimum(pairs.rows, 1)), 0.5)[:, None]
    arms = [slice(arm * size, (arm + 1) * size) for arm in range(ARMS)]
    with one_blas_thread():
        for _ in range(sweeps):
            idle = _idle(w_squares, x_squares, shares.users > 0, own, idle_pairs)
            q: Any = (idle * shares.items[:, None])[:, :, None] * (shares.users @ x_squares)
            h: Any = ABSENT[None, :, None] * shares.items[:, None, None] * (shares.users @ x)
            q, h = _short(q, h)
            given = counts, idle, *_short(w, x[:, None]), x_squares[:, None]
            _add_in_blocks(by_item, order, counts[1], given, (q, h, own), threads)
            inverse = np.linalg.inv(covariance)
            precision, right = np.tile(inverse, (n_items, 1, 1)), goal @ inverse
            for arm, own_part in enumerate(arms):
                precision[:, own_part, own_part] += _unpacked(q[:, arm])
                right[:, own_part] += h[:, arm]
            spread = np.linalg.inv(precision)
            w = np.einsum("iab,ib->ia", spread, right)
            nu = w[warm].mean(0)
            goal = np.tile(nu, (n_items, 1)) if item_map is None else nu + item_map.predict(w - nu)
            apart = (w - goal)[warm]
            covariance = (apart.T @ apart + spread[warm].sum(0) + 1e-3 * np.eye(len(nu))) / len(apart)
            w = np.where(warm[:, None], w, goal).reshape(n_items, ARMS, size)
            w_squares = _squares(w, np.stack([spread[:, part, part] for part in arms], 1))
            idle = _idle(w_squares, x_squares, shares.users > 0, own, idle_pairs)
            x_squares = _solve_users(pairs, shares, idle, x, w, w_squares, user_goal, threads)
            turn = _turn(x, x_squares, shares.users > 0)
            back: Any = np.linalg.inv(turn)
            x, x_squares = x @ back, _turned(x_squares, back.T)
            user_goal = user_goal if user_map is None else user_map.predict(x[:, 1:])
            w, w_squares, whole = w @ turn.T, _turned(w_squares, turn), np.kron(np.eye(ARMS), turn)
            goal, covariance = goal @ whole.T, whole @ covariance @ whole.T
    return Latent(_short(x)[0], x_squares, _short(w)[0], w_squares)


def fold_latent(pairs: Pairs, latent: Latent, goal: Floats | None, threads: int | None = 1) -> Latent:
    """Vectors of new users from their own pairs; those of the items stay. ``goal`` is what features say."""
    rank, w = latent.users.shape[1] - 1, latent.items.astype(np.float64)
    goal = np.zeros((1, rank)) if goal is None else goal
    x: Any = np.column_stack((np.ones(pairs.n_users), np.broadcast_to(goal, (pairs.n_users, rank))))
    idle = _idle(
        latent.item_squares, latent.user_squares, np.ones(len(latent.users), np.bool_), 0.0, len(latent.users)
    )
    with one_blas_thread():
        for _ in range(FOLDS):
            squares = _solve_users(pairs, Shares.of(pairs), idle, x, w, latent.item_squares, goal, threads)
    return replace(latent, users=_short(x)[0], user_squares=squares)


def goal_of(matrix: Any, bought: Floats, vectors: Floats) -> Floats:
    """What features say about the vectors of users, those of the known ones given."""
    return Ridge(matrix, trust(bought)).predict(vectors[:, 1:])


def _solve_users(
    pairs: Pairs, shares: Shares, idle: Floats32, x: Floats, w: Floats, squares: Floats32, goal: Floats,
    threads: int | None,
) -> Floats32:  # fmt: skip
    """Set the vectors x of all users given the items'; returns E[x̃ x̃']."""
    size, counts, (of_x, of_w) = x.shape[1], _counts(pairs), _short(x, w)
    whole = np.einsum("ia,iat->t", idle * shares.items[:, None], squares)
    right: Any = shares.items @ (w * ABSENT[:, None]).sum(1)
    result: Floats32 = np.empty((len(x), squares.shape[2]), np.float32)
    order = np.arange(len(pairs.item))
    for begin, end in _parts(len(x)):
        q, h = _short(*(shares.users[begin:end, None, None] * each for each in (whole, right)))
        given = counts, idle, of_x[begin:end, None], of_w, squares
        sums = q, h, np.zeros((end - begin, 1))
        _add_in_blocks(pairs.start[begin : end + 1], order, counts[0], given, sums, threads)
        q, h = q[:, 0], h[:, 0]
        matrix: Any = _unpacked(q)
        spread: Any = np.zeros_like(matrix)
        spread[:, 1:, 1:] = np.linalg.inv(matrix[:, 1:, 1:] + np.eye(size - 1))
        pull = goal if len(goal) == 1 else goal[begin:end]
        x[begin:end, 1:] = np.einsum("uab,ub->ua", spread[:, 1:, 1:], h[:, 1:] - matrix[:, 1:, 0] + pull)
        result[begin:end] = _squares(x[begin:end], spread)
    return result


def _turn(x: Floats, squares: Floats32, used: Any) -> Floats:
    """The R × R matrix L with x̃ = L z̃, where z has mean 0 and covariance I over these users."""
    size, number = x.shape[1], np.count_nonzero(used)
    second = _unpacked(used.astype(np.float32) @ squares / max(1, number))
    turn = np.eye(size)
    turn[1:, 0] = second[0, 1:]
    turn[1:, 1:] = np.linalg.cholesky(
        second[1:, 1:] - np.outer(second[0, 1:], second[0, 1:]) + 1e-6 * np.eye(size - 1)
    )
    return np.asarray(turn.T)


def _spelled_out(pairs: Pairs) -> Pairs:
    """With all pairs, where those without rows are not too many: each has its own ξ then."""
    cells = pairs.n_users * pairs.n_items
    if cells > SPELLED_OUT * len(pairs.item):
        return pairs
    at = pairs.user * np.int64(pairs.n_items) + pairs.item
    columns: dict[str, Any] = {name: np.zeros(cells, np.int32) for name in COUNTS}
    for name, column in columns.items():
        column[at] = getattr(pairs, name)
    columns["rows"][:] = 1
    chances = np.rint(np.outer(*Shares.of(pairs))).astype(np.int32).ravel()
    chances[at] = pairs.chances
    return replace(
        pairs, **columns, start=np.arange(pairs.n_users + 1) * pairs.n_items,
        item=np.tile(np.arange(pairs.n_items, dtype=np.int32), pairs.n_users), chances=chances,
        propensity=None,
    )  # fmt: skip


def _begin(pairs: Pairs, rank: int) -> Floats:
    """Subspace iteration with the counts of all arms, less their means, in units of their deviations."""
    shape = pairs.n_users, pairs.n_items
    parts: list[Any] = []
    for counts in (pairs.treated_positives, pairs.control_positives, pairs.treated):
        mean = pairs.by_item(counts) / max(1, pairs.users)
        scale = 1.0 / np.sqrt(mean + 0.5 / max(1, pairs.users))
        matrix = csr_array(((counts * scale[pairs.item]).astype(np.float32), pairs.item, pairs.start), shape)
        parts.append((matrix, csr_array(matrix.T), (mean * scale).astype(np.float32)))
    x: Any = np.random.default_rng(0).standard_normal((pairs.n_users, rank)).astype(np.float32)
    for _ in range(STARTS):
        basis = _orthogonal(x)
        x = np.zeros_like(x)
        for matrix, turned, mean in parts:
            of_items = turned @ basis - np.outer(mean, basis.sum(0))
            x += matrix @ of_items - mean @ of_items
    return np.asarray(_orthogonal(x) * np.sqrt(pairs.n_users), np.float64)


def _orthogonal(x: Any) -> Any:
    """As many columns as ``x`` has, also where there are fewer rows."""
    basis = np.linalg.qr(x)[0]
    return np.pad(basis, ((0, 0), (0, x.shape[1] - basis.shape[1])))


def _idle(squares: Floats32, user_squares: Floats32, used: Any, own: Any, pairs: Any) -> Floats32:
    """The weight of a trial of the pairs of each item without rows: items × 3; ``own`` is Σ η² of those with rows."""
    size = int(np.sqrt(2 * squares.shape[2]))
    total = squares @ (used.astype(np.float32) @ user_squares * _twice(size))
    root = np.sqrt(np.maximum((total - own) / pairs, 1e-2))
    return np.asarray(np.tanh(0.5 * root) / (2.0 * root) * (ABSENT != 0.0), np.float32)


def _counts(pairs: Pairs) -> tuple[Any, ...]:
    return (
        pairs.item, pairs.user, pairs.treated, pairs.treated_positives, pairs.control_positives,
        np.ascontiguousarray(pairs.chances),
    )  # fmt: skip


def _add_in_blocks(start: Longs, order: Any, other: Codes, data: Any, sums: Any, threads: int | None) -> None:
    map_blocks(lambda begin, end: _add_pairs(begin, end, start, order, other, data, sums), len(start) - 1, threads)


def _short(*arrays: Floats) -> tuple[Floats32, ...]:
    return tuple(each.astype(np.float32) for each in arrays)


def _parts(n: int) -> Iterator[tuple[int, int]]:
    return ((begin, min(n, begin + USERS_AT_ONCE)) for begin in range(0, n, USERS_AT_ONCE))


def _squares(mean: Floats, covariance: Any) -> Floats32:
    """The lower triangles of m m' + V."""
    rows, columns = np.tril_indices(mean.shape[-1])
    spread = np.broadcast_to(covariance, (*mean.shape, mean.shape[-1]))[..., rows, columns]
    return np.ascontiguousarray(mean[..., rows] * mean[..., columns] + spread, np.float32)


def _unpacked(triangles: Any) -> Floats:
    size = int(np.sqrt(2 * triangles.shape[-1]))
    rows, columns = np.tril_indices(size)
    matrices = np.empty((*triangles.shape[:-1], size, size))
    matrices[..., rows, columns] = matrices[..., columns, rows] = triangles
    return matrices


def _turned(triangles: Floats32, turn: Floats) -> Floats32:
    """L A L' of every matrix A."""
    rows, columns = np.tril_indices(len(turn))
    turned = np.empty_like(triangles)
    for begin, end in _parts(len(triangles)):
        turned[begin:end] = (turn @ _unpacked(triangles[begin:end]) @ turn.T)[..., rows, columns]
    return turned


def _twice(size: int) -> Floats32:
    """What makes the product of two lower triangles that of the matrices."""
    rows, columns = np.tril_indices(size)
    return np.where(rows == columns, np.float32(1.0), np.float32(2.0))


@vectorized
def _add(scale: Any, row: Any, total: Any) -> None:
    for j in range(len(row)):
        total[j] += scale * row[j]


@inlined
def _site(arm: Any, treated: Any, positives: Any, control: Any, chances: Any, eta: Any, idle: Any) -> Any:
    """The weight n ω and the linear term y − n/2 of a pair in an arm, less those of a pair without rows."""
    n = treated if arm == 0 else chances - treated if arm == 1 else chances
    y = positives if arm == 0 else control if arm == 1 else treated
    s = np.float32(0.25) * eta * eta  # tanh(√s) / √s by its continued fraction
    top = np.float32(10395.0) + s * (np.float32(1260.0) + np.float32(21.0) * s)
    omega = np.float32(0.25) * top / (top + s * (np.float32(3465.0) + s * (np.float32(189.0) + s)))
    absent = np.float32(0.0) if arm == 0 else np.float32(chances)
    linear = np.float32(y) - np.float32(0.5) * (np.float32(n) - absent)
    return np.float32(n) * omega - absent * idle, linear


@compiled
def _add_pairs(begin: Any, end: Any, start: Any, order: Any, other: Any, data: Any, sums: Any) -> None:
    """Add the pairs with rows to the normal equations q, h of users or of items, and their η² to ``total``.

    ``other`` is the item of each pair of a user, or the user of each pair of an item. Users have one vector for all
    arms, items one for each.
    """
    counts, idle, own_vectors, vectors, squares = data
    item, _, treated, positives, control, chances = counts
    q, h, total = sums
    for row in range(begin, end):
        total[row] = 0.0
        for at in range(start[row], start[row + 1]):
            p = order[at]
            for arm in range(ARMS):
                if arm == 0 and treated[p] == 0:
                    continue
                mine, its = min(arm, h.shape[1] - 1), min(arm, vectors.shape[1] - 1)
                eta = dot32(own_vectors[row, mine], vectors[other[p], its])
                total[row, mine] += eta * eta
                site = _site(arm, treated[p], positives[p], control[p], chances[p], eta, idle[item[p], arm])
                _add(site[0], squares[other[p], its], q[row, mine])
                _add(site[1], vectors[other[p], its], h[row, mine])
