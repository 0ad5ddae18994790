"""Pointwise methods: each is a declaration of the cells it draws and their targets; the loss is the log-loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
from scipy.special import expit

from taurank._random import Stream, stream
from taurank._threads import using_threads
from taurank._validation import check_number
from taurank.data.ids import Codes
from taurank.data.log import Log
from taurank.errors import InputError
from taurank.learners.base import Floats
from taurank.learners.factorization import REGULARIZATION_GRID, Epoch, FactorLearner, products
from taurank.learners.schema import ITEM_FACTORS, Array
from taurank.sgd import samplers
from taurank.sgd.samples import SAMPLE
from taurank.sgd.scheduler import Factors, Pointwise, Stats, run_pointwise_samples
from taurank.sgd.strata import Strata


@dataclass(kw_only=True, eq=False)
class ULRMF(FactorLearner):
    """Uplift as a label (Sato et al. 2019): TP is 1, TN and CP are 0, CN is 1 with probability α.

    Arms are drawn 50/50 and ``positives`` is the share of positive cells in each; α is ``positive_share``.
    """

    learning_rate: float = 0.1
    regularization: float = 0.003
    positive_share: float = 0.0
    positives: float = 0.2

    space: ClassVar[Mapping[str, Sequence[float]]] = {
        "regularization": REGULARIZATION_GRID,
        "positive_share": (0.0, 0.2, 0.4, 0.6),
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("positive_share", self.positive_share, 0, maximum=1)
        check_number("positives", self.positives, 0, maximum=1)

    def prepare(self, log: Log) -> Epoch:
        n = int(np.count_nonzero(log.outcome))
        classes = samplers.classes_of(log)
        rows = samplers.rows_by_class(classes)
        for name, found in zip(("treated positive", "treated negative", "control positive"), rows, strict=False):
            if not len(found):
                raise InputError(f"ULRMF needs every kind of cell, but this log has no {name}.")
        strata = Strata(log.n_users, log.n_items, n)
        rule = Pointwise(self.learning_rate, self.regularization)

        def epoch(tables: Factors, seed: int, number: int, threads: int) -> Stats:
            drawn = np.zeros(n, SAMPLE)
            key = stream(seed, number, Stream.DRAWN_SAMPLES)
            columns = (drawn["user"], drawn["item"], drawn["weight"])
            with using_threads(threads):
                samplers.draw_by_class(classes, rows, self.positives, self.positive_share, key, *columns)
            return run_pointwise_samples(tables, drawn, strata, seed, number, rule, threads)

        return epoch


@dataclass(kw_only=True, eq=False)
class CausE(FactorLearner):
    """Outcomes with and without a recommendation, trained together (Bonner and Vasile 2018, CausE-prod).

    Users share p_u, items have q^T and q^C, tied by (λ_c/2)‖q^T − q^C‖² (``tie``); items rank by
    σ(p_u·q^T) − σ(p_u·q^C).
    """

    learning_rate: float = 0.05
    regularization: float = 0.001
    epochs: int = 200
    tie: float = 0.001

    stored: ClassVar[Mapping[str, Array]] = {**FactorLearner.stored, "control_item_factors": ITEM_FACTORS}
    item_tables: ClassVar[int] = 2
    space: ClassVar[Mapping[str, Sequence[float]]] = {
        "regularization": REGULARIZATION_GRID,
        "tie": (0.1, 0.01, 0.001, 0.0001),
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("tie", self.tie, 0)

    def prepare(self, log: Log) -> Epoch:
        n, n_items = int(np.count_nonzero(log.outcome)), log.n_items
        classes = samplers.classes_of(log)
        slots = samplers.slots_by_arm(classes)
        if not n or not all(len(arm) for arm in slots):
            raise InputError("CausE needs positives, and cells that were and were not recommended.")
        strata = Strata(log.n_users, n_items, n)
        rule = Pointwise(self.learning_rate, self.regularization, self.tie)

        def epoch(tables: Factors, seed: int, number: int, threads: int) -> Stats:
            drawn = np.zeros(n, SAMPLE)
            treated = np.zeros(n, np.bool_)
            key = stream(seed, number, Stream.DRAWN_SAMPLES)
            columns = (drawn["user"], drawn["item"], drawn["weight"])
            with using_threads(threads):
                samplers.draw_by_arm(classes, *slots, key, *columns, treated)
            drawn["other"] = drawn["item"]
            drawn["item"] += np.where(treated, 0, n_items).astype(np.int32)
            drawn["other"] += np.where(treated, n_items, 0).astype(np.int32)
            return run_pointwise_samples(tables, drawn, strata, seed, number, rule, threads)

        return epoch

    def with_factors(self, tables: Factors) -> Self:
        half = len(tables.items) // 2
        self.user_factors_ = tables.users[:, : self.factors].copy()
        self.item_factors_ = tables.items[:half, : self.factors].copy()
        self.control_item_factors_ = tables.items[half:, : self.factors].copy()
        return self

    def score_block(self, user_codes: Codes) -> Floats:
        users = self._fitted("user_factors_")[user_codes]
        return np.asarray(
            expit(products(users, self.item_factors_)) - expit(products(users, self.control_item_factors_))
        )
