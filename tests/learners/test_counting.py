"""CountingBayes against its formula, cell by cell, and its place in a search."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from support.builders import dense_log
from taurank import CountingBayes, Log, load
from taurank.errors import InputError

Dense = npt.NDArray[np.float64]


def oracle(treated: Any, outcome: Any, weight: float) -> Dense:
    """(a + w·m) / (b + w) per arm, from dense Z and Y of the shape users × items × times."""
    users, items, _ = treated.shape
    scores = np.zeros((users, items))
    for arm, sign in ((1, 1.0), (0, -1.0)):
        inside = treated == arm
        for i in range(items):
            everywhere = inside[:, i].any()
            seen, bought = (inside[:, i], outcome[:, i]) if everywhere else (inside, outcome)
            mean = bought[seen].sum() / seen.sum()
            for u in range(users):
                a, b = outcome[u, i][inside[u, i]].sum(), inside[u, i].sum()
                scores[u, i] += sign * (a + weight * mean) / (b + weight)
    return scores


def scores_of(learner: CountingBayes) -> npt.NDArray[np.float32]:
    return learner.score_block(np.arange(len(learner.users), dtype=np.int32))


@settings(max_examples=60, deadline=None)
@given(
    shape=st.tuples(st.integers(1, 5), st.integers(1, 5), st.integers(1, 4)),
    share=st.sampled_from([0.1, 0.5, 0.9]),
    weight=st.sampled_from([1e-3, 0.5, 2.0, 1e3]),
    seed=st.integers(0, 10_000),
)
def test_agrees_with_the_formula(shape: tuple[int, int, int], share: float, weight: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    treated, outcome = (rng.random(shape) < share).astype(int), rng.integers(0, 2, shape)
    treated.flat[0], treated.flat[-1] = 1, 0
    assume(treated.any())  # one cell alone has one arm
    learner = CountingBayes(weight=weight).fit(dense_log(treated, outcome))
    np.testing.assert_allclose(scores_of(learner), oracle(treated, outcome, weight), rtol=1e-5, atol=1e-6)


def test_items_that_were_always_or_never_treated_take_the_mean_of_the_arm() -> None:
    treated, outcome = np.zeros((3, 3, 2), int), np.zeros((3, 3, 2), int)
    treated[:, 1], treated[0, 2] = 1, 1  # item 0 never, item 1 always
    outcome[0, 1], outcome[1, 0, 0], outcome[0, 2, 1] = 1, 1, 1
    learner = CountingBayes(weight=1.0).fit(dense_log(treated, outcome))
    np.testing.assert_allclose(scores_of(learner), oracle(treated, outcome, 1.0), rtol=1e-6)
    # never treated: the treated part is the arm's 3 positives of 8, and the pair had none of 2 untreated
    assert learner.score([2], [0])[0] == pytest.approx(3 / 8 - (0 + 1 / 6) / (2 + 1))


def test_what_is_stored_grows_with_the_rows_only(tmp_path: Path) -> None:
    rows = pd.DataFrame({"user_id": [0, 1], "item_id": [0, 1], "treated": [1, 0], "outcome": [1, 1]})
    learner = CountingBayes().fit(Log.from_frame(rows, users=range(3000), items=range(3000)))
    learner.save(tmp_path / "model")
    assert (tmp_path / "model").stat().st_size < 300_000
    assert load(tmp_path / "model").score([0, 2], [0, 0]).tolist() == learner.score([0, 2], [0, 0]).tolist()


@pytest.mark.parametrize("weight", [0, -1.0, float("nan"), float("inf"), "1", True])
def test_bad_weights(weight: Any) -> None:
    with pytest.raises(InputError, match="weight must be"):
        CountingBayes(weight=weight)
