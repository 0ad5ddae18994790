"""A log by groups of users: its rows go to the workers that need them, and a lost worker's groups are done again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from taurank._types import Bits, Codes, Floats
from taurank.cluster.pieces import PartOfLog, Piece, read_part
from taurank.cluster.pool import Lost, WorkerPool
from taurank.cluster.rows import ClusterRows
from taurank.data.ids import Catalog, Ids

GROUPS_AT_ONCE = 64
T = TypeVar("T")


def by_group(
    log: ClusterRows, groups: list[Codes], function: Callable[..., T], arguments: Sequence[tuple[Any, ...]]
) -> list[T]:
    """``function(log of the group, *its arguments)`` for every group of users, in order.

    A group has positions in the catalog, in order; its log has the catalog of its users and everything else.
    """
    results: list[T] = []
    for first in range(0, len(groups), GROUPS_AT_ONCE):
        some = slice(first, first + GROUPS_AT_ONCE)
        results += _by_group(log, groups[some], function, arguments[some])
    return results


class Group(NamedTuple):
    """Some users of a log, and what its rows do not tell."""

    users: Codes
    timed: bool
    treated_share: float  # of the whole log
    pieces: int


class Rows(NamedTuple):
    """Rows of a piece, without its catalog."""

    user: Codes
    item: Codes
    time: Codes
    treated: Bits
    outcome: Bits
    propensity: Floats | None


def _by_group(
    log: ClusterRows, groups: list[Codes], function: Callable[..., T], arguments: Sequence[tuple[Any, ...]]
) -> list[T]:
    pool = log.cluster.pool
    results: dict[int, T] = {}
    while len(results) < len(groups):
        left = [n for n in range(len(groups)) if n not in results]
        running: dict[Any, int] = {}
        try:
            rows = _rows(log, groups, left)
            for position, n in enumerate(left):
                group = Group(groups[n], log.summary.timed, log.treated_share, len(rows))
                of_group = (parts[position] for parts in rows)
                task = (function, group, log.shared, *of_group, *arguments[n])
                running[pool.call(position % len(pool), _run, *task)] = n
            for reference, n in running.items():
                results[n] = pool.get(reference)
                pool.losses = 0
        except Lost:
            _collect(pool, running, results)
            log.repair()
    return [results[n] for n in range(len(groups))]


def _rows(log: ClusterRows, groups: list[Codes], left: list[int]) -> list[list[Any]]:
    """For each piece, references to the rows of each group."""
    pool = log.cluster.pool
    group_of = np.full(log.n_users, -1, np.int32)
    for n in left:
        group_of[groups[n]] = n
    shared = pool.put(group_of)
    rows = []
    for number, piece in enumerate(log.pieces):
        task = (piece, log.shared, log.treated_share, shared, left)
        rows.append(pool.split(number % len(pool), len(left), _rows_of_piece, *task))
    return rows


def _rows_of_piece(piece: Piece, catalog: Catalog, share: float, group_of: Codes, groups: list[int]) -> list[Rows]:
    """The rows of a piece that belong to each of these groups, in order."""
    part = read_part(piece, catalog, share)
    home = group_of[part.user]
    chosen = (part.take(np.flatnonzero(home == group)) for group in groups)
    return [Rows(one.user, one.item, one.time, one.treated, one.outcome, one.propensity) for one in chosen]


def _run(function: Callable[..., T], group: Group, catalog: Catalog, *more: Any) -> T:
    """On a worker: put the log of a group together, and call the function."""
    rows, arguments = more[: group.pieces], more[group.pieces :]
    user, *columns = (None if parts[0] is None else np.concatenate(parts) for parts in zip(*rows, strict=True))
    assert user is not None
    codes = np.searchsorted(group.users, user).astype(np.int32)
    own = Catalog(Ids(catalog.users.decode(group.users), "user_id"), catalog.items, catalog.times)
    named: Any = dict(zip(Rows._fields[1:], columns, strict=True))
    log = PartOfLog(own, codes, **named, timed=group.timed, share=group.treated_share)
    return function(log, *arguments)


def _collect(pool: WorkerPool, running: dict[Any, int], results: dict[int, Any]) -> None:
    """What was finished although a worker was lost."""
    for reference, n in running.items():
        if n not in results:
            try:
                results[n] = pool.get(reference)
            except Lost:
                continue
