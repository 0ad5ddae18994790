"""The hold-out run: train without a part of the log to see after how many updates a fit overfits, then train it all.

How far training has come is the sum of its learning rates over its updates: two fits with the same sum overfit
alike, whether their rates fall or not. So the hold-out run trains on the rest of the log at the constant first rate,
which reaches the sum of the whole schedule in a part of its epochs (28% for a decay of 0.03), and is measured on what
was held out. Then everything is trained with a complete schedule of as many epochs as have the sum of the best check.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from taurank._random import mix
from taurank._types import Codes, Mask
from taurank.data.ids import Catalog, Ids
from taurank.data.log import Log
from taurank.data.remote import RemoteLog
from taurank.estimation import gains
from taurank.learners.options import Record
from taurank.learners.training import Schedule

SHARE = 0.1  # of the times, or of the user-item pairs if there is one time
CAP = 0.1  # of the gains that measure the hold-out run: little variance
MIN_EPOCHS = 20  # a shorter fit is not cut short
GROWTH = 1.25  # of the epochs from one check to the next
MIN_USERS = 500  # in a sample of them


def run_schedule(schedule: Schedule) -> Schedule:
    """That of the hold-out run: the first rate, until its sum is that of the whole schedule."""
    return Schedule(max(1, round(schedule.sum_of_rates)), schedule.first)


def refit_schedule(schedule: Schedule, run: Sequence[Record], best: int, updates: int) -> Schedule:
    """The schedule for all rows (``updates`` an epoch), as long as the best check of the hold-out run says.

    A run that is best at its end has not overfitted: all epochs.
    """
    if best >= run_schedule(schedule).epochs:
        return schedule
    sum_of_rates = sum(record.updates for record in run[:best]) / max(1, updates)
    epochs = round(sum_of_rates / (schedule.sum_of_rates / schedule.epochs))
    return replace(schedule, epochs=min(schedule.epochs, max(1, epochs)))


def check_epochs(epochs: int) -> frozenset[int]:
    """The epochs of the run that are followed by a check: a quarter more from one to the next, and the last one."""
    checks, now = {epochs}, 1
    while now < epochs:
        checks.add(now)
        now = max(now + 1, round(now * GROWTH))
    return frozenset(checks)


def affordable_users(updates: int, checks: int, n_items: int) -> int:
    """So many that a check scores no more cells than there are updates between two checks: a cell costs less."""
    return max(MIN_USERS, updates // (checks * n_items))


class HeldOut(NamedTuple):
    """A log without some of its rows, and the gains of those rows."""

    rest: Any  # a Log, or a RemoteLog
    gains: Any  # Gains, or RemoteGains


def hold_out(log: Log | RemoteLog, by_outcome: bool) -> HeldOut | None:
    """The last times or, with one time, random user-item pairs; None if either part has no positive outcome."""
    if isinstance(log, RemoteLog):
        parts = log.hold_out(by_outcome)
        return parts and HeldOut(*parts)
    positive = log.outcome == 1
    last = last_times(np.unique(log.time[positive]))
    held = np.isin(log.time, last) if len(last) else some_pairs(log.user, log.item, log.n_items)
    if not (positive & held).any() or not (positive & ~held).any():
        return None
    rest = log.take(~held).reindex(times=without_times(log.catalog, last).times)
    measured = log.take(held)
    recorded = measured.propensity is not None and bool(np.isfinite(measured.propensity).all())
    has_both = 0 < int(np.count_nonzero(measured.treated)) < measured.catalog.n_cells
    name = estimator_for(recorded, has_both, by_outcome)
    options = {"cap": CAP} if name == "capped_ips" else {}
    return HeldOut(rest, getattr(gains, name)(measured, **options))


def last_times(busy: Codes) -> Codes:
    """The times to hold out, of those with positive outcomes; none if there is one: then pairs are held out."""
    return busy[-max(1, round(SHARE * len(busy))) :] if len(busy) > 1 else busy[:0]


def some_pairs(user: Codes, item: Codes, n_items: int) -> Mask:
    """A random tenth of the user-item pairs, the same in every fit: by a hash of the two positions."""
    pair = user.astype(np.uint64) * np.uint64(n_items) + item.astype(np.uint64)
    with np.errstate(over="ignore"):
        return np.asarray(mix(pair + np.uint64(1)) < np.uint64(SHARE * 2**64))


def without_times(catalog: Catalog, without: Codes) -> Catalog:
    """The catalog without the times that are held out, or else they would count as untreated."""
    stays = np.isin(np.arange(catalog.n_times), without, invert=True)
    return Catalog(catalog.users, catalog.items, Ids(catalog.times.values.filter(stays), catalog.times.column))


def estimator_for(has_propensities: bool, has_both_arms: bool, by_outcome: bool) -> str:
    """The function of ``taurank.gains`` that measures a hold-out run."""
    if has_propensities:
        return "capped_ips"
    return "outcome" if by_outcome or not has_both_arms else "naive"
