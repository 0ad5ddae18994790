"""What is special about some learners; what all of them promise is in test_testing.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from taurank import Log, World
from taurank.errors import InputError
from taurank.evaluation.metrics import position_weights
from taurank.learners import BPR, LEARNERS, Learner, Popular, Random, load
from taurank.learners.factors import FactorLearner

TRAINED = [name for name, learner in LEARNERS.items() if issubclass(learner, FactorLearner)]
SMALL: dict[str, Any] = {"factors": 16, "epochs": 40, "learning_rate": 0.03, "rate_decay": 1.0}


def make(name: str, **options: Any) -> Learner:
    settings = {**SMALL, **options} if name in TRAINED else options
    return LEARNERS[name](**{"random_state": 0, **settings})


def worth(learner: Learner, target: Any, k: int = 10) -> float:
    """P@k of the learner's ranking by dense gains."""
    scores = learner.score_block(np.arange(len(learner.users), dtype=np.int32))
    return float((position_weights(scores, f"P@{k}") * target).sum(axis=1).mean())


@pytest.mark.parametrize("name", TRAINED)
def test_finds_planted_structure_better_than_popular_on_its_own_target(name: str, world: World, log: Log) -> None:
    p, treated, control = (
        rates.astype(np.float64) for rates in (world.propensity, world.treated_rate, world.control_rate)
    )
    targets = {"bpr": p * treated + (1 - p) * control, "dlto": treated}
    target = targets.get(name, treated - control)
    kind: Any = LEARNERS[name]
    learner = kind(factors=16, random_state=0)  # the defaults of learning
    assert worth(learner.fit(log, None), target) > 1.1 * worth(Popular().fit(log), target)


@pytest.mark.parametrize("name", LEARNERS)
@pytest.mark.parametrize("shape", [(1, 8), (8, 1), (2, 2)])
def test_tiny_worlds(name: str, shape: tuple[int, int]) -> None:
    flat = np.full(shape, 0.5)
    tiny = World(flat, flat, flat, np.arange(shape[0]), np.arange(shape[1])).sample(20, random_state=0).log
    frame = make(name, **_quick(name)).fit(tiny).recommend(k=3)
    assert len(frame) == shape[0] * min(3, shape[1])
    assert np.isfinite(frame["score"]).all()


def _quick(name: str) -> dict[str, Any]:
    return {"epochs": 3, "factors": 5} if name in TRAINED else {}


@pytest.mark.parametrize("name", TRAINED)
def test_a_log_without_positives_is_refused(name: str, log: Log) -> None:
    nothing = Log.from_frame(log.to_frame().assign(outcome=0))
    with pytest.raises(InputError, match=r"found no|needs"):
        make(name).fit(nothing)


@pytest.mark.parametrize("name", ["dlce", "dlto"])
def test_propensities_are_asked_for(name: str, log: Log) -> None:
    without = Log.from_frame(log.to_frame().drop(columns="propensity"))
    with pytest.raises(InputError, match=r"needs the column 'propensity'.*estimate"):
        make(name).fit(without)


class TestStore:
    def test_broken_model_files(self, log: Log, tmp_path: Path) -> None:
        path = tmp_path / "model"
        Popular().fit(log).save(path)
        whole = path.read_bytes()
        altered = bytearray(whole)
        altered[len(whole) // 2] ^= 4
        for content in (b"", whole[:-5], whole[:40], bytes(altered), b"PK\x03\x04 something", whole + b"\0"):
            path.write_bytes(content)
            with pytest.raises(ValueError, match=r"not a complete taurank file|checksum mismatch"):
                load(path)
        with pytest.raises(ValueError, match=r"the file .* does not exist"):
            load(tmp_path / "none")

    def test_random_is_stable_and_uniform(self, log: Log) -> None:
        scores = Random(random_state=3).fit(log).score_block(np.arange(300, dtype=np.int32))
        assert 0 <= scores.min() < scores.max() < 1
        assert scores.mean() == pytest.approx(0.5, abs=0.01)

    def test_bpr_negatives_avoid_what_was_bought_that_time(self) -> None:
        """Two items, both always bought together: nothing is left to compare with, so nothing is learned."""
        rows = pd.DataFrame({"user_id": [0, 0, 1, 1], "item_id": [0, 1, 0, 1], "treated": 0, "outcome": 1})
        learner = BPR(random_state=0, factors=4, epochs=5, regularization=0.0).fit(Log.from_frame(rows))
        assert learner.history_["updates"].sum() == 0
