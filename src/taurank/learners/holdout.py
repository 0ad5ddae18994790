"""Early stopping without validation data: hold out a part of the log, and see after how many updates a fit overfits.

How far training has come is the sum of its learning rates over its updates: two fits with the same sum overfit
alike, whether their rates fall or not. So a *pilot* trains on the rest of the log at the constant first rate, which
reaches the sum of the whole schedule in a part of its epochs (28 % for a decay of 0.03), and is measured on what was
held out. Then everything is trained with a complete schedule of as many epochs as give the sum of the best check.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from taurank._random import mix
from taurank.data.ids import Catalog, Codes, Ids
from taurank.data.log import Log
from taurank.errors import UnfinishedWarning
from taurank.estimation import gains
from taurank.estimation.gains import Gains
from taurank.learners.checkpoints import Record
from taurank.sgd.rates import decayed

SHARE = 0.1  # of the times, or of the user-item pairs if there is one time
CAP = 0.1  # of the gains that measure the pilot: little variance
MIN_EPOCHS = 20  # a shorter fit is not cut short
GROWTH = 1.25  # of the epochs from one check to the next
MIN_CHECKS = 8  # to tell that a curve is still rising
RISE, LATE = 0.01, 0.75  # "still improving": by 1 % in the last quarter of the epochs
MIN_USERS = 500  # in a sample of them

Mask = npt.NDArray[np.bool_]


class HeldOut(NamedTuple):
    """A log without some of its rows, and the gains of those rows."""

    rest: Log
    gains: Gains


def hold_out(log: Log, by_outcome: bool) -> HeldOut | None:
    """The last times or, with one time, random user-item pairs; None if either part has no positive outcome."""
    positive = log.outcome == 1
    last = last_times(np.unique(log.time[positive]))
    held = np.isin(log.time, last) if len(last) else some_pairs(log.user, log.item, log.n_items)
    if not (positive & held).any() or not (positive & ~held).any():
        return None
    return HeldOut(_rows(log, ~held, last), _gains(_rows(log, held, last[:0]), by_outcome))


def last_times(busy: Codes) -> Codes:
    """The times to hold out, of those with positive outcomes; none if there is one: then pairs are held out."""
    return busy[-max(1, round(SHARE * len(busy))) :] if len(busy) > 1 else busy[:0]


def some_pairs(user: Codes, item: Codes, n_items: int) -> Mask:
    """A random tenth of the user-item pairs, the same in every fit: by a hash of the two positions."""
    pair = user.astype(np.uint64) * np.uint64(n_items) + item.astype(np.uint64)
    with np.errstate(over="ignore"):
        word: npt.NDArray[np.uint64] = mix(pair + np.uint64(1))
    return word < np.uint64(SHARE * 2**64)


def estimator_for(has_propensities: bool, has_both_arms: bool, by_outcome: bool) -> str:
    """The function of ``taurank.gains`` that measures a pilot."""
    if has_propensities:
        return "capped_ips"
    return "outcome" if by_outcome or not has_both_arms else "naive"


def pilot_epochs(epochs: int, decay: float) -> int:
    """How many epochs at the first rate have the sum of a whole schedule."""
    return max(1, round(epochs * _mean_rate(epochs, decay)))


def refit_epochs(pilot: Sequence[Record], best: int, updates: int, epochs: int, decay: float) -> int:
    """The length of a schedule on all rows (``updates`` an epoch) with the sum of rates of the pilot's best check.

    A pilot that is best at its end has not overfitted: all epochs.
    """
    if not pilot or best >= pilot_epochs(epochs, decay):
        return epochs
    sum_of_rates = sum(record.updates for record in pilot[:best]) / max(1, updates)
    return min(epochs, max(1, round(sum_of_rates / _mean_rate(epochs, decay))))


def check_epochs(epochs: int) -> frozenset[int]:
    """The epochs of a pilot that are followed by a check: a quarter more from one to the next, and the last one."""
    checks, now = {epochs}, 1
    while now < epochs:
        checks.add(now)
        now = max(now + 1, round(now * GROWTH))
    return frozenset(checks)


def affordable_users(updates: int, checks: int, n_items: int) -> int:
    """So many that a check scores no more cells than there are updates between two checks: a cell costs less."""
    return max(MIN_USERS, updates // (checks * n_items))


def some_users(measured: Gains, count: int, seed: int) -> Codes | None:
    """``count`` random users of those that have gains; None if these are no more."""
    users = np.unique(measured.user)
    return None if len(users) <= count else choose_users(users, count, seed)


def choose_users(users: Codes, count: int, seed: int) -> Codes:
    """``count`` of these users."""
    return np.random.default_rng(np.random.SeedSequence(seed)).choice(users, count, replace=False)


def warn_if_improving(
    name: str, records: Sequence[Record], merits: Sequence[float], epochs: int, metric: str
) -> None:
    """One sentence where the last check is the best, and better by far than the checks well before the end."""
    checked = [record.epoch for record in records if record.metrics]
    if len(checked) < MIN_CHECKS or max(merits) > merits[-1]:
        return
    before = [merit for merit, epoch in zip(merits, checked, strict=True) if epoch <= LATE * checked[-1]]
    if merits[-1] - max(before) > RISE * abs(merits[-1]):
        warnings.warn(
            f"{name} was still improving by the validation's {metric} when its {epochs} epochs ended; "
            f"try epochs={2 * epochs}, or a larger learning_rate.",
            UnfinishedWarning,
            stacklevel=5,
        )


def _mean_rate(epochs: int, decay: float) -> float:
    """Of a whole schedule, in units of its first rate."""
    return math.fsum(decayed(1.0, decay, epoch, epochs) for epoch in range(epochs)) / epochs


def _rows(log: Log, keep: Mask, without: Codes) -> Log:
    """Some rows of a log; the times in ``without`` leave its catalog, or else they would count as untreated."""
    return log.take(keep).reindex(times=without_times(log.catalog, without).times)


def without_times(catalog: Catalog, without: Codes) -> Catalog:
    """The catalog without some times."""
    stays = np.isin(np.arange(catalog.n_times), without, invert=True)
    times = Ids(catalog.times.values.filter(stays), catalog.times.column)
    return Catalog(catalog.users, catalog.items, times)


def _gains(held: Log, by_outcome: bool) -> Gains:
    recorded = held.propensity is not None and bool(np.isfinite(held.propensity).all())
    has_both = 0 < int(np.count_nonzero(held.treated)) < held.catalog.n_cells
    name = estimator_for(recorded, has_both, by_outcome)
    if name == "capped_ips":
        return gains.capped_ips(held, CAP)
    return gains.outcome(held) if name == "outcome" else gains.naive(held)
