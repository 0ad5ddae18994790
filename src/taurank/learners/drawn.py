"""Methods that draw their samples from all cells: a subclass declares its sampler and its losses."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from taurank._random import Stream, stream
from taurank.data.log import Log
from taurank.errors import InputError, TooLittleData
from taurank.learners.factorization import FactorLearner, FoldEpoch
from taurank.learners.fitting import Epoch
from taurank.sgd.folding import fold_drawn
from taurank.sgd.samplers import Sampler, draw, draw_into
from taurank.sgd.scheduler import Factors, Pairwise, Pointwise, Stats
from taurank.sgd.strata import Strata


@dataclass(kw_only=True, eq=False)
class DrawnLearner(FactorLearner):
    """An epoch draws as many new samples as the log has positives."""

    run_samples: ClassVar[Callable[..., Stats]]  # run_pairwise_samples or run_pointwise_samples

    @abstractmethod
    def sampler(self, log: Log) -> Sampler:
        """Look at the log once and return how to draw; ``TooLittleData`` if it lacks a class of cells."""

    @abstractmethod
    def step_params(self) -> Pairwise | Pointwise:
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
        strata, params, run_samples = Strata(log.n_users, log.n_items, n), self.step_params(), type(self).run_samples

        def run(factors: Factors, seed: int, number: int, threads: int) -> Stats:
            now = params._replace(learning_rate=self.rate(number))
            key = stream(seed, number, Stream.DRAWN_SAMPLES)
            with strata.buffer(n, sampler.record) as drawn:
                with strata.buffer(n, sampler.record) as spare:
                    draw_into(drawn, spare, sampler, log.n_users, key, threads)
                return run_samples(factors, drawn, strata, seed, number, now, threads)

        return Epoch(run, n)

    def prepare_fold(self, log: Log) -> FoldEpoch:
        n, params = int(np.count_nonzero(log.outcome)), self.step_params()
        try:
            sampler = self.sampler(log) if n else None
        except TooLittleData:  # a class of cells is missing: these rows say nothing that the method uses
            sampler = None

        def run(factors: Factors, seed: int, number: int, threads: int) -> None:
            if sampler is not None:
                drawn = draw(sampler, n, log.n_users, stream(seed, number, Stream.DRAWN_SAMPLES), threads)
                now = params._replace(learning_rate=self.rate(number))
                fold_drawn(factors, drawn, now, log.n_users, threads)

        return run
