"""``check_learner`` passes every learner of taurank and a foreign one, and notices each broken promise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

from taurank import Gains, Log, gains
from taurank._types import Floats32
from taurank.learners import LEARNERS, Array, GainsPass, Learner, Popular
from taurank.testing import check_learner

Codes = Any


class Foreign(GainsPass):
    def gains(self, log: Log) -> Gains:
        return gains.outcome(log)


@pytest.mark.parametrize("kind", [*LEARNERS.values(), Foreign], ids=lambda kind: kind.__name__)
def test_every_learner_passes(kind: type[Learner]) -> None:
    check_learner(kind)


def test_an_instance_is_tried_with_its_own_hyper_parameters() -> None:
    check_learner(Foreign(factors=3, epochs=2, loss="hinge", learning_rate=0.02))


class Unseeded(Popular):
    def score_block(self, user_codes: Codes) -> Floats32:
        return super().score_block(user_codes) + np.float32(np.random.default_rng().random())


class Unstored(Learner):
    def learn(self, log: Log) -> None:
        self.table_ = np.arange(log.n_items, dtype=np.float32)

    def score_block(self, user_codes: Codes) -> Floats32:
        table = getattr(self, "table_", np.zeros(len(self.items), np.float32))
        return np.tile(table, (len(user_codes), 1))


class NotFinite(Popular):
    def score_block(self, user_codes: Codes) -> Floats32:
        return np.full((len(user_codes), len(self.items)), np.nan, np.float32)


class WrongShape(Popular):
    def score_block(self, user_codes: Codes) -> Floats32:
        return super().score_block(user_codes)[:, 1:]


class Shared(Learner):
    """Returns a view of its own table."""

    stored: ClassVar[Mapping[str, Array]] = {"table": Array("float32", ("users", "items"))}

    def learn(self, log: Log) -> None:
        self.table_ = np.zeros((log.n_users, log.n_items), np.float32)

    def score_block(self, user_codes: Codes) -> Floats32:
        scores: Floats32 = np.broadcast_to(self.table_[:1], (len(user_codes), len(self.items)))
        scores.flags.writeable = True
        return scores


class Learning(Popular):
    """Remembers the fits before."""

    def learn(self, log: Log) -> None:
        self.count_ = getattr(self, "count_", 0) + 1

    def score_block(self, user_codes: Codes) -> Floats32:
        return super().score_block(user_codes) * np.float32(self.count_)


class Neighborly(Popular):
    """Scores depend on who else is in the block."""

    def score_block(self, user_codes: Codes) -> Floats32:
        return super().score_block(user_codes) / np.float32(len(user_codes))


@dataclass(kw_only=True, eq=False)
class Altering(Popular):
    weight: Any = 1.0

    def __post_init__(self) -> None:
        self.weight = [self.weight]


class Own(Popular):
    def fit(self, log: Log, *_: Any, **__: Any) -> Any:
        return super().fit(log)


class Failing(Popular):
    def learn(self, log: Log) -> None:
        raise KeyError("price")


class Propensities(Popular):
    needs_propensity: ClassVar[bool] = True


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        (Unseeded, "the same user has two different scores|writing to the scores|same seed"),
        (Unstored, "load changed its scores; is an array not in stored"),
        (NotFinite, "not finite"),
        (WrongShape, r"shape \(3, 11\), not \(3, 12\)"),
        (Shared, "writing to the scores changed the learner"),
        (Learning, "a second fit depends on the first one"),
        (Neighborly, "other scores alone than among all users"),
        (Altering, "alters a hyper-parameter|clone changed"),
        (Own, "never called its callback"),
        (Failing, "ended check_fit with KeyError: 'price'"),
        (Propensities, "without propensities"),
    ],
)
def test_broken_promises_are_noticed(kind: type[Learner], sentence: str) -> None:
    with pytest.raises(AssertionError, match=rf"{kind.__name__}: .*({sentence})"):
        check_learner(kind)


def test_a_class_inside_a_function_cannot_be_pickled() -> None:
    class Local(Popular):
        pass

    with pytest.raises(AssertionError, match=r"cannot be pickled .* at the top level of a module"):
        check_learner(Local)
