"""Parts of a log: some of its users, items and times, and the split by time that an evaluation needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from taurank._validation import check_number
from taurank.data.ids import Catalog, Ids
from taurank.errors import InputError

if TYPE_CHECKING:
    from taurank.data.log import Log


def select(log: Log, users: Any, items: Any, times: Any) -> Log:
    """The part of a log with these users, items and times, each in the order given."""
    lists = []
    for ids, chosen in ((log.users, users), (log.items, items), (log.times, times)):
        lists.append(ids if chosen is None else _chosen(ids, chosen))
    catalog = Catalog(*lists)
    moves = [
        new.encode(old.values).astype(np.int64)
        for new, old in ((catalog.users, log.users), (catalog.items, log.items), (catalog.times, log.times))
    ]
    return log.reindex(catalog, *moves)


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
