"""Pairwise methods: each is a declaration of its samples and their weights.

BPR, DLCE, DLTO and BLCE pass over the positives, each against a random item, and differ in the gains they pass
over: the outcome, the capped IPS estimate of the effect, its treated part, the naive estimate. ULBPR draws
whole pairs. The losses are in ``taurank.sgd.losses``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np

from taurank._checks import Allowed, Range
from taurank._random import Stream, stream
from taurank._types import Floats
from taurank.data.log import Log
from taurank.data.storage import Array
from taurank.errors import TooLittleData
from taurank.estimation import gains
from taurank.estimation.gains import Gains
from taurank.learners.eligible import pair_sampler
from taurank.learners.factors import CAP_GRID, REGULARIZATION_GRID, DrawnLearner, FactorLearner
from taurank.learners.training import Epoch
from taurank.sgd.kernels import StepParams, pair_params
from taurank.sgd.losses import SURROGATES
from taurank.sgd.negatives import draw_for_users
from taurank.sgd.samplers import Sampler, choose_pairs, fill_pairs, pair_kinds, slots_of
from taurank.sgd.scheduler import Factors, Stats, fold_samples, run_pairwise_epoch
from taurank.sgd.strata import SAMPLE, Strata, by_user

MAX_SCARCITY = 10.0
MAX_WEIGHT = 30.0  # that a learning rate of 0.01 bears; from 100 on training diverges
CAREFUL = 0.5, (1.0, 1.0)  # what capped weights are worth; factors of learning rate and regularization
BOLD = 0.9, (3.0, 1 / 30)
CAPS = (0.0, *np.geomspace(0.001, 1, 61))  # to choose from


@dataclass(kw_only=True, eq=False)
class GainsPass(FactorLearner):
    """Pass over the cells with a gain: w > 0 pulls item i above a random item j, w < 0 below it.

    Parameters
    ----------
    loss : the surrogate of 1(s_uij < 0): "logistic", Eq. (upper_bound_local_loss), "sigmoid", Eq.
        (approximation_local_loss), or "hinge"
    steepness : ω
    """

    loss: str = "logistic"
    steepness: float = 1.0

    allowed: ClassVar[Allowed] = {"loss": tuple(SURROGATES), "steepness": Range(0)}
    stored: ClassVar[Mapping[str, Array]] = {
        **FactorLearner.stored,
        "steps": Array("float64", (2,), minimum=0.0, optional=True),  # factors of learning rate and regularization
    }
    avoid_bought: ClassVar[bool] = False

    def gains(self, log: Log) -> Gains:
        """The cells to pass over, and their signed weights."""
        raise NotImplementedError

    def _choices(self, rows: Log) -> Iterator[dict[str, Any]]:
        yield {"steps_": bearable_steps(self.gains(rows), (1.0, 1.0))}

    def prepare(self, log: Log) -> Epoch:
        cells = self.gains(log)
        if not len(cells):
            raise TooLittleData(f"{type(self).__name__} found no usable positive outcome in this log.")
        strata = Strata(log.n_users, log.n_items, len(cells))
        time = cells.time if self.avoid_bought else None
        value = cells.value if log.eligibility.is_everything else cells.value * scarcity(log)[cells.item]
        positives = by_user(cells.user, cells.item, value, log.n_users, time)
        memory = np.empty(len(cells), SAMPLE)

        def run(factors: Factors, seed: int, number: int, rate: float, threads: int) -> Stats:
            return run_pairwise_epoch(
                factors, positives, strata, seed, number, self.step_params(rate), threads, memory
            )

        def fold(factors: Factors, seed: int, number: int, rate: float, threads: int) -> None:
            samples = draw_for_users(positives, log.n_items, stream(seed, number, Stream.FOLDING))
            fold_samples(factors, samples, self.step_params(rate), threads)

        return Epoch(run, len(cells), fold)

    def step_params(self, rate: float) -> StepParams:
        faster, stronger = map(float, getattr(self, "steps_", (1.0, 1.0)))
        return pair_params(faster * rate, stronger * self.regularization, self.steepness, SURROGATES[self.loss])


def bearable_steps(cells: Gains, steps: tuple[float, float]) -> Floats:
    """Divide the learning rate by a power of two if the typical weight, Σ w² / Σ |w|, is above ``MAX_WEIGHT``."""
    weight = np.abs(cells.value)
    typical = steps[0] * (weight**2).sum() / weight.sum() if weight.any() else 0.0
    halvings = max(0, math.ceil(math.log2(typical / MAX_WEIGHT))) if typical else 0
    return np.array((steps[0] / 2.0**halvings, steps[1]))


def scarcity(log: Log) -> Floats:
    """How many times as often as each item the most eligible one could be bought, at most ``MAX_SCARCITY``.

    An item that came late has few purchases for that reason alone, but is as often the random item as any other.
    """
    cells = log.eligibility.cells_by_item
    return np.asarray(np.minimum(cells.max() / np.maximum(cells, 1), MAX_SCARCITY))


@dataclass(kw_only=True, eq=False)
class BPR(GainsPass):
    """Rank what a user buys above what the user did not buy at that time: −log σ(s_uij) over the positives."""

    avoid_bought: ClassVar[bool] = True

    def gains(self, log: Log) -> Gains:
        return gains.outcome(log)


@dataclass(kw_only=True, eq=False)
class DLCE(GainsPass):
    """Debiased learning for the causal effect, the paper's method: pass over the capped IPS estimate.

    A treated positive weighs 1 / max(P, χ^T) and is pulled up, a control positive weighs 1 / max(1−P, χ^C) and is
    pushed down. Without any cap, each arm has the smallest χ with which its n weights are worth half as many equal
    ones, (Σ w)² / Σ w² ≥ n / 2. A fit that chooses its length also tries a bold setting: nine tenths, three times the
    learning rate and a thirtieth of the regularization. ``caps_`` has the caps.

    Parameters
    ----------
    cap : χ of both arms
    cap_treated, cap_control : χ^T and χ^C, which override it
    control_weight : ρ, a factor of the weights of control positives: 1 is DLCE, 0 is DLTO

    Examples
    --------
    >>> import taurank as tr
    >>> log = tr.World.synthetic(50, 10, random_state=0).sample(3, random_state=1).log
    >>> model = tr.DLCE(factors=8, epochs=5, cap=0.1, random_state=0).fit(log, validation=None, show_progress=False)
    >>> model.history_["epoch"].tolist()
    [1, 2, 3, 4, 5]
    """

    learning_rate: float = 0.01
    epochs: int = 400
    cap: float | None = None
    cap_treated: float | None = None
    cap_control: float | None = None
    control_weight: float = 1.0

    allowed: ClassVar[Allowed] = {
        "cap": Range(0, 1, optional=True),
        "cap_treated": Range(0, 1, optional=True),
        "cap_control": Range(0, 1, optional=True),
        "control_weight": Range(0, 1),
    }
    stored: ClassVar[Mapping[str, Array]] = {
        **GainsPass.stored,
        "caps": Array("float64", (2,), minimum=0.0, optional=True),
    }
    needs_propensity: ClassVar[bool] = True
    space: ClassVar[Mapping[str, Sequence[float]]] = {
        "regularization": REGULARIZATION_GRID,
        "cap": CAP_GRID,
        "control_weight": (0.0, 0.3, 0.6, 0.8, 1.0),
    }

    def _choices(self, rows: Log) -> Iterator[dict[str, Any]]:
        if (self.cap, self.cap_treated, self.cap_control) != (None, None, None):
            yield from super()._choices(rows)
            return
        for worth, steps in (CAREFUL, BOLD):
            self.caps_ = self._worth_caps(rows, worth)
            yield {"caps_": self.caps_, "steps_": bearable_steps(self.gains(rows), steps)}

    def _worth_caps(self, log: Log, worth: float) -> Floats:
        propensity, bought = log.recorded_propensity(type(self).__name__), log.outcome == 1
        arms = propensity[bought & (log.treated == 1)], 1 - propensity[bought & (log.treated == 0)]
        return np.array([worth_cap(arm, worth) for arm in arms])

    def gains(self, log: Log) -> Gains:
        log.recorded_propensity(type(self).__name__)
        caps = self.cap, self.cap_treated, self.cap_control
        if caps == (None, None, None):
            chosen = getattr(self, "caps_", None)
            caps = (None, *(self._worth_caps(log, CAREFUL[0]) if chosen is None else chosen))
        cells = gains.capped_ips(log, caps[0], cap_treated=caps[1], cap_control=caps[2])
        if self.control_weight == 0:
            return cells.where(lambda value: value > 0)
        return replace(cells, value=np.where(cells.value < 0, self.control_weight * cells.value, cells.value))


def worth_cap(chance: Floats, worth: float) -> float:
    """The smallest cap with which n weights w = 1 / max(chance, cap) have (Σ w)² / Σ w² ≥ worth · n (Kish 1965)."""
    for cap in CAPS:
        weight = 1 / np.maximum(chance, cap or np.finfo(float).tiny)
        if weight.sum() ** 2 >= worth * len(chance) * (weight**2).sum():
            return float(cap)
    return 1.0


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

    allowed: ClassVar[Allowed] = {"positive_share": Range(0, 1)}
    space: ClassVar[Mapping[str, Sequence[float]]] = {
        "regularization": REGULARIZATION_GRID,
        "positive_share": (0.0, 0.2, 0.4, 0.6),
    }

    def step_params(self, rate: float) -> StepParams:
        return pair_params(rate, self.regularization)

    def prepare(self, log: Log) -> Epoch:
        if log.n_items == 1 and log.outcome.any():  # nothing to rank
            return Epoch(lambda *_: Stats(), int(np.count_nonzero(log.outcome)), lambda *_: None)
        return super().prepare(log)

    def sampler(self, log: Log) -> Sampler:
        if not log.eligibility.is_everything:
            return pair_sampler(log, self.positive_share)
        slots = slots_of(log)
        kinds = pair_kinds(slots, self.positive_share)
        if kinds is None:
            raise TooLittleData("ULBPR found no treated positive in this log.")
        choose, fill = partial(choose_pairs, slots, kinds), partial(fill_pairs, slots, kinds)
        return Sampler(choose, fill)
