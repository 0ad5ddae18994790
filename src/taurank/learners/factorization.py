"""Learners that train factors: hyper-parameters, ``fit``, and what a fitted one can do.

A method declares its epoch: which samples with which weight go to which kernel. Everything around it (the
initial factors, progress, validation, early stopping, checkpoints) is the same for all, in ``fitting``.
"""

from __future__ import annotations

import copy
import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from taurank._threads import worker_count
from taurank._validation import check_instance, check_number, generator
from taurank.data.ids import Codes, Ids
from taurank.data.log import Log
from taurank.data.schema import Array
from taurank.errors import InputError, TooLittleData
from taurank.learners.base import Float32s, Learner
from taurank.learners.checkpoints import Checkpoint, Record
from taurank.learners.features import pulled
from taurank.learners.fitting import Epoch, FitOptions, Training, history_frame
from taurank.learners.holdout import (
    MIN_EPOCHS,
    affordable_users,
    check_epochs,
    hold_out,
    pilot_epochs,
    refit_epochs,
)
from taurank.learners.recommend import MAX_THREADS
from taurank.learners.scores import dot_products
from taurank.learners.starting import factors_of
from taurank.learners.updating import SHARE, News, extended
from taurank.sgd.rates import decayed
from taurank.sgd.scheduler import Factors, factor_table

FoldEpoch = Callable[[Factors, int, int, int], None]  # as Epoch, without statistics

REGULARIZATION_GRID = (0.3, 0.1, 0.03, 0.01, 0.003, 0.001, 0.0003, 0.0001)
MAX_FACTORS = 1 << 16
_ROWS_AT_ONCE = 1 << 16
CAP_GRID = (0.7, 0.5, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001)


@dataclass(kw_only=True, eq=False)
class FactorLearner(Learner):
    """Matrix factorization s_ui = p_u · q_i, trained by stratified SGD.

    ``factors`` is d, ``learning_rate`` η, ``regularization`` γ; an epoch makes as many updates as the method has
    positives. The rate falls geometrically from η to ``rate_decay`` · η (1: constant). ``averaging`` is the share
    of the last epochs whose factors are averaged (0: the last ones count alone). ``threads`` (None: all cores)
    changes the speed, never a bit of the result.
    """

    factors: int = 200
    learning_rate: float = 0.03
    regularization: float = 0.01
    epochs: int = 200
    rate_decay: float = 0.03
    averaging: float = 0.0
    threads: int | None = None

    stored: ClassVar[Mapping[str, Array]] = {
        "user_factors": Array("float32", ("users", "factors")),
        "item_factors": Array("float32", ("items", "factors")),
        "trained": Array("int64", (1,), optional=True),  # epochs
    }
    item_tables: ClassVar[int] = 1
    uses_features: ClassVar[bool] = True
    estimates_effects: ClassVar[bool] = True  # else held-out outcomes measure it where there are no propensities
    space: ClassVar[Mapping[str, Sequence[Any]]] = {"regularization": REGULARIZATION_GRID}
    before: ClassVar[Mapping[str, Any]] = {"rate_decay": 1.0, "averaging": 0.0}

    def __post_init__(self) -> None:
        check_number("factors", self.factors, 1, MAX_FACTORS, integer=True)
        check_number("epochs", self.epochs, 1, integer=True)
        if self.threads is not None:
            check_number("threads", self.threads, 1, MAX_THREADS, integer=True)
        check_number("regularization", self.regularization, 0)
        check_number("learning_rate", self.learning_rate, 0)
        check_number("rate_decay", self.rate_decay, 0, maximum=1)
        check_number("averaging", self.averaging, 0, maximum=1)
        for name in ("learning_rate", "rate_decay"):
            if getattr(self, name) == 0:
                raise InputError(f"{name} must be larger than 0.")

    @abstractmethod
    def prepare(self, log: Log) -> Epoch:
        """The method itself: read the log once and return an epoch; ``TooLittleData`` if nothing is to be trained."""

    def rate(self, epoch: int) -> float:
        """The learning rate of an epoch, counted from 0."""
        return decayed(self.learning_rate, self.rate_decay, epoch, self.epochs)

    def updates_per_epoch(self, log: Log) -> int:
        return self.prepare(log).updates

    def _train(self, log: Log, options: FitOptions) -> list[Record]:
        threads = worker_count(self.threads)
        pilot = self._pilot(log, options, threads) if options.holds_out else []
        final = copy.copy(self) if pilot else self
        final = final._started(options)
        epoch = final._epoch(log, options)
        if pilot:
            best = options.best_epoch(pilot)
            final.epochs = refit_epochs(pilot, best, epoch.updates, self.epochs, self.rate_decay)
        state = Training(final, epoch, options, threads, pilot=pilot).run(log)
        self.with_factors(state.result)
        self.trained_ = np.array([state.best_epoch or state.epoch], np.int64)
        if options.checkpoint is not None:
            self._set_leftover(options.checkpoint)
        self.holdout_ = history_frame(pilot, options.formulas)
        options.warn_if_improving(type(self).__name__, pilot or state.history, self.epochs)
        return state.history

    def _pilot(self, log: Log, options: FitOptions, threads: int) -> list[Record]:
        """The epochs of a fit to a part of the log, measured on the rest; empty if there is nothing to find out."""
        if options.checkpoint is not None and Path(options.checkpoint).exists():
            return Checkpoint.pilot(options.checkpoint, [formula.name for formula in options.formulas])
        held = hold_out(log, not self.estimates_effects) if self.epochs >= MIN_EPOCHS else None
        if held is None:
            return []
        pilot = copy.copy(self._started(options))
        pilot.epochs, pilot.rate_decay, pilot.averaging = pilot_epochs(self.epochs, self.rate_decay), 1.0, 0.0
        try:
            epoch = pilot._epoch(held.rest, options)
        except TooLittleData:  # without the rows that are held out, the method lacks something it needs
            return []
        checks = check_epochs(pilot.epochs)
        users = affordable_users(pilot.epochs * epoch.updates, len(checks), log.n_items)
        watched = replace(
            options, validation=held.gains, validation_users=options.validation_users or users,
            checkpoint=None, callback=None,
        )  # fmt: skip
        title = f"{type(self).__name__}, held-out part"
        due = checks if options.validate_every is None else None
        return Training(pilot, epoch, watched, threads, due, title=title).run(held.rest).history

    def _check_start(self, start: Learner | None) -> None:
        if start is None:
            return
        check_instance("start", start, Learner, "taurank, such as EmpiricalBayes().fit(log)")
        start._fitted("users_")
        if self.item_tables > 1:
            super()._check_start(start)

    def _started(self, options: FitOptions) -> Self:
        """This learner, or a copy whose factors begin as those of the model to start from."""
        if options.start is None:
            return self
        started, model = copy.copy(self), options.start
        started.initial = lambda log, seed: factors_of(model, log, self.factors)  # type: ignore[method-assign]
        return started

    def _epoch(self, log: Log, options: FitOptions) -> Epoch:
        """An epoch of the method, followed by the pull of the features if there are any."""
        epoch = self.prepare(log)
        if options.features is None:
            return epoch
        return pulled(epoch, options.features, log, self.rate, self.__dict__.get("_known", (0, 0)))

    def _train_on(self, news: News, epochs: int | None, options: FitOptions) -> list[Record]:
        """Train on from the factors of the model, on all rows that are given."""
        start, rows = self._start(news), news.all_rows()
        warm = copy.copy(self)  # its seed tells this update from any other, also in the checkpoint
        warm.epochs = epochs or -(-self.trained_epochs // SHARE)
        warm.random_state = news.seed(self.random_state, *start)
        warm.__dict__["_known"] = (len(self.user_factors_), len(self.item_factors_))  # trained already
        warm.initial = lambda log, seed: start  # type: ignore[method-assign]
        history = warm._train(rows, options)
        trained = self.trained_epochs
        self.__dict__.update({name: value for name, value in vars(warm).items() if name in self._learned()})
        self.trained_ = np.array([trained], np.int64)
        return history

    def _learned(self) -> set[str]:
        """The attributes that training sets."""
        return {f"{name}_" for name in self.stored} | {"_leftover"}

    @property
    def trained_epochs(self) -> int:
        """The epochs after which the fit was best; those of a new user and of an update follow from them."""
        return int(self.__dict__.get("trained_", [self.epochs])[0])

    def _start(self, news: News) -> Factors:
        """The factors of the model; a new user's are folded in, a new item's are the mean of all items."""
        start, known = self.tables(news.log.n_users, news.log.n_items), len(self._fitted("user_factors_"))
        if known < news.log.n_users and type(self).prepare_fold is not FactorLearner.prepare_fold:
            folded = copy.copy(self)
            folded.users_, folded.items_ = (
                Ids(ids.values[:n], ids.column)
                for ids, n in ((news.log.users, known), (news.log.items, len(self.item_factors_)))
            )
            start.users[known:, : self.factors] = folded.fold_in(news.log).user_factors_
        return start

    def fold(self, log: Log) -> None:
        """Train the rows of these users as a fit would, with the items as they are."""
        start = self.tables(len(self._fitted("user_factors_")) + 1, len(self.items))
        users = factor_table(log.n_users, self.factors)
        users[:] = start.users[-1]
        trainer = copy.copy(self)  # its learning rate decays over the epochs that a user is trained
        trainer.epochs = self.trained_epochs
        tables, epoch = Factors(users, start.items), trainer.prepare_fold(log)
        seed = int(generator(self._seed()).integers(2**63))
        for number in range(trainer.epochs):
            epoch(tables, seed, number, worker_count(self.threads))
        self.user_factors_ = users[:, : self.factors].copy()

    def _seed(self) -> int:
        return self.random_state if isinstance(self.random_state, int) else 0

    def prepare_fold(self, log: Log) -> FoldEpoch:
        """Like ``prepare``, but the epoch moves user rows alone, and a log without usable rows moves none."""
        raise InputError(
            f"{type(self).__name__} cannot fold in new users: it does not implement prepare_fold(log); "
            "give update the log of the fit (past=log), or recommend with unknown_users='popular'."
        )

    def tables(self, n_users: int, n_items: int) -> Factors:
        """The factors of the model as training needs them, in a catalog that may have grown."""
        return Factors(extended(self._fitted("user_factors_"), n_users), extended(self.item_factors_, n_items))

    def initial(self, log: Log, seed: int) -> Factors:
        """Factors before the first epoch: normal, standard deviation 0.1/√d."""
        rng = np.random.default_rng(np.random.SeedSequence(seed))
        users = factor_table(log.n_users, self.factors)
        items = factor_table(log.n_items * self.item_tables, self.factors)
        for table in (users, items):
            for first, rows in normal_rows(rng, len(table), self.factors):
                table[first : first + len(rows), : self.factors] = rows
        return Factors(users, items)

    def with_factors(self, tables: Factors) -> Self:
        """This learner with these factors, which training goes on to change."""
        self.user_factors_ = tables.users[:, : self.factors].copy()
        self.item_factors_ = tables.items[:, : self.factors].copy()
        return self

    def score_block(self, user_codes: Codes) -> Float32s:
        return dot_products(self._fitted("user_factors_")[user_codes], self.item_factors_)

    @property
    def scores_are_products(self) -> bool:
        """Whether ``recommend`` may search the factors for the best: not if a subclass scores in its own way."""
        return getattr(self.score_block, "__func__", None) is FactorLearner.score_block


def normal_rows(rng: np.random.Generator, count: int, factors: int) -> Iterator[tuple[int, Float32s]]:
    """Initial rows, normal with standard deviation 0.1/√d, some at a time: the number of the first, and the rows."""
    for first in range(0, count, _ROWS_AT_ONCE):
        noise = rng.standard_normal((min(_ROWS_AT_ONCE, count - first), factors), np.float32)
        yield first, noise * np.float32(0.1 / math.sqrt(factors))
