"""Learners that train factors: hyper-parameters, ``fit``, and what a fitted one can do.

A method declares its epoch: which samples with which weight go to which kernel. Everything around it (the
initial factors, progress, validation, early stopping, checkpoints) is the same for all, in ``training``.
"""

from __future__ import annotations

import math
import os
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from taurank._threads import worker_count
from taurank._validation import check_instance, check_number
from taurank.data.ids import Codes
from taurank.data.log import Log
from taurank.errors import InputError
from taurank.learners.base import Floats, Learner
from taurank.learners.fitting import Checkpoint, Training, Validation
from taurank.sgd.scheduler import Factors, Stats, factor_table

if TYPE_CHECKING:
    from taurank.estimation.gains import Gains

# an epoch of a method: (factors, seed, number of the epoch, threads) -> what it did
Epoch = Callable[[Factors, int, int, int], Stats]

REGULARIZATION_GRID = (0.3, 0.1, 0.03, 0.01, 0.003, 0.001, 0.0003, 0.0001)
CAP_GRID = (0.7, 0.5, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001)


@dataclass(kw_only=True, eq=False)
class FactorLearner(Learner):
    """Matrix factorisation s_ui = p_u · q_i, trained by stratified SGD.

    ``factors`` is d, ``learning_rate`` η, ``regularization`` γ; an epoch makes as many updates as the method has
    positives. ``threads`` (None: all cores) changes the speed, never a bit of the result.
    """

    factors: int = 200
    learning_rate: float = 0.01
    regularization: float = 0.01
    epochs: int = 100
    threads: int | None = None

    history_: list[dict[str, Any]] = field(init=False, repr=False)  # what each epoch did

    stored: ClassVar[tuple[str, ...]] = ("user_factors", "item_factors")
    item_tables: ClassVar[int] = 1
    space: ClassVar[Mapping[str, Sequence[float]]] = {"regularization": REGULARIZATION_GRID}

    def __post_init__(self) -> None:
        check_number("factors", self.factors, 1, integer=True)
        check_number("epochs", self.epochs, 1, integer=True)
        check_number("regularization", self.regularization, 0)
        check_number("learning_rate", self.learning_rate, 0)
        if self.learning_rate == 0:
            raise InputError("learning_rate must be larger than 0.")

    @abstractmethod
    def prepare(self, log: Log) -> Epoch:
        """The method itself: look at the log once, and give the function that runs one epoch."""

    def fit(
        self,
        log: Log,
        validation: Gains | None = None,
        metric: str = "CDCG",
        patience: int | None = 10,
        show_progress: bool | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        *,
        validate_every: int | None = None,
        checkpoint_minutes: float = 5.0,
        callback: Callable[[int, float], None] | None = None,
    ) -> Self:
        """Learn from a log.

        ``validation`` are gains (truth or estimate) by which ``metric`` is taken every ``validate_every`` epochs
        (None: fifty times in all): the best epoch is kept, and ``patience`` times without a better one end the
        fit (None: never). ``show_progress`` is on in a terminal. With ``checkpoint`` the state is written to
        that file every ``checkpoint_minutes``; a killed fit, called again with the same arguments, goes on from
        there to the bit-identical result, and the file is removed at the end. ``callback(epoch, value)`` is
        called after every validation; whatever it raises ends the fit.
        """
        every = max(1, self.epochs // 50) if validate_every is None else validate_every
        check = None if validation is None else Validation(validation, metric, every, patience, callback)
        keep = None if checkpoint is None else Checkpoint(checkpoint, checkpoint_minutes)
        check_instance("log", log, Log, "Log.read or Log.from_frame")
        before = dict(self.__dict__)
        try:
            epoch = self.prepare(log)
            self._remember(log)
            training = Training(self, epoch, check, keep, worker_count(self.threads), show_progress)
            self._keep(training.run(log))
            self.history_ = training.history
        except BaseException:  # a fit that fails or is interrupted leaves the learner as it was
            self.__dict__.clear()
            self.__dict__.update(before)
            raise
        return self

    def initial(self, log: Log, seed: int) -> Factors:
        """Factors before the first epoch: normal, standard deviation 0.1/√d."""
        rng = np.random.default_rng(np.random.SeedSequence(seed))
        users = factor_table(log.n_users, self.factors)
        items = factor_table(log.n_items * self.item_tables, self.factors)
        for table in (users, items):
            noise = rng.standard_normal((len(table), self.factors), np.float32)
            table[:, : self.factors] = noise * np.float32(0.1 / math.sqrt(self.factors))
        return Factors(users, items)

    def _keep(self, tables: Factors) -> None:
        """What is remembered of the factors."""
        self.user_factors_ = tables.users[:, : self.factors].copy()
        self.item_factors_ = tables.items[:, : self.factors].copy()

    def with_factors(self, tables: Factors) -> Self:
        """Take these factors as they are, to be measured during a fit."""
        self._keep(tables)
        return self

    def score_block(self, user_codes: Codes) -> Floats:
        return np.asarray(self._fitted("user_factors_")[user_codes] @ self.item_factors_.T)
