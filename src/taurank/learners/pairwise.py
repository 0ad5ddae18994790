"""Pairwise methods: each is a declaration of its samples and their weights.

BPR, DLCE, DLTO and BLCE pass over the positives, each against a random item, and differ in the gains they pass
over: the outcome, the capped IPS estimate of the effect, its treated part, the naive estimate. ULBPR draws
whole pairs. The losses are in ``taurank.sgd.losses``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import numpy as np

from taurank._checks import check_number
from taurank.data.ids import Codes
from taurank.data.log import Log
from taurank.errors import InputError, TooLittleData
from taurank.estimation import gains
from taurank.estimation.estimators import Caps
from taurank.estimation.gains import Gains
from taurank.learners.eligible import cells_of, pair_sampler
from taurank.learners.factors import CAP_GRID, REGULARIZATION_GRID, DrawnLearner, FactorLearner
from taurank.learners.training import Epoch
from taurank.sgd import samplers
from taurank.sgd.folding import fold_pairs
from taurank.sgd.losses import SURROGATES
from taurank.sgd.planning import by_user
from taurank.sgd.samples import Baskets
from taurank.sgd.scheduler import (
    NOTHING_DONE,
    Factors,
    Pairwise,
    Stats,
    run_pairwise_epoch,
)
from taurank.sgd.slots import pair_kinds, slots_of
from taurank.sgd.strata import Strata


@dataclass(kw_only=True, eq=False)
class GainsPass(FactorLearner):
    """Pass over the cells with a gain: w > 0 pulls item i above a random item j, w < 0 below it.

    ``loss`` is the surrogate of 1(s_uij < 0): "logistic", Eq. (upper_bound_local_loss), "sigmoid",
    Eq. (approximation_local_loss), or "hinge", see ``taurank.sgd.losses``; ``steepness`` is ω.
    """

    loss: str = "logistic"
    steepness: float = 1.0

    avoid_bought: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("steepness", self.steepness, 0)
        if self.loss not in SURROGATES:
            raise InputError(f"loss must be one of {', '.join(SURROGATES)}, got {self.loss!r}.")

    def gains(self, log: Log) -> Gains:
        """The cells to pass over, and their signed weights."""
        raise NotImplementedError

    def prepare(self, log: Log) -> Epoch:
        cells = self.gains(log)
        if not len(cells):
            raise TooLittleData(f"{type(self).__name__} found no usable positive outcome in this log.")
        strata = Strata(log.n_users, log.n_items, len(cells))
        basket, baskets = None, None
        if self.avoid_bought:
            basket, baskets = baskets_of(cells.user, cells.item, cells.time, cells.n_users)
        positives = by_user(cells.user, cells.item, cells.value, log.n_users, log.n_items, basket)
        params = Pairwise(self.learning_rate, self.regularization, self.steepness, SURROGATES[self.loss])

        def run(factors: Factors, seed: int, number: int, rate: float, threads: int) -> Stats:
            now = params._replace(learning_rate=rate)
            return run_pairwise_epoch(factors, positives, strata, seed, number, now, threads, baskets)

        def fold(factors: Factors, seed: int, number: int, rate: float, threads: int) -> None:
            now = params._replace(learning_rate=rate)
            fold_pairs(factors, positives, log.n_items, seed, number, now, threads, baskets)

        return Epoch(run, len(cells), fold)


def baskets_of(user: Codes, item: Codes, time: Codes, n_users: int) -> tuple[Codes, Baskets]:
    """The basket of every cell, and what each basket (a user at a time) contains."""
    slot = time.astype(np.int64) * n_users + user
    order = np.lexsort((item, slot))
    _, basket = np.unique(slot, return_inverse=True)
    start = np.concatenate(([0], np.cumsum(np.bincount(basket))))
    return basket.astype(np.int32), Baskets(start.astype(np.int64), item[order].astype(np.int32))


@dataclass(kw_only=True, eq=False)
class BPR(GainsPass):
    """Rank what a user buys above what the user did not buy at that time: −log σ(s_uij) over the positives."""

    avoid_bought: ClassVar[bool] = True
    estimates_effects: ClassVar[bool] = False

    def gains(self, log: Log) -> Gains:
        return gains.outcome(log)


@dataclass(kw_only=True, eq=False)
class DLCE(GainsPass):
    """Debiased learning for the causal effect, the paper's method: pass over the capped IPS estimate.

    A treated positive weighs 1 / max(P, χ^T) and is pulled up, a control positive weighs 1 / max(1−P, χ^C) and is
    pushed down. ``cap`` is χ for both arms; ``cap_treated`` and ``cap_control`` override it. ``control_weight`` is
    ρ, a factor of the weights of control positives: 1 is DLCE, 0 is DLTO.
    """

    learning_rate: float = 0.01
    cap: float = 0.01
    cap_treated: float | None = None
    cap_control: float | None = None
    control_weight: float = 1.0

    needs_propensity: ClassVar[bool] = True
    space: ClassVar[Mapping[str, Sequence[float]]] = {
        "regularization": REGULARIZATION_GRID,
        "cap": CAP_GRID,
        "control_weight": (0.0, 0.3, 0.6, 0.8, 1.0),
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        Caps.of(self.cap, self.cap_treated, self.cap_control)  # refuses what is not between 0 and 1
        check_number("control_weight", self.control_weight, 0, maximum=1)

    def gains(self, log: Log) -> Gains:
        log.recorded_propensity(type(self).__name__)
        cells = gains.capped_ips(log, self.cap, cap_treated=self.cap_treated, cap_control=self.cap_control)
        if self.control_weight == 0:
            return cells.where(lambda value: value > 0)
        return replace(cells, value=np.where(cells.value < 0, self.control_weight * cells.value, cells.value))


@dataclass(kw_only=True, eq=False)
class DLTO(DLCE):
    """DLCE on treated positives only: debiased learning for the treated outcome Y^T."""

    control_weight: float = 0.0

    space: ClassVar[Mapping[str, Sequence[float]]] = {"regularization": REGULARIZATION_GRID, "cap": CAP_GRID}


@dataclass(kw_only=True, eq=False)
class BLCE(GainsPass):
    """Biased learning for the causal effect: DLCE with the mean propensity for all, Eq. (tau_naive)."""

    learning_rate: float = 0.01

    def gains(self, log: Log) -> Gains:
        return gains.naive(log)


@dataclass(kw_only=True, eq=False)
class ULBPR(DrawnLearner):
    """BPR for uplift (Sato et al. 2019): pairs of classes of cells, −log σ(s_uij).

    With probability 1 − α a treated positive ranks above a control negative, a treated negative or a control
    positive, a third each; with probability α (``positive_share``) {TP, CN} above {TN, CP}, a quarter each.
    """

    regularization: float = 0.001
    positive_share: float = 0.0

    space: ClassVar[Mapping[str, Sequence[float]]] = {
        "regularization": REGULARIZATION_GRID,
        "positive_share": (0.0, 0.2, 0.4, 0.6),
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("positive_share", self.positive_share, 0, maximum=1)

    def step_params(self) -> Pairwise:
        return Pairwise(self.learning_rate, self.regularization)

    def prepare(self, log: Log) -> Epoch:
        if log.n_items == 1 and log.outcome.any():  # nothing to rank
            return Epoch(lambda *_: NOTHING_DONE, int(np.count_nonzero(log.outcome)), lambda *_: None)
        return super().prepare(log)

    def sampler(self, log: Log) -> samplers.Sampler:
        if not log.eligibility.is_everything:
            return pair_sampler(log, self.positive_share)
        slots = slots_of(cells_of(log))
        kinds = pair_kinds(slots, self.positive_share)
        if kinds is None:
            raise TooLittleData("ULBPR found no treated positive in this log.")
        choose, fill = partial(samplers.choose_pairs, slots, kinds), partial(samplers.fill_pairs, slots, kinds)
        return samplers.Sampler(choose, fill)
