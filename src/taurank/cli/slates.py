"""Slate propensities of a table: one row per slate and candidate in, the same rows with a column more out."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from taurank._checks import check_integer, check_number
from taurank.data.reader import to_numbers
from taurank.data.tables import open_table, write_batches
from taurank.errors import InputError, plural
from taurank.estimation.propensity.slates import check_scores, slate_epsilon_greedy, slates_of


def add_propensities(
    path: Path, out: Path, size: int, policy: str, temperature: float, epsilon: float | None, threads: int | None
) -> tuple[int, int]:
    """Read slate_id and score (or weight) of all candidates, write them with ``propensity``; rows and slates."""
    check_integer("size", size)
    source = open_table(path)
    name = "score" if "score" in source.columns else "weight"
    if not {"slate_id", name} <= set(source.columns):
        columns = ", ".join(source.columns)[:200]
        raise InputError(f"{source.name} must have the columns slate_id and score (or weight); found: {columns}.")
    if "propensity" in source.columns:
        raise InputError(f"{source.name} already has a column 'propensity'; rename it.")
    batches = list(source.batches(source.columns))
    if not batches:
        raise InputError(f"{source.name} has no rows.")
    table = pa.Table.from_batches(batches)
    for column in ("slate_id", name):
        if nulls := table[column].null_count:
            raise InputError(f"column '{column}' has {plural(nulls, 'null value')}; drop these rows.")
    scores = to_numbers(source.numerals(table[name].combine_chunks()), name, source.text)
    if name == "weight":
        if np.any(scores < 0.0):
            raise InputError(f"column 'weight' must be ≥ 0; {np.count_nonzero(scores < 0.0):,} rows are not.")
        with np.errstate(divide="ignore"):
            scores = np.log(scores)
    check_scores(f"column '{name}'", scores)
    slate = np.asarray(pc.dictionary_encode(table["slate_id"].combine_chunks()).indices, np.int64)
    order = np.argsort(slate, kind="stable")
    starts = np.concatenate([[0], np.cumsum(np.bincount(slate))])
    propensity, scores = np.empty(len(order)), scores[order]
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
