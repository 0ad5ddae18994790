"""``taurank propensity``: estimate and diagnose propensities, and compute those of slates."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from taurank._choices import PropensityKind, SlatePolicy
from taurank.cli.options import READS, Group, Html, LogPath, OutFile, Seed, Threads
from taurank.cli.terminal import note, say, to_json

group = Group("Estimate and diagnose propensities; compute those of slates.")


@group.command("estimate")
def estimate(
    path: LogPath,
    out: OutFile,
    model: Annotated[
        PropensityKind, typer.Option(help="exposure: knows pairs; additive: users, items and times alone.")
    ] = "exposure",
    user_features: Annotated[Path | None, typer.Option(help="Table of users: user_id, features."), READS] = None,
    item_features: Annotated[Path | None, typer.Option(help="Table of items: item_id, features."), READS] = None,
    categories: Annotated[
        Path | None,
        typer.Option(help="What each user can be shown: user_id, a column of --item-features, optionally score."),
        READS,
    ] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Also re-estimate recorded propensities.")] = False,
    seed: Seed = 0,
    threads: Threads = None,
) -> None:
    """Estimate missing propensities and check their calibration."""
    from taurank.data.features import Features
    from taurank.data.log import Log
    from taurank.estimation import propensity

    log = Log.read(path)
    given = any(table is not None for table in (user_features, item_features, categories))
    features = Features(user_features, item_features, categories) if given else None
    estimated = propensity.estimate(
        log, random_state=seed, model=model, features=features, replace=replace or None, threads=threads
    )
    calibration = propensity.pair_calibration(estimated)
    estimated.write(out)
    kept = 0 if replace or not log.n_without_propensity else len(log) - log.n_without_propensity
    say(f"Kept {kept:,} recorded propensities, estimated {len(log) - kept:,}.")
    say(calibration.sentence)
    note(f"Wrote {estimated!r} to {out}.")


@group.command("slates")
def slates(
    path: Annotated[
        Path, typer.Argument(metavar="TABLE", help="Candidates of slates: slate_id, score or weight."), READS
    ],
    out: OutFile,
    size: Annotated[int, typer.Option(help="Items on a slate.", min=1)],
    policy: Annotated[SlatePolicy, typer.Option(help="How slates were drawn.")] = "softmax",
    temperature: Annotated[float, typer.Option(help="Of the softmax: exp(score / temperature).", min=1e-12)] = 1.0,
    epsilon: Annotated[float | None, typer.Option(help="Share of uniform draws, epsilon-greedy.")] = None,
    threads: Threads = None,
) -> None:
    """Compute the probability of each item to be on its slate."""
    import itertools

    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    from taurank.data.reader import to_numbers
    from taurank.data.tables import open_table, write_batches
    from taurank.errors import InputError, plural
    from taurank.estimation.propensity.slates import check_scores, slate_epsilon_greedy, slates_of

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
    if nulls := table["slate_id"].null_count:
        raise InputError(f"column 'slate_id' has {plural(nulls, 'null value')}; drop these rows.")
    scores = to_numbers(table[name].combine_chunks(), name, source)
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
        propensity[order] = slates_of(scores / temperature, starts, size, threads)
    elif epsilon is None:
        raise InputError("epsilon-greedy slates need --epsilon, the share of uniform draws.")
    else:
        per = policy.removeprefix("epsilon-greedy-").removesuffix("s")
        parts = [slate_epsilon_greedy(scores[a:b], size, epsilon, per) for a, b in itertools.pairwise(starts)]
        propensity[order] = np.concatenate(parts)
    result = table.append_column("propensity", pa.array(propensity))
    write_batches(out, result.schema, result.to_batches())
    note(f"Wrote {len(order):,} candidates of {len(starts) - 1:,} slates to {out}.")


@group.command("diagnose")
def diagnose(
    path: LogPath,
    html: Html = None,
    format: Annotated[Literal["table", "json"], typer.Option(help="Output format.")] = "table",
) -> None:
    """Report which effects can be estimated from a log."""
    from taurank.data.log import Log
    from taurank.report.diagnosis import diagnose

    diagnosis = diagnose(Log.read(path))
    if html is not None:
        from taurank.report.overlap import overlap_page

        overlap_page(diagnosis, html)
    say(to_json(diagnosis.to_dict()) if format == "json" else str(diagnosis))
