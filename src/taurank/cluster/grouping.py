"""Rows to the workers that need them, group by group of users; a lost worker's groups are done again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from taurank.cluster.evaluating import Rows, rows_by_group
from taurank.cluster.pieces import Piece, read_part
from taurank.cluster.pool import Lost
from taurank.data.ids import Catalog, Codes

GROUPS_AT_ONCE = 64


def send_rows(log: Any, groups: list[Codes], function: Callable[..., Any], tasks: list[tuple[Any, ...]]) -> list[Any]:
    """``function(*task, *rows of the group)`` for every group, in order."""
    results: list[Any] = []
    for first in range(0, len(groups), GROUPS_AT_ONCE):
        part = slice(first, first + GROUPS_AT_ONCE)
        results += _send(log, groups[part], function, tasks[part])
    return results


def _send(log: Any, groups: list[Codes], function: Callable[..., Any], tasks: list[tuple[Any, ...]]) -> list[Any]:
    pool = log.cluster.pool
    results: dict[int, Any] = {}
    while len(results) < len(groups):
        left = [n for n in range(len(groups)) if n not in results]
        running: dict[Any, int] = {}
        try:
            rows = _rows(log, groups, left)
            for position, n in enumerate(left):
                worker = position % len(pool)
                running[pool.call(worker, function, *tasks[n], *(parts[position] for parts in rows))] = n
            for reference, n in running.items():
                results[n] = pool.get(reference)
                pool.losses = 0
        except Lost:
            _collect(pool, running, results)
            pool.repair()
            log.forget_shared()
    return [results[n] for n in range(len(groups))]


def _rows(log: Any, groups: list[Codes], left: list[int]) -> list[list[Any]]:
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
    """The rows of a piece that belong to each of these groups."""
    return rows_by_group(read_part(piece, catalog, share), group_of, groups)


def _collect(pool: Any, running: dict[Any, int], results: dict[int, Any]) -> None:
    """What was finished although a worker was lost."""
    for reference, n in running.items():
        if n not in results:
            try:
                results[n] = pool.get(reference)
            except Lost:
                continue
