"""CUBN against its formula, pair by pair; DLCE's control weight at both ends."""

from __future__ import annotations

import numpy as np
import pytest

import taurank as tr
from support.builders import cells_frame, dense_log
from taurank.errors import InputError

RNG = np.random.default_rng(0)
TREATED = (RNG.random((12, 7, 5)) < 0.3).astype(int)
OUTCOME = (RNG.random((12, 7, 5)) < 0.25).astype(int)


def by_formula(similarity: str, by: str, power: float, weight: float) -> np.ndarray:
    """The docstring's formula with dense arrays and loops."""
    positives = [(TREATED * OUTCOME).sum(2), ((1 - TREATED) * OUTCOME).sum(2)]
    observations = [TREATED.sum(2), (1 - TREATED).sum(2)]
    sets = (OUTCOME if similarity == "outcome" else TREATED).any(axis=2).astype(float)
    sets = sets if by == "user" else sets.T
    lengths = np.maximum(np.sqrt(sets.sum(1)), 1)
    cosine = sets @ sets.T / np.outer(lengths, lengths)
    near = np.where(cosine > 0, cosine**power, 0.0)
    scores = np.zeros((12, 7))
    for u in range(12):
        for i in range(7):
            if by == "user":
                cells = [(near[u, v], v, i) for v in range(12)]
            else:
                cells = [(near[j, i], u, j) for j in range(7)]
            rates = [
                (sum(s * a[v, j] for s, v, j in cells) + weight * a[:, i].sum() / b[:, i].sum())
                / (sum(s * b[v, j] for s, v, j in cells) + weight)
                for a, b in zip(positives, observations, strict=True)
            ]
            scores[u, i] = rates[0] - rates[1]
    return scores


@pytest.mark.parametrize("similarity", ["outcome", "treatment"])
@pytest.mark.parametrize("by", ["user", "item"])
@pytest.mark.parametrize(("power", "weight"), [(0.5, 2.0), (3.0, 0.5)])
def test_scores_are_those_of_the_formula(similarity: str, by: str, power: float, weight: float) -> None:
    learner = tr.CUBN(similarity=similarity, by=by, power=power, weight=weight).fit(dense_log(TREATED, OUTCOME))
    scores = learner.score_block(np.arange(12, dtype=np.int32))
    assert np.allclose(scores, by_formula(similarity, by, power, weight), atol=1e-6)


def test_settings_are_checked() -> None:
    for options in ({"by": "time"}, {"similarity": "taste"}, {"weight": 0}, {"power": -1}):
        with pytest.raises(InputError):
            tr.CUBN(**options)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def log() -> tr.Log:
    return tr.World.synthetic(60, 30, random_state=0).sample(4, random_state=1).log


class TestControlWeight:
    """ρ = 0 is DLTO and ρ = 1 is DLCE, to the bit."""

    def factors(self, learner: tr.Learner, log: tr.Log) -> np.ndarray:
        learner.set_params(factors=8, epochs=3, random_state=0, threads=1).fit(log, None)
        return learner.user_factors_  # type: ignore[attr-defined,no-any-return]

    def test_at_the_ends(self, log: tr.Log) -> None:
        treated_only = self.factors(tr.DLTO(), log)
        assert np.array_equal(self.factors(tr.DLCE(control_weight=0), log), treated_only)
        assert np.array_equal(self.factors(tr.DLCE(control_weight=1), log), self.factors(tr.DLCE(), log))
        between = self.factors(tr.DLCE(control_weight=0.5), log)
        assert not np.array_equal(between, treated_only)
        assert not np.array_equal(between, self.factors(tr.DLCE(), log))

    def test_scales_the_control_positives_alone(self, log: tr.Log) -> None:
        whole, half = (tr.DLCE(control_weight=weight).gains(log).value for weight in (1.0, 0.5))
        assert np.array_equal(half, np.where(whole < 0, 0.5 * whole, whole))


def test_scores_are_finite_whatever_the_values() -> None:
    frame = cells_frame(12, 5, 3, 0).assign(value=lambda rows: 1e200 * rows["outcome"])
    scores = tr.CUBN().fit(tr.Log.from_frame(frame)).score_block(np.arange(12, dtype=np.int32))
    assert np.isfinite(scores).all()
