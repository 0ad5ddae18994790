"""The paper's section 4.3, equation by equation, on a world small enough to write everything out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from taurank import BLCE, BPR, DLCE, DLTO, Log, World
from taurank.sgd.losses import SURROGATES, pair_loss


@pytest.fixture(scope="module")
def log() -> Log:
    return World.synthetic(12, 9, random_state=0).sample(6, random_state=1).log


def rows(log: Log) -> Any:
    return log.to_frame().itertuples()


def test_the_local_loss_counts_the_items_above() -> None:
    """Eq. (local_loss1): with r = 1 + Σ_j 1(s_j > s_i) the loss of item i is r (Ỹ^T − Ỹ^C).

    Summed over all other items j, the steep sigmoid loss of s_i − s_j is (r − 1) times the signed weight."""
    scores = np.random.default_rng(0).permutation(20)
    rank = np.argsort(np.argsort(-scores)) + 1
    for i in range(20):
        for weight in (2.5, -0.5):
            margins = np.delete(scores[i] - scores, i)
            total = sum(pair_loss(float(margin), weight, SURROGATES["sigmoid"], 50.0) for margin in margins)
            assert total == pytest.approx(weight * (rank[i] - 1), abs=1e-9)


@pytest.mark.parametrize("steepness", [0.5, 1.0, 3.0])
def test_the_surrogates_stand_for_the_indicator(steepness: float) -> None:
    """Eqs. (approximation) and (upper_bound): the logistic loss in base 2 and the hinge bound 1(x < 0), the
    sigmoid approaches it; in natural logarithms the logistic loss is no bound just below 0."""
    for x in np.linspace(-6, 6, 241):
        indicator = float(x < 0)
        logistic = pair_loss(x, 1.0, SURROGATES["logistic"], steepness)
        assert logistic / np.log(2) >= indicator
        assert pair_loss(x, 1.0, SURROGATES["hinge"], steepness) >= indicator
        sigmoid = pair_loss(x, 1.0, SURROGATES["sigmoid"], steepness)
        assert abs(sigmoid - indicator) <= 1 / (1 + np.exp(steepness * abs(x))) + 1e-12
    assert pair_loss(-1e-6, 1.0, SURROGATES["logistic"], steepness) < 1


def test_dlce_weighs_by_the_capped_propensity(log: Log) -> None:
    """Eq. (upper_bound_local_loss): + 1/max(P, χ^T) for treated positives, − 1/max(1−P, χ^C) for control ones."""
    gains = DLCE(cap_treated=0.4, cap_control=0.7).gains(log)
    expected = {
        (r.user_id, r.item_id, r.time): 1 / max(r.propensity, 0.4) if r.treated else -1 / max(1 - r.propensity, 0.7)
        for r in rows(log)
        if r.outcome
    }
    found = {(u, i, t): v for u, i, t, v in zip(gains.user, gains.item, gains.time, gains.value, strict=True)}
    assert found == pytest.approx(expected)


def test_dlto_keeps_the_treated_positives_of_dlce(log: Log) -> None:
    both, treated = DLCE(cap=0.1).gains(log), DLTO(cap=0.1).gains(log)
    assert np.array_equal(treated.value, both.value[both.value > 0])
    assert len(treated) == np.count_nonzero((log.treated == 1) & (log.outcome == 1))


def test_blce_takes_the_mean_propensity_over_all_cells(log: Log) -> None:
    mean = log.treated.sum() / (12 * 9 * 6)
    values = BLCE().gains(log).value
    assert set(np.round(values, 9)) == {round(1 / mean, 9), round(-1 / (1 - mean), 9)}


def test_bpr_weighs_all_positives_alike(log: Log) -> None:
    gains = BPR().gains(log)
    assert (gains.value == 1).all()
    assert len(gains) == log.outcome.sum()


@pytest.mark.parametrize("loss", SURROGATES)
def test_the_signs_of_algorithm_1(loss: str) -> None:
    """Treated purchases rise, control purchases fall: the printed lines 6 and 8 would do the opposite."""
    rows = pd.DataFrame({"user_id": 0, "item_id": [0, 1], "treated": [1, 0], "outcome": 1, "propensity": 0.5})
    log = Log.from_frame(rows, items=range(30))
    learner = DLCE(factors=8, epochs=60, learning_rate=0.1, loss=loss, random_state=0).fit(log, None)
    scores = learner.score([0], range(30))
    assert scores[0] > scores[2:].max()
    assert scores[1] < scores[2:].min()
