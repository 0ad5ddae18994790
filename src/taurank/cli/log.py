"""``taurank log``: build and check logs."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from taurank.cli.arguments import read_period
from taurank.cli.options import READS, Group, LogPath, OutFile
from taurank.cli.terminal import say

group = Group("Build and check logs.")
_COLUMNS = "Table with user_id, item_id, timestamp[, propensity]."


class Combine(StrEnum):
    same = "same"
    any = "any"
    first = "first"
    max = "max"


@group.command("build")
def build(
    impressions: Annotated[Path, typer.Argument(metavar="IMPRESSIONS", help=_COLUMNS), READS],
    outcomes: Annotated[Path, typer.Argument(metavar="OUTCOMES", help=_COLUMNS), READS],
    out: OutFile,
    period: Annotated[
        str, typer.Option(help="Time step: day, week, or period edges: 2024-01-01,2024-01-15,…")
    ] = "day",
    window: Annotated[str | None, typer.Option(help='Attribution window, for example "3 days".')] = None,
    combine: Annotated[Combine, typer.Option(help="Propensity of a cell with several impressions.")] = Combine.same,
    memory_limit: Annotated[str | None, typer.Option(help='Memory limit, for example "2GB".')] = None,
) -> None:
    """Build a log from a table of impressions and a table of outcomes."""
    from taurank.data.log import Log

    built = Log.from_events(
        impressions, outcomes, period=read_period(period), window=window, combine=combine.value,
        memory_limit=memory_limit,
    )  # fmt: skip
    built.write(out)
    say(str(built.summary))
    say(f"Wrote {built!r} to {out}.")


@group.command("check")
def check(path: LogPath) -> None:
    """Read a log, check every row, and print a summary."""
    from taurank.data.log import Log

    for name, value in Log.read(path).describe().items():
        say(f"{name:<28}{_figure(value):>14}")


def _figure(value: Any) -> str:
    if value is None:
        return "not recorded"
    return f"{value:,}" if isinstance(value, int) else f"{value:.6g}"
