"""The training kernels against slow twins and finite differences."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

from support.factors import copied, some_pairs, some_points, some_positives, start_tables
from taurank.sgd.kernels import StepParams, pair_params, point_params
from taurank.sgd.losses import HINGE, LOGISTIC, SIGMOID, pair_loss, point_loss, sigmoid_neg
from taurank.sgd.scheduler import Factors, run_pairwise_epoch, run_samples
from taurank.sgd.strata import SAMPLE, Positives, Samples, Strata, deal

MASK = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15


# The slow twin: plain Python, float64, straight from the words of the two modules.


def scramble(word: int) -> int:
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & MASK
    return word ^ (word >> 31)


def stream(seed: int, epoch: int, purpose: int) -> int:
    key = scramble((seed + GOLDEN) & MASK)
    key = scramble(key ^ (epoch * GOLDEN & MASK))
    return scramble((key + purpose * GOLDEN) & MASK)


def below(key: int, counter: int, bound: int) -> int:
    return ((scramble((key + (counter + 1) * GOLDEN) & MASK) >> 32) * bound) >> 32


def shuffled(size: int, blocks: int, key: int) -> list[list[int]]:
    order = list(range(size))
    for n in range(size - 1, 0, -1):
        m = below(key, n, n + 1)
        order[n], order[m] = order[m], order[n]
    cuts = [n * size // blocks for n in range(blocks + 1)]
    return [order[a:b] for a, b in itertools.pairwise(cuts)]


def shuffled_groups(strata: Strata, seed: int, epoch: int) -> list[list[int]]:
    """User blocks drawn once for a fit, and their order in each epoch."""
    groups = shuffled(strata.n_users, strata.width, stream(seed, 0, 8))
    orders = [shuffled(len(group), 1, stream(stream(seed, epoch, 1), b, 0))[0] for b, group in enumerate(groups)]
    return [[group[n] for n in order] for group, order in zip(groups, orders, strict=True)]


def slow_units(entries: Positives, strata: Strata, seed: int, epoch: int) -> Iterator[list]:  # type: ignore[type-arg]
    users = shuffled_groups(strata, seed, epoch)
    items = shuffled(strata.n_items, strata.width, stream(seed, epoch, 2))
    for unit in range(strata.width**2):
        shift, a = divmod(unit, strata.width)
        block = items[(a + shift) % strata.width]
        key = stream(stream(seed, epoch, 3), unit, 0)
        samples: list[tuple[Any, ...]] = []
        for u in users[a]:
            for n in range(entries.start[u], entries.start[u + 1]):
                if (i := entries.item[n]) in block:
                    j = block[below(key, len(samples), len(block) - 1)]
                    samples.append((u, i, block[-1] if j == i else j, entries.weight[n]))
        yield samples


class Pairwise(NamedTuple):
    rate: float
    regularization: float
    steepness: float = 1.0
    surrogate: int = LOGISTIC

    def kernel(self) -> StepParams:
        return pair_params(*self)


class Pointwise(NamedTuple):
    rate: float
    regularization: float
    tie: float

    def kernel(self) -> StepParams:
        return point_params(*self)


def gradient(score: float, weight: float, params: Pairwise) -> Any:
    x = params.steepness * score
    sign = 1 if weight > 0 else -1
    if params.surrogate == LOGISTIC:
        return weight * params.steepness / (1 + np.exp(sign * x))
    if params.surrogate == SIGMOID:
        return weight * params.steepness * np.exp(x) / (1 + np.exp(x)) ** 2
    return weight * params.steepness * float(sign * x < 1)


def walk(samples: list, score: Callable, step: Callable) -> None:  # type: ignore[type-arg]
    """Two chains in turn; each scores its next sample right after its own step."""
    half = len(samples) // 2
    if not samples:
        return
    scores = [score(samples[0]), score(samples[half])]
    for n in range(len(samples) - half):
        for chain, here in ((0, n), (1, half + n)):
            if chain == 1 or n < half:
                step(samples[here], scores[chain])
                scores[chain] = score(samples[min(here + 1, len(samples) - 1)])


def slow_pairs(tables: Factors, samples: list, params: Pairwise) -> None:  # type: ignore[type-arg]
    p, q = tables

    def score(sample):  # type: ignore[no-untyped-def]
        u, i, j, _ = sample
        return p[u] @ (q[i] - q[j])

    def step(sample, s):  # type: ignore[no-untyped-def]
        u, i, j, weight = sample
        g, eta, gamma = gradient(s, weight, params), params.rate, params.regularization
        changes = g * (q[i] - q[j]) - gamma * p[u], g * p[u] - gamma * q[i], -g * p[u] - gamma * q[j]
        for table, row, change in zip((p, q, q), (u, i, j), changes, strict=True):
            table[row] += eta * change

    walk(samples, score, step)


def slow_points(tables: Factors, samples: list, params: Pointwise) -> None:  # type: ignore[type-arg]
    p, q = tables
    eta, gamma = params.rate, params.regularization

    def score(sample):  # type: ignore[no-untyped-def]
        return p[sample[0]] @ q[sample[1]]

    def step(sample, s):  # type: ignore[no-untyped-def]
        u, i, o, target = sample
        g = target - 1 / (1 + np.exp(-s))
        p[u], q[i] = (
            p[u] + eta * (g * q[i] - gamma * p[u]), q[i] + eta * (g * p[u] - gamma * q[i]),
        )  # fmt: skip
        apart = q[i] - q[o]
        q[i] -= eta * params.tie * apart
        q[o] += eta * params.tie * apart

    walk(samples, score, step)


def float64(tables: Factors) -> Factors:
    return Factors(*(table.astype(np.float64) for table in tables))  # type: ignore[arg-type]


def assert_close(fast: Factors, slow: Factors, tolerance: float = 2e-5) -> None:
    for a, b in zip(fast, slow, strict=True):
        np.testing.assert_allclose(a, b, atol=tolerance)


FACTORS = [12, 200]  # rows of at least WIDE = 128 columns have step loops of their own


@pytest.mark.parametrize("factors", FACTORS)
@pytest.mark.parametrize("surrogate", [LOGISTIC, SIGMOID, HINGE])
def test_a_pass_equals_its_twin(surrogate: int, factors: int) -> None:
    entries, strata = some_positives(30, 64, 9_000), Strata(30, 64, 9_000)
    params = Pairwise(0.01, 0.02, 1.5, surrogate)
    fast = start_tables(30, 64, factors)
    slow = float64(fast)
    stats = run_pairwise_epoch(fast, entries, strata, 5, 2, params.kernel())
    for samples in slow_units(entries, strata, 5, 2):
        slow_pairs(slow, samples, params)
    assert strata.width > 1
    assert stats.updates == 9_000
    assert stats.finite
    assert_close(fast, slow, 5e-5)


def sorted_by_user(drawn: Samples) -> Samples:
    """Samples of a user follow each other, as the samplers return them."""
    return drawn[np.argsort(drawn["user"], kind="stable")]


@pytest.mark.parametrize("factors", FACTORS)
def test_drawn_pairs_equal_their_twin(factors: int) -> None:
    strata, drawn = Strata(30, 64, 9_000, pairs=True), sorted_by_user(some_pairs(30, 64, 9_000))
    params, fast = Pairwise(0.01, 0.02, 1.5), start_tables(30, 64, factors)
    slow = float64(fast)
    stats, dealt = run_samples(fast, drawn, strata, 5, 2, params.kernel()), np.empty_like(drawn)
    for a, b in itertools.pairwise(deal(drawn, dealt, strata.cut(5, 2), strata.owners, len(strata.units))):
        slow_pairs(slow, [tuple(sample) for sample in dealt[a:b].tolist()], params)
    assert strata.width > 1
    assert stats.updates == 9_000
    assert_close(fast, slow, 5e-5)


@pytest.mark.parametrize("factors", FACTORS)
@pytest.mark.parametrize("tie", [0.0, 0.3])
def test_drawn_points_equal_their_twin(tie: float, factors: int) -> None:
    strata, drawn = Strata(30, 64, 9_000), sorted_by_user(some_points(30, 64, 9_000))
    params, fast = Pointwise(0.01, 0.02, tie), start_tables(30, 128, factors)
    slow = float64(fast)
    stats, dealt = run_samples(fast, drawn, strata, 5, 2, params.kernel()), np.empty_like(drawn)
    for a, b in itertools.pairwise(deal(drawn, dealt, strata.cut(5, 2), strata.owners, len(strata.units))):
        slow_points(slow, [tuple(sample) for sample in dealt[a:b].tolist()], params)
    assert strata.width > 1
    assert stats.updates == 9_000
    assert_close(fast, slow, 5e-5)


def one_step(sample: tuple, point: bool, params: Pairwise | Pointwise) -> tuple[Factors, Factors]:  # type: ignore[type-arg]
    before = start_tables(2, 6, 8)
    after, drawn = copied(before), np.array([sample], SAMPLE)
    run_samples(after, drawn, Strata(2, 3 if point else 6, 1, pairs=not point), 0, 0, params.kernel())
    return float64(before), float64(after)


def descent(tables: Factors, objective: Callable[[Factors], float], eta: float) -> Factors:
    """tables - eta * gradient, the gradient by central differences."""
    moved = Factors(*(table.copy() for table in tables))
    for table, target in zip(tables, moved, strict=True):
        for cell in np.ndindex(table.shape):
            before, h = table[cell], 1e-5
            table[cell] = before + h
            high = objective(tables)
            table[cell] = before - h
            low = objective(tables)
            table[cell] = before
            target[cell] -= eta * (high - low) / (2 * h)
    return moved


@pytest.mark.parametrize("weight", [2.5, -1.5])
@pytest.mark.parametrize("surrogate", [LOGISTIC, SIGMOID, HINGE])
def test_a_pairwise_step_descends_its_loss(surrogate: int, weight: float) -> None:
    params, (u, i, j) = Pairwise(0.1, 0.3, 1.7, surrogate), (1, 4, 2)

    def objective(tables: Factors) -> float:
        p, a, b = tables.users[u], tables.items[i], tables.items[j]
        size = sum(float(row @ row) for row in (p, a, b))
        x = params.steepness * p @ (a - b)
        loss = {
            LOGISTIC: abs(weight) * np.log1p(np.exp(-np.sign(weight) * x)),
            SIGMOID: weight / (1 + np.exp(x)),
            HINGE: abs(weight) * max(0.0, 1 - np.sign(weight) * x),
        }[surrogate]
        return float(loss) + params.regularization / 2 * size

    before, after = one_step((u, i, j, weight), False, params)
    assert_close(after, descent(before, objective, params.rate), 2e-6)


@pytest.mark.parametrize("target", [0, 1])
def test_a_pointwise_step_descends_its_loss(target: int) -> None:
    # One step of the loss, then one of the tie: together the gradient, to the order of eta^2.
    params, (u, i, o) = Pointwise(1e-3, 0.3, 0.4), (1, 4, 1)

    def objective(tables: Factors) -> float:
        p, a, b = tables.users[u], tables.items[i], tables.items[o]
        log_loss = -np.log(1 / (1 + np.exp(-(2 * target - 1) * p @ a)))
        size = float(p @ p + a @ a)
        tie = float((a - b) @ (a - b))
        return float(log_loss) + params.regularization / 2 * size + params.tie / 2 * tie

    before, after = one_step((u, i, o, target), True, params)
    want = descent(before, objective, params.rate)
    assert_close(after, want, 2e-6)
    assert abs(want.items[o] - before.items[o]).max() > 1e-4


def test_reported_losses_are_the_formulas() -> None:
    for s, w in ((0.7, 2.0), (0.7, -2.0), (-40.0, 3.0), (800.0, -3.0)):
        x = 1.5 * s
        signed = np.sign(w) * x
        assert pair_loss(s, w, LOGISTIC, 1.5) == pytest.approx(abs(w) * np.logaddexp(0, -signed))
        assert pair_loss(s, w, HINGE, 1.5) == pytest.approx(abs(w) * max(0, 1 - signed))
        assert pair_loss(s, w, SIGMOID, 1.5) == pytest.approx(w * np.exp(-np.logaddexp(0, x)))
    for s, y in ((0.3, 1.0), (-0.3, 0.0), (700.0, 0.0)):
        assert point_loss(s, y) == pytest.approx(np.logaddexp(0, s) - y * s)


def test_the_sigmoid_table_is_as_exact_as_it_says() -> None:
    x = np.concatenate([np.linspace(-20, 20, 20_001), [-1e30, 1e30, np.inf, -np.inf]])
    x = x.astype(np.float32)
    got = np.array([sigmoid_neg(value) for value in x])
    with np.errstate(over="ignore"):
        want = 1 / (1 + np.exp(x.astype(np.float64)))
    assert abs(got - want).max() < 1e-6
    assert np.isfinite(sigmoid_neg(np.float32(np.nan)))
