"""``taurank propensity``: estimate and diagnose propensities."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from taurank.cli.options import READS, WRITES, Format, Group, LogPath, OutFile, Seed
from taurank.cli.terminal import say, to_json

group = Group("Estimate and diagnose propensities.")


@group.command("estimate")
def estimate(
    path: LogPath,
    out: OutFile,
    seed: Seed = 0,
    threads: Annotated[int | None, typer.Option(help="Ignored; estimation uses one thread.", min=1)] = None,
) -> None:
    """Estimate the propensities of a log that does not record them."""
    from taurank.data.log import Log
    from taurank.estimation import propensity

    estimated = propensity.estimate(Log.read(path), random_state=seed)
    estimated.write(out)
    say(f"Wrote {estimated!r} to {out}.")


@group.command("diagnose")
def diagnose(
    path: LogPath,
    cells: Annotated[
        Path | None,
        typer.Option(help="Propensities of further cells: user_id, item_id[, time], propensity."),
        READS,
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Also write a page with charts."), WRITES] = None,
    format: Annotated[Format, typer.Option(help="Output format.")] = Format.table,
) -> None:
    """Report which effects can be estimated from a log."""
    from taurank.data.log import Log
    from taurank.estimation.propensity import diagnose

    diagnosis = diagnose(Log.read(path), cells=cells)
    if html is not None:
        diagnosis.write_html(html)
    say(to_json(diagnosis.to_dict()) if format is Format.json else str(diagnosis))
