"""Pointwise methods: each is a declaration of the cells it draws and their targets.

The loss is the log-loss, ``taurank.sgd.losses.point_loss``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
from scipy.special import expit

from taurank._checks import Allowed, Range
from taurank._types import Codes, Floats32
from taurank.data.log import Log
from taurank.data.storage import Array
from taurank.errors import TooLittleData
from taurank.learners.eligible import arm_sampler, class_sampler
from taurank.learners.factors import REGULARIZATION_GRID, DrawnLearner, FactorLearner
from taurank.learners.scores import dot_products
from taurank.learners.training import aligned
from taurank.sgd import samplers
from taurank.sgd.kernels import StepParams, point_params
from taurank.sgd.samplers import CLASS_NAMES, absent_items, cells_by_class, controls, slots_of, untreated_items
from taurank.sgd.scheduler import Factors, factor_table


@dataclass(kw_only=True, eq=False)
class ULRMF(DrawnLearner):
    """Uplift as a label (Sato et al. 2019): TP is 1, TN and CP are 0, CN is 1 with probability α.

    Parameters
    ----------
    positive_share : α
    positives : the share of positive cells in each arm; arms are drawn 50/50
    """

    regularization: float = 0.003
    positive_share: float = 0.0
    positives: float = 0.2

    allowed: ClassVar[Allowed] = {"positive_share": Range(0, 1), "positives": Range(0, 1)}
    space: ClassVar[Mapping[str, Sequence[float]]] = {
        "regularization": REGULARIZATION_GRID,
        "positive_share": (0.0, 0.2, 0.4, 0.6),
    }

    def step_params(self, rate: float) -> StepParams:
        return point_params(rate, self.regularization)

    def sampler(self, log: Log) -> samplers.Sampler:
        if not log.eligibility.is_everything:
            return class_sampler(log, self.positives, self.positive_share)
        slots, by_class = slots_of(log), cells_by_class(log)
        absent = controls(slots, absent_items(slots), log.n_items, steps=3)
        for name, size in zip(CLASS_NAMES, (*np.diff(by_class.start), absent.weight), strict=True):
            if not size:
                raise TooLittleData(f"ULRMF needs cells of every class; this log has no {name}.")
        shares = (self.positives, self.positive_share)
        choose = partial(samplers.choose_by_class, slots, absent, by_class, *shares)
        return samplers.Sampler(choose, partial(samplers.fill_by_class, slots))


@dataclass(kw_only=True, eq=False)
class CausE(DrawnLearner):
    """Outcomes with and without a recommendation, trained together (Bonner and Vasile 2018, CausE-prod).

    Users share p_u, items have q^T and q^C, tied by (λ_c/2)‖q^T − q^C‖² (``tie``); items rank by
    σ(p_u·q^T) − σ(p_u·q^C).
    """

    regularization: float = 0.001
    tie: float = 0.001

    allowed: ClassVar[Allowed] = {"tie": Range(0)}
    stored: ClassVar[Mapping[str, Array]] = {
        **FactorLearner.stored,
        "control_item_factors": FactorLearner.stored["item_factors"],
    }
    _item_tables: ClassVar[int] = 2
    space: ClassVar[Mapping[str, Sequence[float]]] = {
        "regularization": REGULARIZATION_GRID,
        "tie": (0.1, 0.01, 0.001, 0.0001),
    }

    def step_params(self, rate: float) -> StepParams:
        return point_params(rate, self.regularization, self.tie)

    def sampler(self, log: Log) -> samplers.Sampler:
        if not log.eligibility.is_everything:
            return arm_sampler(log)
        slots = slots_of(log)
        untreated = untreated_items(slots)
        treated = np.flatnonzero(untreated < log.n_items).astype(np.int32)
        control = controls(slots, (untreated > 0).astype(np.int64), 1, steps=2)
        if not len(treated) or not control.weight:
            raise TooLittleData("CausE needs positive outcomes and both treated and untreated cells.")
        choose = partial(samplers.choose_by_arm, slots, control, treated)
        return samplers.Sampler(choose, partial(samplers.fill_by_arm, slots))

    def _set_factors(self, tables: Factors) -> None:
        half = len(tables.items) // 2
        self.user_factors_ = tables.users[:, : self.factors].copy()
        self.item_factors_ = tables.items[:half, : self.factors].copy()
        self.control_item_factors_ = tables.items[half:, : self.factors].copy()

    def _tables(self, n_users: int, n_items: int) -> Factors:
        users, treated = super()._tables(n_users, n_items)
        both = factor_table(2 * n_items, self.factors)
        both[:n_items], both[n_items:] = treated, aligned(self.control_item_factors_, n_items)
        return Factors(users, both)

    def score_block(self, user_codes: Codes) -> Floats32:
        users = self._fitted("user_factors_")[user_codes]
        treated, control = (dot_products(users, items) for items in (self.item_factors_, self.control_item_factors_))
        return np.asarray(expit(treated) - expit(control))
