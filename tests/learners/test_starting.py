"""Factors that start from another model."""

from __future__ import annotations

import numpy as np
import pytest

from taurank import BPR, DLCE, CausE, EmpiricalBayes, InputError, Log, Popular, World
from taurank.learners.starting import SPREAD, factors_of


@pytest.fixture(scope="module")
def log() -> Log:
    return World.synthetic(60, 12, 0, rank=2, overlap=0.2).sample(5, random_state=1).log


def test_the_start_is_the_truncated_decomposition(log: Log) -> None:
    model = EmpiricalBayes(prior="taste", rank=3, strength=3.0, threads=1).fit(log)
    scores = model.score_block(np.arange(60, dtype=np.int32)).astype(float)
    centered = scores - scores.mean(1, keepdims=True)
    left, size, right = np.linalg.svd(centered, full_matrices=False)
    best = (left[:, :4] * size[:4]) @ right[:4] * (SPREAD / centered.std())
    tables = factors_of(model, log, 4)
    assert tables.users[:, :4] @ tables.items[:, :4].T == pytest.approx(best, abs=2e-3)


def test_more_factors_than_items_have_zeros(log: Log) -> None:
    tables = factors_of(EmpiricalBayes(prior="item", strength=3.0, threads=1).fit(log), log, 40)
    assert not tables.users[:, 12:].any()
    assert np.isfinite(tables.items).all()


def test_training_begins_where_the_model_is(log: Log) -> None:
    model = EmpiricalBayes(threads=1, rank=3).fit(log)
    learner = DLCE(factors=12, epochs=1, learning_rate=1e-9, random_state=0, threads=1).fit(log, None, start=model)
    codes = np.arange(60, dtype=np.int32)
    ours, theirs = learner.score_block(codes), model.score_block(codes)
    assert (ours.argmax(1) == theirs.argmax(1)).mean() > 0.9
    again = DLCE(factors=12, epochs=1, learning_rate=1e-9, random_state=5, threads=1).fit(log, None, start=model)
    assert (again.score_block(codes).argmax(1) == theirs.argmax(1)).mean() > 0.9


def test_a_start_that_does_not_fit_is_refused(log: Log) -> None:
    other = Popular().fit(World.synthetic(30, 12, 0).sample(2, 0).log)
    with pytest.raises(InputError, match="other users or items"):
        BPR(factors=2, epochs=1).fit(log, None, start=other)
    with pytest.raises(InputError, match="leave start out"):
        CausE(factors=2, epochs=1).fit(log, None, start=Popular().fit(log))
    with pytest.raises(InputError, match="leave start out"):
        Popular().fit(log, start=Popular().fit(log))
    with pytest.raises(InputError, match="start must be"):
        BPR(factors=2, epochs=1).fit(log, None, start="model")  # type: ignore[arg-type]
