"""``taurank log``: build and check logs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from taurank._choices import Combine, Incomplete, Nulls
from taurank.cli.arguments import read_columns
from taurank.cli.options import READS, WRITES, Columns, Group, LogPath, OutFile, TimeZone
from taurank.cli.terminal import note, say

group = Group("Build and check logs.")


@group.command("build")
def build(
    impressions: Annotated[
        Path, typer.Argument(metavar="IMPRESSIONS", help="Table: user_id, item_id, timestamp[, propensity]."), READS
    ],
    outcomes: Annotated[
        Path, typer.Argument(metavar="OUTCOMES", help="Table: user_id, item_id, timestamp[, value]."), READS
    ],
    out: OutFile,
    period: Annotated[
        str, typer.Option(help='Time step: day, week, month, "2 weeks", or period edges: 2024-01-01,2024-01-15,…')
    ] = "week",
    window: Annotated[str | None, typer.Option(help='Attribution window, for example "3 days".')] = None,
    combine: Annotated[Combine, typer.Option(help="Propensity of a cell with several impressions.")] = "same",
    columns: Columns = None,
    nulls: Annotated[Nulls, typer.Option(help="Refuse rows with a null, or drop and count them.")] = "drop",
    timezone: TimeZone = None,
    incomplete: Annotated[
        Incomplete, typer.Option(help="Drop or keep a first or last period that the tables cover in part.")
    ] = "drop",
    visits: Annotated[Path | None, typer.Option(help="Table of visits: user_id, timestamp."), READS] = None,
    candidates: Annotated[
        Path | None, typer.Option(help="Table of candidates: item_id[, timestamp[, user_id]]."), READS
    ] = None,
    slates: Annotated[
        Path | None,
        typer.Option(help="Candidates of all slates: user_id, item_id, timestamp, propensity[, slate_id]."),
        READS,
    ] = None,
    memory_limit: Annotated[str | None, typer.Option(help='Memory limit, for example "2GB".')] = None,
) -> None:
    """Build a log from a table of impressions and a table of outcomes."""
    from taurank.data.log import Log

    edges = [edge.strip() for edge in period.split(",")]
    built = Log.from_events(
        impressions, outcomes, period=edges if len(edges) > 1 else period, window=window, combine=combine,
        columns=read_columns(columns), nulls=nulls, timezone=timezone,
        incomplete=incomplete, visits=visits, candidates=candidates, slates=slates, memory_limit=memory_limit,
    )  # fmt: skip
    built.write(out)
    say(str(built.summary))
    note(f"Wrote {built!r} to {out}.")


@group.command("check")
def check(path: LogPath) -> None:
    """Read a log, check every row, and print a summary."""
    from taurank.data.log import Log

    for name, value in Log.read(path).describe().items():
        figure = "not recorded" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:.6g}"
        say(f"{name:<28}{figure:>14}")


@group.command("split")
def split(
    path: LogPath,
    train: Annotated[Path, typer.Option(help="Output file of the earlier times."), WRITES],
    test: Annotated[Path, typer.Option(help="Output file of the later times."), WRITES],
    times: Annotated[int | None, typer.Option(help="How many of the last times go into --test.", min=1)] = None,
    share: Annotated[float | None, typer.Option(help="The same as a share of all times, such as 0.2.")] = None,
) -> None:
    """Split a log by time, for training and evaluation."""
    from taurank.data.log import Log
    from taurank.data.tables import write_together

    parts = Log.read(path).split(times=times, share=share)
    write_together([(out, part.stream()) for part, out in zip(parts, (train, test), strict=True)])
    for part, out in zip(parts, (train, test), strict=True):
        note(f"Wrote {part!r} to {out}.")
