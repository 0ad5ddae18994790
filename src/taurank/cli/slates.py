"""Slate propensities of a table: one row per slate and candidate in, the same rows with a column more out."""

from __future__ import annotations

import itertools
import os

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from taurank._checks import check_integer, check_number
from taurank._types import Floats
from taurank.data import tables
from taurank.data.reader import to_numbers
from taurank.data.tables import write_batches
from taurank.errors import InputError, plural
from taurank.estimation.propensity.slates import check_scores, slate_epsilon_greedy, slates_of


def add_propensities(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str],
    size: int,
    policy: str = "softmax",
    *,
    temperature: float = 1.0,
    epsilon: float | None = None,
    threads: int | None = None,
) -> tuple[int, int]:
    """Read slate_id and score (or weight) of all candidates, write them with ``propensity``; rows and slates."""
    check_integer("size", size)
    table = _read(path)
    slate = np.asarray(pc.dictionary_encode(table.column("slate_id").combine_chunks()).indices, np.int64)
    order = np.argsort(slate, kind="stable")
    starts = np.concatenate([[0], np.cumsum(np.bincount(slate))])
    scores = _scores(table)[order]
    propensity = np.empty(len(order))
    if policy == "softmax":
        check_number("temperature", temperature, 1e-12)
        propensity[order] = slates_of(scores / temperature, starts, size, threads)
    elif epsilon is None:
        raise InputError("epsilon-greedy slates need --epsilon, the share of uniform draws.")
    else:
        per = policy.removeprefix("epsilon-greedy-").removesuffix("s")
        parts = [slate_epsilon_greedy(scores[a:b], size, epsilon, per) for a, b in itertools.pairwise(starts)]
        propensity[order] = np.concatenate(parts)
    result = table.append_column("propensity", pa.array(propensity))
    write_batches(out, result.schema, result.to_batches())
    return len(order), len(starts) - 1


def _read(path: str | os.PathLike[str]) -> pa.Table:
    source = tables.open_table(path)
    if "slate_id" not in source.columns or not {"score", "weight"} & set(source.columns):
        columns = ", ".join(source.columns)[:200]
        raise InputError(f"{source.name} must have the columns slate_id and score (or weight); found: {columns}.")
    if "propensity" in source.columns:
        raise InputError(f"{source.name} already has a column 'propensity'; rename it.")
    table = pa.Table.from_batches(list(source.batches(source.columns)))
    if not len(table):
        raise InputError(f"{source.name} has no rows.")
    for name in {"slate_id", "score", "weight"} & set(table.column_names):
        if nulls := table.column(name).null_count:
            raise InputError(f"column '{name}' has {plural(nulls, 'null value')}; drop these rows.")
    return table


def _scores(table: pa.Table) -> Floats:
    """Scores, or the logarithms of weights."""
    name = "score" if "score" in table.column_names else "weight"
    column = table.column(name).combine_chunks()
    values = to_numbers(column, name, pa.types.is_string(column.type))
    if name == "weight":
        if np.any(values < 0.0):
            raise InputError(f"column 'weight' must be ≥ 0; {np.count_nonzero(values < 0.0):,} rows are not.")
        with np.errstate(divide="ignore"):
            values = np.log(values)
    check_scores(f"column '{name}'", values)
    return values
