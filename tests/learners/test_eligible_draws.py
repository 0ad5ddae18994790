"""Draws of all kinds of logs: the frequencies over eligible cells equal the definition, cell by cell."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from support.builders import cells_frame, sparse_log
from taurank import ULBPR, ULRMF, CausE, Log
from taurank._random import uniform, uniforms
from taurank.data.eligibility import Eligibility
from taurank.sgd.samplers import draw

N, DRAWS = (4, 6, 3), 200_000
KEY = np.uint64(99)
TP, TN, CP, CN = range(4)


@pytest.fixture(scope="module", params=["everything", "visits", "candidates", "both", "listed"])
def log(request: Any) -> Log:
    rng = np.random.default_rng(1)
    frame = cells_frame(*N, low=0.3)
    whole = sparse_log(frame.assign(outcome=rng.integers(0, 2, len(frame))))
    (user, at), (item, when) = np.nonzero(rng.random((N[0], N[2])) < 0.7), np.nonzero(rng.random((N[1], N[2])) < 0.7)
    tables: dict[str, Any] = {
        "everything": (None, None),
        "visits": ((user, at), None),
        "candidates": (None, (None, item, when)),
        "both": ((user, at), (None, item, when)),
        "listed": (None, np.nonzero(rng.random(N) < 0.6)),
    }
    table = Eligibility.from_positions(whole.catalog, *tables[request.param])
    return replace(whole.take(table.contains(whole.user, whole.item, whole.time)), eligibility=table)


def classes(log: Log) -> dict[tuple[int, int], dict[int, list[int]]]:
    """(user, time) -> class -> eligible items, straight from the definition."""
    columns = (log.user, log.item, log.time, log.treated, log.outcome)
    rows = {(u, i, t): (z, y) for u, i, t, z, y in np.column_stack(columns).tolist()}
    result: dict[tuple[int, int], dict[int, list[int]]] = {}
    for u, i, t in np.ndindex(N):
        if log.eligibility.contains(u, i, t):
            z, y = rows.get((u, i, t), (0, 0))
            kind = {(1, 1): TP, (1, 0): TN, (0, 1): CP, (0, 0): CN}[z, y]
            result.setdefault((u, t), {c: [] for c in range(4)})[kind].append(i)
    return result


def assert_frequencies(drawn: list[Any], expected: dict[Any, float]) -> None:
    counts = pd.Series(drawn).value_counts(normalize=True)
    assert sum(expected.values()) == pytest.approx(1.0)
    assert set(counts.index) <= {key for key, p in expected.items() if p > 0}
    for key, probability in expected.items():
        assert counts.get(key, 0.0) == pytest.approx(probability, abs=5 * np.sqrt(max(probability, 1e-6) / DRAWS))


def samples(learner: Any, log: Log) -> Any:
    one, two = (draw(learner.sampler(log), DRAWS, log.n_users, KEY, threads) for threads in (1, 3))
    assert (one == two).all()
    return one


def test_uniforms_are_the_numbers_of_uniform() -> None:
    counters = np.arange(5, dtype=np.uint64) * np.uint64(2**61)
    assert uniforms(KEY, counters).tolist() == [uniform(KEY, counter) for counter in counters]


@pytest.mark.parametrize("alpha", [0.0, 0.6])
def test_pairs(log: Log, alpha: float) -> None:
    cells, expected = classes(log), defaultdict[Any, float](float)
    for share, kinds in ((1 - alpha, [(TP, CN), (TP, TN), (TP, CP)]),
                         (alpha, [(TP, TN), (TP, CP), (CN, TN), (CN, CP)])):  # fmt: skip
        served = [pair for pair in kinds if any(c[pair[0]] and c[pair[1]] for c in cells.values())]
        for one, two in served:
            able = [slot for slot, c in cells.items() if c[one] and c[two]]
            times = {t for _, t in able}
            for u, t in able:
                at = share / len(served) / len(times) / sum(other == t for _, other in able)
                for i in cells[u, t][one]:
                    for j in cells[u, t][two]:
                        expected[u, i, j] += at / len(cells[u, t][one]) / len(cells[u, t][two])
    drawn = samples(ULBPR(positive_share=alpha), log)
    assert_frequencies([(u, i, j) for u, i, j, _ in drawn.tolist()], expected)


def test_cells_by_class(log: Log) -> None:
    cells, expected = classes(log), defaultdict[Any, float](float)
    sizes = {c: sum(len(one[c]) for one in cells.values()) for c in range(4)}
    for (u, _), one in cells.items():
        for c, items in one.items():
            positive = 1.0 if c == TP else 0.3 if c == CN else 0.0
            for i in items:
                share = (0.1 if c in (TP, CP) else 0.4) / sizes[c]
                expected[u, i, 1.0] += positive * share
                expected[u, i, 0.0] += (1 - positive) * share
    drawn = samples(ULRMF(positives=0.2, positive_share=0.3), log)
    assert (drawn["other"] == drawn["item"]).all()
    assert_frequencies([(u, i, y) for u, i, _, y in drawn.tolist()], expected)


def test_cells_by_arm(log: Log) -> None:
    cells, expected = classes(log), defaultdict[Any, float](float)
    for shift, positive, negative in ((0, TP, TN), (log.n_items, CP, CN)):
        having = {slot: c for slot, c in cells.items() if c[positive] or c[negative]}
        for (u, _), c in having.items():
            share = 0.5 / len(having) / (len(c[positive]) + len(c[negative]))
            for i in c[positive]:
                expected[u, i + shift, (i + log.n_items - shift), 1.0] += share
            for i in c[negative]:
                expected[u, i + shift, (i + log.n_items - shift), 0.0] += share
    assert_frequencies([tuple(one) for one in samples(CausE(), log).tolist()], expected)


@pytest.mark.parametrize("kind", [ULBPR, ULRMF, CausE])
def test_fits_and_holds_out(log: Log, kind: Any) -> None:
    learner = kind(factors=3, epochs=20, random_state=0, threads=1).fit(log)
    assert np.isfinite(learner.score_block(np.arange(N[0], dtype=np.int32))).all()
