"""The learning rate falls as declared, whatever the threads and interruptions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from taurank import BPR, DLCE, ULBPR, CausE, Log, World
from taurank.learners.training import Schedule
from taurank.sgd.scheduler import Factors

EPOCHS = 6
KINDS = [BPR, DLCE, ULBPR, CausE]


@pytest.fixture(scope="module")
def small() -> Log:
    return World.synthetic(60, 40, random_state=0).sample(4, random_state=1).log


def learner_of(kind: Any, **options: Any) -> Any:
    return kind(**{"factors": 5, "epochs": EPOCHS, "threads": 1, "random_state": 3, **options})


def iterates(kind: Any, log: Log, rates: Any) -> list[Factors]:
    """Slow twin: the factors after every epoch, each run by a learner of its own with a constant rate."""
    seed = int(np.random.default_rng(3).integers(2**63))
    tables, after = learner_of(kind)._initial(log, seed), []
    for number, rate in enumerate(rates):
        learner_of(kind, learning_rate=float(rate), rate_decay=1.0).prepare(log).run(tables, seed, number, rate, 1)
        after.append(Factors(tables.users[:, :5].copy(), tables.items[:, :5].copy()))
    return after


def user_factors(learner: Any) -> Any:
    return learner.user_factors_


@pytest.mark.parametrize("decay", [0.5, 0.01])
def test_the_rates_are_a_geometric_sequence_from_end_to_end(decay: float) -> None:
    rates = [Schedule(11, 0.03, decay).rate(epoch) for epoch in range(11)]
    assert rates == pytest.approx(np.geomspace(0.03, 0.03 * decay, 11))
    assert Schedule(1, 0.03, decay).rate(0) == 0.03


def test_without_decay_the_rate_is_the_very_same_number() -> None:
    assert {Schedule(7, 0.1).rate(epoch) for epoch in range(7)} == {0.1}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("decay", [1.0, 0.05])
def test_every_epoch_runs_at_its_rate(kind: Any, decay: float, small: Log) -> None:
    fitted = learner_of(kind, learning_rate=0.1, rate_decay=decay).fit(small, None)
    rates = [Schedule(EPOCHS, 0.1, decay).rate(epoch) for epoch in range(EPOCHS)]
    assert np.array_equal(user_factors(fitted), iterates(kind, small, rates)[-1].users)


def test_the_factors_of_the_best_epoch_are_those_that_were_measured_there(small: Log) -> None:
    truth = World.synthetic(60, 40, random_state=0).sample(2, random_state=2).truth
    learner, seen = learner_of(DLCE, learning_rate=0.1, rate_decay=1.0, epochs=30), []
    learner.fit(small, truth, validate_every=1, patience=None, callback=lambda now, _: seen.append(now.user_factors_))
    best = int(np.argmax(learner.history_["CDCG"]))
    assert best < 29  # else this shows nothing
    assert np.array_equal(learner.user_factors_, seen[best])
