"""Parts of a log: some of its users, items and times, and the split by time that an evaluation needs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from taurank._validation import check_number
from taurank.data.ids import Catalogue, Ids
from taurank.errors import InputError

if TYPE_CHECKING:
    from taurank.data.log import Log


def select(log: Log, users: Any, items: Any, times: Any) -> Log:
    """The part of a log with these users, items and times, each in the order given."""
    lists = []
    for ids, chosen in ((log.users, users), (log.items, items), (log.times, times)):
        lists.append(ids if chosen is None else _chosen(ids, chosen))
    catalogue = Catalogue(*lists)
    moves = [
        new.encode(old.values).astype(np.int64)
        for new, old in ((catalogue.users, log.users), (catalogue.items, log.items), (catalogue.times, log.times))
    ]
    columns, kept = (log.user, log.item, log.time), np.ones(len(log), np.bool_)
    for move, own, chosen in zip(moves, columns, (users, items, times), strict=True):
        if chosen is not None:
            kept &= (move >= 0)[own]
    rows = np.flatnonzero(kept)
    user, item, time = (move[own[rows]].astype(np.int32) for move, own in zip(moves, columns, strict=True))
    limits = None if log.eligibility is None else log.eligibility.moved(catalogue, *moves)
    return replace(
        log, catalogue=catalogue, user=user, item=item, time=time, treated=log.treated[rows],
        outcome=log.outcome[rows], propensity=_at(log.propensity, rows), values=_at(log.values, rows), summary=None,
        eligibility=limits,
    )  # fmt: skip


def split(log: Log, times: Any, share: float | None) -> tuple[Log, Log]:
    """The log before and from a time on: the last ``times`` (a number of them, or a list), or the last ``share``."""
    if (times is None) == (share is None):
        raise InputError("split needs either times or share: log.split(times=4), log.split(share=0.2).")
    if share is not None:
        check_number("share", share, 0, 1)
        times = round(share * log.n_times)
    if isinstance(times, (int, np.integer)) and not isinstance(times, bool):
        held_out = np.arange(log.n_times) >= log.n_times - int(times)
    else:
        held_out = np.isin(np.arange(log.n_times), log.times.encode_known(times))
    if held_out.all() or not held_out.any():
        raise InputError(
            f"the log has {log.n_times:,} times, of which {np.count_nonzero(held_out):,} would be in the later part; "
            "both parts need at least one."
        )
    first, second = (log.times.decode(np.flatnonzero(part)) for part in (~held_out, held_out))
    return select(log, None, None, first), select(log, None, None, second)


def _chosen(ids: Ids, chosen: Any) -> Ids:
    wanted = Ids(chosen, ids.column)
    if not len(wanted):
        raise InputError(f"select needs at least one {ids.column}.")
    return Ids(ids.decode(ids.encode_known(wanted.values)), ids.column)


def _at(values: npt.NDArray[Any] | None, rows: npt.NDArray[Any]) -> npt.NDArray[Any] | None:
    return None if values is None else values[rows]
