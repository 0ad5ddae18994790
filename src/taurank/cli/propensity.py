"""``taurank propensity``: estimate and diagnose propensities, and compute those of slates."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from taurank._choices import PropensityKind, SlatePolicy
from taurank.cli.options import READS, Group, Html, LogPath, OutFile, Seed
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
    threads: Annotated[
        int | None, typer.Option(help="Threads of the exposure model (default: all cores).", min=1)
    ] = None,
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
    path: Annotated[Path, typer.Argument(help="Candidates of slates: slate_id, score or weight."), READS],
    out: OutFile,
    size: Annotated[int, typer.Option(help="Items on a slate.", min=1)],
    policy: Annotated[SlatePolicy, typer.Option(help="How slates were drawn.")] = "softmax",
    temperature: Annotated[float, typer.Option(help="Of the softmax: exp(score / temperature).")] = 1.0,
    epsilon: Annotated[float | None, typer.Option(help="Share of uniform draws, epsilon-greedy.")] = None,
    threads: Annotated[int | None, typer.Option(help="Threads (default: all cores).", min=1)] = None,
) -> None:
    """Compute the probability of each item to be on its slate."""
    from taurank.cli.slates import add_propensities

    n_rows, n_slates = add_propensities(path, out, size, policy, temperature, epsilon, threads)
    note(f"Wrote {n_rows:,} candidates of {n_slates:,} slates to {out}.")


@group.command("diagnose")
def diagnose(
    path: LogPath,
    cells: Annotated[
        Path | None,
        typer.Option(help="Propensities of further cells: user_id, item_id[, time], propensity."),
        READS,
    ] = None,
    html: Html = None,
    format: Annotated[Literal["table", "json"], typer.Option(help="Output format.")] = "table",
) -> None:
    """Report which effects can be estimated from a log."""
    from taurank.data.log import Log
    from taurank.report.diagnosis import diagnose

    diagnosis = diagnose(Log.read(path), cells=cells)
    if html is not None:
        from taurank.report.overlap import overlap_page

        overlap_page(diagnosis, html)
    say(to_json(diagnosis.to_dict()) if format == "json" else str(diagnosis))
