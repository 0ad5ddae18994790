"""RankLearner: the orthogonal pairwise loss, whose labels come from cross-fitted rates and doubly robust corrections.

A uniform item j against an item i that the user has rows with. With effects τ̂ = μ̂^T − μ̂^C from other times than those
the corrections come from, and the doubly robust pseudo-effect

    φ = τ̂ + mean over times of Z (Y − μ̂^T) / P − (1 − Z) (Y − μ̂^C) / (1 − P),

the label of the pair is clip(s + s(1 − s)/κ · [(φ_i − τ̂_i) − (φ_j − τ̂_j)], 0, 1), s = σ((τ̂_i − τ̂_j)/κ), and its loss
is the cross-entropy on s_ui − s_uj: errors of μ̂ change it to second order only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from taurank._validation import check_number
from taurank.data.log import Log
from taurank.errors import InputError
from taurank.learners.drawn import DrawnLearner
from taurank.learners.empirical_bayes.choice import Fits, Setting
from taurank.learners.empirical_bayes.counts import Floats, Pairs, count
from taurank.learners.factorization import REGULARIZATION_GRID
from taurank.learners.fitting import Epoch
from taurank.sgd import samplers
from taurank.sgd.samples import PAIR
from taurank.sgd.scheduler import NOTHING_DONE, Pairwise, run_pairwise_samples
from taurank.sgd.slots import Cells
from taurank.sgd.soft_pairs import SoftPairs, choose_soft_pairs, fill_soft_pairs

NUISANCES = Setting("item", 30.0, steps=3)  # EmpiricalBayes without a choice


@dataclass(kw_only=True, eq=False)
class RankLearner(DrawnLearner):
    """Rank by the orthogonal pairwise loss; see the module.

    ``temperature`` is κ, in purchases per recommendation: effects that differ by much more are a hard label.
    Propensities below ``cap`` or above 1 − ``cap`` are moved there.
    """

    learning_rate: float = 0.03
    regularization: float = 0.003
    temperature: float = 0.03
    cap: float = 0.03

    needs_propensity: ClassVar[bool] = True
    run_samples = staticmethod(run_pairwise_samples)
    space: ClassVar[Mapping[str, Sequence[float]]] = {
        "regularization": REGULARIZATION_GRID,
        "temperature": (0.003, 0.01, 0.03, 0.1),
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("temperature", self.temperature, 1e-6)
        check_number("cap", self.cap, 1e-6, maximum=0.5)

    def step_params(self) -> Pairwise:
        return Pairwise(self.learning_rate, self.regularization)

    def prepare(self, log: Log) -> Epoch:
        if log.n_items == 1:  # nothing to rank
            return lambda factors, seed, number, threads: NOTHING_DONE
        return super().prepare(log)

    def sampler(self, cells: Cells) -> samplers.Sampler:
        raise NotImplementedError("the sampler of RankLearner needs propensities as well.")

    def sampler_of(self, log: Log) -> samplers.Sampler:
        if log.n_items == 1:
            raise InputError("RankLearner compares items, and this log has one.")  # new users then stay as they are
        pairs = soft_pairs(log, self.cap, self.threads)
        fill = partial(fill_soft_pairs, pairs, self.temperature)
        return samplers.Sampler(PAIR, partial(choose_soft_pairs, pairs), fill)


def soft_pairs(log: Log, cap: float, threads: int | None = 1) -> SoftPairs:
    """Cross-fitted effects and corrections: the rates of each half of the times correct those of the other."""
    log.recorded_propensity("RankLearner")
    if log.n_times < 2:
        raise InputError("RankLearner needs a log with at least two times: one half corrects the other.")
    whole = count(log)
    effect, correction = np.zeros(len(whole.item)), np.zeros(len(whole.item))
    absent_effect, absent_correction = np.zeros(log.n_items), np.zeros(log.n_items)
    for half in (0, 1):
        inside = np.arange(log.n_times) % 2 == half
        fit, rest = (log.select(times=log.times.decode(np.flatnonzero(part))) for part in (~inside, inside))
        learned, counts = count(fit), count(rest)
        rates = _rates(learned, whole, threads)
        share = rest.n_times / log.n_times
        effect += share * (rates.pair[:, 0] - rates.pair[:, 1])
        absent_effect += share * (rates.absent[:, 0] - rates.absent[:, 1])
        correction += _corrections(counts, whole, rates.pair, cap) / log.n_times
        shown = np.clip(whole.by_item(whole.treated) / np.maximum(whole.item_cells, 1.0), cap, 1 - cap)
        absent_correction += share * rates.absent[:, 1] / (1 - shown)
    columns = (effect, correction, absent_effect, absent_correction)
    return SoftPairs(whole.start, whole.user, whole.item, *(column.astype(np.float32) for column in columns))


class Rates(NamedTuple):
    """μ̂^T and μ̂^C of the pairs of the whole log, and of pairs without rows, item by item."""

    pair: Floats
    absent: Floats


def _rates(learned: Pairs, whole: Pairs, threads: int | None) -> Rates:
    result = Fits(learned, threads).counted(NUISANCES)
    rates = result.absent[whole.item, :2]
    rates[_entries(learned, whole)] = result.pair[:, :2]
    return Rates(rates, result.absent[:, :2])


def _corrections(counts: Pairs, whole: Pairs, rates: Floats, cap: float) -> Floats:
    """Σ over times of Z (Y − μ̂^T) / P − (1 − Z) (Y − μ̂^C) / (1 − P), with the pair's mean propensity."""
    at = _entries(counts, whole)

    def spread(values: npt.NDArray[Any]) -> Floats:
        column = np.zeros(len(whole.item))
        column[at] = values
        return column

    treated, bought, otherwise = map(spread, (counts.treated, counts.treated_positives, counts.control_positives))
    assert whole.propensity is not None
    chance = np.clip(whole.propensity.astype(np.float64), cap, 1 - cap)
    untreated = counts.times - treated
    return (bought - treated * rates[:, 0]) / chance - (otherwise - untreated * rates[:, 1]) / (1 - chance)


def _entries(part: Pairs, whole: Pairs) -> npt.NDArray[np.intp]:
    """Where the pairs of a part of the log are among all pairs."""
    own, all_of_them = (pairs.user.astype(np.int64) * whole.n_items + pairs.item for pairs in (part, whole))
    return np.searchsorted(all_of_them, own)
