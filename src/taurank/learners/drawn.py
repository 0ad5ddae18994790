"""Methods that draw their samples from all cells: a subclass declares its sampler and its losses."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from taurank._random import Stream, stream
from taurank.data.log import Log
from taurank.errors import InputError
from taurank.learners.factorization import FactorLearner
from taurank.learners.fitting import Epoch
from taurank.sgd.samplers import Sampler, draw
from taurank.sgd.scheduler import Factors, Pairwise, Pointwise, Stats
from taurank.sgd.slots import Cells
from taurank.sgd.strata import Strata


@dataclass(kw_only=True, eq=False)
class DrawnLearner(FactorLearner):
    """An epoch draws as many new samples as the log has positives."""

    run_samples: ClassVar[Callable[..., Stats]]  # run_pairwise_samples or run_pointwise_samples

    @abstractmethod
    def sampler(self, cells: Cells) -> Sampler:
        """Look at the cells once, refuse those without the classes that the method needs, and return how to draw."""

    @abstractmethod
    def step_params(self) -> Pairwise | Pointwise:
        """The hyper-parameters of a step."""

    def updates_per_epoch(self, log: Log) -> int:
        return int(np.count_nonzero(log.outcome))

    def prepare(self, log: Log) -> Epoch:
        n = self.updates_per_epoch(log)
        if not n:
            raise InputError(f"{type(self).__name__} found no positive outcome in this log.")
        sizes = (log.n_users, log.n_items, log.n_times)
        sampler = self.sampler(Cells(log.user, log.item, log.time, log.treated, log.outcome, *sizes))
        strata, params, run_samples = Strata(log.n_users, log.n_items, n), self.step_params(), type(self).run_samples

        def epoch(factors: Factors, seed: int, number: int, threads: int) -> Stats:
            drawn = draw(sampler, n, log.n_users, stream(seed, number, Stream.DRAWN_SAMPLES), threads)
            return run_samples(factors, drawn, strata, seed, number, params, threads)

        return epoch
