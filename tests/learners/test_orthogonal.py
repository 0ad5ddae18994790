"""RankLearner: its labels, its corrections, its gradient; factors that start from another model."""

from __future__ import annotations

import numpy as np
import pytest

from taurank import BPR, DLCE, CausE, EmpiricalBayes, InputError, Log, Popular, RankLearner, World
from taurank.learners.empirical_bayes.choice import Fits
from taurank.learners.empirical_bayes.counts import count
from taurank.learners.orthogonal import NUISANCES, soft_pairs
from taurank.learners.starting import SPREAD, factors_of
from taurank.sgd.losses import LOGISTIC, pair_gradient
from taurank.sgd.samplers import draw
from taurank.sgd.soft_pairs import soft_label


@pytest.fixture(scope="module")
def log() -> Log:
    return World.synthetic(60, 12, 0, rank=2, overlap=0.2).sample(5, random_state=1).log


def label_twin(effect: float, correction: float, kappa: float) -> float:
    s = 1 / (1 + np.exp(-effect / kappa))
    return float(np.clip(s + s * (1 - s) / kappa * correction, 0, 1))


def test_corrections_are_cross_fitted_sums_over_cells(log: Log) -> None:
    """Cell by cell: the rates of the odd times correct the even ones, and the other way round."""
    cap, pairs, whole = 0.05, soft_pairs(log, 0.05), count(log)
    assert whole.propensity is not None
    effect, correction = np.zeros((60, 12)), np.zeros((60, 12))
    rows = {
        (u, i, t): (z, y)
        for u, i, t, z, y in zip(log.user, log.item, log.time, log.treated, log.outcome, strict=True)
    }
    chance = np.full((60, 12), np.nan)
    chance[whole.user, whole.item] = np.clip(whole.propensity, cap, 1 - cap)
    for half in (0, 1):
        times = [t for t in range(5) if t % 2 == half]
        learned = count(log.select(times=[log.times.values[t].as_py() for t in range(5) if t % 2 != half]))
        result = Fits(learned, 1).counted(NUISANCES)
        rates = np.broadcast_to(result.absent, (60, 12, 3)).copy()
        rates[learned.user, learned.item] = result.pair
        effect += len(times) / 5 * (rates[:, :, 0] - rates[:, :, 1])
        for u, i in zip(whole.user, whole.item, strict=True):
            for t in times:
                z, y = rows.get((u, i, t), (0, 0))
                p = chance[u, i]
                correction[u, i] += (z * (y - rates[u, i, 0]) / p - (1 - z) * (y - rates[u, i, 1]) / (1 - p)) / 5
    at = (whole.user, whole.item)
    assert pairs.effect == pytest.approx(effect[at], abs=1e-5)
    assert pairs.correction == pytest.approx(correction[at], abs=1e-4)


def test_samples_have_the_soft_label_on_average(log: Log) -> None:
    learner = RankLearner(temperature=0.05, threads=1)
    pairs, n = soft_pairs(log, learner.cap), 60_000
    dense_effect, dense_correction = (
        np.tile(absent, (60, 1)) for absent in (pairs.absent_effect, pairs.absent_correction)
    )
    dense_effect[pairs.user, pairs.item], dense_correction[pairs.user, pairs.item] = pairs.effect, pairs.correction
    samples = draw(learner.sampler_of(log), n, 60, np.uint64(3), 1)
    u, i, j = samples["user"], samples["item"], samples["other"]
    assert (i != j).all()
    assert set(np.unique(samples["weight"])) == {-1.0, 1.0}
    expected = np.array([
        label_twin(dense_effect[a, b] - dense_effect[a, c], dense_correction[a, b] - dense_correction[a, c], 0.05)
        for a, b, c in zip(u, i, j, strict=True)
    ])  # fmt: skip
    drawn = (samples["weight"] > 0).astype(float)
    for part in (expected < 0.3, (expected >= 0.3) & (expected < 0.7), expected >= 0.7):
        error = np.sqrt(np.sum(expected[part] * (1 - expected[part])) + 1e-9) / part.sum()
        assert drawn[part].mean() == pytest.approx(expected[part].mean(), abs=4 * error + 1e-9)


@pytest.mark.parametrize("label", [0.0, 0.2, 0.9])
@pytest.mark.parametrize("score", [-1.5, 0.3])
def test_the_mean_gradient_of_drawn_labels_is_that_of_the_cross_entropy(score: float, label: float) -> None:
    def loss(s: float) -> float:
        return float(label * np.log1p(np.exp(-s)) + (1 - label) * np.log1p(np.exp(s)))

    f32, step = np.float32, 1e-4
    slope = -(loss(score + step) - loss(score - step)) / (2 * step)
    up, down = (pair_gradient(f32(score), f32(weight), LOGISTIC, f32(1)) for weight in (1, -1))
    assert label * up + (1 - label) * down == pytest.approx(slope, abs=1e-5)


def test_the_label_is_the_formula_and_stays_between_0_and_1() -> None:
    for effect, correction in ((0.02, 0.01), (-0.1, 0.5), (0.1, -3.0), (0.0, 0.0)):
        assert soft_label(effect, correction, 0.05) == pytest.approx(label_twin(effect, correction, 0.05))


def test_it_finds_effects_better_than_popular() -> None:
    world = World.synthetic(400, 40, 2, rank=2, effect_spread=1.0)
    log = world.sample(10, random_state=3).log
    learner = RankLearner(factors=8, epochs=60, learning_rate=0.1, random_state=0, threads=1).fit(log, None)
    effect = (world.treated_rate - world.control_rate).ravel()
    codes = np.arange(400, dtype=np.int32)
    ours, popular = (
        np.corrcoef(model.score_block(codes).ravel(), effect)[0, 1] for model in (learner, Popular().fit(log))
    )
    assert ours > popular + 0.1


def test_what_it_cannot_learn_from_is_refused(log: Log) -> None:
    with pytest.raises(InputError, match="at least two times"):
        RankLearner(factors=2, epochs=1).fit(log.select(times=[0]), None)


# start


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
