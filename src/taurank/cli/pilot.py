"""``taurank pilot``: from a shop's tables to a decision."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from taurank.cli.options import READS, OutFolder, Threads
from taurank.cli.terminal import note, say


def pilot(
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="TOML file that names the tables."), READS],
    out: OutFolder,
    threads: Threads = None,
) -> None:
    """Compare rankings on a shop's tables and say which one to show.

    Builds the log, estimates propensities, fits several learners to the earlier weeks and measures them, beside
    today's ranking, on the later ones. Writes report.html, and the chosen model with its recommendations. The same
    command continues an interrupted run.
    """
    from taurank import report
    from taurank.pilot import run

    report.require()
    result = run(plan, out, threads=threads, show_progress=True)
    say(str(result))
    note(f"Wrote {out / 'report.html'}.")
