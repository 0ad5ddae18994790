"""Counts of several logs together: new rows added to the counts of a model, and new users beside its own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from taurank._arrays import group
from taurank.data.ids import Codes
from taurank.data.log import Log
from taurank.learners.empirical_bayes.counts import Floats, Integers, Pairs, chances_of, count, distinct


def added(known: Pairs, log: Log) -> Pairs:
    """The counts of the model and of the new rows, in the catalog of the new rows.

    Without eligibility tables they are those of one log with all rows. With tables, a pair that has its first rows
    in ``log`` had as many chances before as the item's other pairs without rows.
    """
    new = count(log)
    start, item, entry = _union(known, new)
    first, second = np.split(entry, [len(known.item)])

    def total(name: str) -> Codes:
        both = np.concatenate((getattr(known, name), getattr(new, name)))
        return np.bincount(entry, both, len(item)).astype(np.int32)

    fresh = chances_of(log.eligibility, log.n_times, start, item)
    tabled = known.limited or new.limited
    item_cells, user_cells = _cells(known, new, tabled)
    return Pairs(
        start, item, total("rows"), total("treated"), total("treated_positives"), total("control_positives"),
        propensity=_mean_propensity(known, new, first, second, len(item)),
        chances=_past_chances(known, item, first) + fresh if tabled else _constant(known.times + new.times, item),
        item_cells=item_cells, user_cells=user_cells, times=known.times + new.times,
        users=float(np.count_nonzero(user_cells)),
    )  # fmt: skip


def beside(known: Pairs, new: Pairs) -> Pairs:
    """The pairs of the model, and behind them those of new users, which are scored but not learned from."""
    columns: dict[str, Any] = {
        name: np.concatenate((getattr(known, name), getattr(new, name)))
        for name in ("item", "treated", "treated_positives", "control_positives", "chances")
    }
    propensity = None
    if known.propensity is not None and new.propensity is not None:
        propensity = np.concatenate((known.propensity, new.propensity))
    return replace(
        known, **columns, start=np.concatenate((known.start, known.start[-1] + new.start[1:])),
        rows=np.concatenate((known.rows, np.zeros_like(new.rows))), propensity=propensity,
    )  # fmt: skip


def all_pairs(users: int, n_items: int, chances: Codes) -> Pairs:
    """Users whose pairs have no rows, written out: ``chances`` are those of the items."""
    nothing = np.zeros(users * n_items, np.int32)
    return Pairs(
        np.arange(users + 1) * n_items, np.tile(np.arange(n_items, dtype=np.int32), users), nothing, nothing, nothing,
        nothing, np.zeros(len(nothing), np.float32), np.tile(chances, users), np.zeros(n_items), np.zeros(users), 0,
        0.0,
    )  # fmt: skip


def _union(known: Pairs, new: Pairs) -> tuple[Integers, Codes, Integers]:
    """The pairs of both, and the entry there of each pair of the one and of the other."""
    user, item = np.concatenate((known.user, new.user)), np.concatenate((known.item, new.item))
    begin, (grouped, position) = group(user, new.n_users, item, np.arange(len(item)))
    start, items, of_grouped = distinct(begin, grouped, new.n_items)
    entry = np.empty(len(item), np.int64)
    entry[position] = of_grouped
    return start, items, entry


def _past_chances(known: Pairs, item: Codes, entry: Integers) -> Codes:
    chances = _padded(known.absent_chances(), int(item.max(initial=0)) + 1, 0).astype(np.int32)[item]
    chances[entry] = known.chances
    return chances


def _cells(known: Pairs, new: Pairs, tabled: bool) -> tuple[Floats, Floats]:
    """Without tables every pair of the grown catalog has all times; with them, what was eligible is added up."""
    if tabled:
        return (
            _padded(known.item_cells, new.n_items, 0.0) + new.item_cells,
            _padded(known.user_cells, new.n_users, 0.0) + new.user_cells,
        )
    times = float(known.times + new.times)
    return np.full(new.n_items, new.n_users * times), np.full(new.n_users, new.n_items * times)


def _padded(values: npt.NDArray[np.generic], length: int, fill: float) -> Floats:
    return np.concatenate((values.astype(np.float64), np.full(max(0, length - len(values)), fill)))


def _constant(times: int, item: Codes) -> Codes:
    return np.broadcast_to(np.int32(times), len(item))


def _mean_propensity(
    known: Pairs, new: Pairs, first: Integers, second: Integers, size: int
) -> npt.NDArray[np.float32] | None:
    if known.propensity is None or new.propensity is None:
        return None
    total, rows = np.zeros(size), np.zeros(size)
    for pairs, entry in ((known, first), (new, second)):
        assert pairs.propensity is not None
        total[entry] += pairs.rows * pairs.propensity.astype(np.float64)
        rows[entry] += pairs.rows
    return (total / np.maximum(rows, 1)).astype(np.float32)
