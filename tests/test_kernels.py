"""The training kernels against slow twins, finite differences, and themselves on more threads."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from taurank import epochs
from taurank.epochs import (
    Pairwise,
    Pointwise,
    Stats,
    Tables,
    factor_table,
    run_pairwise_epoch,
    run_pairwise_samples,
    run_pointwise_samples,
)
from taurank.errors import InputError
from taurank.kernels import HINGE, LOGISTIC, SIGMOID, drop, pair_loss, point_loss
from taurank.strata import SAMPLE, Baskets, Positives, Strata, by_user, deal

MASK = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15


def start_tables(n_users: int, rows: int, factors: int, scale: float = 0.5) -> Tables:
    random = np.random.default_rng(4)
    tables = Tables(factor_table(n_users, factors), factor_table(rows, factors))
    for table in tables:
        table[:, :factors] = scale * random.standard_normal((len(table), factors))
    return tables


def copied(tables: Tables) -> Tables:
    twins = Tables(*(factor_table(*table.shape) for table in tables))
    for twin, table in zip(twins, tables, strict=True):
        twin[:] = table
    return twins


def some_positives(n_users: int, n_items: int, count: int) -> Positives:
    random = np.random.default_rng(8)
    weight = random.choice([-1, 1], count) * random.uniform(0.5, 4, count)
    user, item = random.integers(0, n_users, count), random.integers(0, n_items, count)
    return by_user(user, item, weight, n_users, n_items)


def some_samples(n_users: int, n_items: int, count: int, point: bool) -> np.ndarray:
    random = np.random.default_rng(9)
    drawn = np.zeros(count, SAMPLE)
    drawn["user"] = random.integers(0, n_users, count)
    drawn["item"] = random.integers(0, n_items, count)
    drawn["other"] = (drawn["item"] + random.integers(1, n_items, count)) % n_items
    drawn["weight"] = random.normal(size=count)
    if point:
        drawn["item"] += n_items * random.integers(0, 2, count).astype(np.int32)
        drawn["other"] = (drawn["item"] + n_items) % (2 * n_items)
        drawn["weight"] = random.integers(0, 2, count)
    return drawn


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


def slow_units(entries: Positives, strata: Strata, seed: int, epoch: int) -> Iterator[list]:  # type: ignore[type-arg]
    users = shuffled(strata.n_users, strata.blocks, stream(seed, epoch, 1))
    items = shuffled(strata.n_items, strata.blocks, stream(seed, epoch, 2))
    for unit in range(strata.blocks**2):
        shift, a = divmod(unit, strata.blocks)
        block = items[(a + shift) % strata.blocks]
        key = stream(stream(seed, epoch, 3), unit, 0)
        samples: list[tuple[Any, ...]] = []
        for u in users[a]:
            for n in range(entries.start[u], entries.start[u + 1]):
                if (i := entries.item[n]) in block:
                    j = block[below(key, len(samples), len(block) - 1)]
                    samples.append((u, i, block[-1] if j == i else j, entries.weight[n]))
        yield samples


def pull(score: float, weight: float, rule: Pairwise) -> Any:
    x = rule.steepness * score
    sign = 1 if weight > 0 else -1
    if rule.surrogate == LOGISTIC:
        return weight * rule.steepness / (1 + np.exp(sign * x))
    if rule.surrogate == SIGMOID:
        return weight * rule.steepness * np.exp(x) / (1 + np.exp(x)) ** 2
    return weight * rule.steepness * float(sign * x < 1)


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


def slow_pairs(tables: Tables, samples: list, rule: Pairwise) -> None:  # type: ignore[type-arg]
    p, q = tables

    def score(sample):  # type: ignore[no-untyped-def]
        u, i, j, _ = sample
        return p[u] @ (q[i] - q[j])

    def step(sample, s):  # type: ignore[no-untyped-def]
        u, i, j, weight = sample
        g, eta, gamma = pull(s, weight, rule), rule.learning_rate, rule.regularization
        changes = g * (q[i] - q[j]) - gamma * p[u], g * p[u] - gamma * q[i], -g * p[u] - gamma * q[j]
        for table, row, change in zip((p, q, q), (u, i, j), changes, strict=True):
            table[row] += eta * change

    walk(samples, score, step)


def slow_points(tables: Tables, samples: list, rule: Pointwise) -> None:  # type: ignore[type-arg]
    p, q = tables
    eta, gamma = rule.learning_rate, rule.regularization
    pending: list[tuple[int, int]] = []

    def score(sample):  # type: ignore[no-untyped-def]
        s = p[sample[0]] @ q[sample[1]]
        while pending:  # the tie follows the step and the score taken with it
            i, o = pending.pop()
            apart = q[i] - q[o]
            q[i] -= eta * rule.tie * apart
            q[o] += eta * rule.tie * apart
        return s

    def step(sample, s):  # type: ignore[no-untyped-def]
        u, i, o, target = sample
        g = target - 1 / (1 + np.exp(-s))
        p[u], q[i] = (
            p[u] + eta * (g * q[i] - gamma * p[u]), q[i] + eta * (g * p[u] - gamma * q[i]),
        )  # fmt: skip
        pending.append((i, o))

    walk(samples, score, step)


def float64(tables: Tables) -> Tables:
    return Tables(*(table.astype(np.float64) for table in tables))  # type: ignore[arg-type]


def assert_close(fast: Tables, slow: Tables, tolerance: float = 2e-5) -> None:
    for a, b in zip(fast, slow, strict=True):
        np.testing.assert_allclose(a, b, atol=tolerance)


@pytest.mark.parametrize("surrogate", [LOGISTIC, SIGMOID, HINGE])
def test_a_pass_equals_its_twin(surrogate: int) -> None:
    entries, strata = some_positives(30, 64, 9_000), Strata(30, 64, 9_000)
    rule = Pairwise(0.01, 0.02, 1.5, surrogate)
    fast = start_tables(30, 64, 12)
    slow = float64(fast)
    stats = run_pairwise_epoch(fast, entries, strata, 5, 2, rule)
    for samples in slow_units(entries, strata, 5, 2):
        slow_pairs(slow, samples, rule)
    assert strata.blocks > 1
    assert stats.updates == 9_000
    assert stats.finite
    assert_close(fast, slow, 5e-5)


def test_drawn_pairs_equal_their_twin() -> None:
    strata, drawn = Strata(30, 64, 9_000), some_samples(30, 64, 9_000, point=False)
    rule, fast = Pairwise(0.01, 0.02, 1.5), start_tables(30, 64, 12)
    slow = float64(fast)
    stats = run_pairwise_samples(fast, drawn, strata, 5, 2, rule)
    dealt, start = deal(strata, strata.cut_pairs(5, 2), strata.schedule_pairs(), drawn)
    for a, b in itertools.pairwise(start):
        slow_pairs(slow, [tuple(sample) for sample in dealt[a:b].tolist()], rule)
    assert strata.pair_blocks > 1
    assert stats.updates == 9_000
    assert_close(fast, slow, 5e-5)


@pytest.mark.parametrize("tie", [0.0, 0.3])
def test_drawn_points_equal_their_twin(tie: float) -> None:
    strata, drawn = Strata(30, 64, 9_000), some_samples(30, 64, 9_000, point=True)
    rule, fast = Pointwise(0.01, 0.02, tie), start_tables(30, 128, 12)
    slow = float64(fast)
    stats = run_pointwise_samples(fast, drawn, strata, 5, 2, rule)
    dealt, start = deal(strata, strata.cut(5, 2), strata.schedule(), drawn)
    for a, b in itertools.pairwise(start):
        slow_points(slow, [tuple(sample) for sample in dealt[a:b].tolist()], rule)
    assert strata.blocks > 1
    assert stats.updates == 9_000
    assert_close(fast, slow, 5e-5)


def one_step(sample: tuple, point: bool, rule: Pairwise | Pointwise) -> tuple[Tables, Tables]:  # type: ignore[type-arg]
    before = start_tables(2, 6, 8)
    after, drawn = copied(before), np.array([sample], SAMPLE)
    run = run_pointwise_samples if point else run_pairwise_samples
    run(after, drawn, Strata(2, 3 if point else 6, 1), 0, 0, rule)  # type: ignore[arg-type]
    return float64(before), float64(after)


def descent(tables: Tables, objective: Callable[[Tables], float], eta: float) -> Tables:
    """tables - eta * gradient, the gradient by central differences."""
    moved = Tables(*(table.copy() for table in tables))
    for table, target in zip(tables, moved, strict=True):
        for cell in np.ndindex(table.shape):
            keep, h = table[cell], 1e-5
            table[cell] = keep + h
            high = objective(tables)
            table[cell] = keep - h
            low = objective(tables)
            table[cell] = keep
            target[cell] -= eta * (high - low) / (2 * h)
    return moved


@pytest.mark.parametrize("weight", [2.5, -1.5])
@pytest.mark.parametrize("surrogate", [LOGISTIC, SIGMOID, HINGE])
def test_a_pairwise_step_descends_its_loss(surrogate: int, weight: float) -> None:
    rule, (u, i, j) = Pairwise(0.1, 0.3, 1.7, surrogate), (1, 4, 2)

    def objective(tables: Tables) -> float:
        p, a, b = tables.users[u], tables.items[i], tables.items[j]
        size = sum(float(row @ row) for row in (p, a, b))
        x = rule.steepness * p @ (a - b)
        loss = {
            LOGISTIC: abs(weight) * np.log1p(np.exp(-np.sign(weight) * x)),
            SIGMOID: weight / (1 + np.exp(x)),
            HINGE: abs(weight) * max(0.0, 1 - np.sign(weight) * x),
        }[surrogate]
        return float(loss) + rule.regularization / 2 * size

    before, after = one_step((u, i, j, weight), False, rule)
    assert_close(after, descent(before, objective, rule.learning_rate), 2e-6)


@pytest.mark.parametrize("target", [0, 1])
def test_a_pointwise_step_descends_its_loss(target: int) -> None:
    # One step of the loss, then one of the tie: together the gradient, to the order of eta^2.
    rule, (u, i, o) = Pointwise(1e-3, 0.3, 0.4), (1, 4, 1)

    def objective(tables: Tables) -> float:
        p, a, b = tables.users[u], tables.items[i], tables.items[o]
        log_loss = -np.log(1 / (1 + np.exp(-(2 * target - 1) * p @ a)))
        size = float(p @ p + a @ a)
        tie = float((a - b) @ (a - b))
        return float(log_loss) + rule.regularization / 2 * size + rule.tie / 2 * tie

    before, after = one_step((u, i, o, target), True, rule)
    want = descent(before, objective, rule.learning_rate)
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
    got = np.array([drop(value) for value in x])
    with np.errstate(over="ignore"):
        want = 1 / (1 + np.exp(x.astype(np.float64)))
    assert abs(got - want).max() < 1e-6
    assert np.isfinite(drop(np.float32(np.nan)))


Run = Callable[[Tables, int], Stats]


def runs() -> dict[str, Run]:
    strata, positives = Strata(200, 150, 40_000), some_positives(200, 150, 40_000)
    pairs, points = (some_samples(200, 150, 40_000, point) for point in (False, True))
    rule, point_rule = Pairwise(0.02, 0.01), Pointwise(0.02, 0.01, 0.1)
    return {
        "pass": lambda t, n: run_pairwise_epoch(t, positives, strata, 3, 1, rule, n),
        "pairs": lambda t, n: run_pairwise_samples(t, pairs, strata, 3, 1, rule, n),
        "points": lambda t, n: run_pointwise_samples(t, points, strata, 3, 1, point_rule, n),
    }


@pytest.mark.parametrize("kind", ["pass", "pairs", "points"])
def test_bits_do_not_depend_on_threads(kind: str) -> None:
    run, start = runs()[kind], start_tables(200, 300, 20)
    want = copied(start)
    stats = run(want, 1)
    assert (want.items != start.items).any()
    for threads in (2, 3, 2, 3, 8):
        tables = copied(start)
        assert run(tables, threads) == stats
        assert all((a == b).all() for a, b in zip(tables, want, strict=True))


def test_a_worker_that_waits_in_vain_gives_its_ticket_back() -> None:
    strata, drawn = Strata(30, 64, 9_000), some_samples(30, 64, 9_000, point=False)
    want, tables, rule = start_tables(30, 64, 8), start_tables(30, 64, 8), Pairwise(0.02, 0.01)
    run_pairwise_samples(want, drawn, strata, 5, 2, rule)

    cut, schedule = strata.cut_pairs(5, 2), strata.schedule_pairs()
    samples, start = deal(strata, cut, schedule, drawn)
    users, items = (np.zeros(len(edges) - 1, np.int64) for edges in (cut.user_start, cut.item_start))
    board = epochs._Board(np.zeros(1, np.int64), users, items)
    nothing, none = np.zeros(0, np.int64), np.zeros(0, np.int32)
    job = epochs._Job(nothing, start[:-1], start[1:], np.uint64(0), Baskets(nothing, none))
    empty = Positives(nothing, none, np.zeros(0, np.float32), none)
    statistics = np.zeros((len(schedule.user), 5))
    work = (
        tables, empty, cut, schedule, samples, job, epochs._pair_rule(rule), board, statistics,
    )  # fmt: skip
    blocked = schedule.user[1]
    users[blocked] = -1  # as if another worker still had it
    assert epochs._take_tickets(-1, *work) == 1
    assert statistics[0, 2] > 0
    assert statistics[1, 2] == 0
    users[blocked] = 0
    assert epochs._take_tickets(1, *work) == -1
    assert all((a == b).all() for a, b in zip(tables, want, strict=True))


def test_another_epoch_or_seed_is_another_path() -> None:
    strata, entries = Strata(50, 60, 4_000), some_positives(50, 60, 4_000)
    ends = []
    for seed, epoch in ((1, 0), (1, 1), (2, 0), (2**64 - 1, 0)):
        tables = start_tables(50, 60, 8)
        run_pairwise_epoch(tables, entries, strata, seed, epoch, Pairwise(0.02, 0.01))
        ends.append(tables.items.tobytes())
    assert len(set(ends)) == len(ends)


def test_a_treated_positive_rises_and_a_control_positive_falls() -> None:
    tables, strata = start_tables(1, 40, 8, scale=0.1), Strata(1, 40, 2)
    entries = by_user(np.array([0, 0]), np.array([3, 9]), np.array([2.0, -2.0]), 1, 40)
    for epoch in range(300):
        run_pairwise_epoch(tables, entries, strata, 0, epoch, Pairwise(0.05, 0.001))
    scores = tables.items @ tables.users[0]
    assert scores.argmax() == 3
    assert scores.argmin() == 9


def test_negatives_are_uniform_over_the_other_items() -> None:
    # j is seen by the row it moves: nothing else moves rows other than i.
    strata, n_items, epochs = Strata(1, 6, 1), 6, 6_000
    entries, hits = by_user(np.array([0]), np.array([2]), np.array([1.0]), 1, n_items), np.zeros(6)
    for epoch in range(epochs):
        tables = start_tables(1, n_items, 8)
        before = tables.items.copy()
        run_pairwise_epoch(tables, entries, strata, 0, epoch, Pairwise(0.1, 0.0))
        hits += (tables.items != before).any(axis=1)
    assert hits[2] == epochs
    others = np.delete(hits, 2)
    assert others.sum() == epochs
    assert abs(others - epochs / 5).max() < 4.5 * np.sqrt(epochs * 0.2 * 0.8)


def test_negatives_avoid_the_basket() -> None:
    strata, n_items = Strata(1, 8, 2), 8
    bought = np.array([1, 2, 4, 5, 7], np.int32)
    baskets = Baskets(np.array([0, 5, 13]), np.concatenate([bought, np.arange(8, dtype=np.int32)]))
    for basket, skipped in ((0, 0), (1, 2)):
        entries = by_user(np.zeros(2), np.array([2, 4]), np.ones(2), 1, n_items, basket=np.full(2, basket))
        moved = np.zeros(n_items, bool)
        for epoch in range(60):
            tables = start_tables(1, n_items, 8)
            before = tables.items.copy()
            rule = Pairwise(0.1, 0.0)
            stats = run_pairwise_epoch(tables, entries, strata, 0, epoch, rule, 1, baskets)
            assert (stats.updates, stats.skipped) == (2 - skipped, skipped)
            moved |= (tables.items != before).any(axis=1)
        outside = [] if skipped else [0, 2, 3, 4, 6]
        assert np.flatnonzero(moved).tolist() == outside


@pytest.mark.parametrize(("n_users", "n_items", "count"), [(1, 1, 3), (1, 2, 1), (3, 2, 0), (1, 2, 7)])
def test_tiny_data(n_users: int, n_items: int, count: int) -> None:
    strata, entries = Strata(n_users, n_items, count), some_positives(n_users, n_items, count)
    tables = start_tables(n_users, n_items, 5)
    before = tables.items.copy()
    stats = run_pairwise_epoch(tables, entries, strata, 0, 0, Pairwise(0.1, 0.1), 3)
    assert stats.updates == (count if n_items > 1 else 0)
    assert (tables.items != before).any() == (stats.updates > 0)
    assert stats.finite


def test_padding_stays_zero() -> None:
    tables = start_tables(50, 60, 5)
    entries, strata = some_positives(50, 60, 4_000), Strata(50, 60, 4_000)
    run_pairwise_epoch(tables, entries, strata, 1, 0, Pairwise(0.05, 0.01))
    assert all(table.shape[1] == 8 and not table[:, 5:].any() for table in tables)
    assert all(table.ctypes.data % 64 == 0 for table in tables)


def test_divergence_is_told() -> None:
    tables = start_tables(50, 60, 8)
    entries, strata = some_positives(50, 60, 4_000), Strata(50, 60, 4_000)
    assert run_pairwise_epoch(tables, entries, strata, 1, 0, Pairwise(0.01, 0.01)).finite
    stats = [run_pairwise_epoch(tables, entries, strata, 1, n, Pairwise(1e4, 0.01)) for n in (1, 2)]
    assert not stats[-1].finite


def test_the_reported_loss_falls_while_learning() -> None:
    # Treated where user and item are of one kind, control where they are not.
    user, item = np.divmod(np.arange(60 * 80), 80)
    weight = np.where(user % 2 == item % 2, 1.0, -1.0)
    strata, entries = Strata(60, 80, len(user)), by_user(user, item, weight, 60, 80)
    tables, rule = start_tables(60, 80, 16, scale=0.2), Pairwise(0.05, 0.0)
    losses = [run_pairwise_epoch(tables, entries, strata, 1, e, rule).loss for e in range(20)]
    assert losses[0] == pytest.approx(np.log(2), rel=0.1)
    assert np.mean(losses[-5:]) < 0.7 * np.log(2)


def test_wrong_tables_are_refused() -> None:
    strata, entries = Strata(4, 5, 10), some_positives(4, 5, 10)
    good = start_tables(4, 5, 8)
    wrong: list[tuple[Any, Any]] = [
        (good.users.astype(np.float64), good.items),
        (good.users[:3], good.items),
        (good.users, good.items[:, :4]),
        (good.users, factor_table(5, 16)),
        (np.asfortranarray(good.users), good.items),
    ]
    for users, items in wrong:
        with pytest.raises(InputError, match="factors"):
            run_pairwise_epoch(Tables(users, items), entries, strata, 0, 0, Pairwise(0.1, 0.1))
