"""Learners that train factors: hyper-parameters, ``fit``, and what a fitted one can do.

A method declares its epoch: which samples with which weight go to which kernel. Everything around it (the
initial factors, progress, validation, early stopping, checkpoints) is the same for all, in ``fitting``.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from taurank._threads import worker_count
from taurank._validation import check_number
from taurank.data.ids import Codes
from taurank.data.log import Log
from taurank.data.schema import Array
from taurank.errors import InputError
from taurank.learners.base import Float32s, Learner
from taurank.learners.checkpoints import Record
from taurank.learners.fitting import Epoch, FitOptions, Training
from taurank.learners.recommend import MOST_THREADS
from taurank.sgd.scheduler import Factors, factor_table

REGULARIZATION_GRID = (0.3, 0.1, 0.03, 0.01, 0.003, 0.001, 0.0003, 0.0001)
MOST_FACTORS = 1 << 16
_TILES = (16, 32, 64, 128, 256)  # users
_SMALL = 1 << 21  # multiplications: OpenBLAS has special kernels up to a million
CAP_GRID = (0.7, 0.5, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001)


@dataclass(kw_only=True, eq=False)
class FactorLearner(Learner):
    """Matrix factorization s_ui = p_u · q_i, trained by stratified SGD.

    ``factors`` is d, ``learning_rate`` η, ``regularization`` γ; an epoch makes as many updates as the method has
    positives. ``threads`` (None: all cores) changes the speed, never a bit of the result.
    """

    factors: int = 200
    learning_rate: float = 0.01
    regularization: float = 0.01
    epochs: int = 100
    threads: int | None = None

    stored: ClassVar[Mapping[str, Array]] = {
        "user_factors": Array("float32", ("users", "factors")),
        "item_factors": Array("float32", ("items", "factors")),
    }
    item_tables: ClassVar[int] = 1
    space: ClassVar[Mapping[str, Sequence[Any]]] = {"regularization": REGULARIZATION_GRID}

    def __post_init__(self) -> None:
        check_number("factors", self.factors, 1, MOST_FACTORS, integer=True)
        check_number("epochs", self.epochs, 1, integer=True)
        if self.threads is not None:
            check_number("threads", self.threads, 1, MOST_THREADS, integer=True)
        check_number("regularization", self.regularization, 0)
        check_number("learning_rate", self.learning_rate, 0)
        if self.learning_rate == 0:
            raise InputError("learning_rate must be larger than 0.")

    @abstractmethod
    def prepare(self, log: Log) -> Epoch:
        """The method itself: read the log once, and return the function that runs one epoch."""

    def updates_per_epoch(self, log: Log) -> int:
        """As many as the log has positive outcomes, unless the method says otherwise."""
        return int(np.count_nonzero(log.outcome))

    def _train(self, log: Log, options: FitOptions) -> list[Record]:
        state = Training(self, self.prepare(log), options, worker_count(self.threads)).run(log)
        self.with_factors(state.result)
        if options.checkpoint is not None:
            self._set_leftover(options.checkpoint)
        return state.history

    def initial(self, log: Log, seed: int) -> Factors:
        """Factors before the first epoch: normal, standard deviation 0.1/√d."""
        rng = np.random.default_rng(np.random.SeedSequence(seed))
        users = factor_table(log.n_users, self.factors)
        items = factor_table(log.n_items * self.item_tables, self.factors)
        for table in (users, items):
            noise = rng.standard_normal((len(table), self.factors), np.float32)
            table[:, : self.factors] = noise * np.float32(0.1 / math.sqrt(self.factors))
        return Factors(users, items)

    def with_factors(self, tables: Factors) -> Self:
        """This learner with these factors, which training goes on to change."""
        self.user_factors_ = tables.users[:, : self.factors].copy()
        self.item_factors_ = tables.items[:, : self.factors].copy()
        return self

    def score_block(self, user_codes: Codes) -> Float32s:
        return products(self._fitted("user_factors_")[user_codes], self.item_factors_)


def products(users: Float32s, items: Float32s) -> Float32s:
    """users · itemsᵀ, to bits that do not depend on which users are asked for together.

    BLAS rounds differently in its kernels for vectors, for small matrices and for odd rows at the end. So users
    come in whole tiles, filled up with zeros; a tile is large enough not to be a small matrix, or stands alone.
    """
    tile = next((size for size in _TILES if size * items.size > _SMALL), _TILES[-1])
    right = items.T if len(items) > 1 else np.repeat(items, 2, axis=0).T  # one column would be a vector
    short = -len(users) % tile
    filled = np.concatenate((users, np.zeros((short, users.shape[1]), np.float32))) if short else users
    if tile * items.size > _SMALL or len(filled) <= tile:
        scores = filled @ right
    else:
        scores = np.concatenate([part @ right for part in filled.reshape(-1, tile, users.shape[1])])
    return np.ascontiguousarray(scores[: len(users), : len(items)])
