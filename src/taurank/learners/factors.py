"""Learners that train factors: hyper-parameters, ``fit``, and what a fitted one can do.

A method declares its epoch: which samples with which weight go to which kernel. The options of a fit are in
``options``, the loop around the epochs in ``training``, and how long to train in ``lengths``.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from taurank._checks import Allowed, Range, generator
from taurank._random import Stream, stream
from taurank._threads import worker_count
from taurank._types import Codes, Floats32
from taurank.data.ids import Ids
from taurank.data.log import Log
from taurank.data.remote import RemoteLog
from taurank.data.storage import Array
from taurank.errors import InputError, TooLittleData
from taurank.learners import lengths
from taurank.learners.base import Learner
from taurank.learners.features import pulled
from taurank.learners.options import Record, TrainingOptions, UpdateOptions, history_frame
from taurank.learners.recommend import MAX_THREADS
from taurank.learners.scores import dot_products
from taurank.learners.training import Checkpoint, Epoch, Schedule, State, aligned, copied, identity_of, train
from taurank.learners.update import NewRows, rows_of_new_users
from taurank.sgd.kernels import StepParams
from taurank.sgd.samplers import Sampler, draw
from taurank.sgd.scheduler import Factors, Stats, factor_table, fold_samples, run_samples
from taurank.sgd.strata import SAMPLE, Samples, Strata

REGULARIZATION_GRID = (0.3, 0.1, 0.03, 0.01, 0.003, 0.001, 0.0003, 0.0001)
CAP_GRID = (0.7, 0.5, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001)
MAX_FACTORS = 1 << 16
UPDATE_SHARE = 10  # an update makes a tenth of the epochs of a fit
_ROWS_AT_ONCE = 1 << 16


@dataclass(kw_only=True, eq=False)
class FactorLearner(Learner):
    """Matrix factorization s_ui = p_u · q_i, trained by stratified SGD.

    An epoch makes as many updates as the method has positives.

    Parameters
    ----------
    factors : d, the length of p_u and q_i
    learning_rate : η
    regularization : γ
    epochs : the longest fit
    rate_decay : the rate falls geometrically from η to this times η (1: constant)
    threads : changes the speed, never a bit of the result (None: all cores)
    """

    factors: int = 200
    learning_rate: float = 0.03
    regularization: float = 0.01
    epochs: int = 200
    rate_decay: float = 0.03
    threads: int | None = None

    stored: ClassVar[Mapping[str, Array]] = {
        "user_factors": Array("float32", ("users", "factors")),
        "item_factors": Array("float32", ("items", "factors")),
        "trained": Array("int64", (1,), optional=True),  # epochs
    }
    uses_features: ClassVar[bool] = True
    space: ClassVar[Mapping[str, Sequence[Any]]] = {"regularization": REGULARIZATION_GRID}
    allowed: ClassVar[Allowed] = {
        "factors": Range(1, MAX_FACTORS, integer=True),
        "learning_rate": Range(0, above=True),
        "regularization": Range(0),
        "epochs": Range(1, integer=True),
        "rate_decay": Range(0, 1, above=True),
        "threads": Range(1, MAX_THREADS, integer=True, optional=True),
    }
    _item_tables: ClassVar[int] = 1

    @abstractmethod
    def prepare(self, log: Log) -> Epoch:
        """The method itself: read the log once and return an epoch; ``TooLittleData`` if nothing is to be trained."""

    def _choices(self, rows: Log) -> Iterator[dict[str, Any]]:
        """What hyper-parameters leave to the log, by rows of some of its users: fitted attributes to choose from."""
        yield {}

    def updates_per_epoch(self, log: Log) -> int:
        return self.prepare(log).updates

    # training

    def _schedule(self, epochs: int) -> Schedule:
        return Schedule(epochs, self.learning_rate, self.rate_decay)

    def _train(self, log: Log, options: TrainingOptions) -> list[Record]:
        state = self._run(log, options, self._schedule(self.epochs), self.random_state)
        self.lengths_ = history_frame(state.lengths, options.metrics)
        return state.history

    def _update(self, rows: NewRows, options: UpdateOptions) -> list[Record]:
        """Train on from the factors of the model, on all rows that are given."""
        known, trained = (len(self._fitted("user_factors_")), len(self.item_factors_)), self._trained_epochs
        start = self._tables(rows.log.n_users, rows.log.n_items)
        if known[0] < rows.log.n_users:
            users = Ids(rows.log.users.values[: known[0]], rows.log.users.column)
            items = Ids(rows.log.items.values[: known[1]], rows.log.items.column)
            start.users[known[0] :, : self.factors] = self._folded(rows_of_new_users(users, items, rows.log))
        schedule = self._schedule(options.epochs or -(-trained // UPDATE_SHARE))
        seed = rows.seed(self.random_state, *start)  # tells this update from any other, also in the checkpoint
        history = self._run(rows.all_rows(), options, schedule, seed, start, known).history
        self.trained_ = np.array([trained], np.int64)
        return history

    def _run(
        self, log: Log, options: TrainingOptions, schedule: Schedule, random_state: Any,
        start: Factors | None = None, known: tuple[int, int] = (0, 0),
    ) -> State:  # fmt: skip
        """Train from the factors of ``start`` (None: random ones), or from the checkpoint if there is one.

        The first ``known`` users and items are trained already, with or without rows.
        """
        checkpoint, state = None, None
        if options.checkpoint is not None:
            identity = identity_of(self, options, schedule, random_state, log)
            checkpoint = Checkpoint(Path(options.checkpoint).resolve(), identity)
            state = checkpoint.read()
        state = state or State(int(generator(random_state).integers(2**63)), start)
        choices, judged = [getattr(self, "choice_", {})], None
        if start is None:
            rows = lengths.sample_of(log)
            more = self._choices(rows)
            choices = [next(more)]
            if options.chooses_length and len(lengths.lengths_of(schedule.epochs)) > 1:
                judge = lengths.judge(rows, options.features, self.threads)
                if judge is not None:
                    choices, judged = [*choices, *more], replace(options, validation=judge, validation_users=None)
        chosen, epoch = -1, None
        for choice, epochs in lengths.fits_to_make(schedule.epochs, len(choices), state, judged):
            if epoch is None or choice != chosen:
                self._choose(choices[choice])
                chosen, epoch = choice, self._epoch(log, options, known)
            state.tables = epoch.begin(state.seed, state.tables) if epoch.begin else state.tables
            state.tables = state.tables or self._initial(log, state.seed)
            train(self, epoch, replace(schedule, epochs=epochs), options, state, checkpoint)
            if judged:
                self._set_factors(state.tables)
                state.end_length(judged.measure(self, self.threads), judged)
        self._set_factors(state.result)
        self.trained_ = np.array([state.best_epoch or state.epoch], np.int64)
        if checkpoint:
            self._checkpoint = checkpoint
        options.warn_if_improving(type(self).__name__, state.history, schedule.epochs)
        return state

    def _choose(self, choice: dict[str, Any]) -> None:
        self.choice_ = choice
        for name, value in choice.items():
            setattr(self, name, value)

    def _epoch(self, log: Log, options: TrainingOptions, known: tuple[int, int] = (0, 0)) -> Epoch:
        """An epoch of the method, followed by the pull of the features if there are any."""
        epoch: Epoch = log.prepare(self) if isinstance(log, RemoteLog) else self.prepare(log)
        return epoch if options.features is None else pulled(epoch, options.features, log, known)

    def _initial(self, log: Log, seed: int) -> Factors:
        """Factors before the first epoch: normal, standard deviation 0.1/√d."""
        rng = np.random.default_rng(np.random.SeedSequence(seed))
        tables = Factors(
            factor_table(log.n_users, self.factors), factor_table(log.n_items * self._item_tables, self.factors)
        )
        for table in tables:
            for first, rows in normal_rows(rng, len(table), self.factors):
                table[first : first + len(rows), : self.factors] = rows
        return tables

    @property
    def _trained_epochs(self) -> int:
        """The epochs after which the fit was best; those of a new user and of an update follow from them."""
        return int(self.__dict__.get("trained_", [self.epochs])[0])

    def _tables(self, n_users: int, n_items: int) -> Factors:
        """The factors of the model as training needs them; a new row begins as the mean of all."""
        return Factors(aligned(self._fitted("user_factors_"), n_users), aligned(self.item_factors_, n_items))

    def _set_factors(self, tables: Any) -> None:
        """Take over factors, which training goes on to change."""
        self.user_factors_, self.item_factors_ = copied(tables, self.factors)

    # new users

    def fold(self, log: Log) -> None:
        """Train the rows of these users as a fit would, with the items as they are."""
        self.user_factors_ = self._folded(log, required=True)

    def _folded(self, log: Log, required: bool = False) -> Floats32:
        """The factors of these users, each the mean of all known users before the first epoch."""
        start = self._tables(len(self._fitted("user_factors_")) + 1, len(self.item_factors_))
        users = factor_table(log.n_users, self.factors)
        users[:] = start.users[-1]
        try:
            fold = self.prepare(log).fold
        except TooLittleData:  # these rows say nothing that the method uses
            return users[:, : self.factors].copy()
        if fold is None and required:
            raise self._cannot(
                "fold in new users: its epoch has no fold; give update the log of the fit (past=log), or recommend "
                "with unknown_users='popular'."
            )
        schedule, threads = self._schedule(self._trained_epochs), worker_count(self.threads)
        seed = int(generator(self.random_state if isinstance(self.random_state, int) else 0).integers(2**63))
        for number in range(schedule.epochs):
            if fold:
                fold(Factors(users, start.items), seed, number, schedule.rate(number), threads)
        return users[:, : self.factors].copy()

    # scores

    def score_block(self, user_codes: Codes) -> Floats32:
        return dot_products(self._fitted("user_factors_")[user_codes], self.item_factors_)

    @property
    def _scores_are_products(self) -> bool:
        """Whether ``recommend`` may search the factors for the best: not if a subclass scores in its own way."""
        return getattr(self.score_block, "__func__", None) is FactorLearner.score_block


def normal_rows(rng: np.random.Generator, count: int, factors: int) -> Iterator[tuple[int, Floats32]]:
    """Initial rows, normal with standard deviation 0.1/√d, some at a time: the number of the first, and the rows."""
    for first in range(0, count, _ROWS_AT_ONCE):
        noise = rng.standard_normal((min(_ROWS_AT_ONCE, count - first), factors), np.float32)
        yield first, noise * np.float32(0.1 / math.sqrt(factors))


@dataclass(kw_only=True, eq=False)
class DrawnLearner(FactorLearner):
    """Methods that draw their samples from all cells, as many in an epoch as the log has positives.

    A subclass declares its sampler and its steps.
    """

    @abstractmethod
    def sampler(self, log: Log) -> Sampler:
        """Look at the log once and return how to draw; ``TooLittleData`` if it lacks a class of cells."""

    @abstractmethod
    def step_params(self, rate: float) -> StepParams:
        """The hyper-parameters of a step."""

    def prepare(self, log: Log) -> Epoch:
        n = int(np.count_nonzero(log.outcome))
        if not n:
            raise TooLittleData(f"{type(self).__name__} found no positive outcome in this log.")
        if log.value is not None:
            raise InputError(
                f"{type(self).__name__} draws outcomes and cannot weigh them by the column 'value'; leave the column "
                "out, or use a learner that passes over the outcomes, such as dlce or bpr."
            )
        sampler = self.sampler(log)
        strata = Strata(log.n_users, log.n_items, n, pairs=self.step_params(0.0).loss is not None)
        memory = np.empty((2, n), SAMPLE)

        def samples(seed: int, number: int, threads: int) -> Samples:
            return draw(sampler, n, log.n_users, stream(seed, number, Stream.DRAWN_SAMPLES), threads, memory)

        def run(factors: Factors, seed: int, number: int, rate: float, threads: int) -> Stats:
            drawn, now = samples(seed, number, threads), self.step_params(rate)
            return run_samples(factors, drawn, strata, seed, number, now, threads, memory[1])

        def fold(factors: Factors, seed: int, number: int, rate: float, threads: int) -> None:
            fold_samples(factors, samples(seed, number, threads), self.step_params(rate), threads)

        return Epoch(run, n, fold)
