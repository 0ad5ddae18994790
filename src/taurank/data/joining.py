"""Two logs in one: a catalog that grows, and rows that move into it.

The ids of the larger catalog are those of the first one, in its order, then what is new: positions that a model
has stored stay valid.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from taurank.data.eligibility import Eligibility, Members
from taurank.data.ids import Catalog, Ids, match_type
from taurank.data.log import Log
from taurank.errors import InputError, plural


def grown(ids: Ids, *more: Ids) -> Ids:
    """``ids`` in their order, followed by those of ``more`` that are new."""
    for other in more:
        if not len(ids):
            ids = other
            continue
        values = match_type(other.values, ids)
        new = values.filter(pc.is_null(pc.index_in(values, value_set=ids.values)))
        if len(new):
            ids = Ids(pa.concat_arrays([ids.values, new]), ids.column)
    return ids


def recoded(log: Log, users: Ids, items: Ids) -> Log:
    """The same rows in another catalog, which has all of the log's users and items."""
    if log.users == users and log.items == items:
        return log
    user, item = users.encode_known(log.users.values), items.encode_known(log.items.values)
    return log.reindex(Catalog(users, items, log.times), user, item, np.arange(log.n_times))


def joined(past: Log, log: Log) -> Log:
    """The rows of both logs, the past first. Logs without a time become two times.

    A column that one of them lacks, such as the propensity, is left out.
    """
    if past.timed != log.timed:
        raise InputError("only one of the two logs has a column 'time'; give both the same columns.")
    users, items = grown(past.users, log.users), grown(past.items, log.items)
    times = grown(past.times, log.times) if log.timed else Ids([0, 1], "time")
    catalog, both = Catalog(users, items, times), []
    for number, part in enumerate((past, log)):
        time = times.encode_known(part.times.values) if log.timed else np.full(part.n_times, number)
        codes = (users.encode_known(part.users.values), items.encode_known(part.items.values), time)
        both.append(part.reindex(catalog, *codes))
    _refuse_repeated(*both)
    first, second = (part.row_columns() for part in both)
    columns: dict[str, Any] = {
        name: np.concatenate((first[name], second[name])) if name in first and name in second else None
        for name in first | second
    }
    return replace(both[0], timed=True, eligibility=_united(*both), **columns)


def _united(past: Log, log: Log) -> Eligibility:
    """The eligible cells of both: at the times of each log its own."""
    if past.eligibility.is_everything and log.eligibility.is_everything:
        return past.eligibility
    parts = [part.eligibility for part in (past, log)]
    if any(part.listed is not None for part in parts):
        raise InputError("logs whose candidates differ between users cannot be joined; fit to the whole log instead.")
    own = [np.unique(part.time) for part in (past, log)]
    visitors, candidates = (
        _union([_members_at(getattr(part, name), times) for part, times in zip(parts, own, strict=True)])
        for name in ("visitors", "candidates")
    )
    outside = [sum(part.numbers()[n] for part in parts) for n in (0, 1)]
    return Eligibility(visitors, candidates, None, *outside)


def _members_at(members: Members, times: npt.NDArray[Any]) -> Members:
    """The members at these times alone."""
    codes = members.codes
    if codes is None or not members.timed:
        everyone = np.arange(members.size) if codes is None else codes
        here, when = np.tile(everyone, len(times)), np.repeat(times, len(everyone))
    else:
        when, here = np.divmod(codes, members.size)
    kept = np.isin(when, times)
    return Members.of(members.size, members.n_times, here[kept], when[kept])


def _union(parts: list[Members]) -> Members:
    codes = [part.codes for part in parts if part.codes is not None]
    return replace(parts[0], codes=np.unique(np.concatenate(codes)))


def _refuse_repeated(past: Log, log: Log) -> None:
    """A cell has one row: what was learned from must not come again."""
    shared = np.isin(past.time, np.unique(log.time))
    old, new = (
        (part.time.astype(np.int64) * part.n_users + part.user) * part.n_items + part.item for part in (past, log)
    )
    again = np.flatnonzero(np.isin(new, old[shared]))
    if len(again):
        row = again[0]
        example = ", ".join(
            ids.name(int(code))
            for ids, code in ((log.users, log.user[row]), (log.items, log.item[row]), (log.times, log.time[row]))
        )
        raise InputError(
            f"{plural(len(again), 'row')} of the log repeat a (user_id, item_id, time) of the past log, for example "
            f"({example}); give only new rows."
        )
